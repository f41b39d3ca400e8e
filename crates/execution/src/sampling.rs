//! What a draw depends on: the parameters, the noise key, nothing else.
//!
//! Sampling is a pure function of (logits, parameters, seed, absolute position), so a draw does
//! not depend on batching, chunking or speculation. `laneway-ops` holds the function's oracle and
//! states the order of the transformations.

use crate::TokenId;

/// What is wanted of a sampled row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// Draw a token from the shaped distribution.
    Sample,
    /// Report the log probability of this token instead of drawing one.
    Score(TokenId),
}

/// Names the noise of one draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SamplingKey {
    /// The request's seed.
    pub seed: u64,
    /// Absolute position of the drawn token in its sequence.
    pub position: u64,
}

/// Shape of the distribution that a token is drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// Softmax temperature; 0 takes the most likely token.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of most likely tokens whose probabilities reach `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least `min_p` times as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Subtracted once from the logit of every generated token.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a generated token once for each occurrence.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output; 1 = off.
    pub repetition_penalty: f32,
}

impl SamplingParams {
    /// Most likely token, no penalties.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        repetition_penalty: 1.0,
    };

    /// The model's own distribution at temperature 1.
    pub const PLAIN: Self = Self { temperature: 1.0, ..Self::GREEDY };

    /// True if token counts influence the draw.
    #[must_use]
    pub fn uses_counts(&self) -> bool {
        self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || self.repetition_penalty != 1.0
    }

    /// Checks every parameter against its range.
    ///
    /// # Errors
    /// The first parameter out of range, with the range.
    pub fn validate(&self) -> Result<(), SamplingParamsError> {
        let checks = [
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, f32::MIN_POSITIVE, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100.0),
        ];
        for (name, value, low, high) in checks {
            // Written so that NaN fails.
            if !(value >= low && value <= high) {
                return Err(SamplingParamsError { name, value, low, high });
            }
        }
        Ok(())
    }
}

/// A sampling parameter outside its range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {value}, allowed is {low} to {high}")]
pub struct SamplingParamsError {
    /// Name of the parameter, as in the API.
    pub name: &'static str,
    /// The value given.
    pub value: f32,
    /// Least allowed value.
    pub low: f32,
    /// Greatest allowed value.
    pub high: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_enforced_and_nan_is_refused() {
        assert_eq!(SamplingParams::GREEDY.validate(), Ok(()));
        let hot = SamplingParams { temperature: f32::NAN, ..SamplingParams::PLAIN };
        assert_eq!(hot.validate().map_err(|e| e.name), Err("temperature"));
        let none = SamplingParams { top_p: 0.0, ..SamplingParams::PLAIN };
        assert_eq!(none.validate().map_err(|e| e.name), Err("top_p"));
    }
}
