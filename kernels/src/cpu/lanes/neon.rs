//! NEON of 64-bit ARM: four registers a vector, with dot product instructions where the processor has them.
//!
//! Both dot products take signed bytes, so weights beyond 127 are lowered by 128 and the activations' sum times 128
//! is added.

use std::arch::aarch64::*;
use std::arch::asm;
use std::array::from_fn;

use super::{LANES, Lanes, Op};

/// NEON; `DOT`: with the `dotprod` extension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon<const DOT: bool>;

#[target_feature(enable = "neon,dotprod")]
unsafe fn enabled<O: Op>(op: O) {
    op.run::<Neon<true>>();
}

/// Adds to each lane the dot product of its four signed bytes. The intrinsic of `sdot` is not stable.
#[inline(always)]
unsafe fn dot<const DOT: bool>(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    if DOT {
        let mut sum = sum;
        asm!(
            ".arch_extension dotprod",
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
        sum
    } else {
        // Products of two bytes fit 16 bits; their sums by two fit 32.
        let low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
        let high = vpaddlq_s16(vmull_high_s8(a, b));
        vaddq_s32(sum, vpaddq_s32(low, high))
    }
}

/// The intrinsic's half-precision type is not stable.
#[inline(always)]
unsafe fn widen_f16(source: *const u16) -> float32x4_t {
    let wide: float32x4_t;
    asm!(
        "fcvtl {wide:v}.4s, {half:v}.4h",
        wide = out(vreg) wide,
        half = in(vreg) vld1_u16(source),
        options(pure, nomem, nostack, preserves_flags),
    );
    wide
}

#[inline(always)]
unsafe fn select(mask: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(mask, a, b)
}

unsafe impl<const DOT: bool> Lanes for Neon<DOT> {
    type F = [float32x4_t; 4];
    type I = [int32x4_t; 4];
    type B = [uint8x16_t; 4];

    unsafe fn vectorize<O: Op>(op: O) {
        if DOT {
            enabled(op);
        } else {
            op.run::<Self>();
        }
    }
    #[inline(always)]
    unsafe fn f_splat(value: f32) -> Self::F {
        [vdupq_n_f32(value); 4]
    }
    #[inline(always)]
    unsafe fn f_load(source: *const f32) -> Self::F {
        from_fn(|i| vld1q_f32(source.add(4 * i)))
    }
    #[inline(always)]
    unsafe fn f_store(target: *mut f32, value: Self::F) {
        for (i, value) in value.into_iter().enumerate() {
            vst1q_f32(target.add(4 * i), value);
        }
    }
    #[inline(always)]
    unsafe fn f_load_f16(source: *const u16) -> Self::F {
        from_fn(|i| widen_f16(source.add(4 * i)))
    }
    #[inline(always)]
    unsafe fn f_load_bf16(source: *const u16) -> Self::F {
        from_fn(|i| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(source.add(4 * i)))))
    }
    #[inline(always)]
    unsafe fn f_add(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| vaddq_f32(a[i], b[i]))
    }
    #[inline(always)]
    unsafe fn f_sub(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| vsubq_f32(a[i], b[i]))
    }
    #[inline(always)]
    unsafe fn f_mul(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| vmulq_f32(a[i], b[i]))
    }
    #[inline(always)]
    unsafe fn f_div(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| vdivq_f32(a[i], b[i]))
    }
    // `fmax` and `fmin` differ from the other tiers in NaNs and signed zeros.
    #[inline(always)]
    unsafe fn f_max(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| select(vcgtq_f32(a[i], b[i]), a[i], b[i]))
    }
    #[inline(always)]
    unsafe fn f_min(a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| select(vcltq_f32(a[i], b[i]), a[i], b[i]))
    }
    #[inline(always)]
    unsafe fn f_fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| vfmaq_f32(c[i], a[i], b[i]))
    }
    #[inline(always)]
    unsafe fn f_from_i(value: Self::I) -> Self::F {
        value.map(|v| vcvtq_f32_s32(v))
    }
    #[inline(always)]
    unsafe fn i_round(value: Self::F) -> Self::I {
        value.map(|v| vcvtnq_s32_f32(v))
    }
    #[inline(always)]
    unsafe fn f_exp2i(value: Self::I) -> Self::F {
        value.map(|v| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(v, vdupq_n_s32(127)))))
    }
    #[inline(always)]
    unsafe fn i_splat(value: i32) -> Self::I {
        [vdupq_n_s32(value); 4]
    }
    #[inline(always)]
    unsafe fn i_add(a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| vaddq_s32(a[i], b[i]))
    }
    #[inline(always)]
    unsafe fn i_mul(a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| vmulq_s32(a[i], b[i]))
    }
    #[inline(always)]
    unsafe fn i_and(a: Self::I, mask: i32) -> Self::I {
        a.map(|v| vandq_s32(v, vdupq_n_s32(mask)))
    }
    #[inline(always)]
    unsafe fn i_shr4(a: Self::I) -> Self::I {
        a.map(|v| vshrq_n_s32::<4>(v))
    }
    #[inline(always)]
    unsafe fn i_load(source: *const i32) -> Self::I {
        from_fn(|i| vld1q_s32(source.add(4 * i)))
    }
    #[inline(always)]
    unsafe fn i_store(target: *mut i32, value: Self::I) {
        for (i, value) in value.into_iter().enumerate() {
            vst1q_s32(target.add(4 * i), value);
        }
    }
    #[inline(always)]
    unsafe fn i_load_u8(source: *const u8) -> Self::I {
        let bytes = vld1q_u8(source);
        let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
        [
            vmovl_u16(vget_low_u16(low)),
            vmovl_high_u16(low),
            vmovl_u16(vget_low_u16(high)),
            vmovl_high_u16(high),
        ]
        .map(|v| vreinterpretq_s32_u32(v))
    }
    #[inline(always)]
    unsafe fn i_load_i8(source: *const u8) -> Self::I {
        let bytes = vld1q_s8(source.cast());
        let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
        [
            vmovl_s16(vget_low_s16(low)),
            vmovl_high_s16(low),
            vmovl_s16(vget_low_s16(high)),
            vmovl_high_s16(high),
        ]
    }
    #[inline(always)]
    unsafe fn b_load(source: *const u8) -> Self::B {
        from_fn(|i| vld1q_u8(source.add(LANES * i)))
    }
    #[inline(always)]
    unsafe fn b_store(target: *mut u8, value: Self::B) {
        for (i, value) in value.into_iter().enumerate() {
            vst1q_u8(target.add(LANES * i), value);
        }
    }
    #[inline(always)]
    unsafe fn b_bits<const SHIFT: i32>(value: Self::B, mask: u8) -> Self::B {
        value.map(|v| {
            let shifted = vshlq_u8(v, vdupq_n_s8(-SHIFT as i8));
            vandq_u8(shifted, vdupq_n_u8(mask))
        })
    }
    #[inline(always)]
    unsafe fn b_join<const SHIFT: i32>(low: Self::B, high: Self::B) -> Self::B {
        from_fn(|i| vorrq_u8(low[i], vshlq_u8(high[i], vdupq_n_s8(SHIFT as i8))))
    }
    #[inline(always)]
    unsafe fn b_table(table: &[u8; 16], index: Self::B) -> Self::B {
        let entries = vld1q_u8(table.as_ptr());
        index.map(|i| vqtbl1q_u8(entries, vandq_u8(i, vdupq_n_u8(15))))
    }
    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(
        sum: Self::I,
        weights: Self::B,
        activations: *const i8,
    ) -> Self::I {
        let x = activations.cast::<i32>().read_unaligned();
        let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
        if !WIDE {
            return from_fn(|i| dot::<DOT>(sum[i], vreinterpretq_s8_u8(weights[i]), x));
        }
        // The same in all lanes: 2 * 64 times the activations' sum.
        let half = dot::<DOT>(vdupq_n_s32(0), vdupq_n_s8(64), x);
        let raised = vaddq_s32(half, half);
        from_fn(|i| {
            let lowered = vreinterpretq_s8_u8(veorq_u8(weights[i], vdupq_n_u8(128)));
            dot::<DOT>(vaddq_s32(sum[i], raised), lowered, x)
        })
    }
}
