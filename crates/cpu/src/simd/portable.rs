//! Plain Rust: the meaning of every vector operation.

use super::{LANES, Simd};
use half::{bf16, f16};

pub(crate) struct Portable;

#[inline(always)]
fn each<T: Copy>(f: impl Fn(usize) -> T) -> [T; LANES] {
    std::array::from_fn(f)
}

// SAFETY (all blocks): each reads or writes exactly the elements that the trait's contract says the
// pointer is valid for; unaligned accesses are used throughout.
impl Simd for Portable {
    const WIDE: bool = false;
    type F = [f32; LANES];
    type I = [i32; LANES];
    type C = [u8; 64];

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self::F {
        [v; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: valid for sixteen elements.
        unsafe { p.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        // SAFETY: valid for sixteen elements.
        unsafe { p.cast::<Self::F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        // SAFETY: valid for sixteen elements.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        each(|i| f16::from_bits(bits[i]).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        // SAFETY: valid for sixteen elements.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(each(|i| f16::from_f32(v[i]).to_bits())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        // SAFETY: valid for sixteen elements.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        each(|i| bf16::from_bits(bits[i]).to_f32())
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        each(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        each(|i| a[i].round_ties_even())
    }
    #[inline(always)]
    unsafe fn scale2(a: Self::F, n: Self::F) -> Self::F {
        each(|i| a[i] * f32::from_bits(((n[i] as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    unsafe fn int_splat(v: i32) -> Self::I {
        [v; LANES]
    }
    #[inline(always)]
    unsafe fn int_to_f(v: Self::I) -> Self::F {
        each(|i| v[i] as f32)
    }
    #[inline(always)]
    unsafe fn int_add(a: Self::I, b: Self::I) -> Self::I {
        each(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn shift_left(v: Self::I, n: u32) -> Self::I {
        each(|i| v[i] << n)
    }
    #[inline(always)]
    unsafe fn f_to_int(v: Self::F) -> Self::I {
        each(|i| v[i] as i32)
    }
    #[inline(always)]
    unsafe fn int_sub(a: Self::I, b: Self::I) -> Self::I {
        each(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn shift_right(v: Self::I, n: u32) -> Self::I {
        each(|i| v[i] >> n)
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut i8, v: Self::I) {
        // SAFETY: valid for sixteen bytes.
        unsafe { p.cast::<[i8; LANES]>().write_unaligned(each(|i| v[i] as i8)) }
    }
    #[inline(always)]
    unsafe fn int_sum(v: Self::I) -> i32 {
        v.iter().sum()
    }
    #[inline(always)]
    unsafe fn sum(mut v: Self::F) -> f32 {
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                v[i] += v[i + width];
            }
            width /= 2;
        }
        v[0]
    }
    #[inline(always)]
    unsafe fn largest(v: Self::F) -> f32 {
        v.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> Self::C {
        // SAFETY: valid for 64 bytes.
        unsafe { p.cast::<Self::C>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn low(c: Self::C) -> Self::C {
        std::array::from_fn(|i| c[i] & 15)
    }
    #[inline(always)]
    unsafe fn high(c: Self::C) -> Self::C {
        std::array::from_fn(|i| c[i] >> 4)
    }
    #[inline(always)]
    unsafe fn enlarged(c: Self::C, n: u32) -> Self::C {
        std::array::from_fn(|i| c[i] << n)
    }
    #[inline(always)]
    unsafe fn reduced(c: Self::C, n: u32) -> Self::C {
        std::array::from_fn(|i| c[i].saturating_add(1 << n >> 1) >> n)
    }
    #[inline(always)]
    unsafe fn dot(acc: Self::I, codes: Self::C, x: i32) -> Self::I {
        let x = x.to_le_bytes().map(|b| i32::from(b as i8));
        each(|l| acc[l] + (0..4).map(|i| i32::from(codes[4 * l + i]) * x[i]).sum::<i32>())
    }
    #[inline(always)]
    unsafe fn code(c: Self::C, i: usize) -> Self::I {
        each(|l| i32::from(c[4 * l + i]))
    }
}
