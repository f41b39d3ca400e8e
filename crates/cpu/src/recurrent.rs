//! Kernels of recurrent layers: convolution over a sequence, and the gated delta rule.

use crate::isa::Kernel;
use crate::simd::{LANES, Simd};
use crate::state::{Lengths, TAPS_MAX};
use laneway_execution::Segment;
use laneway_ops::DeltaSpec;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `v · sigmoid(v)`.
///
/// # Safety
/// `S` is available.
#[inline(always)]
pub(crate) unsafe fn silu<S: Simd>(v: S::F) -> S::F {
    // SAFETY: the caller's promise.
    unsafe { S::div(v, one_plus_exp_minus::<S>(v)) }
}

/// `1 + e^-v`.
///
/// # Safety
/// `S` is available.
#[inline(always)]
unsafe fn one_plus_exp_minus<S: Simd>(v: S::F) -> S::F {
    // SAFETY: the caller's promise. Below -87 the exponential would overflow, and the sigmoid is 0
    // in any sum.
    unsafe {
        let minus = S::sub(S::splat(0.0), S::max(v, S::splat(-87.0)));
        S::add(S::splat(1.0), S::exp(minus))
    }
}

/// `x · sigmoid(gate)` in place.
pub(crate) struct SigmoidGate {
    pub gate: *const f32,
    /// Gates of a row: as many as elements, or one.
    pub gates: usize,
    pub x: *mut f32,
    pub width: usize,
    pub rows: Range<usize>,
}

impl Kernel for SigmoidGate {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (one, whole) = (self.gates == 1, self.width / LANES * LANES);
        for row in self.rows {
            // SAFETY: both arrays have the row, which is this thread's alone.
            unsafe {
                let (gate, x) = (self.gate.add(row * self.gates), self.x.add(row * self.width));
                for i in (0..whole).step_by(LANES) {
                    let gate = if one { S::splat(*gate) } else { S::load(gate.add(i)) };
                    let divisor = one_plus_exp_minus::<S>(gate);
                    S::store(x.add(i), S::div(S::load(x.add(i)), divisor));
                }
                if whole < self.width {
                    let mut divisors = [0.0; LANES];
                    for i in whole..self.width {
                        divisors[i - whole] = *gate.add(if one { 0 } else { i });
                    }
                    let divisor = one_plus_exp_minus::<S>(S::load(divisors.as_ptr()));
                    S::store(divisors.as_mut_ptr(), divisor);
                    for i in whole..self.width {
                        *x.add(i) /= divisors[i - whole];
                    }
                }
            }
        }
    }
}

/// Convolution of some rows of a step, then SiLU.
pub(crate) struct Conv<'a> {
    pub spec: &'a DeltaSpec,
    /// `kernel` taps of all channels.
    pub weight: *const f32,
    pub x: *const f32,
    pub out: *mut f32,
    /// The layer's ring of every segment.
    pub rings: &'a [*const f32],
    pub segments: &'a [Segment],
    pub rows: Range<usize>,
}

impl Kernel for Conv<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (channels, window) = (self.spec.channels(), self.spec.window());
        let ring_rows = Lengths::of(self.spec).ring;
        for (segment, &ring) in self.segments.iter().zip(self.rings) {
            let first = segment.rows.start.max(self.rows.start);
            for row in first..segment.rows.end.min(self.rows.end) {
                let position = segment.start + (row - segment.rows.start);
                // The rows that the taps see, oldest first; none before the sequence.
                let mut seen = [std::ptr::null(); TAPS_MAX];
                let skipped = window.saturating_sub(position);
                for tap in skipped..=window {
                    let back = window - tap;
                    // SAFETY: the row is in the segment, or in the ring, which holds the rows
                    // before it.
                    seen[tap] = unsafe {
                        if row - segment.rows.start >= back {
                            self.x.add((row - back) * channels)
                        } else {
                            ring.add((position - back) % ring_rows * channels)
                        }
                    };
                }
                for channel in (0..channels).step_by(LANES) {
                    // SAFETY: weights and rows have the channels; the output row is this
                    // thread's alone.
                    unsafe {
                        let mut sum = S::splat(0.0);
                        for tap in skipped..=window {
                            let weight = S::load(self.weight.add(tap * channels + channel));
                            sum = S::fma(weight, S::load(seen[tap].add(channel)), sum);
                        }
                        S::store(self.out.add(row * channels + channel), silu::<S>(sum));
                    }
                }
            }
        }
    }
}

