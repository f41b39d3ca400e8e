//! `impl Ops`: checks, then regions of kernels.

use super::{Activations, CpuOps, LOGIT_ROWS, Rope, ensure, same_shape, same_width, shared};
use crate::attention::{Attention, BLOCK_QUERIES, Block, Phase, partial_len, scratch_len};
use crate::buffer::{Buffer, Shared};
use crate::isa::dispatch;
use crate::kernels::{Append, Linear, Norm, Outputs, Rotate, Swiglu, Target};
use crate::kv::{Element, KvPool, Pages, Store};
use crate::packed::{Matrix, packed_bytes};
use crate::recurrent::SigmoidGate;
use crate::state::{StatePool, pool_bytes};
use crate::team::share;
use laneway_execution::{PAGE_TOKENS, PageId, SlotId, StepBatch, StepOutput};
use laneway_numerics::WeightFormat;
use laneway_ops::sampling::{SampleInput, Sampler};
use laneway_ops::{
    DeltaRows, DeltaSpec, Experts, KvSpec, MatrixSource, OpError, Ops, Product, RopeSpec, Workspace,
};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

static ROPES: AtomicU64 = AtomicU64::new(1);

impl Ops for CpuOps {
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Activations = Activations;
    type KvPool = KvPool;
    type Rope = Rope;
    type StatePool = StatePool;

    fn workspace(&self) -> Workspace {
        self.workspace
    }

    fn load_matrix(&mut self, source: &MatrixSource<'_>) -> Result<Matrix, OpError> {
        let matrix = Matrix::pack(source, self.team.threads())?;
        if matrix.is_blocks() {
            self.reserve_quantized(matrix.cols)?;
        }
        Ok(matrix)
    }

    fn load_vector(&mut self, values: &[f32]) -> Result<Vec<f32>, OpError> {
        Ok(values.to_vec())
    }

    fn new_activations(&mut self, width: usize) -> Result<Activations, OpError> {
        const OP: &str = "new_activations";
        ensure(OP, width > 0, || "width 0".to_owned())?;
        let rows = self.workspace.rows.max(self.workspace.samples);
        Ok(Activations { width, rows: 0, data: Buffer::zeroed(OP, rows * width)? })
    }

    fn new_kv_pool(&mut self, spec: &KvSpec) -> Result<KvPool, OpError> {
        let threads = self.team.threads();
        self.attention_scratch =
            Buffer::zeroed("new_kv_pool", threads * scratch_len(spec.head_dim))?;
        KvPool::new(spec)
    }

    fn new_rope(&mut self, spec: &RopeSpec) -> Result<Rope, OpError> {
        let pairs = spec.inverse_frequencies.len();
        ensure("new_rope", 2 * pairs <= spec.head_dim, || {
            format!("{pairs} pairs in a head of {}", spec.head_dim)
        })?;
        Ok(Rope { id: ROPES.fetch_add(1, Ordering::Relaxed), spec: spec.clone() })
    }

    fn new_state_pool(&mut self, spec: &DeltaSpec) -> Result<StatePool, OpError> {
        self.state_pool(spec)
    }

    fn state_pool_bytes(&self, spec: &DeltaSpec) -> usize {
        pool_bytes(spec)
    }

    fn packed_bytes(&self, format: WeightFormat, rows: usize, cols: usize) -> usize {
        packed_bytes(format, rows, cols)
    }

    fn write(&mut self, activations: &mut Activations, values: &[f32]) -> Result<(), OpError> {
        let (width, most) = (activations.width, self.workspace.rows);
        let fits = values.len().is_multiple_of(width) && values.len() <= most * width;
        ensure("write", fits, || {
            format!("{} values, expected up to {most} rows of {width}", values.len())
        })?;
        activations.rows = values.len() / width;
        activations.data[..values.len()].copy_from_slice(values);
        Ok(())
    }

    fn read(&mut self, activations: &Activations, rows: usize) -> Result<Vec<f32>, OpError> {
        let held = activations.rows;
        ensure("read", rows <= held, || format!("{rows} rows, {held} are held"))?;
        Ok(activations.data[..rows * activations.width].to_vec())
    }

    fn begin_step(&mut self, batch: &StepBatch) -> Result<(), OpError> {
        self.take(batch)
    }

