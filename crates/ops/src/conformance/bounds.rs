//! The tolerances, all in one place, each with the reason for its size.

use laneway_numerics::{KvDtype, WeightFormat};

/// Unit roundoff of f32: one rounded operation is off by at most this share of its result.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// A sum of products in f32, in roundings of the sum of magnitudes: enough for any order that
/// splits a few thousand terms over several running sums.
const SUM_UNITS: f64 = 64.0;

/// An elementwise op (norm scaling, rotation, SwiGLU's product), in roundings of its magnitude.
const ELEMENT_UNITS: f64 = 32.0;

/// Relative error of a polynomial exponential.
const EXP_RELATIVE: f64 = 4e-6;

/// Sigmoids below `e^-87` may come out as any number up to this: there exponentials leave f32.
const SIGMOID_FLOOR: f64 = 2e-38;

/// Elements that share a scale or a minimum in the block formats, which kernels factor out of sums,
/// and a step in rounded activations.
const WEIGHT_BLOCK: usize = 32;

/// What a backend promises: its arithmetic, and what it supports.
#[derive(Clone, Debug)]
pub struct Tolerances {
    /// Steps from zero to the largest of 32 activations, if these are rounded to whole steps before
    /// a product.
    pub activation_steps: Option<f64>,
    /// Low bits of such a step count that meet no more than as many leading bits of a weight.
    pub low_bits: Option<u32>,
    /// Weight formats that must load.
    pub weights: Vec<WeightFormat>,
    /// KV dtypes that must work.
    pub kv_dtypes: Vec<KvDtype>,
    /// Head sizes that must work.
    pub head_dims: Vec<usize>,
}

impl Tolerances {
    /// Activations stay in f32 throughout.
    #[must_use]
    pub fn f32() -> Self {
        Tolerances {
            activation_steps: None,
            low_bits: None,
            weights: WeightFormat::ALL.to_vec(),
            kv_dtypes: KvDtype::ALL.to_vec(),
            head_dims: vec![32, 64, 128, 256],
        }
    }

    /// Inputs of products are rounded to 8 bits with one scale for 32 elements, the rest is f32.
    #[must_use]
    pub fn int8_activations() -> Self {
        Tolerances { activation_steps: Some(127.0), ..Self::f32() }
    }

    /// Inputs of products are rounded to 12 bits with one scale for 32 elements; their low four
    /// bits meet the leading four bits of a weight. The rest is f32.
    #[must_use]
    pub fn int12_activations() -> Self {
        Tolerances { activation_steps: Some(2032.0), low_bits: Some(4), ..Self::f32() }
    }

    /// The same backend on inputs that 8 bits hold exactly.
    pub(crate) fn exact_inputs(&self) -> Self {
        Tolerances { activation_steps: None, low_bits: None, ..self.clone() }
    }

    /// Bound of `|x · w - exact|`.
    ///
    /// Rounding of the sum, with the factors of each weight block taken out of it, plus, for
    /// rounded activations, half a step for every element: `step / 2 · Σ |w|` with
    /// `step = max |x| / steps`. Where a format has a minimum, `w - min` may be what meets the rounded activation.
    pub(crate) fn product(&self, x: &[f64], w: &[f64]) -> f64 {
        let mut bound = 0.0;
        for (x, w) in x.chunks(WEIGHT_BLOCK).zip(w.chunks(WEIGHT_BLOCK)) {
            bound += SUM_UNITS * U * largest(w) * x.iter().map(|x| x.abs()).sum::<f64>();
        }
        let Some(steps) = self.activation_steps else { return bound };
        for (x, w) in x.chunks(WEIGHT_BLOCK).zip(w.chunks(WEIGHT_BLOCK)) {
            let half_step = 0.501 * largest(x) / steps;
            let min = w.iter().copied().fold(f64::INFINITY, f64::min);
            bound += half_step * w.iter().map(|w| w.abs().max(w - min)).sum::<f64>();
            if let Some(bits) = self.low_bits {
                // Half of the low bits' range, and what of a byte the leading bits leave, at most.
                let half_range = f64::from(1 << bits >> 1);
                let rest = f64::from((1 << (8 - bits)) - 1) / 255.0 * 2.0 * largest(w);
                bound += 2.0 * half_step * half_range * rest * w.len() as f64;
            }
        }
        bound
    }

    /// Bound of an elementwise op whose terms have this magnitude.
    pub(crate) fn element(&self, magnitude: f64) -> f64 {
        ELEMENT_UNITS * U * magnitude
    }

    /// Bound of `silu(gate) · up` given those of its factors; the slope of SiLU stays below 1.1.
    pub(crate) fn swiglu(&self, gate: (f64, f64), up: (f64, f64)) -> f64 {
        let silu = crate::oracle::silu(gate.0).abs();
        let through_gate = (1.1 * gate.1 + EXP_RELATIVE * silu) * (up.0.abs() + up.1);
        let floor = SIGMOID_FLOOR * gate.0.abs() * up.0.abs();
        through_gate + silu * up.1 + self.element(silu * up.0.abs()) + floor
    }

    /// Bound of `x · sigmoid(gate)`.
    pub(crate) fn sigmoid(&self, x: f64) -> f64 {
        self.element(x.abs()) + (EXP_RELATIVE + SIGMOID_FLOOR) * x.abs()
    }

    /// Bound of what a delta head reads after `steps` rows. The rule never lengthens a column of
    /// the state beyond what it writes, so roundings of its rows add up at most.
    pub(crate) fn delta(&self, magnitude: f64, steps: usize) -> f64 {
        (steps as f64).mul_add(SUM_UNITS * U, EXP_RELATIVE) * magnitude
    }

    /// Bound of a rotation of the pair `(a, b)`; `angle` itself may be rounded to f32 once.
    pub(crate) fn rotation(&self, a: f64, b: f64, angle: f64) -> f64 {
        let magnitude = a.abs() + b.abs();
        self.element(magnitude) + U * angle.abs() * magnitude
    }

    /// Bound of one element of attention. An error of a score multiplies its weight, once above
    /// and once below the fraction line.
    pub(crate) fn attention(&self, score_magnitude: f64, out_magnitude: f64) -> f64 {
        let weight = SUM_UNITS * U * score_magnitude + EXP_RELATIVE;
        (2.0 * weight + SUM_UNITS * U) * out_magnitude
    }

    /// Bound of a log probability whose logits are exact.
    pub(crate) fn logprob(&self, value: f64) -> f64 {
        EXP_RELATIVE + self.element(value.abs())
    }
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |largest, v| largest.max(v.abs()))
}
