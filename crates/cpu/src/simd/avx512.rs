//! AVX-512 with VNNI.

use super::Simd;
use std::arch::x86_64::*;

pub(crate) struct Avx512;

// SAFETY (all blocks): the caller promises AVX-512 F, BW and VNNI, and pointers valid for a vector;
// loads and stores are the unaligned ones.
impl Simd for Avx512 {
    const WIDE: bool = true;
    type F = __m512;
    type I = __m512i;
    type C = __m512i;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(v) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(v));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        // SAFETY: see above.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn scale2(a: Self::F, n: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_scalef_ps(a, n) }
    }
    #[inline(always)]
    unsafe fn int_splat(v: i32) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(v) }
    }
    #[inline(always)]
    unsafe fn int_to_f(v: Self::I) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(v) }
    }
    #[inline(always)]
    unsafe fn int_add(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn shift_left(v: Self::I, n: u32) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_sll_epi32(v, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    unsafe fn f_to_int(v: Self::F) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_cvtps_epi32(v) }
    }
    #[inline(always)]
    unsafe fn int_sub(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_sub_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn shift_right(v: Self::I, n: u32) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_sra_epi32(v, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut i8, v: Self::I) {
        // SAFETY: see above.
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(v)) }
    }
    #[inline(always)]
    unsafe fn int_sum(v: Self::I) -> i32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_add_epi32(v) }
    }
    #[inline(always)]
    unsafe fn sum(v: Self::F) -> f32 {
        // SAFETY: see above.
        unsafe {
            let halves = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            super::avx2::sum8(halves)
        }
    }
    #[inline(always)]
    unsafe fn largest(v: Self::F) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_max_ps(v) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a hint; it does not access memory.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> Self::C {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn low(c: Self::C) -> Self::C {
        // SAFETY: see above.
        unsafe { _mm512_and_si512(c, _mm512_set1_epi8(15)) }
    }
    #[inline(always)]
    unsafe fn high(c: Self::C) -> Self::C {
        // SAFETY: see above.
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(c), _mm512_set1_epi8(15)) }
    }
    #[inline(always)]
    unsafe fn enlarged(c: Self::C, n: u32) -> Self::C {
        // SAFETY: see above. No bit of a code leaves its byte.
        unsafe { _mm512_sll_epi16(c, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    unsafe fn reduced(c: Self::C, n: u32) -> Self::C {
        // SAFETY: see above.
        unsafe {
            let sum = _mm512_adds_epu8(c, _mm512_set1_epi8((1 << n >> 1) as i8));
            let quotients = _mm512_srl_epi16(sum, _mm_cvtsi32_si128(n as i32));
            _mm512_and_si512(quotients, _mm512_set1_epi8((255 >> n) as u8 as i8))
        }
    }
    #[inline(always)]
    unsafe fn dot(acc: Self::I, codes: Self::C, x: i32) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(x)) }
    }
    #[inline(always)]
    unsafe fn code(c: Self::C, i: usize) -> Self::I {
        // SAFETY: see above.
        unsafe {
            let shift = _mm_cvtsi32_si128(8 * i as i32);
            _mm512_and_si512(_mm512_srl_epi32(c, shift), _mm512_set1_epi32(255))
        }
    }
}
