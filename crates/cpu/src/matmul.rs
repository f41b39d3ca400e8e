//! Products of activation rows with a panel of sixteen outputs.
//!
//! The sum of one output is formed block by block in the order of the inputs, whatever the number
//! of rows: integer dot products within a block are exact, and each block adds to one f32 by fused
//! operations. So a row's result does not depend on the rows beside it.

use crate::isa::{Isa, Kernel, dispatch};
use crate::packed::{BlockLayout, Matrix, Storage};
use crate::quantize::{BLOCK, PLANE_BITS, View};
use crate::simd::{LANES, Simd};
use crate::tiles::{self, Configuration};

/// The input of a product.
#[derive(Clone, Copy)]
pub(crate) struct Input {
    /// Rows in f32, `width` apart.
    pub rows: *const f32,
    pub width: usize,
    /// The same rows as integers, if the backend works with these.
    pub quantized: Option<View>,
}

// SAFETY: members of a region only read the input.
unsafe impl Sync for Input {}
// SAFETY: as above.
unsafe impl Send for Input {}

/// Most rows of one [`Panel`]: weights are unpacked once for so many, whose integer forms the
/// second-level cache holds.
pub(crate) const ROW_TILE: usize = 128;

/// The sums of one panel, for each row.
pub(crate) type Sums = [[f32; LANES]];

/// Computes the sums of a panel; every user calls this one kernel, so that its many forms are
/// compiled once for each instruction set.
pub(crate) struct Panel<'a> {
    pub matrix: &'a Matrix,
    pub panel: usize,
    pub input: Input,
    /// First row, and how many.
    pub first: usize,
    pub count: usize,
    pub sums: &'a mut Sums,
}

impl Kernel for Panel<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let mut done = 0;
        // SAFETY: the dispatching caller's promise, for the rows of each call.
        unsafe {
            while done < self.count {
                done += match self.count - done {
                    8.. if S::WIDE => self.rows::<S, 8>(done),
                    4..8 if S::WIDE => self.rows::<S, 4>(done),
                    2..4 if S::WIDE => self.rows::<S, 2>(done),
                    _ => self.rows::<S, 1>(done),
                };
            }
        }
    }
}

impl Panel<'_> {
    /// Computes the sums in whichever way is the quickest; the result is the same.
    ///
    /// # Safety
    /// The instruction set is available; the panel lies in the matrix; the input has the rows, as
    /// wide as the matrix has inputs.
    pub unsafe fn compute(mut self, isa: Isa, configuration: &mut Configuration) {
        // SAFETY: the caller's promise.
        unsafe {
            if !tiles::compute([&mut self], isa, configuration) {
                dispatch(isa, self);
            }
        }
    }

    /// Computes two panels of the same rows, together where that is quicker.
    ///
    /// # Safety
    /// As [`Panel::compute`], for both.
    pub unsafe fn compute_both(
        mut self,
        mut other: Self,
        isa: Isa,
        configuration: &mut Configuration,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if !tiles::compute([&mut self, &mut other], isa, configuration) {
                self.compute(isa, configuration);
                other.compute(isa, configuration);
            }
        }
    }

    /// Computes `R` rows after the first `done`; returns `R`.
    ///
    /// # Safety
    /// `S` is available; the panel lies in the matrix; the input has the rows, as wide as the
    /// matrix has inputs.
    #[inline(always)]
    unsafe fn rows<S: Simd, const R: usize>(&mut self, done: usize) -> usize {
        // SAFETY: the caller's promise; each sum has sixteen elements.
        unsafe {
            let sums = rows::<S, R>(self.matrix, self.panel, self.input, self.first + done);
            for (r, v) in sums.into_iter().enumerate() {
                S::store(self.sums[done + r].as_mut_ptr(), v);
            }
        }
        R
    }
}

