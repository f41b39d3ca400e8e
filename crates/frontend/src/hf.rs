//! Tokenizer and chat template of a Hugging Face folder.

use crate::pre;
use crate::template::{ChatTemplate, TemplateError};
use crate::tokenizer::{Tokenizer, TokenizerError, TokenizerSource, kind};
use laneway_artifact::HfFolder;
use serde_json::Value;

/// More tokens than any vocabulary has; a list of this length is allocated.
const TOKENS_MAX: u64 = 1 << 24;

fn bad(detail: impl Into<String>) -> TokenizerError {
    TokenizerError::Metadata(detail.into())
}

impl TokenizerSource {
    /// Reads what a folder says about its tokenizer.
    ///
    /// # Errors
    /// A `tokenizer.json` that is no byte-level BPE, or whose way of splitting is not known.
    pub fn from_hf(folder: &HfFolder) -> Result<Self, TokenizerError> {
        let json: Value = serde_json::from_str(folder.tokenizer())
            .map_err(|e| bad(format!("tokenizer.json: {e}")))?;
        let model = &json["model"];
        if model["type"] != "BPE" || model["byte_fallback"] == true {
            let found = match model["byte_fallback"] == true {
                true => "BPE with byte fallback".to_owned(),
                false => model["type"].to_string(),
            };
            let (what, known) = ("tokenizer", "byte-level BPE");
            return Err(TokenizerError::Unknown { what, found, known });
        }
        let pre = pre_tokenizer(&json)?;
        let (tokens, kinds) = tokens(&json)?;
        let id = |text: &str| {
            let at = tokens.iter().position(|token| token == text)?;
            u32::try_from(at).ok()
        };
        let token = |key: &str| token_text(folder, key);
        let adds_bos = folder.tokenizer_config()["add_bos_token"].as_bool();
        let adds_bos = adds_bos.unwrap_or_else(|| begins_with_special(&json["post_processor"]));
        let mut ends: Vec<u32> =
            token("eos_token").and_then(|text| id(&text)).into_iter().collect();
        let config = folder.config();
        for holder in [config, &config["text_config"], folder.generation_config()] {
            ends.extend(ids(&holder["eos_token_id"]));
        }
        Ok(TokenizerSource {
            bos: token("bos_token").filter(|_| adds_bos).and_then(|text| id(&text)),
            ends,
            pre: pre.to_owned(),
            merges: merges(&model["merges"])?,
            tokens,
            kinds,
        })
    }
}

impl Tokenizer {
    /// The tokenizer of a Hugging Face folder.
    ///
    /// # Errors
    /// See [`TokenizerError`].
    pub fn from_hf(folder: &HfFolder) -> Result<Self, TokenizerError> {
        Self::new(TokenizerSource::from_hf(folder)?)
    }
}

impl ChatTemplate {
    /// The chat template of a Hugging Face folder, if it has one.
    ///
    /// # Errors
    /// A template that cannot be compiled.
    pub fn from_hf(folder: &HfFolder) -> Result<Option<Self>, TemplateError> {
        let Some(source) = folder.chat_template() else { return Ok(None) };
        let token = |key| token_text(folder, key).unwrap_or_default();
        Self::new(source, &token("bos_token"), &token("eos_token")).map(Some)
    }
}

/// A special token of the tokenizer's configuration: a string, or an object that holds it.
fn token_text(folder: &HfFolder, key: &str) -> Option<String> {
    let token = &folder.tokenizer_config()[key];
    token.as_str().or(token["content"].as_str()).map(str::to_owned)
}

/// One id, or a list of them.
fn ids(value: &Value) -> Vec<u32> {
    let one = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value.as_array() {
        Some(list) => list.iter().filter_map(one).collect(),
        None => one(value).into_iter().collect(),
    }
}

