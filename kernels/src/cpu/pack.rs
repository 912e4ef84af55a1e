//! Weights in tiles of 16 rows: four consecutive inputs of 16 rows stand together, as one 64-byte vector.
//!
//! Repacking is exact and keeps the file's integers, scales and offsets. Per 32 inputs a *unit* holds bit planes:
//! four bits of inputs i and i + 16 in one byte (256 B), one bit (64 B) or two bits (128 B) on top, or whole bytes
//! (512 B). Scales follow each unit (K-quants: integer sub-scales; f16 per 256 inputs) or each unit's 32 inputs (f16).

use half::f16;
use tensor::DType;

use crate::cpu::lanes::LANES;
use crate::device::MatrixSource;
use crate::error::DeviceError;
use crate::memory::Memory;

/// How the integers and scales of a tile are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bits of an integer: 2, 3, 4, 5, 6 or 8; 16 or 32 for floats.
    pub bits: u32,
    /// Inputs that share an f16 scale: 32 or 256 (1: floats).
    pub group: usize,
    /// Inputs that share an integer sub-scale (K-quants): 16 or 32.
    pub sub: usize,
    /// Whether an offset is subtracted (K-quants) or added (group 32).
    pub min: bool,
}

impl Layout {
    pub(crate) const fn of(dtype: DType) -> Self {
        let (bits, group, sub, min) = match dtype {
            DType::F32 => (32, 1, 1, false),
            DType::F16 | DType::BF16 => (16, 1, 1, false),
            DType::Q4_0 | DType::Iq4Nl => (4, 32, 32, false),
            DType::Q4_1 => (4, 32, 32, true),
            DType::Q5_0 => (5, 32, 32, false),
            DType::Q5_1 => (5, 32, 32, true),
            DType::Q8_0 => (8, 32, 32, false),
            DType::Q2K => (2, 256, 16, true),
            DType::Q3K => (3, 256, 16, false),
            DType::Q4K => (4, 256, 32, true),
            DType::Q5K => (5, 256, 32, true),
            DType::Q6K => (6, 256, 16, false),
            DType::Iq4Xs => (4, 256, 32, false),
        };
        Self {
            bits,
            group,
            sub,
            min,
        }
    }

    pub(crate) const fn unit_bytes(self) -> usize {
        self.bits as usize * 64
    }

    /// Sub-scales of one unit: Q2_K packs scale and min of 16 inputs in one byte.
    pub(crate) const fn sub_bytes(self) -> usize {
        if self.group != 256 {
            0
        } else if self.sub == 16 || self.min {
            2 * LANES
        } else {
            LANES
        }
    }

    /// Bytes of one group of inputs of a tile.
    pub(crate) const fn group_bytes(self) -> usize {
        if self.group == 1 {
            return LANES * self.bits as usize / 8;
        }
        let scales = if self.min { 4 * LANES } else { 2 * LANES };
        self.group / 32 * (self.unit_bytes() + self.sub_bytes()) + scales
    }
}

/// A matrix in tiles.
#[derive(Debug)]
pub(crate) struct PackedMatrix {
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
    pub bytes: Memory<u8>,
}

impl PackedMatrix {
    pub(crate) fn tile_bytes(&self) -> usize {
        let layout = Layout::of(self.dtype);
        self.cols / layout.group * layout.group_bytes()
    }

    pub(crate) fn tile(&self, index: usize) -> &[u8] {
        let len = self.tile_bytes();
        &self.bytes[index * len..][..len]
    }

