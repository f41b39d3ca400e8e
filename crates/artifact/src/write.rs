//! Writing GGUF files (version 3), for tests and for conversions.

use crate::gguf::{ALIGNMENT, Value};
use laneway_numerics::WeightFormat;

/// Collects metadata and tensors, and lays them out as a file.
#[derive(Debug, Default)]
pub struct GgufWriter {
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, WeightFormat, Vec<usize>, Vec<u8>)>,
}

impl GgufWriter {
    /// An empty file.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata entry.
    #[must_use]
    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.metadata.push((key.to_owned(), value));
        self
    }

    /// Adds a tensor; `shape` has the outermost dimension first, `data` its encoded rows.
    #[must_use]
    pub fn tensor(
        mut self,
        name: &str,
        format: WeightFormat,
        shape: &[usize],
        data: Vec<u8>,
    ) -> Self {
        self.tensors.push((name.to_owned(), format, shape.to_vec(), data));
        self
    }

    /// The bytes of the file.
    #[must_use]
    pub fn finish(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            string(&mut out, key);
            out.extend(value.type_id().to_le_bytes());
            value.write(&mut out);
        }
        let mut offset = 0usize;
        for (name, format, shape, data) in &self.tensors {
            string(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|&n| out.extend((n as u64).to_le_bytes()));
            out.extend(format.ggml_type().to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + data.len()).next_multiple_of(ALIGNMENT);
        }
        for (.., data) in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(data);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out
    }
}

/// A length-prefixed string.
pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
