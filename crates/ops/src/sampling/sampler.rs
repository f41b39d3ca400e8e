//! The same draw as [`super::draw`], bit for bit, in a few passes over the vocabulary.
//!
//! Why it is the same: every number that decides something comes from the same operations in the
//! same order as in the specification. What is left out are tokens that provably cannot matter:
//! those below the `k`-th largest, those too unlikely to reach into the nucleus (with the whole
//! vocabulary as the fallback), and those that would lose even with the largest possible noise.

use super::exp::{exp, sum_of_exp};
use super::noise::{gumbel_of_word, token_words};
use super::spec::descending;
use super::{SampleInput, SamplingError};
use laneway_execution::{Draw, SampledToken, SamplingKey, StepOutput, TokenId};

/// Slack, in logits, of cuts that only spare work: far above the rounding of `exp` and `ln`.
const CUT_SLACK: f64 = 1e-6;

/// Draws tokens; owns the scratch space, so that a warm sampler allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    /// Logits after biases, mask and penalties, then divided by the temperature.
    shaped: Vec<f64>,
    /// Tokens that survive a truncation, and the logits that rank the alternatives.
    kept: Vec<(TokenId, f64)>,
}

impl Sampler {
    /// A sampler with scratch space for `vocabulary` tokens.
    #[must_use]
    pub fn new(vocabulary: usize) -> Self {
        Sampler { shaped: Vec::with_capacity(vocabulary), kept: Vec::with_capacity(vocabulary) }
    }

    /// Samples one row of raw `logits` (one a vocabulary entry) and appends the outcome to
    /// `output`. The result equals that of [`super::draw`].
    ///
    /// # Errors
    /// See [`SamplingError`]; `output` is then unchanged.
    pub fn sample(
        &mut self,
        logits: &[f32],
        input: &SampleInput<'_>,
        output: &mut StepOutput,
    ) -> Result<(), SamplingError> {
        input.check(logits.len())?;
        let raw_max = finite_max(logits)?;
        let token = match input.row.draw {
            Draw::Score(token) => token,
            Draw::Sample => self.winner(logits, raw_max, input)?,
        };
        let max = f64::from(raw_max);
        let log_sum = max + sum_of_exp(logits.iter().map(|&l| f64::from(l)), max).ln();
        let logprob = |logit: f64| (logit - log_sum) as f32;

        let start = output.top.len();
        if input.row.top_logprobs > 0 {
            let scores = logits.iter().map(|&l| f64::from(l));
            keep_largest(scores, input.row.top_logprobs, &mut self.kept);
            self.kept.sort_unstable_by(descending);
            output.top.extend(self.kept.iter().map(|&(token, l)| (token, logprob(l))));
        }
        let top = start..output.top.len();
        let logprob = logprob(f64::from(logits[token as usize]));
        output.samples.push(SampledToken { token, logprob, top });
        Ok(())
    }

    /// Steps 2 to 10 of the specification.
    fn winner(
        &mut self,
        logits: &[f32],
        raw_max: f32,
        input: &SampleInput<'_>,
    ) -> Result<TokenId, SamplingError> {
        let params = &input.row.params;
        let untouched = input.biases.is_empty() && input.counts.is_empty() && input.mask.is_empty();
        if untouched && params.temperature == 0.0 {
            let first = logits.iter().position(|&l| l == raw_max);
            let nothing = SamplingError::NothingAllowed { vocabulary: logits.len() };
            return first.map(|token| token as TokenId).ok_or(nothing);
        }
        self.shape(logits, input);
        let largest = self.shaped.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if largest == f64::NEG_INFINITY {
            return Err(SamplingError::NothingAllowed { vocabulary: logits.len() });
        }
        if params.temperature == 0.0 {
            return Ok(self.first_of(largest));
        }
        let temperature = f64::from(params.temperature);
        for z in &mut self.shaped {
            *z /= temperature;
        }
        let max = largest / temperature;
        Ok(if self.truncate(max, input) {
            noisiest_kept(&self.kept, input.row.key)
        } else {
            noisiest(&self.shaped, self.first_of(max), input.row.key)
        })
    }

