//! How the encoders choose scales, minima and codes: round to nearest, over a range that covers
//! every value, so that no element errs by more than half a step.

use crate::{SUPERBLOCK_ELEMENTS, f16};

/// The smallest f16 that is at least `value`, for `value` in 0..=65504.
pub(crate) fn f16_at_least(value: f32) -> f16 {
    let nearest = f16::from_f32(value);
    if nearest.to_f32() >= value { nearest } else { f16::from_bits(nearest.to_bits() + 1) }
}

/// The largest f16 that is at most `value`, for `value` in −65504..=65504.
pub(crate) fn f16_at_most(value: f32) -> f16 {
    let nearest = f16::from_f32(value);
    if nearest.to_f32() <= value {
        nearest
    } else if value < 0.0 {
        -f16_at_least(-value)
    } else {
        f16::from_bits(nearest.to_bits() - 1)
    }
}

/// The code in `min_code..=max_code` nearest to `value / step`; 0 where the step is 0.
pub(crate) fn nearest_code(value: f32, step: f32, min_code: f32, max_code: f32) -> f32 {
    if step == 0.0 { 0.0 } else { (value / step).round().clamp(min_code, max_code) }
}

/// The step, of either sign, with the smallest magnitude for which `-(max_code + 1)..=max_code`
/// times the step covers all `values`.
pub(crate) fn signed_step(values: &[f32], max_code: f32) -> f32 {
    let (min, max) = range_with_zero(values);
    let upright = f32::max(max / max_code, -min / (max_code + 1.0));
    let mirrored = f32::max(max / (max_code + 1.0), -min / max_code);
    if upright <= mirrored { upright } else { -mirrored }
}

/// [`signed_step`] widened to the next f16.
pub(crate) fn signed_step_f16(values: &[f32], max_code: f32) -> f16 {
    let step = signed_step(values, max_code);
    let magnitude = f16_at_least(step.abs());
    if step < 0.0 { -magnitude } else { magnitude }
}

/// A step and a minimum for which `minimum + step * 0..=max_code` covers all `values`.
pub(crate) fn step_and_min(values: &[f32; 32], max_code: f32) -> (f16, f16) {
    let min = f16_at_most(values.iter().copied().fold(f32::INFINITY, f32::min));
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let step = f16_at_least((max - min.to_f32()).max(0.0) / max_code);
    (step, min)
}

/// The components of a superblock whose elements are `d * scale * code - dmin * min`.
pub(crate) struct AffineSuperblock {
    pub d: f16,
    pub dmin: f16,
    /// Scale and minimum, 0..=63 each, of the eight sub-blocks.
    pub scales: [(u8, u8); 8],
    pub codes: [u8; SUPERBLOCK_ELEMENTS],
}

/// Largest value of the 6-bit scales and minima.
const MAX_SCALE: f32 = 63.0;

/// Fits 256 elements with codes `0..=max_code`.
///
/// First every sub-block gets the narrowest scale and minimum that cover its values. Then nearby
/// narrower choices are tried and the least squared error wins, if no element errs by more than
/// half of the covering step.
pub(crate) fn affine_superblock(
    values: &[f32; SUPERBLOCK_ELEMENTS],
    max_code: f32,
) -> AffineSuperblock {
    let (sub_blocks, _) = values.as_chunks::<32>();
    let mut ranges = [(0.0f32, 0.0f32); 8];
    for (range, sub_block) in ranges.iter_mut().zip(sub_blocks) {
        *range = range_with_zero(sub_block);
    }
    let lowest = ranges.iter().fold(0.0, |acc: f32, range| acc.max(-range.0));
    let dmin = f16_at_least(lowest / MAX_SCALE);
    let min_codes = ranges.map(|(min, _)| covering_scale(-min, dmin.to_f32()));

    let mut steps = [0.0f32; 8];
    for (step, (range, min_code)) in steps.iter_mut().zip(ranges.iter().zip(min_codes)) {
        *step = (range.1 + dmin.to_f32() * f32::from(min_code)) / max_code;
    }
    let widest = steps.iter().copied().fold(0.0, f32::max);
    let d = f16_at_least(widest / MAX_SCALE);

    let mut fitted =
        AffineSuperblock { d, dmin, scales: [(0, 0); 8], codes: [0; SUPERBLOCK_ELEMENTS] };
    let (code_chunks, _) = fitted.codes.as_chunks_mut::<32>();
    for (j, (codes, sub_block)) in code_chunks.iter_mut().zip(sub_blocks).enumerate() {
        let covering = (covering_scale(steps[j], d.to_f32()), min_codes[j]);
        let (scale, min) = best_scales(sub_block, covering, (d, dmin), max_code);
        fitted.scales[j] = (scale, min);
        let step = d.to_f32() * f32::from(scale);
        let offset = dmin.to_f32() * f32::from(min);
        for (code, &value) in codes.iter_mut().zip(sub_block) {
            *code = nearest_code(value + offset, step, 0.0, max_code) as u8;
        }
    }
    fitted
}

/// The best scale and minimum at or just below the covering ones.
fn best_scales(
    values: &[f32; 32],
    covering: (u8, u8),
    (d, dmin): (f16, f16),
    max_code: f32,
) -> (u8, u8) {
    let bound = 0.5 * d.to_f32() * f32::from(covering.0);
    let mut best = covering;
    let mut best_error = f32::INFINITY;
    for min in (covering.1.saturating_sub(1)..=covering.1).rev() {
        for scale in (covering.0.saturating_sub(3)..=covering.0).rev() {
            let step = d.to_f32() * f32::from(scale);
            let offset = dmin.to_f32() * f32::from(min);
            let mut squares = 0.0;
            let mut worst = 0.0f32;
            for &value in values {
                let code = nearest_code(value + offset, step, 0.0, max_code);
                let error = (step * code - offset - value).abs();
                squares += error * error;
                worst = worst.max(error);
            }
            let admissible = worst <= bound || (scale, min) == covering;
            if admissible && squares < best_error {
                best = (scale, min);
                best_error = squares;
            }
        }
    }
    best
}

/// The smallest 6-bit scale that reaches `magnitude` in steps of `unit`.
fn covering_scale(magnitude: f32, unit: f32) -> u8 {
    if unit == 0.0 { 0 } else { (magnitude / unit).ceil().clamp(0.0, MAX_SCALE) as u8 }
}

/// The smallest and the largest of the values and 0.
fn range_with_zero(values: &[f32]) -> (f32, f32) {
    values
        .iter()
        .fold((0.0, 0.0), |(min, max), &value| (f32::min(min, value), f32::max(max, value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directed_f16_rounding() {
        for value in [0.0f32, 1.0, 1.0001, 0.1, 65504.0, 6.0e-8, 1.0e-9, 2047.3] {
            let up = f16_at_least(value);
            assert!(up.to_f32() >= value, "{value} up to {up}");
            let below = f16::from_bits(up.to_bits().saturating_sub(1)).to_f32();
            assert!(value == 0.0 || below < value, "{value}: {below} would do");
            assert!(f16_at_most(value).to_f32() <= value);
            assert!(f16_at_most(-value).to_f32() <= -value);
        }
        assert_eq!(f16_at_most(1.0001), f16::ONE);
        assert_eq!(f16_at_most(-1.0), -f16::ONE);
    }

    #[test]
    fn the_step_takes_the_sign_that_covers_more_tightly() {
        assert_eq!(signed_step(&[-8.0, 7.0], 7.0), 1.0);
        assert_eq!(signed_step(&[8.0, -7.0], 7.0), -1.0);
        assert_eq!(signed_step(&[0.0; 4], 7.0), 0.0);
    }
}
