//! Ops that see a row's position or its sequence: rotation, cache and attention.

use super::Tolerances;
use super::rig::{
    Growing, ROWS, WORKSPACE, assert_close, assert_same_bits, input, poisoned, sequences, widen,
};
use crate::synthetic::Stream;
use crate::{KvSpec, Ops, RopeSpec, RopeStyle, Workspace, oracle};
use laneway_execution::{PAGE_TOKENS, PageId, SequenceId, StepBatch};
use laneway_numerics::KvDtype;

/// `rope`: both styles, whole and partial rotation, positions near and far.
pub fn rope<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    let (mut ops, mut noise) = (make(WORKSPACE), Stream::new(6));
    for &head_dim in &tolerances.head_dims {
        for style in [RopeStyle::Interleaved, RopeStyle::Halves] {
            for (heads, pairs) in [(1, head_dim / 2), (3, head_dim / 2), (9, head_dim / 8)] {
                let frequency = |i: usize| 10_000f64.powf(-(i as f64) / pairs as f64) as f32;
                let inverse_frequencies = (0..pairs).map(frequency).collect();
                let spec = RopeSpec { style, head_dim, inverse_frequencies };
                let loaded = ops.new_rope(&spec).expect("new_rope");
                for (rows, start) in ROWS.iter().zip([0, 63, 1, 64, 1000, 2000, 5, 65, 128, 1948]) {
                    let mut batch = StepBatch::default();
                    let pages: Vec<PageId> = (0..32).map(PageId).collect();
                    // Two segments, so that row and position differ.
                    let first = rows.div_ceil(2);
                    batch.push_segment(SequenceId(1), start, &vec![0; first], &pages, None);
                    if *rows > 1 {
                        let rest = vec![0; rows - first];
                        batch.push_segment(SequenceId(2), 7, &rest, &pages, None);
                    }
                    ops.begin_step(&batch).expect("begin_step");
                    let width = heads * head_dim;
                    let x = noise.normals(rows * width, 1.0);
                    let mut x_in = input(&mut ops, width, &x);
                    ops.rope(&loaded, &mut x_in).expect("rope");
                    let found = ops.read(&x_in, *rows).expect("read");
                    let (before, positions) = (widen(&x), oracle::positions(&batch));
                    let mut expected = before.clone();
                    oracle::rope(&spec, &mut expected, width, &positions);
                    let what = format!("rope {style:?}, {rows}×{heads}×{head_dim}, {pairs} pairs");
                    assert_close(&what, width, &found, &expected, |at| {
                        let in_head = at % head_dim;
                        if in_head >= 2 * pairs {
                            return 0.0;
                        }
                        let (i, partner) = match style {
                            RopeStyle::Interleaved => (in_head / 2, at ^ 1),
                            RopeStyle::Halves if in_head < pairs => (in_head, at + pairs),
                            RopeStyle::Halves => (in_head - pairs, at - pairs),
                        };
                        let angle =
                            positions[at / width] as f64 * f64::from(spec.inverse_frequencies[i]);
                        tolerances.rotation(before[at], before[partner], angle)
                    });
                }
            }
        }
    }
}

/// Ragged steps (sequence, tokens) that put chunk borders at, before and after page borders.
const STEPS: [&[(usize, usize)]; 6] = [
    &[(0, 63), (1, 1), (2, 33)],
    &[(0, 1), (1, 63), (2, 31)],
    &[(0, 1), (1, 1), (2, 1), (3, 97)],
    &[(3, 31), (0, 1), (2, 65)],
    &[(3, 64), (1, 3)],
    &[(3, 1), (0, 1), (1, 1), (2, 1)],
];
const CAPACITIES: [usize; 4] = [70, 70, 140, 200];
const PAGES: usize = 14;

/// `kv_append` and `attention`: every dtype and head size, several head ratios, ragged steps,
/// shuffled pages that held NaN of an earlier owner.
pub fn attention<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    for &dtype in &tolerances.kv_dtypes {
        for &head_dim in &tolerances.head_dims {
            for (kv_heads, ratio) in [(3, 1), (2, 3), (1, 8)] {
                let spec = KvSpec { layers: 2, kv_heads, head_dim, dtype, pages: PAGES };
                attention_case(&mut make(WORKSPACE), tolerances, &spec, ratio);
            }
        }
    }
}

fn attention_case<B: Ops>(ops: &mut B, tolerances: &Tolerances, spec: &KvSpec, ratio: usize) {
    let mut noise = Stream::new(7);
    let kv_width = spec.kv_heads * spec.head_dim;
    let q_width = kv_width * ratio;
    let mut pool = ops.new_kv_pool(spec).expect("new_kv_pool");
    let mut exact = oracle::KvPool::new(spec);
    fill_with_nan(ops, &mut pool, spec);
    let mut growing = sequences(&mut noise, PAGES, &CAPACITIES);
    for (step, segments) in STEPS.iter().enumerate() {
        let batch = ragged_step(&mut growing, segments);
        let rows = batch.rows();
        ops.begin_step(&batch).expect("begin_step");
        let q = noise.normals(rows * q_width, 2.0);
        let q_in = input(ops, q_width, &q);
        // Layers must not see each other.
        for layer in [1, 0] {
            let (k, v) = (noise.normals(rows * kv_width, 2.0), noise.normals(rows * kv_width, 1.0));
            let (k_in, v_in) = (input(ops, kv_width, &k), input(ops, kv_width, &v));
            ops.kv_append(&mut pool, layer, &k_in, &v_in).expect("kv_append");
            exact.append(layer, &batch, &k, &v);
        }
        for layer in [0, 1] {
            let scale = (spec.head_dim as f32).sqrt().recip();
            let mut out = poisoned(ops, q_width);
            ops.attention(&pool, layer, &q_in, scale, &mut out).expect("attention");
            let found = ops.read(&out, rows).expect("read");
            let attended = exact.attention(layer, &batch, &widen(&q), f64::from(scale));
            let what = format!(
                "attention {} × {ratio} heads of {} in {}, layer {layer}, step {step}",
                spec.kv_heads, spec.head_dim, spec.dtype
            );
            compare(tolerances, &what, q_width, &found, &attended);
        }
    }
}

