//! Pre-tokenizers: how text is split before merges, by the names that GGUF files give.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

/// Kinds that are known.
pub(crate) const KNOWN: &str = "default, gpt-2, llama-bpe, qwen2, qwen35, smollm";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The pre-tokenizer named `kind`; `None` if there is none.
pub(crate) fn named(kind: &str) -> Option<tokenizers::Result<PreTokenizerWrapper>> {
    // GPT-2's own split is built into the byte-level step.
    let gpt2 = || PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, true));
    Some(match kind {
        "default" | "gpt-2" => Ok(gpt2()),
        "smollm" => Ok(PreTokenizerWrapper::Sequence(Sequence::new(vec![
            PreTokenizerWrapper::Digits(Digits::new(true)),
            gpt2(),
        ]))),
        "llama-bpe" => split(LLAMA3),
        "qwen2" => split(QWEN2),
        "qwen35" => split(QWEN35),
        _ => return None,
    })
}

/// The name of the pre-tokenizer that splits by `pattern`.
pub(crate) fn by_pattern(pattern: &str) -> Option<&'static str> {
    let known = [(LLAMA3, "llama-bpe"), (QWEN2, "qwen2"), (QWEN35, "qwen35")];
    known.into_iter().find(|(known, _)| *known == pattern).map(|(_, name)| name)
}

fn split(pattern: &str) -> tokenizers::Result<PreTokenizerWrapper> {
    let pattern = SplitPattern::Regex(pattern.to_owned());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?;
    let bytes = ByteLevel::new(false, true, false);
    Ok(PreTokenizerWrapper::Sequence(Sequence::new(vec![
        PreTokenizerWrapper::Split(split),
        PreTokenizerWrapper::ByteLevel(bytes),
    ])))
}
