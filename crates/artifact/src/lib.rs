//! Model files: GGUF reader and writer, Hugging Face folders; memory-mapped and validated before
//! use.
//!
//! Nothing a file says is believed before it is checked: every count, length, offset, shape and
//! type is compared with what the file holds *before* anything is allocated for it. A hostile file
//! gets an error naming the file, the field and, in GGUF, the offset.
#![deny(unsafe_code)]

mod cursor;
mod error;
pub mod gguf;
pub mod hf;
mod mapping;
mod write;

pub use error::GgufError;
pub use gguf::{Gguf, TensorView, Value};
pub use hf::{HfError, HfFolder};
pub use write::GgufWriter;
