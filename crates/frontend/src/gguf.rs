//! Tokenizer and chat template of a GGUF file.

use crate::template::{ChatTemplate, TemplateError};
use crate::tokenizer::{Tokenizer, TokenizerError, TokenizerSource};
use laneway_artifact::Gguf;

impl TokenizerSource {
    /// Reads what a GGUF file says about its tokenizer.
    ///
    /// # Errors
    /// Missing or mistyped metadata, or a tokenizer that is no byte-level BPE.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let missing = |name: &str| TokenizerError::Metadata(format!("{} is missing", key(name)));
        let text = |name| gguf.text(&key(name)).map_err(TokenizerError::Metadata);
        let texts = |name| {
            let texts = gguf.texts(&key(name)).map_err(TokenizerError::Metadata)?;
            texts.map(<[String]>::to_vec).ok_or_else(|| missing(name))
        };
        let id = |name| -> Result<Option<u32>, TokenizerError> {
            let id = gguf.unsigned(&key(name)).map_err(TokenizerError::Metadata)?;
            Ok(id.and_then(|id| u32::try_from(id).ok()))
        };
        let model = text("model")?.ok_or_else(|| missing("model"))?;
        if model != "gpt2" {
            let (what, found) = ("tokenizer", model.to_owned());
            return Err(TokenizerError::Unknown { what, found, known: "gpt2 (byte-level BPE)" });
        }
        let pre = text("pre")?.unwrap_or("default").to_owned();
        let adds_bos = gguf.truth(&key("add_bos_token")).map_err(TokenizerError::Metadata)?;
        // Files from before the key existed: of these families, Llama 3 begins with its token.
        let adds_bos = adds_bos.unwrap_or(pre == "llama-bpe");
        Ok(TokenizerSource {
            tokens: texts("tokens")?,
            kinds: gguf
                .integers(&key("token_type"))
                .map_err(TokenizerError::Metadata)?
                .unwrap_or_default(),
            merges: texts("merges")?,
            bos: id("bos_token_id")?.filter(|_| adds_bos),
            ends: id("eos_token_id")?.into_iter().chain(id("eot_token_id")?).collect(),
            pre,
        })
    }
}

impl Tokenizer {
    /// The tokenizer of a GGUF file.
    ///
    /// # Errors
    /// See [`TokenizerError`].
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        Self::new(TokenizerSource::from_gguf(gguf)?)
    }
}

impl ChatTemplate {
    /// The chat template of a GGUF file, if it has one.
    ///
    /// # Errors
    /// A template that cannot be compiled.
    pub fn from_gguf(gguf: &Gguf) -> Result<Option<Self>, TemplateError> {
        let text = |key| gguf.text(key).map_err(TemplateError::Metadata);
        let Some(source) = text("tokenizer.chat_template")? else { return Ok(None) };
        let token = |key: &str| {
            let id = gguf.unsigned(key).ok().flatten().and_then(|id| usize::try_from(id).ok())?;
            gguf.texts("tokenizer.ggml.tokens").ok().flatten()?.get(id).cloned()
        };
        let bos = token("tokenizer.ggml.bos_token_id").unwrap_or_default();
        let eos = token("tokenizer.ggml.eos_token_id").unwrap_or_default();
        Self::new(source, &bos, &eos).map(Some)
    }
}
