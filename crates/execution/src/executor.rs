//! The executor: what a model offers the engine.

use crate::{PageId, SlotId, StepBatch, StepOutput};

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
    /// Most drafts that a segment may hold.
    pub drafts: usize,
    /// Most tokens that the executor proposes behind a segment; 0 if it has no drafter.
    pub proposals: usize,
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

    /// Copies the recurrent state of `from` to `to`, as it is at `position`: behind the tokens
    /// that are certain and the accepted ones of the drafts behind them.
    ///
    /// # Errors
    /// [`ExecutionError::Refused`] for a slot that does not exist or holds no such position.
    fn copy_state(
        &mut self,
        from: SlotId,
        to: SlotId,
        position: usize,
    ) -> Result<(), ExecutionError> {
        let _ = (from, to, position);
        Err(stateless())
    }

    /// Writes the state image of `slot` at `position` (see [`Executor::copy_state`]) to `image`,
    /// [`Geometry::state_bytes`] long. It restores on an executor of the same model and backend.
    ///
    /// # Errors
    /// As [`Executor::copy_state`].
    fn save_state(
        &mut self,
        slot: SlotId,
        position: usize,
        image: &mut Vec<u8>,
    ) -> Result<(), ExecutionError> {
        let _ = (slot, position, image);
        Err(stateless())
    }

    /// Makes `slot` hold an image that was taken at `position`.
    ///
    /// # Errors
    /// [`ExecutionError::Refused`] for a slot that does not exist, or an image of another length.
    fn load_state(
        &mut self,
        slot: SlotId,
        position: usize,
        image: &[u8],
    ) -> Result<(), ExecutionError> {
        let _ = (slot, position, image);
        Err(stateless())
    }
}

fn stateless() -> ExecutionError {
    ExecutionError::Refused("this executor keeps no recurrent state".to_owned())
}
