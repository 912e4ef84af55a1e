//! `f32` to blocks, for the types the project writes itself.

mod k;
mod simple;

use crate::decode::check_lengths;
use crate::{DType, QuantError};

/// A block holds a value, or needs a scale, that its format cannot hold.
struct TooLarge;

/// Encodes one row.
///
/// `out` receives the blocks of `values` in file order. `F32`, `F16`, `BF16`,
/// `Q4_0`, `Q8_0`, `Q4_K` and `Q6_K` can be encoded. `Q4_0` and `Q8_0` choose
/// their scales as ggml does; `Q4_K` and `Q6_K` search for the scale of least
/// weighted squared error, so their bytes need not be those of another encoder.
/// A block too small for a half-precision scale becomes zeros.
///
/// # Errors
///
/// [`QuantError::EncodeUnsupported`] for the other types,
/// [`QuantError::PartialBlock`] when `values.len()` is not a whole number of
/// blocks, [`QuantError::ByteLength`] when `out` is not exactly
/// [`DType::row_bytes`] long and [`QuantError::NotFinite`] for the first NaN or
/// infinity; `out` is untouched then. [`QuantError::OutOfRange`] when finite
/// values exceed the range of the type, naming the largest of the block; blocks
/// before it are written by then.
pub fn encode_row(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    let encode_block: fn(&[f32], &mut [u8]) -> Result<(), TooLarge> = match dtype {
        DType::F32 => simple::f32,
        DType::F16 => simple::f16,
        DType::BF16 => simple::bf16,
        DType::Q4_0 => simple::q4_0,
        DType::Q8_0 => simple::q8_0,
        DType::Q4K => k::q4_k,
        DType::Q6K => k::q6_k,
        DType::Q4_1
        | DType::Q5_0
        | DType::Q5_1
        | DType::Q2K
        | DType::Q3K
        | DType::Q5K
        | DType::Iq4Nl
        | DType::Iq4Xs => return Err(QuantError::EncodeUnsupported { dtype }),
    };
    check_lengths(dtype, out.len(), values.len())?;
    if let Some(index) = values.iter().position(|v| !v.is_finite()) {
        return Err(QuantError::NotFinite {
            dtype,
            index,
            value: values[index],
        });
    }
    let len = dtype.block_len();
    let blocks = out.chunks_exact_mut(dtype.block_bytes());
    for (b, (block, values)) in blocks.zip(values.chunks_exact(len)).enumerate() {
        encode_block(values, block).map_err(|TooLarge| {
            let at = largest(values);
            QuantError::OutOfRange {
                dtype,
                index: b * len + at,
                value: values[at],
            }
        })?;
    }
    Ok(())
}

/// The position of the first value of greatest magnitude; 0 for no values.
fn largest(values: &[f32]) -> usize {
    let mut at = 0;
    for (i, v) in values.iter().enumerate() {
        if v.abs() > values[at].abs() {
            at = i;
        }
    }
    at
}

/// Writes `scale` as an IEEE half and returns the value that was written.
fn put_half(scale: f32, at: &mut [u8]) -> Result<f32, TooLarge> {
    let half = half::f16::from_f32(scale);
    if !half.is_finite() {
        return Err(TooLarge);
    }
    at.copy_from_slice(&half.to_le_bytes());
    Ok(half.to_f32())
}
