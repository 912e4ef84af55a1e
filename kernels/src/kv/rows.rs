//! Rows of keys and values as they are kept.
//!
//! A row of one head is made of *units*: floats of the type, or words of 16 bits, in four runs: the low bits of codes, their
//! high bits, scales, and least values. Keys of a page lie \[units, PAGE_TOKENS\], so that those of neighbouring tokens are
//! read together; values lie \[PAGE_TOKENS, units\] within each run. The same on the CPU and on GPUs (gpu/kept.h).

use half::{bf16, f16};

use crate::device::PAGE_TOKENS;
use crate::kv::rotation::group_of;
use crate::kv::types::{BLOCK, KvType};

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Keys.
    Keys,
    /// Values.
    Values,
}

/// The largest bf16 that f16 reaches.
const BF16_MOST: f32 = 65_280.0;

/// Levels of a value of a rotated row of length 1 and 128 dims, which is nearly normal (Lloyd-Max), and where one ends and the
/// next begins.
pub(crate) const LEVELS: [f32; 8] = [
    -0.190_685, -0.117_832, -0.065_717, -0.021_460, 0.021_460, 0.065_717, 0.117_832, 0.190_685,
];
const BOUNDS: [f32; 7] = [
    -0.154_259, -0.091_775, -0.043_589, 0.0, 0.043_589, 0.091_775, 0.154_259,
];

/// Codes of a quantised type: a value is `(code - zero) scale`, or `code scale + least`, or `LEVELS[code] scale`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codes {
    /// Bits of a code in the first run and in the second.
    pub low: usize,
    pub high: usize,
    /// Code of 0.
    pub zero: i32,
    /// Whether blocks have a least value.
    pub has_least: bool,
}

impl KvType {
    /// Bytes of a unit.
    pub(crate) const fn unit_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            _ => 2,
        }
    }

    /// `None` where values are floats.
    pub(crate) const fn codes(self) -> Option<Codes> {
        let (low, high, zero, has_least) = match self {
            Self::F32 | Self::F16 | Self::Bf16 => return None,
            Self::Q8_0 => (8, 0, 128, false),
            Self::Q5_1 => (4, 1, 0, true),
            Self::Q5_0 => (4, 1, 16, false),
            Self::Q4_1 => (4, 0, 0, true),
            Self::Q4_0 => (4, 0, 8, false),
            Self::Tq3_0 => (2, 1, 0, false),
        };
        Some(Codes {
            low,
            high,
            zero,
            has_least,
        })
    }
}

/// Rows of heads of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub kv_type: KvType,
    pub side: Side,
    pub head_dim: usize,
}

impl Format {
    /// Units of each run.
    pub(crate) const fn runs(self) -> [usize; 4] {
        let dim = self.head_dim;
        match self.kv_type.codes() {
            None => [dim, 0, 0, 0],
            Some(codes) => [
                dim * codes.low / 16,
                dim * codes.high / 16,
                dim / BLOCK,
                dim / BLOCK * codes.has_least as usize,
            ],
        }
    }

    /// Units of a row.
    pub(crate) const fn units(self) -> usize {
        let [low, high, scales, least] = self.runs();
        low + high + scales + least
    }

    /// Units of a page of one head.
    pub(crate) const fn page_units(self) -> usize {
        self.units() * PAGE_TOKENS
    }

    /// Where a unit of a token's row lies in its page.
    pub(crate) fn index(self, unit: usize, token: usize) -> usize {
        if self.side == Side::Keys {
            return unit * PAGE_TOKENS + token;
        }
        let mut first = 0;
        for run in self.runs() {
            if unit < first + run {
                return first * PAGE_TOKENS + token * run + unit - first;
            }
            first += run;
        }
        unreachable!("a row has no unit {unit}")
    }

    /// Unit and shift of the bits of a dim in a run of `bits` each. Values of two neighbours lie in two units, so that a word
    /// of both has them side by side.
    const fn place(self, bits: usize, dim: usize) -> (usize, usize) {
        let of_unit = 16 / bits;
        match self.side {
            Side::Keys => (dim / of_unit, bits * (dim % of_unit)),
            Side::Values => (
                dim / (2 * of_unit) * 2 + dim % 2,
                bits * (dim % (2 * of_unit) / 2),
            ),
        }
    }

