//! Filling a step: the last token of every decoding lane with its drafts, and one chunk of the
//! oldest incomplete prompt.

use crate::scheduler::{RequestId, Scheduler};
use crate::sequence::Sequence;
use crate::speculation::{DRAFTS_MAX, Shares};
use laneway_execution::{
    Drafting, Draw, SampleRow, SamplingKey, SamplingParams, SequenceId, StepBatch, TokenId,
    pages_for,
};
use laneway_plan::attended_pairs;
use std::ops::Range;
use std::time::Duration;

/// What one request has in a step.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub id: RequestId,
    pub rows: usize,
    /// A part of a prompt, or of a sequence that is computed again.
    pub prefill: bool,
    /// The sequence's first row, for the first time.
    pub first: bool,
    /// This request's entries among the step's samples: scores first, then the draws, if any.
    pub samples: Range<usize>,
    pub scores: usize,
    /// Drafts that the executor is asked for.
    pub asked: usize,
}

/// The step that is under way.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub in_flight: bool,
    pub parts: Vec<Part>,
    /// Attended pairs of all rows.
    pub pairs: f64,
    /// Passes of the executor's drafter.
    pub passes: usize,
    /// When it was planned.
    pub planned: Duration,
}

impl Step {
    pub fn samples(&self) -> usize {
        self.parts.last().map_or(0, |part| part.samples.end)
    }

    pub fn clear(&mut self) {
        self.in_flight = false;
        self.parts.clear();
        self.pairs = 0.0;
        self.passes = 0;
    }
}

/// What the time of a step depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepLoad {
    /// Rows of all segments.
    pub rows: usize,
    /// Pairs of a row and a position that it attends to.
    pub pairs: f64,
    /// Whether a prompt is part of it.
    pub prefill: bool,
}

impl Scheduler {
    /// What the planned step's time depends on; none if no step is under way.
    #[must_use]
    pub fn step_load(&self) -> Option<StepLoad> {
        self.step.in_flight.then(|| StepLoad {
            rows: self.step.parts.iter().map(|part| part.rows).sum(),
            pairs: self.step.pairs,
            prefill: self.step.parts.iter().any(|part| part.prefill),
        })
    }

    pub(crate) fn fill(&mut self, now: Duration, batch: &mut StepBatch) {
        self.step.planned = now;
        let decoding = self.running.iter().filter(|sequence| sequence.is_decoding()).count();
        let chunk = self.chunk(decoding);
        self.draft(decoding, chunk);
        for sequence in self.running.iter().filter(|sequence| sequence.is_decoding()) {
            let rows = 1 + sequence.speculator.drafts.len();
            self.step.parts.push(append(sequence, rows, false, batch));
            self.step.pairs += attended_pairs(sequence.computed, rows);
        }
        if chunk.rows > 0
            && let Some(sequence) = self.running.iter_mut().find(|one| !one.is_decoding())
        {
            sequence.times.prefill_start.get_or_insert(now);
            self.step.parts.push(append(sequence, chunk.rows, true, batch));
            self.step.pairs += attended_pairs(sequence.computed, chunk.rows);
        }
        self.step.passes = self.step.parts.iter().map(|part| part.asked).max().unwrap_or(0);
    }

    /// What the oldest incomplete prompt gets of a step with so many decoding lanes. Drafts take
    /// only what it leaves, so that speculation holds up no prompt.
    fn chunk(&self, decoding: usize) -> Chunk {
        let limits = self.config.limits;
        let rows_left = limits.rows_per_step.saturating_sub(decoding);
        let samples_left = limits.samples_per_step.saturating_sub(decoding);
        let Some(sequence) = self.running.iter().find(|one| !one.is_decoding()) else {
            return Chunk::default();
        };
        let mut rows = self.config.chunk.min(sequence.remaining()).min(rows_left);
        if sequence.request.score_prompt {
            rows = rows.min(samples_left);
        }
        Chunk { rows, samples: if sequence.request.score_prompt { rows } else { rows.min(1) } }
    }

    /// Settles the drafts of all lanes within the limits of the step: one more for each lane in
    /// turn, the oldest first, as long as there are rows; then as many as there are pages for.
    /// Whatever draws asks for the next drafts, if its drafter is the executor's.
    fn draft(&mut self, decoding: usize, chunk: Chunk) {
        let Self { running, pool, config, rounds, .. } = self;
        let mut shares = Shares::default();
        let lanes = running.iter().filter(|one| one.is_decoding());
        lanes.for_each(|one| shares.add(&one.speculator.share));
        let mut wanted = 0;
        for one in running.iter_mut().filter(|one| one.is_decoding()) {
            let company = shares.without(&one.speculator.share);
            let left = one.left();
            one.speculator.draft(&one.tokens, left, rounds, &company);
            wanted += one.speculator.drafts.len();
        }
        let rows = config.limits.rows_per_step.saturating_sub(decoding + chunk.rows);
        let samples = config.limits.samples_per_step.saturating_sub(decoding + chunk.samples);
        if wanted > rows.min(samples) {
            share_out(running, rows.min(samples));
        }
        let mut prompts = 0;
        for one in running.iter_mut() {
            if !one.is_decoding() {
                prompts += 1;
                // Only the oldest prompt is part of the step, and nothing is drawn inside it.
                if prompts > 1 || one.remaining() > chunk.rows {
                    continue;
                }
            }
            let company = shares.without(&one.speculator.share);
            let (left, tokens) = (one.left(), one.tokens.len());
            pool.grow_some(&mut one.pages, pages_for(tokens + one.speculator.drafts.len()));
            one.speculator.drafts.truncate(one.room());
            one.speculator.ask(left, rounds, &company);
            let ahead = one.speculator.drafts.len() + one.speculator.asked;
            pool.grow_some(&mut one.pages, pages_for(tokens + ahead));
            one.speculator.asked = ahead.min(one.room()) - one.speculator.drafts.len();
            one.speculator.settle();
        }
    }
}

