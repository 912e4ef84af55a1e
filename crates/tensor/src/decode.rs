//! Blocks to `f32`, in plain loops: the specification of every type.

mod iq4;
mod k;
mod simple;

use crate::{DType, QuantError};

pub use iq4::IQ4_TABLE;

/// Decodes one row.
///
/// `bytes` holds the blocks of `out.len()` elements of type `dtype`, in file
/// order; element `i` of the row lands in `out[i]`.
///
/// # Errors
///
/// [`QuantError::PartialBlock`] when `out.len()` is not a whole number of
/// blocks, [`QuantError::ByteLength`] when `bytes` is not exactly
/// [`DType::row_bytes`] long. `out` is untouched then.
pub fn decode_row(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check_lengths(dtype, bytes.len(), out.len())?;
    let decode_block: fn(&[u8], &mut [f32]) = match dtype {
        DType::F32 => simple::f32,
        DType::F16 => simple::f16,
        DType::BF16 => simple::bf16,
        DType::Q4_0 => simple::q4_0,
        DType::Q4_1 => simple::q4_1,
        DType::Q5_0 => simple::q5_0,
        DType::Q5_1 => simple::q5_1,
        DType::Q8_0 => simple::q8_0,
        DType::Q2K => k::q2_k,
        DType::Q3K => k::q3_k,
        DType::Q4K => k::q4_k,
        DType::Q5K => k::q5_k,
        DType::Q6K => k::q6_k,
        DType::Iq4Nl => iq4::iq4_nl,
        DType::Iq4Xs => iq4::iq4_xs,
    };
    let blocks = bytes.chunks_exact(dtype.block_bytes());
    for (block, values) in blocks.zip(out.chunks_exact_mut(dtype.block_len())) {
        decode_block(block, values);
    }
    Ok(())
}

/// Checks that `found` bytes are what `elements` elements of `dtype` take.
pub(crate) fn check_lengths(dtype: DType, found: usize, elements: usize) -> Result<(), QuantError> {
    let Some(expected) = dtype.row_bytes(elements) else {
        return Err(QuantError::PartialBlock { dtype, elements });
    };
    if found != expected {
        return Err(QuantError::ByteLength {
            dtype,
            elements,
            expected,
            found,
        });
    }
    Ok(())
}

/// The IEEE half at byte `at`, little-endian.
fn half_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The 32-bit word at byte `at`, little-endian.
fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}
