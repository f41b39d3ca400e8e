//! Memory arithmetic: bytes of a cached token, pages of a pool, the largest context window, and
//! the ledger of what was allocated.
//!
//! Counts are `u64` and saturate: an absurd geometry reads as "does not fit", never as a small
//! number.

use laneway_numerics::KvDtype;
use std::fmt;

/// Bits of one cached element as a fraction, so that block scales are counted exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementBits {
    numerator: u64,
    denominator: u64,
}

impl ElementBits {
    /// 8-bit codes with one f16 scale for 64 elements: 8¼ bits.
    pub const INT8_G64: Self = Self::new(33, 4);
    /// 4-bit floats with one 8-bit scale for 16 elements: 4½ bits.
    pub const NVFP4: Self = Self::new(9, 2);

    /// `numerator / denominator` bits an element; a denominator of 0 is taken as 1.
    #[must_use]
    pub const fn new(numerator: u64, denominator: u64) -> Self {
        let denominator = if denominator == 0 { 1 } else { denominator };
        ElementBits { numerator, denominator }
    }
}

impl From<KvDtype> for ElementBits {
    fn from(dtype: KvDtype) -> Self {
        Self::new(dtype.bytes(1) as u64 * 8, 1)
    }
}

/// What one token adds to a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Attention layers.
    pub layers: u64,
    /// Key/value heads a layer.
    pub kv_heads: u64,
    /// Elements of one head.
    pub head_dim: u64,
}

impl KvShape {
    /// Elements of one token: keys and values of every layer.
    #[must_use]
    pub const fn token_elements(&self) -> u64 {
        self.layers.saturating_mul(self.kv_heads).saturating_mul(self.head_dim).saturating_mul(2)
    }

    /// Bytes of `tokens` tokens, rounded up.
    #[must_use]
    pub const fn bytes(&self, tokens: u64, bits: ElementBits) -> u64 {
        let elements = self.token_elements() as u128 * tokens as u128;
        let bytes =
            elements.saturating_mul(bits.numerator as u128).div_ceil(bits.denominator as u128 * 8);
        if bytes > u64::MAX as u128 { u64::MAX } else { bytes as u64 }
    }
}

/// Pages that hold `tokens` tokens.
#[must_use]
pub const fn pool_pages(tokens: u64, page_tokens: u64) -> u64 {
    tokens.div_ceil(if page_tokens == 0 { 1 } else { page_tokens })
}

/// Not one page fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room for a KV pool: {available_bytes} bytes are left, {headroom_bytes} of them headroom, \
     and one page takes {page_bytes}"
)]
pub struct NoRoom {
    /// Bytes left after everything else.
    pub available_bytes: u64,
    /// Bytes to be left alone.
    pub headroom_bytes: u64,
    /// Bytes of one page.
    pub page_bytes: u64,
}

/// Pages of a pool that takes what is available but for the headroom (`--kv-capacity auto`).
///
/// # Errors
/// [`NoRoom`] if that is less than a page.
pub const fn auto_pages(
    available_bytes: u64,
    headroom_bytes: u64,
    page_bytes: u64,
) -> Result<u64, NoRoom> {
    let usable = available_bytes.saturating_sub(headroom_bytes);
    match usable.checked_div(page_bytes) {
        Some(pages) if pages > 0 => Ok(pages),
        _ => Err(NoRoom { available_bytes, headroom_bytes, page_bytes }),
    }
}

/// Who shares a pool, and when they shrink: the window condition is
/// `(lanes + sessions) × floor(ratio × window) ≤ pool`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowDemand {
    /// Sequences that run at once.
    pub lanes: u64,
    /// Idle agent sessions that are to stay on the device.
    pub sessions: u64,
    /// Share of its window at which an agent compacts its history, in 0..=1.
    pub ratio: f64,
}

impl WindowDemand {
    /// Tokens at which an agent with this window compacts: `floor(ratio × window)` in f64, since
    /// that is how agents compute it.
    #[must_use]
    pub fn compacts_at(&self, window: u64) -> u64 {
        (self.ratio * window as f64).floor() as u64
    }

    /// Pool tokens that all lanes and sessions need with this window.
    #[must_use]
    pub fn needed_tokens(&self, window: u64) -> u64 {
        self.lanes.saturating_add(self.sessions).saturating_mul(self.compacts_at(window))
    }

    /// Pool tokens left over with this window; negative if the condition does not hold.
    #[must_use]
    pub fn margin_tokens(&self, window: u64, pool_tokens: u64) -> i128 {
        i128::from(pool_tokens) - i128::from(self.needed_tokens(window))
    }

    /// Largest window up to `limit` for which the condition holds.
    #[must_use]
    pub fn largest_window(&self, pool_tokens: u64, limit: u64) -> u64 {
        // The demand never falls as the window grows, so bisection finds the last that fits.
        let (mut fits, mut beyond) = (0, limit.saturating_add(1));
        while beyond - fits > 1 {
            let window = fits + (beyond - fits) / 2;
            if self.needed_tokens(window) <= pool_tokens {
                fits = window;
            } else {
                beyond = window;
            }
        }
        fits
    }

    /// Sequences of this window that the pool holds at once, each filled up to compaction.
    #[must_use]
    pub fn sequences_that_fit(&self, window: u64, pool_tokens: u64) -> u64 {
        pool_tokens.checked_div(self.compacts_at(window)).unwrap_or(u64::MAX)
    }
}

/// Named allocations; what a start prints, and what must equal the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryLedger {
    entries: Vec<(String, u64)>,
}

impl MemoryLedger {
    /// Adds an allocation.
    pub fn add(&mut self, name: impl Into<String>, bytes: u64) {
        self.entries.push((name.into(), bytes));
    }

