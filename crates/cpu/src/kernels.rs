//! The smaller kernels: norms, rotation, appending, products of several matrices.

use crate::isa::{Isa, Kernel, dispatch};
use crate::kv::{Element, base};
use crate::matmul::{Input, Panel, ROW_TILE, Sums};
use crate::packed::Matrix;
use crate::quantize::{View, quantize_row};
use crate::simd::{LANES, Simd};
use crate::team::share;
use crate::tiles::Configuration;
use laneway_execution::{PAGE_TOKENS, PageId};
use laneway_ops::{KvSpec, RopeStyle};
use std::ops::Range;

/// Rounds rows to eight bits.
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

/// Root-mean-square norm of groups.
pub(crate) struct Norm {
    pub x: *const f32,
    pub out: *mut f32,
    pub weight: *const f32,
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
            }
        }
    }
}

/// One matrix of a [`Linear`].
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub matrix: &'a Matrix,
    pub bias: Option<&'a [f32]>,
    pub out: *mut f32,
    pub accumulate: bool,
}

/// A thread's share of the panels of several products of one input.
pub(crate) struct Linear<'a> {
    pub isa: Isa,
    pub targets: &'a [Target<'a>],
    pub input: Input,
    pub rows: usize,
    pub member: usize,
    pub members: usize,
}

impl Linear<'_> {
    /// Computes them.
    ///
    /// # Safety
    /// The instruction set is available; the input and every output have the rows; no other thread
    /// has the same `member`.
    pub unsafe fn run(&self) {
        let mut sums = [[[0.0; LANES]; ROW_TILE]; 2];
        let mut tiles = Configuration::default();
        for first in (0..self.rows).step_by(ROW_TILE) {
            let count = (self.rows - first).min(ROW_TILE);
            for target in self.targets {
                let (matrix, input) = (target.matrix, self.input);
                let panels = share(matrix.rows.div_ceil(LANES), self.member, self.members);
                for pair in panels.clone().step_by(2) {
                    let [a, b] = &mut sums;
                    let a = Panel { matrix, panel: pair, input, first, count, sums: a };
                    let b = Panel { matrix, panel: pair + 1, input, first, count, sums: b };
                    let both = pair + 1 < panels.end;
                    // SAFETY: panels and rows exist; each panel's columns are this thread's alone.
                    unsafe {
                        if both {
                            a.compute_both(b, self.isa, &mut tiles);
                        } else {
                            a.compute(self.isa, &mut tiles);
                        }
                        for (panel, sums) in sums.iter().take(1 + usize::from(both)).enumerate() {
                            target.put(pair + panel, first, &sums[..count]);
                        }
                    }
                }
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
        let valid = (self.matrix.rows - lane).min(LANES);
        let bias = self.bias.map(|bias| &bias[lane..lane + valid]);
        for (row, sums) in sums.iter().enumerate() {
            // SAFETY: the caller's promise.
            let out = unsafe {
                let out = self.out.add((first + row) * self.matrix.rows + lane);
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

/// A thread's share of `silu(gate) · up`.
pub(crate) struct Swiglu<'a> {
    pub isa: Isa,
    pub gate: &'a Matrix,
    pub up: &'a Matrix,
    pub out: *mut f32,
    pub input: Input,
    pub rows: usize,
    pub member: usize,
    pub members: usize,
}

impl Swiglu<'_> {
    /// Computes it.
    ///
    /// # Safety
    /// As [`Linear::run`].
    pub unsafe fn run(&self) {
        let width = self.gate.rows;
        let (mut gates, mut ups) = ([[0.0; LANES]; ROW_TILE], [[0.0; LANES]; ROW_TILE]);
        let mut tiles = Configuration::default();
        for first in (0..self.rows).step_by(ROW_TILE) {
            let count = (self.rows - first).min(ROW_TILE);
            for panel in share(width.div_ceil(LANES), self.member, self.members) {
                let input = self.input;
                let lane = panel * LANES;
                let valid = (width - lane).min(LANES);
                // SAFETY: panel and rows exist; each panel's columns are this thread's alone.
                unsafe {
                    let gate =
                        Panel { matrix: self.gate, panel, input, first, count, sums: &mut gates };
                    let up = Panel { matrix: self.up, panel, input, first, count, sums: &mut ups };
                    gate.compute_both(up, self.isa, &mut tiles);
                    dispatch(self.isa, SiluProduct { gates: &mut gates[..count], ups: &ups });
                    for (row, sums) in gates[..count].iter().enumerate() {
                        let out = self.out.add((first + row) * width + lane);
                        put(std::slice::from_raw_parts_mut(out, valid), sums, None, false);
                    }
                }
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
                let gate = S::load(gates.as_ptr());
                // Below -87 the exponential would overflow, and silu is 0 in any sum.
                let minus = S::sub(S::splat(0.0), S::max(gate, S::splat(-87.0)));
                let silu = S::div(gate, S::add(S::splat(1.0), S::exp(minus)));
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
