//! Folders as the transformers library writes them: weights in safetensors, everything else in
//! JSON.

mod dtype;
mod error;
pub mod safetensors;
#[cfg(test)]
mod tests;

pub use dtype::Dtype;
pub use error::HfError;
pub use safetensors::{SafetensorView, Safetensors};

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};

/// Most bytes of a JSON or template file; the largest known tokenizers take 35 MB.
const TEXT_BYTES_MAX: u64 = 256 << 20;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const TEMPLATE: &str = "chat_template.jinja";
const TEMPLATE_JSON: &str = "chat_template.json";

/// A validated model folder.
#[derive(Debug)]
pub struct HfFolder {
    path: PathBuf,
    config: Value,
    tokenizer: String,
    tokenizer_config: Value,
    generation_config: Value,
    chat_template: Option<String>,
    shards: Vec<Safetensors>,
}

impl HfFolder {
    /// Reads a folder's descriptions, maps its weights and validates both.
    ///
    /// # Errors
    /// See [`HfError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, HfError> {
        let path = path.as_ref();
        let missing: Vec<&str> = [
            (CONFIG, path.join(CONFIG).is_file()),
            (TOKENIZER, path.join(TOKENIZER).is_file()),
            ("model.safetensors (or its index)", has_weights(path)),
        ]
        .into_iter()
        .filter_map(|(file, is_there)| (!is_there).then_some(file))
        .collect();
        if !missing.is_empty() {
            let detail = format!("it has no {}", missing.join(", no "));
            return Err(HfError::Folder { folder: path.display().to_string(), detail });
        }
        let tokenizer_config = json(path, TOKENIZER_CONFIG)?.unwrap_or_default();
        let tokenizer = text(path, TOKENIZER)?.unwrap_or_default();
        Ok(HfFolder {
            config: json(path, CONFIG)?.unwrap_or_default(),
            tokenizer,
            generation_config: json(path, GENERATION_CONFIG)?.unwrap_or_default(),
            chat_template: chat_template(path, &tokenizer_config)?,
            tokenizer_config,
            shards: shards(path)?,
            path: path.to_owned(),
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `config.json`, an object.
    #[must_use]
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The text of `tokenizer.json`.
    #[must_use]
    pub fn tokenizer(&self) -> &str {
        &self.tokenizer
    }

    /// `tokenizer_config.json`, an object; null if there is none.
    #[must_use]
    pub fn tokenizer_config(&self) -> &Value {
        &self.tokenizer_config
    }

    /// `generation_config.json`, an object; null if there is none.
    #[must_use]
    pub fn generation_config(&self) -> &Value {
        &self.generation_config
    }

    /// The chat template's source, from its own file or else from the tokenizer's configuration.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// All tensors, shard after shard.
    pub fn tensors(&self) -> impl Iterator<Item = SafetensorView<'_>> {
        self.shards.iter().flat_map(Safetensors::tensors)
    }

    /// The tensor of this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<SafetensorView<'_>> {
        self.shards.iter().find_map(|shard| shard.tensor(name))
    }
}

fn has_weights(path: &Path) -> bool {
    [WEIGHTS, INDEX].iter().any(|file| path.join(file).is_file())
}

/// The content of a text file; `None` if there is none.
fn text(folder: &Path, file: &str) -> Result<Option<String>, HfError> {
    let path = folder.join(file);
    let name = path.display().to_string();
    let io = |source| HfError::Io { file: name.clone(), source };
    let opened = match File::open(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(io)?,
    };
    let mut text = String::new();
    opened.take(TEXT_BYTES_MAX + 1).read_to_string(&mut text).map_err(io)?;
    if text.len() as u64 > TEXT_BYTES_MAX {
        let detail = format!("more than {TEXT_BYTES_MAX} bytes");
        return Err(HfError::malformed(&name, "length", detail));
    }
    Ok(Some(text))
}

/// The JSON object in a file; `None` if there is no such file.
fn json(folder: &Path, file: &str) -> Result<Option<Value>, HfError> {
    let Some(text) = text(folder, file)? else { return Ok(None) };
    let error = |detail: String| {
        HfError::malformed(&folder.join(file).display().to_string(), "JSON", detail)
    };
    match serde_json::from_str(&text) {
        Ok(value @ Value::Object(_)) => Ok(Some(value)),
        Ok(_) => Err(error("no object".to_owned())),
        Err(e) => Err(error(e.to_string())),
    }
}

fn chat_template(folder: &Path, tokenizer_config: &Value) -> Result<Option<String>, HfError> {
    if let Some(template) = text(folder, TEMPLATE)? {
        return Ok(Some(template));
    }
    let (file, holder) = match json(folder, TEMPLATE_JSON)? {
        Some(json) => (TEMPLATE_JSON, json),
        None => (TOKENIZER_CONFIG, tokenizer_config.clone()),
    };
    match &holder["chat_template"] {
        Value::Null => Ok(None),
        Value::String(template) => Ok(Some(template.clone())),
        // Several by name; the one for conversations is called so.
        Value::Array(named) => {
            let template = named.iter().find(|entry| entry["name"] == "default");
            Ok(template.and_then(|entry| entry["template"].as_str()).map(str::to_owned))
        }
        _ => {
            let file = folder.join(file).display().to_string();
            Err(HfError::malformed(&file, "chat_template", "expected a string or a list"))
        }
    }
}

/// The weights: one file, or those that the index names.
fn shards(folder: &Path) -> Result<Vec<Safetensors>, HfError> {
    let Some(index) = json(folder, INDEX)? else {
        return Ok(vec![Safetensors::open(&folder.join(WEIGHTS))?]);
    };
    let index_file = folder.join(INDEX).display().to_string();
    let error = |field: &str, detail: String| HfError::malformed(&index_file, field, detail);
    let Value::Object(map) = &index["weight_map"] else {
        return Err(error("weight_map", "missing or no object".to_owned()));
    };
    let mut by_file: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, file) in map {
        match file.as_str() {
            Some(file) if is_plain(file) => by_file.entry(file).or_default().push(tensor),
            _ => return Err(error(tensor, format!("{file}, expected the name of a file"))),
        }
    }
    let mut shards = Vec::new();
    for (file, names) in by_file {
        let shard = Safetensors::open(&folder.join(file))?;
        if let Some(absent) = names.iter().find(|name| shard.tensor(name).is_none()) {
            return Err(error(absent, format!("{file} has no such tensor")));
        }
        for tensor in shard.tensors() {
            match map.get(tensor.name).and_then(Value::as_str) {
                Some(named) if named == file => {}
                Some(named) => {
                    return Err(error(tensor.name, format!("it is in {file} and in {named}")));
                }
                None => return Err(error(tensor.name, format!("in {file}, but not listed"))),
            }
        }
        shards.push(shard);
    }
    Ok(shards)
}

/// True for a name without folders, so that an index cannot point out of its own.
fn is_plain(file: &str) -> bool {
    let mut parts = Path::new(file).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}
