//! Plain floats and the 32-element blocks with one scale.

use super::{TooLarge, largest, put_half};

pub(super) fn f32(values: &[f32], out: &mut [u8]) -> Result<(), TooLarge> {
    out.copy_from_slice(&values[0].to_le_bytes());
    Ok(())
}

pub(super) fn f16(values: &[f32], out: &mut [u8]) -> Result<(), TooLarge> {
    put_half(values[0], out).map(|_| ())
}

pub(super) fn bf16(values: &[f32], out: &mut [u8]) -> Result<(), TooLarge> {
    let rounded = half::bf16::from_f32(values[0]);
    if !rounded.is_finite() {
        return Err(TooLarge);
    }
    out.copy_from_slice(&rounded.to_le_bytes());
    Ok(())
}

/// The scale maps the value of greatest magnitude, sign included, to -8.
pub(super) fn q4_0(values: &[f32], out: &mut [u8]) -> Result<(), TooLarge> {
    let d = values[largest(values)] / -8.0;
    let inverse = put_inverse(d, &mut out[..2])?;
    let quant = |v: f32| ((v * inverse + 8.5) as u8).min(15);
    for (j, byte) in out[2..].iter_mut().enumerate() {
        *byte = quant(values[j]) | quant(values[j + 16]) << 4;
    }
    Ok(())
}

/// The scale maps the greatest magnitude to 127.
pub(super) fn q8_0(values: &[f32], out: &mut [u8]) -> Result<(), TooLarge> {
    let d = values[largest(values)].abs() / 127.0;
    let inverse = put_inverse(d, &mut out[..2])?;
    for (byte, v) in out[2..].iter_mut().zip(values) {
        *byte = (v * inverse).round() as i8 as u8;
    }
    Ok(())
}

/// Writes the scale `d` and returns the factor that takes values to quants,
/// from `d` before it was rounded, as ggml does; 0 when `d` rounded to zero.
fn put_inverse(d: f32, at: &mut [u8]) -> Result<f32, TooLarge> {
    let written = put_half(d, at)?;
    Ok(if written == 0.0 { 0.0 } else { 1.0 / d })
}
