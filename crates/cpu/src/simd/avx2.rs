//! AVX2 with FMA and F16C: pairs of 256-bit vectors.

use super::Simd;
use std::arch::x86_64::*;

pub(crate) struct Avx2;

/// The nibble mask.
const NIBBLE: i8 = 15;

// SAFETY (all blocks): the caller promises AVX2, FMA and F16C, and pointers valid for a vector;
// loads and stores are the unaligned ones.
impl Simd for Avx2 {
    const WIDE: bool = true;
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type C = [__m256i; 2];

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_set1_ps(v); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        // SAFETY: see above.
        unsafe {
            let (low, high) = (_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(8).cast()));
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        // SAFETY: see above.
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        // SAFETY: see above.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn round(a: Self::F) -> Self::F {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: see above.
        unsafe { [_mm256_round_ps::<NEAREST>(a[0]), _mm256_round_ps::<NEAREST>(a[1])] }
    }
    #[inline(always)]
    unsafe fn scale2(a: Self::F, n: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe {
            let bias = _mm256_set1_epi32(127);
            let power = |n| {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), bias);
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            };
            [_mm256_mul_ps(a[0], power(n[0])), _mm256_mul_ps(a[1], power(n[1]))]
        }
    }
    #[inline(always)]
    unsafe fn int_splat(v: i32) -> Self::I {
        // SAFETY: see above.
        unsafe { [_mm256_set1_epi32(v); 2] }
    }
    #[inline(always)]
    unsafe fn int_to_f(v: Self::I) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_cvtepi32_ps(v[0]), _mm256_cvtepi32_ps(v[1])] }
    }
    #[inline(always)]
    unsafe fn int_add(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see above.
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn shift_left(v: Self::I, n: u32) -> Self::I {
        // SAFETY: see above.
        unsafe {
            let count = _mm_cvtsi32_si128(n as i32);
            [_mm256_sll_epi32(v[0], count), _mm256_sll_epi32(v[1], count)]
        }
    }
    #[inline(always)]
    unsafe fn f_to_int(v: Self::F) -> Self::I {
        // SAFETY: see above.
        unsafe { [_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1])] }
    }
    #[inline(always)]
    unsafe fn int_sub(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see above.
        unsafe { [_mm256_sub_epi32(a[0], b[0]), _mm256_sub_epi32(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn shift_right(v: Self::I, n: u32) -> Self::I {
        // SAFETY: see above.
        unsafe {
            let count = _mm_cvtsi32_si128(n as i32);
            [_mm256_sra_epi32(v[0], count), _mm256_sra_epi32(v[1], count)]
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut i8, v: Self::I) {
        // SAFETY: see above. Packing works within 128-bit halves; the permutation undoes that.
        unsafe {
            let mask = _mm256_set1_epi32(255);
            let words =
                _mm256_packus_epi32(_mm256_and_si256(v[0], mask), _mm256_and_si256(v[1], mask));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packus_epi16(
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            _mm_storeu_si128(p.cast(), bytes);
        }
    }
    #[inline(always)]
    unsafe fn int_sum(v: Self::I) -> i32 {
        let mut lanes = [0i32; 8];
        // SAFETY: see above; the array has eight elements.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), _mm256_add_epi32(v[0], v[1])) };
        lanes.iter().sum()
    }
    #[inline(always)]
    unsafe fn sum(v: Self::F) -> f32 {
        // SAFETY: see above.
        unsafe { sum8(_mm256_add_ps(v[0], v[1])) }
    }
    #[inline(always)]
    unsafe fn largest(v: Self::F) -> f32 {
        // SAFETY: see above.
        unsafe {
            let v = _mm256_max_ps(v[0], v[1]);
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a hint; it does not access memory.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> Self::C {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn low(c: Self::C) -> Self::C {
        // SAFETY: see above.
        unsafe {
            let mask = _mm256_set1_epi8(NIBBLE);
            [_mm256_and_si256(c[0], mask), _mm256_and_si256(c[1], mask)]
        }
    }
    #[inline(always)]
    unsafe fn high(c: Self::C) -> Self::C {
        // SAFETY: see above.
        unsafe {
            let mask = _mm256_set1_epi8(NIBBLE);
            [
                _mm256_and_si256(_mm256_srli_epi16::<4>(c[0]), mask),
                _mm256_and_si256(_mm256_srli_epi16::<4>(c[1]), mask),
            ]
        }
    }
    /// Even and odd bytes are widened apart: the byte-wise multiply would saturate on codes of
    /// eight bits.
    #[inline(always)]
    unsafe fn enlarged(c: Self::C, n: u32) -> Self::C {
        // SAFETY: see above. No bit of a code leaves its byte.
        unsafe {
            let count = _mm_cvtsi32_si128(n as i32);
            [_mm256_sll_epi16(c[0], count), _mm256_sll_epi16(c[1], count)]
        }
    }
    #[inline(always)]
    unsafe fn reduced(c: Self::C, n: u32) -> Self::C {
        // SAFETY: see above.
        unsafe {
            let half = _mm256_set1_epi8((1 << n >> 1) as i8);
            let mask = _mm256_set1_epi8((255 >> n) as u8 as i8);
            let count = _mm_cvtsi32_si128(n as i32);
            [
                _mm256_and_si256(_mm256_srl_epi16(_mm256_adds_epu8(c[0], half), count), mask),
                _mm256_and_si256(_mm256_srl_epi16(_mm256_adds_epu8(c[1], half), count), mask),
            ]
        }
    }
    #[inline(always)]
    unsafe fn dot(acc: Self::I, codes: Self::C, x: i32) -> Self::I {
        // SAFETY: see above.
        unsafe {
            let x = _mm256_set1_epi32(x);
            let odd_x = _mm256_srai_epi16::<8>(x);
            let even_x = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
            let mask = _mm256_set1_epi16(255);
            let half = |acc, codes| {
                let even = _mm256_madd_epi16(_mm256_and_si256(codes, mask), even_x);
                let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(codes), odd_x);
                _mm256_add_epi32(acc, _mm256_add_epi32(even, odd))
            };
            [half(acc[0], codes[0]), half(acc[1], codes[1])]
        }
    }
    #[inline(always)]
    unsafe fn code(c: Self::C, i: usize) -> Self::I {
        // SAFETY: see above.
        unsafe {
            let shift = _mm_cvtsi32_si128(8 * i as i32);
            let mask = _mm256_set1_epi32(255);
            [
                _mm256_and_si256(_mm256_srl_epi32(c[0], shift), mask),
                _mm256_and_si256(_mm256_srl_epi32(c[1], shift), mask),
            ]
        }
    }
}

/// Sum of eight lanes: halves are added until one is left.
///
/// # Safety
/// AVX is available.
#[inline(always)]
pub(super) unsafe fn sum8(v: __m256) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }
}
