//! Scalar and block number formats: layout, encode and decode; the scalar code is the specification.
//!
//! Weights arrive as rows of *blocks*: a fixed number of elements packed into a fixed number of
//! bytes. [`WeightFormat`] names a format and does its size arithmetic, [`decode_row`] and
//! [`encode_row`] convert whole rows, and the module of each block format ([`q4_0`], [`q6k`], …)
//! shows a block's exact components (integer codes, scales, minima), so that a backend can repack
//! weights without knowing where their bits lie.
//!
//! A faster decoder anywhere else in the workspace is right when it agrees with this crate.
#![forbid(unsafe_code)]

pub use half::{bf16, f16};

mod codec;
mod fit;
mod format;
mod k_scales;
mod kv;
pub mod q4_0;
pub mod q4_1;
pub mod q4k;
pub mod q5_0;
pub mod q5_1;
pub mod q5k;
pub mod q6k;
pub mod q8_0;

pub use codec::{decode_row, encode_row};
pub use format::{FormatError, WeightFormat, ggml_type_name};
pub use kv::KvDtype;

/// Elements of one superblock of the K formats ([`q4k`], [`q5k`], [`q6k`]).
pub const SUPERBLOCK_ELEMENTS: usize = 256;

/// Elements of one block of the plain formats ([`q4_0`] … [`q8_0`]), and of one sub-block of
/// [`q4k`] and [`q5k`].
pub const BLOCK_ELEMENTS: usize = 32;
