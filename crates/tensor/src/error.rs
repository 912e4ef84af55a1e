//! What can go wrong when blocks are decoded or encoded.

use crate::DType;

/// Why a row could not be decoded or encoded.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The number of elements is not a whole number of blocks.
    #[error("{dtype} packs {} elements a block, which does not divide a row of {elements}", .dtype.block_len())]
    PartialBlock {
        /// The element type of the row.
        dtype: DType,
        /// Elements in the row.
        elements: usize,
    },
    /// The byte slice does not have the length that the elements call for.
    #[error("{elements} elements of {dtype} take {expected} bytes, not {found}")]
    ByteLength {
        /// The element type of the row.
        dtype: DType,
        /// Elements in the row.
        elements: usize,
        /// Bytes that many elements take.
        expected: usize,
        /// Bytes that were passed.
        found: usize,
    },
    /// There is no encoder for this type.
    #[error("encoding to {dtype} is not supported")]
    EncodeUnsupported {
        /// The type asked for.
        dtype: DType,
    },
    /// A value to encode is not a number or infinite.
    #[error("value {index} is {value}, which {dtype} cannot be encoded from")]
    NotFinite {
        /// The type asked for.
        dtype: DType,
        /// Position of the first such value in the row.
        index: usize,
        /// The value itself.
        value: f32,
    },
    /// A finite value is too large for the type, or for its block's scale.
    #[error("value {index} is {value}, too large to encode to {dtype}")]
    OutOfRange {
        /// The type asked for.
        dtype: DType,
        /// Position of the value in the row.
        index: usize,
        /// The value itself.
        value: f32,
    },
}
