//! Four-bit indices into a fixed, non-linear table.

use super::half_at;

/// What the sixteen four-bit indices of `IQ4_NL` and `IQ4_XS` stand for.
pub const IQ4_TABLE: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

fn half_split(d: f32, q: &[u8], out: &mut [f32]) {
    for j in 0..16 {
        out[j] = d * f32::from(IQ4_TABLE[usize::from(q[j] & 15)]);
        out[j + 16] = d * f32::from(IQ4_TABLE[usize::from(q[j] >> 4)]);
    }
}

/// `f16 d; u8 q[16]`, value `d * table[nibble]`, half-split.
pub(super) fn iq4_nl(block: &[u8], out: &mut [f32]) {
    half_split(half_at(block, 0), &block[2..18], out);
}

/// `f16 d; u16 high; u8 low[4]; u8 q[128]`: eight groups of 32, each with a
/// 6-bit scale less 32 whose low nibbles are packed in `low` and whose upper
/// two bits are packed in `high`.
pub(super) fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (g, values) in out.chunks_exact_mut(32).enumerate() {
        let low = (block[4 + g / 2] >> (4 * (g % 2))) & 15;
        let top = (high >> (2 * g)) & 3;
        let scale = f32::from(u16::from(low) | top << 4) - 32.0;
        half_split(d * scale, &block[8 + 16 * g..24 + 16 * g], values);
    }
}
