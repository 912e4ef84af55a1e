//! What is kept of keys and values: the types' formulas, written anew from their definitions.

use kernels::{KvType, PAGE_TOKENS};

/// Values that share a scale.
const BLOCK: usize = 32;
const LEVELS: [f64; 8] = [
    -0.190685, -0.117832, -0.065717, -0.021460, 0.021460, 0.065717, 0.117832, 0.190685,
];
/// Signs of the rotation, a bit a dim: any would do, these are the devices'.
const SIGNS: [[u32; 4]; 2] = [
    [0x9e37_15b7, 0x4ac1_e2d9, 0xb5f0_673c, 0x27d8_9a4e],
    [0xc3a5_518e, 0x6d1b_f702, 0x1f96_8cd4, 0xe84d_3a6b],
];

/// Runs of a row: bits of a code in each, and whether blocks have a least value. `None`: floats.
fn code_bits(kv_type: KvType) -> Option<([usize; 2], bool)> {
    match kv_type {
        KvType::F32 | KvType::F16 | KvType::Bf16 => None,
        KvType::Q8_0 => Some(([8, 0], false)),
        KvType::Q5_1 => Some(([4, 1], true)),
        KvType::Q5_0 => Some(([4, 1], false)),
        KvType::Q4_1 => Some(([4, 0], true)),
        KvType::Q4_0 => Some(([4, 0], false)),
        KvType::Tq3_0 => Some(([2, 1], false)),
    }
}

fn f16(bits: u16) -> f64 {
    half::f16::from_bits(bits).to_f64()
}

/// The row of a token in a page of one head, as it is kept: rotated where the type asks for it.
pub(crate) fn decode(
    kv_type: KvType,
    is_key: bool,
    dim: usize,
    page: &[u8],
    token: usize,
) -> Vec<f64> {
    // Unit `unit` of a run of `len` that begins after `before` others.
    let place = |before: usize, len: usize, unit: usize| match is_key {
        true => (before + unit) * PAGE_TOKENS + token,
        false => before * PAGE_TOKENS + token * len + unit,
    };
    let unit = |before: usize, len: usize, unit: usize| {
        let at = 2 * place(before, len, unit);
        u16::from_le_bytes([page[at], page[at + 1]])
    };
    let Some((bits, has_least)) = code_bits(kv_type) else {
        return (0..dim)
            .map(|d| match kv_type {
                KvType::F32 => {
                    let at = 4 * place(0, dim, d);
                    let word = [page[at], page[at + 1], page[at + 2], page[at + 3]];
                    f64::from(f32::from_le_bytes(word))
                }
                KvType::Bf16 => half::bf16::from_bits(unit(0, dim, d)).to_f64(),
                _ => f16(unit(0, dim, d)),
            })
            .collect();
    };
    let lens = bits.map(|bits| dim * bits / 16);
    // Keys fill unit after unit; neighbouring values go to two units in turn.
    let part = |run: usize, d: usize| {
        let (bits, before) = (bits[run], lens[..run].iter().sum());
        if bits == 0 {
            return 0;
        }
        let per_unit = 16 / bits;
        let (at, shift) = match is_key {
            true => (d / per_unit, d % per_unit),
            false => (d / (2 * per_unit) * 2 + d % 2, d % (2 * per_unit) / 2),
        };
        usize::from(unit(before, lens[run], at)) >> (bits * shift) & ((1 << bits) - 1)
    };
    let scales = dim / BLOCK;
    let scales_at = lens[0] + lens[1];
    (0..dim)
        .map(|d| {
            let code = part(0, d) | part(1, d) << bits[0];
            let scale = f16(unit(scales_at, scales, d / BLOCK));
            if kv_type == KvType::Tq3_0 {
                return LEVELS[code] * scale;
            }
            match has_least {
                true => code as f64 * scale + f16(unit(scales_at + scales, scales, d / BLOCK)),
                false => (code as f64 - f64::from(1 << (bits[0] + bits[1] - 1))) * scale,
            }
        })
        .collect()
}

