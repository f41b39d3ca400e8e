//! Values that are neither plain numbers nor plain text.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

/// Size of the KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvCapacity {
    /// Every lane's whole window, or what memory allows.
    Auto,
    /// This many tokens.
    Tokens(NonZeroUsize),
}

impl FromStr for KvCapacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(KvCapacity::Auto),
            _ => text
                .parse()
                .map(KvCapacity::Tokens)
                .map_err(|_| "expected a number of tokens above 0, or `auto`".into()),
        }
    }
}

impl fmt::Display for KvCapacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvCapacity::Auto => f.write_str("auto"),
            KvCapacity::Tokens(tokens) => tokens.fmt(f),
        }
    }
}

/// The format that weights are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsSetting {
    /// The file's own formats, packed for the backend.
    Auto,
}

impl FromStr for WeightsSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(WeightsSetting::Auto),
            _ => Err("converting weights while loading is not available: use `auto`, which keeps \
                      the file's formats, and a file in the format that is wanted"
                .into()),
        }
    }
}

impl fmt::Display for WeightsSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("auto")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_a_number_or_auto() {
        assert_eq!("auto".parse(), Ok(KvCapacity::Auto));
        assert_eq!("4096".parse::<KvCapacity>().map(|c| c.to_string()), Ok("4096".into()));
        for bad in ["0", "-1", "4k", ""] {
            assert!(bad.parse::<KvCapacity>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn weights_other_than_auto_are_refused_with_a_reason() {
        let error = "q8_0".parse::<WeightsSetting>().unwrap_err();
        assert!(error.contains("use `auto`"), "{error}");
    }
}
