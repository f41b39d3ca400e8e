//! The smaller kernels: norms, rotation, appending, products of several matrices.

use crate::isa::{Isa, Kernel, dispatch};
use crate::kv::{Element, base};
use crate::matmul::{Input, Panel, ROW_TILE, Sums};
use crate::packed::Matrix;
use crate::quantize::{View, quantize_row};
use crate::recurrent::silu;
use crate::simd::{LANES, Simd};
use crate::tiles::Configuration;
use laneway_execution::{PAGE_TOKENS, PageId};
use laneway_ops::{KvSpec, RopeStyle};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rounds rows to integers.
pub(crate) struct Quantize {
    pub x: *const f32,
    pub width: usize,
    pub rows: Range<usize>,
    pub out: View,
}

impl Kernel for Quantize {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in self.rows {
            // SAFETY: the rows exist and the view has room for them.
            unsafe { quantize_row::<S>(self.x.add(row * self.width), self.width, row, self.out) };
        }
    }
}

/// Root-mean-square norm of groups, times `silu(gate)` if there is a gate.
pub(crate) struct Norm {
    pub x: *const f32,
    pub out: *mut f32,
    pub weight: *const f32,
    pub gate: Option<*const f32>,
    pub group: usize,
    pub epsilon: f32,
    pub groups: Range<usize>,
}

impl Kernel for Norm {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let group = self.group;
        let whole = group / LANES * LANES;
        // SAFETY: groups lie in `x` and `out`, the weight has a group of elements.
        unsafe {
            for index in self.groups {
                let (x, out) = (self.x.add(index * group), self.out.add(index * group));
                let mut squares = S::splat(0.0);
                for i in (0..whole).step_by(LANES) {
                    let v = S::load(x.add(i));
                    squares = S::fma(v, v, squares);
                }
                let mut sum = S::sum(squares);
                for i in whole..group {
                    sum = (*x.add(i)).mul_add(*x.add(i), sum);
                }
                let scale = (sum / group as f32 + self.epsilon).sqrt().recip();
                for i in (0..whole).step_by(LANES) {
                    let v = S::mul(S::load(x.add(i)), S::splat(scale));
                    S::store(out.add(i), S::mul(v, S::load(self.weight.add(i))));
                }
                for i in whole..group {
                    *out.add(i) = *x.add(i) * scale * *self.weight.add(i);
                }
                if let Some(gate) = self.gate {
                    times_silu::<S>(gate.add(index * group), out, group);
                }
            }
        }
    }
}

/// `out = out · silu(gate)`.
///
/// # Safety
/// `S` is available, both arrays have `n` elements.
#[inline(always)]
unsafe fn times_silu<S: Simd>(gate: *const f32, out: *mut f32, n: usize) {
    let whole = n / LANES * LANES;
    // SAFETY: the caller's promise.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            let silu = silu::<S>(S::load(gate.add(i)));
            S::store(out.add(i), S::mul(S::load(out.add(i)), silu));
        }
        let mut rest = [0.0; LANES];
        for i in whole..n {
            rest[i - whole] = *gate.add(i);
        }
        S::store(rest.as_mut_ptr(), silu::<S>(S::load(rest.as_ptr())));
        for i in whole..n {
            *out.add(i) *= rest[i - whole];
        }
    }
}

/// Some outputs of a matrix: all of them, or those of one expert.
#[derive(Clone, Copy)]
pub(crate) struct Outputs<'a> {
    pub matrix: &'a Matrix,
    /// Panel of the first output.
    pub panel: usize,
    /// Outputs; as wide are the rows they are written to.
    pub count: usize,
}

impl<'a> Outputs<'a> {
    pub fn all(matrix: &'a Matrix) -> Self {
        Outputs { matrix, panel: 0, count: matrix.rows }
    }

    /// Those of one of several equal parts, which are whole panels.
    pub fn part(matrix: &'a Matrix, index: usize, parts: usize) -> Self {
        let count = matrix.rows / parts;
        Outputs { matrix, panel: index * count / LANES, count }
    }
}

/// One matrix of a [`Linear`].
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub outputs: Outputs<'a>,
    pub bias: Option<&'a [f32]>,
    pub out: *mut f32,
    pub accumulate: bool,
}

/// Rows up to which no room is made for a whole tile of them: clearing it would take as long as a
/// small product.
const FEW_ROWS: usize = 16;

/// Pairs of panels that a thread takes at a time: an eighth of its even share. Threads are not
/// equally fast on a machine that does other things, too.
fn pairs_of_a_turn(pairs: usize, members: usize) -> usize {
    pairs.div_ceil(8 * members).max(1)
}

/// Several products of one input; threads take turns at their panels.
pub(crate) struct Linear<'a> {
    pub isa: Isa,
    pub targets: &'a [Target<'a>],
    pub input: Input,
    pub rows: usize,
    pub members: usize,
    /// The next turn that nobody has taken.
    pub next: &'a AtomicUsize,
}

