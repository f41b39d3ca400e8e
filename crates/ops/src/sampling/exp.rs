//! The exponential of the sampler.
//!
//! A row has a weight for every token of the vocabulary, and the library's exponential would take
//! a tenth of a small model's decode step. This one is branch-free, so that loops over it run in
//! vector registers; it is also the same number on every platform, whose libraries differ.

use std::f64::consts::LOG2_E;

/// ln 2 in two parts; products of the first with whole numbers below `2^20` are exact.
const LN2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];

/// `1.5 · 2^52`: a sum with it is rounded to a whole number, which its low bits hold.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// `e^x` for `x <= 700`, with a relative error below 1e-15 times a few; never less than `e^-708`.
///
/// `2^n · e^r` with `n` the nearest whole number to `x / ln 2`; `e^r` by its Taylor polynomial of
/// degree 13, whose remainder on `|r| <= ln 2 / 2` is below the rounding.
#[inline]
pub(super) fn exp(x: f64) -> f64 {
    let x = if x > -708.0 { x } else { -708.0 };
    let shifted = x * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2[0]) - n * LN2[1];
    let mut p = 1.0 / 6_227_020_800.0;
    for factorial in [
        479_001_600.0,
        39_916_800.0,
        3_628_800.0,
        362_880.0,
        40_320.0,
        5_040.0,
        720.0,
        120.0,
        24.0,
        6.0,
        2.0,
        1.0,
        1.0,
    ] {
        p = p * r + 1.0 / factorial;
    }
    // The exponent's field of `2^n`: the low bits of the sum are `n`, and 1,023 is the bias.
    p * f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52))
}

/// `Σ exp(z - max)`, added in the order of the values.
pub(super) fn sum_of_exp(values: impl Iterator<Item = f64>, max: f64) -> f64 {
    const PART: usize = 64;
    let mut values = values.fuse();
    let mut sum = 0.0;
    loop {
        // The exponentials of a part first, in vector registers; then they are added one by one.
        let (mut part, mut length) = ([f64::NEG_INFINITY; PART], 0);
        for (place, value) in part.iter_mut().zip(&mut values) {
            *place = value;
            length += 1;
        }
        for value in &mut part {
            *value = exp(*value - max);
        }
        sum = part[..length].iter().fold(sum, |sum, weight| sum + weight);
        if length < PART {
            return sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_exponential() {
        for i in 0..200_000 {
            let x = -708.0 + f64::from(i) * (1408.0 / 200_000.0);
            let (found, exact) = (exp(x), x.exp());
            assert!((found / exact - 1.0).abs() < 3e-15, "e^{x}: {found} for {exact}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f64::NEG_INFINITY) < 1e-300);
    }

    #[test]
    fn sums_are_those_of_one_after_the_other() {
        for length in [0, 1, 63, 64, 65, 1000] {
            let values: Vec<f64> = (0..length).map(|i| f64::from(i % 17) * -0.3).collect();
            let plain = values.iter().fold(0.0, |sum, v| sum + exp(v - 0.0));
            assert_eq!(sum_of_exp(values.iter().copied(), 0.0).to_bits(), f64::to_bits(plain));
        }
    }
}
