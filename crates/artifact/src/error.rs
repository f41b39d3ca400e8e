//! Why a model file was refused.

use std::io;

/// A GGUF file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file could not be opened or mapped.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The file breaks the format.
    #[error("{file}: {field} at byte {offset}: {detail}")]
    Malformed {
        /// The file.
        file: String,
        /// What was being read.
        field: String,
        /// Where it stands in the file.
        offset: usize,
        /// What was expected and what was found.
        detail: String,
    },
    /// Tensors in formats that this build does not decode.
    #[error("{file}: unsupported tensor formats: {found} (supported: {supported})")]
    Formats {
        /// The file.
        file: String,
        /// The formats found, each with its first tensor.
        found: String,
        /// The formats that can be read.
        supported: String,
    },
}
