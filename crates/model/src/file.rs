//! What binding needs of a model file, and the typed reading of its metadata.

use crate::{Architecture, LoadError};
use laneway_numerics::WeightFormat;
use std::borrow::Cow;

/// A tensor of a model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Format of its rows.
    pub format: WeightFormat,
    /// Its shape, outermost dimension first: `[outputs, inputs]` for a matrix.
    pub shape: Vec<usize>,
    /// Encoded rows, row after row: one part, or one for each expert where a file has these each
    /// by itself.
    pub parts: Vec<&'a [u8]>,
    /// How to read the elements of a vector, where files differ.
    pub reading: Reading,
}

/// What the elements of a vector have to go through to be what the architecture speaks of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reading {
    /// They are as they are.
    #[default]
    Plain,
    /// One more: norm weights that are stored as their distance from 1.
    PlusOne,
    /// `-exp(x)`: decay rates that are stored as their logarithm.
    NegativeExp,
}

impl Reading {
    /// Applies it.
    pub(crate) fn apply(self, values: &mut [f32]) {
        match self {
            Reading::Plain => {}
            Reading::PlusOne => values.iter_mut().for_each(|v| *v += 1.0),
            Reading::NegativeExp => {
                values.iter_mut().for_each(|v| *v = -f64::from(*v).exp() as f32);
            }
        }
    }
}

/// Orders of rows that differ between the programs that write files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As llama.cpp's converter writes them: the rows of Llama's query and key heads are ordered
    /// for interleaved rotation, value heads of delta layers are tiled over the key heads.
    Gguf,
    /// As the transformers library has them: heads rotate by halves, value heads of delta layers
    /// are grouped by key head.
    HuggingFace,
}

impl<'a> FileTensor<'a> {
    /// Bytes of all encoded rows.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    /// All encoded rows; copied only if there are several parts.
    #[must_use]
    pub fn data(&self) -> Cow<'a, [u8]> {
        match self.parts[..] {
            [part] => Cow::Borrowed(part),
            _ => Cow::Owned(self.parts.concat()),
        }
    }

    /// Number of elements.
    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Rows and columns, the last dimension being the columns.
    pub(crate) fn rows_and_columns(&self) -> (usize, usize) {
        let cols = self.shape.last().copied().unwrap_or(1);
        (self.elements() / cols.max(1), cols)
    }
}

/// A model file: metadata under GGUF's keys, and tensors under GGUF's names.
///
/// Readers return `Ok(None)` for a key that is absent, and for one of another type an error that
/// says what was found.
pub trait ModelFile {
    /// In which order rows stand.
    fn layout(&self) -> Layout;

    /// A string.
    ///
    /// # Errors
    /// What the key holds instead.
    fn text(&self, key: &str) -> Result<Option<&str>, String>;

    /// A number that is whole and not negative, whatever its width.
    ///
    /// # Errors
    /// What the key holds instead.
    fn unsigned(&self, key: &str) -> Result<Option<u64>, String>;

    /// A floating-point number.
    ///
    /// # Errors
    /// What the key holds instead.
    fn float(&self, key: &str) -> Result<Option<f32>, String>;

    /// Length of an array.
    ///
    /// # Errors
    /// What the key holds instead.
    fn array_len(&self, key: &str) -> Result<Option<usize>, String>;

    /// All tensors, their data lying in the file.
    fn tensors(&self) -> Vec<FileTensor<'_>>;
}

/// Names the architecture, in every file.
const ARCHITECTURE: &str = "general.architecture";

/// The file's architecture.
pub(crate) fn architecture(file: &dyn ModelFile) -> Result<Architecture, LoadError> {
    let metadata = |detail| LoadError::Metadata { key: ARCHITECTURE.to_owned(), detail };
    let found = file.text(ARCHITECTURE).map_err(metadata)?;
    let found = found.ok_or_else(|| metadata("missing".to_owned()))?;
    Architecture::named(found).ok_or_else(|| LoadError::Architecture { found: found.to_owned() })
}

/// Metadata under an architecture's prefix.
pub(crate) struct Metadata<'a> {
    prefix: &'static str,
    file: &'a dyn ModelFile,
}

impl<'a> Metadata<'a> {
    pub fn new(architecture: &Architecture, file: &'a dyn ModelFile) -> Self {
        Metadata { prefix: architecture.name, file }
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    pub fn error(&self, key: &str, detail: impl Into<String>) -> LoadError {
        LoadError::Metadata { key: self.full(key), detail: detail.into() }
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, LoadError> {
        value.ok_or_else(|| self.error(key, "missing"))
    }

    fn size_if_present(&self, key: &str) -> Result<Option<usize>, LoadError> {
        let value = self.file.unsigned(&self.full(key)).map_err(|e| self.error(key, e))?;
        // Products of two sizes must not overflow, whatever a file says.
        let fits = |value: u64| match u32::try_from(value) {
            Ok(value) => Ok(value as usize),
            Err(_) => Err(self.error(key, format!("{value} is too large"))),
        };
        value.map(fits).transpose()
    }

    /// A size that must be there and positive.
    pub fn size(&self, key: &str) -> Result<usize, LoadError> {
        match self.required(key, self.size_if_present(key)?)? {
            0 => Err(self.error(key, "0, expected a positive number")),
            size => Ok(size),
        }
    }

    /// A positive size, or `default` if the key is absent.
    pub fn size_or(&self, key: &str, default: usize) -> Result<usize, LoadError> {
        if self.size_if_present(key)?.is_some() { self.size(key) } else { Ok(default) }
    }

    /// How many there are of something that may be absent.
    pub fn count(&self, key: &str) -> Result<usize, LoadError> {
        Ok(self.size_if_present(key)?.unwrap_or(0))
    }

    fn float(&self, key: &str) -> Result<Option<f32>, LoadError> {
        let value = self.file.float(&self.full(key)).map_err(|e| self.error(key, e))?;
        match value {
            Some(value) if !(value > 0.0 && value.is_finite()) => {
                Err(self.error(key, format!("{value}, expected a positive number")))
            }
            value => Ok(value),
        }
    }

    /// A positive number that must be there.
    pub fn positive(&self, key: &str) -> Result<f32, LoadError> {
        self.required(key, self.float(key)?)
    }

    /// A positive number, or `default` if the key is absent.
    pub fn positive_or(&self, key: &str, default: f32) -> Result<f32, LoadError> {
        Ok(self.float(key)?.unwrap_or(default))
    }

    /// A string, or `default` if the key is absent.
    pub fn text_or(&self, key: &str, default: &'a str) -> Result<&'a str, LoadError> {
        let value = self.file.text(&self.full(key)).map_err(|e| self.error(key, e))?;
        Ok(value.unwrap_or(default))
    }
}
