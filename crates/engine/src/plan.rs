//! Filling a step: a row of every decoding lane and one chunk of the oldest incomplete prompt.

use crate::scheduler::{RequestId, Scheduler};
use crate::sequence::Sequence;
use laneway_execution::{Draw, SampleRow, SamplingKey, SamplingParams, SequenceId, StepBatch};
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
    /// This request's entries among the step's samples: scores first, then the draw, if any.
    pub samples: Range<usize>,
    pub scores: usize,
}

/// The step that is under way.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub in_flight: bool,
    pub parts: Vec<Part>,
    /// Attended pairs of all rows.
    pub pairs: f64,
}

impl Step {
    pub fn samples(&self) -> usize {
        self.parts.last().map_or(0, |part| part.samples.end)
    }

    pub fn clear(&mut self) {
        self.in_flight = false;
        self.parts.clear();
        self.pairs = 0.0;
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
        for sequence in self.running.iter().filter(|sequence| sequence.is_decoding()) {
            let part = append(sequence, 1, false, batch);
            self.step.pairs += attended_pairs(sequence.computed, 1);
            self.step.parts.push(part);
        }
        let limits = self.config.limits;
        let rows_left = limits.rows_per_step.saturating_sub(batch.rows());
        let samples_left = limits.samples_per_step.saturating_sub(batch.samples.len());
        if let Some(sequence) = self.running.iter_mut().find(|one| !one.is_decoding()) {
            let mut rows = self.config.chunk.min(sequence.remaining()).min(rows_left);
            if sequence.request.score_prompt {
                rows = rows.min(samples_left);
            }
            if rows > 0 {
                sequence.times.prefill_start.get_or_insert(now);
                let part = append(sequence, rows, true, batch);
                self.step.pairs += attended_pairs(sequence.computed, rows);
                self.step.parts.push(part);
            }
        }
    }
}

/// Appends the next `rows` rows of a sequence and what is to be sampled of them.
fn append(sequence: &Sequence, rows: usize, prefill: bool, batch: &mut StepBatch) -> Part {
    let start = sequence.computed;
    let end = start + rows;
    let segment = batch.push_segment(
        SequenceId(sequence.id.0),
        start,
        &sequence.tokens[start..end],
        &sequence.pages,
        sequence.slot,
    );
    let first_sample = batch.samples.len();
    if sequence.request.score_prompt {
        // The row of position p tells the probability of the token at p + 1. What was reported
        // before a pause is not asked for again.
        let last = end.min(sequence.prompt - 1);
        for position in start.max(sequence.scored)..last {
            let row = segment.start + (position - start);
            let draw = Draw::Score(sequence.tokens[position + 1]);
            push_sample(sequence, row, position, draw, batch);
        }
    }
    let scores = batch.samples.len() - first_sample;
    if end == sequence.tokens.len() && sequence.left() > 0 {
        push_sample(sequence, segment.end - 1, end - 1, Draw::Sample, batch);
    }
    Part {
        id: sequence.id,
        rows,
        prefill,
        first: start == 0 && sequence.reported == 0,
        samples: first_sample..batch.samples.len(),
        scores,
    }
}

fn push_sample(
    sequence: &Sequence,
    row: usize,
    position: usize,
    draw: Draw,
    batch: &mut StepBatch,
) {
    let request = &sequence.request;
    let counts = batch.counts.len();
    let biases = batch.biases.len();
    let scores = matches!(draw, Draw::Score(_));
    if !scores {
        batch.counts.extend_from_slice(sequence.counts.entries());
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
