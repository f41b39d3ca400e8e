//! One naive f64 function for each op: what a backend is measured against.
//!
//! Rows are flat slices, row after row; weights are decoded. Nothing here is fast or clever. The
//! oracle of sampling is [`crate::sampling::draw`].

mod recurrent;

use crate::{KvSpec, MatrixSource, OpError, RopeSpec, RopeStyle};
use laneway_execution::{PAGE_TOKENS, PageId, StepBatch, TokenId};
use laneway_numerics::{KvDtype, decode_row};
pub use recurrent::{DeltaInput, Read, causal_conv, gated_delta};

/// A decoded weight matrix, `rows` outputs by `cols` inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Number of outputs.
    pub rows: usize,
    /// Number of inputs.
    pub cols: usize,
    /// Elements, row-major.
    pub data: Vec<f64>,
}

impl Matrix {
    /// Decodes a stored matrix.
    ///
    /// # Errors
    /// [`OpError::Shape`] if `source.data` is not `rows` encoded rows.
    pub fn decode(source: &MatrixSource<'_>) -> Result<Self, OpError> {
        let &MatrixSource { rows, cols, .. } = source;
        let data = decode_matrix(source)?.into_iter().map(f64::from).collect();
        Ok(Matrix { rows, cols, data })
    }

    /// Weights of one output.
    #[must_use]
    pub fn row(&self, row: usize) -> &[f64] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }
}

/// The elements of a stored matrix, row-major.
///
/// # Errors
/// [`OpError::Shape`] if `source.data` is not `rows` encoded rows.
pub fn decode_matrix(source: &MatrixSource<'_>) -> Result<Vec<f32>, OpError> {
    let &MatrixSource { name, format, rows, cols, data } = source;
    let shape = |detail: String| OpError::Shape { op: "load_matrix", detail };
    let wanted = format.bytes(rows, cols).map_err(|e| shape(format!("{name}: {e}")))?;
    if data.len() != wanted || wanted == 0 {
        let found = data.len();
        return Err(shape(format!(
            "{name}: {rows} × {cols} elements of {format} take {wanted} bytes, found {found}"
        )));
    }
    let mut out = vec![0.0; rows * cols];
    for (bytes, out) in data.chunks(wanted / rows).zip(out.chunks_mut(cols)) {
        decode_row(format, bytes, out).map_err(|e| shape(format!("{name}: {e}")))?;
    }
    Ok(out)
}

/// Rows of `table`, one a token.
#[must_use]
pub fn embed(table: &Matrix, tokens: &[TokenId]) -> Vec<f64> {
    tokens.iter().flat_map(|&token| table.row(token as usize).to_vec()).collect()
}

/// Root-mean-square norm over groups of `weight.len()` elements.
#[must_use]
pub fn rms_norm(x: &[f64], weight: &[f64], epsilon: f64) -> Vec<f64> {
    let normed = x.chunks(weight.len()).flat_map(|group| {
        let mean_square = group.iter().map(|v| v * v).sum::<f64>() / group.len() as f64;
        let scale = (mean_square + epsilon).sqrt().recip();
        group.iter().zip(weight).map(move |(v, w)| v * scale * w)
    });
    normed.collect()
}

/// `x · matrixᵀ`, plus `bias` on every row.
#[must_use]
pub fn linear(x: &[f64], matrix: &Matrix, bias: Option<&[f64]>) -> Vec<f64> {
    let mut out = Vec::new();
    for x in x.chunks(matrix.cols) {
        for o in 0..matrix.rows {
            let dot: f64 = x.iter().zip(matrix.row(o)).map(|(x, w)| x * w).sum();
            out.push(dot + bias.map_or(0.0, |bias| bias[o]));
        }
    }
    out
}

