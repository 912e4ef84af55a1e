//! One tile of 16 weight rows times N columns, for each kind of quant block.

use tensor::DType;

use crate::cpu::lanes::{LANES, Lanes};
use crate::cpu::matmul::Activations;
use crate::cpu::pack::{IQ4_TABLE, Layout, offset};

/// The inverse of [`DType::ggml_id`], for const generics.
pub(super) const fn dtype_of(id: u32) -> DType {
    let mut i = 0;
    while i < DType::ALL.len() {
        if DType::ALL[i].ggml_id() == id {
            return DType::ALL[i];
        }
        i += 1;
    }
    panic!("an id that came from a DType")
}

/// The eight vectors of one unit: inputs 4i..4i+4 of 16 rows as unsigned bytes.
#[inline(always)]
pub(super) unsafe fn unit<L: Lanes, const ID: u32>(p: *const u8) -> [L::B; 8] {
    let dtype = const { dtype_of(ID) };
    let bits = Layout::of(dtype).bits;
    if bits == 8 {
        return [
            L::b_load(p),
            L::b_load(p.add(64)),
            L::b_load(p.add(128)),
            L::b_load(p.add(192)),
            L::b_load(p.add(256)),
            L::b_load(p.add(320)),
            L::b_load(p.add(384)),
            L::b_load(p.add(448)),
        ];
    }
    if bits < 4 {
        let (a, b) = (L::b_load(p), L::b_load(p.add(64)));
        let low = [
            L::b_bits::<0>(a, 3),
            L::b_bits::<2>(a, 3),
            L::b_bits::<4>(a, 3),
            L::b_bits::<6>(a, 3),
            L::b_bits::<0>(b, 3),
            L::b_bits::<2>(b, 3),
            L::b_bits::<4>(b, 3),
            L::b_bits::<6>(b, 3),
        ];
        return if bits == 3 {
            join_bit::<L, 2>(low, p.add(128))
        } else {
            low
        };
    }
    let n = [
        L::b_load(p),
        L::b_load(p.add(64)),
        L::b_load(p.add(128)),
        L::b_load(p.add(192)),
    ];
    let low = [
        L::b_bits::<0>(n[0], 15),
        L::b_bits::<0>(n[1], 15),
        L::b_bits::<0>(n[2], 15),
        L::b_bits::<0>(n[3], 15),
        L::b_bits::<4>(n[0], 15),
        L::b_bits::<4>(n[1], 15),
        L::b_bits::<4>(n[2], 15),
        L::b_bits::<4>(n[3], 15),
    ];
    match bits {
        5 => join_bit::<L, 4>(low, p.add(256)),
        6 => {
            let (a, b) = (L::b_load(p.add(256)), L::b_load(p.add(320)));
            [
                L::b_join::<4>(low[0], L::b_bits::<0>(a, 3)),
                L::b_join::<4>(low[1], L::b_bits::<2>(a, 3)),
                L::b_join::<4>(low[2], L::b_bits::<4>(a, 3)),
                L::b_join::<4>(low[3], L::b_bits::<6>(a, 3)),
                L::b_join::<4>(low[4], L::b_bits::<0>(b, 3)),
                L::b_join::<4>(low[5], L::b_bits::<2>(b, 3)),
                L::b_join::<4>(low[6], L::b_bits::<4>(b, 3)),
                L::b_join::<4>(low[7], L::b_bits::<6>(b, 3)),
            ]
        }
        _ if matches!(dtype, DType::Iq4Nl | DType::Iq4Xs) => {
            let mut values = low;
            for value in &mut values {
                *value = L::b_table(&IQ4_TABLE, *value);
            }
            values
        }
        _ => low,
    }
}

#[inline(always)]
unsafe fn join_bit<L: Lanes, const SHIFT: i32>(low: [L::B; 8], plane: *const u8) -> [L::B; 8] {
    let h = L::b_load(plane);
    [
        L::b_join::<SHIFT>(low[0], L::b_bits::<0>(h, 1)),
        L::b_join::<SHIFT>(low[1], L::b_bits::<1>(h, 1)),
        L::b_join::<SHIFT>(low[2], L::b_bits::<2>(h, 1)),
        L::b_join::<SHIFT>(low[3], L::b_bits::<3>(h, 1)),
        L::b_join::<SHIFT>(low[4], L::b_bits::<4>(h, 1)),
        L::b_join::<SHIFT>(low[5], L::b_bits::<5>(h, 1)),
        L::b_join::<SHIFT>(low[6], L::b_bits::<6>(h, 1)),
        L::b_join::<SHIFT>(low[7], L::b_bits::<7>(h, 1)),
    ]
}