    pub(crate) fn pack(source: MatrixSource<'_>) -> Result<Self, DeviceError> {
        let MatrixSource {
            dtype,
            rows,
            cols,
            bytes,
        } = source;
        let row_bytes = dtype
            .row_bytes(cols)
            .filter(|_| cols > 0)
            .ok_or(DeviceError::RowLength { cols, dtype })?;
        let expected = row_bytes
            .checked_mul(rows)
            .ok_or(DeviceError::OutOfMemory { bytes: usize::MAX })?;
        if bytes.len() != expected {
            return Err(DeviceError::MatrixBytes {
                rows,
                cols,
                dtype,
                expected,
                got: bytes.len(),
            });
        }
        let layout = Layout::of(dtype);
        let tile_bytes = cols / layout.group * layout.group_bytes();
        let mut packed = Memory::<u8>::zeros(rows.div_ceil(LANES) * tile_bytes)?;
        let block_bytes = dtype.block_bytes();
        for (tile, target) in packed
            .chunks_exact_mut(tile_bytes)
            .enumerate()
            .take(rows.div_ceil(LANES))
        {
            for (group, target) in target.chunks_exact_mut(layout.group_bytes()).enumerate() {
                for lane in 0..LANES.min(rows - tile * LANES) {
                    let row = &bytes[(tile * LANES + lane) * row_bytes..][..row_bytes];
                    pack_block(
                        dtype,
                        layout,
                        &row[group * block_bytes..][..block_bytes],
                        lane,
                        target,
                    );
                }
            }
        }
        Ok(Self {
            dtype,
            rows,
            cols,
            bytes: packed,
        })
    }

    /// Expands one row to f32.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        let layout = Layout::of(self.dtype);
        let lane = row % LANES;
        for (source, out) in self
            .tile(row / LANES)
            .chunks_exact(layout.group_bytes())
            .zip(out.chunks_exact_mut(layout.group))
        {
            unpack_block(self.dtype, layout, source, lane, out);
        }
    }
}

/// The integers (as unsigned) and scales of one quant block.
struct Block {
    q: [u8; 256],
    /// Signed or unsigned sub-scale bytes; for 32-wide ones with mins: 8 scales, then 8 mins.
    sub: [u8; 16],
    d: [u8; 2],
    m: [u8; 2],
}

fn bytes2(bytes: &[u8], at: usize) -> [u8; 2] {
    [bytes[at], bytes[at + 1]]
}

fn nibbles(q: &mut [u8], bytes: &[u8]) {
    for (i, b) in bytes.iter().enumerate() {
        q[i] = b & 15;
        q[i + bytes.len()] = b >> 4;
    }
}

fn fifth_bits(q: &mut [u8], bits: &[u8]) {
    for (i, q) in q.iter_mut().enumerate().take(32) {
        *q |= (bits[i / 8] >> (i % 8) & 1) << 4;
    }
}

fn six_bit_scales(bytes: &[u8], sub: &mut [u8; 16]) {
    for k in 0..8 {
        let (s, m) = if k < 4 {
            (bytes[k] & 63, bytes[k + 4] & 63)
        } else {
            (
                bytes[k + 4] & 15 | (bytes[k - 4] >> 6) << 4,
                bytes[k + 4] >> 4 | (bytes[k] >> 6) << 4,
            )
        };
        sub[k] = s;
        sub[8 + k] = m;
    }
}

