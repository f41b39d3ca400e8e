//! From settings to sizes: the window of a sequence and the pages of the pool, or a refusal that
//! has the numbers.

use super::KvCapacity;
use laneway_execution::{PAGE_TOKENS, pages_for};
use std::fmt;
use std::num::NonZeroUsize;

/// What is wanted, as it was typed.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Longest sequence in tokens.
    pub max_context: Option<NonZeroUsize>,
    /// Tokens of the pool.
    pub kv_capacity: KvCapacity,
    /// Sequences that run at once.
    pub lanes: NonZeroUsize,
}

/// What there is.
#[derive(Clone, Copy, Debug)]
pub struct Available {
    /// Longest context that the model was trained for.
    pub native_context: usize,
    /// Bytes of one page over all layers.
    pub page_bytes: u64,
    /// Bytes that the pool may take; none if the machine does not tell.
    pub pool_bytes: Option<u64>,
}

/// Sizes that hold together: a sequence of `max_context` tokens fits the pool, the pool fits the
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Longest sequence in tokens.
    pub max_context: usize,
    /// Pages of the pool.
    pub pages: usize,
}

impl Capacity {
    /// Tokens that the pool holds.
    #[must_use]
    pub fn pool_tokens(&self) -> usize {
        self.pages * PAGE_TOKENS
    }

    /// Works the sizes out.
    ///
    /// # Errors
    /// [`Refusal`] for settings that cannot be honoured together on this machine.
    pub fn resolve(wanted: &Wanted, available: &Available) -> Result<Self, Refusal> {
        let native = available.native_context;
        if let Some(window) = wanted.max_context.filter(|window| window.get() > native) {
            return Err(Refusal(format!(
                "--max-context {window} is longer than the {native} tokens that the model was \
                 trained for; the longest that works is --max-context {native}"
            )));
        }
        match wanted.kv_capacity {
            KvCapacity::Tokens(tokens) => fixed_pool(tokens.get(), wanted, available),
            KvCapacity::Auto => automatic_pool(wanted, available),
        }
    }
}

fn fixed_pool(tokens: usize, wanted: &Wanted, available: &Available) -> Result<Capacity, Refusal> {
    let pages = pages_for(tokens);
    let fitting = fitting_pages(available);
    if pages > fitting {
        let needed = available.page_bytes.saturating_mul(pages as u64);
        return Err(Refusal(format!(
            "--kv-capacity {tokens} needs {} for the KV pool, {} are available{}",
            mib(needed),
            mib(available.pool_bytes.unwrap_or(0)),
            nearest("--kv-capacity", fitting * PAGE_TOKENS),
        )));
    }
    let max_context = match wanted.max_context {
        Some(window) if window.get() > tokens => {
            return Err(Refusal(format!(
                "--kv-capacity {tokens} cannot hold one sequence of --max-context {window}; use \
                 --kv-capacity {window} or more, or --max-context {tokens} or less"
            )));
        }
        Some(window) => window.get(),
        None => available.native_context.min(tokens),
    };
    Ok(Capacity { max_context, pages })
}

fn automatic_pool(wanted: &Wanted, available: &Available) -> Result<Capacity, Refusal> {
    let fitting = fitting_pages(available);
    let window = wanted.max_context.map_or(available.native_context, NonZeroUsize::get);
    let lanes = wanted.lanes.get();
    let pages = pages_for(window).saturating_mul(lanes).min(fitting);
    if pages_for(window) <= pages {
        return Ok(Capacity { max_context: window, pages });
    }
    // One window does not fit. If nobody asked for it, a shorter one will do.
    if wanted.max_context.is_none() && fitting > 0 {
        return Ok(Capacity { max_context: fitting * PAGE_TOKENS, pages: fitting });
    }
    let needed = available.page_bytes.saturating_mul(pages_for(window) as u64);
    Err(Refusal(format!(
        "a context of {window} tokens needs {} for the KV pool, {} are available{}",
        mib(needed),
        mib(available.pool_bytes.unwrap_or(0)),
        nearest("--max-context", fitting * PAGE_TOKENS),
    )))
}

