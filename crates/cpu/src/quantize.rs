//! Activations as integers: one scale for 32 elements, in one or two planes of eight bits.
//!
//! Kernels multiply bytes. With one plane an element is a byte, 127 steps to the block's largest
//! magnitude. With two it is `16 · high + low`, 2,032 steps: twice the multiplications, which a
//! decode step hides behind the reading of weights, for an error far below that of the weights'
//! own format.
//!
//! Both planes add up to one integer sum. Weights are codes of `b` bits, 4 to 8; the high plane
//! meets `2^(8-b) · code`, which is a byte still, and the low plane `code / 2^(b-4)`, rounded: the
//! sum is that of `16 · high + low` in units of `2^(b-4)`. The rounding, of codes of more than four
//! bits against a plane of four, is below that of the activations to steps.

use crate::OpError;
use crate::buffer::Buffer;
use crate::simd::Simd;

/// Elements that share a scale.
pub(crate) const BLOCK: usize = 32;

/// Two planes: the value is `2^PLANE_BITS · high + low`, `low` from -8 to 7.
pub(crate) const PLANE_BITS: u32 = 4;

/// Steps from 0 to a block's largest magnitude, with one plane and with two.
const STEPS: [f32; 2] = [127.0, 127.0 * (1 << PLANE_BITS) as f32];

/// Rows of activations as integers, `[block][row][plane]`, so that a kernel which walks rows
/// within a block reads forward.
pub(crate) struct Quantized {
    /// Most rows.
    pub capacity: usize,
    /// 32 codes for each block of each row and plane.
    pub codes: Buffer<i8>,
    /// The step of each block of each row.
    pub scales: Buffer<f32>,
    /// Minus the sums of the first and of the last 16 elements of each block of each row, in steps.
    pub minus_sums: Buffer<i32>,
    /// The sum of each block of each row, as a number.
    pub totals: Buffer<f32>,
    /// 1 or 2.
    pub planes: usize,
}

impl Quantized {
    /// Room for `rows` rows of up to `width` elements.
    pub fn new(rows: usize, width: usize, planes: usize) -> Result<Self, OpError> {
        let blocks = width.div_ceil(BLOCK) * rows;
        const OP: &str = "quantize";
        Ok(Quantized {
            capacity: rows,
            codes: Buffer::zeroed(OP, planes * blocks * BLOCK)?,
            scales: Buffer::zeroed(OP, blocks)?,
            minus_sums: Buffer::zeroed(OP, blocks * 2)?,
            totals: Buffer::zeroed(OP, blocks)?,
            planes,
        })
    }

    /// Widest row there is room for.
    pub fn width(&self) -> usize {
        self.scales.len() / self.capacity * BLOCK
    }
}

/// Pointers into a [`Quantized`], for kernels.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub capacity: usize,
    pub codes: *mut i8,
    /// 1 or 2.
    pub planes: usize,
    pub scales: *mut f32,
    pub minus_sums: *mut i32,
    pub totals: *mut f32,
}

impl View {
    /// The view; a method, so that closures capture the whole of it.
    pub fn get(self) -> Self {
        self
    }

    pub fn of(quantized: &mut Quantized) -> Self {
        View {
            capacity: quantized.capacity,
            codes: quantized.codes.as_mut_ptr(),
            planes: quantized.planes,
            scales: quantized.scales.as_mut_ptr(),
            minus_sums: quantized.minus_sums.as_mut_ptr(),
            totals: quantized.totals.as_mut_ptr(),
        }
    }

    /// The view without its first `rows` rows.
    pub fn after_rows(self, rows: usize) -> Self {
        View {
            codes: self.codes.wrapping_add(rows * self.planes * BLOCK),
            scales: self.scales.wrapping_add(rows),
            minus_sums: self.minus_sums.wrapping_add(rows * 2),
            totals: self.totals.wrapping_add(rows),
            ..self
        }
    }
}

// SAFETY: members of a region quantize disjoint rows, or only read.
unsafe impl Sync for View {}
// SAFETY: as above.
unsafe impl Send for View {}

/// Rounds row `row` of `x` to whole steps of its blocks.
///
/// # Safety
/// `S` is available; `x` has `width` elements, a multiple of 32; `out` has room for the row.
#[inline(always)]
pub(crate) unsafe fn quantize_row<S: Simd>(x: *const f32, width: usize, row: usize, out: View) {
    let steps = STEPS[usize::from(out.planes == 2)];
    // SAFETY: indices stay below the sizes that the caller promised.
    unsafe {
        for block in 0..width / BLOCK {
            let low = S::load(x.add(block * BLOCK));
            let high = S::load(x.add(block * BLOCK + 16));
            let zero = S::splat(0.0);
            let magnitude =
                S::max(S::max(low, S::sub(zero, low)), S::max(high, S::sub(zero, high)));
            let largest = S::largest(magnitude);
            let scale = largest / steps;
            // A block of zeros, or one whose step is not a normal number, becomes zeros.
            let inverse = if scale > f32::MIN_POSITIVE { steps / largest } else { 0.0 };
            let scale = if inverse > 0.0 { scale } else { 0.0 };
            let at = block * out.capacity + row;
            let codes = out.codes.add(at * out.planes * BLOCK);
            let mut total = 0i32;
            for (half, v) in [low, high].into_iter().enumerate() {
                let value = S::f_to_int(S::round(S::mul(v, S::splat(inverse))));
                let codes = codes.add(16 * half);
                if out.planes == 1 {
                    S::store_bytes(codes, value);
                } else {
                    let half = S::int_splat(1 << (PLANE_BITS - 1));
                    let high = S::shift_right(S::int_add(value, half), PLANE_BITS);
                    S::store_bytes(codes, high);
                    let low = S::int_sub(value, S::shift_left(high, PLANE_BITS));
                    S::store_bytes(codes.add(BLOCK), low);
                }
                let sum = S::int_sum(value);
                *out.minus_sums.add(at * 2 + half) = -sum;
                total += sum;
            }
            *out.scales.add(at) = scale;
            *out.totals.add(at) = total as f32 * scale;
        }
    }
}