/// What a prompt gets of a step.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    rows: usize,
    samples: usize,
}

/// Cuts the drafts of all lanes down to `rows` together, the longest first and equally far.
fn share_out(running: &mut [Sequence], rows: usize) {
    let lengths = || running.iter().map(|one| one.speculator.drafts.len());
    let within = |length: usize| lengths().map(|drafts| drafts.min(length)).sum::<usize>() <= rows;
    let length = (0..DRAFTS_MAX).rev().find(|&length| within(length)).unwrap_or(0);
    let kept: usize = lengths().map(|drafts| drafts.min(length)).sum();
    let mut spare = rows.saturating_sub(kept);
    for one in running {
        let more = usize::from(spare > 0 && one.speculator.drafts.len() > length);
        one.speculator.drafts.truncate(length + more);
        spare -= more;
    }
}

/// Appends the next `rows` rows of a sequence, drafts included, and what is to be sampled of them.
fn append(sequence: &Sequence, rows: usize, prefill: bool, batch: &mut StepBatch) -> Part {
    let drafts = &sequence.speculator.drafts;
    let start = sequence.computed;
    let end = start + rows - drafts.len();
    let draws = end == sequence.tokens.len() && sequence.left() > 0;
    let asked = if draws { sequence.speculator.asked } else { 0 };
    let segment = batch.push_segment(
        SequenceId(sequence.id.0),
        start,
        &sequence.tokens[start..end],
        &sequence.pages,
        sequence.slot,
    );
    push_drafts(sequence, end, asked, batch);
    let first_sample = batch.samples.len();
    if sequence.request.score_prompt {
        // The row of position p tells the probability of the token at p + 1. What was reported
        // before a pause is not asked for again.
        let last = end.min(sequence.prompt - 1);
        for position in start.max(sequence.scored)..last {
            let row = segment.start + (position - start);
            let draw = Draw::Score(sequence.tokens[position + 1]);
            push_sample(sequence, row, position, draw, &[], batch);
        }
    }
    let scores = batch.samples.len() - first_sample;
    if draws {
        for ahead in 0..=drafts.len() {
            let (row, position) = (segment.end - 1 + ahead, end - 1 + ahead);
            push_sample(sequence, row, position, Draw::Sample, &drafts[..ahead], batch);
        }
    }
    Part {
        id: sequence.id,
        rows,
        prefill,
        first: start == 0 && sequence.reported == 0,
        samples: first_sample..batch.samples.len(),
        scores,
        asked,
    }
}

/// Extends the segment that was pushed last, which ends before position `end`, by the sequence's
/// drafts, and says what the executor's drafter has to do with it.
fn push_drafts(sequence: &Sequence, end: usize, asked: usize, batch: &mut StepBatch) {
    let drafts = &sequence.speculator.drafts;
    let Some(segment) = batch.segments.last_mut() else { return };
    batch.tokens.extend_from_slice(drafts);
    segment.rows.end += drafts.len();
    segment.drafts = drafts.len();
    // What is proposed stands behind the drafts and the token that is drawn after them.
    let covered = pages_for(end + drafts.len() + asked);
    if let Some(more) = sequence.pages.get(segment.blocks.len()..covered) {
        batch.block_tables.extend_from_slice(more);
        segment.blocks.end += more.len();
    }
    if sequence.speculator.is_followed() {
        segment.drafting = match sequence.tokens.get(end) {
            Some(&next) => Drafting::Follow { next },
            None => Drafting::Propose { count: asked },
        };
    }
}

/// Samples the row of `position`; `before` are the drafts up to it.
fn push_sample(
    sequence: &Sequence,
    row: usize,
    position: usize,
    draw: Draw,
    before: &[TokenId],
    batch: &mut StepBatch,
) {
    let request = &sequence.request;
    let counts = batch.counts.len();
    let biases = batch.biases.len();
    let scores = matches!(draw, Draw::Score(_));
    if !scores {
        if request.sampling.uses_counts() {
            sequence.counts.append_with(before, &mut batch.counts);
        }
        batch.biases.extend_from_slice(&request.biases);
    }
    batch.samples.push(SampleRow {
        row,
        draw,
        // Probabilities are those of the raw logits, so that a score needs no parameters.
        params: if scores { SamplingParams::PLAIN } else { request.sampling },
        key: SamplingKey { seed: request.seed, position: position as u64 + 1 },
        top_logprobs: request.top_logprobs,
        counts: counts..batch.counts.len(),
        biases: biases..batch.biases.len(),
        mask: 0..0,
    });
}
