//! The engine: requests in, events out; strict order of arrival; one thread over any executor.
//!
//! [`Scheduler`] decides who runs when, as a pure state machine. A worker thread owns it and the
//! executor, and is the only one to change either. [`EngineHandle`] is the way in: it takes or
//! refuses a request at once, by a small ledger that it shares with the worker, so that nobody
//! waits for a step to learn where they stand.
//!
//! Running answers may be speculated on ([`Speculation`]): several guessed tokens are verified in
//! one step. [`WithDraft`] makes an executor that guesses with a smaller model.
#![forbid(unsafe_code)]

mod calibrate;
mod handle;
mod ledger;
mod plan;
mod pool;
mod request;
mod scheduler;
mod sequence;
mod speculation;
mod with_draft;
mod worker;

pub use handle::{Engine, EngineConfig, EngineHandle, RequestGuard};
pub use ledger::Status;
pub use plan::StepLoad;
pub use request::{Ending, Event, EventSink, Failure, FinishReason, Request, Stats, SubmitError};
pub use scheduler::{Notice, RequestId, Scheduler, SchedulerConfig};
pub use speculation::{DRAFTS_MAX, DraftLength, Drafter, Speculation, SpeculationStats};
pub use with_draft::{DraftMismatch, WithDraft};
