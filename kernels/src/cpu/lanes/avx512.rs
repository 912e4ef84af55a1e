//! AVX-512 with VNNI: one register a vector.

use std::arch::asm;
use std::arch::x86_64::*;

use super::{Lanes, Op};

/// AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn enabled<O: Op>(op: O) {
    op.run::<Avx512>();
}

/// The compiler would make two instructions of the intrinsic, for a shorter chain.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn dpwssd(mut sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    asm!(
        "vpdpwssd {}, {}, {}",
        inout(zmm_reg) sum, in(zmm_reg) a, in(zmm_reg) b,
        options(pure, nomem, nostack, preserves_flags),
    );
    sum
}

unsafe impl Lanes for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;
    const TILES: bool = true;
    const HEADS: usize = 6;

    unsafe fn vectorize<O: Op>(op: O) {
        enabled(op);
    }
    #[inline(always)]
    unsafe fn f_splat(value: f32) -> __m512 {
        _mm512_set1_ps(value)
    }
    #[inline(always)]
    unsafe fn f_load(source: *const f32) -> __m512 {
        _mm512_loadu_ps(source)
    }
    #[inline(always)]
    unsafe fn f_store(target: *mut f32, value: __m512) {
        _mm512_storeu_ps(target, value);
    }
    #[inline(always)]
    unsafe fn f_load_f16(source: *const u16) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(source.cast()))
    }
    #[inline(always)]
    unsafe fn f_load_bf16(source: *const u16) -> __m512 {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(
            _mm256_loadu_si256(source.cast()),
        )))
    }
    #[inline(always)]
    unsafe fn f_add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn f_sub(a: __m512, b: __m512) -> __m512 {
        _mm512_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn f_mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn f_div(a: __m512, b: __m512) -> __m512 {
        _mm512_div_ps(a, b)
    }
    #[inline(always)]
    unsafe fn f_max(a: __m512, b: __m512) -> __m512 {
        _mm512_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn f_min(a: __m512, b: __m512) -> __m512 {
        _mm512_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn f_fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn f_from_i(value: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(value)
    }
    #[inline(always)]
    unsafe fn i_round(value: __m512) -> __m512i {
        _mm512_cvtps_epi32(value)
    }
    #[inline(always)]
    unsafe fn f_exp2i(value: __m512i) -> __m512 {
        _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(
            value,
            _mm512_set1_epi32(127),
        )))
    }
    #[inline(always)]
    unsafe fn i_splat(value: i32) -> __m512i {
        _mm512_set1_epi32(value)
    }
    #[inline(always)]
    unsafe fn i_add(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn i_mul(a: __m512i, b: __m512i) -> __m512i {
        _mm512_mullo_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn i_and(a: __m512i, mask: i32) -> __m512i {
        _mm512_and_si512(a, _mm512_set1_epi32(mask))
    }
    #[inline(always)]
    unsafe fn i_shr4(a: __m512i) -> __m512i {
        _mm512_srai_epi32::<4>(a)
    }
    #[inline(always)]
    unsafe fn i_load(source: *const i32) -> __m512i {
        _mm512_loadu_si512(source.cast())
    }
    #[inline(always)]
    unsafe fn i_store(target: *mut i32, value: __m512i) {
        _mm512_storeu_si512(target.cast(), value);
    }
    #[inline(always)]
    unsafe fn i_load_u8(source: *const u8) -> __m512i {
        _mm512_cvtepu8_epi32(_mm_loadu_si128(source.cast()))
    }
    #[inline(always)]
    unsafe fn i_load_i8(source: *const u8) -> __m512i {
        _mm512_cvtepi8_epi32(_mm_loadu_si128(source.cast()))
    }
    #[inline(always)]
    unsafe fn b_load(source: *const u8) -> __m512i {
        _mm512_loadu_si512(source.cast())
    }
    #[inline(always)]
    unsafe fn b_store(target: *mut u8, value: __m512i) {
        _mm512_storeu_si512(target.cast(), value);
    }
    #[inline(always)]
    unsafe fn b_bits<const SHIFT: i32>(value: __m512i, mask: u8) -> __m512i {
        let shifted = _mm512_srl_epi16(value, _mm_cvtsi32_si128(SHIFT));
        _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
    }
    #[inline(always)]
    unsafe fn b_join<const SHIFT: i32>(low: __m512i, high: __m512i) -> __m512i {
        _mm512_or_si512(low, _mm512_sll_epi16(high, _mm_cvtsi32_si128(SHIFT)))
    }
    #[inline(always)]
    unsafe fn b_table(table: &[u8; 16], index: __m512i) -> __m512i {
        let entries = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
        _mm512_shuffle_epi8(entries, index)
    }
    #[inline(always)]
    unsafe fn b_sub(value: __m512i, amount: u8) -> __m512i {
        _mm512_sub_epi8(value, _mm512_set1_epi8(amount as i8))
    }
    #[inline(always)]
    unsafe fn b_mul<const EXACT: bool>(value: __m512i, factors: __m512i) -> __m512i {
        let low = _mm512_and_si512(factors, _mm512_set1_epi32(0xffff));
        let factors = _mm512_or_si512(low, _mm512_slli_epi32::<16>(factors));
        let both = _mm512_mullo_epi16(value, factors);
        if EXACT {
            return both;
        }
        // What the even byte's product carries into the odd one's goes away without that byte.
        let odd = _mm512_and_si512(value, _mm512_set1_epi16(0xff00_u16 as i16));
        let odd = _mm512_mullo_epi16(odd, factors);
        _mm512_mask_mov_epi8(both, 0xaaaa_aaaa_aaaa_aaaa, odd)
    }
    #[inline(always)]
    unsafe fn dot2(sum: __m512i, lanes: __m512i, pair: i32) -> __m512i {
        dpwssd(sum, lanes, _mm512_set1_epi32(pair))
    }
    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(
        sum: __m512i,
        weights: __m512i,
        activations: *const i8,
    ) -> __m512i {
        let x = _mm512_set1_epi32(activations.cast::<i32>().read_unaligned());
        _mm512_dpbusd_epi32(sum, weights, x)
    }
}
