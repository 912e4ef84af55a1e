//! Keys and values as attention reads them: floats in place, codes made floats first.

use crate::buffer::KvValues;
use crate::cpu::lanes::{LANES, Lanes};
use crate::device::PAGE_TOKENS;
use crate::kv::{BLOCK, Codes, Format, KvType, LEVELS};

/// Rows of floats, as they are read.
#[derive(Clone, Copy)]
pub(super) enum Rows {
    F32(*const f32),
    F16(*const u16),
}

/// Keys or values of one layer.
#[derive(Clone, Copy)]
pub(super) struct Kept<'a> {
    pub format: Format,
    pub units: KvValues<'a>,
}

impl Kept<'_> {
    /// Values that a page or row needs room for, where it is not read in place.
    pub(super) fn room(self, values: usize) -> usize {
        match self.format.kv_type {
            KvType::F32 | KvType::F16 => 0,
            _ => values,
        }
    }

    /// The keys, \[D, PAGE_TOKENS\], of the page that begins at unit `base`; in `room` if they are not floats.
    #[inline(always)]
    pub(super) unsafe fn keys<L: Lanes>(self, base: usize, room: &mut [f32]) -> Rows {
        let len = self.format.page_units();
        match self.units {
            KvValues::F32(values) => Rows::F32(values[base..][..len].as_ptr()),
            KvValues::Units(KvType::F16, units) => Rows::F16(units[base..][..len].as_ptr()),
            KvValues::Units(kv_type, units) => {
                let page = &units[base..][..len];
                match kv_type.codes() {
                    None => widen::<L>(page, room),
                    Some(codes) => match (codes.low, codes.high) {
                        (8, _) => self.coded_keys::<L, 8, 0>(codes, page, room),
                        (4, 0) => self.coded_keys::<L, 4, 0>(codes, page, room),
                        (4, _) => self.coded_keys::<L, 4, 1>(codes, page, room),
                        _ => self.coded_keys::<L, 2, 1>(codes, page, room),
                    },
                }
                Rows::F32(room.as_ptr())
            }
        }
    }

    /// The values, \[D\], of a token of the page that begins at unit `base`; in `room` if they are not floats.
    #[inline(always)]
    pub(super) unsafe fn values<L: Lanes>(
        self,
        base: usize,
        token: usize,
        room: &mut [f32],
    ) -> Rows {
        let (len, dim) = (self.format.page_units(), self.format.head_dim);
        match self.units {
            KvValues::F32(values) => Rows::F32(values[base + token * dim..][..dim].as_ptr()),
            KvValues::Units(KvType::F16, units) => {
                Rows::F16(units[base + token * dim..][..dim].as_ptr())
            }
            KvValues::Units(kv_type, units) => {
                let page = &units[base..][..len];
                match kv_type.codes() {
                    None => widen::<L>(&page[token * dim..][..dim], room),
                    Some(codes) => match (codes.low, codes.high) {
                        (8, _) => self.coded_values::<L, 8, 0>(codes, page, token, room),
                        (4, 0) => self.coded_values::<L, 4, 0>(codes, page, token, room),
                        (4, _) => self.coded_values::<L, 4, 1>(codes, page, token, room),
                        _ => self.coded_values::<L, 2, 1>(codes, page, token, room),
                    },
                }
                Rows::F32(room.as_ptr())
            }
        }
    }

    /// Keys from their codes, of `LOW` bits and `HIGH` more.
    #[inline(always)]
    unsafe fn coded_keys<L: Lanes, const LOW: usize, const HIGH: usize>(
        self,
        codes: Codes,
        page: &[u16],
        room: &mut [f32],
    ) {
        let [low, high, scales, _] = self.format.runs();
        let is_levels = self.format.kv_type == KvType::Tq3_0;
        let unit = |unit: usize| &page[unit * PAGE_TOKENS..][..PAGE_TOKENS];
        for (d, out) in room.chunks_exact_mut(PAGE_TOKENS).enumerate() {
            let (in_low, shift) = (unit(d / (16 / LOW)), LOW * (d % (16 / LOW)));
            let in_high = (HIGH > 0).then(|| unit(low + d / 16));
            let scale = unit(low + high + d / BLOCK);
            let least = codes
                .has_least
                .then(|| unit(low + high + scales + d / BLOCK));
            for first in (0..PAGE_TOKENS).step_by(LANES) {
                let mut code = [0; LANES];
                for (i, code) in code.iter_mut().enumerate() {
                    *code = i32::from(in_low[first + i] >> shift) & ((1 << LOW) - 1);
                    if let Some(in_high) = in_high {
                        *code |= (i32::from(in_high[first + i] >> (d % 16)) & 1) << LOW;
                    }
                }
                let level = levels::<L>(codes, is_levels, &code);
                let scale = L::f_load_f16(scale[first..].as_ptr());
                let value = match least {
                    None => L::f_mul(level, scale),
                    Some(least) => L::f_fma(level, scale, L::f_load_f16(least[first..].as_ptr())),
                };
                L::f_store(out[first..].as_mut_ptr(), value);
            }
        }
    }

    /// A token's values from their codes.
    #[inline(always)]
    unsafe fn coded_values<L: Lanes, const LOW: usize, const HIGH: usize>(
        self,
        codes: Codes,
        page: &[u16],
        token: usize,
        room: &mut [f32],
    ) {
        let [low, high, scales, least] = self.format.runs();
        let is_levels = self.format.kv_type == KvType::Tq3_0;
        let run = |first: usize, len: usize| &page[first * PAGE_TOKENS + token * len..][..len];
        let (in_low, in_high) = (run(0, low), run(low, high));
        let scale_of = run(low + high, scales);
        let least_of = run(low + high + scales, least);
        for (block, out) in room.chunks_exact_mut(BLOCK).enumerate() {
            let mut code = [0; BLOCK];
            let units = &in_low[block * 2 * LOW..][..2 * LOW];
            for (pair, units) in units.chunks_exact(2).enumerate() {
                for i in 0..16 / LOW {
                    for (odd, unit) in units.iter().enumerate() {
                        code[pair * (32 / LOW) + 2 * i + odd] =
                            i32::from(unit >> (LOW * i)) & ((1 << LOW) - 1);
                    }
                }
            }
            if HIGH > 0 {
                for i in 0..16 {
                    for odd in 0..2 {
                        let bit = i32::from(in_high[block * 2 + odd] >> i) & 1;
                        code[2 * i + odd] |= bit << LOW;
                    }
                }
            }
            let f16 = |bits: u16| L::f_splat(half::f16::from_bits(bits).to_f32());
            let scale = f16(scale_of[block]);
            for (code, out) in code.as_chunks().0.iter().zip(out.chunks_exact_mut(LANES)) {
                let level = levels::<L>(codes, is_levels, code);
                let value = match codes.has_least {
                    false => L::f_mul(level, scale),
                    true => L::f_fma(level, scale, f16(least_of[block])),
                };
                L::f_store(out.as_mut_ptr(), value);
            }
        }
    }
}

/// What codes stand for, before the scale.
#[inline(always)]
unsafe fn levels<L: Lanes>(codes: Codes, is_levels: bool, code: &[i32; LANES]) -> L::F {
    if is_levels {
        let levels = code.map(|code| LEVELS[code as usize % LEVELS.len()]);
        return L::f_load(levels.as_ptr());
    }
    let code = L::i_load(code.as_ptr());
    L::f_from_i(L::i_add(code, L::i_splat(-codes.zero)))
}

/// Values of bf16.
#[inline(always)]
unsafe fn widen<L: Lanes>(units: &[u16], room: &mut [f32]) {
    let rooms = room.chunks_exact_mut(LANES);
    for (units, room) in units.chunks_exact(LANES).zip(rooms) {
        L::f_store(room.as_mut_ptr(), L::f_load_bf16(units.as_ptr()));
    }
}
