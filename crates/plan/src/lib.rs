//! Capacity and time arithmetic: bytes a token, windows, pools, time to first token.
#![forbid(unsafe_code)]

mod capacity;
mod fit;
mod time;

pub use capacity::{
    ElementBits, KvShape, MemoryLedger, NoRoom, WindowDemand, auto_pages, pool_pages,
};
pub use time::{PrefillCost, PrefillFit, RoundCost, RoundFit, attended_pairs};
