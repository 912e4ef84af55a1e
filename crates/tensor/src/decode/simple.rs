//! Plain floats and the 32-element blocks with one scale.
//!
//! The 4- and 5-bit blocks are half-split: the low nibble of byte `j` belongs
//! to element `j`, the high nibble to element `j + 16`.

use super::{half_at, word_at};

pub(super) fn f32(block: &[u8], out: &mut [f32]) {
    out[0] = f32::from_bits(word_at(block, 0));
}

pub(super) fn f16(block: &[u8], out: &mut [f32]) {
    out[0] = half_at(block, 0);
}

pub(super) fn bf16(block: &[u8], out: &mut [f32]) {
    out[0] = half::bf16::from_le_bytes([block[0], block[1]]).to_f32();
}

/// `f16 d; u8 q[16]`, value `d * (nibble - 8)`.
pub(super) fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for j in 0..16 {
        let q = block[2 + j];
        out[j] = d * (f32::from(q & 15) - 8.0);
        out[j + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

/// `f16 d; f16 m; u8 q[16]`, value `d * nibble + m`.
pub(super) fn q4_1(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    let m = half_at(block, 2);
    for j in 0..16 {
        let q = block[4 + j];
        out[j] = d * f32::from(q & 15) + m;
        out[j + 16] = d * f32::from(q >> 4) + m;
    }
}

/// `f16 d; u32 qh; u8 q[16]`, value `d * (five bits - 16)`; bit `i` of `qh` is
/// the fifth bit of element `i`.
pub(super) fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, value) in out.iter_mut().enumerate() {
        *value = d * (five_bits(word_at(block, 2), &block[6..], i) - 16.0);
    }
}

/// `f16 d; f16 m; u32 qh; u8 q[16]`, value `d * five bits + m`.
pub(super) fn q5_1(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    let m = half_at(block, 2);
    for (i, value) in out.iter_mut().enumerate() {
        *value = d * five_bits(word_at(block, 4), &block[8..], i) + m;
    }
}

/// Element `i` of a half-split block of nibbles `q` with fifth bits `high`.
fn five_bits(high: u32, q: &[u8], i: usize) -> f32 {
    let nibble = if i < 16 { q[i] & 15 } else { q[i - 16] >> 4 };
    let fifth = if high >> i & 1 == 1 { 16 } else { 0 };
    f32::from(nibble | fifth)
}

/// `f16 d; i8 q[32]`, value `d * q`.
pub(super) fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (value, &q) in out.iter_mut().zip(&block[2..]) {
        *value = d * f32::from(q as i8);
    }
}
