//! The smallest backend: plain loops over f32, weights unpacked. It proves the conformance suite
//! and lets models be tested where no other backend is at hand.

mod state;

use crate::oracle::{decode_matrix, kv_round, positions, route, sigmoid, silu};
use crate::sampling::{SampleInput, Sampler};
use crate::{
    DeltaRows, DeltaSpec, Experts, KvSpec, MatrixSource, OpError, Ops, Product, RopeSpec,
    RopeStyle, Workspace,
};
use laneway_execution::{PAGE_TOKENS, PageId, SlotId, StepBatch, StepOutput};
use laneway_numerics::WeightFormat;
pub use state::StatePool;

/// The backend.
#[derive(Debug)]
pub struct ReferenceOps {
    workspace: Workspace,
    /// Round the inputs of products to 8 bits, one scale a block of this many elements.
    int8_block: Option<usize>,
    batch: StepBatch,
    /// Position of every row of the batch.
    positions: Vec<usize>,
    sampler: Sampler,
}

/// Decoded weights, row-major.
#[derive(Clone, Debug)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    data: Vec<f32>,
}

impl Matrix {
    fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }
}

/// Some rows of `width` elements.
#[derive(Clone, Debug)]
pub struct Activations {
    width: usize,
    data: Vec<f32>,
}

impl Activations {
    fn rows(&self) -> usize {
        self.data.len() / self.width
    }
}

/// Keys and values in f32, already rounded to the pool's dtype.
#[derive(Clone, Debug)]
pub struct KvPool {
    spec: KvSpec,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl KvPool {
    fn width(&self) -> usize {
        self.spec.kv_heads * self.spec.head_dim
    }

    /// First element of a token's keys, and of its values.
    fn offset(&self, layer: usize, page: PageId, slot: usize) -> usize {
        ((layer * self.spec.pages + page.0 as usize) * PAGE_TOKENS + slot) * self.width()
    }

    fn check(&self, op: &'static str, layer: usize, pages: &[PageId]) -> Result<(), OpError> {
        ensure(op, layer < self.spec.layers, || format!("layer {layer} of {}", self.spec.layers))?;
        let beyond = pages.iter().find(|page| page.0 as usize >= self.spec.pages);
        ensure(op, beyond.is_none(), || format!("{beyond:?} of {} pages", self.spec.pages))
    }
}

impl ReferenceOps {
    /// A backend ready for steps up to `workspace`.
    #[must_use]
    pub fn new(workspace: Workspace) -> Self {
        ReferenceOps {
            workspace,
            int8_block: None,
            batch: StepBatch::default(),
            positions: Vec::new(),
            sampler: Sampler::default(),
        }
    }

    /// The same with inputs of products rounded to 8 bits, one scale for 32 elements: what fast
    /// CPU kernels do, without their kernels.
    #[must_use]
    pub fn with_int8_activations(workspace: Workspace) -> Self {
        ReferenceOps { int8_block: Some(32), ..Self::new(workspace) }
    }

    /// Calls `each(row, output, x · wᵀ)`, every weight row being read once.
    fn products(&self, x: &Activations, matrix: &Matrix, mut each: impl FnMut(usize, usize, f32)) {
        let mut x = x.clone();
        if let Some(block) = self.int8_block {
            x.data.chunks_mut(x.width).for_each(|row| round_to_int8(row, block));
        }
        for output in 0..matrix.rows {
            for (row, x) in x.data.chunks(x.width).enumerate() {
                each(row, output, dot(x, matrix.row(output)));
            }
        }
    }

