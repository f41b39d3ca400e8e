//! Architectures as data plus one forward pass a family, written once over the op contract.
//!
//! - [`Architecture`] says what distinguishes one decoder from another, [`ModelConfig`] holds the
//!   sizes that a file states.
//! - [`Model::load`] binds a file's tensors to a backend, one after the other, and refuses files
//!   whose tensors are missing, unknown or of another shape.
//! - [`Model`] implements [`laneway_execution::Executor`]: it checks a step, then runs it.
//!
//! This crate does not know which backend runs it, nor what a request is.
#![forbid(unsafe_code)]

mod architecture;
mod bind;
mod config;
mod draft;
mod error;
mod file;
mod forward;
mod gguf;
mod hf;
mod inventory;
mod model;
mod rope;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod validate;
mod weights;

pub use architecture::{ARCHITECTURES, Architecture, LLAMA, QWEN2, QWEN3, QWEN35, QWEN35MOE};
pub use bind::{LoadProgress, packed_weight_bytes};
pub use config::{DeltaConfig, ExpertsConfig, ModelConfig};
pub use error::LoadError;
pub use file::{FileTensor, Layout, ModelFile, Reading};
pub use hf::HfModel;
pub use model::{LoadOptions, Model};
pub use rope::RopeScaling;
