//! The specification of a draw: short, naive, and the oracle of every faster one.

use super::exp::exp;
use super::{SampleInput, SamplingError, gumbel};
use laneway_execution::{Draw, SampledToken, StepOutput, TokenId};
use std::cmp::Ordering;

/// Samples one row of raw `logits` (one a vocabulary entry) as the [module](super) describes, and
/// appends the outcome to `output`.
///
/// # Errors
/// See [`SamplingError`]; `output` is then unchanged.
pub fn draw(
    logits: &[f32],
    input: &SampleInput<'_>,
    output: &mut StepOutput,
) -> Result<(), SamplingError> {
    input.check(logits.len())?;
    if let Some(token) = logits.iter().position(|l| !l.is_finite()) {
        return Err(SamplingError::NotFinite { token: token as u32, value: logits[token] });
    }
    let raw: Vec<(TokenId, f64)> = (0..).zip(logits.iter().map(|&l| f64::from(l))).collect();
    let token = match input.row.draw {
        Draw::Score(token) => token,
        Draw::Sample => winner(raw.clone(), input)?,
    };
    let max = raw.iter().map(|&(_, l)| l).fold(f64::NEG_INFINITY, f64::max);
    let log_sum = max + raw.iter().map(|&(_, l)| exp(l - max)).sum::<f64>().ln();
    let logprob = |token: TokenId| (raw[token as usize].1 - log_sum) as f32;

    let start = output.top.len();
    if input.row.top_logprobs > 0 {
        let mut ranked = raw.clone();
        ranked.sort_by(descending);
        ranked.truncate(input.row.top_logprobs);
        output.top.extend(ranked.iter().map(|&(token, _)| (token, logprob(token))));
    }
    let top = start..output.top.len();
    output.samples.push(SampledToken { token, logprob: logprob(token), top });
    Ok(())
}

/// Larger first; of equal ones the lower token.
pub(super) fn descending(a: &(TokenId, f64), b: &(TokenId, f64)) -> Ordering {
    b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

/// Steps 2 to 10.
fn winner(
    mut tokens: Vec<(TokenId, f64)>,
    input: &SampleInput<'_>,
) -> Result<TokenId, SamplingError> {
    let (params, key, vocabulary) = (&input.row.params, input.row.key, tokens.len());
    for &(token, bias) in input.biases {
        tokens[token as usize].1 += f64::from(bias);
    }
    for count in input.counts {
        let logit = &mut tokens[count.token as usize].1;
        *logit = input.penalized(*logit, count);
    }
    // Penalties act on each token alone, so removing the masked ones after them is the same.
    tokens.retain(|&(token, _)| input.allows(token as usize));
    tokens.sort_by(descending);
    let &(best, _) = tokens.first().ok_or(SamplingError::NothingAllowed { vocabulary })?;
    if params.temperature == 0.0 {
        return Ok(best);
    }

    for (_, logit) in &mut tokens {
        *logit /= f64::from(params.temperature);
    }
    // Division may have made equal what was not.
    tokens.sort_by(descending);
    if params.top_k > 0 {
        tokens.truncate(params.top_k as usize);
    }
    let max = tokens[0].1;
    if params.top_p < 1.0 {
        let goal = f64::from(params.top_p) * total_weight(&tokens, max);
        let mut reached = 0.0;
        let prefix = tokens.iter().take_while(|&&(_, z)| {
            let wanted = reached < goal;
            reached += exp(z - max);
            wanted
        });
        let length = prefix.count().max(1);
        tokens.truncate(length);
    }
    tokens.retain(|&(_, z)| exp(z - max) >= f64::from(params.min_p));

    let noisy = |&(token, z): &(TokenId, f64)| (token, z + gumbel(key.seed, key.position, token));
    let mut noisy: Vec<_> = tokens.iter().map(noisy).collect();
    noisy.sort_by(descending);
    Ok(noisy[0].0)
}

/// `Σ exp(z - max)` in token order, so that it does not depend on how the tokens were ranked.
fn total_weight(tokens: &[(TokenId, f64)], max: f64) -> f64 {
    let mut in_order = tokens.to_vec();
    in_order.sort_by_key(|&(token, _)| token);
    in_order.iter().map(|&(_, z)| exp(z - max)).sum()
}
