//! Learning a linear law online, from one observation after the other.

/// Share of the squared error that one more coefficient has to explain to be believed.
const WORTH_A_COEFFICIENT: f64 = 1e-4;

/// Non-negative least squares of the relative error over three features, in which older
/// observations count less and less.
#[derive(Clone, Debug)]
pub(crate) struct LinearFit {
    /// Weight that an observation keeps when the next one arrives.
    forgetting: f64,
    /// Normal equations: `gram · coefficients = moments`.
    gram: [[f64; 3]; 3],
    moments: [f64; 3],
    /// Squared length of the observed side, in the same weights.
    total: f64,
    coefficients: [f64; 3],
}

impl LinearFit {
    /// Nothing is known: all coefficients are zero.
    pub fn new(forgetting: f64) -> Self {
        let (gram, moments) = ([[0.0; 3]; 3], [0.0; 3]);
        Self { forgetting, gram, moments, total: 0.0, coefficients: [0.0; 3] }
    }

    /// Takes in that `features` came to `value`; what is not positive or not finite tells nothing.
    pub fn observe(&mut self, features: [f64; 3], value: f64) {
        let sound = value > 0.0 && value.is_finite() && features.iter().all(|one| one.is_finite());
        if !sound {
            return;
        }
        // Divided by the value, so that a small one counts as much as a large one.
        let features = features.map(|feature| feature / value);
        for (row, &left) in features.iter().enumerate() {
            for (column, &right) in features.iter().enumerate() {
                self.gram[row][column] = self.gram[row][column] * self.forgetting + left * right;
            }
            self.moments[row] = self.moments[row] * self.forgetting + left;
        }
        self.total = self.total * self.forgetting + 1.0;
        self.solve();
    }

    /// The best coefficients so far.
    pub fn coefficients(&self) -> [f64; 3] {
        self.coefficients
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
        if let Some((_, solution)) = best {
            self.coefficients = solution;
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
