//! The way into a running engine.

use crate::ledger::{Ledger, Place, Status};
use crate::request::{Ending, Event, EventSink, Failure, Outlet, Request, Stats, SubmitError};
use crate::scheduler::{RequestId, SchedulerConfig};
use crate::speculation::{Drafter, Speculation};
use crate::worker::{self, Started, Submission};
use crossbeam_channel::{Sender, bounded};
use laneway_execution::{Executor, Limits};
use laneway_plan::PrefillCost;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Output tokens that have pages before a request runs: enough that most answers never meet a
/// full pool, little enough that lanes are not empty for fear of long answers.
const RESERVE_OUTPUT: usize = 256;

/// Most lanes, and most waiting requests, whatever is configured: places are allocated at start.
const PLACES_MAX: usize = 1 << 16;

/// Sizes of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Tokens that a sequence may have.
    pub window: usize,
    /// Sequences that run at once.
    pub lanes: usize,
    /// Requests that may wait.
    pub pending_max: usize,
    /// How long they may wait.
    pub pending_timeout: Duration,
    /// Prompt tokens of one step.
    pub chunk: usize,
    /// How requests are speculated on that do not say.
    pub speculation: Speculation,
}

impl EngineConfig {
    fn bounded(mut self) -> Self {
        self.lanes = self.lanes.clamp(1, PLACES_MAX);
        self.pending_max = self.pending_max.min(PLACES_MAX);
        self
    }

    pub(crate) fn for_limits(self, limits: Limits) -> SchedulerConfig {
        let Self { window, lanes, pending_max, pending_timeout, chunk, speculation } =
            self.bounded();
        let reserve_output = RESERVE_OUTPUT;
        SchedulerConfig {
            window,
            lanes,
            pending_max,
            pending_timeout,
            chunk,
            reserve_output,
            speculation,
            limits,
        }
        .fitted()
    }
}

/// Starts engines.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// Starts an engine on its own thread, which also makes the executor, and returns once that
    /// exists. If it cannot be made, the engine has failed.
    pub fn spawn<E, F>(config: EngineConfig, make_executor: F) -> EngineHandle
    where
        E: Executor,
        F: FnOnce() -> E + Send + 'static,
    {
        spawn(config, make_executor, false)
    }

    /// The same, but first runs steps for a moment to learn how fast the executor is, so that
    /// already the first prediction means something.
    pub fn spawn_calibrated<E, F>(config: EngineConfig, make_executor: F) -> EngineHandle
    where
        E: Executor,
        F: FnOnce() -> E + Send + 'static,
    {
        spawn(config, make_executor, true)
    }
}

fn spawn<E, F>(config: EngineConfig, make_executor: F, calibrate: bool) -> EngineHandle
where
    E: Executor,
    F: FnOnce() -> E + Send + 'static,
{
    // Never full: the ledger takes no more requests than this before some have ended.
    let config = config.bounded();
    let outstanding_max = config.lanes + config.pending_max;
    let (sender, submissions) = bounded(outstanding_max);
    let (started_sender, started) = bounded(1);
    let thread = std::thread::Builder::new().name("laneway-engine".to_owned()).spawn(move || {
        worker::run(config, make_executor, calibrate, &started_sender, submissions);
    });
    let started = match thread {
        Ok(_) => started.recv().ok(),
        Err(error) => {
            tracing::error!(%error, "the engine's thread cannot be started");
            None
        }
    };
    let started = started.unwrap_or_else(|| {
        // Nothing runs; the handle says so.
        let limits = Limits {
            pages: 0,
            state_slots: 0,
            rows_per_step: 1,
            samples_per_step: 1,
            top_logprobs: 0,
            drafts: 0,
            proposals: 0,
        };
        let ledger = Ledger::new(config.for_limits(limits), PrefillCost::default());
        ledger.fail();
        Started { ledger: Arc::new(ledger), vocab_size: 0, top_logprobs: 0 }
    });
    EngineHandle(Arc::new(Inner { started, entry: Mutex::new(Entry { sender, next: 1 }) }))
}

/// A running engine. When the last handle is gone, what still runs fails with
/// [`Failure::Shutdown`], and the engine ends.
#[derive(Clone, Debug)]
pub struct EngineHandle(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    started: Started,
    entry: Mutex<Entry>,
}

/// Numbers requests in the order in which the worker receives them.
#[derive(Debug)]
struct Entry {
    sender: Sender<Submission>,
    next: u64,
}

impl EngineHandle {
    /// Tokens that prompt and output of a request may have together.
    #[must_use]
    pub fn window(&self) -> usize {
        self.0.started.ledger.window()
    }

    /// How requests are speculated on that do not say.
    #[must_use]
    pub fn speculation(&self) -> Speculation {
        self.0.started.ledger.speculation()
    }

    /// Most drafts of a step that `drafter` makes here for one sequence; 0 if it is not available.
    #[must_use]
    pub fn longest_draft(&self, drafter: Drafter) -> usize {
        drafter.longest(self.0.started.ledger.limits())
    }

    /// How busy the engine is at this moment.
    #[must_use]
    pub fn status(&self) -> Status {
        self.0.started.ledger.status()
    }

    /// Takes a request or refuses it, without waiting for a step. [`Event::Queued`] is sent
    /// before this returns.
    ///
    /// # Errors
    /// See [`SubmitError`].
    pub fn submit(
        &self,
        mut request: Request,
        mut sink: Box<dyn EventSink>,
    ) -> Result<RequestGuard, SubmitError> {
        let Inner { started, entry } = &*self.0;
        let cancelled = Arc::new(AtomicBool::new(false));
        let guard = RequestGuard(Arc::clone(&cancelled));
        if !is_sound(&request, started.vocab_size) {
            let Place { position, predicted_ttft, .. } =
                started.ledger.look(request.prompt.len(), request.max_tokens)?;
            sink.send(Event::Queued { position, predicted_ttft });
            let stats = Stats { prompt: request.prompt.len(), predicted_ttft, ..Stats::default() };
            let failure = Failure::Execution;
            Outlet::new(sink).end(Ending::Failed { failure, stats });
            return Ok(guard);
        }
        let place = started.ledger.admit(request.prompt.len(), request.max_tokens)?;
        let Place { position, predicted_ttft, own } = place;
        sink.send(Event::Queued { position, predicted_ttft });
        let outlet = Outlet::new(sink);
        request.top_logprobs = request.top_logprobs.min(started.top_logprobs);
        let mut entry = entry.lock().unwrap_or_else(PoisonError::into_inner);
        let id = RequestId(entry.next);
        entry.next += 1;
        let submission = Submission { id, request, outlet, cancelled, predicted_ttft, own };
        // A full channel cannot be, since the ledger took the request; a closed one can.
        entry.sender.try_send(submission).map_err(|refused| {
            refused.into_inner().outlet.end(Ending::Cancelled);
            SubmitError::Stopped
        })?;
        Ok(guard)
    }
}

/// Whether the executor can take what the request says.
fn is_sound(request: &Request, vocab_size: usize) -> bool {
    let known = |&token: &u32| (token as usize) < vocab_size;
    !request.prompt.is_empty()
        && request.prompt.iter().all(known)
        && request.biases.iter().all(|(token, bias)| known(token) && !bias.is_nan())
        && request.sampling.validate().is_ok()
}

/// A request's place in the engine. Dropping it ends the request, wherever it is, with the step
/// that is under way.
#[derive(Debug)]
pub struct RequestGuard(Arc<AtomicBool>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
