//! AVX2 with FMA: two registers a vector, and 16-bit products kept below saturation.
//!
//! Halves are written out: `array::map` with a closure is not always inlined, and outside a function that enables AVX2
//! each intrinsic becomes a call (Q6_K ran 40 times slower).

use std::arch::x86_64::*;

use super::{Lanes, Op};

/// AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2;

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn enabled<O: Op>(op: O) {
    op.run::<Avx2>();
}

#[inline(always)]
unsafe fn dot_half<const WIDE: bool>(sum: __m256i, weights: __m256i, x: __m256i) -> __m256i {
    let ones = _mm256_set1_epi16(1);
    if WIDE {
        // 255 * 127 * 2 would saturate 16 bits; 127 * 127 * 2 and 128 * 127 * 2 do not.
        let low = _mm256_maddubs_epi16(_mm256_and_si256(weights, _mm256_set1_epi8(0x7f)), x);
        let high = _mm256_maddubs_epi16(_mm256_and_si256(weights, _mm256_set1_epi8(-128)), x);
        let pair = _mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones));
        _mm256_add_epi32(sum, pair)
    } else {
        _mm256_add_epi32(
            sum,
            _mm256_madd_epi16(_mm256_maddubs_epi16(weights, x), ones),
        )
    }
}

unsafe impl Lanes for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];

    unsafe fn vectorize<O: Op>(op: O) {
        enabled(op);
    }
    #[inline(always)]
    unsafe fn f_splat(value: f32) -> Self::F {
        [_mm256_set1_ps(value); 2]
    }
    #[inline(always)]
    unsafe fn f_load(source: *const f32) -> Self::F {
        [_mm256_loadu_ps(source), _mm256_loadu_ps(source.add(8))]
    }
    #[inline(always)]
    unsafe fn f_store(target: *mut f32, value: Self::F) {
        _mm256_storeu_ps(target, value[0]);
        _mm256_storeu_ps(target.add(8), value[1]);
    }
    #[inline(always)]
    unsafe fn f_load_f16(source: *const u16) -> Self::F {
        [
            _mm256_cvtph_ps(_mm_loadu_si128(source.cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(source.add(8).cast())),
        ]
    }
    #[inline(always)]
    unsafe fn f_load_bf16(source: *const u16) -> Self::F {
        let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(source.cast()));
        let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(source.add(8).cast()));
        [
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
        ]
    }
    #[inline(always)]
    unsafe fn f_add(a: Self::F, b: Self::F) -> Self::F {
        [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn f_sub(a: Self::F, b: Self::F) -> Self::F {
        [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn f_mul(a: Self::F, b: Self::F) -> Self::F {
        [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn f_div(a: Self::F, b: Self::F) -> Self::F {
        [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn f_max(a: Self::F, b: Self::F) -> Self::F {
        [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn f_min(a: Self::F, b: Self::F) -> Self::F {
        [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn f_fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        [
            _mm256_fmadd_ps(a[0], b[0], c[0]),
            _mm256_fmadd_ps(a[1], b[1], c[1]),
        ]
    }
    #[inline(always)]
    unsafe fn f_from_i(value: Self::I) -> Self::F {
        [_mm256_cvtepi32_ps(value[0]), _mm256_cvtepi32_ps(value[1])]
    }
    #[inline(always)]
    unsafe fn i_round(value: Self::F) -> Self::I {
        [_mm256_cvtps_epi32(value[0]), _mm256_cvtps_epi32(value[1])]
    }
    #[inline(always)]
    unsafe fn f_exp2i(value: Self::I) -> Self::F {
        let bias = _mm256_set1_epi32(127);
        let low = _mm256_slli_epi32::<23>(_mm256_add_epi32(value[0], bias));
        let high = _mm256_slli_epi32::<23>(_mm256_add_epi32(value[1], bias));
        [_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)]
    }
    #[inline(always)]
    unsafe fn i_splat(value: i32) -> Self::I {
        [_mm256_set1_epi32(value); 2]
    }
    #[inline(always)]
    unsafe fn i_add(a: Self::I, b: Self::I) -> Self::I {
        [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])]
    }
    #[inline(always)]
    unsafe fn i_mul(a: Self::I, b: Self::I) -> Self::I {
        [
            _mm256_mullo_epi32(a[0], b[0]),
            _mm256_mullo_epi32(a[1], b[1]),
        ]
    }
    #[inline(always)]
    unsafe fn i_and(a: Self::I, mask: i32) -> Self::I {
        let mask = _mm256_set1_epi32(mask);
        [_mm256_and_si256(a[0], mask), _mm256_and_si256(a[1], mask)]
    }
    #[inline(always)]
    unsafe fn i_shr4(a: Self::I) -> Self::I {
        [_mm256_srai_epi32::<4>(a[0]), _mm256_srai_epi32::<4>(a[1])]
    }
    #[inline(always)]
    unsafe fn i_load(source: *const i32) -> Self::I {
        [
            _mm256_loadu_si256(source.cast()),
            _mm256_loadu_si256(source.add(8).cast()),
        ]
    }
    #[inline(always)]
    unsafe fn i_store(target: *mut i32, value: Self::I) {
        _mm256_storeu_si256(target.cast(), value[0]);
        _mm256_storeu_si256(target.add(8).cast(), value[1]);
    }
    #[inline(always)]
    unsafe fn i_load_u8(source: *const u8) -> Self::I {
        [
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(source.cast())),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(source.add(8).cast())),
        ]
    }
    #[inline(always)]
    unsafe fn i_load_i8(source: *const u8) -> Self::I {
        [
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(source.cast())),
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(source.add(8).cast())),
        ]
    }
    #[inline(always)]
    unsafe fn b_load(source: *const u8) -> Self::B {
        [
            _mm256_loadu_si256(source.cast()),
            _mm256_loadu_si256(source.add(32).cast()),
        ]
    }
    #[inline(always)]
    unsafe fn b_store(target: *mut u8, value: Self::B) {
        _mm256_storeu_si256(target.cast(), value[0]);
        _mm256_storeu_si256(target.add(32).cast(), value[1]);
    }
    #[inline(always)]
    unsafe fn b_bits<const SHIFT: i32>(value: Self::B, mask: u8) -> Self::B {
        let (shift, mask) = (_mm_cvtsi32_si128(SHIFT), _mm256_set1_epi8(mask as i8));
        [
            _mm256_and_si256(_mm256_srl_epi16(value[0], shift), mask),
            _mm256_and_si256(_mm256_srl_epi16(value[1], shift), mask),
        ]
    }
    #[inline(always)]
    unsafe fn b_join<const SHIFT: i32>(low: Self::B, high: Self::B) -> Self::B {
        let shift = _mm_cvtsi32_si128(SHIFT);
        [
            _mm256_or_si256(low[0], _mm256_sll_epi16(high[0], shift)),
            _mm256_or_si256(low[1], _mm256_sll_epi16(high[1], shift)),
        ]
    }
    #[inline(always)]
    unsafe fn b_table(table: &[u8; 16], index: Self::B) -> Self::B {
        let entries = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        [
            _mm256_shuffle_epi8(entries, index[0]),
            _mm256_shuffle_epi8(entries, index[1]),
        ]
    }
    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(
        sum: Self::I,
        weights: Self::B,
        activations: *const i8,
    ) -> Self::I {
        let x = _mm256_set1_epi32(activations.cast::<i32>().read_unaligned());
        [
            dot_half::<WIDE>(sum[0], weights[0], x),
            dot_half::<WIDE>(sum[1], weights[1], x),
        ]
    }
}
