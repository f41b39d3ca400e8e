//! Whole rows of any weight format to and from f32, by dispatch to the formats' block codecs.

use crate::{FormatError, WeightFormat, bf16, f16};
use crate::{q4_0, q4_1, q4k, q5_0, q5_1, q5k, q6k, q8_0};

/// Largest magnitude that the block formats are asked to encode: the largest finite f16, since
/// scales and minima are f16.
const MAX_ENCODABLE: f32 = 65504.0;

/// Decodes one row of `out.len()` elements.
///
/// Any bytes of the right length decode: non-finite scales yield non-finite elements.
///
/// # Errors
/// [`FormatError::PartialBlock`] or [`FormatError::RowBytes`] when the lengths of `bytes` and `out`
/// are not those of a row; `out` is then untouched.
pub fn decode_row(format: WeightFormat, bytes: &[u8], out: &mut [f32]) -> Result<(), FormatError> {
    check_row(format, bytes.len(), out.len())?;
    match format {
        WeightFormat::F32 => decode_blocks(bytes, out, |b, [o]| *o = f32::from_le_bytes(*b)),
        WeightFormat::F16 => {
            decode_blocks(bytes, out, |b, [o]| *o = f16::from_le_bytes(*b).to_f32());
        }
        WeightFormat::Bf16 => {
            decode_blocks(bytes, out, |b, [o]| *o = bf16::from_le_bytes(*b).to_f32());
        }
        WeightFormat::Q4_0 => decode_blocks(bytes, out, |b, o| q4_0::Block::new(b).decode(o)),
        WeightFormat::Q4_1 => decode_blocks(bytes, out, |b, o| q4_1::Block::new(b).decode(o)),
        WeightFormat::Q5_0 => decode_blocks(bytes, out, |b, o| q5_0::Block::new(b).decode(o)),
        WeightFormat::Q5_1 => decode_blocks(bytes, out, |b, o| q5_1::Block::new(b).decode(o)),
        WeightFormat::Q8_0 => decode_blocks(bytes, out, |b, o| q8_0::Block::new(b).decode(o)),
        WeightFormat::Q4K => decode_blocks(bytes, out, |b, o| q4k::Block::new(b).decode(o)),
        WeightFormat::Q5K => decode_blocks(bytes, out, |b, o| q5k::Block::new(b).decode(o)),
        WeightFormat::Q6K => decode_blocks(bytes, out, |b, o| q6k::Block::new(b).decode(o)),
    }
    Ok(())
}

/// Encodes one row, rounding to nearest.
///
/// In the block formats every element comes back within half of its block's (or sub-block's) step.
/// F32 is exact; F16 and BF16 round to nearest even and keep infinities and NaN.
///
/// # Errors
/// [`FormatError::PartialBlock`] or [`FormatError::RowBytes`] when the lengths of `values` and
/// `bytes` are not those of a row; [`FormatError::Unrepresentable`] when a block format is asked to
/// hold a value that is not finite or exceeds ±65504. `bytes` is then untouched.
pub fn encode_row(
    format: WeightFormat,
    values: &[f32],
    bytes: &mut [u8],
) -> Result<(), FormatError> {
    check_row(format, bytes.len(), values.len())?;
    if format.block_elements() > 1 {
        let encodable = |value: &f32| value.abs() <= MAX_ENCODABLE;
        if let Some(index) = values.iter().position(|value| !encodable(value)) {
            return Err(FormatError::Unrepresentable { format, index, value: values[index] });
        }
    }
    match format {
        WeightFormat::F32 => encode_blocks(values, bytes, |[v], b| *b = v.to_le_bytes()),
        WeightFormat::F16 => {
            encode_blocks(values, bytes, |[v], b| *b = f16::from_f32(*v).to_le_bytes());
        }
        WeightFormat::Bf16 => {
            encode_blocks(values, bytes, |[v], b| *b = bf16::from_f32(*v).to_le_bytes());
        }
        WeightFormat::Q4_0 => encode_blocks(values, bytes, q4_0::encode),
        WeightFormat::Q4_1 => encode_blocks(values, bytes, q4_1::encode),
        WeightFormat::Q5_0 => encode_blocks(values, bytes, q5_0::encode),
        WeightFormat::Q5_1 => encode_blocks(values, bytes, q5_1::encode),
        WeightFormat::Q8_0 => encode_blocks(values, bytes, q8_0::encode),
        WeightFormat::Q4K => encode_blocks(values, bytes, q4k::encode),
        WeightFormat::Q5K => encode_blocks(values, bytes, q5k::encode),
        WeightFormat::Q6K => encode_blocks(values, bytes, q6k::encode),
    }
    Ok(())
}

/// Views `bytes` as whole blocks of `BYTES` bytes.
pub(crate) fn whole_blocks<const BYTES: usize>(
    format: WeightFormat,
    bytes: &[u8],
) -> Result<&[[u8; BYTES]], FormatError> {
    match bytes.as_chunks::<BYTES>() {
        (blocks, []) => Ok(blocks),
        _ => {
            Err(FormatError::PartialBytes { format, block_bytes: BYTES, found_bytes: bytes.len() })
        }
    }
}

fn check_row(format: WeightFormat, found_bytes: usize, cols: usize) -> Result<(), FormatError> {
    let expected_bytes = format.row_bytes(cols)?;
    if found_bytes == expected_bytes {
        Ok(())
    } else {
        Err(FormatError::RowBytes { format, cols, expected_bytes, found_bytes })
    }
}

fn decode_blocks<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (out_blocks, _) = out.as_chunks_mut::<ELEMENTS>();
    for (block, out_block) in blocks.iter().zip(out_blocks) {
        decode(block, out_block);
    }
}

fn encode_blocks<const BYTES: usize, const ELEMENTS: usize>(
    values: &[f32],
    bytes: &mut [u8],
    encode: impl Fn(&[f32; ELEMENTS], &mut [u8; BYTES]),
) {
    let (value_blocks, _) = values.as_chunks::<ELEMENTS>();
    let (blocks, _) = bytes.as_chunks_mut::<BYTES>();
    for (values, block) in value_blocks.iter().zip(blocks) {
        encode(values, block);
    }
}