impl Linear<'_> {
    /// Computes what no other thread has taken.
    ///
    /// # Safety
    /// The instruction set is available; the input and every output have the rows.
    pub unsafe fn run(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.rows {
                ..=FEW_ROWS => self.turns::<FEW_ROWS>(),
                _ => self.turns::<ROW_TILE>(),
            }
        }
    }

    /// Takes turns, `T` rows at a time.
    ///
    /// # Safety
    /// As [`Linear::run`].
    unsafe fn turns<const T: usize>(&self) {
        let mut sums = [[[0.0; LANES]; T]; 2];
        let mut tiles = Configuration::default();
        loop {
            let mut turn = self.next.fetch_add(1, Ordering::Relaxed);
            let found = self.targets.iter().find_map(|target| {
                let pairs = target.outputs.count.div_ceil(2 * LANES);
                let length = pairs_of_a_turn(pairs, self.members);
                let first = turn * length;
                if first < pairs {
                    return Some((target, first..pairs.min(first + length)));
                }
                turn -= pairs.div_ceil(length);
                None
            });
            let Some((target, pairs)) = found else { return };
            for first in (0..self.rows).step_by(T) {
                let count = (self.rows - first).min(T);
                let [a, b] = sums.each_mut();
                for pair in pairs.clone() {
                    // SAFETY: panels and rows exist; the turn's columns are this thread's alone.
                    unsafe { self.pair(target, pair, first, count, [a, b], &mut tiles) };
                }
            }
        }
    }

    /// Computes a pair of panels, or the last one, for some rows.
    ///
    /// # Safety
    /// As [`Linear::run`]; pair and rows exist, and nobody else writes their outputs.
    unsafe fn pair(
        &self,
        target: &Target<'_>,
        pair: usize,
        first: usize,
        count: usize,
        [low, high]: [&mut Sums; 2],
        tiles: &mut Configuration,
    ) {
        let Outputs { matrix, panel: start, count: outputs } = target.outputs;
        let (input, panel) = (self.input, 2 * pair);
        let both = (panel + 1) * LANES < outputs;
        let a = Panel { matrix, panel: start + panel, input, first, count, sums: low };
        let b = Panel { matrix, panel: start + panel + 1, input, first, count, sums: high };
        // SAFETY: the caller's promise.
        unsafe {
            if both {
                a.compute_both(b, self.isa, tiles);
            } else {
                a.compute(self.isa, tiles);
            }
            target.put(panel, first, &low[..count]);
            if both {
                target.put(panel + 1, first, &high[..count]);
            }
        }
    }
}

impl Target<'_> {
    /// Stores the sums of a panel for the rows from `first`.
    ///
    /// # Safety
    /// The output has the rows, whose columns of the panel nobody else uses.
    unsafe fn put(&self, panel: usize, first: usize, sums: &[[f32; LANES]]) {
        let lane = panel * LANES;
        let width = self.outputs.count;
        let valid = (width - lane).min(LANES);
        let bias = self.bias.map(|bias| &bias[lane..lane + valid]);
        for (row, sums) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            let out = unsafe {
                let out = self.out.add((first + row) * width + lane);
                std::slice::from_raw_parts_mut(out, valid)
            };
            put(out, sums, bias, self.accumulate);
        }
    }
}

/// Stores sums, plus bias, plus what was there.
#[inline(always)]
fn put(out: &mut [f32], sums: &[f32; LANES], bias: Option<&[f32]>, accumulate: bool) {
    for (i, (out, sum)) in out.iter_mut().zip(sums).enumerate() {
        let value = sum + bias.map_or(0.0, |bias| bias[i]);
        *out = if accumulate { *out + value } else { value };
    }
}

/// `silu(gate) · up`; threads take turns at its panels.
pub(crate) struct Swiglu<'a> {
    pub isa: Isa,
    pub gate: Outputs<'a>,
    pub up: Outputs<'a>,
    pub out: *mut f32,
    pub input: Input,
    pub rows: usize,
    pub members: usize,
    /// The next turn that nobody has taken.
    pub next: &'a AtomicUsize,
}