/// # Safety
/// As [`Panel::rows`].
#[inline(always)]
unsafe fn rows<S: Simd, const R: usize>(
    matrix: &Matrix,
    panel: usize,
    input: Input,
    first: usize,
) -> [S::F; R] {
    let cols = matrix.cols;
    // SAFETY: the panel's codes and factors lie in the buffers (`Matrix::pack`); the rest is the
    // caller's promise.
    unsafe {
        match &matrix.storage {
            Storage::Single(values) => {
                let weights = values.as_ptr().add(panel * cols * LANES);
                floats::<S, R, SINGLE>(cols, weights.cast(), input, first)
            }
            Storage::Half { bf16, values } => {
                let weights = values.as_ptr().add(panel * cols * LANES);
                if *bf16 {
                    floats::<S, R, BRAIN>(cols, weights.cast(), input, first)
                } else {
                    floats::<S, R, HALF>(cols, weights.cast(), input, first)
                }
            }
            Storage::Blocks { layout, .. } => {
                let Some(weights) = Weights::of(matrix, panel) else { unreachable!() };
                match input.quantized {
                    None if layout.wide => exact::<S, R, SINGLE>(weights, input, first),
                    None => exact::<S, R, HALF>(weights, input, first),
                    Some(x) if x.planes == 1 => planes::<S, R, 1>(weights, x, first),
                    Some(x) => planes::<S, R, 2>(weights, x, first),
                }
            }
        }
    }
}

/// How far ahead weights are asked for when they are read once.
const PREFETCH_BYTES: usize = 6144;

/// Encodings of plain weights and of factors.
pub(crate) const SINGLE: u8 = 0;
pub(crate) const HALF: u8 = 1;
const BRAIN: u8 = 2;

/// Element vectors `index..index + 16` of an array in encoding `E`.
///
/// # Safety
/// `S` is available, and the array has these elements.
#[inline(always)]
pub(crate) unsafe fn load<S: Simd, const E: u8>(array: *const u8, index: usize) -> S::F {
    // SAFETY: the caller's promise.
    unsafe {
        match E {
            SINGLE => S::load(array.cast::<f32>().add(index)),
            HALF => S::load_f16(array.cast::<u16>().add(index)),
            _ => S::load_bf16(array.cast::<u16>().add(index)),
        }
    }
}

/// Plain weights: one fused multiply-add an input.
///
/// # Safety
/// As [`Panel::rows`].
#[inline(always)]
unsafe fn floats<S: Simd, const R: usize, const E: u8>(
    cols: usize,
    weights: *const u8,
    input: Input,
    first: usize,
) -> [S::F; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let x = input.rows.add(first * input.width);
        // Two running sums hide the latency of the addition; their order is that of the inputs.
        let mut even = [S::splat(0.0); R];
        let mut odd = [S::splat(0.0); R];
        let mut col = 0;
        while col + 2 <= cols {
            if R <= 2 {
                let ahead = if E == SINGLE { col * 64 } else { col * 32 };
                S::prefetch(weights.wrapping_add(ahead + PREFETCH_BYTES));
                if E == SINGLE {
                    S::prefetch(weights.wrapping_add(ahead + PREFETCH_BYTES + 64));
                }
            }
            let w0 = load::<S, E>(weights, col * LANES);
            let w1 = load::<S, E>(weights, (col + 1) * LANES);
            for r in 0..R {
                let x = x.add(r * input.width + col);
                even[r] = S::fma(w0, S::splat(*x), even[r]);
                odd[r] = S::fma(w1, S::splat(*x.add(1)), odd[r]);
            }
            col += 2;
        }
        if col < cols {
            let w = load::<S, E>(weights, col * LANES);
            for r in 0..R {
                even[r] = S::fma(w, S::splat(*x.add(r * input.width + col)), even[r]);
            }
        }
        for r in 0..R {
            even[r] = S::add(even[r], odd[r]);
        }
        even
    }
}

/// One panel of a block format.
#[derive(Clone, Copy)]
pub(crate) struct Weights {
    pub layout: BlockLayout,
    pub cols: usize,
    pub codes: *const u8,
    pub factors: *const u8,
}

