//! Q5_K: 256 elements in 176 bytes, `d * scale * code - dmin * min`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, f16 little-endian |
//! | 2..4 | `dmin`, f16 little-endian |
//! | 4..16 | eight 6-bit scales and minima, a pair for each sub-block of 32 elements |
//! | 16..48 | high bits: bit `j` of byte `i` is bit 4 of the code of element `i` of sub-block `j` |
//! | 48..176 | low bits: four runs of 32 bytes |
//!
//! Byte `i` of run `r` holds element `i` of sub-block `2r` in its low nibble and of sub-block
//! `2r + 1` in its high one.
//!
//! Layout: `block_q5_K` of the GGML file format.

use crate::codec::whole_blocks;
use crate::fit::affine_superblock;
use crate::{BLOCK_ELEMENTS, FormatError, SUPERBLOCK_ELEMENTS, WeightFormat, f16, k_scales};

/// Bytes of one superblock.
pub const BLOCK_BYTES: usize = 176;

/// Sub-blocks, of 32 elements each, in one superblock.
pub const SUB_BLOCKS: usize = 8;

/// A view of one superblock.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a>(&'a [u8; BLOCK_BYTES]);

impl<'a> Block<'a> {
    /// Views the bytes of one superblock.
    pub const fn new(bytes: &'a [u8; BLOCK_BYTES]) -> Self {
        Block(bytes)
    }

    /// The scale of the scales.
    pub fn d(self) -> f32 {
        f16::from_le_bytes([self.0[0], self.0[1]]).to_f32()
    }

    /// The scale of the minima.
    pub fn dmin(self) -> f32 {
        f16::from_le_bytes([self.0[2], self.0[3]]).to_f32()
    }

    /// Scale and minimum, 0..=63 each, of sub-block `j`.
    ///
    /// # Panics
    /// When `j` is not below [`SUB_BLOCKS`].
    pub fn scale(self, j: usize) -> (u8, u8) {
        k_scales::unpack(&std::array::from_fn(|i| self.0[4 + i]), j)
    }

    /// The codes, 0..=31, of sub-block `j`, in element order.
    ///
    /// # Panics
    /// When `j` is not below [`SUB_BLOCKS`].
    pub fn codes(self, j: usize) -> [u8; BLOCK_ELEMENTS] {
        let high = &self.0[16..48];
        let run = &self.0[48 + j / 2 * 32..];
        let shift = j % 2 * 4;
        std::array::from_fn(|i| run[i] >> shift & 0x0f | (high[i] >> j & 1) << 4)
    }

    /// Writes the elements.
    pub fn decode(self, out: &mut [f32; SUPERBLOCK_ELEMENTS]) {
        let (d, dmin) = (self.d(), self.dmin());
        let (out_sub_blocks, _) = out.as_chunks_mut::<BLOCK_ELEMENTS>();
        for (j, out) in out_sub_blocks.iter_mut().enumerate() {
            let (scale, min) = self.scale(j);
            let (step, offset) = (d * f32::from(scale), dmin * f32::from(min));
            for (out, code) in out.iter_mut().zip(self.codes(j)) {
                *out = step * f32::from(code) - offset;
            }
        }
    }
}

/// The superblocks of a row, or of any whole number of superblocks.
///
/// # Errors
/// [`FormatError::PartialBytes`] when `bytes` ends inside a superblock.
pub fn blocks(bytes: &[u8]) -> Result<impl ExactSizeIterator<Item = Block<'_>>, FormatError> {
    Ok(whole_blocks(WeightFormat::Q5K, bytes)?.iter().map(Block::new))
}

/// Encodes finite values within ±65504.
pub(crate) fn encode(values: &[f32; SUPERBLOCK_ELEMENTS], block: &mut [u8; BLOCK_BYTES]) {
    let fitted = affine_superblock(values, 31.0);
    block[..2].copy_from_slice(&fitted.d.to_le_bytes());
    block[2..4].copy_from_slice(&fitted.dmin.to_le_bytes());
    block[4..16].copy_from_slice(&k_scales::pack(&fitted.scales));
    let (high, low) = block[16..].split_at_mut(32);
    let (codes, _) = fitted.codes.as_chunks::<32>();
    for (i, byte) in high.iter_mut().enumerate() {
        *byte = (0..SUB_BLOCKS).fold(0, |bits, j| bits | codes[j][i] >> 4 << j);
    }
    for (r, run) in low.chunks_exact_mut(32).enumerate() {
        for (i, byte) in run.iter_mut().enumerate() {
            *byte = codes[2 * r][i] & 0x0f | codes[2 * r + 1][i] << 4;
        }
    }
}