/// What the delta rule needs of a row beside its values, in this order: normed and scaled queries,
/// normed keys, decay and beta of each value head.
pub(crate) const fn prepared_len(spec: &DeltaSpec) -> usize {
    2 * spec.key_width() + 2 * spec.value_heads
}

/// Norms queries and keys of some rows and works out their gates.
pub(crate) struct Prepare<'a> {
    pub spec: &'a DeltaSpec,
    pub qkv: *const f32,
    pub alpha: *const f32,
    pub beta: *const f32,
    pub rate: &'a [f32],
    pub bias: &'a [f32],
    pub out: *mut f32,
    pub rows: Range<usize>,
}

impl Kernel for Prepare<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let spec = self.spec;
        let (dim, heads) = (spec.key_dim, spec.value_heads);
        let query_scale = (dim as f32).sqrt().recip();
        for row in self.rows {
            // SAFETY: all arrays have the row; the output row is this thread's alone.
            unsafe {
                let x = self.qkv.add(row * spec.channels());
                let out = self.out.add(row * prepared_len(spec));
                for head in 0..2 * spec.key_heads {
                    let factor = if head < spec.key_heads { query_scale } else { 1.0 };
                    l2_norm::<S>(x.add(head * dim), dim, factor, out.add(head * dim));
                }
                let gates = out.add(2 * spec.key_width());
                for head in 0..heads {
                    let x = f64::from(*self.alpha.add(row * heads + head) + self.bias[head]);
                    let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
                    *gates.add(head) = (f64::from(self.rate[head]) * softplus).exp() as f32;
                    let beta = f64::from(*self.beta.add(row * heads + head));
                    *gates.add(heads + head) = (1.0 / (1.0 + (-beta).exp())) as f32;
                }
            }
        }
    }
}

/// `out = x / sqrt(Σ x² + 1e-6) · factor`.
///
/// # Safety
/// `S` is available, both arrays have `n` elements.
#[inline(always)]
unsafe fn l2_norm<S: Simd>(x: *const f32, n: usize, factor: f32, out: *mut f32) {
    let whole = n / LANES * LANES;
    // SAFETY: the caller's promise.
    unsafe {
        let mut squares = S::splat(0.0);
        for i in (0..whole).step_by(LANES) {
            let v = S::load(x.add(i));
            squares = S::fma(v, v, squares);
        }
        let mut sum = S::sum(squares);
        for i in whole..n {
            sum = (*x.add(i)).mul_add(*x.add(i), sum);
        }
        let scale = (sum + 1e-6).sqrt().recip() * factor;
        for i in (0..whole).step_by(LANES) {
            S::store(out.add(i), S::mul(S::load(x.add(i)), S::splat(scale)));
        }
        for i in whole..n {
            *out.add(i) = *x.add(i) * scale;
        }
    }
}

/// Columns of a delta matrix that a thread takes at a time, in vectors.
pub(crate) const BLOCK_VECTORS: usize = 2;

/// One segment of a [`Delta`].
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// First row, certain rows, drafts.
    pub row: usize,
    pub certain: usize,
    pub drafts: usize,
    /// The sequence starts here.
    pub fresh: bool,
    /// Logged drafts that come before the rows.
    pub accepted: usize,
    /// The layer's matrices in the segment's slot.
    pub matrices: *mut f32,
    /// The layer's log in the segment's slot.
    pub log: *const f32,
}

