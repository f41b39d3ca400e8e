//! Counter-based noise: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1,
//! 2, 3") and the Gumbel variates made of it.

use laneway_execution::TokenId;

/// Fourth counter word of every sampling draw ("Lane"); other uses of the generator take others.
const SAMPLING_STREAM: u32 = 0x4c61_6e65;

/// Philox4x32 with ten rounds: a bijection of `counter` under `key`, four uniform words.
#[must_use]
pub const fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    const MULTIPLIERS: [u64; 2] = [0xd251_1f53, 0xcd9e_8d57];
    const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
    let (mut c, mut k) = (counter, key);
    let mut round = 0;
    while round < 10 {
        let a = MULTIPLIERS[0] * c[0] as u64;
        let b = MULTIPLIERS[1] * c[2] as u64;
        c = [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32];
        k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
        round += 1;
    }
    c
}

/// The four words that tokens `4 * group..4 * group + 4` take their noise from.
pub(crate) const fn token_words(seed: u64, position: u64, group: u32) -> [u32; 4] {
    let counter = [position as u32, (position >> 32) as u32, group, SAMPLING_STREAM];
    philox4x32_10(counter, [seed as u32, (seed >> 32) as u32])
}

/// Standard Gumbel variate of a word: `-ln(-ln u)` with `u = (word / 2⁸ + ½) / 2²⁴`.
///
/// The top 24 bits only, so that `u` is exact in f32 too; the half keeps it off 0 and 1.
pub(crate) fn gumbel_of_word(word: u32) -> f64 {
    let u = (f64::from(word >> 8) + 0.5) / f64::from(1u32 << 24);
    -(-u.ln()).ln()
}

/// The Gumbel noise of `token` at `position` under `seed`.
#[must_use]
pub fn gumbel(seed: u64, position: u64, token: TokenId) -> f64 {
    gumbel_of_word(token_words(seed, position, token / 4)[(token % 4) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator's published known answers (Random123, `kat_vectors`).
    #[test]
    fn philox_known_answers() {
        let answers = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([!0; 4], [!0; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, words) in answers {
            assert_eq!(philox4x32_10(counter, key), words);
        }
    }

    #[test]
    fn gumbel_is_finite_at_both_ends_and_increases() {
        let (low, high) = (gumbel_of_word(0), gumbel_of_word(u32::MAX));
        assert!(low > -2.9 && low < -2.8, "{low}");
        assert!(high > 17.3 && high < 17.4, "{high}");
        assert!(gumbel_of_word(1 << 31) > low && gumbel_of_word(1 << 31) < high);
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let g = gumbel(1, 2, 3);
        for other in [gumbel(2, 2, 3), gumbel(1 | 1 << 40, 2, 3), gumbel(1, 3, 3), gumbel(1, 2, 4)]
        {
            assert!((g - other).abs() > 1e-9);
        }
        assert!((g - gumbel(1, 2 | 1 << 40, 3)).abs() > 1e-9);
    }

    /// Mean is Euler's constant and variance π²/6 for the standard Gumbel distribution.
    #[test]
    fn gumbel_moments() {
        let n = 200_000u32;
        let draws: Vec<f64> = (0..n).map(|t| gumbel(7, u64::from(t / 1000), t % 1000)).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(n);
        let variance = draws.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / f64::from(n);
        assert!((mean - 0.577_216).abs() < 0.015, "{mean}");
        assert!((variance - 1.644_934).abs() < 0.04, "{variance}");
    }
}
