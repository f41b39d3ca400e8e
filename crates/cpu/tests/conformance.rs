//! Every instruction set and precision against the op contract's suite.

use laneway_cpu::{CpuConfig, CpuOps, Isa, Precision};
use laneway_ops::Workspace;
use laneway_ops::conformance::Tolerances;

/// A backend on `isa`, or on the strongest weaker one that this machine has.
fn make(isa: Isa, precision: Precision, threads: usize) -> impl Fn(Workspace) -> CpuOps + Copy {
    let isa = Isa::ALL.into_iter().rev().find(|i| *i <= isa && i.is_available());
    move |workspace| CpuOps::new(CpuConfig { threads, precision, isa, workspace }).unwrap()
}

macro_rules! suite {
    ($name:ident, $isa:expr, $precision:expr, $threads:expr, $tolerances:expr) => {
        mod $name {
            use super::*;
            laneway_ops::conformance!(make($isa, $precision, $threads), $tolerances);
        }
    };
}

suite!(portable_f32, Isa::Portable, Precision::F32, 1, Tolerances::f32());
suite!(portable_int8, Isa::Portable, Precision::Int8, 2, Tolerances::int8_activations());
suite!(avx2_f32, Isa::Avx2, Precision::F32, 2, Tolerances::f32());
suite!(avx2_int12, Isa::Avx2, Precision::Int12, 2, Tolerances::int12_activations());
suite!(avx512_f32, Isa::Avx512, Precision::F32, 2, Tolerances::f32());
suite!(avx512_int8, Isa::Avx512, Precision::Int8, 3, Tolerances::int8_activations());
suite!(avx512_int12, Isa::Avx512, Precision::Int12, 2, Tolerances::int12_activations());
suite!(amx_int8, Isa::Amx, Precision::Int8, 2, Tolerances::int8_activations());
suite!(amx_int12, Isa::Amx, Precision::Int12, 1, Tolerances::int12_activations());
