//! Values that are neither plain numbers nor plain text.

use laneway_engine::{DRAFTS_MAX, DraftLength};
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

/// Who drafts tokens for the model to verify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecSetting {
    /// Nobody.
    Off,
    /// The model's own draft layer.
    Mtp,
    /// What followed in the sequence when it last said the same.
    Ngram,
    /// Another, smaller model: a path or a known name.
    Draft(String),
    /// The draft layer if the model has one, else nobody.
    Auto,
}

impl FromStr for SpecSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(SpecSetting::Off),
            "mtp" => Ok(SpecSetting::Mtp),
            "ngram" => Ok(SpecSetting::Ngram),
            "auto" => Ok(SpecSetting::Auto),
            _ => match text.strip_prefix("draft:") {
                Some(model) if !model.is_empty() => Ok(SpecSetting::Draft(model.to_owned())),
                _ => Err("expected `off`, `mtp`, `ngram`, `draft:MODEL` or `auto`".into()),
            },
        }
    }
}

impl fmt::Display for SpecSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecSetting::Off => f.write_str("off"),
            SpecSetting::Mtp => f.write_str("mtp"),
            SpecSetting::Ngram => f.write_str("ngram"),
            SpecSetting::Draft(model) => write!(f, "draft:{model}"),
            SpecSetting::Auto => f.write_str("auto"),
        }
    }
}

/// How many tokens are drafted at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftTokens(pub DraftLength);

impl FromStr for DraftTokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fixed = text.parse().ok().filter(|tokens| (1..=DRAFTS_MAX).contains(tokens));
        match (text, fixed) {
            ("auto", _) => Ok(DraftTokens(DraftLength::Auto)),
            (_, Some(tokens)) => Ok(DraftTokens(DraftLength::Fixed(tokens))),
            _ => Err(format!("expected a number from 1 to {DRAFTS_MAX}, or `auto`")),
        }
    }
}

impl fmt::Display for DraftTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            DraftLength::Auto => f.write_str("auto"),
            DraftLength::Fixed(tokens) => tokens.fmt(f),
        }
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
    fn drafters_are_named() {
        for text in ["off", "mtp", "ngram", "auto", "draft:smollm2-135m", "draft:a/b.gguf"] {
            assert_eq!(text.parse::<SpecSetting>().map(|spec| spec.to_string()), Ok(text.into()));
        }
        for bad in ["", "draft:", "draft", "on", "MTP"] {
            assert!(bad.parse::<SpecSetting>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn draft_tokens_are_a_number_or_auto() {
        for text in ["auto", "1", "16"] {
            assert_eq!(text.parse::<DraftTokens>().map(|n| n.to_string()), Ok(text.into()));
        }
        for bad in ["0", "17", "-1", "many"] {
            assert!(bad.parse::<DraftTokens>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn weights_other_than_auto_are_refused_with_a_reason() {
        let error = "q8_0".parse::<WeightsSetting>().unwrap_err();
        assert!(error.contains("use `auto`"), "{error}");
    }
}
