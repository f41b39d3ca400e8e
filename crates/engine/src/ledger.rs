//! What submitting threads and the worker know in common: who is here, and how long it will take.
//!
//! A mutex guards a handful of numbers and is never held while anything is computed.

use crate::request::SubmitError;
use crate::scheduler::SchedulerConfig;
use crate::speculation::{Speculation, SpeculationStats};
use laneway_execution::Limits;
use laneway_plan::PrefillCost;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Shortest advice to a client about when to come back.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// How busy the engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// It has failed for good, and takes no requests.
    pub failed: bool,
    /// Requests that may run at once.
    pub lanes: usize,
    /// Requests that have a lane, or get one with the next step.
    pub lanes_busy: usize,
    /// Requests that may wait.
    pub queue_max: usize,
    /// Requests that wait.
    pub queue: usize,
    /// Pages of the pool.
    pub pages: usize,
    /// Pages in use.
    pub pages_used: usize,
    /// What came of speculation since the start.
    pub speculation: SpeculationStats,
}

/// Where a request stands at its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub position: usize,
    pub predicted_ttft: Duration,
    /// Predicted time of its own prefill.
    pub own: Duration,
}

/// What the worker knows at the start or end of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    /// Requests that have ended since the last report.
    pub ended: usize,
    /// Predicted prefill of the requests that were received since the last report.
    pub received: Duration,
    pub running: usize,
    pub lacks_pages: bool,
    pub pages_used: usize,
    pub speculation: SpeculationStats,
    /// Predicted prefill of everything received.
    pub backlog: Duration,
    pub cost: PrefillCost,
    /// Predicted time of the step that starts now.
    pub step: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    config: SchedulerConfig,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    failed: bool,
    /// Requests taken and not ended.
    outstanding: usize,
    /// Predicted prefill of requests that the worker has not received yet.
    in_transit: Duration,
    report: Report,
    reported: Instant,
}

impl Ledger {
    pub fn new(config: SchedulerConfig, cost: PrefillCost) -> Self {
        let report = Report { cost, ..Report::default() };
        let state = State {
            failed: false,
            outstanding: 0,
            in_transit: Duration::ZERO,
            report,
            reported: Instant::now(),
        };
        Self { config, state: Mutex::new(state) }
    }

    pub fn window(&self) -> usize {
        self.config.window
    }

    /// How requests are speculated on that do not say.
    pub fn speculation(&self) -> Speculation {
        self.config.speculation
    }

    /// What the executor was sized for.
    pub fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// Takes a request, or refuses it with the numbers.
    pub fn admit(&self, prompt: usize, max_tokens: usize) -> Result<Place, SubmitError> {
        let mut state = self.lock();
        let place = self.place(&state, prompt, max_tokens)?;
        state.outstanding += 1;
        state.in_transit += place.own;
        Ok(place)
    }

    /// The same for a request that needs no place, since it ends at once.
    pub fn look(&self, prompt: usize, max_tokens: usize) -> Result<Place, SubmitError> {
        self.place(&self.lock(), prompt, max_tokens)
    }

    fn place(&self, state: &State, prompt: usize, max_tokens: usize) -> Result<Place, SubmitError> {
        if state.failed {
            return Err(SubmitError::Stopped);
        }
        self.config.check_length(prompt, max_tokens)?;
        let backlog = state.backlog();
        let (busy, slots) = self.busy(state);
        let pending = state.outstanding - busy;
        if state.outstanding >= slots.saturating_add(self.config.pending_max) {
            return Err(SubmitError::QueueFull { pending, retry_after: backlog.max(RETRY_MIN) });
        }
        let own = state.report.cost.time(0, prompt, self.config.chunk);
        Ok(Place { position: pending, predicted_ttft: backlog + own, own })
    }

    pub fn publish(&self, report: Report) {
        let mut state = self.lock();
        state.outstanding = state.outstanding.saturating_sub(report.ended);
        state.in_transit = state.in_transit.saturating_sub(report.received);
        state.report = report;
        state.reported = Instant::now();
    }

    pub fn fail(&self) {
        let mut state = self.lock();
        state.failed = true;
        state.outstanding = 0;
        state.report.running = 0;
        state.report.pages_used = 0;
    }

    pub fn status(&self) -> Status {
        let state = self.lock();
        let (busy, _) = self.busy(&state);
        Status {
            failed: state.failed,
            lanes: self.config.lanes,
            lanes_busy: busy,
            queue_max: self.config.pending_max,
            queue: state.outstanding - busy,
            pages: self.config.limits.pages,
            pages_used: state.report.pages_used,
            speculation: state.report.speculation,
        }
    }

    /// Lanes that are taken, and lanes that can be: a free lane for which there are no pages
    /// helps nobody.
    fn busy(&self, state: &State) -> (usize, usize) {
        let Report { running, lacks_pages, .. } = state.report;
        let slots = if lacks_pages { running } else { self.config.lanes };
        (state.outstanding.min(slots), slots)
    }

    /// Numbers are valid after every single change, so a panic elsewhere does not matter here.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Predicted time until all prompts that are here are computed, seen from now.
    fn backlog(&self) -> Duration {
        let passed =
            self.report.step.map_or(Duration::ZERO, |step| self.reported.elapsed().min(step));
        self.report.backlog.saturating_sub(passed) + self.in_transit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let limits = Limits {
            pages: 16,
            state_slots: 0,
            rows_per_step: 64,
            samples_per_step: 64,
            top_logprobs: 0,
            drafts: 0,
            proposals: 0,
        };
        let config = SchedulerConfig {
            window: 1024,
            lanes: 1,
            pending_max: 1,
            pending_timeout: Duration::MAX,
            chunk: 64,
            reserve_output: 0,
            speculation: Speculation::OFF,
            limits,
        };
        Ledger::new(config, PrefillCost { a: 1.0, b: 0.0, c: 0.0 })
    }

    #[test]
    fn places_add_up_and_end() {
        let ledger = ledger();
        let first = ledger.admit(10, 1).unwrap();
        assert_eq!((first.position, first.predicted_ttft), (0, Duration::from_secs(10)));
        let second = ledger.admit(5, 1).unwrap();
        assert_eq!((second.position, second.predicted_ttft), (0, Duration::from_secs(15)));
        let refused = ledger.admit(5, 1).unwrap_err();
        let retry_after = Duration::from_secs(15);
        assert_eq!(refused, SubmitError::QueueFull { pending: 1, retry_after });
        assert_eq!((ledger.status().lanes_busy, ledger.status().queue), (1, 1));
        ledger.publish(Report { ended: 2, received: retry_after, ..Report::default() });
        assert_eq!((ledger.status().lanes_busy, ledger.status().queue), (0, 0));
        assert!(ledger.admit(5, 1).is_ok());
    }

    #[test]
    fn what_never_fits_is_refused_with_numbers() {
        let refused = ledger().admit(1000, 25).unwrap_err();
        let expected = SubmitError::ContextLength { prompt: 1000, needed: 1025, window: 1024 };
        assert_eq!(refused, expected);
        assert!(ledger().admit(usize::MAX, usize::MAX).is_err());
    }
}