fn fitting_pages(available: &Available) -> usize {
    // More pages than ids exist are never needed; the cap keeps later products in range.
    let most = u32::MAX as usize;
    available.pool_bytes.map_or(most, |bytes| {
        bytes
            .checked_div(available.page_bytes)
            .and_then(|pages| usize::try_from(pages).ok())
            .map_or(most, |pages| pages.min(most))
    })
}

fn nearest(flag: &str, tokens: usize) -> String {
    match tokens {
        0 => "; not even one page fits: free memory, or use a smaller model".into(),
        _ => format!("; the nearest that fits is {flag} {tokens}"),
    }
}

/// Bytes for reading.
#[must_use]
pub fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Settings that cannot be honoured, with what is needed, what there is, and what would work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_BYTES: u64 = 1 << 20;

    fn resolve(
        max_context: usize,
        kv_capacity: &str,
        lanes: usize,
        pool_mib: u64,
    ) -> Result<(usize, usize), String> {
        let wanted = Wanted {
            max_context: NonZeroUsize::new(max_context),
            kv_capacity: kv_capacity.parse().unwrap(),
            lanes: NonZeroUsize::new(lanes).unwrap(),
        };
        let available = Available {
            native_context: 8192,
            page_bytes: PAGE_BYTES,
            pool_bytes: Some(pool_mib << 20),
        };
        Capacity::resolve(&wanted, &available)
            .map(|capacity| (capacity.max_context, capacity.pool_tokens()))
            .map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn auto_takes_a_window_for_each_lane_or_what_fits() {
        assert_eq!(resolve(0, "auto", 4, 1000), Ok((8192, 4 * 8192)));
        assert_eq!(resolve(1000, "auto", 2, 1000), Ok((1000, 2 * 1024)));
        assert_eq!(resolve(0, "auto", 4, 300), Ok((8192, 300 * 64)));
        assert_eq!(resolve(0, "auto", 4, 100), Ok((6400, 6400)));
    }

    #[test]
    fn a_fixed_pool_bounds_the_window() {
        assert_eq!(resolve(0, "4000", 4, 1000), Ok((4000, 63 * 64)));
        assert_eq!(resolve(0, "10000", 4, 1000), Ok((8192, 157 * 64)));
        assert_eq!(resolve(2048, "4096", 4, 1000), Ok((2048, 4096)));
    }

    #[test]
    fn refusals_have_need_have_and_the_nearest() {
        assert_eq!(
            resolve(8193, "auto", 1, 1000).unwrap_err(),
            "--max-context 8193 is longer than the 8192 tokens that the model was trained for; \
             the longest that works is --max-context 8192"
        );
        assert_eq!(
            resolve(4097, "4096", 1, 1000).unwrap_err(),
            "--kv-capacity 4096 cannot hold one sequence of --max-context 4097; use \
             --kv-capacity 4097 or more, or --max-context 4096 or less"
        );
        assert_eq!(
            resolve(0, "64000", 1, 100).unwrap_err(),
            "--kv-capacity 64000 needs 1000.0 MiB for the KV pool, 100.0 MiB are available; the \
             nearest that fits is --kv-capacity 6400"
        );
        assert_eq!(
            resolve(8192, "auto", 1, 100).unwrap_err(),
            "a context of 8192 tokens needs 128.0 MiB for the KV pool, 100.0 MiB are available; \
             the nearest that fits is --max-context 6400"
        );
        assert!(resolve(0, "auto", 1, 0).unwrap_err().contains("not even one page fits"));
    }

    #[test]
    fn an_unknown_memory_size_is_no_limit() {
        let wanted = Wanted {
            max_context: None,
            kv_capacity: KvCapacity::Auto,
            lanes: NonZeroUsize::new(3).unwrap(),
        };
        let available =
            Available { native_context: 8192, page_bytes: PAGE_BYTES, pool_bytes: None };
        let capacity = Capacity::resolve(&wanted, &available).unwrap();
        assert_eq!(capacity.pool_tokens(), 3 * 8192);
    }
}