    /// Biases, mask and penalties; a removed token is at negative infinity.
    fn shape(&mut self, logits: &[f32], input: &SampleInput<'_>) {
        self.shaped.clear();
        self.shaped.extend(logits.iter().map(|&l| f64::from(l)));
        for &(token, bias) in input.biases {
            self.shaped[token as usize] += f64::from(bias);
        }
        for count in input.counts {
            let logit = &mut self.shaped[count.token as usize];
            *logit = input.penalized(*logit, count);
        }
        for (word, logits) in input.mask.iter().zip(self.shaped.chunks_mut(32)) {
            if *word == u32::MAX {
                continue;
            }
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f64::NEG_INFINITY;
                }
            }
        }
    }

    fn first_of(&self, value: f64) -> TokenId {
        self.shaped.iter().position(|&z| z == value).unwrap_or_default() as TokenId
    }

    /// Top-k, top-p and min-p. False if none applies; else `kept` holds what they leave.
    fn truncate(&mut self, max: f64, input: &SampleInput<'_>) -> bool {
        let params = &input.row.params;
        let (top_p, min_p) = (f64::from(params.top_p), f64::from(params.min_p));
        let limited = params.top_k > 0 && (params.top_k as usize) < self.shaped.len();
        let (nucleus, floored) = (top_p < 1.0, min_p > 0.0);
        if limited {
            keep_largest(self.shaped.iter().copied(), params.top_k as usize, &mut self.kept);
        }
        if nucleus {
            let total: f64 = if limited {
                self.kept.sort_unstable_by_key(|&(token, _)| token);
                sum_of_exp(self.kept.iter().map(|&(_, z)| z), max)
            } else {
                sum_of_exp(self.shaped.iter().copied(), max)
            };
            let goal = top_p * total;
            if !limited {
                // Tokens less likely than this hold less than `1 - p` all together.
                let cut = ((1.0 - top_p) * total / self.shaped.len() as f64).ln() - CUT_SLACK;
                self.keep_from(max + cut);
            }
            if !keep_nucleus(&mut self.kept, max, goal) && !limited {
                self.keep_from(f64::MIN);
                keep_nucleus(&mut self.kept, max, goal);
            }
        }
        if floored {
            if !limited && !nucleus {
                self.keep_from(max + min_p.ln() - CUT_SLACK);
            }
            self.kept.retain(|&(_, z)| exp(z - max) >= min_p);
        }
        limited || nucleus || floored
    }

    /// Collects the tokens at or above `cut`, in token order.
    fn keep_from(&mut self, cut: f64) {
        self.kept.clear();
        let tokens = (0..).zip(self.shaped.iter().copied());
        self.kept.extend(tokens.filter(|&(_, z)| z >= cut));
    }
}

/// Largest logit.
fn finite_max(logits: &[f32]) -> Result<f32, SamplingError> {
    // Both folds run in vector registers; the search is for the error message only.
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if logits.iter().fold(true, |finite, l| finite & l.is_finite()) {
        return Ok(max);
    }
    let token = logits.iter().position(|l| !l.is_finite()).unwrap_or_default();
    Err(SamplingError::NotFinite { token: token as TokenId, value: logits[token] })
}

/// Leaves the `k` largest of `scores` in `kept`, in no order; of equal ones the lower tokens.
/// Tokens at negative infinity are never kept.
fn keep_largest(scores: impl Iterator<Item = f64>, k: usize, kept: &mut Vec<(TokenId, f64)>) {
    kept.clear();
    let room = k.saturating_mul(2).max(64);
    // A later token must beat this: an equal one ranks behind all that came before.
    let mut beaten = f64::NEG_INFINITY;
    for (token, score) in (0..).zip(scores) {
        if score > beaten {
            kept.push((token, score));
            if kept.len() == room {
                kept.select_nth_unstable_by(k - 1, descending);
                kept.truncate(k);
                beaten = kept[k - 1].1;
            }
        }
    }
    if kept.len() > k {
        kept.select_nth_unstable_by(k - 1, descending);
        kept.truncate(k);
    }
}

/// Truncates `kept` to its shortest descending prefix whose weights `exp(z - max)` reach `goal`,
/// sorting no further than needed. False, and all sorted, if they never do.
fn keep_nucleus(kept: &mut Vec<(TokenId, f64)>, max: f64, goal: f64) -> bool {
    let (mut sorted, mut reached) = (0, 0.0);
    while sorted < kept.len() {
        let end = (sorted.max(32) * 2).min(kept.len());
        if end < kept.len() {
            kept[sorted..].select_nth_unstable_by(end - sorted - 1, descending);
        }
        kept[sorted..end].sort_unstable_by(descending);
        for i in sorted..end {
            reached += exp(kept[i].1 - max);
            if reached >= goal {
                kept.truncate(i + 1);
                return true;
            }
        }
        sorted = end;
    }
    false
}

/// Where the largest `z + g` was found so far.
struct Best {
    token: TokenId,
    value: f64,
}

impl Best {
    fn offer(&mut self, token: TokenId, value: f64) {
        if value > self.value || (value == self.value && token < self.token) {
            *self = Best { token, value };
        }
    }
}

/// The winner among all tokens; `likely` is evaluated first, to rule out most others.
fn noisiest(shaped: &[f64], likely: TokenId, key: SamplingKey) -> TokenId {
    let largest_noise = gumbel_of_word(u32::MAX);
    let mut best = Best { token: likely, value: f64::NEG_INFINITY };
    let visit = |group: usize, best: &mut Best| {
        let words = token_words(key.seed, key.position, group as u32);
        for (i, &z) in shaped[group * 4..].iter().take(4).enumerate() {
            if z + largest_noise >= best.value {
                best.offer((group * 4 + i) as TokenId, z + gumbel_of_word(words[i]));
            }
        }
    };
    visit(likely as usize / 4, &mut best);
    for (group, four) in shaped.chunks(4).enumerate() {
        if four.iter().any(|z| z + largest_noise >= best.value) {
            visit(group, &mut best);
        }
    }
    best.token
}

/// The winner among the kept tokens.
fn noisiest_kept(kept: &[(TokenId, f64)], key: SamplingKey) -> TokenId {
    let largest_noise = gumbel_of_word(u32::MAX);
    let mut best = Best { token: TokenId::MAX, value: f64::NEG_INFINITY };
    for &(token, z) in kept {
        if z + largest_noise >= best.value {
            let words = token_words(key.seed, key.position, token / 4);
            best.offer(token, z + gumbel_of_word(words[(token % 4) as usize]));
        }
    }
    best.token
}