fn compare(
    tolerances: &Tolerances,
    what: &str,
    width: usize,
    found: &[f32],
    attended: &[oracle::Attended],
) {
    let dim = attended[0].out.len();
    let expected: Vec<f64> = attended.iter().flat_map(|a| a.out.clone()).collect();
    assert_close(what, width, found, &expected, |at| {
        let attended = &attended[at / dim];
        tolerances.attention(attended.score_magnitude, attended.out_magnitude[at % dim])
    });
}

fn ragged_step(growing: &mut [Growing], segments: &[(usize, usize)]) -> StepBatch {
    let mut batch = StepBatch::default();
    for &(sequence, tokens) in segments {
        let Growing { id, pages, length } = &mut growing[sequence];
        batch.push_segment(*id, *length, &vec![0; tokens], pages, None);
        *length += tokens;
    }
    batch
}

/// An earlier sequence that wrote NaN to every slot of every page.
fn fill_with_nan<B: Ops>(ops: &mut B, pool: &mut B::KvPool, spec: &KvSpec) {
    let pages: Vec<PageId> = (0..spec.pages as u32).map(PageId).collect();
    let width = spec.kv_heads * spec.head_dim;
    for start in (0..spec.pages * PAGE_TOKENS).step_by(PAGE_TOKENS) {
        let mut batch = StepBatch::default();
        batch.push_segment(SequenceId(99), start, &[0; PAGE_TOKENS], &pages, None);
        ops.begin_step(&batch).expect("begin_step");
        let nan = input(ops, width, &vec![f32::NAN; PAGE_TOKENS * width]);
        for layer in 0..spec.layers {
            ops.kv_append(pool, layer, &nan, &nan).expect("kv_append");
        }
    }
}

/// `copy_page` copies the first tokens of all layers and leaves the others alone.
pub fn copy_page<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    let head_dim = tolerances.head_dims[0];
    for &dtype in &tolerances.kv_dtypes {
        for tokens in [0, 1, 17, 63, 64] {
            copy_page_case(&mut make(WORKSPACE), tolerances, dtype, head_dim, tokens);
        }
    }
}

fn copy_page_case<B: Ops>(
    ops: &mut B,
    tolerances: &Tolerances,
    dtype: KvDtype,
    head_dim: usize,
    tokens: usize,
) {
    let mut noise = Stream::new(8);
    let spec = KvSpec { layers: 2, kv_heads: 2, head_dim, dtype, pages: 4 };
    let width = 2 * head_dim;
    let mut pool = ops.new_kv_pool(&spec).expect("new_kv_pool");
    let mut exact = oracle::KvPool::new(&spec);
    let one_page = |page: u32, start: usize, rows: usize| {
        let mut batch = StepBatch::default();
        batch.push_segment(SequenceId(1), start, &vec![0; rows], &[PageId(page)], None);
        batch
    };
    for page in [3, 1] {
        let batch = one_page(page, 0, PAGE_TOKENS);
        ops.begin_step(&batch).expect("begin_step");
        for layer in 0..2 {
            let (k, v) = (noise.normals(64 * width, 1.0), noise.normals(64 * width, 1.0));
            let (k_in, v_in) = (input(ops, width, &k), input(ops, width, &v));
            ops.kv_append(&mut pool, layer, &k_in, &v_in).expect("kv_append");
            exact.append(layer, &batch, &k, &v);
        }
    }
    ops.copy_page(&mut pool, PageId(3), PageId(1), tokens).expect("copy_page");
    exact.copy_page(PageId(3), PageId(1), tokens);
    let q = noise.normals(64 * width, 1.0);
    for layer in 0..2 {
        let results = [1, 3].map(|page| {
            let batch = one_page(page, 0, PAGE_TOKENS);
            ops.begin_step(&batch).expect("begin_step");
            let (q_in, mut out) = (input(ops, width, &q), poisoned(ops, width));
            ops.attention(&pool, layer, &q_in, 0.3, &mut out).expect("attention");
            let found = ops.read(&out, PAGE_TOKENS).expect("read");
            let attended = exact.attention(layer, &batch, &widen(&q), f64::from(0.3f32));
            let what = format!("copy_page of {tokens} tokens in {dtype}, page {page}");
            compare(tolerances, &what, width, &found, &attended);
            found
        });
        let copied = tokens * width;
        assert_same_bits("copy_page", &results[0][..copied], &results[1][..copied]);
    }
}
