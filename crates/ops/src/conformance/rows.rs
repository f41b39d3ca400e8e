//! Ops that see each row by itself.

use super::Tolerances;
use super::rig::{
    Encoded, ROWS, WORKSPACE, activations, assert_close, assert_same_bits, exact_activations,
    input, plain_step, poisoned, widen, widths,
};
use crate::synthetic::Stream;
use crate::{Ops, Product, Workspace, oracle};

/// `embed` decodes rows of every format exactly.
pub fn embed<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    let (mut ops, mut noise) = (make(WORKSPACE), Stream::new(1));
    for &format in &tolerances.weights {
        for &cols in widths(format) {
            let table = Encoded::random(&mut noise, format, 49, cols);
            let (loaded, decoded) = (table.load(&mut ops), table.decoded());
            for rows in ROWS {
                let mut batch = plain_step(rows);
                batch.tokens.iter_mut().for_each(|t| *t = noise.below(49) as u32);
                ops.begin_step(&batch).expect("begin_step");
                let mut out = poisoned(&mut ops, cols);
                ops.embed(&loaded, &mut out).expect("embed");
                let found = ops.read(&out, rows).expect("read");
                let exact = oracle::embed(&decoded, &batch.tokens);
                let what = format!("embed {format} {rows}×{cols}");
                assert_close(&what, cols, &found, &exact, |_| 0.0);
            }
        }
    }
}

/// `rms_norm` over whole rows and over heads, with large, small and zero rows.
pub fn rms_norm<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    let (mut ops, mut noise) = (make(WORKSPACE), Stream::new(2));
    for (width, group) in [(40, 40), (576, 576), (1536, 1536), (512, 64), (96, 32)] {
        let weight: Vec<f32> = (0..group).map(|_| 1.0 + 0.3 * noise.normal()).collect();
        let vector = ops.load_vector(&weight).expect("load_vector");
        for rows in ROWS {
            let mut x = activations(&mut noise, rows * width);
            x[..width].iter_mut().for_each(|v| *v *= [1.0, 1e3, 1e-4, 0.0][rows % 4]);
            ops.begin_step(&plain_step(rows)).expect("begin_step");
            let (x_in, mut out) = (input(&mut ops, width, &x), poisoned(&mut ops, width));
            ops.rms_norm(&x_in, &vector, 1e-5, &mut out).expect("rms_norm");
            let found = ops.read(&out, rows).expect("read");
            let epsilon = f64::from(1e-5f32);
            let expected = oracle::rms_norm(&widen(&x), &widen(&weight), epsilon);
            let what = format!("rms_norm {rows}×{width} in groups of {group}");
            assert_close(&what, width, &found, &expected, |i| {
                tolerances.element(expected[i].abs())
            });
        }
    }
}

/// `linear`: every weight format, one to three products of one input, with bias and residual.
pub fn linear<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    let (mut ops, mut noise) = (make(WORKSPACE), Stream::new(3));
    for &format in &tolerances.weights {
        for &cols in widths(format) {
            let encoded = [50, 49, 64].map(|n| Encoded::random(&mut noise, format, n, cols));
            let case = LinearCase::load(&mut ops, &mut noise, &encoded);
            let all: &[usize] = if cols > 600 { &[1, 5, 33] } else { &ROWS };
            for &rows in all {
                let x = activations(&mut noise, rows * cols);
                case.run(&mut ops, &mut noise, tolerances, &format!("{format}"), &x);
                // What 8 bits hold exactly must come out as exactly as from f32 activations.
                let x = exact_activations(&mut noise, rows, cols);
                let exact = tolerances.exact_inputs();
                case.run(&mut ops, &mut noise, &exact, &format!("{format}, exact inputs"), &x);
            }
        }
    }
}

/// Three matrices: plain, with bias, and onto a residual with bias.
struct LinearCase<B: Ops> {
    loaded: [B::Matrix; 3],
    decoded: [oracle::Matrix; 3],
    biases: [Option<(B::Vector, Vec<f64>)>; 3],
}

impl<B: Ops> LinearCase<B> {
    fn load(ops: &mut B, noise: &mut Stream, encoded: &[Encoded; 3]) -> Self {
        let loaded = encoded.each_ref().map(|m| m.load(ops));
        let decoded = encoded.each_ref().map(Encoded::decoded);
        let mut bias = |rows: usize| {
            let values = noise.normals(rows, 1.0);
            (ops.load_vector(&values).expect("load_vector"), widen(&values))
        };
        let biases = [None, Some(bias(encoded[1].rows)), Some(bias(encoded[2].rows))];
        LinearCase { loaded, decoded, biases }
    }