impl Weights {
    /// Panel `panel` of a matrix, `None` for plain weights.
    pub fn of(matrix: &Matrix, panel: usize) -> Option<Self> {
        let Storage::Blocks { layout, codes, narrow, wide } = &matrix.storage else { return None };
        let (layout, cols) = (*layout, matrix.cols);
        let first_factor = panel * layout.factors(cols);
        Some(Weights {
            layout,
            cols,
            codes: codes[panel * layout.code_bytes(cols)..].as_ptr(),
            factors: if layout.wide {
                wide[first_factor..].as_ptr().cast()
            } else {
                narrow[first_factor..].as_ptr().cast()
            },
        })
    }
}

/// Block formats against integer activations in `P` planes. Constants in place of the layout's
/// fields let each format's inner loop be compiled for itself.
///
/// # Safety
/// As [`Panel::rows`]; codes and factors reach the whole panel.
#[inline(always)]
unsafe fn planes<S: Simd, const R: usize, const P: usize>(
    weights: Weights,
    x: View,
    first: usize,
) -> [S::F; R] {
    let BlockLayout { bits, minimum, wide, .. } = weights.layout;
    // SAFETY: the caller's promise; the constants are those of the layout.
    unsafe {
        match (bits, minimum, wide) {
            (4, true, false) => int::<S, R, P, 4, true, HALF, 32>(weights, x, first),
            (4, true, true) => int::<S, R, P, 4, true, SINGLE, 32>(weights, x, first),
            (4, false, _) => int::<S, R, P, 4, false, HALF, 32>(weights, x, first),
            (5, true, false) => int::<S, R, P, 5, true, HALF, 32>(weights, x, first),
            (5, true, true) => int::<S, R, P, 5, true, SINGLE, 32>(weights, x, first),
            (5, false, _) => int::<S, R, P, 5, false, HALF, 32>(weights, x, first),
            (6, ..) => int::<S, R, P, 6, false, SINGLE, 16>(weights, x, first),
            _ => int::<S, R, P, 8, false, HALF, 32>(weights, x, first),
        }
    }
}

/// The codes of inputs `4 · four..4 · four + 4` as the planes of activations meet them; with one
/// plane, twice the codes themselves.
///
/// # Safety
/// `S` is available; the codes, of `BITS` bits, reach as far.
#[inline(always)]
pub(crate) unsafe fn split<S: Simd, const P: usize, const BITS: u32>(
    codes: *const u8,
    four: usize,
) -> [S::C; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let code = if BITS > 4 {
            S::codes(codes.add(four * 64))
        } else {
            let pair = S::codes(codes.add(four / 2 * 64));
            if four.is_multiple_of(2) { S::low(pair) } else { S::high(pair) }
        };
        match (P, BITS) {
            (1, _) => [code, code],
            (_, PLANE_BITS) => [S::enlarged(code, 8 - BITS), code],
            _ => [S::enlarged(code, 8 - BITS), S::reduced(code, BITS - PLANE_BITS)],
        }
    }
}

/// The product of a panel in one format: codes of `BITS` bits, with a minimum or else an offset of
/// half their range, factors in encoding `E`, `SCALED` inputs a scale.
///
/// # Safety
/// As [`planes`], and the constants are those of the layout.
#[inline(always)]
unsafe fn int<
    S: Simd,
    const R: usize,
    const P: usize,
    const BITS: u32,
    const MINIMUM: bool,
    const E: u8,
    const SCALED: usize,
