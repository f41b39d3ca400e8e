//! One step's output: a token for every sampled row.

use crate::TokenId;
use std::ops::Range;

/// The outcome of one [`SampleRow`](crate::SampleRow).
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// The drawn token, or the scored one.
    pub token: TokenId,
    /// Natural-log probability of `token` under the model's raw logits: before temperature,
    /// penalties, biases and masks, so that it means the same for every request.
    pub logprob: f32,
    /// This row's entries in [`StepOutput::top`], most likely first.
    pub top: Range<usize>,
}

/// One step's output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// One entry for each of the batch's sampled rows, in the same order.
    pub samples: Vec<SampledToken>,
    /// Most likely tokens of the rows that asked for them, with raw log probabilities.
    pub top: Vec<(TokenId, f32)>,
    /// Proposed tokens of all segments that asked for some.
    pub proposals: Vec<TokenId>,
    /// For each segment of the step its entries in [`StepOutput::proposals`]; empty if the
    /// executor cannot draft.
    pub proposed: Vec<Range<usize>>,
}

impl StepOutput {
    /// What was proposed behind the segment of this number.
    #[must_use]
    pub fn proposals_of(&self, segment: usize) -> &[TokenId] {
        self.proposed
            .get(segment)
            .and_then(|range| self.proposals.get(range.clone()))
            .unwrap_or(&[])
    }

    /// Empties the output, keeping its storage.
    pub fn clear(&mut self) {
        self.samples.clear();
        self.top.clear();
        self.proposals.clear();
        self.proposed.clear();
    }
}