/// Dot product of quads `from..to` of a unit, on top of `sum`.
#[inline(always)]
unsafe fn quads<L: Lanes, const ID: u32>(
    mut sum: L::I,
    w: &[L::B; 8],
    x: *const i8,
    from: usize,
    to: usize,
) -> L::I {
    let wide = matches!(
        const { dtype_of(ID) },
        DType::Q8_0 | DType::Iq4Nl | DType::Iq4Xs
    );
    for i in from..to {
        sum = if wide {
            L::dot4::<true>(sum, w[i], x.add(4 * i))
        } else {
            L::dot4::<false>(sum, w[i], x.add(4 * i))
        };
    }
    sum
}

/// Quant blocks of 32 with float scales.
#[inline(always)]
pub(super) unsafe fn by32<L: Lanes, const N: usize, const ID: u32>(
    p: *const u8,
    x: &Activations,
    col: usize,
    sums: &mut [L::F; N],
) {
    let dtype = const { dtype_of(ID) };
    let layout = const { Layout::of(dtype_of(ID)) };
    let mut acc = *sums;
    let groups = x.len / 32;
    for g in 0..groups {
        let p = p.add(g * layout.group_bytes());
        let w = unit::<L, ID>(p);
        let d = L::f_load_f16(p.add(layout.unit_bytes()).cast());
        let q = x.by32.q.as_ptr().add(col * x.len + 32 * g);
        for (n, acc) in acc.iter_mut().enumerate() {
            let c = col + n;
            let scale = *x.by32.scale.as_ptr().add(c * groups + g);
            let s = x.by32.sums.as_ptr().add(c * 2 * groups + 2 * g);
            let total = *s + *s.add(1);
            let dot = L::f_from_i(quads::<L, ID>(
                L::i_splat(-offset(dtype) * total),
                &w,
                q.add(n * x.len),
                0,
                8,
            ));
            *acc = L::f_fma(L::f_mul(d, L::f_splat(scale)), dot, *acc);
            if layout.min {
                let m = L::f_load_f16(p.add(layout.unit_bytes() + 2 * LANES).cast());
                *acc = L::f_fma(m, L::f_splat(scale * total as f32), *acc);
            }
        }
    }
    *sums = acc;
}

/// Quant blocks of 256 with integer sub-scales.
#[inline(always)]
pub(super) unsafe fn by256<L: Lanes, const N: usize, const ID: u32>(
    p: *const u8,
    x: &Activations,
    col: usize,
    sums: &mut [L::F; N],
) {
    let dtype = const { dtype_of(ID) };
    let layout = const { Layout::of(dtype_of(ID)) };
    let stride = layout.unit_bytes() + layout.sub_bytes();
    let mut acc = *sums;
    let groups = x.len / 256;
    for g in 0..groups {
        let p = p.add(g * layout.group_bytes());
        let mut totals = [L::i_splat(0); N];
        let mut mins = [L::i_splat(0); N];
        for u in 0..8 {
            let p = p.add(u * stride);
            let w = unit::<L, ID>(p);
            let sub = p.add(layout.unit_bytes());
            let (s0, s1, m0, m1) = sub_scales::<L, ID>(sub);
            let q = x.by256.q.as_ptr().add(col * x.len + 256 * g + 32 * u);
            let s = x.by256.sums.as_ptr().add(16 * g + 2 * u);
            let sum16 = |n: usize, half: usize| *s.add((col + n) * 16 * groups + half);
            if layout.sub == 16 {
                for n in 0..N {
                    let (a, b) = (sum16(n, 0), sum16(n, 1));
                    let first =
                        quads::<L, ID>(L::i_splat(-offset(dtype) * a), &w, q.add(n * x.len), 0, 4);
                    let second =
                        quads::<L, ID>(L::i_splat(-offset(dtype) * b), &w, q.add(n * x.len), 4, 8);
                    let both = L::i_add(L::i_mul(first, s0), L::i_mul(second, s1));
                    totals[n] = L::i_add(totals[n], both);
                    if layout.min {
                        let (a, b) = (L::i_splat(a), L::i_splat(b));
                        let both = L::i_add(L::i_mul(m0, a), L::i_mul(m1, b));
                        mins[n] = L::i_add(mins[n], both);
                    }
                }
            } else {
                for n in 0..N {
                    let sum = sum16(n, 0) + sum16(n, 1);
                    let dot = quads::<L, ID>(
                        L::i_splat(-offset(dtype) * sum),
                        &w,
                        q.add(n * x.len),
                        0,
                        8,
                    );
                    totals[n] = L::i_add(totals[n], L::i_mul(dot, s0));
                    if layout.min {
                        mins[n] = L::i_add(mins[n], L::i_mul(m0, L::i_splat(sum)));
                    }
                }
            }
        }
        let scales = p.add(8 * stride);
        let d = L::f_load_f16(scales.cast());
        for n in 0..N {
            let scale = L::f_splat(*x.by256.scale.as_ptr().add((col + n) * groups + g));
            acc[n] = L::f_fma(L::f_mul(d, scale), L::f_from_i(totals[n]), acc[n]);
            if layout.min {
                let m = L::f_load_f16(scales.add(2 * LANES).cast());
                let down = L::f_sub(L::f_splat(0.0), L::f_mul(m, scale));
                acc[n] = L::f_fma(down, L::f_from_i(mins[n]), acc[n]);
            }
        }
    }
    *sums = acc;
}