    fn embed(&mut self, table: &Matrix, out: &mut Activations) -> Result<(), OpError> {
        same_width("embed", out.width, table.cols)?;
        let beyond = self.batch.tokens.iter().find(|&&token| token as usize >= table.rows);
        ensure("embed", beyond.is_none(), || format!("token {beyond:?} of {}", table.rows))?;
        let (rows, width) = (self.batch.rows(), out.width);
        out.rows = rows;
        let tokens = std::mem::take(&mut self.batch.tokens);
        let target = shared(out);
        let members = self.members_for(rows * width);
        self.members(members, &|member| {
            for row in share(rows, member, members) {
                // SAFETY: the row exists and is this member's alone.
                let out =
                    unsafe { std::slice::from_raw_parts_mut(target.get().add(row * width), width) };
                table.decode_row(tokens[row] as usize, out);
            }
        });
        self.batch.tokens = tokens;
        Ok(())
    }

    fn rms_norm(
        &mut self,
        x: &Activations,
        weight: &Vec<f32>,
        epsilon: f32,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        self.norm("rms_norm", x, weight, epsilon, None, out)
    }

    fn gated_rms_norm(
        &mut self,
        x: &Activations,
        weight: &Vec<f32>,
        epsilon: f32,
        gate: &Activations,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        same_shape("gated_rms_norm", gate, x)?;
        self.norm("gated_rms_norm", x, weight, epsilon, Some(gate), out)
    }

    fn sigmoid_gate(&mut self, gate: &Activations, x: &mut Activations) -> Result<(), OpError> {
        const OP: &str = "sigmoid_gate";
        let (rows, width, gates) = (x.rows, x.width, gate.width);
        ensure(OP, gates == 1 || gates == width, || format!("{gates} gates for {width} elements"))?;
        ensure(OP, rows == gate.rows, || format!("{rows} rows beside {}", gate.rows))?;
        let (gate, x) = (Shared(gate.data.as_ptr().cast_mut()), shared(x));
        self.over_rows(rows, width, |rows| SigmoidGate {
            gate: gate.get(),
            gates,
            x: x.get(),
            width,
            rows,
        });
        Ok(())
    }

    fn sparse_moe(
        &mut self,
        x: &Activations,
        logits: &Activations,
        experts: Experts<'_, Self>,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        self.moe(x, logits, &experts, out)
    }

    fn causal_conv(
        &mut self,
        pool: &mut StatePool,
        layer: usize,
        weight: &Vec<f32>,
        x: &Activations,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        self.conv(pool, layer, weight, x, out)
    }

    fn gated_delta(
        &mut self,
        pool: &mut StatePool,
        layer: usize,
        rows: DeltaRows<'_, Self>,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        self.delta(pool, layer, &rows, out)
    }

    fn copy_state(
        &mut self,
        pool: &mut StatePool,
        from: SlotId,
        to: SlotId,
        position: usize,
    ) -> Result<(), OpError> {
        self.copy_slot(pool, from, to, position)
    }

    fn save_state(
        &mut self,
        pool: &StatePool,
        slot: SlotId,
        position: usize,
        image: &mut Vec<u8>,
    ) -> Result<(), OpError> {
        self.save_slot(pool, slot, position, image)
    }

    fn load_state(
        &mut self,
        pool: &mut StatePool,
        slot: SlotId,
        position: usize,
        image: &[u8],
    ) -> Result<(), OpError> {
        self.load_slot(pool, slot, position, image)
    }

