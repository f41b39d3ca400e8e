//! The suite that every backend instantiates: each op against its f64 oracle, and the promises
//! that span ops (row independence, nothing stale, errors instead of panics).
//!
//! ```text
//! mod conformance {
//!     laneway_ops::conformance!(|workspace| MyOps::new(workspace), Tolerances::f32());
//! }
//! ```
//!
//! expands to one `#[test]` a case. Inputs are reproducible, outputs are filled with NaN before
//! each op, and a failure names op, shape, format and element.

mod bounds;
mod errors;
mod experts;
mod independence;
mod recurrent;
mod rig;
mod rows;
mod sampling;
mod sequences;

pub use bounds::Tolerances;
pub use errors::refusals;
pub use experts::sparse_moe;
pub use independence::{row_independence, step_independence};
pub use recurrent::{causal_conv, gated_delta, state_images, state_independence, state_refusals};
pub use rows::{embed, gate_up_swiglu, gates, gather_rows, linear, rms_norm};
pub use sampling::logits_sample;
pub use sequences::{attention, copy_page, rope};

/// Instantiates the suite: `$make` is a closure from [`Workspace`](crate::Workspace) to a backend,
/// `$tolerances` a [`Tolerances`](crate::conformance::Tolerances).
#[macro_export]
macro_rules! conformance {
    ($make:expr, $tolerances:expr $(,)?) => {
        $crate::conformance!(@cases $make, $tolerances;
            embed, rms_norm, linear, gate_up_swiglu, gates, gather_rows, sparse_moe, rope, attention, copy_page,
            causal_conv, gated_delta, state_images, state_independence, state_refusals,
            logits_sample, row_independence, step_independence, refusals);
    };
    (@cases $make:expr, $tolerances:expr; $($case:ident),*) => {
        $(
            #[test]
            fn $case() {
                $crate::conformance::$case($make, &$tolerances);
            }
        )*
    };
}

#[cfg(test)]
mod tests {
    use super::Tolerances;
    use crate::reference::ReferenceOps;

    crate::conformance!(ReferenceOps::new, Tolerances::f32());

    mod int8_activations {
        use super::{ReferenceOps, Tolerances};

        crate::conformance!(ReferenceOps::with_int8_activations, Tolerances::int8_activations(),);
    }
}
