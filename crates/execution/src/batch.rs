//! One step's input: ragged segments of token rows and the rows to sample.

use crate::{Draw, PAGE_TOKENS, SampledToken, SamplingKey, SamplingParams, pages_for};
use std::ops::Range;

/// A vocabulary entry.
pub type TokenId = u32;

/// A page of the KV pool, `0..Limits::pages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// A slot of recurrent state, `0..Limits::state_slots`; unused by attention-only models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// A sequence as the engine names it; unique for the life of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// Consecutive tokens of one sequence within a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// The sequence these rows extend.
    pub sequence: SequenceId,
    /// Rows of the step that belong to this segment (indices into [`StepBatch::tokens`]).
    pub rows: Range<usize>,
    /// Position in the sequence of the first row; all earlier positions are already in the pages.
    pub start: usize,
    /// This segment's entries in [`StepBatch::block_tables`].
    pub blocks: Range<usize>,
    /// Where the sequence's recurrent state lives, for models that have one. It must hold the
    /// sequence up to `start`: a segment at position 0 starts it afresh, and a segment behind
    /// drafts starts behind those of them that were accepted.
    pub state_slot: Option<SlotId>,
    /// How many of the last rows hold drafts: tokens that may turn out not to be the sequence's.
    /// Each of these rows and the one before them is sampled exactly once, with
    /// [`Draw::Sample`](crate::Draw::Sample); see [`StepBatch::accepted`].
    pub drafts: usize,
    /// What the executor's drafter does with these rows.
    pub drafting: Drafting,
}

/// What an executor that can draft does with a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drafting {
    /// Nothing, and nothing is wanted of this sequence later.
    #[default]
    Off,
    /// Keep up with the sequence: its next token, behind the last row, is this one.
    Follow {
        /// The token.
        next: TokenId,
    },
    /// Keep up with the sequence, and propose what follows the token drawn at the last row that
    /// is accepted. The last row must be sampled, and the block table must cover the proposed
    /// tokens but the last.
    Propose {
        /// Tokens wanted; 0 keeps up only.
        count: usize,
    },
}

/// How often a token has occurred before a sampled row; input of the penalties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCount {
    /// The token.
    pub token: TokenId,
    /// Occurrences in the generated part; 0 when it occurred in the prompt only.
    pub generated: u32,
}

/// A row whose next-token distribution is wanted, and what to do with it.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleRow {
    /// Row of the step, index into [`StepBatch::tokens`].
    pub row: usize,
    /// Draw a token, or score a given one.
    pub draw: Draw,
    /// Shape of the distribution that is drawn from.
    pub params: SamplingParams,
    /// Names the noise of this draw.
    pub key: SamplingKey,
    /// Number of most likely alternatives to report, 0 for none.
    pub top_logprobs: usize,
    /// This row's entries in [`StepBatch::counts`].
    pub counts: Range<usize>,
    /// This row's entries in [`StepBatch::biases`].
    pub biases: Range<usize>,
    /// This row's words in [`StepBatch::masks`]: one bit a vocabulary entry, set = allowed,
    /// entry `t` at bit `t % 32` of word `t / 32`. Empty = everything is allowed.
    pub mask: Range<usize>,
}

/// One step: ragged segments, their block tables, and the rows to sample.
///
/// A batch is cleared and refilled every step, so a running engine allocates nothing here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepBatch {
    /// The tokens of all rows, segment after segment.
    pub tokens: Vec<TokenId>,
    /// The segments, in row order.
    pub segments: Vec<Segment>,
    /// Block tables of all segments: page `i` of a segment holds positions
    /// `i * PAGE_TOKENS..(i + 1) * PAGE_TOKENS` of its sequence.
    pub block_tables: Vec<PageId>,
    /// Rows to sample, in row order.
    pub samples: Vec<SampleRow>,
    /// Token counts of all sampled rows that use penalties.
    pub counts: Vec<TokenCount>,
    /// Additive logit biases of all sampled rows.
    pub biases: Vec<(TokenId, f32)>,
    /// Bit masks of all sampled rows that are constrained.
    pub masks: Vec<u32>,
}

impl StepBatch {
    /// Empties the batch, keeping its storage.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.segments.clear();
        self.block_tables.clear();
        self.samples.clear();
        self.counts.clear();
        self.biases.clear();
        self.masks.clear();
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// True if there is nothing to run.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Appends a segment and returns its rows.
    ///
    /// `block_table` must cover every position up to the segment's last.
    ///
    /// # Panics
    /// If `tokens` is empty or the block table is too short: the caller's bookkeeping is broken,
    /// and running such a step would corrupt another sequence's pages.
    pub fn push_segment(
        &mut self,
        sequence: SequenceId,
        start: usize,
        tokens: &[TokenId],
        block_table: &[PageId],
        state_slot: Option<SlotId>,
    ) -> Range<usize> {
        assert!(!tokens.is_empty(), "a segment has at least one token");
        let needed = pages_for(start + tokens.len());
        assert!(
            block_table.len() >= needed,
            "block table of {} pages for {} tokens ({needed} pages of {PAGE_TOKENS})",
            block_table.len(),
            start + tokens.len(),
        );
        let first_row = self.tokens.len();
        let first_block = self.block_tables.len();
        self.tokens.extend_from_slice(tokens);
        self.block_tables.extend_from_slice(&block_table[..needed]);
        let rows = first_row..self.tokens.len();
        self.segments.push(Segment {
            sequence,
            rows: rows.clone(),
            start,
            blocks: first_block..self.block_tables.len(),
            state_slot,
            drafts: 0,
            drafting: Drafting::Off,
        });
        rows
    }

    /// How many of a segment's drafts are accepted: the longest run of them in which each equals
    /// what was drawn at the row before it. Hence the tokens of a sequence are those of plain
    /// decoding, whatever is drafted (Daliri et al. 2024, arXiv 2408.07978).
    ///
    /// `samples` are the step's, one for each of [`StepBatch::samples`].
    #[must_use]
    pub fn accepted(&self, segment: &Segment, samples: &[SampledToken]) -> usize {
        let first = segment.rows.end - segment.drafts;
        let Some(before) = self.samples.iter().position(|sample| sample.row + 1 == first) else {
            return 0;
        };
        let drawn = samples[before.min(samples.len())..].iter().map(|sample| sample.token);
        let drafts = &self.tokens[first..segment.rows.end];
        drafts.iter().zip(drawn).take_while(|(draft, drawn)| *draft == drawn).count()
    }

    /// The pages of `segment`, first to last.
    #[must_use]
    pub fn block_table(&self, segment: &Segment) -> &[PageId] {
        &self.block_tables[segment.blocks.clone()]
    }

    /// The tokens of `segment`.
    #[must_use]
    pub fn segment_tokens(&self, segment: &Segment) -> &[TokenId] {
        &self.tokens[segment.rows.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_laid_out_one_after_the_other() {
        let mut batch = StepBatch::default();
        let a = batch.push_segment(SequenceId(1), 63, &[7, 8], &[PageId(4), PageId(9)], None);
        let b = batch.push_segment(SequenceId(2), 0, &[5], &[PageId(1), PageId(2)], None);
        assert_eq!((a, b), (0..2, 2..3));
        assert_eq!(batch.block_table(&batch.segments[0]), [PageId(4), PageId(9)]);
        // Only the pages the rows can reach are kept.
        assert_eq!(batch.block_table(&batch.segments[1]), [PageId(1)]);
        assert_eq!(batch.segment_tokens(&batch.segments[1]), [5]);
        batch.clear();
        assert!(batch.is_empty());
    }
}
