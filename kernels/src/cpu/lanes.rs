//! Sixteen lanes of f32 or i32, and 64 bytes seen as 16 groups of four: the vocabulary of every CPU kernel.
//!
//! One generic body serves all instruction sets, so that all give the same bits: the same integer sums, and the same
//! float operations in the same order ([`Scalar`] rounds its fused multiply-add once, as the hardware does).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use scalar::Scalar;

/// Lanes in a vector, and rows in a weight tile.
pub(crate) const LANES: usize = 16;

/// A computation that is compiled once for each instruction set.
pub(crate) trait Op {
    /// Runs on the lanes given.
    ///
    /// # Safety
    /// The instruction set of `L` is available, and the op's own pointers hold.
    unsafe fn run<L: Lanes>(self);
}

/// # Safety
/// All methods: the instruction set is available on this CPU; pointers are valid for the lanes read or written
/// (16 elements of the pointed type, 64 bytes for [`Lanes::b_load`] and [`Lanes::b_store`], 4 for the activations of [`Lanes::dot4`]).
pub(crate) unsafe trait Lanes: Copy {
    /// 16 f32.
    type F: Copy;
    /// 16 i32.
    type I: Copy;
    /// 64 bytes: 16 groups of 4.
    type B: Copy;

    /// Whether a matrix unit may stand beside them.
    const TILES: bool = false;
    /// Heads, 6 at most, whose four vectors of sums are computed beside each other: as registers allow.
    const HEADS: usize = 1;

    /// Runs `op` with the instruction set enabled.
    unsafe fn vectorize<O: Op>(op: O);
    unsafe fn f_splat(value: f32) -> Self::F;
    unsafe fn f_load(source: *const f32) -> Self::F;
    unsafe fn f_store(target: *mut f32, value: Self::F);
    unsafe fn f_load_f16(source: *const u16) -> Self::F;
    unsafe fn f_load_bf16(source: *const u16) -> Self::F;
    unsafe fn f_add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn f_sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn f_mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn f_div(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn f_max(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn f_min(a: Self::F, b: Self::F) -> Self::F;
    /// `a b + c`, rounded once.
    unsafe fn f_fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn f_from_i(value: Self::I) -> Self::F;
    /// Rounds to nearest, ties to even.
    unsafe fn i_round(value: Self::F) -> Self::I;
    /// `2^value` for -126..=127.
    unsafe fn f_exp2i(value: Self::I) -> Self::F;
    unsafe fn i_splat(value: i32) -> Self::I;
    unsafe fn i_add(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn i_mul(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn i_and(a: Self::I, mask: i32) -> Self::I;
    unsafe fn i_shr4(a: Self::I) -> Self::I;
    unsafe fn i_load(source: *const i32) -> Self::I;
    unsafe fn i_store(target: *mut i32, value: Self::I);
    unsafe fn i_load_u8(source: *const u8) -> Self::I;
    unsafe fn i_load_i8(source: *const u8) -> Self::I;
    unsafe fn b_load(source: *const u8) -> Self::B;
    unsafe fn b_store(target: *mut u8, value: Self::B);
    /// `(value >> shift) & mask` in each byte.
    unsafe fn b_bits<const SHIFT: i32>(value: Self::B, mask: u8) -> Self::B;
    /// `high << SHIFT | low`; high bits must fit the byte.
    unsafe fn b_join<const SHIFT: i32>(low: Self::B, high: Self::B) -> Self::B;
    /// Looks up the low nibble of each byte.
    unsafe fn b_table(table: &[u8; 16], index: Self::B) -> Self::B;
    /// Each byte less `amount`, modulo 256.
    unsafe fn b_sub(value: Self::B, amount: u8) -> Self::B {
        let mut bytes = [0_u8; 64];
        Self::b_store(bytes.as_mut_ptr(), value);
        Self::b_load(bytes.map(|b| b.wrapping_sub(amount)).as_ptr())
    }
    /// Each byte times the factor of its group of four, modulo 256. `EXACT`: all are less than 256 and not negative.
    unsafe fn b_mul<const EXACT: bool>(value: Self::B, factors: Self::I) -> Self::B {
        let (mut bytes, mut by) = ([0_u8; 64], [0; LANES]);
        Self::b_store(bytes.as_mut_ptr(), value);
        Self::i_store(by.as_mut_ptr(), factors);
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = byte.wrapping_mul(by[i / 4] as u8);
        }
        Self::b_load(bytes.as_ptr())
    }
    /// Adds to each lane the dot product of its two i16 with those of `pair`.
    unsafe fn dot2(sum: Self::I, lanes: Self::I, pair: i32) -> Self::I {
        let (mut out, mut halves) = ([0; LANES], [0; LANES]);
        Self::i_store(out.as_mut_ptr(), sum);
        Self::i_store(halves.as_mut_ptr(), lanes);
        for (out, halves) in out.iter_mut().zip(halves) {
            *out +=
                i32::from(halves as i16) * i32::from(pair as i16) + (halves >> 16) * (pair >> 16);
        }
        Self::i_load(out.as_ptr())
    }
    /// Adds to each lane the dot product of its four unsigned bytes with four signed activations.
    /// `WIDE`: bytes may exceed 127.
    unsafe fn dot4<const WIDE: bool>(
        sum: Self::I,
        weights: Self::B,
        activations: *const i8,
    ) -> Self::I;
}

/// Sum of the lanes in a fixed tree order.
#[inline(always)]
pub(crate) unsafe fn f_sum<L: Lanes>(value: L::F) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    L::f_store(lanes.as_mut_ptr(), value);
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Largest lane.
#[inline(always)]
pub(crate) unsafe fn f_max_lane<L: Lanes>(value: L::F) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    L::f_store(lanes.as_mut_ptr(), value);
    lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// e^x: range reduction to |r| <= ln2/2 and a degree-6 Taylor polynomial; relative error below 3e-7.
/// Below -87.3 it gives 0 (as softmax wants of masked keys), above 88.3 it saturates.
#[inline(always)]
pub(crate) unsafe fn f_exp<L: Lanes>(x: L::F) -> L::F {
    let low = L::f_splat(-87.0);
    let clamped = L::f_min(L::f_max(x, low), L::f_splat(88.0));
    let n = L::i_round(L::f_mul(clamped, L::f_splat(std::f32::consts::LOG2_E)));
    let nf = L::f_from_i(n);
    let r = L::f_fma(nf, L::f_splat(-0.693_359_4), clamped);
    let r = L::f_fma(nf, L::f_splat(2.121_944_4e-4), r);
    let mut p = L::f_splat(1.0 / 720.0);
    for c in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = L::f_fma(p, r, L::f_splat(c));
    }
    let y = L::f_mul(p, L::f_exp2i(n));
    // Exactly zero at and below the clamp, so masked keys weigh nothing: min(y, max(x - low, 0) * huge).
    let open = L::f_mul(
        L::f_max(L::f_sub(x, low), L::f_splat(0.0)),
        L::f_splat(f32::MAX),
    );
    L::f_min(y, open)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) unsafe fn f_sigmoid<L: Lanes>(x: L::F) -> L::F {
    let e = f_exp::<L>(L::f_sub(L::f_splat(0.0), x));
    L::f_div(L::f_splat(1.0), L::f_add(L::f_splat(1.0), e))
}
