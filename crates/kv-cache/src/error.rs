//! What the cache refuses.

use kernels::DeviceError;

use crate::parts::StatePart;

/// Why a cache operation failed. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The id belongs to no live sequence.
    #[error("sequence {index} generation {generation} does not exist (any more)")]
    UnknownSequence {
        /// Slot of the id.
        index: u32,
        /// Generation of the id.
        generation: u32,
    },
    /// All sequence slots are taken.
    #[error("all {max_sequences} sequence slots are in use")]
    NoFreeSequence {
        /// Slots of the cache.
        max_sequences: usize,
    },
    /// The pool has too few free pages.
    #[error("out of kv pages: {needed} more needed, {free} free, {missing} missing")]
    OutOfPages {
        /// Pages that had to be added.
        needed: usize,
        /// Pages that are free.
        free: usize,
        /// Pages that lack.
        missing: usize,
    },
    /// A sequence was moved past the pages it holds.
    #[error("sequence cannot grow to {wanted} tokens, its pages hold {reserved}")]
    NotReserved {
        /// Length asked for.
        wanted: usize,
        /// Tokens that its pages hold.
        reserved: usize,
    },
    /// More pages were to be dropped than are full.
    #[error("cannot drop {wanted} pages of a sequence, {held} are full")]
    NotFilled {
        /// Pages asked for.
        wanted: usize,
        /// Full pages that it has.
        held: usize,
    },
    /// A snapshot was taken from a model of another shape.
    #[error("snapshot does not fit: {what} is {got}, expected {expected}")]
    SnapshotShape {
        /// What differs.
        what: &'static str,
        /// Size in this cache.
        expected: usize,
        /// Size in the snapshot.
        got: usize,
    },
    /// A sequence or a model has no such part.
    #[error("there is no part {part:?}")]
    UnknownPart {
        /// Which.
        part: StatePart,
    },
    /// A part was taken from a model of another shape.
    #[error("a part of a state has {got} bytes, expected {expected}")]
    PartBytes {
        /// Bytes that it has in this cache.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// The device refused.
    #[error("device: {0}")]
    Device(#[from] DeviceError),
}
