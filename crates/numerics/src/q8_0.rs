//! Q8_0: 32 elements in 34 bytes, `d * code`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, f16 little-endian |
//! | 2..34 | codes, i8, in element order |
//!
//! Layout: `block_q8_0` of the GGML file format.

use crate::codec::whole_blocks;
use crate::fit::{f16_at_least, nearest_code};
use crate::{BLOCK_ELEMENTS, FormatError, WeightFormat, f16};

/// Bytes of one block.
pub const BLOCK_BYTES: usize = 34;

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

    /// The codes, in element order. A file may hold −128; the encoder uses −127..=127.
    pub fn codes(self) -> [i8; BLOCK_ELEMENTS] {
        let mut codes = [0; BLOCK_ELEMENTS];
        for (code, &byte) in codes.iter_mut().zip(&self.0[2..]) {
            *code = byte as i8;
        }
        codes
    }

    /// Writes the elements.
    pub fn decode(self, out: &mut [f32; BLOCK_ELEMENTS]) {
        let d = self.d();
        for (out, code) in out.iter_mut().zip(self.codes()) {
            *out = d * f32::from(code);
        }
    }
}

/// The blocks of a row, or of any whole number of blocks.
///
/// # Errors
/// [`FormatError::PartialBytes`] when `bytes` ends inside a block.
pub fn blocks(bytes: &[u8]) -> Result<impl ExactSizeIterator<Item = Block<'_>>, FormatError> {
    Ok(whole_blocks(WeightFormat::Q8_0, bytes)?.iter().map(Block::new))
}

/// Encodes finite values within ±65504.
pub(crate) fn encode(values: &[f32; BLOCK_ELEMENTS], block: &mut [u8; BLOCK_BYTES]) {
    let largest = values.iter().fold(0.0, |acc: f32, value| acc.max(value.abs()));
    let d = f16_at_least(largest / 127.0);
    block[..2].copy_from_slice(&d.to_le_bytes());
    for (byte, &value) in block[2..].iter_mut().zip(values) {
        *byte = nearest_code(value, d.to_f32(), -127.0, 127.0) as i8 as u8;
    }
}
