//! Recurrent layers: sequences that grow in ragged steps, with drafts of which some are accepted.

use super::Tolerances;
use super::errors::refused;
use super::rig::{WORKSPACE, assert_close, assert_same_bits, input, poisoned, widen};
use crate::oracle::{self, DeltaInput};
use crate::synthetic::Stream;
use crate::{DeltaRows, DeltaSpec, HeadSharing, OpError, Ops, Workspace};
use laneway_execution::{PageId, SequenceId, SlotId, StepBatch};

const SPEC: DeltaSpec = DeltaSpec {
    layers: 2,
    key_heads: 2,
    value_heads: 4,
    key_dim: 128,
    value_dim: 128,
    kernel: 4,
    sharing: HeadSharing::Grouped,
    slots: 5,
    drafts: 5,
};

/// The shapes that must work; the last one has odd sizes.
const SPECS: [DeltaSpec; 3] = [
    SPEC,
    DeltaSpec { key_heads: 1, value_heads: 3, sharing: HeadSharing::Tiled, kernel: 2, ..SPEC },
    DeltaSpec { value_heads: 6, key_dim: 24, value_dim: 48, sharing: HeadSharing::Tiled, ..SPEC },
];

/// A segment: sequence, certain rows, drafts, and how many of these the next one accepts.
type Run = (usize, usize, usize, usize);

/// Chunks and rounds of speculation: none, some and all drafts accepted, right from the start,
/// more rounds in a row, and a long chunk behind a round.
const STEPS: [&[Run]; 7] = [
    &[(0, 5, 0, 0), (1, 1, 3, 2), (2, 2, 0, 0)],
    &[(1, 1, 5, 0), (0, 1, 1, 1), (2, 33, 0, 0)],
    &[(0, 1, 2, 2), (1, 1, 5, 5)],
    &[(1, 40, 0, 0), (0, 1, 5, 3), (2, 1, 4, 1)],
    &[(0, 1, 0, 0), (2, 1, 0, 0), (1, 1, 0, 0)],
    &[(2, 1, 2, 2), (0, 1, 3, 0), (1, 3, 1, 1)],
    &[(0, 9, 0, 0), (1, 1, 0, 0), (2, 1, 0, 0)],
];
const SEQUENCES: usize = 3;

/// Constants of the layers.
struct Layer<B: Ops> {
    conv: B::Vector,
    rate: B::Vector,
    bias: B::Vector,
    exact: [Vec<f64>; 3],
}

/// One row's inputs: before the convolution, and both gates.
#[derive(Clone)]
struct Row {
    x: Vec<f32>,
    alpha: Vec<f32>,
    beta: Vec<f32>,
}

/// A backend with a pool whose slots held another sequence.
struct Rig<B: Ops> {
    ops: B,
    spec: DeltaSpec,
    pool: B::StatePool,
    layers: Vec<Layer<B>>,
}

impl<B: Ops> Rig<B> {
    fn new(mut ops: B, spec: DeltaSpec) -> Self {
        let mut noise = Stream::new(30);
        let pool = ops.new_state_pool(&spec).expect("new_state_pool");
        let layers = (0..spec.layers).map(|_| {
            let conv = noise.normals(spec.kernel * spec.channels(), 0.5);
            // Heads that forget at once and heads that hardly forget at all.
            let rate: Vec<f32> =
                (0..spec.value_heads).map(|h| -0.01 * 9f32.powi(h as i32)).collect();
            let bias = noise.normals(spec.value_heads, 1.0);
            let exact = [widen(&conv), widen(&rate), widen(&bias)];
            let [conv, rate, bias] =
                [conv, rate, bias].map(|values| ops.load_vector(&values).expect("load_vector"));
            Layer { conv, rate, bias, exact }
        });
        let layers = layers.collect();
        let mut rig = Rig { ops, spec, pool, layers };
        for slot in 0..spec.slots {
            let row = rig.row(99, 0, 7);
            rig.step(&[(slot as u32, 0, vec![row.clone(), row], 1)]).expect("earlier sequence");
        }
        rig
    }

