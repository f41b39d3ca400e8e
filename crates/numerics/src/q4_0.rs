//! Q4_0: 32 elements in 18 bytes, `d * (code - 8)`.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | `d`, f16 little-endian |
//! | 2..18 | codes: byte `i` holds element `i` in its low nibble, element `i + 16` in its high one |
//!
//! Layout: `block_q4_0` of the GGML file format.

use crate::codec::whole_blocks;
use crate::fit::{nearest_code, signed_step_f16};
use crate::{BLOCK_ELEMENTS, FormatError, WeightFormat, f16};

/// Bytes of one block.
pub const BLOCK_BYTES: usize = 18;

/// The code that stands for zero.
pub const ZERO_CODE: u8 = 8;

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

    /// The codes, 0..=15, in element order.
    pub fn codes(self) -> [u8; BLOCK_ELEMENTS] {
        let mut codes = [0; BLOCK_ELEMENTS];
        for (i, byte) in self.0[2..].iter().enumerate() {
            codes[i] = byte & 0x0f;
            codes[i + 16] = byte >> 4;
        }
        codes
    }

    /// Writes the elements.
    pub fn decode(self, out: &mut [f32; BLOCK_ELEMENTS]) {
        let d = self.d();
        for (out, code) in out.iter_mut().zip(self.codes()) {
            *out = d * (f32::from(code) - f32::from(ZERO_CODE));
        }
    }
}

/// The blocks of a row, or of any whole number of blocks.
///
/// # Errors
/// [`FormatError::PartialBytes`] when `bytes` ends inside a block.
pub fn blocks(bytes: &[u8]) -> Result<impl ExactSizeIterator<Item = Block<'_>>, FormatError> {
    Ok(whole_blocks(WeightFormat::Q4_0, bytes)?.iter().map(Block::new))
}

/// Encodes finite values within ±65504.
pub(crate) fn encode(values: &[f32; BLOCK_ELEMENTS], block: &mut [u8; BLOCK_BYTES]) {
    let d = signed_step_f16(values, 7.0);
    block[..2].copy_from_slice(&d.to_le_bytes());
    let code = |value| (nearest_code(value, d.to_f32(), -8.0, 7.0) as i8 + 8) as u8;
    for (i, byte) in block[2..].iter_mut().enumerate() {
        *byte = code(values[i]) | code(values[i + 16]) << 4;
    }
}