>(
    weights: Weights,
    x: View,
    first: usize,
) -> [S::F; R] {
    let per_scale = if MINIMUM { 2 * LANES } else { LANES };
    let block_bytes = if BITS == 4 { BLOCK * LANES / 2 } else { BLOCK * LANES };
    // With two planes, sums are in units of this.
    let unit = if P == 2 { 1 << (BITS - PLANE_BITS) } else { 1 };
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [S::splat(0.0); R];
        for block in 0..weights.cols / BLOCK {
            let codes = weights.codes.add(block * block_bytes);
            let at = block * x.capacity + first;
            let xc = x.codes.add(at * P * BLOCK).cast_const();
            let (scales, totals) = (x.scales.add(at), x.totals.add(at));
            let minus_sums = x.minus_sums.add(at * 2);
            if R <= 2 {
                // Few rows: time goes into reading weights, and the hardware's own prefetching
                // stops at pages. Panels follow each other, so the end of one asks for the next.
                for line in (0..block_bytes).step_by(64) {
                    S::prefetch(codes.wrapping_add(PREFETCH_BYTES + line));
                }
            }
            for part in 0..BLOCK / SCALED {
                let mut dots = [S::int_splat(0); R];
                for step in 0..SCALED / 4 {
                    let four = part * (SCALED / 4) + step;
                    let [w, w_low] = split::<S, P, BITS>(codes, four);
                    for r in 0..R {
                        let x4 = xc.add(r * P * BLOCK + four * 4).cast::<i32>();
                        dots[r] = S::dot(dots[r], w, x4.read_unaligned());
                        if P == 2 {
                            let x4 = x4.byte_add(BLOCK).read_unaligned();
                            dots[r] = S::dot(dots[r], w_low, x4);
                        }
                    }
                }
                let index = (block * (BLOCK / SCALED) + part) * per_scale;
                let scale = S::mul(load::<S, E>(weights.factors, index), S::splat(unit as f32));
                for r in 0..R {
                    let mut dot = dots[r];
                    if !MINIMUM {
                        // The offset of the codes is taken out again: exact in integers.
                        let minus_sum = match SCALED {
                            BLOCK => *minus_sums.add(2 * r) + *minus_sums.add(2 * r + 1),
                            _ => *minus_sums.add(2 * r + part),
                        };
                        let offset = (1 << (BITS - 1)) / unit;
                        dot = S::int_add(dot, S::int_splat(minus_sum * offset));
                    }
                    let step = S::mul(scale, S::splat(*scales.add(r)));
                    sums[r] = S::fma(S::int_to_f(dot), step, sums[r]);
                }
                if MINIMUM {
                    let minimum = load::<S, E>(weights.factors, index + LANES);
                    for r in 0..R {
                        sums[r] = S::fma(minimum, S::splat(*totals.add(r)), sums[r]);
                    }
                }
            }
        }
        sums
    }
}

/// Block formats against f32 activations: weights are decoded, nothing else is rounded.
///
/// # Safety
/// As [`planes`]; factors are in encoding `E`.
#[inline(always)]
unsafe fn exact<S: Simd, const R: usize, const E: u8>(
    weights: Weights,
    input: Input,
    first: usize,
) -> [S::F; R] {
    let Weights { layout, cols, codes, factors } = weights;
    let per_scale = if layout.minimum { 2 * LANES } else { LANES };
    // SAFETY: the caller's promise.
    unsafe {
        let offset = S::splat(layout.offset as f32);
        let mut sums = [S::splat(0.0); R];
        for four in 0..cols / 4 {
            let index = four * 4 / layout.block * per_scale;
            let scale = load::<S, E>(factors, index);
            let minimum =
                if layout.minimum { load::<S, E>(factors, index + LANES) } else { S::splat(0.0) };
            let w = if layout.bits == 4 {
                let pair = S::codes(codes.add(four / 2 * 64));
                if four.is_multiple_of(2) { S::low(pair) } else { S::high(pair) }
            } else {
                S::codes(codes.add(four * 64))
            };
            for i in 0..4 {
                let code = S::sub(S::int_to_f(S::code(w, i)), offset);
                let weight = S::fma(code, scale, minimum);
                for r in 0..R {
                    let x = *input.rows.add((first + r) * input.width + four * 4 + i);
                    sums[r] = S::fma(weight, S::splat(x), sums[r]);
                }
            }
        }
        sums
    }
}

impl Input {
    /// The input; a method, so that closures capture the whole of it.
    pub fn get(self) -> Self {
        self
    }

    /// The same input without its first `rows` rows.
    pub fn after_rows(self, rows: usize) -> Self {
        Input {
            rows: self.rows.wrapping_add(rows * self.width),
            width: self.width,
            quantized: self.quantized.map(|view| view.after_rows(rows)),
        }
    }
}