    fn full_step(&self, op: &'static str, x: &Activations) -> Result<(), OpError> {
        let (found, wanted) = (x.rows(), self.batch.rows());
        ensure(op, found == wanted, || format!("{found} rows, the step has {wanted}"))
    }
}

fn ensure(op: &'static str, holds: bool, detail: impl FnOnce() -> String) -> Result<(), OpError> {
    if holds { Ok(()) } else { Err(OpError::Shape { op, detail: detail() }) }
}

fn same_width(op: &'static str, found: usize, wanted: usize) -> Result<(), OpError> {
    ensure(op, found == wanted, || format!("width {found}, expected {wanted}"))
}

/// Eight running sums, so that the compiler may use vectors; the order depends on the length only.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0f32; 8];
    for (a, b) in a8.iter().zip(b8) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// Replaces every element by the nearest multiple of its block's largest magnitude / 127.
fn round_to_int8(row: &mut [f32], block: usize) {
    for block in row.chunks_mut(block) {
        let step = block.iter().fold(0.0f32, |most, v| most.max(v.abs())) / 127.0;
        if step > 0.0 {
            block.iter_mut().for_each(|v| *v = (*v / step).round() * step);
        }
    }
}

impl Ops for ReferenceOps {
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Activations = Activations;
    type KvPool = KvPool;
    type Rope = RopeSpec;
    type StatePool = StatePool;

    fn workspace(&self) -> Workspace {
        self.workspace
    }

    fn load_matrix(&mut self, source: &MatrixSource<'_>) -> Result<Matrix, OpError> {
        Ok(Matrix { rows: source.rows, cols: source.cols, data: decode_matrix(source)? })
    }

    fn load_vector(&mut self, values: &[f32]) -> Result<Vec<f32>, OpError> {
        Ok(values.to_vec())
    }

    fn new_activations(&mut self, width: usize) -> Result<Activations, OpError> {
        ensure("new_activations", width > 0, || "width 0".to_owned())?;
        Ok(Activations { width, data: Vec::with_capacity(self.workspace.rows * width) })
    }

    fn new_kv_pool(&mut self, spec: &KvSpec) -> Result<KvPool, OpError> {
        let tokens = spec.layers * spec.pages * PAGE_TOKENS;
        let elements = tokens * spec.kv_heads * spec.head_dim;
        Ok(KvPool { spec: *spec, keys: vec![0.0; elements], values: vec![0.0; elements] })
    }

    fn new_rope(&mut self, spec: &RopeSpec) -> Result<RopeSpec, OpError> {
        let pairs = spec.inverse_frequencies.len();
        ensure("new_rope", 2 * pairs <= spec.head_dim, || {
            format!("{pairs} pairs in a head of {}", spec.head_dim)
        })?;
        Ok(spec.clone())
    }

    fn new_state_pool(&mut self, spec: &DeltaSpec) -> Result<StatePool, OpError> {
        StatePool::new(spec)
    }

    fn state_pool_bytes(&self, spec: &DeltaSpec) -> usize {
        spec.slots * spec.image_bytes()
    }

    fn packed_bytes(&self, _: WeightFormat, rows: usize, cols: usize) -> usize {
        rows * cols * size_of::<f32>()
    }

    fn write(&mut self, activations: &mut Activations, values: &[f32]) -> Result<(), OpError> {
        let (width, most) = (activations.width, self.workspace.rows);
        let fits = values.len().is_multiple_of(width) && values.len() <= most * width;
        ensure("write", fits, || {
            format!("{} values, expected up to {most} rows of {width}", values.len())
        })?;
        activations.data.clear();
        activations.data.extend_from_slice(values);
        Ok(())
    }

    fn read(&mut self, activations: &Activations, rows: usize) -> Result<Vec<f32>, OpError> {
        let held = activations.rows();
        ensure("read", rows <= held, || format!("{rows} rows, {held} are held"))?;
        Ok(activations.data[..rows * activations.width].to_vec())
    }

    fn begin_step(&mut self, batch: &StepBatch) -> Result<(), OpError> {
        let (rows, samples) = (batch.rows(), batch.samples.len());
        let Workspace { rows: most_rows, samples: most_samples, context } = self.workspace;
        ensure("begin_step", rows <= most_rows && samples <= most_samples, || {
            format!("{rows} rows and {samples} samples of {most_rows} and {most_samples}")
        })?;
        self.positions = positions(batch);
        let longest = self.positions.iter().max().map_or(0, |last| last + 1);
        ensure("begin_step", longest <= context, || format!("{longest} tokens of {context}"))?;
        self.batch.clone_from(batch);
        Ok(())
    }

