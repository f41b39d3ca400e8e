//! The sparse mixture of experts.

use super::Tolerances;
use super::errors::refused;
use super::rig::{
    Encoded, WORKSPACE, activations, assert_close, assert_same_bits, input, plain_step, widen,
};
use crate::synthetic::Stream;
use crate::{Experts, Ops, Workspace, oracle};
use laneway_numerics::WeightFormat;

const EXPERTS: usize = 6;
const HIDDEN: usize = 96;
const INNER: usize = 64;

/// The experts of one layer, loaded and decoded.
struct Layer<B: Ops> {
    loaded: [B::Matrix; 3],
    decoded: [oracle::Matrix; 3],
}

impl<B: Ops> Layer<B> {
    fn random(ops: &mut B, noise: &mut Stream, format: WeightFormat) -> Self {
        let shapes = [(INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)];
        let encoded =
            shapes.map(|(rows, cols)| Encoded::random(noise, format, EXPERTS * rows, cols));
        Layer {
            loaded: encoded.each_ref().map(|m| m.load(ops)),
            decoded: encoded.each_ref().map(Encoded::decoded),
        }
    }

    fn experts(&self, chosen: usize) -> Experts<'_, B> {
        let [gate, up, down] = &self.loaded;
        Experts { gate, up, down, chosen }
    }

    /// What the oracle has for a row, and the bound of each element.
    fn expected(
        &self,
        tolerances: &Tolerances,
        x: &[f64],
        logits: &[f64],
        chosen: usize,
        mut out: Vec<f64>,
    ) -> (Vec<f64>, Vec<f64>) {
        let mut bounds = vec![0.0; HIDDEN];
        for (expert, weight) in oracle::route(logits, chosen) {
            let [gate, up, down] = self.decoded.each_ref().map(|matrix| {
                let rows = matrix.rows / EXPERTS;
                let elements = expert * rows * matrix.cols..(expert + 1) * rows * matrix.cols;
                oracle::Matrix { rows, cols: matrix.cols, data: matrix.data[elements].to_vec() }
            });
            let inner = oracle::gate_up_swiglu(x, &gate, &up);
            let factors = [&gate, &up].map(|m| oracle::linear(x, m, None));
            let inner_bounds: Vec<f64> = (0..INNER)
                .map(|at| {
                    let [gate, up] = [(&gate, &factors[0]), (&up, &factors[1])]
                        .map(|(m, f)| (f[at], tolerances.product(x, m.row(at))));
                    tolerances.swiglu(gate, up)
                })
                .collect();
            for (at, made) in oracle::linear(&inner, &down, None).into_iter().enumerate() {
                let row = down.row(at);
                let through: f64 = row.iter().zip(&inner_bounds).map(|(w, b)| w.abs() * b).sum();
                out[at] += weight * made;
                // An inner element that is off may also change what the others are rounded to.
                let product = tolerances.product(&inner, row) + 2.0 * through;
                bounds[at] += weight * product + tolerances.logprob(weight * made);
                bounds[at] += tolerances.element(out[at].abs());
            }
        }
        (out, bounds)
    }
}

/// `sparse_moe`: few and many rows, one to all experts, equal logits, every format.
pub fn sparse_moe<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    let (mut ops, mut noise) = (make(WORKSPACE), Stream::new(40));
    for &format in tolerances.weights.iter().filter(|f| f.block_elements() <= 32) {
        let layer = Layer::random(&mut ops, &mut noise, format);
        for (rows, chosen) in [(1, 2), (2, 1), (5, 3), (33, 2), (100, 6)] {
            let x = activations(&mut noise, rows * HIDDEN);
            let mut logits = noise.normals(rows * EXPERTS, 2.0);
            logits[..EXPERTS].fill(0.5);
            let before = noise.normals(rows * HIDDEN, 1.0);
            ops.begin_step(&plain_step(rows)).expect("begin_step");
            let run = |ops: &mut B, x: &[f32], logits: &[f32], before: &[f32]| {
                let (x, logits) = (input(ops, HIDDEN, x), input(ops, EXPERTS, logits));
                let mut out = input(ops, HIDDEN, before);
                ops.sparse_moe(&x, &logits, layer.experts(chosen), &mut out).expect("sparse_moe");
                ops.read(&out, before.len() / HIDDEN).expect("read")
            };
            let found = run(&mut ops, &x, &logits, &before);
            let what = format!("sparse_moe {format}, {rows} rows to {chosen} experts");
            for row in 0..rows {
                let of = |values: &[f32], width: usize| widen(&values[row * width..][..width]);
                let (x, logits) = (of(&x, HIDDEN), of(&logits, EXPERTS));
                let (expected, bounds) =
                    layer.expected(tolerances, &x, &logits, chosen, of(&before, HIDDEN));
                let found = &found[row * HIDDEN..][..HIDDEN];
                assert_close(&format!("{what}, row {row}"), HIDDEN, found, &expected, |i| {
                    bounds[i]
                });
            }
            // A row alone goes the same way.
            let last = rows - 1;
            let alone = run(
                &mut ops,
                &x[last * HIDDEN..],
                &logits[last * EXPERTS..],
                &before[last * HIDDEN..],
            );
            assert_same_bits(&format!("{what}, last row alone"), &alone, &found[last * HIDDEN..]);
        }
    }
    let layer = Layer::random(&mut ops, &mut noise, WeightFormat::F32);
    ops.begin_step(&plain_step(1)).expect("begin_step");
    let x = input(&mut ops, HIDDEN, &[1.0; HIDDEN]);
    let logits = input(&mut ops, EXPERTS, &[0.0; EXPERTS]);
    let mut out = input(&mut ops, HIDDEN, &[0.0; HIDDEN]);
    let more = layer.experts(EXPERTS + 1);
    refused("more experts than there are", ops.sparse_moe(&x, &logits, more, &mut out));
    let none = layer.experts(0);
    refused("no expert", ops.sparse_moe(&x, &logits, none, &mut out));
    refused("logits of another width", ops.sparse_moe(&x, &x, layer.experts(1), &mut out));
}
