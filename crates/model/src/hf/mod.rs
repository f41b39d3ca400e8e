//! Hugging Face folders as model files: `config.json` under GGUF's keys, tensors under GGUF's names.

mod config;
mod names;
#[cfg(test)]
mod tests;

use crate::LoadError;
use crate::file::{FileTensor, Layout, ModelFile, Reading};
use config::Family;
use laneway_artifact::{HfFolder, Value};
use laneway_numerics::WeightFormat;
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// A model folder of a supported kind.
#[derive(Debug)]
pub struct HfModel {
    folder: HfFolder,
    metadata: BTreeMap<String, Value>,
    tensors: Vec<Mapped>,
}

/// A tensor of the folder under the name and the shape that binding knows it by.
#[derive(Debug)]
struct Mapped {
    /// Its name in the folder; one for each expert where these stand each by itself.
    sources: Vec<String>,
    name: String,
    format: WeightFormat,
    shape: Vec<usize>,
    reading: Reading,
}

impl HfModel {
    /// Translates what a folder says.
    ///
    /// # Errors
    /// A kind of model that is not supported, values that would change its mathematics, or elements
    /// in a type that is no weight format.
    pub fn new(folder: HfFolder) -> Result<Self, LoadError> {
        let family = Family::of(folder.config())?;
        let has_drafts = folder.tensors().any(|tensor| tensor.name.starts_with("mtp."));
        let mut metadata = family.metadata(folder.config(), has_drafts)?;
        let tokens = vec![0; tokens(&folder)?];
        metadata.insert("tokenizer.ggml.tokens".to_owned(), Value::Unsigneds(tokens));
        let layers = family.layers(folder.config())?;
        let tied = family.tied(folder.config());
        let mut tensors = Vec::new();
        let mut experts = BTreeMap::<String, BTreeMap<usize, Mapped>>::new();
        for tensor in folder.tensors() {
            let Some(target) = names::target(&family, layers, tied, tensor.name) else { continue };
            let Some(format) = tensor.dtype.weight_format() else {
                let dtype = tensor.dtype.name();
                let detail = format!("elements are {dtype}, supported are F32, F16 and BF16");
                return Err(LoadError::TensorData { name: tensor.name.to_owned(), detail });
            };
            let expert = names::expert(&target);
            let mapped = Mapped {
                sources: vec![tensor.name.to_owned()],
                shape: names::shape(&target.name, tensor.shape),
                name: target.name,
                format,
                reading: target.reading,
            };
            match expert {
                Some((name, number)) => {
                    experts.entry(name).or_default().insert(number, mapped);
                }
                None => tensors.push(mapped),
            }
        }
        for (name, experts) in experts {
            tensors.push(stacked(name, experts)?);
        }
        Ok(HfModel { folder, metadata, tensors })
    }

    /// The folder itself.
    #[must_use]
    pub fn folder(&self) -> &HfFolder {
        &self.folder
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        let found = || format!("{key} is {}, expected {wanted}", value.kind());
        read(value).map(Some).ok_or_else(found)
    }
}

impl ModelFile for HfModel {
    fn layout(&self) -> Layout {
        Layout::HuggingFace
    }

    fn text(&self, key: &str) -> Result<Option<&str>, String> {
        self.typed(key, "a string", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    fn unsigned(&self, key: &str) -> Result<Option<u64>, String> {
        self.typed(key, "a number not below 0", |value| match value {
            Value::Unsigned(number) => Some(*number),
            _ => None,
        })
    }

    fn float(&self, key: &str) -> Result<Option<f32>, String> {
        self.typed(key, "a floating-point number", |value| match value {
            Value::F64(number) => Some(*number as f32),
            _ => None,
        })
    }

    fn array_len(&self, key: &str) -> Result<Option<usize>, String> {
        self.typed(key, "an array", Value::array_len)
    }

    fn tensors(&self) -> Vec<FileTensor<'_>> {
        let view = |source: &String| self.folder.tensor(source).map(|view| view.data);
        self.tensors
            .iter()
            .filter_map(|mapped| {
                Some(FileTensor {
                    name: &mapped.name,
                    format: mapped.format,
                    shape: mapped.shape.clone(),
                    parts: mapped.sources.iter().map(view).collect::<Option<_>>()?,
                    reading: mapped.reading,
                })
            })
            .collect()
    }
}

/// One tensor of the matrices of all experts, which must be alike and without a gap.
fn stacked(name: String, experts: BTreeMap<usize, Mapped>) -> Result<Mapped, LoadError> {
    let count = experts.len();
    let mut stacked: Option<Mapped> = None;
    for (wanted, (number, mut expert)) in experts.into_iter().enumerate() {
        let error = |detail: String| {
            let name = expert.sources.first().cloned().unwrap_or_default();
            LoadError::TensorData { name, detail }
        };
        if number != wanted {
            return Err(error(format!("expert {wanted} is missing before it")));
        }
        match &mut stacked {
            None => {
                expert.shape.insert(0, count);
                stacked = Some(Mapped { name: name.clone(), ..expert });
            }
            Some(all) if all.shape[1..] == expert.shape[..] && all.format == expert.format => {
                all.sources.append(&mut expert.sources);
            }
            Some(all) => {
                let (found, other) = (&expert.shape, &all.shape[1..]);
                return Err(error(format!(
                    "{found:?} of {}, other experts are {other:?} of {}",
                    expert.format, all.format
                )));
            }
        }
    }
    stacked.ok_or_else(|| LoadError::MissingTensor { name, expected: vec![count] })
}

/// Number of tokens: one more than the largest id, of the vocabulary or of the tokens added to it.
fn tokens(folder: &HfFolder) -> Result<usize, LoadError> {
    let error = |detail: String| LoadError::Metadata { key: "tokenizer.json".to_owned(), detail };
    let json: Json = serde_json::from_str(folder.tokenizer()).map_err(|e| error(e.to_string()))?;
    let vocabulary = json["model"]["vocab"].as_object().into_iter().flat_map(|v| v.values());
    let added = json["added_tokens"].as_array().into_iter().flatten().map(|t| &t["id"]);
    let largest = vocabulary.chain(added).filter_map(Json::as_u64).max();
    let largest = largest.ok_or_else(|| error("no token has an id".to_owned()))?;
    match u32::try_from(largest) {
        // More than any vocabulary, and it is allocated.
        Ok(largest) if largest < 1 << 24 => Ok(largest as usize + 1),
        _ => Err(error(format!("token id {largest} is too large"))),
    }
}
