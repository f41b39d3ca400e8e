//! Which instruction set runs the kernels.

use std::fmt;

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// No vector instructions beyond the build target's.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// AVX-512 as above, and the 8-bit tile multipliers of AMX.
    Amx,
}

impl Isa {
    /// All levels, weakest first.
    pub const ALL: [Isa; 4] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Amx];

    /// True if this machine can run it.
    #[must_use]
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            Isa::Amx => Isa::Avx512.is_available() && crate::tiles::is_available(),
        }
    }

    /// True if this machine can run it.
    #[must_use]
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        self == Isa::Portable
    }

    /// The strongest level that this machine can run.
    #[must_use]
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Portable)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512-vnni",
            Isa::Amx => "amx-int8",
        })
    }
}

/// A kernel that can be instantiated for any [`Simd`](crate::simd::Simd).
pub(crate) trait Kernel {
    /// Runs it.
    ///
    /// # Safety
    /// `S` must be available; the kernel's pointers must be valid as its type documents.
    unsafe fn run<S: crate::simd::Simd>(self);
}

/// Runs `kernel` on `isa`.
///
/// # Safety
/// `isa` must be available ([`Isa::is_available`]), and the kernel's own conditions must hold.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn dispatch<K: Kernel>(isa: Isa, kernel: K) {
    use crate::simd::{Avx2, Avx512, Portable};

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2<K: Kernel>(kernel: K) {
        // SAFETY: the features are enabled here; the rest is the caller's promise.
        unsafe { kernel.run::<Avx2>() }
    }
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn avx512<K: Kernel>(kernel: K) {
        // SAFETY: the features are enabled here; the rest is the caller's promise.
        unsafe { kernel.run::<Avx512>() }
    }
    // SAFETY: availability is the caller's promise.
    unsafe {
        match isa {
            Isa::Portable => kernel.run::<Portable>(),
            Isa::Avx2 => avx2(kernel),
            Isa::Avx512 | Isa::Amx => avx512(kernel),
        }
    }
}

/// Runs `kernel` on `isa`, of which there is one here.
///
/// # Safety
/// The kernel's own conditions must hold.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn dispatch<K: Kernel>(_: Isa, kernel: K) {
    // SAFETY: the portable path is available everywhere; the rest is the caller's promise.
    unsafe { kernel.run::<crate::simd::Portable>() }
}
