//! The executor: what a model offers the engine.

use crate::{PageId, StepBatch, StepOutput};

/// Facts about a model that scheduling and planning need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Vocabulary entries; every token is below this.
    pub vocab_size: usize,
    /// Longest context the model was trained for, in tokens.
    pub native_context: usize,
    /// Bytes of one KV page over all attention layers.
    pub page_bytes: usize,
    /// Bytes of one sequence's recurrent state; 0 for attention-only models.
    pub state_bytes: usize,
}

/// What an executor was sized for; a batch beyond a limit is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pages in the KV pool.
    pub pages: usize,
    /// Slots of recurrent state.
    pub state_slots: usize,
    /// Rows of one step.
    pub rows_per_step: usize,
    /// Sampled rows of one step.
    pub samples_per_step: usize,
    /// Most alternatives that a row may ask for.
    pub top_logprobs: usize,
}

/// Why a step did not run.
#[derive(Debug, thiserror::Error)]
pub enum ExecutionError {
    /// The batch breaks a limit or refers to something that does not exist. Nothing was changed.
    #[error("step refused: {0}")]
    Refused(String),
    /// The device failed; sequences in the batch are lost, the executor may be.
    #[error("device failed: {0}")]
    Device(String),
}

/// Runs steps. One thread owns an executor and is its only caller.
pub trait Executor {
    /// The model's facts.
    fn geometry(&self) -> &Geometry;

    /// What this executor was sized for.
    fn limits(&self) -> &Limits;

    /// Runs one step: appends every row to its sequence's pages and fills `output` with one
    /// entry for each of `batch.samples`, in order.
    ///
    /// # Errors
    /// See [`ExecutionError`]; on an error `output` has no meaning.
    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), ExecutionError>;

    /// Copies the first `tokens` tokens of page `from` to page `to`, over all layers.
    ///
    /// # Errors
    /// [`ExecutionError::Refused`] for a page or a length that does not exist.
    fn copy_page(&mut self, from: PageId, to: PageId, tokens: usize) -> Result<(), ExecutionError>;
}
