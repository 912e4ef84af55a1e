//! Sizes, offsets and alignment, in arithmetic that cannot overflow unnoticed.

use std::path::Path;

use tensor::DType;

use crate::error::GgufError;

/// The alignment of a file that does not state one.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;
/// The largest alignment believed; real files use 32, page alignment is the extreme.
pub(crate) const MAX_ALIGNMENT: u64 = 1 << 20;
/// The key that states the alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
/// The longest key or tensor name, in bytes.
pub(crate) const MAX_NAME: u64 = 65_535;

/// Checks an alignment and returns it.
pub(crate) fn checked_alignment(path: &Path, got: u64) -> Result<u64, GgufError> {
    if !got.is_power_of_two() || got > MAX_ALIGNMENT {
        return Err(GgufError::BadAlignment {
            path: path.to_owned(),
            got,
            max: MAX_ALIGNMENT,
        });
    }
    Ok(got)
}

/// `n` rounded up to a multiple of `alignment` (a power of two).
pub(crate) fn align_up(n: u64, alignment: u64) -> Option<u64> {
    n.checked_next_multiple_of(alignment)
}

/// How many bytes a tensor of this type and shape takes.
pub(crate) fn byte_size(
    path: &Path,
    tensor: &str,
    dtype: DType,
    dims: &[u64],
) -> Result<u64, GgufError> {
    let (Some(&ne0), 1..=4) = (dims.first(), dims.len()) else {
        let got = dims.len() as u64;
        return Err(GgufError::BadDimCount {
            path: path.to_owned(),
            tensor: tensor.to_owned(),
            got,
        });
    };
    if let Some(axis) = dims.iter().position(|&d| d == 0) {
        return Err(GgufError::ZeroDim {
            path: path.to_owned(),
            tensor: tensor.to_owned(),
            axis,
        });
    }
    let block = dtype.block_len() as u64;
    if !ne0.is_multiple_of(block) {
        return Err(GgufError::PartialBlock {
            path: path.to_owned(),
            tensor: tensor.to_owned(),
            dtype: dtype.name(),
            block,
            got: ne0,
        });
    }
    let elements = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    elements
        .and_then(|n| (n / block).checked_mul(dtype.block_bytes() as u64))
        .filter(|&bytes| usize::try_from(bytes).is_ok())
        .ok_or_else(|| GgufError::DimsOverflow {
            path: path.to_owned(),
            tensor: tensor.to_owned(),
            dims: dims.to_vec(),
        })
}
