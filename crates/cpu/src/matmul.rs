//! Products of activation rows with a panel of sixteen outputs.
//!
//! The sum of one output is formed block by block in the order of the inputs, whatever the number
//! of rows: integer dot products within a block are exact, and each block adds to one f32 by fused
//! operations. So a row's result does not depend on the rows beside it.

use crate::isa::Kernel;
use crate::packed::{BlockLayout, Matrix, Storage};
use crate::quantize::{BLOCK, View};
use crate::simd::{LANES, Simd};

/// The input of a product.
#[derive(Clone, Copy)]
pub(crate) struct Input {
    /// Rows in f32, `width` apart.
    pub rows: *const f32,
    pub width: usize,
    /// The same rows in eight bits, if the backend works with these.
    pub quantized: Option<View>,
}

// SAFETY: members of a region only read the input.
unsafe impl Sync for Input {}
// SAFETY: as above.
unsafe impl Send for Input {}

/// Most rows of one [`Panel`]: their 8-bit forms stay in the first-level cache while all of a
/// thread's panels pass over them.
pub(crate) const ROW_TILE: usize = 64;

/// The sums of one panel for up to [`ROW_TILE`] rows.
pub(crate) type Sums = [[f32; LANES]; ROW_TILE];

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
                floats::<S, R>(cols, input, first, |col| S::load(weights.add(col * LANES)))
            }
            Storage::Half { bf16, values } => {
                let weights = values.as_ptr().add(panel * cols * LANES);
                if *bf16 {
                    floats::<S, R>(cols, input, first, |col| S::load_bf16(weights.add(col * LANES)))
                } else {
                    floats::<S, R>(cols, input, first, |col| S::load_f16(weights.add(col * LANES)))
                }
            }
            Storage::Blocks { layout, codes, narrow, wide } => {
                let codes = codes.as_ptr().add(panel * layout.code_bytes(cols));
                let first_factor = panel * layout.factors(cols);
                if layout.wide {
                    let factors = wide.as_ptr().add(first_factor);
                    let load = |i: usize| S::load(factors.add(i));
                    blocks::<S, R, true>(*layout, cols, codes, load, input, first)
                } else {
                    let factors = narrow.as_ptr().add(first_factor);
                    let load = |i: usize| S::load_f16(factors.add(i));
                    blocks::<S, R, false>(*layout, cols, codes, load, input, first)
                }
            }
        }
    }
}

/// Plain weights: one fused multiply-add an input.
///
/// # Safety
/// As [`Panel::rows`].
#[inline(always)]
unsafe fn floats<S: Simd, const R: usize>(
    cols: usize,
    input: Input,
    first: usize,
    weights: impl Fn(usize) -> S::F,
) -> [S::F; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let x = input.rows.add(first * input.width);
        // Two running sums hide the latency of the addition; their order is that of the inputs.
        let mut even = [S::splat(0.0); R];
        let mut odd = [S::splat(0.0); R];
        let mut col = 0;
        while col + 2 <= cols {
            let (w0, w1) = (weights(col), weights(col + 1));
            for r in 0..R {
                let x = x.add(r * input.width + col);
                even[r] = S::fma(w0, S::splat(*x), even[r]);
                odd[r] = S::fma(w1, S::splat(*x.add(1)), odd[r]);
            }
            col += 2;
        }
        if col < cols {
            let w = weights(col);
            for r in 0..R {
                even[r] = S::fma(w, S::splat(*x.add(r * input.width + col)), even[r]);
            }
        }
        std::array::from_fn(|r| S::add(even[r], odd[r]))
    }
}

/// # Safety
/// As [`Panel::rows`]; `codes` and `factor` reach the whole panel.
#[inline(always)]
unsafe fn blocks<S: Simd, const R: usize, const WIDE: bool>(
    layout: BlockLayout,
    cols: usize,
    codes: *const u8,
    factor: impl Fn(usize) -> S::F,
    input: Input,
    first: usize,
) -> [S::F; R] {
    // SAFETY: the caller's promise. Constants in place of the layout's fields let each format's
    // inner loop be compiled for itself.
    unsafe {
        let Some(q) = input.quantized else {
            return exact::<S, R>(layout, cols, codes, factor, input, first);
        };
        match (layout.nibbles, layout.minimum, layout.block) {
            (true, true, _) => int8::<S, R, true, true, 32>(layout, cols, codes, factor, q, first),
            (false, true, _) => {
                int8::<S, R, false, true, 32>(layout, cols, codes, factor, q, first)
            }
            // Formats without a minimum come with the block sizes and scales that they have.
            (true, false, _) if !WIDE => {
                int8::<S, R, true, false, 32>(layout, cols, codes, factor, q, first)
            }
            (false, false, _) if !WIDE => {
                int8::<S, R, false, false, 32>(layout, cols, codes, factor, q, first)
            }
            (_, false, _) => int8::<S, R, false, false, 16>(layout, cols, codes, factor, q, first),
        }
    }
}