    /// The row of a sequence at a position; drafts that are not accepted have another `take`.
    fn row(&self, sequence: usize, position: usize, take: usize) -> Row {
        let mut noise = Stream::new((sequence * 100 + position * 10_000 + take) as u64);
        Row {
            x: noise.normals(self.spec.channels(), 1.0),
            alpha: noise.normals(self.spec.value_heads, 2.0),
            beta: noise.normals(self.spec.value_heads, 2.0),
        }
    }

    /// Runs segments (slot, start, rows, drafts); for each layer the convolution's output of all
    /// rows and what is read.
    fn step(
        &mut self,
        segments: &[(u32, usize, Vec<Row>, usize)],
    ) -> Result<Vec<[Vec<f32>; 2]>, OpError> {
        let spec = self.spec;
        let mut batch = StepBatch::default();
        let mut all: Vec<Row> = Vec::new();
        for (slot, start, rows, drafts) in segments {
            let pages: Vec<PageId> = (0..8).map(|page| PageId(slot * 8 + page)).collect();
            let (id, slot) = (SequenceId(u64::from(*slot)), Some(SlotId(*slot)));
            batch.push_segment(id, *start, &vec![0; rows.len()], &pages, slot);
            batch.segments.last_mut().expect("just pushed").drafts = *drafts;
            all.extend(rows.iter().cloned());
        }
        let rows = batch.rows();
        let gather = |part: fn(&Row) -> &[f32]| all.iter().flat_map(part).copied().collect();
        let [x, alpha, beta]: [Vec<f32>; 3] =
            [gather(|row| &row.x), gather(|row| &row.alpha), gather(|row| &row.beta)];
        let Rig { ops, pool, layers, .. } = self;
        ops.begin_step(&batch)?;
        let x = input(ops, spec.channels(), &x);
        let (alpha, beta) =
            (input(ops, spec.value_heads, &alpha), input(ops, spec.value_heads, &beta));
        let mut found = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            let (mut qkv, mut out) =
                (poisoned(ops, spec.channels()), poisoned(ops, spec.value_width()));
            ops.causal_conv(pool, index, &layer.conv, &x, &mut qkv)?;
            let (alpha, beta) = (&alpha, &beta);
            let rows_in =
                DeltaRows { qkv: &qkv, alpha, beta, rate: &layer.rate, bias: &layer.bias };
            ops.gated_delta(pool, index, rows_in, &mut out)?;
            found.push([ops.read(&qkv, rows)?, ops.read(&out, rows)?]);
        }
        Ok(found)
    }
}

/// A sequence of a schedule: its rows so far, and the drafts that stand behind them.
#[derive(Default)]
struct Growing {
    length: usize,
    accepted: usize,
    take: usize,
}

/// Runs `STEPS` and hands every segment to `each`: sequence, its whole rows up to the segment's
/// end, its number of rows, and what came out for them.
fn run_schedule<B: Ops>(
    rig: &mut Rig<B>,
    mut each: impl FnMut(&Rig<B>, usize, &[Row], usize, usize, &[f32], &[f32]),
) {
    let mut growing: [Growing; SEQUENCES] = Default::default();
    let mut histories: [Vec<Row>; SEQUENCES] = Default::default();
    for step in STEPS {
        let mut segments = Vec::new();
        for &(sequence, certain, drafts, accepted) in step {
            let growing = &mut growing[sequence];
            let start = growing.length + growing.accepted;
            growing.take += 1;
            let rows: Vec<Row> = (start..start + certain + drafts)
                .map(|position| rig.row(sequence, position, growing.take))
                .collect();
            histories[sequence].truncate(start);
            histories[sequence].extend(rows.iter().cloned());
            (growing.length, growing.accepted) = (start + certain, accepted);
            segments.push((sequence as u32, start, rows, drafts));
        }
        let found = rig.step(&segments).expect("step");
        let (channels, values) = (rig.spec.channels(), rig.spec.value_width());
        let mut first = 0;
        for (slot, _, rows, _) in &segments {
            let (sequence, n) = (*slot as usize, rows.len());
            for (layer, [conv, read]) in found.iter().enumerate() {
                let conv = &conv[first * channels..][..n * channels];
                let read = &read[first * values..][..n * values];
                each(rig, sequence, &histories[sequence], n, layer, conv, read);
            }
            first += n;
        }
    }
}

