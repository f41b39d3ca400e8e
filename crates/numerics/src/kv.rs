//! Element types of the attention cache.

use std::fmt;
use std::str::FromStr;

use crate::FormatError;

/// How one element of K or V is stored in the attention cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of binary32.
    Bf16,
}

impl KvDtype {
    /// Every type, widest first.
    pub const ALL: [KvDtype; 3] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16];

    /// The name used in flags, logs and messages.
    pub const fn name(self) -> &'static str {
        match self {
            KvDtype::F32 => "f32",
            KvDtype::F16 => "f16",
            KvDtype::Bf16 => "bf16",
        }
    }

    /// The names of all types, comma-separated, for messages.
    pub fn name_list() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Bytes of `elements` elements. Saturates, so that an absurd count reads as "does not fit".
    pub const fn bytes(self, elements: usize) -> usize {
        match self {
            KvDtype::F32 => elements.saturating_mul(4),
            KvDtype::F16 | KvDtype::Bf16 => elements.saturating_mul(2),
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for KvDtype {
    type Err = FormatError;

    /// Reads a [`name`](Self::name), in upper or lower case.
    fn from_str(name: &str) -> Result<Self, FormatError> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| FormatError::UnknownKvDtype { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_errors_list_them() {
        for dtype in KvDtype::ALL {
            assert_eq!(dtype.name().parse::<KvDtype>().as_ref(), Ok(&dtype));
        }
        let error = "fp8".parse::<KvDtype>().map_err(|e| e.to_string());
        assert_eq!(
            error,
            Err("unknown KV cache type \"fp8\": expected one of f32, f16, bf16".to_owned())
        );
    }

    #[test]
    fn byte_counts() {
        assert_eq!(KvDtype::F32.bytes(64), 256);
        assert_eq!(KvDtype::F16.bytes(64), 128);
        assert_eq!(KvDtype::Bf16.bytes(64), 128);
        assert_eq!(KvDtype::F32.bytes(usize::MAX), usize::MAX);
    }
}