/// All tokens by id, and the kind of each.
fn tokens(json: &Value) -> Result<(Vec<String>, Vec<i64>), TokenizerError> {
    let vocabulary = json["model"]["vocab"].as_object();
    let vocabulary = vocabulary.ok_or_else(|| bad("tokenizer.json: model.vocab is missing"))?;
    let mut found = Vec::new();
    for (text, id) in vocabulary {
        let id = id.as_u64().filter(|&id| id < TOKENS_MAX);
        found.push((id.ok_or_else(|| bad(format!("token {text:?} has no id")))?, text.as_str(), 1));
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let id = added["id"].as_u64().filter(|&id| id < TOKENS_MAX);
        let (Some(text), Some(id)) = (added["content"].as_str(), id) else {
            return Err(bad(format!("added token {added} has no content or no id")));
        };
        for flag in ["lstrip", "rstrip", "single_word"] {
            if added[flag] == true {
                return Err(bad(format!(
                    "added token {text:?} has {flag}, which is not supported"
                )));
            }
        }
        let kind = if added["special"] == true { kind::CONTROL } else { kind::USER_DEFINED };
        found.push((id, text, kind));
    }
    let count = found.iter().map(|&(id, ..)| id as usize + 1).max().unwrap_or(0);
    // Ids that nothing has get a name of their own, which no merge leads to.
    let mut tokens: Vec<String> = (0..count).map(|id| format!("[unused {id}]")).collect();
    let mut kinds = vec![kind::UNUSED; count];
    for (id, text, kind) in found {
        let id = id as usize;
        if kinds[id] != kind::UNUSED && tokens[id] != text {
            return Err(bad(format!("tokens {:?} and {text:?} both have id {id}", tokens[id])));
        }
        text.clone_into(&mut tokens[id]);
        kinds[id] = kind;
    }
    Ok((tokens, kinds))
}

/// Merges in GGUF's writing; files have strings or, since tokenizers 0.20, pairs.
fn merges(value: &Value) -> Result<Vec<String>, TokenizerError> {
    let list = value.as_array().ok_or_else(|| bad("tokenizer.json: model.merges is missing"))?;
    let merge = |merge: &Value| match merge {
        Value::String(text) => Some(text.clone()),
        pair => Some(format!("{} {}", pair[0].as_str()?, pair[1].as_str()?)),
    };
    let read = |m| merge(m).ok_or_else(|| bad(format!("merge {m} is not a pair of pieces")));
    list.iter().map(read).collect()
}

/// True if the post-processor puts a special token before a text.
fn begins_with_special(processor: &Value) -> bool {
    let parts = processor["processors"].as_array();
    let first = |part: &Value| part["single"][0]["SpecialToken"].is_object();
    first(processor) || parts.into_iter().flatten().any(first)
}

/// The name of the pre-tokenizer that a file describes; its other steps have to be those that the
/// name stands for.
fn pre_tokenizer(json: &Value) -> Result<&'static str, TokenizerError> {
    let described = &json["pre_tokenizer"];
    let steps: Vec<&Value> = match described["pretokenizers"].as_array() {
        Some(steps) => steps.iter().collect(),
        None => vec![described],
    };
    let unknown = || TokenizerError::Unknown {
        what: "pre-tokenizer",
        found: described.to_string(),
        known: pre::KNOWN,
    };
    let pre = match steps[..] {
        [bytes] if bytes["type"] == "ByteLevel" && bytes["use_regex"] != false => "gpt-2",
        [digits, bytes] if digits["type"] == "Digits" && bytes["type"] == "ByteLevel" => "smollm",
        [split, bytes] if split["type"] == "Split" && bytes["use_regex"] == false => {
            let pattern = split["pattern"]["Regex"].as_str();
            pattern.and_then(pre::by_pattern).ok_or_else(unknown)?
        }
        _ => return Err(unknown()),
    };
    let composes = json["normalizer"]["type"] == "NFC";
    if composes != pre.starts_with("qwen") || !(composes || json["normalizer"].is_null()) {
        let found = &json["normalizer"];
        return Err(bad(format!("normalizer {found} with pre-tokenizer {pre} is not supported")));
    }
    Ok(pre)
}