    /// The allocations, in the order they were added.
    #[must_use]
    pub fn entries(&self) -> &[(String, u64)] {
        &self.entries
    }

    /// Bytes of all allocations.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.entries.iter().fold(0, |total, (_, bytes)| total.saturating_add(*bytes))
    }
}

impl fmt::Display for MemoryLedger {
    /// One line an allocation and one for the total: name, bytes, MiB.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.entries.iter().map(|(name, _)| name.as_str());
        let width = names.chain(["total"]).map(|name| name.chars().count()).max().unwrap_or(0);
        let mut line = |name: &str, bytes: u64| {
            let mib = bytes as f64 / f64::from(1 << 20);
            writeln!(f, "{name:<width$}  {bytes:>15} B  {mib:>11.1} MiB")
        };
        for (name, bytes) in &self.entries {
            line(name, *bytes)?;
        }
        line("total", self.total_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 16 full-attention layers and one draft layer of 4 KV heads of 256 elements.
    const HYBRID_27B: KvShape = KvShape { layers: 17, kv_heads: 4, head_dim: 256 };
    const POOL: u64 = 450_560;

    #[test]
    fn bytes_a_token() {
        assert_eq!(HYBRID_27B.token_elements(), 34_816);
        assert_eq!(HYBRID_27B.bytes(1, ElementBits::INT8_G64), 35_904);
        assert_eq!(HYBRID_27B.bytes(1, ElementBits::NVFP4), 19_584);
        assert_eq!(HYBRID_27B.bytes(64, KvDtype::Bf16.into()), 64 * 69_632);
        assert_eq!(HYBRID_27B.bytes(1, KvDtype::F32.into()), 139_264);
        let absurd = KvShape { layers: u64::MAX, ..HYBRID_27B };
        assert_eq!(absurd.bytes(u64::MAX, ElementBits::NVFP4), u64::MAX);
    }

    #[test]
    fn nvfp4_holds_more_tokens_in_less() {
        let int8 = HYBRID_27B.bytes(262_144, ElementBits::INT8_G64);
        let nvfp4 = HYBRID_27B.bytes(POOL, ElementBits::NVFP4);
        assert!(nvfp4 < int8);
        assert_eq!(POOL * 100 / 262_144, 171); // +72 % when rounded
    }

    #[test]
    fn pages() {
        assert_eq!([0, 1, 64, 65].map(|tokens| pool_pages(tokens, 64)), [0, 1, 1, 2]);
        assert_eq!(pool_pages(POOL, 64), 7040);
        assert_eq!(auto_pages(1000, 100, 300), Ok(3));
        assert_eq!(auto_pages(1000, 100, 900), Ok(1));
        let error = auto_pages(1000, 101, 900).map_err(|e| e.to_string());
        assert_eq!(
            error,
            Err("no room for a KV pool: 1000 bytes are left, 101 of them headroom, \
                 and one page takes 900"
                .to_owned())
        );
        assert!(auto_pages(10, 20, 1).is_err() && auto_pages(10, 0, 0).is_err());
    }

    #[test]
    fn published_windows() {
        let with_session = WindowDemand { lanes: 3, sessions: 1, ratio: 0.8 };
        let alone = WindowDemand { sessions: 0, ..with_session };
        let rows = [
            (131_072, 104_857, 419_428, 31_132, 4),
            (196_608, 157_286, 629_144, -178_584, 2),
            (262_144, 209_715, 838_860, -388_300, 2),
        ];
        for (window, compacts_at, needed, margin, fitting) in rows {
            assert_eq!(with_session.compacts_at(window), compacts_at);
            assert_eq!(with_session.needed_tokens(window), needed);
            assert_eq!(with_session.margin_tokens(window, POOL), margin);
            assert_eq!(with_session.sequences_that_fit(window, POOL), fitting);
        }
        assert_eq!(alone.needed_tokens(196_608), 471_858);
        assert_eq!(alone.margin_tokens(196_608, POOL), -21_298);
        assert_eq!(alone.needed_tokens(262_144), 629_145);
        assert_eq!(alone.margin_tokens(262_144, POOL), -178_585);
    }

    #[test]
    fn the_largest_window_is_the_last_that_fits() {
        for (lanes, sessions) in [(1, 0), (3, 1), (4, 4), (7, 0)] {
            for ratio in [0.5, 0.8, 0.95, 1.0] {
                let demand = WindowDemand { lanes, sessions, ratio };
                let window = demand.largest_window(POOL, 1 << 24);
                assert!(demand.margin_tokens(window, POOL) >= 0);
                assert!(demand.margin_tokens(window + 1, POOL) < 0);
            }
        }
        let demand = WindowDemand { lanes: 3, sessions: 1, ratio: 0.8 };
        // 450,560 / 4 = 112,640 tokens each, reached by a window of 140,800.
        assert_eq!(demand.largest_window(POOL, 262_144), 140_801);
        assert_eq!(demand.largest_window(POOL, 131_072), 131_072);
        assert_eq!(demand.largest_window(0, 100), 1);
    }

    #[test]
    fn ledger() {
        let mut ledger = MemoryLedger::default();
        ledger.add("weights", 3 << 20);
        ledger.add("KV pool, 7 pages", 1 << 19);
        assert_eq!(ledger.total_bytes(), (3 << 20) + (1 << 19));
        assert_eq!(
            ledger.to_string(),
            "weights                   3145728 B          3.0 MiB\n\
             KV pool, 7 pages           524288 B          0.5 MiB\n\
             total                     3670016 B          3.5 MiB\n"
        );
    }
}
