//! The 256-element blocks whose groups have scales of their own.

use super::{half_at, word_at};

/// The scale and the minimum, six bits each, of group `k` (0 to 7) from the
/// twelve bytes that `Q4_K` and `Q5_K` pack them in.
fn scale_min(sc: &[u8], k: usize) -> (f32, f32) {
    let (scale, min) = if k < 4 {
        (sc[k] & 63, sc[k + 4] & 63)
    } else {
        (
            (sc[k + 4] & 15) | ((sc[k - 4] >> 6) << 4),
            (sc[k + 4] >> 4) | ((sc[k] >> 6) << 4),
        )
    };
    (f32::from(scale), f32::from(min))
}

/// `u8 sc[16]; u8 q[64]; f16 d; f16 dmin`, value
/// `d * low(sc) * two bits - dmin * high(sc)`.
///
/// Group `g` of 16 lies in half `g / 8`; within a half the shift grows by two
/// every 32 elements, which run over the 32 bytes of the half.
pub(super) fn q2_k(block: &[u8], out: &mut [f32]) {
    let (sc, q) = block[..80].split_at(16);
    let d = half_at(block, 80);
    let dmin = half_at(block, 82);
    for (i, value) in out.iter_mut().enumerate() {
        let scale = d * f32::from(sc[i / 16] & 15);
        let min = dmin * f32::from(sc[i / 16] >> 4);
        *value = scale * f32::from(two_bits(q, i)) - min;
    }
}

/// Element `i` of the 64 bytes of two-bit quants of `Q2_K` and `Q3_K`.
fn two_bits(q: &[u8], i: usize) -> u8 {
    let (half, row) = (i / 128, i / 32 % 4);
    (q[32 * half + i % 32] >> (2 * row)) & 3
}

/// `u8 hm[32]; u8 q[64]; u8 sc[12]; f16 d`, value
/// `d * (scale - 32) * (two bits - 4, or two bits where the mask is set)`.
///
/// Bit `r` of `hm[l]` belongs to element `32 * r + l`.
pub(super) fn q3_k(block: &[u8], out: &mut [f32]) {
    let (hm, q) = block[..96].split_at(32);
    let scales = q3_k_scales(&block[96..108]);
    let d = half_at(block, 108);
    for (i, value) in out.iter_mut().enumerate() {
        let base = if hm[i % 32] >> (i / 32) & 1 == 1 {
            0.0
        } else {
            4.0
        };
        let scale = d * (f32::from(scales[i / 16]) - 32.0);
        *value = scale * (f32::from(two_bits(q, i)) - base);
    }
}

/// The sixteen six-bit scales of `Q3_K`, four to a word.
fn q3_k_scales(sc: &[u8]) -> [u8; 16] {
    let words = [word_at(sc, 0), word_at(sc, 4)];
    let top = word_at(sc, 8);
    let mut scales = [0; 16];
    for (k, four) in scales.chunks_exact_mut(4).enumerate() {
        let low = (words[k % 2] >> (4 * (k / 2))) & 0x0f0f_0f0f;
        let high = (top >> (2 * k)) & 0x0303_0303;
        four.copy_from_slice(&(low | high << 4).to_le_bytes());
    }
    scales
}

/// `f16 d; f16 dmin; u8 sc[12]; u8 q[128]`, value
/// `d * scale * nibble - dmin * min`.
///
/// Groups `2p` and `2p + 1` are the low and the high nibbles of the 32 bytes
/// from `q[32 * p]`.
pub(super) fn q4_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    let dmin = half_at(block, 2);
    let (sc, q) = block[4..].split_at(12);
    for (k, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(sc, k);
        for (l, value) in values.iter_mut().enumerate() {
            let nibble = (q[32 * (k / 2) + l] >> (4 * (k % 2))) & 15;
            *value = d * scale * f32::from(nibble) - dmin * min;
        }
    }
}

/// `f16 d; f16 dmin; u8 sc[12]; u8 qh[32]; u8 q[128]`: as `Q4_K`, with bit `k`
/// of `qh[l]` the fifth bit of element `l` of group `k`.
pub(super) fn q5_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    let dmin = half_at(block, 2);
    let sc = &block[4..16];
    let (qh, q) = block[16..].split_at(32);
    for (k, values) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(sc, k);
        for (l, value) in values.iter_mut().enumerate() {
            let nibble = (q[32 * (k / 2) + l] >> (4 * (k % 2))) & 15;
            let fifth = (qh[l] >> k & 1) << 4;
            *value = d * scale * f32::from(nibble | fifth) - dmin * min;
        }
    }
}

/// `u8 ql[128]; u8 qh[64]; i8 sc[16]; f16 d`, value
/// `d * scale * (six bits - 32)`.
///
/// Each half of 128 elements is four rows of 32: rows 0 and 1 are the low
/// nibbles of its 64 bytes of `ql`, rows 2 and 3 the high ones; row `r` takes
/// its upper two bits from bit `2 * r` of its 32 bytes of `qh`.
pub(super) fn q6_k(block: &[u8], out: &mut [f32]) {
    let (ql, rest) = block.split_at(128);
    let (qh, sc) = rest.split_at(64);
    let d = half_at(block, 208);
    for (i, value) in out.iter_mut().enumerate() {
        let (half, row, l) = (i / 128, i / 32 % 4, i % 32);
        let nibble = (ql[64 * half + 32 * (row % 2) + l] >> (4 * (row / 2))) & 15;
        let top = (qh[32 * half + l] >> (2 * row)) & 3;
        let scale = d * f32::from(sc[i / 16] as i8);
        *value = scale * (f32::from(nibble | top << 4) - 32.0);
    }
}
