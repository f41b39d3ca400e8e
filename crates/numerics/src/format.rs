//! The closed list of weight formats: names, block sizes, GGUF type ids and checked byte counts.

use std::fmt;
use std::str::FromStr;

use crate::{
    BLOCK_ELEMENTS, KvDtype, SUPERBLOCK_ELEMENTS, q4_0, q4_1, q4k, q5_0, q5_1, q5k, q6k, q8_0,
};

/// How the elements of a weight row are stored.
///
/// The block formats are those of GGUF files; each one's layout is documented in the module of its
/// name. A row is always a whole number of blocks, so rows can be addressed independently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// IEEE 754 binary32, little-endian.
    F32,
    /// IEEE 754 binary16, little-endian.
    F16,
    /// The upper half of binary32, little-endian.
    Bf16,
    /// 4-bit codes with a scale: [`q4_0`](crate::q4_0).
    Q4_0,
    /// 4-bit codes with a scale and a minimum: [`q4_1`](crate::q4_1).
    Q4_1,
    /// 5-bit codes with a scale: [`q5_0`](crate::q5_0).
    Q5_0,
    /// 5-bit codes with a scale and a minimum: [`q5_1`](crate::q5_1).
    Q5_1,
    /// 8-bit codes with a scale: [`q8_0`](crate::q8_0).
    Q8_0,
    /// 4-bit codes, two-level scales and minima: [`q4k`](crate::q4k).
    Q4K,
    /// 5-bit codes, two-level scales and minima: [`q5k`](crate::q5k).
    Q5K,
    /// 6-bit codes, two-level scales: [`q6k`](crate::q6k).
    Q6K,
}

/// What can be wrong with a format's name, a row's size or a row's values.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FormatError {
    /// A row length is not a whole number of blocks.
    #[error("{format} rows hold whole blocks of {block_elements} elements, not {cols} elements")]
    PartialBlock {
        /// The row's format.
        format: WeightFormat,
        /// Elements of the row.
        cols: usize,
        /// Elements of one block.
        block_elements: usize,
    },
    /// A byte buffer does not have the size that its row needs.
    #[error("a {format} row of {cols} elements takes {expected_bytes} bytes, not {found_bytes}")]
    RowBytes {
        /// The row's format.
        format: WeightFormat,
        /// Elements of the row.
        cols: usize,
        /// Bytes such a row takes.
        expected_bytes: usize,
        /// Bytes that were given.
        found_bytes: usize,
    },
    /// A buffer is not a whole number of blocks.
    #[error("{format} data is whole blocks of {block_bytes} bytes, not {found_bytes} bytes")]
    PartialBytes {
        /// The data's format.
        format: WeightFormat,
        /// Bytes of one block.
        block_bytes: usize,
        /// Bytes that were given.
        found_bytes: usize,
    },
    /// A byte count does not fit the address space.
    #[error("{rows} rows of {cols} {format} elements exceed the address space")]
    SizeOverflow {
        /// The rows' format.
        format: WeightFormat,
        /// Number of rows.
        rows: usize,
        /// Elements of one row.
        cols: usize,
    },
    /// A value cannot be encoded: not finite, or beyond ±65504, where f16 scales end.
    #[error("{format} cannot hold element {index}, which is {value}: values end at ±65504")]
    Unrepresentable {
        /// The format asked for.
        format: WeightFormat,
        /// Index of the first such element in its row.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// A name is not that of a weight format.
    #[error("unknown weight format {name:?}: expected one of {}", WeightFormat::name_list())]
    UnknownName {
        /// The name that was given.
        name: String,
    },
    /// A name is not that of a KV cache type.
    #[error("unknown KV cache type {name:?}: expected one of {}", KvDtype::name_list())]
    UnknownKvDtype {
        /// The name that was given.
        name: String,
    },
    /// A GGUF tensor type is not among the weight formats.
    #[error(
        "unsupported GGUF tensor type {} (id {id}): supported are {}",
        ggml_type_name(*id).unwrap_or("unknown"),
        WeightFormat::name_list()
    )]
    UnsupportedGgmlType {
        /// The type id of the file.
        id: u32,
    },
}

