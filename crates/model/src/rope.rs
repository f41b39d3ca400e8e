//! Rotation frequencies, with the context-extension schemes that files name.

use crate::LoadError;

/// How a file stretches its positions beyond the context it was first trained for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all, or by frequency factors stored as a tensor (Llama 3).
    None,
    /// All positions divided by a factor (Chen et al. 2023, arXiv 2306.15595).
    Linear {
        /// The divisor.
        factor: f32,
    },
}

/// Angle a position of each of `dims / 2` pairs, in radians: `base^(-2i / dims)`, divided by the
/// linear factor and by the pair's own factor if the file has them.
///
/// # Errors
/// Factors of the wrong number, or that are not positive.
pub(crate) fn inverse_frequencies(
    base: f32,
    dims: usize,
    scaling: RopeScaling,
    factors: Option<&[f32]>,
) -> Result<Vec<f32>, LoadError> {
    let pairs = dims / 2;
    let name = || "rope_freqs.weight".to_owned();
    if let Some(factors) = factors {
        if factors.len() != pairs {
            let (found, expected) = (vec![factors.len()], vec![pairs]);
            return Err(LoadError::TensorShape { name: name(), found, expected });
        }
        if let Some(bad) = factors.iter().find(|f| !(**f > 0.0 && f.is_finite())) {
            let detail = format!("factor {bad} is not a positive number");
            return Err(LoadError::TensorData { name: name(), detail });
        }
    }
    let linear = match scaling {
        RopeScaling::None => 1.0,
        RopeScaling::Linear { factor } => f64::from(factor),
    };
    let frequency = |i: usize| {
        let plain = f64::from(base).powf(-2.0 * i as f64 / dims as f64);
        let factor = factors.map_or(1.0, |factors| f64::from(factors[i]));
        (plain / linear / factor) as f32
    };
    Ok((0..pairs).map(frequency).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies() {
        let plain = inverse_frequencies(10_000.0, 8, RopeScaling::None, None).unwrap();
        for (found, expected) in plain.iter().zip([1.0, 0.1, 0.01, 0.001]) {
            assert!((found - expected).abs() < 1e-8, "{plain:?}");
        }
        let factors = [1.0, 1.0, 2.0, 8.0];
        let linear = RopeScaling::Linear { factor: 4.0 };
        let scaled = inverse_frequencies(10_000.0, 8, linear, Some(&factors)).unwrap();
        for ((scaled, plain), factor) in scaled.iter().zip(plain).zip(factors) {
            assert!((scaled * factor * 4.0 - plain).abs() < 1e-7);
        }
    }

    #[test]
    fn bad_factors_are_named() {
        let with = |factors: &[f32]| {
            inverse_frequencies(1e4, 8, RopeScaling::None, Some(factors)).unwrap_err().to_string()
        };
        assert_eq!(with(&[1.0; 3]), "tensor rope_freqs.weight has shape [3], expected [4]");
        assert_eq!(
            with(&[1.0, 0.0, 1.0, 1.0]),
            "tensor rope_freqs.weight: factor 0 is not a positive number"
        );
    }
}
