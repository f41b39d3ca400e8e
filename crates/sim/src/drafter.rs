//! A drafter that knows the right answer and gives it as often as it is told to, and that remembers
//! what it was told about every sequence, so that a wrong word shows when the token arrives.

use crate::token::{Prefix, coin, draw};
use laneway_execution::{Drafting, SampleRow, Segment, SequenceId, StepBatch, TokenCount, TokenId};
use std::collections::HashMap;

/// How good a simulated drafter is.
#[derive(Clone, Debug, Default)]
pub struct SimDrafter {
    /// Seed of its mistakes.
    pub seed: u64,
    /// Probability that a proposal is right, by place; the last entry holds for all behind it. A
    /// drafter without entries is never right.
    pub accuracy: Vec<f64>,
}

/// How far a sequence is, and its token there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Promise {
    position: usize,
    next: TokenId,
}

/// The drafter's memory.
#[derive(Debug)]
pub(crate) struct Drafters {
    drafter: SimDrafter,
    proposals: usize,
    vocab_size: usize,
    promises: HashMap<SequenceId, Promise>,
}

impl Drafters {
    pub fn new(drafter: SimDrafter, proposals: usize, vocab_size: usize) -> Self {
        Self { drafter, proposals, vocab_size, promises: HashMap::new() }
    }

    /// Checks what a segment wants, and that it goes on as the drafter was told.
    pub fn check(&self, batch: &StepBatch, segment: &Segment) -> Result<(), String> {
        let Segment { sequence, start, .. } = segment;
        match segment.drafting {
            Drafting::Off => return Ok(()),
            _ if self.proposals == 0 => return Err("there is no drafter".to_owned()),
            Drafting::Propose { count } if count > self.proposals => {
                return Err(format!("{count} proposals, the limit is {}", self.proposals));
            }
            Drafting::Propose { count } => {
                let last = segment.rows.end - 1;
                if !batch.samples.iter().any(|sample| sample.row == last) {
                    return Err(format!("{sequence:?} draws nothing to propose behind"));
                }
                let covered = laneway_execution::pages_for(start + segment.rows.len() + count);
                if count > 0 && batch.block_table(segment).len() < covered {
                    return Err(format!("{sequence:?} has no pages for {count} proposals"));
                }
            }
            Drafting::Follow { .. } if segment.drafts > 0 => {
                return Err(format!("{sequence:?} has drafts before a known token"));
            }
            Drafting::Follow { .. } => {}
        }
        let first = batch.segment_tokens(segment)[0];
        let promise = self.promises.get(sequence);
        let arrives = Promise { position: *start, next: first };
        if *start > 0 && promise != Some(&arrives) {
            return Err(format!("{sequence:?} sends {arrives:?}, the drafter expects {promise:?}"));
        }
        Ok(())
    }

    /// Notes how a segment goes on: up to `position`, where the token `next` stands.
    pub fn follow(&mut self, segment: &Segment, position: usize, next: Option<TokenId>) {
        let next = match segment.drafting {
            Drafting::Off => None,
            Drafting::Follow { next } => Some(next),
            Drafting::Propose { .. } => next,
        };
        match next {
            Some(next) => self.promises.insert(segment.sequence, Promise { position, next }),
            None => self.promises.remove(&segment.sequence),
        };
    }

    /// Nothing is known of a sequence any more.
    pub fn forget(&mut self, sequence: SequenceId) {
        self.promises.remove(&sequence);
    }

    /// Appends what is proposed behind `prefix`, which ends with the token that was drawn for
    /// `sample`; `scripted` tells the right token of a position if there is a script.
    pub fn propose(
        &self,
        batch: &StepBatch,
        sample: &SampleRow,
        mut prefix: Prefix,
        drawn: TokenId,
        count: usize,
        scripted: impl Fn(u64) -> Option<TokenId>,
        proposals: &mut Vec<TokenId>,
    ) {
        let mut counts = batch.counts[sample.counts.clone()].to_vec();
        let biases = &batch.biases[sample.biases.clone()];
        let mut key = sample.key;
        let mut last = drawn;
        for place in 0..count {
            if sample.params.uses_counts() {
                add(&mut counts, last);
            }
            key.position += 1;
            let right = scripted(key.position)
                .unwrap_or_else(|| draw(prefix, key, &counts, biases, self.vocab_size));
            let accuracy = &self.drafter.accuracy;
            let probability = accuracy.get(place).or(accuracy.last()).copied().unwrap_or(0.0);
            let is_right = coin(&[self.drafter.seed, key.seed, key.position], probability);
            let wrong = (right + 1) % self.vocab_size as TokenId;
            last = if is_right { right } else { wrong };
            prefix.push(last);
            proposals.push(last);
        }
    }
}

fn add(counts: &mut Vec<TokenCount>, token: TokenId) {
    match counts.iter_mut().find(|count| count.token == token) {
        Some(count) => count.generated += 1,
        None => counts.push(TokenCount { token, generated: 1 }),
    }
}
