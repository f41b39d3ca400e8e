//! What the cases share: encoded weights, inputs, poisoned outputs, and comparison.

use crate::synthetic::Stream;
use crate::{MatrixSource, Ops, Workspace, oracle};
use laneway_execution::{
    Draw, PAGE_TOKENS, PageId, SampleRow, SamplingKey, SamplingParams, SequenceId, StepBatch,
    pages_for,
};
use laneway_numerics::{WeightFormat, encode_row};

/// Numbers of rows of one step.
pub(super) const ROWS: [usize; 10] = [1, 2, 3, 5, 7, 16, 17, 33, 64, 100];

/// What every backend under test is made for.
pub(super) const WORKSPACE: Workspace = Workspace { rows: 100, samples: 100, context: 2048 };

/// A weight matrix as a file holds it.
pub(super) struct Encoded {
    name: String,
    format: WeightFormat,
    pub rows: usize,
    pub cols: usize,
    data: Vec<u8>,
}

impl Encoded {
    pub fn new(format: WeightFormat, rows: usize, cols: usize, values: &[f32]) -> Self {
        let bytes = format.row_bytes(cols).expect("columns are whole blocks");
        let mut data = vec![0; rows * bytes];
        for (values, data) in values.chunks(cols).zip(data.chunks_mut(bytes)) {
            encode_row(format, values, data).expect("values are encodable");
        }
        Encoded { name: format!("{format} {rows}×{cols}"), format, rows, cols, data }
    }

    /// Random weights with some structure: a mean and a spread of each row's own.
    pub fn random(noise: &mut Stream, format: WeightFormat, rows: usize, cols: usize) -> Self {
        let mut values = Vec::with_capacity(rows * cols);
        for _ in 0..rows {
            let (mean, spread) = (0.02 * noise.normal(), 0.05 + 0.05 * noise.normal().abs());
            values.extend((0..cols).map(|_| mean + spread * noise.normal()));
        }
        Self::new(format, rows, cols, &values)
    }

    pub fn source(&self) -> MatrixSource<'_> {
        let &Encoded { ref name, format, rows, cols, ref data } = self;
        MatrixSource { name, format, rows, cols, data }
    }

    pub fn decoded(&self) -> oracle::Matrix {
        oracle::Matrix::decode(&self.source()).expect("own encoding decodes")
    }

    pub fn load<B: Ops>(&self, ops: &mut B) -> B::Matrix {
        ops.load_matrix(&self.source()).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }
}

/// Input widths that a format must handle, one of them odd.
pub(super) fn widths(format: WeightFormat) -> &'static [usize] {
    match format.block_elements() {
        1 => &[40, 96, 576],
        32 => &[32, 96, 576, 1536],
        _ => &[256, 512, 1536],
    }
}

/// Random activations with outliers, as a residual stream has them.
pub(super) fn activations(noise: &mut Stream, elements: usize) -> Vec<f32> {
    let value = |noise: &mut Stream| {
        let outlier = noise.below(40) == 0;
        noise.normal() * if outlier { 12.0 } else { 1.0 }
    };
    (0..elements).map(|_| value(noise)).collect()
}

/// Rows that 8 bits hold exactly, whatever block of 32·n they are scaled by: multiples of 1/64
/// with 127/64 in every 32 elements.
pub(super) fn exact_activations(noise: &mut Stream, rows: usize, width: usize) -> Vec<f32> {
    let mut values = Vec::with_capacity(rows * width);
    for _ in 0..rows {
        for i in 0..width {
            let code = if i % 32 == 7 { 127 } else { noise.below(255) as i32 - 127 };
            values.push(code as f32 / 64.0);
        }
    }
    values
}

/// A step of `rows` rows of one fresh sequence.
pub(super) fn plain_step(rows: usize) -> StepBatch {
    let mut batch = StepBatch::default();
    let pages: Vec<PageId> = (0..pages_for(rows) as u32).map(PageId).collect();
    batch.push_segment(SequenceId(1), 0, &vec![0; rows], &pages, None);
    batch
}

/// A row to sample.
pub(super) fn sample_row(row: usize, params: SamplingParams, key: SamplingKey) -> SampleRow {
    SampleRow {
        row,
        draw: Draw::Sample,
        params,
        key,
        top_logprobs: 0,
        counts: 0..0,
        biases: 0..0,
        mask: 0..0,
    }
}

/// A sequence that grows over several steps.
pub(super) struct Growing {
    pub id: SequenceId,
    pub pages: Vec<PageId>,
    pub length: usize,
}

/// Sequences with room for `capacities` tokens, on pages in random order.
pub(super) fn sequences(noise: &mut Stream, pages: usize, capacities: &[usize]) -> Vec<Growing> {
    let mut free: Vec<PageId> = (0..pages as u32).map(PageId).collect();
    noise.shuffle(&mut free);
    let grown = capacities.iter().zip(1..).map(|(&capacity, id)| {
        let pages = free.split_off(free.len() - capacity.div_ceil(PAGE_TOKENS));
        Growing { id: SequenceId(id), pages, length: 0 }
    });
    grown.collect()
}

/// Activations that hold `values`.
pub(super) fn input<B: Ops>(ops: &mut B, width: usize, values: &[f32]) -> B::Activations {
    let mut activations = ops.new_activations(width).expect("activations");
    ops.write(&mut activations, values).expect("write");
    activations
}

/// Activations full of NaN.
pub(super) fn poisoned<B: Ops>(ops: &mut B, width: usize) -> B::Activations {
    input(ops, width, &vec![f32::NAN; WORKSPACE.rows * width])
}

pub(super) fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

/// Asserts that every element is within its own bound.
pub(super) fn assert_close(
    what: &str,
    width: usize,
    found: &[f32],
    expected: &[f64],
    bound: impl Fn(usize) -> f64,
) {
    assert_eq!(found.len(), expected.len(), "{what}: number of elements");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let (error, bound) = ((f64::from(found) - expected).abs(), bound(i));
        assert!(
            error <= bound,
            "{what}: row {}, element {}: found {found}, expected {expected}, \
             off by {error:e}, bound {bound:e}",
            i / width,
            i % width,
        );
    }
}

/// Asserts equality of bits, so that NaN is no excuse.
pub(super) fn assert_same_bits(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}: number of elements");
    let differing = found.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
    if let Some(i) = differing {
        panic!("{what}: element {i} is {} and {}", found[i], expected[i]);
    }
}