    fn linear(
        &mut self,
        x: &Activations,
        products: &mut [Product<'_, Self>],
    ) -> Result<(), OpError> {
        for Product { matrix, bias, out, accumulate } in products.iter_mut() {
            same_width("linear", x.width, matrix.cols)?;
            same_width("linear", out.width, matrix.rows)?;
            bias.map_or(Ok(()), |bias| same_width("linear", bias.len(), matrix.rows))?;
            ensure("linear", !*accumulate || out.rows == x.rows, || {
                format!("{} rows onto {}", x.rows, out.rows)
            })?;
            out.rows = x.rows;
        }
        // Three products at a time: queries, keys and values are the most that share an input.
        for products in products.chunks_mut(3) {
            let mut matrices = products.iter().map(|p| p.matrix);
            let Some(first) = matrices.next() else { continue };
            let rest = [matrices.next().unwrap_or(first), matrices.next().unwrap_or(first)];
            let input = self.input(x, &[first, rest[0], rest[1]]);
            let mut targets = [Target {
                outputs: Outputs::all(first),
                bias: None,
                out: std::ptr::null_mut(),
                accumulate: false,
            }; 3];
            for (target, product) in targets.iter_mut().zip(products.iter_mut()) {
                *target = Target {
                    outputs: Outputs::all(product.matrix),
                    bias: product.bias.map(|bias| &bias[..]),
                    out: shared(product.out).get(),
                    accumulate: product.accumulate,
                };
            }
            let targets = Targets(&targets[..products.len()]);
            let (isa, rows, members) = (self.isa, x.rows, self.team.threads());
            let next = &AtomicUsize::new(0);
            self.members(members, &|_| {
                let (targets, input) = (targets.get(), input.get());
                let kernel = Linear { isa, targets, input, rows, members, next };
                // SAFETY: shapes are checked above; members write disjoint panels.
                unsafe { kernel.run() };
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
        out.rows = x.rows;
        let input = self.input(x, &[gate, up]);
        let (isa, rows, members, out) = (self.isa, x.rows, self.team.threads(), shared(out));
        let next = &AtomicUsize::new(0);
        let (gate, up) = (Outputs::all(gate), Outputs::all(up));
        self.members(members, &|_| {
            let (out, input) = (out.get(), input.get());
            let kernel = Swiglu { isa, gate, up, out, input, rows, members, next };
            // SAFETY: shapes are checked above; members write disjoint panels.
            unsafe { kernel.run() };
        });
        Ok(())
    }

    fn rope(&mut self, rope: &Rope, x: &mut Activations) -> Result<(), OpError> {
        self.full_step("rope", x)?;
        let RopeSpec { style, head_dim, ref inverse_frequencies } = rope.spec;
        ensure("rope", x.width.is_multiple_of(head_dim), || {
            format!("heads of {head_dim} in rows of {}", x.width)
        })?;
        self.angles(rope);
        let table = std::mem::take(&mut self.angles.table);
        let (rows, width, pairs) = (x.rows, x.width, inverse_frequencies.len());
        let target = shared(x);
        self.over_rows(rows, width, |rows| Rotate {
            x: target.get(),
            width,
            rows,
            style,
            head_dim,
            table: &table,
            pairs,
        });
        self.angles.table = table;
        Ok(())
    }

    fn kv_append(
        &mut self,
        pool: &mut KvPool,
        layer: usize,
        k: &Activations,
        v: &Activations,
    ) -> Result<(), OpError> {
        for x in [k, v] {
            same_width("kv_append", x.width, pool.spec.kv_heads * pool.spec.head_dim)?;
            self.full_step("kv_append", x)?;
        }
        self.check_pool("kv_append", pool, layer)?;
        let spec = pool.spec;
        match &mut pool.store {
            Store::F32(pages) => self.append(spec, layer, pages, k, v),
            Store::F16(pages) => self.append(spec, layer, pages, k, v),
            Store::Bf16(pages) => self.append(spec, layer, pages, k, v),
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
        const OP: &str = "attention";
        let spec = pool.spec;
        same_width(OP, out.width, q.width)?;
        self.full_step(OP, q)?;
        self.check_pool(OP, pool, layer)?;
        let heads = q.width / spec.head_dim;
        let fits = q.width.is_multiple_of(spec.head_dim) && heads.is_multiple_of(spec.kv_heads);
        let group = heads / spec.kv_heads;
        ensure(OP, fits && group > 0 && group <= BLOCK_QUERIES, || {
            format!(
                "rows of {} for {} key/value heads of {}, at most {BLOCK_QUERIES} query heads each",
                q.width, spec.kv_heads, spec.head_dim
            )
        })?;
        out.rows = q.rows;
        match &pool.store {
            Store::F32(pages) => self.attend(spec, layer, pages, group, q, scale, out),
            Store::F16(pages) => self.attend(spec, layer, pages, group, q, scale, out),
            Store::Bf16(pages) => self.attend(spec, layer, pages, group, q, scale, out),
        }
    }

    fn gather_rows(
        &mut self,
        x: &Activations,
        rows: &[usize],
        out: &mut Activations,
    ) -> Result<(), OpError> {
        const OP: &str = "gather_rows";
        same_width(OP, out.width, x.width)?;
        let (width, held) = (x.width, x.rows);
        let room = out.data.len() / width;
        ensure(OP, rows.len() <= room, || format!("{} rows of {room}", rows.len()))?;
        for (&row, out) in rows.iter().zip(out.data.chunks_exact_mut(width)) {
            ensure(OP, row < held, || format!("row {row} of {held}"))?;
            out.copy_from_slice(&x.data[row * width..(row + 1) * width]);
        }
        out.rows = rows.len();
        Ok(())
    }

    fn logits_sample(
        &mut self,
        x: &Activations,
        head: &Matrix,
        output: &mut StepOutput,
    ) -> Result<(), OpError> {
        const OP: &str = "logits_sample";
        same_width(OP, x.width, head.cols)?;
        let samples = self.batch.samples.len();
        ensure(OP, x.rows == samples, || format!("{} rows for {samples} samples", x.rows))?;
        if samples == 0 {
            return Ok(());
        }
        let vocabulary = head.rows;
        if self.logits.len() < LOGIT_ROWS * vocabulary {
            self.logits = Buffer::zeroed(OP, LOGIT_ROWS * vocabulary)?;
        }
        while self.samplers.len() < LOGIT_ROWS.min(samples) {
            self.samplers.push((Sampler::new(vocabulary), StepOutput::default()));
        }
        let input = self.input(x, &[head]);
        for first in (0..samples).step_by(LOGIT_ROWS) {
            let count = (samples - first).min(LOGIT_ROWS);
            let input = input.after_rows(first);
            let target = Target {
                outputs: Outputs::all(head),
                bias: None,
                out: self.logits.as_mut_ptr(),
                accumulate: false,
            };
            let targets = Targets(std::slice::from_ref(&target));
            let (isa, members) = (self.isa, self.team.threads());
            let next = &AtomicUsize::new(0);
            self.members(members, &|_| {
                let (targets, input) = (targets.get(), input.get());
                let kernel = Linear { isa, targets, input, rows: count, members, next };
                // SAFETY: the logits have room for the rows; members write disjoint panels.
                unsafe { kernel.run() };
            });
            self.sample(first, count, vocabulary, output)?;
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
        let pages = pool.spec.pages;
        let fits = (from.0 as usize) < pages && (to.0 as usize) < pages && tokens <= PAGE_TOKENS;
        ensure("copy_page", fits, || {
            format!("{tokens} tokens of {from:?} to {to:?}, of {pages} pages of {PAGE_TOKENS}")
        })?;
        pool.copy(from, to, tokens);
        Ok(())
    }
}

/// Targets as members of a region see them.
#[derive(Clone, Copy)]
struct Targets<'a>(&'a [Target<'a>]);

// SAFETY: members write disjoint panels of the targets' outputs and only read the rest.
unsafe impl Sync for Targets<'_> {}

impl<'a> Targets<'a> {
    fn get(self) -> &'a [Target<'a>] {
        self.0
    }
}

impl CpuOps {
    fn norm(
        &mut self,
        op: &'static str,
        x: &Activations,
        weight: &[f32],
        epsilon: f32,
        gate: Option<&Activations>,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        same_width(op, out.width, x.width)?;
        let group = weight.len();
        ensure(op, group > 0 && x.width.is_multiple_of(group), || {
            format!("groups of {group} in rows of {}", x.width)
        })?;
        out.rows = x.rows;
        let (from, to) = (Shared(x.data.as_ptr().cast_mut()), shared(out));
        let gate = gate.map(|gate| Shared(gate.data.as_ptr().cast_mut()));
        let per_row = x.width / group;
        self.over_rows(x.rows, x.width, |rows| Norm {
            x: from.get(),
            out: to.get(),
            weight: weight.as_ptr(),
            gate: gate.map(|gate| gate.get().cast_const()),
            group,
            epsilon,
            groups: rows.start * per_row..rows.end * per_row,
        });
        Ok(())
    }

    fn append<E: Element>(
        &mut self,
        spec: KvSpec,
        layer: usize,
        pages: &mut Pages<E>,
        k: &Activations,
        v: &Activations,
    ) {
        let places = std::mem::take(&mut self.places);
        let width = k.width;
        let (keys, values) = (Shared(pages.keys.as_mut_ptr()), Shared(pages.values.as_mut_ptr()));
        let (k, v) = (Shared(k.data.as_ptr().cast_mut()), Shared(v.data.as_ptr().cast_mut()));
        self.over_rows(places.len(), width, |rows| Append {
            spec,
            layer,
            keys: keys.get(),
            values: values.get(),
            k: k.get(),
            v: v.get(),
            rows,
            places: &places,
        });
        self.places = places;
    }

    fn attend<E: Element>(
        &mut self,
        spec: KvSpec,
        layer: usize,
        pages: &Pages<E>,
        group: usize,
        q: &Activations,
        scale: f32,
        out: &mut Activations,
    ) -> Result<(), OpError> {
        let threads = self.team.threads();
        let rows_per_block = (BLOCK_QUERIES / group).max(1);
        let mut blocks = std::mem::take(&mut self.blocks);
        blocks.clear();
        for segment in &self.batch.segments {
            for first in (0..segment.rows.len()).step_by(rows_per_block) {
                blocks.push(Block {
                    row: segment.rows.start + first,
                    rows: (segment.rows.len() - first).min(rows_per_block),
                    position: segment.start + first,
                    pages: segment.blocks.clone(),
                });
            }
        }
        let chunks = blocks.iter().map(Block::chunks).max().unwrap_or(0);
        // Few rows with a long context are spread by chunks. Which way is taken changes nothing
        // but the time.
        let single = blocks.iter().all(|block| block.rows == 1);
        let by_chunks =
            single && threads > 1 && chunks > 1 && blocks.len() * spec.kv_heads < 4 * threads;
        if by_chunks {
            let needed = blocks.len() * spec.kv_heads * chunks * partial_len(group, spec.head_dim);
            if self.partials.len() < needed {
                self.partials = Buffer::zeroed("attention", needed.next_power_of_two())?;
            }
        }
        // Later blocks see more: taking them first evens out the threads.
        blocks.reverse();
        let phases: &[Phase] =
            if by_chunks { &[Phase::Chunks, Phase::Merge] } else { &[Phase::Blocks] };
        let (isa, width) = (self.isa, q.width);
        let scratch = Shared(self.attention_scratch.as_mut_ptr());
        let scratch_len = scratch_len(spec.head_dim);
        let partials = Shared(self.partials.as_mut_ptr());
        let (keys, values) =
            (Shared(pages.keys.as_ptr().cast_mut()), Shared(pages.values.as_ptr().cast_mut()));
        let (queries, out) = (Shared(q.data.as_ptr().cast_mut()), shared(out));
        let block_tables = std::mem::take(&mut self.batch.block_tables);
        for &phase in phases {
            let next = AtomicUsize::new(0);
            let items = blocks.len() * spec.kv_heads;
            let members = if items * chunks < 2 { 1 } else { threads };
            self.members(members, &|member| {
                let kernel = Attention {
                    phase,
                    spec,
                    layer,
                    keys: keys.get().cast_const(),
                    values: values.get().cast_const(),
                    blocks: &blocks,
                    block_tables: &block_tables,
                    group,
                    scale,
                    queries: queries.get(),
                    out: out.get(),
                    width,
                    next: &next,
                    // SAFETY: every member has a scratch of its own.
                    scratch: unsafe { scratch.get().add(member * scratch_len) },
                    partials: partials.get(),
                    chunks,
                };
                // SAFETY: pages are checked against the pool, rows against the step; an item is
                // taken by one member, and items write disjoint outputs and partial results.
                unsafe { dispatch(isa, kernel) };
            });
        }
        self.batch.block_tables = block_tables;
        self.blocks = blocks;
        Ok(())
    }

    /// Samples `count` rows of logits, from sample `first`, each on one member.
    fn sample(
        &mut self,
        first: usize,
        count: usize,
        vocabulary: usize,
        output: &mut StepOutput,
    ) -> Result<(), OpError> {
        let batch = std::mem::take(&mut self.batch);
        let mut samplers = std::mem::take(&mut self.samplers);
        let mut outcomes: [Result<(), OpError>; LOGIT_ROWS] = std::array::from_fn(|_| Ok(()));
        {
            let logits = &self.logits[..];
            let samplers = Shared(samplers.as_mut_ptr());
            let outcomes = Shared(outcomes.as_mut_ptr());
            let threads = self.team.threads();
            let members = if count == 1 { 1 } else { threads };
            let region = |member: usize| {
                for i in share(count, member, members) {
                    // SAFETY: there is a sampler and an outcome for every row at hand, and each
                    // row is one member's alone.
                    let ((sampler, output), outcome) =
                        unsafe { (&mut *samplers.get().add(i), &mut *outcomes.get().add(i)) };
                    output.clear();
                    let row = &batch.samples[first + i];
                    let logits = &logits[i * vocabulary..(i + 1) * vocabulary];
                    *outcome = sampler
                        .sample(logits, &SampleInput::of(&batch, row), output)
                        .map_err(OpError::from);
                }
            };
            if members == 1 {
                region(0);
            } else {
                self.team.run(&region);
            }
        }
        let mut result = Ok(());
        for ((_, part), outcome) in samplers.iter().zip(outcomes).take(count) {
            result = result.and(outcome);
            for sampled in &part.samples {
                let start = output.top.len();
                output.top.extend_from_slice(&part.top[sampled.top.clone()]);
                let mut sampled = sampled.clone();
                sampled.top = start..output.top.len();
                output.samples.push(sampled);
            }
        }
        self.samplers = samplers;
        self.batch = batch;
        result
    }
}
