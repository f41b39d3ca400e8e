//! Where a model's bytes come from: a GGUF file or a Hugging Face folder.

use anyhow::{Context, Result};
use laneway_artifact::{Gguf, HfFolder};
use laneway_frontend::{ChatTemplate, Tokenizer};
use laneway_model::{HfModel, ModelFile};
use std::path::Path;

/// An open model. What differs between kinds of sources is decided here and nowhere else.
pub enum Source {
    /// A GGUF file.
    Gguf(Box<Gguf>),
    /// A Hugging Face folder.
    Folder(Box<HfModel>),
}

impl Source {
    /// Opens a file, or a folder.
    ///
    /// # Errors
    /// What is no model, or none that can be run.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return Ok(Source::Gguf(Box::new(Gguf::open(path)?)));
        }
        let folder = HfFolder::open(path)?;
        let model = HfModel::new(folder).with_context(|| cannot_run(path))?;
        Ok(Source::Folder(Box::new(model)))
    }

    /// Metadata and tensors.
    #[must_use]
    pub fn file(&self) -> &dyn ModelFile {
        match self {
            Source::Gguf(gguf) => &**gguf,
            Source::Folder(model) => &**model,
        }
    }

    /// Tokenizer and, if there is one, chat template.
    ///
    /// # Errors
    /// A tokenizer or template that Laneway cannot read.
    pub fn text(&self) -> Result<(Tokenizer, Option<ChatTemplate>)> {
        Ok(match self {
            Source::Gguf(gguf) => (
                Tokenizer::from_gguf(gguf).context("the tokenizer")?,
                ChatTemplate::from_gguf(gguf).context("the chat template")?,
            ),
            Source::Folder(model) => (
                Tokenizer::from_hf(model.folder()).context("the tokenizer")?,
                ChatTemplate::from_hf(model.folder()).context("the chat template")?,
            ),
        })
    }

    /// What the model is called that lies at `path`: a folder's name, a file's without its ending.
    #[must_use]
    pub fn name(&self, path: &Path) -> String {
        let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let name = match self {
            Source::Gguf(_) => path.file_stem(),
            Source::Folder(_) => whole.file_name(),
        };
        name.unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The head of errors about models that cannot be run.
pub fn cannot_run(path: &Path) -> String {
    format!("cannot run {}", path.display())
}