/// `1 / (1 + e^-x)`.
#[must_use]
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x · sigmoid(x)`.
#[must_use]
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `silu(x · gateᵀ) ⊙ (x · upᵀ)`.
#[must_use]
pub fn gate_up_swiglu(x: &[f64], gate: &Matrix, up: &Matrix) -> Vec<f64> {
    let (gate, up) = (linear(x, gate, None), linear(x, up, None));
    gate.iter().zip(&up).map(|(&gate, up)| silu(gate) * up).collect()
}

/// The experts of a row and their weights, greatest logit first: the softmax of the chosen ones.
#[must_use]
pub fn route(logits: &[f64], chosen: usize) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order.truncate(chosen);
    let weight = |&expert: &usize| (logits[expert] - logits[order[0]]).exp();
    let total: f64 = order.iter().map(weight).sum();
    order.iter().map(|expert| (*expert, weight(expert) / total)).collect()
}

/// Rotates every head of every row by the row's position.
pub fn rope(spec: &RopeSpec, x: &mut [f64], width: usize, positions: &[usize]) {
    let pairs = spec.inverse_frequencies.len();
    for (row, &position) in x.chunks_mut(width).zip(positions) {
        for head in row.chunks_mut(spec.head_dim) {
            for (i, &frequency) in spec.inverse_frequencies.iter().enumerate() {
                let (first, second) = match spec.style {
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                    RopeStyle::Halves => (i, i + pairs),
                };
                let (sin, cos) = (position as f64 * f64::from(frequency)).sin_cos();
                let (a, b) = (head[first], head[second]);
                head[first] = a * cos - b * sin;
                head[second] = a * sin + b * cos;
            }
        }
    }
}

/// Position in its sequence of every row of a step.
#[must_use]
pub fn positions(batch: &StepBatch) -> Vec<usize> {
    batch.segments.iter().flat_map(|s| s.start..s.start + s.rows.len()).collect()
}

/// Rows of `x`, in the order of `rows`.
#[must_use]
pub fn gather_rows(x: &[f64], width: usize, rows: &[usize]) -> Vec<f64> {
    rows.iter().flat_map(|row| x[row * width..(row + 1) * width].to_vec()).collect()
}

/// A value as the cache keeps it: rounded to nearest even.
#[must_use]
pub fn kv_round(dtype: KvDtype, value: f32) -> f32 {
    match dtype {
        KvDtype::F32 => value,
        KvDtype::F16 => half::f16::from_f32(value).to_f32(),
        KvDtype::Bf16 => half::bf16::from_f32(value).to_f32(),
    }
}

/// Keys and values of every layer, page and slot.
#[derive(Clone, Debug)]
pub struct KvPool {
    spec: KvSpec,
    keys: Vec<f64>,
    values: Vec<f64>,
}

impl KvPool {
    /// A pool of zeros.
    #[must_use]
    pub fn new(spec: &KvSpec) -> Self {
        let elements = spec.layers * spec.pages * PAGE_TOKENS * spec.kv_heads * spec.head_dim;
        KvPool { spec: *spec, keys: vec![0.0; elements], values: vec![0.0; elements] }
    }

    /// First element of a token's keys, and of its values.
    fn offset(&self, layer: usize, page: PageId, slot: usize) -> usize {
        let token = (layer * self.spec.pages + page.0 as usize) * PAGE_TOKENS + slot;
        token * self.spec.kv_heads * self.spec.head_dim
    }

    /// Writes every row's keys and values to its page.
    pub fn append(&mut self, layer: usize, batch: &StepBatch, k: &[f32], v: &[f32]) {
        let width = self.spec.kv_heads * self.spec.head_dim;
        for segment in &batch.segments {
            for (i, row) in segment.rows.clone().enumerate() {
                let position = segment.start + i;
                let page = batch.block_table(segment)[position / PAGE_TOKENS];
                let to = self.offset(layer, page, position % PAGE_TOKENS);
                for e in 0..width {
                    let rounded = |x: &[f32]| kv_round(self.spec.dtype, x[row * width + e]);
                    self.keys[to + e] = f64::from(rounded(k));
                    self.values[to + e] = f64::from(rounded(v));
                }
            }
        }
    }

    /// Copies the first `tokens` tokens of a page, over all layers.
    pub fn copy_page(&mut self, from: PageId, to: PageId, tokens: usize) {
        let elements = tokens * self.spec.kv_heads * self.spec.head_dim;
        for layer in 0..self.spec.layers {
            let (from, to) = (self.offset(layer, from, 0), self.offset(layer, to, 0));
            self.keys.copy_within(from..from + elements, to);
            self.values.copy_within(from..from + elements, to);
        }
    }

    /// Causal grouped-query attention of every row of the step.
    #[must_use]
    pub fn attention(
        &self,
        layer: usize,
        batch: &StepBatch,
        q: &[f64],
        scale: f64,
    ) -> Vec<Attended> {
        let dim = self.spec.head_dim;
        let heads = q.len() / batch.rows() / dim;
        let mut out = Vec::with_capacity(batch.rows() * heads);
        for segment in &batch.segments {
            for (i, row) in segment.rows.clone().enumerate() {
                let context: Vec<usize> = (0..=segment.start + i)
                    .map(|p| {
                        let page = batch.block_table(segment)[p / PAGE_TOKENS];
                        self.offset(layer, page, p % PAGE_TOKENS)
                    })
                    .collect();
                for head in 0..heads {
                    let start = (row * heads + head) * dim;
                    let kv_head = head / (heads / self.spec.kv_heads);
                    out.push(self.attend(&context, kv_head, &q[start..start + dim], scale));
                }
            }
        }
        out
    }

    fn attend(&self, context: &[usize], kv_head: usize, q: &[f64], scale: f64) -> Attended {
        let dim = self.spec.head_dim;
        let head = |token: usize| token + kv_head * dim..token + (kv_head + 1) * dim;
        let (mut scores, mut score_magnitude) = (Vec::new(), 0.0f64);
        for &token in context {
            let products = q.iter().zip(&self.keys[head(token)]).map(|(q, k)| q * k * scale);
            scores.push(products.clone().sum::<f64>());
            score_magnitude = score_magnitude.max(products.map(f64::abs).sum());
        }
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let (mut out, mut out_magnitude) = (vec![0.0; dim], vec![0.0; dim]);
        for (score, &token) in scores.iter().zip(context) {
            let weight = (score - max).exp() / total;
            for (e, v) in self.values[head(token)].iter().enumerate() {
                out[e] += weight * v;
                out_magnitude[e] += (weight * v).abs();
            }
        }
        Attended { out, out_magnitude, score_magnitude }
    }
}

/// Attention of one head of one row, and the magnitudes that bound a backend's rounding.
#[derive(Clone, Debug, PartialEq)]
pub struct Attended {
    /// The result.
    pub out: Vec<f64>,
    /// `Σ weight · |v|` of each element.
    pub out_magnitude: Vec<f64>,
    /// Largest `Σ |q · k| · scale` over the context.
    pub score_magnitude: f64,
}