    fn embed(&mut self, table: &Matrix, out: &mut Activations) -> Result<(), OpError> {
        same_width("embed", out.width, table.cols)?;
        out.data.clear();
        for &token in &self.batch.tokens {
            let rows = table.rows;
            ensure("embed", (token as usize) < rows, || format!("token {token} of {rows}"))?;
            out.data.extend_from_slice(table.row(token as usize));
        }
        Ok(())
    }

    fn rms_norm(
        &mut self,
        x: &Activations,
        weight: &Vec<f32>,
        epsilon: f32,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        same_width("rms_norm", out.width, x.width)?;
        ensure("rms_norm", x.width.is_multiple_of(weight.len()), || {
            format!("groups of {} in rows of {}", weight.len(), x.width)
        })?;
        out.data.clear();
        for group in x.data.chunks(weight.len()) {
            let mean_square = dot(group, group) / group.len() as f32;
            let scale = (mean_square + epsilon).sqrt().recip();
            out.data.extend(group.iter().zip(weight).map(|(x, w)| x * scale * w));
        }
        Ok(())
    }

    fn linear(
        &mut self,
        x: &Activations,
        products: &mut [Product<'_, Self>],
    ) -> Result<(), OpError> {
        for product in products {
            let Product { matrix, bias, out, accumulate } = product;
            same_width("linear", x.width, matrix.cols)?;
            same_width("linear", out.width, matrix.rows)?;
            bias.map_or(Ok(()), |bias| same_width("linear", bias.len(), matrix.rows))?;
            if *accumulate {
                ensure("linear", out.rows() == x.rows(), || {
                    format!("{} rows onto {}", x.rows(), out.rows())
                })?;
            } else {
                out.data.clear();
                out.data.resize(x.rows() * matrix.rows, 0.0);
            }
            self.products(x, matrix, |row, output, sum| {
                let bias = bias.map_or(0.0, |bias| bias[output]);
                out.data[row * matrix.rows + output] += sum + bias;
            });
        }
        Ok(())
    }

    fn gate_up_swiglu(
        &mut self,
        x: &Activations,
        gate: &Matrix,
        up: &Matrix,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        for matrix in [gate, up] {
            same_width("gate_up_swiglu", x.width, matrix.cols)?;
            same_width("gate_up_swiglu", out.width, matrix.rows)?;
        }
        let width = out.width;
        out.data.clear();
        out.data.resize(x.rows() * width, 0.0);
        self.products(x, gate, |row, output, sum| {
            out.data[row * width + output] = silu(f64::from(sum)) as f32;
        });
        self.products(x, up, |row, output, sum| out.data[row * width + output] *= sum);
        Ok(())
    }

    fn rope(&mut self, rope: &RopeSpec, x: &mut Activations) -> Result<(), OpError> {
        self.full_step("rope", x)?;
        let RopeSpec { style, head_dim, inverse_frequencies } = rope;
        ensure("rope", x.width.is_multiple_of(*head_dim), || {
            format!("heads of {head_dim} in rows of {}", x.width)
        })?;
        let pairs = inverse_frequencies.len();
        for (row, &position) in x.data.chunks_mut(x.width).zip(&self.positions) {
            for (i, &frequency) in inverse_frequencies.iter().enumerate() {
                let (sin, cos) = (position as f64 * f64::from(frequency)).sin_cos();
                let (sin, cos) = (sin as f32, cos as f32);
                let (first, second) = match style {
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                    RopeStyle::Halves => (i, i + pairs),
                };
                for head in row.chunks_mut(*head_dim) {
                    let (a, b) = (head[first], head[second]);
                    head[first] = a * cos - b * sin;
                    head[second] = a * sin + b * cos;
                }
            }
        }
        Ok(())
    }

    fn kv_append(
        &mut self,
        pool: &mut KvPool,
        layer: usize,
        k: &Activations,
        v: &Activations,
    ) -> Result<(), OpError> {
        let width = pool.width();
        for x in [k, v] {
            same_width("kv_append", x.width, width)?;
            self.full_step("kv_append", x)?;
        }
        pool.check("kv_append", layer, &self.batch.block_tables)?;
        for segment in &self.batch.segments {
            for row in segment.rows.clone() {
                let position = self.positions[row];
                let page = self.batch.block_table(segment)[position / PAGE_TOKENS];
                let to = pool.offset(layer, page, position % PAGE_TOKENS);
                for e in 0..width {
                    pool.keys[to + e] = kv_round(pool.spec.dtype, k.data[row * width + e]);
                    pool.values[to + e] = kv_round(pool.spec.dtype, v.data[row * width + e]);
                }
            }
        }
        Ok(())
    }

    fn attention(
        &mut self,
        pool: &KvPool,
        layer: usize,
        q: &Activations,
        scale: f32,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        same_width("attention", out.width, q.width)?;
        self.full_step("attention", q)?;
        ensure("attention", q.width.is_multiple_of(pool.width()), || {
            format!("queries of {} on keys of {}", q.width, pool.width())
        })?;
        pool.check("attention", layer, &self.batch.block_tables)?;
        let (dim, group) = (pool.spec.head_dim, q.width / pool.width());
        out.data.clear();
        out.data.resize(q.data.len(), 0.0);
        let mut weights = Vec::new();
        for segment in &self.batch.segments {
            let pages = self.batch.block_table(segment);
            for row in segment.rows.clone() {
                for head in 0..q.width / dim {
                    let here = row * q.width + head * dim;
                    let token = |p: usize| {
                        let token = pool.offset(layer, pages[p / PAGE_TOKENS], p % PAGE_TOKENS);
                        token + head / group * dim
                    };
                    weights.clear();
                    weights.extend((0..=self.positions[row]).map(|p| {
                        dot(&q.data[here..here + dim], &pool.keys[token(p)..token(p) + dim]) * scale
                    }));
                    let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    weights.iter_mut().for_each(|w| *w = (*w - max).exp());
                    let total: f32 = weights.iter().sum();
                    for (p, weight) in weights.iter().enumerate() {
                        let weight = weight / total;
                        let values = &pool.values[token(p)..token(p) + dim];
                        for (out, v) in out.data[here..here + dim].iter_mut().zip(values) {
                            *out += weight * v;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn gated_rms_norm(
        &mut self,
        x: &Activations,
        weight: &Vec<f32>,
        epsilon: f32,
        gate: &Activations,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        same_width("gated_rms_norm", gate.width, x.width)?;
        ensure("gated_rms_norm", gate.rows() == x.rows(), || {
            format!("{} rows and {} of gates", x.rows(), gate.rows())
        })?;
        self.rms_norm(x, weight, epsilon, out)?;
        for (out, gate) in out.data.iter_mut().zip(&gate.data) {
            *out *= silu(f64::from(*gate)) as f32;
        }
        Ok(())
    }

    fn sparse_moe(
        &mut self,
        x: &Activations,
        logits: &Activations,
        experts: Experts<'_, Self>,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        const OP: &str = "sparse_moe";
        let Experts { gate, up, down, chosen } = experts;
        let (all, hidden, inner) = (logits.width, out.width, down.cols);
        ensure(OP, chosen > 0 && chosen <= all, || format!("{chosen} of {all} experts"))?;
        for matrix in [gate, up] {
            same_width(OP, x.width, matrix.cols)?;
            same_width(OP, matrix.rows, all * inner)?;
        }
        same_width(OP, down.rows, all * hidden)?;
        for rows in [logits.rows(), out.rows()] {
            ensure(OP, rows == x.rows(), || format!("{} rows beside {rows}", x.rows()))?;
        }
        let part = |matrix: &Matrix, expert: usize| {
            let rows = matrix.rows / all;
            let data = matrix.data[expert * rows * matrix.cols..][..rows * matrix.cols].to_vec();
            Matrix { rows, cols: matrix.cols, data }
        };
        for (row, logits) in logits.data.chunks(all).enumerate() {
            let logits: Vec<f64> = logits.iter().map(|l| f64::from(*l)).collect();
            let x =
                Activations { width: x.width, data: x.data[row * x.width..][..x.width].to_vec() };
            for (expert, weight) in route(&logits, chosen) {
                let mut read = Activations { width: inner, data: Vec::new() };
                self.gate_up_swiglu(&x, &part(gate, expert), &part(up, expert), &mut read)?;
                self.products(&read, &part(down, expert), |_, output, sum| {
                    out.data[row * hidden + output] += weight as f32 * sum;
                });
            }
        }
        Ok(())
    }

    fn sigmoid_gate(&mut self, gate: &Activations, x: &mut Activations) -> Result<(), OpError> {
        const OP: &str = "sigmoid_gate";
        let (gates, width) = (gate.width, x.width);
        ensure(OP, gates == 1 || gates == width, || format!("{gates} gates for {width} elements"))?;
        ensure(OP, gate.rows() == x.rows(), || {
            format!("{} rows and {} of gates", x.rows(), gate.rows())
        })?;
        for (i, x) in x.data.iter_mut().enumerate() {
            *x *= sigmoid(f64::from(gate.data[if gates == 1 { i / width } else { i }])) as f32;
        }
        Ok(())
    }

    fn causal_conv(
        &mut self,
        pool: &mut StatePool,
        layer: usize,
        weight: &Vec<f32>,
        x: &Activations,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        self.full_step("causal_conv", x)?;
        pool.conv(layer, &self.batch, weight, x, out)
    }

    fn gated_delta(
        &mut self,
        pool: &mut StatePool,
        layer: usize,
        rows: DeltaRows<'_, Self>,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        let DeltaRows { qkv, alpha, beta, rate, bias } = rows;
        for x in [qkv, alpha, beta] {
            self.full_step("gated_delta", x)?;
        }
        pool.delta(layer, &self.batch, qkv, [alpha, beta], [rate, bias], out)
    }

    fn copy_state(
        &mut self,
        pool: &mut StatePool,
        from: SlotId,
        to: SlotId,
        position: usize,
    ) -> Result<(), OpError> {
        pool.copy(from, to, position)
    }

    fn save_state(
        &mut self,
        pool: &StatePool,
        slot: SlotId,
        position: usize,
        image: &mut Vec<u8>,
    ) -> Result<(), OpError> {
        pool.save(slot, position, image)
    }

    fn load_state(
        &mut self,
        pool: &mut StatePool,
        slot: SlotId,
        position: usize,
        image: &[u8],
    ) -> Result<(), OpError> {
        pool.load(slot, position, image)
    }

    fn gather_rows(
        &mut self,
        x: &Activations,
        rows: &[usize],
        out: &mut Activations,
    ) -> Result<(), OpError> {
        same_width("gather_rows", out.width, x.width)?;
        let most = self.workspace.rows.max(self.workspace.samples);
        ensure("gather_rows", rows.len() <= most, || format!("{} rows of {most}", rows.len()))?;
        out.data.clear();
        for &row in rows {
            ensure("gather_rows", row < x.rows(), || format!("row {row} of {}", x.rows()))?;
            out.data.extend_from_slice(&x.data[row * x.width..][..x.width]);
        }
        Ok(())
    }

    fn logits_sample(
        &mut self,
        x: &Activations,
        head: &Matrix,
        output: &mut StepOutput,
    ) -> Result<(), OpError> {
        same_width("logits_sample", x.width, head.cols)?;
        let (found, wanted) = (x.rows(), self.batch.samples.len());
        ensure("logits_sample", found == wanted, || format!("{found} rows, {wanted} samples"))?;
        let mut logits = vec![0.0; wanted * head.rows];
        self.products(x, head, |row, output, sum| logits[row * head.rows + output] = sum);
        for (logits, sample) in logits.chunks(head.rows).zip(&self.batch.samples) {
            self.sampler.sample(logits, &SampleInput::of(&self.batch, sample), output)?;
        }
        Ok(())
    }

    fn copy_page(
        &mut self,
        pool: &mut KvPool,
        from: PageId,
        to: PageId,
        tokens: usize,
    ) -> Result<(), OpError> {
        pool.check("copy_page", 0, &[from, to])?;
        ensure("copy_page", tokens <= PAGE_TOKENS, || format!("{tokens} tokens of a page"))?;
        let elements = tokens * pool.width();
        for layer in 0..pool.spec.layers {
            let (from, to) = (pool.offset(layer, from, 0), pool.offset(layer, to, 0));
            pool.keys.copy_within(from..from + elements, to);
            pool.values.copy_within(from..from + elements, to);
        }
        Ok(())
    }
}