/// The gated delta rule over a step; threads take turns at segments, heads and column blocks.
pub(crate) struct Delta<'a> {
    pub spec: &'a DeltaSpec,
    pub runs: &'a [Run],
    /// Rows with values at their end ([`DeltaSpec::channels`]).
    pub qkv: *const f32,
    /// See [`prepared_len`].
    pub prepared: *const f32,
    pub out: *mut f32,
    /// This thread's copy of a column block, for drafts.
    pub ahead: *mut f32,
    /// The next item that nobody has taken.
    pub next: &'a AtomicUsize,
}

impl Delta<'_> {
    /// Column blocks of a head.
    pub fn blocks(spec: &DeltaSpec) -> usize {
        spec.value_dim.div_ceil(BLOCK_VECTORS * LANES)
    }
}

impl Kernel for Delta<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let blocks = Self::blocks(self.spec);
        let items_of_run = self.spec.value_heads * blocks;
        loop {
            let item = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(run) = self.runs.get(item / items_of_run) else { return };
            let (head, block) = (item % items_of_run / blocks, item % blocks);
            let column = block * BLOCK_VECTORS * LANES;
            // SAFETY: the run's state and rows exist; the block's columns are this thread's.
            unsafe {
                if self.spec.value_dim - column >= BLOCK_VECTORS * LANES {
                    self.block::<S, BLOCK_VECTORS>(run, head, column);
                } else {
                    self.block::<S, 1>(run, head, column);
                }
            }
        }
    }
}

impl Delta<'_> {
    /// Takes `V` vectors of a head's columns over all rows of a run.
    ///
    /// # Safety
    /// `S` is available; state and rows exist, and nobody else uses the columns.
    #[inline(always)]
    unsafe fn block<S: Simd, const V: usize>(&self, run: &Run, head: usize, column: usize) {
        let spec = self.spec;
        let (keys, stride) = (spec.key_dim, spec.value_dim);
        let width = V * LANES;
        // SAFETY: offsets follow from the layouts of pool, log, rows and scratch.
        unsafe {
            let mut block =
                Block { at: run.matrices.add(head * keys * stride + column), stride, keys };
            if run.fresh {
                block.clear::<S, V>();
            }
            for draft in 0..run.accepted {
                let update = Logged::at(spec, run.log, draft, head, column);
                block.update::<S, V, false>(update, std::ptr::null(), std::ptr::null_mut());
            }
            for row in run.row..run.row + run.certain + run.drafts {
                if row == run.row + run.certain {
                    // Drafts do not change the state, only what they read.
                    block = block.copied::<S, V>(self.ahead, width);
                }
                let prepared = self.prepared.add(row * prepared_len(spec));
                let qkv = self.qkv.add(row * spec.channels());
                let gates = prepared.add(2 * spec.key_width());
                let key = spec.key_head(head) * keys;
                let update = Logged {
                    k: prepared.add(spec.key_width() + key),
                    v: qkv.add(2 * spec.key_width() + head * stride + column),
                    decay: *gates.add(head),
                    beta: *gates.add(spec.value_heads + head),
                };
                let out = self.out.add(row * spec.value_width() + head * stride + column);
                block.update::<S, V, true>(update, prepared.add(key), out);
            }
        }
    }
}

/// What a row does to a column block.
#[derive(Clone, Copy)]
pub(crate) struct Logged {
    k: *const f32,
    v: *const f32,
    decay: f32,
    beta: f32,
}

impl Logged {
    /// A row of a log ([`Lengths::update`]).
    ///
    /// # Safety
    /// The log has the row.
    #[inline(always)]
    unsafe fn at(
        spec: &DeltaSpec,
        log: *const f32,
        draft: usize,
        head: usize,
        column: usize,
    ) -> Self {
        // SAFETY: offsets follow from the layout of a log.
        unsafe {
            let row = log.add(draft * Lengths::of(spec).update);
            let values = row.add(spec.key_width());
            let gates = values.add(spec.value_width());
            Logged {
                k: row.add(spec.key_head(head) * spec.key_dim),
                v: values.add(head * spec.value_dim + column),
                decay: *gates.add(head),
                beta: *gates.add(spec.value_heads + head),
            }
        }
    }
}

/// Some columns of a delta matrix.
#[derive(Clone, Copy)]
struct Block {
    at: *mut f32,
    stride: usize,
    keys: usize,
}

