//! Time arithmetic: what a prefill and a round of decoding take, learned from what steps took.

use crate::fit::LinearFit;
use std::time::Duration;

/// Weight that a step keeps when the next one arrives.
const FORGETTING: f64 = 0.98;

/// The same for steps of decoding, of which there are many more.
const FORGETTING_ROUNDS: f64 = 0.995;

/// Coefficients of prefill time, in seconds:
/// `t(B, S) = a·S + b·(B·S + S(S+1)/2) + c·chunks` for `S` new tokens behind `B` present ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefillCost {
    /// Seconds a token.
    pub a: f64,
    /// Seconds a pair of a token and one that it attends to.
    pub b: f64,
    /// Seconds a step.
    pub c: f64,
}

impl PrefillCost {
    /// Time to compute `new` tokens behind `present` ones, at most `chunk` a step.
    #[must_use]
    pub fn time(&self, present: usize, new: usize, chunk: usize) -> Duration {
        let seconds = self.a * new as f64
            + self.b * attended_pairs(present, new)
            + self.c * new.div_ceil(chunk.max(1)) as f64;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)
    }
}

/// Pairs of a new token and one that it attends to, itself included.
#[must_use]
pub fn attended_pairs(present: usize, new: usize) -> f64 {
    let (present, new) = (present as f64, new as f64);
    present * new + new * (new + 1.0) / 2.0
}

/// Learns a [`PrefillCost`] online: non-negative least squares of the relative error, in which
/// older steps count less and less.
#[derive(Clone, Debug)]
pub struct PrefillFit(LinearFit);

impl PrefillFit {
    /// Nothing is known: every prediction is zero.
    #[must_use]
    pub fn new() -> Self {
        Self(LinearFit::new(FORGETTING))
    }

    /// Takes in one step of `rows` tokens, `pairs` attended pairs and `took` time.
    pub fn observe(&mut self, rows: usize, pairs: f64, took: Duration) {
        if rows > 0 {
            self.0.observe([rows as f64, pairs, 1.0], took.as_secs_f64());
        }
    }

    /// The best coefficients so far; all zero before the first observation.
    #[must_use]
    pub fn cost(&self) -> PrefillCost {
        let [a, b, c] = self.0.coefficients();
        PrefillCost { a, b, c }
    }
}

impl Default for PrefillFit {
    fn default() -> Self {
        Self::new()
    }
}

/// Coefficients of a step in which sequences only go on, in seconds:
/// `t(R, P) = base + row·R + pass·P` for `R` rows, and `P` drafts proposed one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoundCost {
    /// Seconds a step.
    pub base: f64,
    /// Seconds a row.
    pub row: f64,
    /// Seconds a pass of the drafter.
    pub pass: f64,
}

impl RoundCost {
    /// Seconds that a step takes.
    #[must_use]
    pub fn seconds(&self, rows: usize, passes: usize) -> f64 {
        self.base + self.row * rows as f64 + self.pass * passes as f64
    }
}

/// Learns a [`RoundCost`] online, like [`PrefillFit`].
#[derive(Clone, Debug)]
pub struct RoundFit {
    fit: LinearFit,
    rounds: usize,
}

impl RoundFit {
    /// Nothing is known: every prediction is zero.
    #[must_use]
    pub fn new() -> Self {
        Self { fit: LinearFit::new(FORGETTING_ROUNDS), rounds: 0 }
    }

    /// Takes in one step of `rows` rows and `passes` passes of the drafter.
    pub fn observe(&mut self, rows: usize, passes: usize, took: Duration) {
        if rows > 0 && took > Duration::ZERO {
            self.fit.observe([1.0, rows as f64, passes as f64], took.as_secs_f64());
            self.rounds = self.rounds.saturating_add(1);
        }
    }

    /// Steps that were taken in.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.rounds
    }

    /// The best coefficients so far; all zero before the first observation.
    #[must_use]
    pub fn cost(&self) -> RoundCost {
        let [base, row, pass] = self.fit.coefficients();
        RoundCost { base, row, pass }
    }
}

impl Default for RoundFit {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observe(fit: &mut PrefillFit, cost: PrefillCost, present: usize, new: usize) {
        fit.observe(new, attended_pairs(present, new), cost.time(present, new, new));
    }

    fn close(left: Duration, right: Duration) -> bool {
        (left.as_secs_f64() / right.as_secs_f64() - 1.0).abs() < 0.01
    }

    #[test]
    fn time_is_the_formula() {
        let cost = PrefillCost { a: 1.0, b: 0.5, c: 10.0 };
        // 4 + 0.5 * (3 * 4 + 10) + 2 * 10
        assert_eq!(cost.time(3, 4, 2), Duration::from_secs(35));
        assert_eq!(cost.time(3, 0, 2), Duration::ZERO);
    }

    #[test]
    fn chunks_add_up_to_the_whole() {
        let whole = attended_pairs(5, 100);
        let parts = attended_pairs(5, 64) + attended_pairs(69, 36);
        assert!((whole - parts).abs() < 1e-9);
    }

    #[test]
    fn coefficients_are_found() {
        let cost = PrefillCost { a: 1e-4, b: 2e-8, c: 3e-3 };
        let mut fit = PrefillFit::new();
        assert_eq!(fit.cost(), PrefillCost::default());
        for step in 0..40 {
            observe(&mut fit, cost, step * 256, if step % 3 == 2 { 100 } else { 256 });
        }
        assert!(close(fit.cost().time(1000, 5000, 256), cost.time(1000, 5000, 256)));
    }

    #[test]
    fn one_step_predicts_its_like() {
        let cost = PrefillCost { a: 1e-4, b: 0.0, c: 3e-3 };
        let mut fit = PrefillFit::new();
        observe(&mut fit, cost, 0, 256);
        assert!(close(fit.cost().time(0, 256, 256), cost.time(0, 256, 256)));
    }

    #[test]
    fn nothing_becomes_negative() {
        let mut fit = PrefillFit::new();
        for (rows, micros) in [(10, 500), (20, 400), (30, 300), (40, 200)] {
            fit.observe(rows, attended_pairs(0, rows), Duration::from_micros(micros));
            let PrefillCost { a, b, c } = fit.cost();
            assert!(a >= 0.0 && b >= 0.0 && c >= 0.0);
        }
    }

    #[test]
    fn a_change_of_speed_is_followed() {
        let slow = PrefillCost { a: 4e-4, b: 0.0, c: 1e-3 };
        let fast = PrefillCost { a: 1e-4, b: 0.0, c: 1e-3 };
        let mut fit = PrefillFit::new();
        for (cost, steps) in [(slow, 100), (fast, 600)] {
            for step in 0..steps {
                observe(&mut fit, cost, 0, 64 + step % 5 * 32);
            }
        }
        assert!(close(fit.cost().time(0, 640, 128), fast.time(0, 640, 128)));
    }

    #[test]
    fn rounds_are_told_apart_by_rows_and_passes() {
        let cost = RoundCost { base: 4e-3, row: 2e-4, pass: 5e-4 };
        let mut fit = RoundFit::new();
        for round in 0..30 {
            let (drafts, passes) = (round % 4, round % 3);
            let took = Duration::from_secs_f64(cost.seconds(1 + drafts, passes));
            fit.observe(1 + drafts, passes, took);
        }
        assert_eq!(fit.rounds(), 30);
        let (found, wanted) = (fit.cost().seconds(9, 5), cost.seconds(9, 5));
        assert!((found / wanted - 1.0).abs() < 0.01, "{found} s for {wanted} s");
    }
}
