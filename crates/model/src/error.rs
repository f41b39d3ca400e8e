//! Why a model file cannot be loaded.

use crate::Architecture;
use laneway_ops::OpError;

/// Why a model file cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file's architecture is none of ours.
    #[error("architecture {found:?} is not supported (supported: {})", Architecture::name_list())]
    Architecture {
        /// Value of `general.architecture`.
        found: String,
    },
    /// A metadata key is missing, of another type, or its value makes no sense.
    #[error("metadata {key}: {detail}")]
    Metadata {
        /// The key.
        key: String,
        /// What is wrong.
        detail: String,
    },
    /// A tensor that the architecture needs is not in the file.
    #[error("tensor {name} is missing, expected with shape {expected:?}")]
    MissingTensor {
        /// Its name.
        name: String,
        /// Its shape, outermost dimension first.
        expected: Vec<usize>,
    },
    /// A tensor has another shape than the metadata implies.
    #[error("tensor {name} has shape {found:?}, expected {expected:?}")]
    TensorShape {
        /// Its name.
        name: String,
        /// Shape in the file, outermost dimension first.
        found: Vec<usize>,
        /// Shape that the metadata implies.
        expected: Vec<usize>,
    },
    /// The file has tensors that the architecture does not use; ignoring them would compute
    /// something else than the model.
    #[error("tensors that architecture {architecture} does not know: {}", names.join(", "))]
    UnknownTensors {
        /// The architecture.
        architecture: &'static str,
        /// Names and shapes of the tensors.
        names: Vec<String>,
    },
    /// A tensor's data cannot be read.
    #[error("tensor {name}: {detail}")]
    TensorData {
        /// Its name.
        name: String,
        /// What is wrong.
        detail: String,
    },
    /// The options do not fit the model.
    #[error("load options: {0}")]
    Options(String),
    /// The backend refused a weight or had no room.
    #[error("binding {name}: {source}")]
    Backend {
        /// What was being bound or allocated.
        name: String,
        /// The backend's error.
        source: OpError,
    },
}
