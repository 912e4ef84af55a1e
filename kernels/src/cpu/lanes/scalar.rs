//! Plain loops: the specification of [`Lanes`].

use super::{LANES, Lanes, Op};

/// Any CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

#[inline(always)]
fn map<T: Copy, U: Copy + Default>(a: [T; LANES], f: impl Fn(T) -> U) -> [U; LANES] {
    let mut out = [U::default(); LANES];
    for i in 0..LANES {
        out[i] = f(a[i]);
    }
    out
}

#[inline(always)]
fn zip<T: Copy + Default>(a: [T; LANES], b: [T; LANES], f: impl Fn(T, T) -> T) -> [T; LANES] {
    let mut out = [T::default(); LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

unsafe impl Lanes for Scalar {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u8; 64];
    const TILES: bool = cfg!(test);

    unsafe fn vectorize<O: Op>(op: O) {
        op.run::<Self>();
    }
    unsafe fn f_splat(value: f32) -> Self::F {
        [value; LANES]
    }
    unsafe fn f_load(source: *const f32) -> Self::F {
        source.cast::<Self::F>().read_unaligned()
    }
    unsafe fn f_store(target: *mut f32, value: Self::F) {
        target.cast::<Self::F>().write_unaligned(value);
    }
    unsafe fn f_load_f16(source: *const u16) -> Self::F {
        map(source.cast::<[u16; LANES]>().read_unaligned(), |h| {
            half::f16::from_bits(h).to_f32()
        })
    }
    unsafe fn f_load_bf16(source: *const u16) -> Self::F {
        map(source.cast::<[u16; LANES]>().read_unaligned(), |h| {
            f32::from_bits(u32::from(h) << 16)
        })
    }
    unsafe fn f_add(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    unsafe fn f_sub(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    unsafe fn f_mul(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    unsafe fn f_div(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    unsafe fn f_max(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    unsafe fn f_min(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    unsafe fn f_fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        let mut out = c;
        for i in 0..LANES {
            out[i] = a[i].mul_add(b[i], c[i]);
        }
        out
    }
    unsafe fn f_from_i(value: Self::I) -> Self::F {
        map(value, |v| v as f32)
    }
    unsafe fn i_round(value: Self::F) -> Self::I {
        map(value, |v| v.round_ties_even() as i32)
    }
    unsafe fn f_exp2i(value: Self::I) -> Self::F {
        map(value, |v| f32::from_bits(((v + 127) as u32) << 23))
    }
    unsafe fn i_splat(value: i32) -> Self::I {
        [value; LANES]
    }
    unsafe fn i_add(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_add)
    }
    unsafe fn i_mul(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_mul)
    }
    unsafe fn i_and(a: Self::I, mask: i32) -> Self::I {
        map(a, |v| v & mask)
    }
    unsafe fn i_shr4(a: Self::I) -> Self::I {
        map(a, |v| v >> 4)
    }
    unsafe fn i_load(source: *const i32) -> Self::I {
        source.cast::<Self::I>().read_unaligned()
    }
    unsafe fn i_store(target: *mut i32, value: Self::I) {
        target.cast::<Self::I>().write_unaligned(value);
    }
    unsafe fn i_load_u8(source: *const u8) -> Self::I {
        map(source.cast::<[u8; LANES]>().read_unaligned(), i32::from)
    }
    unsafe fn i_load_i8(source: *const u8) -> Self::I {
        map(source.cast::<[i8; LANES]>().read_unaligned(), i32::from)
    }
    unsafe fn b_load(source: *const u8) -> Self::B {
        source.cast::<Self::B>().read_unaligned()
    }
    unsafe fn b_store(target: *mut u8, value: Self::B) {
        target.cast::<Self::B>().write_unaligned(value);
    }
    unsafe fn b_bits<const SHIFT: i32>(value: Self::B, mask: u8) -> Self::B {
        value.map(|v| (v >> SHIFT) & mask)
    }
    unsafe fn b_join<const SHIFT: i32>(low: Self::B, high: Self::B) -> Self::B {
        let mut out = low;
        for i in 0..64 {
            out[i] |= high[i] << SHIFT;
        }
        out
    }
    unsafe fn b_table(table: &[u8; 16], index: Self::B) -> Self::B {
        index.map(|i| table[usize::from(i & 15)])
    }
    unsafe fn dot4<const WIDE: bool>(
        sum: Self::I,
        weights: Self::B,
        activations: *const i8,
    ) -> Self::I {
        let x = activations.cast::<[i8; 4]>().read_unaligned();
        let mut out = sum;
        for lane in 0..LANES {
            for i in 0..4 {
                out[lane] += i32::from(weights[4 * lane + i]) * i32::from(x[i]);
            }
        }
        out
    }
}