    fn run(&self, ops: &mut B, noise: &mut Stream, tolerances: &Tolerances, what: &str, x: &[f32]) {
        let cols = self.decoded[0].cols;
        let rows = x.len() / cols;
        ops.begin_step(&plain_step(rows)).expect("begin_step");
        let x_in = input(ops, cols, x);
        let [w0, w1, w2] = self.decoded.each_ref().map(|m| m.rows);
        let residual = noise.normals(rows * w2, 3.0);
        let (mut out0, mut out1) = (poisoned(ops, w0), poisoned(ops, w1));
        let mut out2 = input(ops, w2, &residual);
        let bias = |i: usize| self.biases[i].as_ref().map(|(loaded, _)| loaded);
        let [m0, m1, m2] = &self.loaded;
        let product = |matrix, bias, out, accumulate| Product { matrix, bias, out, accumulate };
        let mut products = [
            product(m0, bias(0), &mut out0, false),
            product(m1, bias(1), &mut out1, false),
            product(m2, bias(2), &mut out2, true),
        ];
        // One product alone takes another path than several in many backends.
        let alone = rows.is_multiple_of(2);
        let calls: Vec<&mut [Product<'_, B>]> =
            if alone { products.chunks_mut(1).collect() } else { vec![&mut products[..]] };
        for call in calls {
            ops.linear(&x_in, call).expect("linear");
        }
        let x = widen(x);
        for (i, out) in [&out0, &out1, &out2].into_iter().enumerate() {
            let matrix = &self.decoded[i];
            let bias = self.biases[i].as_ref().map(|(_, values)| &values[..]);
            let mut expected = oracle::linear(&x, matrix, bias);
            if i == 2 {
                expected.iter_mut().zip(&residual).for_each(|(e, &r)| *e += f64::from(r));
            }
            let found = ops.read(out, rows).expect("read");
            let what = format!("linear {what}, {rows} rows of {cols} to {}", matrix.rows);
            assert_close(&what, matrix.rows, &found, &expected, |at| {
                let (row, output) = (at / matrix.rows, at % matrix.rows);
                let x = &x[row * cols..(row + 1) * cols];
                let added = bias.map_or(0.0, |b| b[output].abs())
                    + if i == 2 { f64::from(residual[at]).abs() } else { 0.0 };
                tolerances.product(x, matrix.row(output)) + tolerances.element(added)
            });
        }
    }
}

/// `gate_up_swiglu` in every weight format.
pub fn gate_up_swiglu<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    let (mut ops, mut noise) = (make(WORKSPACE), Stream::new(4));
    for &format in &tolerances.weights {
        for (&cols, width) in widths(format).iter().zip([49, 96, 50, 32]) {
            let gate = Encoded::random(&mut noise, format, width, cols);
            let up = Encoded::random(&mut noise, format, width, cols);
            let (gate_in, up_in) = (gate.load(&mut ops), up.load(&mut ops));
            let (gate, up) = (gate.decoded(), up.decoded());
            for rows in [1, 3, 16, 33] {
                let x = activations(&mut noise, rows * cols);
                ops.begin_step(&plain_step(rows)).expect("begin_step");
                let (x_in, mut out) = (input(&mut ops, cols, &x), poisoned(&mut ops, width));
                ops.gate_up_swiglu(&x_in, &gate_in, &up_in, &mut out).expect("gate_up_swiglu");
                let found = ops.read(&out, rows).expect("read");
                let x = widen(&x);
                let expected = oracle::gate_up_swiglu(&x, &gate, &up);
                let factors = [&gate, &up].map(|m| oracle::linear(&x, m, None));
                let what = format!("gate_up_swiglu {format}, {rows} rows of {cols} to {width}");
                assert_close(&what, width, &found, &expected, |at| {
                    let (x, output) = (&x[at / width * cols..][..cols], at % width);
                    let [gate, up] = [(&gate, &factors[0]), (&up, &factors[1])]
                        .map(|(m, f)| (f[at], tolerances.product(x, m.row(output))));
                    tolerances.swiglu(gate, up)
                });
            }
        }
    }
}