/// Running sums of a reduction over keys: enough to keep the multipliers busy.
const SUMS: usize = 4;

impl Block {
    /// # Safety
    /// `S` is available; the block is `V` vectors wide.
    #[inline(always)]
    unsafe fn clear<S: Simd, const V: usize>(self) {
        for key in 0..self.keys {
            for v in 0..V {
                // SAFETY: the block has the element.
                unsafe { S::store(self.at.add(key * self.stride + v * LANES), S::splat(0.0)) };
            }
        }
    }

    /// The same columns at `to`.
    ///
    /// # Safety
    /// `S` is available; both blocks are `V` vectors wide.
    #[inline(always)]
    unsafe fn copied<S: Simd, const V: usize>(self, to: *mut f32, stride: usize) -> Self {
        for key in 0..self.keys {
            for v in 0..V {
                // SAFETY: both blocks have the element.
                unsafe {
                    let value = S::load(self.at.add(key * self.stride + v * LANES));
                    S::store(to.add(key * stride + v * LANES), value);
                }
            }
        }
        Block { at: to, stride, keys: self.keys }
    }

    /// `S = g S; S += k (b (v - Sᵀ k))ᵀ`, and if `READ`, `out = Sᵀ q`.
    ///
    /// # Safety
    /// `S` is available; the block and the values are `V` vectors wide, keys and queries as long
    /// as the block.
    #[inline(always)]
    unsafe fn update<S: Simd, const V: usize, const READ: bool>(
        self,
        Logged { k, v, decay, beta }: Logged,
        q: *const f32,
        out: *mut f32,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[S::splat(0.0); V]; SUMS];
            for key in 0..self.keys {
                let factor = S::splat(*k.add(key));
                for i in 0..V {
                    let state = S::load(self.at.add(key * self.stride + i * LANES));
                    sums[key % SUMS][i] = S::fma(factor, state, sums[key % SUMS][i]);
                }
            }
            let decay = S::splat(decay);
            let mut written = [S::splat(0.0); V];
            for i in 0..V {
                let read = S::add(S::add(sums[0][i], sums[1][i]), S::add(sums[2][i], sums[3][i]));
                let missing = S::sub(S::load(v.add(i * LANES)), S::mul(decay, read));
                written[i] = S::mul(S::splat(beta), missing);
            }
            let mut sums = [[S::splat(0.0); V]; SUMS];
            for key in 0..self.keys {
                let factor = S::splat(*k.add(key));
                for i in 0..V {
                    let at = self.at.add(key * self.stride + i * LANES);
                    let state = S::fma(factor, written[i], S::mul(decay, S::load(at)));
                    S::store(at, state);
                    if READ {
                        let query = S::splat(*q.add(key));
                        sums[key % SUMS][i] = S::fma(query, state, sums[key % SUMS][i]);
                    }
                }
            }
            if READ {
                for i in 0..V {
                    let read =
                        S::add(S::add(sums[0][i], sums[1][i]), S::add(sums[2][i], sums[3][i]));
                    S::store(out.add(i * LANES), read);
                }
            }
        }
    }
}

/// Takes logged drafts into the matrices of a slot's layer.
pub(crate) struct Replay<'a> {
    pub spec: &'a DeltaSpec,
    pub matrices: *mut f32,
    pub log: *const f32,
    pub accepted: usize,
}

impl Kernel for Replay<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let spec = self.spec;
        let (keys, stride) = (spec.key_dim, spec.value_dim);
        for head in 0..spec.value_heads {
            for column in (0..stride).step_by(LANES) {
                // SAFETY: offsets follow from the layouts of pool and log, which are the
                // caller's alone.
                unsafe {
                    let at = self.matrices.add(head * keys * stride + column);
                    let block = Block { at, stride, keys };
                    for draft in 0..self.accepted {
                        let update = Logged::at(spec, self.log, draft, head, column);
                        let (q, out) = (std::ptr::null(), std::ptr::null_mut());
                        block.update::<S, 1, false>(update, q, out);
                    }
                }
            }
        }
    }
}
