//! Text in and out: tokenizer, chat template, stop strings and incremental detokenization.
//!
//! This crate knows neither HTTP nor scheduling: text and messages become tokens, tokens become
//! text.
#![forbid(unsafe_code)]

mod bytes;
mod gguf;
mod hf;
mod output;
mod pre;
mod template;
mod tokenizer;

pub use output::OutputText;
pub use template::{ChatTemplate, TemplateError};
pub use tokenizer::{EncodeError, Tokenizer, TokenizerError, TokenizerSource};
