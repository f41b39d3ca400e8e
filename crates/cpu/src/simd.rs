//! Sixteen lanes of f32 and i32 on every instruction set, so that each kernel is written once.
//!
//! A kernel is an `#[inline(always)]` function generic over [`Simd`]; [`crate::isa`] instantiates
//! it inside functions that enable the instruction set. All levels perform the same operations in
//! the same order (products are fused, sums form the same trees), so their results are equal bit
//! for bit.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use portable::Portable;

/// Lanes of a vector; also the outputs of one weight panel.
pub(crate) const LANES: usize = 16;

/// One instruction set.
///
/// # Safety
/// Every method may only be called where the instruction set is available, which
/// [`crate::isa::Isa`] checks before it enters a kernel; pointers must be valid for the whole
/// vector: 16 elements of their type, 64 bytes for codes.
pub(crate) trait Simd {
    /// Kernels are also compiled for several rows or queries at once. Not worth its size where
    /// vectors are arrays.
    const WIDE: bool;
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// Sixty-four unsigned weight codes, four of each lane.
    type C: Copy;

    unsafe fn splat(v: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    unsafe fn load_f16(p: *const u16) -> Self::F;
    unsafe fn store_f16(p: *mut u16, v: Self::F);
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The nearest whole number, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;
    /// `a * 2^n` for whole `n` from -126 to 127.
    unsafe fn scale2(a: Self::F, n: Self::F) -> Self::F;
    unsafe fn int_splat(v: i32) -> Self::I;
    unsafe fn int_to_f(v: Self::I) -> Self::F;
    unsafe fn int_add(a: Self::I, b: Self::I) -> Self::I;
    /// `v * 2^n`.
    unsafe fn shift_left(v: Self::I, n: u32) -> Self::I;
    unsafe fn codes(p: *const u8) -> Self::C;
    /// Low nibble of every code.
    unsafe fn low(c: Self::C) -> Self::C;
    /// High nibble of every code.
    unsafe fn high(c: Self::C) -> Self::C;
    /// `2^n` times every code, which fits a byte.
    unsafe fn enlarged(c: Self::C, n: u32) -> Self::C;
    /// Every code divided by `2^n`, rounded; one that would overflow before is rounded down.
    unsafe fn reduced(c: Self::C, n: u32) -> Self::C;
    /// Adds to each lane the dot product of its four codes and the four signed bytes of `x`.
    unsafe fn dot(acc: Self::I, codes: Self::C, x: i32) -> Self::I;
    /// Code `i` (0..4) of every lane.
    unsafe fn code(c: Self::C, i: usize) -> Self::I;

    /// Asks for the cache line at `p`, which need not be valid.
    unsafe fn prefetch(p: *const u8);
    /// The nearest whole numbers, for lanes that are one already and fit.
    unsafe fn f_to_int(v: Self::F) -> Self::I;
    unsafe fn int_sub(a: Self::I, b: Self::I) -> Self::I;
    /// `v / 2^n`, rounded down.
    unsafe fn shift_right(v: Self::I, n: u32) -> Self::I;
    /// Stores the low byte of every lane: sixteen bytes.
    unsafe fn store_bytes(p: *mut i8, v: Self::I);
    /// Sum of all lanes.
    unsafe fn int_sum(v: Self::I) -> i32;
    /// Sum of all lanes: halves are added until one is left.
    unsafe fn sum(v: Self::F) -> f32;
    /// Largest lane.
    unsafe fn largest(v: Self::F) -> f32;

    /// `e^v` for `v <= 88`, with relative error under 4e-7; no less than `e^-87`.
    ///
    /// `2^n · e^r` with `n` the nearest whole number to `v / ln 2`; `e^r` by its Taylor polynomial
    /// of degree 7, which on `|r| <= ln 2 / 2` is exact to f32 rounding.
    #[inline(always)]
    unsafe fn exp(v: Self::F) -> Self::F {
        // SAFETY: availability is the caller's promise.
        unsafe {
            let v = Self::max(v, Self::splat(-87.0));
            let n = Self::round(Self::mul(v, Self::splat(std::f32::consts::LOG2_E)));
            // ln 2 in two parts, the first exact in products with small whole numbers.
            let r = Self::fma(n, Self::splat(-0.693_359_4), v);
            let r = Self::fma(n, Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.0 / 5040.0);
            for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
                p = Self::fma(p, r, Self::splat(c));
            }
            Self::scale2(p, n)
        }
    }
}
