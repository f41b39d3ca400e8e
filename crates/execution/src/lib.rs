//! The contract between the engine and a model: batches of token rows in, sampled tokens out.
//!
//! Plain data and one trait. This crate knows neither side: not requests or scheduling (the
//! engine), not tensors or architectures (the model), and it performs no I/O. It sits on the
//! lowest floor so that the op contract, the model, the simulator and the engine all speak of the
//! same step.
//!
//! A step is a ragged [`StepBatch`]: [`Segment`]s of consecutive token rows, each row attending
//! to the pages of its own sequence, and [`SampleRow`]s that say at which rows a token is drawn
//! and how. A prefill chunk, a decode row and a speculative verification differ only in length.
#![forbid(unsafe_code)]

mod batch;
mod executor;
mod output;
mod sampling;

pub use batch::{
    Drafting, PageId, SampleRow, Segment, SequenceId, SlotId, StepBatch, TokenCount, TokenId,
};
pub use executor::{ExecutionError, Executor, Geometry, Limits};
pub use output::{SampledToken, StepOutput};
pub use sampling::{Draw, SamplingKey, SamplingParams, SamplingParamsError};

/// Tokens held by one page of a KV pool.
///
/// Small enough that a short session wastes little, large enough that block tables stay short
/// (4,096 entries at a 262,144-token window).
pub const PAGE_TOKENS: usize = 64;

/// Number of pages that hold `tokens` tokens.
#[must_use]
pub const fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}
