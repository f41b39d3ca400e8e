//! Q6_K: 256 elements in 210 bytes, `d * scale * code`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..128 | low four bits of the codes: two halves of 64 bytes |
//! | 128..192 | high two bits of the codes: two halves of 32 bytes |
//! | 192..208 | sixteen scales, i8, one for each sub-block of 16 elements |
//! | 208..210 | `d`, f16 little-endian |
//!
//! Each half serves 128 elements, in four runs of 32. Element `i` of run `r` has its low bits in
//! byte `i + 32 * (r % 2)` of the half, in the low nibble for runs 0 and 1 and the high one for 2
//! and 3, and its high bits at bits `2r` and `2r + 1` of byte `i`. Codes are stored plus 32.
//!
//! Layout: `block_q6_K` of the GGML file format.

use crate::codec::whole_blocks;
use crate::fit::{f16_at_least, nearest_code, signed_step};
use crate::{FormatError, SUPERBLOCK_ELEMENTS, WeightFormat, f16};

/// Bytes of one superblock.
pub const BLOCK_BYTES: usize = 210;

/// Sub-blocks in one superblock.
pub const SUB_BLOCKS: usize = 16;

/// Elements of one sub-block.
pub const SUB_BLOCK_ELEMENTS: usize = 16;

/// What is added to a code where it is stored.
const STORED_BIAS: i8 = 32;

/// Where the two code bits planes, the scales and `d` begin.
const HIGH_START: usize = 128;
const SCALES_START: usize = 192;
const D_START: usize = 208;

/// A view of one superblock.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a>(&'a [u8; BLOCK_BYTES]);

/// Where the codes of a sub-block lie: its first bytes of low and high bits, and their shifts.
struct Place {
    low_start: usize,
    low_shift: usize,
    high_start: usize,
    high_shift: usize,
}

impl Place {
    const fn of(j: usize) -> Self {
        let (half, run, start) = (j / 8, j % 8 / 2, j % 2 * SUB_BLOCK_ELEMENTS);
        Place {
            low_start: half * 64 + run % 2 * 32 + start,
            low_shift: run / 2 * 4,
            high_start: HIGH_START + half * 32 + start,
            high_shift: run * 2,
        }
    }
}

impl<'a> Block<'a> {
    /// Views the bytes of one superblock.
    pub const fn new(bytes: &'a [u8; BLOCK_BYTES]) -> Self {
        Block(bytes)
    }

    /// The scale of the scales.
    pub fn d(self) -> f32 {
        f16::from_le_bytes([self.0[D_START], self.0[D_START + 1]]).to_f32()
    }

    /// The scale of sub-block `j`.
    ///
    /// # Panics
    /// When `j` is not below [`SUB_BLOCKS`].
    pub fn scale(self, j: usize) -> i8 {
        self.0[SCALES_START..D_START][j] as i8
    }

    /// The codes, −32..=31, of sub-block `j`, in element order.
    ///
    /// # Panics
    /// When `j` is not below [`SUB_BLOCKS`].
    pub fn codes(self, j: usize) -> [i8; SUB_BLOCK_ELEMENTS] {
        assert!(j < SUB_BLOCKS, "a Q6_K superblock has 16 sub-blocks");
        let place = Place::of(j);
        let (low, high) = (&self.0[place.low_start..], &self.0[place.high_start..]);
        std::array::from_fn(|i| {
            let low_bits = low[i] >> place.low_shift & 0x0f;
            let high_bits = high[i] >> place.high_shift & 0x03;
            (low_bits | high_bits << 4) as i8 - STORED_BIAS
        })
    }

    /// Writes the elements.
    pub fn decode(self, out: &mut [f32; SUPERBLOCK_ELEMENTS]) {
        let d = self.d();
        let (out_sub_blocks, _) = out.as_chunks_mut::<SUB_BLOCK_ELEMENTS>();
        for (j, out) in out_sub_blocks.iter_mut().enumerate() {
            let step = d * f32::from(self.scale(j));
            for (out, code) in out.iter_mut().zip(self.codes(j)) {
                *out = step * f32::from(code);
            }
        }
    }
}

/// The superblocks of a row, or of any whole number of superblocks.
///
/// # Errors
/// [`FormatError::PartialBytes`] when `bytes` ends inside a superblock.
pub fn blocks(bytes: &[u8]) -> Result<impl ExactSizeIterator<Item = Block<'_>>, FormatError> {
    Ok(whole_blocks(WeightFormat::Q6K, bytes)?.iter().map(Block::new))
}

/// Encodes finite values within ±65504.
pub(crate) fn encode(values: &[f32; SUPERBLOCK_ELEMENTS], block: &mut [u8; BLOCK_BYTES]) {
    let (sub_blocks, _) = values.as_chunks::<SUB_BLOCK_ELEMENTS>();
    let mut steps = [0.0; SUB_BLOCKS];
    for (step, sub_block) in steps.iter_mut().zip(sub_blocks) {
        *step = signed_step(sub_block, 31.0);
    }
    let widest = steps.iter().fold(0.0, |acc: f32, step| acc.max(step.abs()));
    let d = f16_at_least(widest / 127.0);

    block.fill(0);
    block[D_START..].copy_from_slice(&d.to_le_bytes());
    for (j, (step, sub_block)) in steps.iter().zip(sub_blocks).enumerate() {
        let scale = if *step == 0.0 {
            0.0
        } else {
            (step.abs() / d.to_f32()).ceil().min(127.0).copysign(*step)
        };
        block[SCALES_START + j] = scale as i8 as u8;
        let place = Place::of(j);
        for (i, &value) in sub_block.iter().enumerate() {
            let code = nearest_code(value, d.to_f32() * scale, -32.0, 31.0) as i8;
            let stored = (code + STORED_BIAS) as u8;
            block[place.low_start + i] |= (stored & 0x0f) << place.low_shift;
            block[place.high_start + i] |= stored >> 4 << place.high_shift;
        }
    }
}
