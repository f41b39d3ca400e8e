//! The CPU backend: packed weights, vector kernels and the thread team behind the op contract.
//!
//! Kernels are written once over sixteen-lane vectors ([`simd`]) and compiled for every
//! instruction set; the strongest that the machine has is chosen at run time. Results do not
//! depend on the instruction set, on the number of threads, or on what else a step holds.
#![expect(
    clippy::needless_range_loop,
    reason = "kernels walk several register arrays by one index"
)]

mod attention;
mod buffer;
mod isa;
mod kernels;
mod kv;
mod matmul;
mod ops;
mod packed;
mod quantize;
mod recurrent;
mod simd;
mod state;
mod team;
#[cfg_attr(not(target_arch = "x86_64"), path = "tiles/none.rs")]
mod tiles;

pub use isa::Isa;
pub use kv::KvPool;
pub use laneway_ops::OpError;
pub use ops::{Activations, CpuConfig, CpuOps, Precision, Rope};
pub use packed::Matrix;
pub use state::StatePool;