/// `gather_rows` picks rows in any order, and later ops see those rows only.
pub fn gather_rows<B: Ops>(make: impl Fn(Workspace) -> B, _: &Tolerances) {
    let (mut ops, mut noise) = (make(WORKSPACE), Stream::new(5));
    let width = 40;
    let ones = ops.load_vector(&vec![1.0; width]).expect("load_vector");
    for rows in ROWS {
        let picked: Vec<usize> = (0..rows.div_ceil(2)).map(|_| noise.below(rows)).collect();
        let x = activations(&mut noise, rows * width);
        ops.begin_step(&plain_step(rows)).expect("begin_step");
        let (x_in, mut out) = (input(&mut ops, width, &x), poisoned(&mut ops, width));
        ops.gather_rows(&x_in, &picked, &mut out).expect("gather_rows");
        let expected: Vec<f32> =
            oracle::gather_rows(&widen(&x), width, &picked).iter().map(|&v| v as f32).collect();
        let found = ops.read(&out, picked.len()).expect("read");
        assert_same_bits(&format!("gather_rows of {rows} rows"), &found, &expected);

        let mut normed = poisoned(&mut ops, width);
        ops.rms_norm(&out, &ones, 1e-5, &mut normed).expect("rms_norm of gathered rows");
        let normed = ops.read(&normed, picked.len()).expect("read");
        assert!(normed.iter().all(|v| v.is_finite()), "norm of {} gathered rows", picked.len());
    }
}

/// `gated_rms_norm` and `sigmoid_gate`, with gates far beyond where they saturate.
pub fn gates<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    let (mut ops, mut noise) = (make(WORKSPACE), Stream::new(15));
    for (width, group) in [(40, 40), (512, 128), (96, 32)] {
        let weight: Vec<f32> = (0..group).map(|_| 1.0 + 0.3 * noise.normal()).collect();
        let vector = ops.load_vector(&weight).expect("load_vector");
        for rows in ROWS {
            let x = activations(&mut noise, rows * width);
            let mut gate = noise.normals(rows * width, 4.0);
            gate[..4].copy_from_slice(&[0.0, 120.0, -120.0, -87.5]);
            ops.begin_step(&plain_step(rows)).expect("begin_step");
            let (mut x_in, gate_in) = (input(&mut ops, width, &x), input(&mut ops, width, &gate));
            let mut out = poisoned(&mut ops, width);
            ops.gated_rms_norm(&x_in, &vector, 1e-6, &gate_in, &mut out).expect("gated_rms_norm");
            let found = ops.read(&out, rows).expect("read");
            let (x, gate) = (widen(&x), widen(&gate));
            let normed = oracle::rms_norm(&x, &widen(&weight), f64::from(1e-6f32));
            let expected: Vec<f64> =
                normed.iter().zip(&gate).map(|(n, &g)| n * oracle::silu(g)).collect();
            let what = format!("gated_rms_norm {rows}×{width} in groups of {group}");
            assert_close(&what, width, &found, &expected, |i| {
                let norm_error = tolerances.element(normed[i].abs());
                tolerances.swiglu((gate[i], 0.0), (normed[i], norm_error))
            });
            ops.sigmoid_gate(&gate_in, &mut x_in).expect("sigmoid_gate");
            let found = ops.read(&x_in, rows).expect("read");
            let expected: Vec<f64> =
                x.iter().zip(&gate).map(|(x, &g)| x * oracle::sigmoid(g)).collect();
            assert_close(&format!("sigmoid_gate {rows}×{width}"), width, &found, &expected, |i| {
                tolerances.sigmoid(x[i])
            });
            let (one, mut x_in) = (&gate[..rows], input(&mut ops, width, &found));
            let narrow: Vec<f32> = one.iter().map(|g| *g as f32).collect();
            let gate_in = input(&mut ops, 1, &narrow);
            ops.sigmoid_gate(&gate_in, &mut x_in).expect("sigmoid_gate of rows");
            let (x, found) = (widen(&found), ops.read(&x_in, rows).expect("read"));
            let expected: Vec<f64> =
                x.iter().enumerate().map(|(i, x)| x * oracle::sigmoid(one[i / width])).collect();
            let what = format!("sigmoid_gate of {rows} rows of {width}");
            assert_close(&what, width, &found, &expected, |i| tolerances.sigmoid(x[i]));
        }
    }
}
