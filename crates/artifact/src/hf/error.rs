//! Why a Hugging Face folder was refused.

use std::io;

/// A folder, or a file of it, that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HfError {
    /// A file could not be opened, read or mapped.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The folder is no model.
    #[error("{folder} is no model: {detail}")]
    Folder {
        /// The folder.
        folder: String,
        /// What it lacks.
        detail: String,
    },
    /// A file breaks its format.
    #[error("{file}: {field}: {detail}")]
    Malformed {
        /// The file.
        file: String,
        /// The field or tensor.
        field: String,
        /// What was found and what was expected.
        detail: String,
    },
}

impl HfError {
    pub(super) fn malformed(file: &str, field: &str, detail: impl Into<String>) -> Self {
        HfError::Malformed { file: file.to_owned(), field: field.to_owned(), detail: detail.into() }
    }
}
