//! Drawing a token: the specification ([`draw`]) and a fast equivalent ([`Sampler`]).
//!
//! A draw is a pure function of (logits, parameters, seed, absolute position). Its steps, in this
//! order, all in f64:
//!
//! 1. Log probabilities are the log-softmax of the *raw* logits; nothing below changes them.
//! 2. Biases are added.
//! 3. Tokens outside the mask are removed.
//! 4. Penalties: for every token in the counts, `l > 0 ? l / repetition : l * repetition`; then, if
//!    it was generated, `presence` is subtracted once and `frequency` once for each occurrence.
//! 5. Temperature 0 takes the largest logit, and of equal ones the lowest token. The draw ends here.
//! 6. `z = l / temperature`.
//! 7. Top-k keeps the `k` largest; of equal ones the lower token comes first.
//! 8. Top-p keeps, of what is left, the shortest prefix in descending order whose softmax reaches
//!    `p`; at least one token.
//! 9. Min-p keeps, of what is left, tokens with `exp(z - z_max) >= min_p`.
//! 10. The token with the largest `z + g` wins (of equal ones the lowest), where `g` is the
//!     token's standard Gumbel noise, [`gumbel`]`(seed, position, token)`. By the Gumbel-max
//!     theorem (Gumbel 1954; Maddison et al. 2014, arXiv 1411.0030) this draws from the softmax of
//!     what was kept.
//!
//! The noise of a token does not depend on which tokens were kept, so two draws with the same key
//! agree whenever their distributions are close: the coupling that speculation rests on.

mod exp;
mod noise;
mod sampler;
mod spec;
#[cfg(test)]
mod tests;

pub use noise::{gumbel, philox4x32_10};
pub use sampler::Sampler;
pub use spec::draw;

use crate::OpError;
use laneway_execution::{Draw, SampleRow, StepBatch, TokenCount, TokenId};

/// One row to sample, with its slices of the step's side tables.
#[derive(Clone, Copy, Debug)]
pub struct SampleInput<'a> {
    /// What is wanted, the parameters and the noise key. Its ranges are not read.
    pub row: &'a SampleRow,
    /// Tokens that occurred before, each listed once.
    pub counts: &'a [TokenCount],
    /// Additive logit biases; entries of the same token add up.
    pub biases: &'a [(TokenId, f32)],
    /// One bit a vocabulary entry, set = allowed; empty = everything is allowed.
    pub mask: &'a [u32],
}

impl<'a> SampleInput<'a> {
    /// The input of `row`, its slices taken from `batch`.
    ///
    /// # Panics
    /// If the row's ranges lie outside the batch; a validated batch has none such.
    #[must_use]
    pub fn of(batch: &'a StepBatch, row: &'a SampleRow) -> Self {
        SampleInput {
            row,
            counts: &batch.counts[row.counts.clone()],
            biases: &batch.biases[row.biases.clone()],
            mask: &batch.masks[row.mask.clone()],
        }
    }

    /// A row without penalties, biases or mask.
    #[must_use]
    pub fn plain(row: &'a SampleRow) -> Self {
        SampleInput { row, counts: &[], biases: &[], mask: &[] }
    }

    /// Checks everything that does not need a look at each logit.
    pub(crate) fn check(&self, vocabulary: usize) -> Result<(), SamplingError> {
        let scored = match self.row.draw {
            Draw::Score(token) => Some(token),
            Draw::Sample => None,
        };
        let tokens = (self.counts.iter().map(|c| c.token))
            .chain(self.biases.iter().map(|&(token, _)| token))
            .chain(scored);
        for token in tokens {
            if token as usize >= vocabulary {
                return Err(SamplingError::UnknownToken { token, vocabulary });
            }
        }
        if let Some(&(token, value)) = self.biases.iter().find(|(_, bias)| !bias.is_finite()) {
            return Err(SamplingError::Bias { token, value });
        }
        let words = vocabulary.div_ceil(32);
        if !self.mask.is_empty() && self.mask.len() != words {
            return Err(SamplingError::MaskLength { found: self.mask.len(), expected: words });
        }
        Ok(())
    }

    /// True if `token` is allowed by the mask.
    pub(crate) fn allows(&self, token: usize) -> bool {
        self.mask.is_empty() || self.mask[token / 32] >> (token % 32) & 1 == 1
    }

    /// Step 4 for one counted token.
    pub(crate) fn penalized(&self, logit: f64, count: &TokenCount) -> f64 {
        let params = &self.row.params;
        let repetition = f64::from(params.repetition_penalty);
        let mut logit = if logit > 0.0 { logit / repetition } else { logit * repetition };
        if count.generated > 0 {
            logit -= f64::from(params.presence_penalty);
            logit -= f64::from(params.frequency_penalty) * f64::from(count.generated);
        }
        logit
    }
}

/// Why a row cannot be sampled.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// The model produced NaN or an infinity.
    #[error("logit of token {token} is {value}")]
    NotFinite {
        /// First such token.
        token: TokenId,
        /// Its logit.
        value: f32,
    },
    /// The mask allows no token.
    #[error("the mask allows none of {vocabulary} tokens")]
    NothingAllowed {
        /// Vocabulary entries.
        vocabulary: usize,
    },
    /// The mask is not one bit a vocabulary entry.
    #[error("mask of {found} words, the vocabulary needs {expected}")]
    MaskLength {
        /// Words given.
        found: usize,
        /// Words needed.
        expected: usize,
    },
    /// A count, bias or score names a token that does not exist.
    #[error("token {token} is beyond the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The token.
        token: TokenId,
        /// Vocabulary entries.
        vocabulary: usize,
    },
    /// A bias is NaN or an infinity.
    #[error("bias of token {token} is {value}")]
    Bias {
        /// The token.
        token: TokenId,
        /// Its bias.
        value: f32,
    },
}

impl From<SamplingError> for OpError {
    fn from(error: SamplingError) -> Self {
        let (op, detail) = ("logits_sample", error.to_string());
        match error {
            SamplingError::NotFinite { .. } => OpError::Device { op, detail },
            _ => OpError::Shape { op, detail },
        }
    }
}
