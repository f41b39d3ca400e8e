//! A machine without tile multipliers.

use crate::isa::Isa;
use crate::matmul::Panel;

/// Nothing to configure.
#[derive(Default)]
pub(crate) struct Configuration;

/// Computes nothing and says so.
///
/// # Safety
/// None of its own; it is that of machines with tiles.
pub(crate) unsafe fn compute<const N: usize>(
    _: [&mut Panel<'_>; N],
    _: Isa,
    _: &mut Configuration,
) -> bool {
    false
}