impl<'a> Swiglu<'a> {
    /// Computes what no other thread has taken.
    ///
    /// # Safety
    /// As [`Linear::run`].
    pub unsafe fn run(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.rows {
                ..=FEW_ROWS => self.turns::<FEW_ROWS>(),
                _ => self.turns::<ROW_TILE>(),
            }
        }
    }

    /// Takes turns, `T` rows at a time.
    ///
    /// # Safety
    /// As [`Linear::run`].
    unsafe fn turns<const T: usize>(&self) {
        let panels = self.gate.count.div_ceil(LANES);
        let length = pairs_of_a_turn(panels, self.members);
        let (mut gates, mut ups) = ([[0.0; LANES]; T], [[0.0; LANES]; T]);
        let mut tiles = Configuration::default();
        loop {
            let start = self.next.fetch_add(1, Ordering::Relaxed) * length;
            if start >= panels {
                return;
            }
            for first in (0..self.rows).step_by(T) {
                let count = (self.rows - first).min(T);
                for panel in start..panels.min(start + length) {
                    let (gates, ups) = (&mut gates, &mut ups);
                    // SAFETY: panel and rows exist; the turn's columns are this thread's alone.
                    unsafe { self.panel(panel, first, count, gates, ups, &mut tiles) };
                }
            }
        }
    }

    /// Computes one panel for some rows.
    ///
    /// # Safety
    /// As [`Linear::run`]; panel and rows exist, and nobody else writes their outputs.
    unsafe fn panel(
        &self,
        panel: usize,
        first: usize,
        count: usize,
        gates: &mut Sums,
        ups: &mut Sums,
        tiles: &mut Configuration,
    ) {
        let (input, width, lane) = (self.input, self.gate.count, panel * LANES);
        let valid = (width - lane).min(LANES);
        let of = |outputs: Outputs<'a>| (outputs.matrix, outputs.panel + panel);
        let ((matrix, panel), (up, up_panel)) = (of(self.gate), of(self.up));
        let gate = Panel { matrix, panel, input, first, count, sums: gates };
        let up = Panel { matrix: up, panel: up_panel, input, first, count, sums: ups };
        // SAFETY: the caller's promise.
        unsafe {
            gate.compute_both(up, self.isa, tiles);
            dispatch(self.isa, SiluProduct { gates: &mut gates[..count], ups });
            for (row, sums) in gates[..count].iter().enumerate() {
                let out = self.out.add((first + row) * width + lane);
                put(std::slice::from_raw_parts_mut(out, valid), sums, None, false);
            }
        }
    }
}

/// `gates = silu(gates) · ups`.
struct SiluProduct<'a> {
    gates: &'a mut [[f32; LANES]],
    ups: &'a Sums,
}

impl Kernel for SiluProduct<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (gates, ups) in self.gates.iter_mut().zip(self.ups) {
            // SAFETY: both arrays have sixteen elements.
            unsafe {
                let silu = silu::<S>(S::load(gates.as_ptr()));
                S::store(gates.as_mut_ptr(), S::mul(silu, S::load(ups.as_ptr())));
            }
        }
    }
}

/// Rotates the heads of rows in place.
pub(crate) struct Rotate<'a> {
    pub x: *mut f32,
    pub width: usize,
    pub rows: Range<usize>,
    pub style: RopeStyle,
    pub head_dim: usize,
    /// Cosines of all pairs, then sines, for each row.
    pub table: &'a [f32],
    pub pairs: usize,
}

impl Kernel for Rotate<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in self.rows {
            let angles = &self.table[row * 2 * self.pairs..(row + 1) * 2 * self.pairs];
            let (cos, sin) = angles.split_at(self.pairs);
            // SAFETY: the row exists and is this thread's alone.
            let x =
                unsafe { std::slice::from_raw_parts_mut(self.x.add(row * self.width), self.width) };
            for head in x.chunks_exact_mut(self.head_dim) {
                match self.style {
                    RopeStyle::Interleaved => {
                        for (pair, (c, s)) in
                            head.as_chunks_mut::<2>().0.iter_mut().zip(cos.iter().zip(sin))
                        {
                            let [a, b] = *pair;
                            *pair = [a * c - b * s, a * s + b * c];
                        }
                    }
                    RopeStyle::Halves => {
                        let (first, second) = head.split_at_mut(self.pairs);
                        let halves = first.iter_mut().zip(second);
                        for ((x, y), (c, s)) in halves.zip(cos.iter().zip(sin)) {
                            let (a, b) = (*x, *y);
                            *x = a * c - b * s;
                            *y = a * s + b * c;
                        }
                    }
                }
            }
        }
    }
}

/// Writes keys and values of rows to their pages.
pub(crate) struct Append<'a, E> {
    pub spec: KvSpec,
    pub layer: usize,
    pub keys: *mut E,
    pub values: *mut E,
    pub k: *const f32,
    pub v: *const f32,
    pub rows: Range<usize>,
    /// Page and slot of every row.
    pub places: &'a [(PageId, usize)],
}

impl<E: Element> Kernel for Append<'_, E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let dim = self.spec.head_dim;
        let width = self.spec.kv_heads * dim;
        for row in self.rows {
            let (page, slot) = self.places[row];
            for head in 0..self.spec.kv_heads {
                let at = base(&self.spec, self.layer, page, head);
                // SAFETY: pages are checked against the pool; no two rows share a slot.
                unsafe {
                    let (k, v) = (
                        self.k.add(row * width + head * dim),
                        self.v.add(row * width + head * dim),
                    );
                    for d in (0..dim).step_by(LANES) {
                        E::store::<S>(self.values.add(at + slot * dim + d), S::load(v.add(d)));
                        let mut column = [E::default(); LANES];
                        E::store::<S>(column.as_mut_ptr(), S::load(k.add(d)));
                        for (i, element) in column.into_iter().enumerate() {
                            *self.keys.add(at + (d + i) * PAGE_TOKENS + slot) = element;
                        }
                    }
                }
            }
        }
    }
}
