//! Activations as integers: one scale for 32 elements, in one or two planes of eight bits.
//!
//! Kernels multiply bytes. With one plane an element is a byte, 127 steps to the block's largest
//! magnitude. With two it is `256 · high + low`, 32,512 steps, exact to about 15 bits: twice the
//! multiplications, which a decode step hides behind the reading of weights, for an error that is
//! far below that of the weights' own format.

use crate::OpError;
use crate::buffer::Buffer;
use crate::simd::Simd;

/// Elements that share a scale.
pub(crate) const BLOCK: usize = 32;

/// Steps from 0 to a block's largest magnitude, with one plane and with two. The low byte of
/// `127 * 256` is 0, so that every value splits into two signed bytes.
const STEPS: [f32; 2] = [127.0, 127.0 * 256.0];

/// Rows of activations as integers, `[block][row]`, so that a kernel which walks rows within a
/// block reads forward.
pub(crate) struct Quantized {
    /// Most rows.
    pub capacity: usize,
    /// 32 codes for each block of each row; the second plane, if any, after the first.
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
    /// From a code to its second plane; 0 if there is one plane only.
    pub plane: usize,
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
        let plane = if quantized.planes == 2 { quantized.codes.len() / 2 } else { 0 };
        View {
            capacity: quantized.capacity,
            codes: quantized.codes.as_mut_ptr(),
            plane,
            scales: quantized.scales.as_mut_ptr(),
            minus_sums: quantized.minus_sums.as_mut_ptr(),
            totals: quantized.totals.as_mut_ptr(),
        }
    }

    /// The view without its first `rows` rows.
    pub fn after_rows(self, rows: usize) -> Self {
        View {
            codes: self.codes.wrapping_add(rows * BLOCK),
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
    let steps = STEPS[usize::from(out.plane != 0)];
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
            let codes = out.codes.add(at * BLOCK);
            let mut total = 0i32;
            for (half, v) in [low, high].into_iter().enumerate() {
                let value = S::f_to_int(S::round(S::mul(v, S::splat(inverse))));
                let codes = codes.add(16 * half);
                if out.plane == 0 {
                    S::store_bytes(codes, value);
                } else {
                    let high = S::shift_right::<8>(S::int_add(value, S::int_splat(128)));
                    S::store_bytes(codes, high);
                    let low = S::int_sub(value, S::shift_left::<8>(high));
                    S::store_bytes(codes.add(out.plane), low);
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