/// Scales of both halves and mins of both halves of a unit (the same twice where a sub-scale covers 32 inputs).
#[inline(always)]
pub(super) unsafe fn sub_scales<L: Lanes, const ID: u32>(
    sub: *const u8,
) -> (L::I, L::I, L::I, L::I) {
    match const { dtype_of(ID) } {
        DType::Q2K => {
            let (a, b) = (L::i_load_u8(sub), L::i_load_u8(sub.add(LANES)));
            (L::i_and(a, 15), L::i_and(b, 15), L::i_shr4(a), L::i_shr4(b))
        }
        DType::Q4K | DType::Q5K => {
            let (s, m) = (L::i_load_u8(sub), L::i_load_u8(sub.add(LANES)));
            (s, s, m, m)
        }
        DType::Iq4Xs => {
            let s = L::i_load_i8(sub);
            (s, s, s, s)
        }
        _ => {
            let (a, b) = (L::i_load_i8(sub), L::i_load_i8(sub.add(LANES)));
            (a, b, a, b)
        }
    }
}

/// f32, f16 and bf16 weights: four chains of multiply-adds by input index modulo 4, then `(0+1)+(2+3)`.
#[inline(always)]
pub(super) unsafe fn floats<L: Lanes, const N: usize, const ID: u32>(
    p: *const u8,
    x: &Activations,
    col: usize,
    sums: &mut [L::F; N],
) {
    let load = |k: usize| match const { dtype_of(ID) } {
        DType::F32 => L::f_load(p.cast::<f32>().add(k * LANES)),
        DType::F16 => L::f_load_f16(p.cast::<u16>().add(k * LANES)),
        _ => L::f_load_bf16(p.cast::<u16>().add(k * LANES)),
    };
    let mut chains = [[L::f_splat(0.0); 4]; N];
    let whole = x.len / 4 * 4;
    let mut k = 0;
    while k < whole {
        for j in 0..4 {
            let w = load(k + j);
            for (n, chains) in chains.iter_mut().enumerate() {
                let v = *x.values.as_ptr().add((col + n) * x.len + k + j);
                chains[j] = L::f_fma(w, L::f_splat(v), chains[j]);
            }
        }
        k += 4;
    }
    for j in 0..x.len - whole {
        let w = load(whole + j);
        for (n, chains) in chains.iter_mut().enumerate() {
            let v = *x.values.as_ptr().add((col + n) * x.len + whole + j);
            chains[j] = L::f_fma(w, L::f_splat(v), chains[j]);
        }
    }
    for n in 0..N {
        let c = chains[n];
        sums[n] = L::f_add(L::f_add(c[0], c[1]), L::f_add(c[2], c[3]));
    }
}
