//! Activations rounded to eight bits: one scale for 32 elements.

use crate::OpError;
use crate::buffer::Buffer;
use crate::simd::Simd;

/// Elements that share a scale.
pub(crate) const BLOCK: usize = 32;

/// Rows of 8-bit activations, `[block][row]`, so that a kernel which walks rows within a block
/// reads forward.
pub(crate) struct Quantized {
    /// Most rows.
    pub capacity: usize,
    /// 32 codes for each block of each row.
    pub codes: Buffer<i8>,
    /// The step of each block of each row.
    pub scales: Buffer<f32>,
    /// Sums of the first and of the last 16 codes of each block of each row.
    pub sums: Buffer<i32>,
}

impl Quantized {
    /// Room for `rows` rows of up to `width` elements.
    pub fn new(rows: usize, width: usize) -> Result<Self, OpError> {
        let blocks = width.div_ceil(BLOCK) * rows;
        const OP: &str = "quantize";
        Ok(Quantized {
            capacity: rows,
            codes: Buffer::zeroed(OP, blocks * BLOCK)?,
            scales: Buffer::zeroed(OP, blocks)?,
            sums: Buffer::zeroed(OP, blocks * 2)?,
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
    pub scales: *mut f32,
    pub sums: *mut i32,
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
            scales: quantized.scales.as_mut_ptr(),
            sums: quantized.sums.as_mut_ptr(),
        }
    }
}

// SAFETY: members of a region quantize disjoint rows, or only read.
unsafe impl Sync for View {}
// SAFETY: as above.
unsafe impl Send for View {}

/// Rounds row `row` of `x` to multiples of its blocks' largest magnitude / 127.
///
/// # Safety
/// `S` is available; `x` has `width` elements, a multiple of 32; `out` has room for the row.
#[inline(always)]
pub(crate) unsafe fn quantize_row<S: Simd>(x: *const f32, width: usize, row: usize, out: View) {
    // SAFETY: indices stay below the sizes that the caller promised.
    unsafe {
        for block in 0..width / BLOCK {
            let low = S::load(x.add(block * BLOCK));
            let high = S::load(x.add(block * BLOCK + 16));
            let zero = S::splat(0.0);
            let magnitude =
                S::max(S::max(low, S::sub(zero, low)), S::max(high, S::sub(zero, high)));
            let largest = S::largest(magnitude);
            let scale = largest / 127.0;
            // A block of zeros, or one whose step is not a normal number, becomes zeros.
            let inverse = if scale > f32::MIN_POSITIVE { 127.0 / largest } else { 0.0 };
            let at = block * out.capacity + row;
            let codes = out.codes.add(at * BLOCK);
            for (half, v) in [low, high].into_iter().enumerate() {
                let mut rounded = [0.0f32; 16];
                S::store(rounded.as_mut_ptr(), S::round(S::mul(v, S::splat(inverse))));
                let mut sum = 0i32;
                for (i, v) in rounded.into_iter().enumerate() {
                    let code = v as i32;
                    *codes.add(16 * half + i) = code as i8;
                    sum += code;
                }
                *out.sums.add(at * 2 + half) = sum;
            }
            *out.scales.add(at) = if inverse > 0.0 { scale } else { 0.0 };
        }
    }
}
