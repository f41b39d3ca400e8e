//! What does not fit is refused with an error, and the backend stays usable.

use super::Tolerances;
use super::rig::{Encoded, WORKSPACE, input, plain_step, poisoned, sample_row};
use crate::synthetic::Stream;
use crate::{KvSpec, MatrixSource, OpError, Ops, Product, RopeSpec, RopeStyle, Workspace};
use laneway_execution::{PageId, SamplingKey, SamplingParams, SequenceId, StepBatch, StepOutput};
use laneway_numerics::WeightFormat;

pub(super) fn refused<T>(what: &str, result: Result<T, OpError>) {
    match result {
        Err(OpError::Shape { detail, .. }) => assert!(!detail.is_empty(), "{what}: empty detail"),
        Err(other) => panic!("{what}: expected a shape error, found {other}"),
        Ok(_) => panic!("{what}: accepted"),
    }
}

/// Wrong widths, lengths, layers, pages, tokens and logits.
pub fn refusals<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    let ops = &mut make(WORKSPACE);
    let matrix = Encoded::random(&mut Stream::new(14), WeightFormat::F32, 48, 64);
    let source = matrix.source();
    let short = MatrixSource { data: &source.data[1..], ..source };
    refused("matrix one byte short", ops.load_matrix(&short));
    let ragged = MatrixSource { format: WeightFormat::Q4_0, cols: 33, ..source };
    refused("33 columns in blocks of 32", ops.load_matrix(&ragged));
    let loaded = matrix.load(ops);

    refused("rows beyond the workspace", ops.begin_step(&plain_step(WORKSPACE.rows + 1)));
    let beyond = StepBatch { tokens: vec![0, 48], ..plain_step(2) };
    ops.begin_step(&beyond).expect("begin_step");
    let mut wide = poisoned(ops, 64);
    refused("token beyond the table", ops.embed(&loaded, &mut wide));

    ops.begin_step(&plain_step(2)).expect("begin_step");
    let x = input(ops, 64, &[1.0; 128]);
    let mut narrow = poisoned(ops, 32);
    let mut fitting = poisoned(ops, 48);
    refused("embed into another width", ops.embed(&loaded, &mut narrow));
    refused("ragged write", ops.write(&mut narrow, &[0.0; 33]));
    let mut product = |x: &B::Activations, out: &mut B::Activations| {
        let product = Product { matrix: &loaded, bias: None, out, accumulate: false };
        ops.linear(x, &mut [product])
    };
    refused("linear into another width", product(&x, &mut narrow));
    refused("linear from another width", product(&fitting, &mut wide));
    product(&x, &mut fitting).expect("linear that fits");
    let weight = ops.load_vector(&[1.0; 48]).expect("load_vector");
    refused("norm weight of another width", ops.rms_norm(&x, &weight, 1e-5, &mut wide));
    refused("gather to another width", ops.gather_rows(&x, &[0], &mut narrow));
    let mut gathered = poisoned(ops, 64);
    refused("gather of a row beyond", ops.gather_rows(&x, &[0, 2], &mut gathered));
    refused("SwiGLU into another width", ops.gate_up_swiglu(&x, &loaded, &loaded, &mut narrow));

    sequence_refusals(ops, tolerances);
    logit_refusals(ops, &loaded);
}

fn sequence_refusals<B: Ops>(ops: &mut B, tolerances: &Tolerances) {
    let head_dim = tolerances.head_dims[0];
    let inverse_frequencies = vec![1.0; head_dim / 2 + 1];
    let rope = RopeSpec { style: RopeStyle::Halves, head_dim, inverse_frequencies };
    refused("more pairs than a head has", ops.new_rope(&rope));
    let rope = RopeSpec { inverse_frequencies: vec![1.0; head_dim / 2], ..rope };
    let rope = ops.new_rope(&rope).expect("new_rope");
    let mut odd = input(ops, head_dim + 8, &vec![0.0; 2 * (head_dim + 8)]);
    refused("rope of a part of a head", ops.rope(&rope, &mut odd));

    let dtype = tolerances.kv_dtypes[0];
    let spec = KvSpec { layers: 1, kv_heads: 1, head_dim, dtype, pages: 2 };
    let mut pool = ops.new_kv_pool(&spec).expect("new_kv_pool");
    let kv = input(ops, head_dim, &vec![0.0; 2 * head_dim]);
    let mut out = poisoned(ops, head_dim);
    refused("layer beyond the pool", ops.kv_append(&mut pool, 1, &kv, &kv));
    refused("keys of another width", ops.kv_append(&mut pool, 0, &odd, &kv));
    refused("attention beyond the pool", ops.attention(&pool, 1, &kv, 1.0, &mut out));
    refused("copy beyond the pool", ops.copy_page(&mut pool, PageId(0), PageId(2), 1));
    refused("copy of 65 tokens", ops.copy_page(&mut pool, PageId(0), PageId(1), 65));
    let mut batch = StepBatch::default();
    batch.push_segment(SequenceId(1), 0, &[0, 0], &[PageId(2)], None);
    ops.begin_step(&batch).expect("begin_step");
    refused("append beyond the pool", ops.kv_append(&mut pool, 0, &kv, &kv));
    refused("attention to a page beyond the pool", ops.attention(&pool, 0, &kv, 1.0, &mut out));
}

fn logit_refusals<B: Ops>(ops: &mut B, head: &B::Matrix) {
    let mut batch = plain_step(1);
    let key = SamplingKey { seed: 0, position: 0 };
    batch.samples.push(sample_row(0, SamplingParams::GREEDY, key));
    ops.begin_step(&batch).expect("begin_step");
    let mut output = StepOutput::default();
    let narrow = input(ops, 32, &[1.0; 32]);
    refused("hidden of another width", ops.logits_sample(&narrow, head, &mut output));
    let mut values = [1.0; 64];
    values[9] = f32::NAN;
    let broken = input(ops, 64, &values);
    match ops.logits_sample(&broken, head, &mut output) {
        Err(OpError::Device { detail, .. }) => assert!(detail.contains("NaN"), "{detail}"),
        other => panic!("logits of NaN: expected a device error, found {other:?}"),
    }
    output.clear();
    let fine = input(ops, 64, &[1.0; 64]);
    ops.logits_sample(&fine, head, &mut output).expect("usable after a refusal");
    assert_eq!(output.samples.len(), 1);
}
