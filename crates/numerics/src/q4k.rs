//! Q4_K: 256 elements in 144 bytes, `d * scale * code - dmin * min`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, f16 little-endian |
//! | 2..4 | `dmin`, f16 little-endian |
//! | 4..16 | eight 6-bit scales and minima, a pair for each sub-block of 32 elements |
//! | 16..144 | codes: four runs of 32 bytes |
//!
//! Byte `i` of run `r` holds element `i` of sub-block `2r` in its low nibble and of sub-block
//! `2r + 1` in its high one.
//!
//! Layout: `block_q4_K` of the GGML file format.

use crate::codec::whole_blocks;
use crate::fit::affine_superblock;
use crate::{BLOCK_ELEMENTS, FormatError, SUPERBLOCK_ELEMENTS, WeightFormat, f16, k_scales};

/// Bytes of one superblock.
pub const BLOCK_BYTES: usize = 144;

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

    /// The codes, 0..=15, of sub-block `j`, in element order.
    ///
    /// # Panics
    /// When `j` is not below [`SUB_BLOCKS`].
    pub fn codes(self, j: usize) -> [u8; BLOCK_ELEMENTS] {
        let run = &self.0[16 + j / 2 * 32..];
        let shift = j % 2 * 4;
        std::array::from_fn(|i| run[i] >> shift & 0x0f)
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
    Ok(whole_blocks(WeightFormat::Q4K, bytes)?.iter().map(Block::new))
}

/// Encodes finite values within ±65504.
pub(crate) fn encode(values: &[f32; SUPERBLOCK_ELEMENTS], block: &mut [u8; BLOCK_BYTES]) {
    let fitted = affine_superblock(values, 15.0);
    block[..2].copy_from_slice(&fitted.d.to_le_bytes());
    block[2..4].copy_from_slice(&fitted.dmin.to_le_bytes());
    block[4..16].copy_from_slice(&k_scales::pack(&fitted.scales));
    let (runs, _) = block[16..].as_chunks_mut::<32>();
    let (code_pairs, _) = fitted.codes.as_chunks::<64>();
    for (run, codes) in runs.iter_mut().zip(code_pairs) {
        for (i, byte) in run.iter_mut().enumerate() {
            *byte = codes[i] | codes[i + 32] << 4;
        }
    }
}
