//! Q5_1: 32 elements in 24 bytes, `d * code + m`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, f16 little-endian |
//! | 2..4 | `m`, f16 little-endian |
//! | 4..8 | high bits, u32 little-endian: bit `i` is bit 4 of element `i`'s code |
//! | 8..24 | low bits: byte `i` holds element `i` in its low nibble, `i + 16` in its high one |
//!
//! Layout: `block_q5_1` of the GGML file format.

use crate::codec::whole_blocks;
use crate::fit::{nearest_code, step_and_min};
use crate::{BLOCK_ELEMENTS, FormatError, WeightFormat, f16};

/// Bytes of one block.
pub const BLOCK_BYTES: usize = 24;

/// A view of one block.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a>(&'a [u8; BLOCK_BYTES]);

impl<'a> Block<'a> {
    /// Views the bytes of one block.
    pub const fn new(bytes: &'a [u8; BLOCK_BYTES]) -> Self {
        Block(bytes)
    }

    /// The scale.
    pub fn d(self) -> f32 {
        f16::from_le_bytes([self.0[0], self.0[1]]).to_f32()
    }

    /// The minimum: the value of code 0.
    pub fn m(self) -> f32 {
        f16::from_le_bytes([self.0[2], self.0[3]]).to_f32()
    }

    /// The codes, 0..=31, in element order.
    pub fn codes(self) -> [u8; BLOCK_ELEMENTS] {
        let high = u32::from_le_bytes([self.0[4], self.0[5], self.0[6], self.0[7]]);
        let mut codes = [0; BLOCK_ELEMENTS];
        for (i, byte) in self.0[8..].iter().enumerate() {
            codes[i] = byte & 0x0f;
            codes[i + 16] = byte >> 4;
        }
        for (i, code) in codes.iter_mut().enumerate() {
            *code |= ((high >> i & 1) as u8) << 4;
        }
        codes
    }

    /// Writes the elements.
    pub fn decode(self, out: &mut [f32; BLOCK_ELEMENTS]) {
        let (d, m) = (self.d(), self.m());
        for (out, code) in out.iter_mut().zip(self.codes()) {
            *out = d * f32::from(code) + m;
        }
    }
}

/// The blocks of a row, or of any whole number of blocks.
///
/// # Errors
/// [`FormatError::PartialBytes`] when `bytes` ends inside a block.
pub fn blocks(bytes: &[u8]) -> Result<impl ExactSizeIterator<Item = Block<'_>>, FormatError> {
    Ok(whole_blocks(WeightFormat::Q5_1, bytes)?.iter().map(Block::new))
}

/// Encodes finite values within ±65504.
pub(crate) fn encode(values: &[f32; BLOCK_ELEMENTS], block: &mut [u8; BLOCK_BYTES]) {
    let (d, m) = step_and_min(values, 31.0);
    let codes = values.map(|value| nearest_code(value - m.to_f32(), d.to_f32(), 0.0, 31.0) as u8);
    let high = codes.iter().rev().fold(0u32, |high, code| high << 1 | u32::from(code >> 4));
    block[..2].copy_from_slice(&d.to_le_bytes());
    block[2..4].copy_from_slice(&m.to_le_bytes());
    block[4..8].copy_from_slice(&high.to_le_bytes());
    for (i, byte) in block[8..].iter_mut().enumerate() {
        *byte = codes[i] & 0x0f | codes[i + 16] << 4;
    }
}
