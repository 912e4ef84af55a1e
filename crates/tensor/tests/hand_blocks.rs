//! Blocks whose values were worked out by hand from the layout tables.

use tensor::{DType, decode_row};

const HALF_QUARTER: [u8; 2] = [0x00, 0x34];
const HALF_HALF: [u8; 2] = [0x00, 0x38];
const HALF_ONE: [u8; 2] = [0x00, 0x3c];
const HALF_TWO: [u8; 2] = [0x00, 0x40];
const HALF_MINUS_ONE: [u8; 2] = [0x00, 0xbc];

/// Decodes one row and holds it against a formula over the element number.
fn check(dtype: DType, bytes: &[u8], expected: impl Fn(usize) -> f32) {
    let mut out = vec![f32::NAN; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    decode_row(dtype, bytes, &mut out).expect("the lengths agree");
    for (i, v) in out.iter().enumerate() {
        assert_eq!(*v, expected(i), "{dtype} element {i}");
    }
}

/// Bytes with `j` in the low nibble and `15 - j` in the high nibble of byte `j`.
fn ramp(len: u8) -> Vec<u8> {
    (0..len).map(|j| (j % 16) | (15 - j % 16) << 4).collect()
}

fn up_down(i: usize) -> f32 {
    let j = (i % 16) as f32;
    if i % 32 < 16 { j } else { 15.0 - j }
}

#[test]
fn plain_floats() {
    check(DType::F32, &[0, 0, 0x20, 0xc0, 0, 0, 0x80, 0x3f], |i| {
        [-2.5, 1.0][i]
    });
    // The smallest subnormal half is two to the minus 24.
    check(DType::F16, &[0x00, 0x3c, 0x00, 0xc0, 0x01, 0x00], |i| {
        [1.0, -2.0, 1.0 / 16_777_216.0][i]
    });
    check(DType::BF16, &[0x80, 0x3f, 0x40, 0xc0], |i| [1.0, -3.0][i]);
}

#[test]
fn q4_0() {
    let one = [&HALF_HALF[..], &ramp(16)].concat();
    let two = [&HALF_TWO[..], &ramp(16)].concat();
    check(DType::Q4_0, &[one, two].concat(), |i| {
        let d = if i < 32 { 0.5 } else { 2.0 };
        d * (up_down(i) - 8.0)
    });
}

#[test]
fn q4_1() {
    let block = [&HALF_HALF[..], &HALF_MINUS_ONE, &ramp(16)].concat();
    check(DType::Q4_1, &block, |i| 0.5 * up_down(i) - 1.0);
}

#[test]
fn q5_0_and_q5_1() {
    // Fifth bits of elements 0, 17 and 31.
    let high = [0x01, 0x00, 0x02, 0x80];
    let quant = |i| up_down(i) + if [0, 17, 31].contains(&i) { 16.0 } else { 0.0 };
    let block = [&HALF_TWO[..], &high, &ramp(16)].concat();
    check(DType::Q5_0, &block, |i| 2.0 * (quant(i) - 16.0));
    let block = [&HALF_TWO[..], &HALF_MINUS_ONE, &high, &ramp(16)].concat();
    check(DType::Q5_1, &block, |i| 2.0 * quant(i) - 1.0);
}

#[test]
fn q8_0() {
    let quants: Vec<u8> = (0..32).map(|i| (i * 8 - 128) as i8 as u8).collect();
    let block = [&HALF_QUARTER[..], &quants].concat();
    check(DType::Q8_0, &block, |i| 2.0 * i as f32 - 32.0);
}

#[test]
fn q2_k() {
    let scales: Vec<u8> = (0..16).map(|g| g | (15 - g) << 4).collect();
    // 0xe4 holds 0, 1, 2 and 3 from the low bits up; one byte stays zero.
    let mut quants = [0xe4; 64];
    quants[33] = 0;
    let block = [&scales[..], &quants, &HALF_ONE, &HALF_HALF].concat();
    check(DType::Q2K, &block, |i| {
        let (g, row) = ((i / 16) as f32, (i / 32 % 4) as f32);
        let quant = if i >= 128 && i % 32 == 1 { 0.0 } else { row };
        g * quant - 0.5 * (15.0 - g)
    });
}

#[test]
fn q3_k() {
    // Scale 5 is 0x13: 3 in the low nibble of byte 5, 1 in bits 2-3 of byte 9.
    // Scale 8 is 0x3f: 15 in the high nibble of byte 0, 3 in bits 4-5 of byte 8.
    // Scale 15 is 0x21: 1 in the high nibble of byte 7, 2 in bits 6-7 of byte 11.
    // The others are zero, which stands for -32.
    let scales = [0xf0, 0, 0, 0, 0, 0x03, 0, 0x10, 0x30, 0x04, 0, 0x80];
    // Mask bit 2 covers row 2 (groups 4 and 5), bit 7 row 7 (groups 14 and 15).
    let mut mask = [0; 32];
    mask[20] = 0x04;
    mask[31] = 0x80;
    let block = [&mask[..], &[0xe4; 64], &scales, &HALF_ONE].concat();
    check(DType::Q3K, &block, |i| {
        let scale = match i / 16 {
            5 => -13.0,
            8 => 31.0,
            15 => 1.0,
            _ => -32.0,
        };
        let base = if i == 64 + 20 || i == 224 + 31 {
            0.0
        } else {
            4.0
        };
        scale * ((i / 32 % 4) as f32 - base)
    });
}

/// Scales and minima of groups 0 (1, 2), 1 (5, 9), 3 (63, 0) and 5 (35, 20),
/// the rest being zero, as `Q4_K` and `Q5_K` pack them. 35 is 2 above 3 and 20
/// is 1 above 4, in sixteens.
const PACKED: [u8; 12] = [1, 0x85, 0, 63, 2, 0x49, 0, 0, 0, 0x43, 0, 0];

fn packed(group: usize) -> (f32, f32) {
    match group {
        0 => (1.0, 2.0),
        1 => (5.0, 9.0),
        3 => (63.0, 0.0),
        5 => (35.0, 20.0),
        _ => (0.0, 0.0),
    }
}

/// The nibble that [`ramp`] holds for element `i` of a 256-element block.
fn k_nibble(i: usize) -> f32 {
    let j = (i % 16) as f32;
    if (i / 32).is_multiple_of(2) {
        j
    } else {
        15.0 - j
    }
}

#[test]
fn q4_k() {
    let block = [&HALF_QUARTER[..], &HALF_HALF, &PACKED, &ramp(128)].concat();
    check(DType::Q4K, &block, |i| {
        let (scale, min) = packed(i / 32);
        0.25 * scale * k_nibble(i) - 0.5 * min
    });
}

#[test]
fn q5_k() {
    // Bit 5 of the odd bytes: the odd elements of group 5; bit 0 of byte 4.
    let mut high: Vec<u8> = (0..32).map(|l| (l % 2) << 5).collect();
    high[4] = 1;
    let block = [&HALF_QUARTER[..], &HALF_HALF, &PACKED, &high, &ramp(128)].concat();
    check(DType::Q5K, &block, |i| {
        let (scale, min) = packed(i / 32);
        let fifth = i == 4 || (i / 32 == 5 && i % 2 == 1);
        let quant = k_nibble(i) + if fifth { 16.0 } else { 0.0 };
        0.25 * scale * quant - 0.5 * min
    });
}

#[test]
fn q6_k() {
    let (mut low, mut high, mut scales) = ([0; 128], [0; 64], [0; 16]);
    // Second half, position 3: rows 0 to 3 hold 0, 58, 32 and 21.
    low[64 + 32 + 3] = 0x5a;
    high[32 + 3] = 0b01_10_11_00;
    scales[8] = 0xff;
    scales[10] = 2;
    scales[12] = 3;
    scales[14] = 0x80;
    let block = [&low[..], &high, &scales, &HALF_HALF].concat();
    check(DType::Q6K, &block, |i| match (i, i / 16) {
        (131, _) => 16.0,
        (163, _) => 26.0,
        (195, _) => 0.0,
        (227, _) => 704.0,
        (_, 8) => 16.0,
        (_, 10) => -32.0,
        (_, 12) => -48.0,
        (_, 14) => 2048.0,
        _ => 0.0,
    });
}

#[test]
fn iq4_nl() {
    let table = [
        -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0,
        69.0, 89.0, 113.0,
    ];
    let block = [&HALF_TWO[..], &ramp(16)].concat();
    check(DType::Iq4Nl, &block, |i| 2.0 * table[up_down(i) as usize]);
}

#[test]
fn iq4_xs() {
    // Group 3 has scale 37 - 32: 5 in the high nibble of byte 1, 2 in bits 6-7
    // of the word. The others have scale -32 and index 0.
    let mut quants = [0; 128];
    quants[48..64].fill(0xf0);
    let block = [&HALF_ONE[..], &[0x80, 0], &[0, 0x50, 0, 0], &quants].concat();
    check(DType::Iq4Xs, &block, |i| match i {
        96..112 => 5.0 * -127.0,
        112..128 => 5.0 * 113.0,
        _ => -32.0 * -127.0,
    });
}