impl WeightFormat {
    /// Every format, in the order of the enum.
    pub const ALL: [WeightFormat; 11] = [
        WeightFormat::F32,
        WeightFormat::F16,
        WeightFormat::Bf16,
        WeightFormat::Q4_0,
        WeightFormat::Q4_1,
        WeightFormat::Q5_0,
        WeightFormat::Q5_1,
        WeightFormat::Q8_0,
        WeightFormat::Q4K,
        WeightFormat::Q5K,
        WeightFormat::Q6K,
    ];

    /// The name used in flags, logs and messages, such as `q4_k`.
    pub const fn name(self) -> &'static str {
        match self {
            WeightFormat::F32 => "f32",
            WeightFormat::F16 => "f16",
            WeightFormat::Bf16 => "bf16",
            WeightFormat::Q4_0 => "q4_0",
            WeightFormat::Q4_1 => "q4_1",
            WeightFormat::Q5_0 => "q5_0",
            WeightFormat::Q5_1 => "q5_1",
            WeightFormat::Q8_0 => "q8_0",
            WeightFormat::Q4K => "q4_k",
            WeightFormat::Q5K => "q5_k",
            WeightFormat::Q6K => "q6_k",
        }
    }

    /// The names of all formats, comma-separated, for messages.
    pub fn name_list() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Elements of one block; 1 for the plain floating-point formats.
    pub const fn block_elements(self) -> usize {
        match self {
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 => 1,
            WeightFormat::Q4_0
            | WeightFormat::Q4_1
            | WeightFormat::Q5_0
            | WeightFormat::Q5_1
            | WeightFormat::Q8_0 => BLOCK_ELEMENTS,
            WeightFormat::Q4K | WeightFormat::Q5K | WeightFormat::Q6K => SUPERBLOCK_ELEMENTS,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            WeightFormat::F32 => 4,
            WeightFormat::F16 | WeightFormat::Bf16 => 2,
            WeightFormat::Q4_0 => q4_0::BLOCK_BYTES,
            WeightFormat::Q4_1 => q4_1::BLOCK_BYTES,
            WeightFormat::Q5_0 => q5_0::BLOCK_BYTES,
            WeightFormat::Q5_1 => q5_1::BLOCK_BYTES,
            WeightFormat::Q8_0 => q8_0::BLOCK_BYTES,
            WeightFormat::Q4K => q4k::BLOCK_BYTES,
            WeightFormat::Q5K => q5k::BLOCK_BYTES,
            WeightFormat::Q6K => q6k::BLOCK_BYTES,
        }
    }

    /// Bytes of a row of `cols` elements.
    ///
    /// # Errors
    /// [`FormatError::PartialBlock`] when `cols` is not a whole number of blocks,
    /// [`FormatError::SizeOverflow`] when the byte count does not fit `usize`.
    pub fn row_bytes(self, cols: usize) -> Result<usize, FormatError> {
        self.bytes(1, cols)
    }

    /// Bytes of `rows` rows of `cols` elements, stored without gaps.
    ///
    /// # Errors
    /// As [`row_bytes`](Self::row_bytes).
    pub fn bytes(self, rows: usize, cols: usize) -> Result<usize, FormatError> {
        let block_elements = self.block_elements();
        if !cols.is_multiple_of(block_elements) {
            return Err(FormatError::PartialBlock { format: self, cols, block_elements });
        }
        (cols / block_elements)
            .checked_mul(self.block_bytes())
            .and_then(|row_bytes| row_bytes.checked_mul(rows))
            .ok_or(FormatError::SizeOverflow { format: self, rows, cols })
    }

    /// The format of a GGUF tensor type id.
    ///
    /// # Errors
    /// [`FormatError::UnsupportedGgmlType`] for every other id.
    pub fn from_ggml_type(id: u32) -> Result<Self, FormatError> {
        Self::ALL
            .into_iter()
            .find(|format| format.ggml_type() == id)
            .ok_or(FormatError::UnsupportedGgmlType { id })
    }

    /// The format's type id in GGUF files.
    pub const fn ggml_type(self) -> u32 {
        match self {
            WeightFormat::F32 => 0,
            WeightFormat::F16 => 1,
            WeightFormat::Q4_0 => 2,
            WeightFormat::Q4_1 => 3,
            WeightFormat::Q5_0 => 6,
            WeightFormat::Q5_1 => 7,
            WeightFormat::Q8_0 => 8,
            WeightFormat::Q4K => 12,
            WeightFormat::Q5K => 13,
            WeightFormat::Q6K => 14,
            WeightFormat::Bf16 => 30,
        }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for WeightFormat {
    type Err = FormatError;

    /// Reads a [`name`](Self::name), in upper or lower case.
    fn from_str(name: &str) -> Result<Self, FormatError> {
        Self::ALL
            .into_iter()
            .find(|format| format.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| FormatError::UnknownName { name: name.to_owned() })
    }
}

/// The name that GGUF tools give to a tensor type id, supported here or not; `None` if unassigned.
pub const fn ggml_type_name(id: u32) -> Option<&'static str> {
    Some(match id {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        6 => "Q5_0",
        7 => "Q5_1",
        8 => "Q8_0",
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        12 => "Q4_K",
        13 => "Q5_K",
        14 => "Q6_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        30 => "BF16",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_round_trip() {
        for format in WeightFormat::ALL {
            assert_eq!(format.name().parse::<WeightFormat>().as_ref(), Ok(&format));
            assert_eq!(format.name().to_uppercase().parse::<WeightFormat>().as_ref(), Ok(&format));
            assert_eq!(WeightFormat::from_ggml_type(format.ggml_type()).as_ref(), Ok(&format));
            let listed = ggml_type_name(format.ggml_type()).unwrap_or_default();
            assert!(listed.eq_ignore_ascii_case(format.name()), "{format}: {listed}");
        }
    }

    #[test]
    fn published_block_sizes() {
        let sizes = WeightFormat::ALL.map(|f| (f.block_elements(), f.block_bytes()));
        let published = [
            (1, 4),
            (1, 2),
            (1, 2),
            (32, 18),
            (32, 20),
            (32, 22),
            (32, 24),
            (32, 34),
            (256, 144),
            (256, 176),
            (256, 210),
        ];
        assert_eq!(sizes, published);
    }

    #[test]
    fn byte_counts_are_checked() {
        assert_eq!(WeightFormat::Q4_1.row_bytes(576), Ok(360));
        assert_eq!(WeightFormat::Q6K.bytes(3, 512), Ok(1260));
        assert_eq!(WeightFormat::Q8_0.bytes(0, 32), Ok(0));
        assert_eq!(
            WeightFormat::Q4K.row_bytes(576),
            Err(FormatError::PartialBlock {
                format: WeightFormat::Q4K,
                cols: 576,
                block_elements: 256
            })
        );
        let huge = usize::MAX / 32 * 32;
        assert!(matches!(
            WeightFormat::Q8_0.row_bytes(huge),
            Err(FormatError::SizeOverflow { .. })
        ));
        assert!(matches!(
            WeightFormat::F32.bytes(usize::MAX, 2),
            Err(FormatError::SizeOverflow { .. })
        ));
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let error = "q3_k".parse::<WeightFormat>().map_err(|e| e.to_string());
        assert_eq!(
            error,
            Err("unknown weight format \"q3_k\": expected one of f32, f16, bf16, q4_0, q4_1, \
                 q5_0, q5_1, q8_0, q4_k, q5_k, q6_k"
                .to_owned())
        );
        let error = WeightFormat::from_ggml_type(20).map_err(|e| e.to_string());
        assert!(error.is_err_and(|e| e.contains("IQ4_NL (id 20)") && e.contains("q4_k")));
    }
}
