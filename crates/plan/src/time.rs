//! Time arithmetic: what a prefill takes, learned from what steps took.

use std::time::Duration;

/// Weight that an observation keeps when the next one arrives.
const FORGETTING: f64 = 0.98;

/// Share of the squared error that one more coefficient has to explain to be believed.
const WORTH_A_COEFFICIENT: f64 = 1e-4;

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
#[derive(Clone, Debug, Default)]
pub struct PrefillFit {
    /// Normal equations: `gram · coefficients = moments`.
    gram: [[f64; 3]; 3],
    moments: [f64; 3],
    /// Squared length of the observed side, in the same weights.
    total: f64,
    cost: PrefillCost,
}

impl PrefillFit {
    /// Nothing is known: every prediction is zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in one step of `rows` tokens, `pairs` attended pairs and `took` time.
    pub fn observe(&mut self, rows: usize, pairs: f64, took: Duration) {
        let seconds = took.as_secs_f64();
        if rows == 0 || seconds <= 0.0 || !pairs.is_finite() {
            return;
        }
        // Divided by the time it took, so that a short step counts as much as a long one.
        let features = [rows as f64, pairs, 1.0].map(|feature| feature / seconds);
        for (row, &left) in features.iter().enumerate() {
            for (column, &right) in features.iter().enumerate() {
                self.gram[row][column] = self.gram[row][column] * FORGETTING + left * right;
            }
            self.moments[row] = self.moments[row] * FORGETTING + left;
        }
        self.total = self.total * FORGETTING + 1.0;
        self.solve();
    }

    /// The best coefficients so far; all zero before the first observation.
    #[must_use]
    pub fn cost(&self) -> PrefillCost {
        self.cost
    }

    /// Tries every set of coefficients, the simplest first, which for three of them is cheaper
    /// than being clever.
    fn solve(&mut self) {
        const SETS: [&[usize]; 7] = [&[0], &[0, 1], &[0, 2], &[0, 1, 2], &[1], &[2], &[1, 2]];
        let mut best: Option<(f64, [f64; 3])> = None;
        for set in SETS {
            let Some(solution) = self.solve_for(set) else { continue };
            let error = self.error(&solution);
            let enough = WORTH_A_COEFFICIENT * 1e-4 * self.total;
            if best.is_none_or(|(least, _)| error < least * (1.0 - WORTH_A_COEFFICIENT) - enough) {
                best = Some((error, solution));
            }
        }
        if let Some((_, [a, b, c])) = best {
            self.cost = PrefillCost { a, b, c };
        }
    }

    fn error(&self, solution: &[f64; 3]) -> f64 {
        let mut error = self.total;
        for row in 0..3 {
            error -= 2.0 * solution[row] * self.moments[row];
            for (column, &other) in solution.iter().enumerate() {
                error += solution[row] * self.gram[row][column] * other;
            }
        }
        error.max(0.0)
    }

    /// Coefficients of `set`, the others zero; none if they are not determined or one is negative.
    fn solve_for(&self, set: &[usize]) -> Option<[f64; 3]> {
        let size = set.len();
        // Scaled to a diagonal of ones, so that one tolerance fits all units.
        let scale: Vec<f64> = set.iter().map(|&index| self.gram[index][index].sqrt()).collect();
        if scale.iter().any(|&scale| scale <= 0.0) {
            return None;
        }
        let mut matrix = [[0.0; 4]; 3];
        for row in 0..size {
            for column in 0..size {
                let entry = self.gram[set[row]][set[column]];
                matrix[row][column] = entry / (scale[row] * scale[column]);
            }
            matrix[row][3] = self.moments[set[row]] / scale[row];
        }
        for pivot in 0..size {
            // The matrix is positive semi-definite: no exchange of rows is needed.
            let head = matrix[pivot][pivot];
            if head < 1e-9 {
                return None;
            }
            let pivot_row = matrix[pivot];
            for (row, entries) in matrix.iter_mut().enumerate().take(size) {
                if row != pivot {
                    let factor = entries[pivot] / head;
                    for (entry, above) in entries.iter_mut().zip(pivot_row) {
                        *entry -= factor * above;
                    }
                }
            }
        }
        let mut solution = [0.0; 3];
        for row in 0..size {
            let value = matrix[row][3] / matrix[row][row] / scale[row];
            if !value.is_finite() || value < 0.0 {
                return None;
            }
            solution[set[row]] = value;
        }
        Some(solution)
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
}
