//! GGUF files as model files.

use crate::file::{FileTensor, Layout, ModelFile, Reading};
use laneway_artifact::Gguf;

impl ModelFile for Gguf {
    fn layout(&self) -> Layout {
        Layout::Gguf
    }

    fn text(&self, key: &str) -> Result<Option<&str>, String> {
        Gguf::text(self, key)
    }

    fn unsigned(&self, key: &str) -> Result<Option<u64>, String> {
        Gguf::unsigned(self, key)
    }

    fn float(&self, key: &str) -> Result<Option<f32>, String> {
        Gguf::float(self, key)
    }

    fn array_len(&self, key: &str) -> Result<Option<usize>, String> {
        Gguf::array_len(self, key)
    }

    fn tensors(&self) -> Vec<FileTensor<'_>> {
        Gguf::tensors(self)
            .map(|tensor| FileTensor {
                name: tensor.name,
                format: tensor.format,
                shape: tensor.shape.to_vec(),
                parts: vec![tensor.data],
                reading: Reading::Plain,
            })
            .collect()
    }
}
