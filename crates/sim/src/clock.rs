//! Time that passes only when a step takes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A clock that others may look at while an executor moves it.
#[derive(Clone, Debug, Default)]
pub struct SimClock(Arc<AtomicU64>);

impl SimClock {
    /// Time since the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Acquire))
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanos, Ordering::AcqRel);
    }
}

/// What a step takes, in nanoseconds: `step + row · rows + pair · attended pairs + pass · passes`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCost {
    /// Nanoseconds a step.
    pub step: f64,
    /// Nanoseconds a row.
    pub row: f64,
    /// Nanoseconds a pair of a row and a position that it attends to.
    pub pair: f64,
    /// Nanoseconds a draft that is proposed after another one.
    pub pass: f64,
}

impl StepCost {
    /// Time of a step.
    #[must_use]
    pub fn time(&self, rows: usize, pairs: f64, passes: usize) -> Duration {
        let nanos =
            self.step + self.row * rows as f64 + self.pair * pairs + self.pass * passes as f64;
        Duration::try_from_secs_f64(nanos * 1e-9).unwrap_or(Duration::ZERO)
    }
}