    /// The units of a row, 16 bits each. Rows of the type with levels come rotated.
    pub(crate) fn encode(self, x: &[f32]) -> Vec<u16> {
        let Some(codes) = self.kv_type.codes() else {
            return match self.kv_type {
                KvType::Bf16 => x.iter().map(|x| bf16_bits(*x)).collect(),
                _ => x.iter().map(|x| f16::from_f32(*x).to_bits()).collect(),
            };
        };
        let mut units = vec![0_u16; self.units()];
        let [low, high, scales, _] = self.runs();
        let mut put = |first: usize, bits: usize, dim: usize, part: u16| {
            let (unit, shift) = self.place(bits, dim);
            units[first + unit] |= part << shift;
        };
        let coded = encode(self.kv_type, x);
        for (dim, &code) in coded.codes.iter().enumerate() {
            let mask = (1 << codes.low) - 1;
            put(0, codes.low, dim, code & mask);
            if codes.high > 0 {
                put(low, codes.high, dim, code >> codes.low);
            }
        }
        units[low + high..][..scales].copy_from_slice(&coded.scales);
        if codes.has_least {
            units[low + high + scales..].copy_from_slice(&coded.least);
        }
        units
    }
}

/// Zeroes what lies in a page of keys or values, of heads of one size, from slot `from` on: what is there after the last
/// token of a sequence is of no sequence.
pub fn clear_slots(kv_type: KvType, side: Side, head_dim: usize, page: &mut [u8], from: usize) {
    let format = Format {
        kv_type,
        side,
        head_dim,
    };
    let unit_bytes = kv_type.unit_bytes();
    for head in page.chunks_exact_mut(format.page_units() * unit_bytes) {
        for unit in 0..format.units() {
            for token in from..PAGE_TOKENS {
                head[format.index(unit, token) * unit_bytes..][..unit_bytes].fill(0);
            }
        }
    }
}

fn bf16_bits(x: f32) -> u16 {
    bf16::from_f32(x.clamp(-BF16_MOST, BF16_MOST)).to_bits()
}

/// A row as codes, and f16 for each block.
#[derive(Default)]
struct Coded {
    codes: Vec<u16>,
    scales: Vec<u16>,
    least: Vec<u16>,
}

fn encode(kv_type: KvType, x: &[f32]) -> Coded {
    let mut coded = Coded::default();
    if kv_type == KvType::Tq3_0 {
        for group in x.chunks_exact(group_of(x.len())) {
            encode_levels(group, &mut coded);
        }
        return coded;
    }
    for block in x.chunks_exact(BLOCK) {
        let most = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let least = block.iter().copied().fold(f32::INFINITY, f32::min);
        // The one of the two that is further from 0.
        let far = if most >= -least { most } else { least };
        let (scale, from, add, top) = match kv_type {
            KvType::Q8_0 => (far.abs() / 127.0, 0.0, 128.0, 255.0),
            KvType::Q5_0 => (far / -16.0, 0.0, 16.5, 31.0),
            KvType::Q4_0 => (far / -8.0, 0.0, 8.5, 15.0),
            KvType::Q5_1 => ((most - least) / 31.0, least, 0.5, 31.0),
            _ => ((most - least) / 15.0, least, 0.5, 15.0),
        };
        coded.codes.extend(block.iter().map(|x| {
            let x = match scale {
                0.0 => 0.0,
                scale => (x - from) / scale,
            };
            let x = match kv_type {
                KvType::Q8_0 => x.round_ties_even(),
                _ => x,
            };
            (x + add).min(top) as u16
        }));
        coded.scales.push(f16::from_f32(scale).to_bits());
        coded.least.push(f16::from_f32(least).to_bits());
    }
    coded
}

/// A rotated group: the nearest levels of what has length 1, and the scale that gives them the group's length.
fn encode_levels(group: &[f32], coded: &mut Coded) {
    // In the order of a warp, of which a lane has each 32nd value.
    let length = |of: &dyn Fn(usize) -> f32| {
        let lane = |lane| (lane..group.len()).step_by(BLOCK).map(of);
        let mut lanes: [f32; BLOCK] =
            std::array::from_fn(|i| lane(i).fold(0.0, |sum, x| x.mul_add(x, sum)));
        for mask in [16, 8, 4, 2, 1] {
            lanes = std::array::from_fn(|i| lanes[i] + lanes[i ^ mask]);
        }
        lanes[0].sqrt()
    };
    let norm = length(&|d| group[d]);
    // Levels are those of 128 dims.
    let factor = match norm {
        0.0 => 0.0,
        norm => (group.len() as f32 / 128.0).sqrt() / norm,
    };
    let code = |d: usize| {
        BOUNDS
            .iter()
            .filter(|bound| group[d] * factor >= **bound)
            .count()
    };
    let scale = norm / length(&|d| LEVELS[code(d)]);
    coded.codes.extend((0..group.len()).map(|d| code(d) as u16));
    let scale = f16::from_f32(scale).to_bits();
    coded.scales.extend(vec![scale; group.len() / BLOCK]);
}
