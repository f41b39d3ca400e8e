//! The op contract every backend implements, its f64 oracles and its conformance suite.
//!
//! An op is a closed computation: everything it reads and changes is an explicit input. It knows
//! no model, no layer and no request. Every op takes any number of rows: "decode" and "prefill"
//! are never two ops.
//!
//! **Row independence.** The result of a row does not depend on which other rows share the step,
//! on how a prompt was cut into chunks, or on the number of threads. Hence reduction orders follow
//! from the problem (block of the input, page of the context), never from tile shapes.
//!
//! - [`Ops`] is what a backend implements.
//! - [`sampling`] specifies a draw and offers a fast equivalent to backends with host logits.
//! - [`oracle`] holds one naive f64 function for each op.
//! - [`conformance`] is the suite that every backend instantiates.
//! - [`reference`] is the smallest backend that passes it.
#![forbid(unsafe_code)]

pub mod conformance;
mod contract;
pub mod oracle;
mod recurrent;
pub mod reference;
pub mod sampling;
pub mod synthetic;

pub use contract::{
    DeltaRows, Experts, KvSpec, MatrixSource, OpError, Ops, Product, RopeSpec, RopeStyle, Workspace,
};
pub use recurrent::{DeltaSpec, Frontier, HeadSharing};