/// `causal_conv` against its oracle, over chunks and rounds.
pub fn causal_conv<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    for spec in SPECS {
        let mut rig = Rig::new(make(WORKSPACE), spec);
        run_schedule(&mut rig, |rig, sequence, history, rows, layer, conv, _| {
            let x: Vec<Vec<f64>> = history.iter().map(|row| widen(&row.x)).collect();
            let exact = oracle::causal_conv(&spec, &rig.layers[layer].exact[0], &x);
            let exact: Vec<(f64, f64)> = exact[x.len() - rows..].concat();
            let expected: Vec<f64> = exact.iter().map(|(out, _)| *out).collect();
            let what = format!("causal_conv of {rows} rows, sequence {sequence}, layer {layer}");
            assert_close(&what, spec.channels(), conv, &expected, |i| {
                // SiLU's slope stays below 1.1.
                tolerances.sigmoid(expected[i]) + 1.1 * tolerances.element(exact[i].1)
            });
        });
    }
}

/// `gated_delta` against its oracle, over chunks and rounds.
pub fn gated_delta<B: Ops>(make: impl Fn(Workspace) -> B, tolerances: &Tolerances) {
    for spec in SPECS {
        let mut rig = Rig::new(make(WORKSPACE), spec);
        // What the convolution made of the certain rows is the oracle's input, so that its
        // roundings do not count here.
        let mut inputs: [[Vec<DeltaInput>; SEQUENCES]; 2] = Default::default();
        run_schedule(&mut rig, |rig, sequence, history, rows, layer, conv, read| {
            let inputs = &mut inputs[layer][sequence];
            let start = history.len() - rows;
            inputs.truncate(start);
            for (row, qkv) in history[start..].iter().zip(conv.chunks(spec.channels())) {
                let (alpha, beta) = (widen(&row.alpha), widen(&row.beta));
                inputs.push(DeltaInput { qkv: widen(qkv), alpha, beta });
            }
            let [_, rate, bias] = &rig.layers[layer].exact;
            let exact = oracle::gated_delta(&spec, rate, bias, inputs);
            let reads: Vec<_> = exact[start..].concat();
            let expected: Vec<f64> = reads.iter().flat_map(|read| read.out.clone()).collect();
            let magnitudes: Vec<f64> =
                reads.iter().flat_map(|read| read.magnitude.clone()).collect();
            let what = format!("gated_delta of {rows} rows, sequence {sequence}, layer {layer}");
            assert_close(&what, spec.value_width(), read, &expected, |i| {
                tolerances.delta(magnitudes[i], inputs.len())
            });
        });
    }
}

/// The same rows give the same bits one by one, in chunks, and as drafts of which all, some or
/// none are accepted.
pub fn state_independence<B: Ops>(make: impl Fn(Workspace) -> B, _: &Tolerances) {
    const LENGTH: usize = 40;
    for spec in SPECS {
        let mut rig = Rig::new(make(WORKSPACE), spec);
        let rows: Vec<Row> = (0..LENGTH).map(|position| rig.row(1, position, 0)).collect();
        let values = spec.value_width();
        let mut expected = vec![Vec::new(); spec.layers];
        for (position, row) in rows.iter().enumerate() {
            let found = rig.step(&[(0, position, vec![row.clone()], 0)]).expect("one row");
            expected.iter_mut().zip(found).for_each(|(e, [_, read])| e.extend(read));
        }
        // Chunk, drafts, and how many of them hold what the sequence goes on with.
        for (chunk, drafts, right) in
            [(7, 0, 0), (40, 0, 0), (1, 5, 5), (1, 5, 2), (2, 3, 0), (1, 1, 1)]
        {
            let mut start = 0;
            while start < LENGTH {
                let certain = chunk.min(LENGTH - start);
                let drafts = drafts.min(LENGTH - start - certain);
                let right = right.min(drafts);
                let mut run = rows[start..start + certain + drafts].to_vec();
                for (i, wrong) in run[certain + right..].iter_mut().enumerate() {
                    *wrong = rig.row(2, start + i, chunk);
                }
                // Beside another sequence, which must not matter.
                let other = rig.row(3, 0, start);
                let found = rig.step(&[(1, 0, vec![other], 0), (2, start, run, drafts)]);
                for (layer, [_, read]) in found.expect("a run").iter().enumerate() {
                    let n = certain + right;
                    assert_same_bits(
                        &format!("rows from {start} in runs of {chunk} + {drafts}, layer {layer}"),
                        &read[values..][..n * values],
                        &expected[layer][start * values..][..n * values],
                    );
                }
                start += certain + right;
            }
        }
    }
}