/// What the formulas make of a row.
pub(crate) fn quantised(kv_type: KvType, x: &[f64]) -> Vec<f64> {
    let near = |value: f64| half::f16::from_f64(value).to_f64();
    let block = |x: &[f64]| -> Vec<f64> {
        let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = x.iter().copied().fold(f64::INFINITY, f64::min);
        let far = if most >= -least { most } else { least };
        let code = |d: f64, from: f64, add: f64, top: f64| -> Vec<f64> {
            x.iter()
                .map(|x| (((x - from) / d + add).trunc()).min(top))
                .collect()
        };
        let values = |codes: Vec<f64>, d: f64, zero: f64, least: f64| -> Vec<f64> {
            let value = |code: f64| (code - zero) * near(d) + near(least);
            codes.into_iter().map(value).collect()
        };
        match kv_type {
            KvType::Q8_0 => {
                let d = far.abs() / 127.0;
                let codes = x.iter().map(|x| (x / d).round_ties_even()).collect();
                values(codes, d, 0.0, 0.0)
            }
            KvType::Q5_0 => values(code(far / -16.0, 0.0, 16.5, 31.0), far / -16.0, 16.0, 0.0),
            KvType::Q4_0 => values(code(far / -8.0, 0.0, 8.5, 15.0), far / -8.0, 8.0, 0.0),
            KvType::Q5_1 => {
                let d = (most - least) / 31.0;
                values(code(d, least, 0.5, 31.0), d, 0.0, least)
            }
            KvType::Q4_1 => {
                let d = (most - least) / 15.0;
                values(code(d, least, 0.5, 15.0), d, 0.0, least)
            }
            KvType::Bf16 => x
                .iter()
                .map(|x| half::bf16::from_f64(*x).to_f64())
                .collect(),
            KvType::F16 => x.iter().map(|x| near(*x)).collect(),
            KvType::F32 | KvType::Tq3_0 => x.to_vec(),
        }
    };
    if kv_type != KvType::Tq3_0 {
        return x.chunks(BLOCK).flat_map(block).collect();
    }
    let length = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let group = |x: &[f64]| -> Vec<f64> {
        // The levels are those of 128 dims of a row of length 1.
        let unit = length(x) / (x.len() as f64 / 128.0).sqrt();
        let nearest = |x: &f64| {
            let far = |level: f64| (level - x / unit).abs();
            let levels = LEVELS.iter().copied();
            levels
                .min_by(|a, b| far(*a).total_cmp(&far(*b)))
                .expect("levels")
        };
        let levels: Vec<f64> = x.iter().map(nearest).collect();
        let scale = near(length(x) / length(&levels));
        levels.iter().map(|level| level * scale).collect()
    };
    x.chunks(group_of(x.len())).flat_map(group).collect()
}

fn group_of(dim: usize) -> usize {
    [128, 64, 32]
        .into_iter()
        .find(|group| dim.is_multiple_of(*group))
        .expect("a multiple of 32")
}

/// The rotation by its definition, signs of which come first by `order`.
fn turned(x: &[f64], order: [usize; 2]) -> Vec<f64> {
    let sign = |which: usize, d: usize| match SIGNS[order[which]][d / 32] >> (d % 32) & 1 {
        0 => 1.0,
        _ => -1.0,
    };
    let turn = |x: &[f64]| -> Vec<f64> {
        let row = |i: usize| -> f64 {
            let term = |(j, x): (usize, &f64)| match (i & j).count_ones() % 2 {
                0 => sign(0, j) * x,
                _ => -sign(0, j) * x,
            };
            let sum: f64 = x.iter().enumerate().map(term).sum();
            sign(1, i) * sum / (x.len() as f64).sqrt()
        };
        (0..x.len()).map(row).collect()
    };
    x.chunks(group_of(x.len())).flat_map(turn).collect()
}

pub(crate) fn rotated(x: &[f64]) -> Vec<f64> {
    turned(x, [0, 1])
}

pub(crate) fn rotated_back(x: &[f64]) -> Vec<f64> {
    turned(x, [1, 0])
}

/// Whether a side keeps its rows rotated.
pub(crate) fn is_rotated(kv_type: KvType, is_key: bool) -> bool {
    code_bits(kv_type).is_some() && (is_key || kv_type == KvType::Tq3_0)
}