fn parse(dtype: DType, b: &[u8]) -> Block {
    let mut out = Block {
        q: [0; 256],
        sub: [0; 16],
        d: bytes2(b, 0),
        m: [0; 2],
    };
    match dtype {
        DType::Q4_0 | DType::Iq4Nl => nibbles(&mut out.q, &b[2..18]),
        DType::Q4_1 => {
            out.m = bytes2(b, 2);
            nibbles(&mut out.q, &b[4..20]);
        }
        DType::Q5_0 => {
            nibbles(&mut out.q, &b[6..22]);
            fifth_bits(&mut out.q, &b[2..6]);
        }
        DType::Q5_1 => {
            out.m = bytes2(b, 2);
            nibbles(&mut out.q, &b[8..24]);
            fifth_bits(&mut out.q, &b[4..8]);
        }
        DType::Q8_0 => out.q[..32]
            .iter_mut()
            .zip(&b[2..34])
            .for_each(|(q, v)| *q = v ^ 0x80),
        DType::Q4K | DType::Q5K => {
            out.m = bytes2(b, 2);
            six_bit_scales(&b[4..16], &mut out.sub);
            let low = if dtype == DType::Q4K {
                &b[16..144]
            } else {
                &b[48..176]
            };
            for p in 0..4 {
                nibbles(&mut out.q[64 * p..][..64], &low[32 * p..][..32]);
            }
            if dtype == DType::Q5K {
                for (i, q) in out.q.iter_mut().enumerate() {
                    *q |= (b[16 + i % 32] >> (i / 32) & 1) << 4;
                }
            }
        }
        DType::Q6K => {
            out.d = bytes2(b, 208);
            out.sub.copy_from_slice(&b[192..208]);
            for i in 0..256 {
                let (t, l, part) = (i / 128, i % 32, i % 128 / 32);
                let low = b[64 * t + 32 * (part % 2) + l] >> (4 * (part / 2)) & 15;
                let high = b[128 + 32 * t + l] >> (2 * part) & 3;
                out.q[i] = low | high << 4;
            }
        }
        DType::Q2K => {
            out.d = bytes2(b, 80);
            out.m = bytes2(b, 82);
            out.sub.copy_from_slice(&b[..16]);
            for (i, q) in out.q.iter_mut().enumerate() {
                *q = b[16 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3;
            }
        }
        DType::Q3K => {
            out.d = bytes2(b, 108);
            for k in 0..16 {
                let low = b[96 + k % 8] >> (4 * (k / 8)) & 15;
                let high = b[104 + k % 4] >> (2 * (k / 4)) & 3;
                out.sub[k] = (low | high << 4).wrapping_sub(32);
            }
            for (i, q) in out.q.iter_mut().enumerate() {
                let low = b[32 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3;
                *q = low | (b[i % 32] >> (i / 32) & 1) << 2;
            }
        }
        DType::Iq4Xs => {
            let high = u16::from_le_bytes(bytes2(b, 2));
            for k in 0..8 {
                let low = b[4 + k / 2] >> (4 * (k % 2)) & 15;
                out.sub[k] = (low | ((high >> (2 * k) & 3) as u8) << 4).wrapping_sub(32);
                nibbles(&mut out.q[32 * k..][..32], &b[8 + 16 * k..][..16]);
            }
        }
        DType::F32 | DType::F16 | DType::BF16 => {}
    }
    out
}

fn pack_block(dtype: DType, layout: Layout, block: &[u8], lane: usize, target: &mut [u8]) {
    if layout.group == 1 {
        target[lane * block.len()..][..block.len()].copy_from_slice(block);
        return;
    }
    let parsed = parse(dtype, block);
    let stride = layout.unit_bytes() + layout.sub_bytes();
    for unit in 0..layout.group / 32 {
        let target = &mut target[unit * stride..][..stride];
        pack_unit(layout.bits, &parsed.q[32 * unit..][..32], lane, target);
        let sub = &mut target[layout.unit_bytes()..];
        if layout.group == 256 && layout.sub == 16 {
            sub[lane] = parsed.sub[2 * unit];
            sub[LANES + lane] = parsed.sub[2 * unit + 1];
        } else if layout.group == 256 {
            sub[lane] = parsed.sub[unit];
            if layout.min {
                sub[LANES + lane] = parsed.sub[8 + unit];
            }
        }
    }
    let scales = &mut target[layout.group / 32 * stride..];
    scales[2 * lane..][..2].copy_from_slice(&parsed.d);
    if layout.min {
        scales[2 * LANES + 2 * lane..][..2].copy_from_slice(&parsed.m);
    }
}

/// Byte of input `i` (0..32) in a plane that holds `per_byte` quads of inputs in one byte.
fn place(i: usize, lane: usize) -> (usize, usize) {
    (i / 4, 4 * lane + i % 4)
}

fn pack_unit(bits: u32, q: &[u8], lane: usize, target: &mut [u8]) {
    for (i, &q) in q.iter().enumerate() {
        let (quad, byte) = place(i, lane);
        match bits {
            8 => target[64 * quad + byte] = q,
            2 => target[64 * (quad / 4) + byte] |= q << (2 * (quad % 4)),
            3 => {
                target[64 * (quad / 4) + byte] |= (q & 3) << (2 * (quad % 4));
                target[128 + byte] |= (q >> 2) << quad;
            }
            _ => {
                target[64 * (quad % 4) + byte] |= (q & 15) << (4 * (quad / 4));
                match bits {
                    5 => target[256 + byte] |= (q >> 4) << quad,
                    6 => target[256 + 64 * (quad / 4) + byte] |= (q >> 4) << (2 * (quad % 4)),
                    _ => {}
                }
            }
        }
    }
}

fn unpack_unit(bits: u32, i: usize, lane: usize, source: &[u8]) -> u8 {
    let (quad, byte) = place(i, lane);
    match bits {
        8 => source[64 * quad + byte],
        2 => source[64 * (quad / 4) + byte] >> (2 * (quad % 4)) & 3,
        3 => {
            source[64 * (quad / 4) + byte] >> (2 * (quad % 4)) & 3
                | (source[128 + byte] >> quad & 1) << 2
        }
        _ => {
            let low = source[64 * (quad % 4) + byte] >> (4 * (quad / 4)) & 15;
            match bits {
                5 => low | (source[256 + byte] >> quad & 1) << 4,
                6 => low | (source[256 + 64 * (quad / 4) + byte] >> (2 * (quad % 4)) & 3) << 4,
                _ => low,
            }
        }
    }
}

/// Values of IQ4 nibbles, plus 128.
pub(crate) const IQ4_TABLE: [u8; 16] = [
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241,
];

/// What is subtracted from the unsigned integer.
pub(crate) const fn offset(dtype: DType) -> i32 {
    match dtype {
        DType::Q4_0 => 8,
        DType::Q5_0 => 16,
        DType::Q8_0 | DType::Iq4Nl | DType::Iq4Xs => 128,
        DType::Q6K => 32,
        DType::Q3K => 4,
        _ => 0,
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes(bytes2(bytes, at)).to_f32()
}

fn unpack_block(dtype: DType, layout: Layout, source: &[u8], lane: usize, out: &mut [f32]) {
    if layout.group == 1 {
        let at = lane * dtype.block_bytes();
        out[0] = match dtype {
            DType::F32 => {
                f32::from_le_bytes([source[at], source[at + 1], source[at + 2], source[at + 3]])
            }
            DType::F16 => half_at(source, at),
            _ => f32::from_bits(u32::from(u16::from_le_bytes(bytes2(source, at))) << 16),
        };
        return;
    }
    let stride = layout.unit_bytes() + layout.sub_bytes();
    let scales = &source[layout.group / 32 * stride..];
    let d = half_at(scales, 2 * lane);
    let m = if layout.min {
        half_at(scales, 2 * LANES + 2 * lane)
    } else {
        0.0
    };
    let table = matches!(dtype, DType::Iq4Nl | DType::Iq4Xs);
    for (i, out) in out.iter_mut().enumerate() {
        let unit = &source[i / 32 * stride..][..stride];
        let q = unpack_unit(layout.bits, i % 32, lane, unit);
        let q = if table { IQ4_TABLE[usize::from(q)] } else { q };
        let q = (i32::from(q) - offset(dtype)) as f32;
        let sub = &unit[layout.unit_bytes()..];
        *out = match dtype {
            DType::Q2K => {
                let s = sub[LANES * (i % 32 / 16) + lane];
                d * f32::from(s & 15) * q - m * f32::from(s >> 4)
            }
            DType::Q3K | DType::Q6K => d * f32::from(sub[LANES * (i % 32 / 16) + lane] as i8) * q,
            DType::Q4K | DType::Q5K => {
                d * f32::from(sub[lane]) * q - m * f32::from(sub[LANES + lane])
            }
            DType::Iq4Xs => d * f32::from(sub[lane] as i8) * q,
            _ => d * q + m,
        };
    }
}