/// Copied and restored states go on as the original does, drafts included.
pub fn state_images<B: Ops>(make: impl Fn(Workspace) -> B, _: &Tolerances) {
    for spec in SPECS {
        let mut rig = Rig::new(make(WORKSPACE), spec);
        let rows: Vec<Row> = (0..12).map(|position| rig.row(1, position, 0)).collect();
        rig.step(&[(0, 0, rows[..9].to_vec(), 4)]).expect("five rows and four drafts");
        for position in 5..=9 {
            let mut image = vec![7];
            let Rig { ops, pool, .. } = &mut rig;
            ops.copy_state(pool, SlotId(0), SlotId(3), position).expect("copy_state");
            ops.save_state(pool, SlotId(0), position, &mut image).expect("save_state");
            assert_eq!(image.len(), spec.image_bytes());
            ops.load_state(pool, SlotId(4), position, &image).expect("load_state");
            // The third goes on by itself, in a pool of its own.
            let mut alone = Rig::new(make(WORKSPACE), spec);
            alone.step(&[(0, 0, rows[..position].to_vec(), 0)]).expect("the rows alone");
            let next = rows[position..position + 3].to_vec();
            let expected = alone.step(&[(0, position, next.clone(), 1)]).expect("alone");
            for slot in [3, 4] {
                let found = rig.step(&[(slot, position, next.clone(), 1)]).expect("resumed");
                for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                    assert_same_bits(&format!("resumed at {position}"), found, expected);
                }
            }
        }
    }
}

/// Wrong slots, positions, widths and images.
pub fn state_refusals<B: Ops>(make: impl Fn(Workspace) -> B, _: &Tolerances) {
    let mut rig = Rig::new(make(WORKSPACE), SPEC);
    let row = rig.row(1, 0, 0);
    let rows = |n: usize| vec![row.clone(); n];
    rig.step(&[(0, 0, rows(4), 2)]).expect("two rows and two drafts");
    refused("a slot beyond the pool", rig.step(&[(5, 0, rows(1), 0)]));
    refused("more drafts than the pool keeps", rig.step(&[(0, 0, rows(7), 6)]));
    refused("a start behind the drafts", rig.step(&[(0, 5, rows(1), 0)]));
    refused("a start before what is certain", rig.step(&[(0, 1, rows(1), 0)]));
    let Rig { ops, pool, .. } = &mut rig;
    let mut image = Vec::new();
    refused("a copy behind the drafts", ops.copy_state(pool, SlotId(0), SlotId(1), 5));
    refused("a copy to a slot beyond", ops.copy_state(pool, SlotId(0), SlotId(5), 2));
    refused("an image before what is certain", ops.save_state(pool, SlotId(0), 1, &mut image));
    ops.save_state(pool, SlotId(0), 3, &mut image).expect("save_state");
    refused("a short image", ops.load_state(pool, SlotId(1), 3, &image[1..]));
    refused("an image into a slot beyond", ops.load_state(pool, SlotId(5), 3, &image));
    let uneven = DeltaSpec { key_heads: 3, ..SPEC };
    refused("four value heads for three key heads", ops.new_state_pool(&uneven));
    rig.step(&[(0, 3, rows(1), 0)]).expect("the refusals changed nothing");
}