/// Block formats against 8-bit activations.
///
/// # Safety
/// As [`blocks`].
#[inline(always)]
unsafe fn int8<
    S: Simd,
    const R: usize,
    const NIBBLES: bool,
    const MINIMUM: bool,
    const SCALED: usize,
>(
    layout: BlockLayout,
    cols: usize,
    codes: *const u8,
    factor: impl Fn(usize) -> S::F,
    x: View,
    first: usize,
) -> [S::F; R] {
    let per_scale = if MINIMUM { 2 * LANES } else { LANES };
    let block_bytes = if NIBBLES { BLOCK * LANES / 2 } else { BLOCK * LANES };
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [S::splat(0.0); R];
        for block in 0..cols / BLOCK {
            let codes = codes.add(block * block_bytes);
            let at = block * x.capacity + first;
            let (xc, xs, xt) = (x.codes.add(at * BLOCK), x.scales.add(at), x.sums.add(at * 2));
            for part in 0..BLOCK / SCALED {
                let index = (block * (BLOCK / SCALED) + part) * per_scale;
                let total = |r: usize| match SCALED {
                    BLOCK => *xt.add(2 * r) + *xt.add(2 * r + 1),
                    _ => *xt.add(2 * r + part),
                };
                // Taking the codes' offset out of the sum: exact in integers.
                let mut dots: [S::I; R] =
                    std::array::from_fn(|r| S::int_splat(-layout.offset * total(r)));
                for step in 0..SCALED / 4 {
                    let four = part * (SCALED / 4) + step;
                    let weights = if NIBBLES {
                        let pair = S::codes(codes.add(four / 2 * 64));
                        if four % 2 == 0 { S::low(pair) } else { S::high(pair) }
                    } else {
                        S::codes(codes.add(four * 64))
                    };
                    for r in 0..R {
                        let x = xc.add(r * BLOCK + four * 4).cast::<i32>().read_unaligned();
                        dots[r] = S::dot(dots[r], weights, x);
                    }
                }
                let scale = factor(index);
                for r in 0..R {
                    let step = S::mul(scale, S::splat(*xs.add(r)));
                    sums[r] = S::fma(S::int_to_f(dots[r]), step, sums[r]);
                }
                if MINIMUM {
                    let minimum = factor(index + LANES);
                    for r in 0..R {
                        let x = S::splat(total(r) as f32 * *xs.add(r));
                        sums[r] = S::fma(minimum, x, sums[r]);
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
/// As [`blocks`].
#[inline(always)]
unsafe fn exact<S: Simd, const R: usize>(
    layout: BlockLayout,
    cols: usize,
    codes: *const u8,
    factor: impl Fn(usize) -> S::F,
    input: Input,
    first: usize,
) -> [S::F; R] {
    let per_scale = if layout.minimum { 2 * LANES } else { LANES };
    // SAFETY: the caller's promise.
    unsafe {
        let offset = S::splat(layout.offset as f32);
        let mut sums = [S::splat(0.0); R];
        for four in 0..cols / 4 {
            let index = four * 4 / layout.block * per_scale;
            let scale = factor(index);
            let minimum = if layout.minimum { factor(index + LANES) } else { S::splat(0.0) };
            let weights = if layout.nibbles {
                let pair = S::codes(codes.add(four / 2 * 64));
                if four % 2 == 0 { S::low(pair) } else { S::high(pair) }
            } else {
                S::codes(codes.add(four * 64))
            };
            for i in 0..4 {
                let code = S::sub(S::int_to_f(S::code(weights, i)), offset);
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
    pub fn from_row(self, rows: usize) -> Self {
        let quantized = self.quantized.map(|q| View {
            capacity: q.capacity,
            codes: q.codes.wrapping_add(rows * BLOCK),
            scales: q.scales.wrapping_add(rows),
            sums: q.sums.wrapping_add(rows * 2),
        });
        Input { rows: self.rows.wrapping_add(rows * self.width), width: self.width, quantized }
    }
}
