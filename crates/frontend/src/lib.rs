//! Text in and out: tokenizer, chat template, stop strings and incremental detokenization.
#![forbid(unsafe_code)]
