//! Recurrent layers over a whole sequence, from its first token.

use super::{sigmoid, silu};
use crate::DeltaSpec;

/// Convolution and SiLU of all rows of a sequence; `weight` has `kernel` taps of `channels`
/// elements. Beside each result stands the sum of magnitudes under its SiLU.
#[must_use]
pub fn causal_conv(spec: &DeltaSpec, weight: &[f64], rows: &[Vec<f64>]) -> Vec<Vec<(f64, f64)>> {
    let channels = spec.channels();
    let element = |t: usize, c: usize| {
        let taps = (0..spec.kernel).filter_map(|j| {
            let row = (t + j).checked_sub(spec.window())?;
            Some(weight[j * channels + c] * rows[row][c])
        });
        let (sum, magnitude) = taps.fold((0.0, 0.0), |(s, m), p| (s + p, m + f64::abs(p)));
        (silu(sum), magnitude)
    };
    (0..rows.len()).map(|t| (0..channels).map(|c| element(t, c)).collect()).collect()
}

/// One row of a sequence, as [`Ops::gated_delta`](crate::Ops::gated_delta) gets it.
#[derive(Clone, Debug)]
pub struct DeltaInput {
    /// Queries, keys and values.
    pub qkv: Vec<f64>,
    /// Before the softplus, without bias.
    pub alpha: Vec<f64>,
    /// Before the sigmoid.
    pub beta: Vec<f64>,
}

/// What a value head reads at one row, and the magnitude that bounds a backend's rounding.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// The result.
    pub out: Vec<f64>,
    /// Length of the query times the greatest length that the element's column of the state has
    /// had.
    pub magnitude: Vec<f64>,
}

/// The gated delta rule over all rows of a sequence: for each row what each value head reads.
#[must_use]
pub fn gated_delta(
    spec: &DeltaSpec,
    rate: &[f64],
    bias: &[f64],
    rows: &[DeltaInput],
) -> Vec<Vec<Read>> {
    let mut out = vec![Vec::new(); rows.len()];
    for head in 0..spec.value_heads {
        let mut state = vec![vec![0.0; spec.value_dim]; spec.key_dim];
        let mut longest = vec![0.0f64; spec.value_dim];
        for (row, out) in rows.iter().zip(&mut out) {
            let at = spec.key_head(head) * spec.key_dim;
            let normed = |x: &[f64]| {
                let scale = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt().recip();
                x.iter().map(|x| x * scale).collect::<Vec<f64>>()
            };
            let mut q = normed(&row.qkv[at..at + spec.key_dim]);
            q.iter_mut().for_each(|q| *q /= (spec.key_dim as f64).sqrt());
            let k = normed(&row.qkv[spec.key_width() + at..][..spec.key_dim]);
            let v = &row.qkv[2 * spec.key_width() + head * spec.value_dim..][..spec.value_dim];
            let softplus = (row.alpha[head] + bias[head]).exp().ln_1p();
            let (decay, beta) = ((rate[head] * softplus).exp(), sigmoid(row.beta[head]));
            state.iter_mut().flatten().for_each(|s| *s *= decay);
            for (j, v) in v.iter().enumerate() {
                let read: f64 = k.iter().zip(&state).map(|(k, s)| k * s[j]).sum();
                for (k, s) in k.iter().zip(&mut state) {
                    s[j] += k * beta * (v - read);
                }
                let length = state.iter().map(|s| s[j] * s[j]).sum::<f64>().sqrt();
                longest[j] = longest[j].max(length);
            }
            let query = q.iter().map(|q| q * q).sum::<f64>().sqrt();
            let read = |j: usize| q.iter().zip(&state).map(|(q, s)| q * s[j]).sum();
            out.push(Read {
                out: (0..spec.value_dim).map(read).collect(),
                magnitude: longest.iter().map(|length| query * length).collect(),
            });
        }
    }
    out
}
