//! Per-sequence state: KV rows in pages, and recurrent states.
//!
//! [`Cache`] owns the buffers of every layer, a pool of pages shared by all sequences, and the table of sequences. A
//! sequence grows only by [`Cache::advance`]; what lies in its pages past its length is scratch.

#![forbid(unsafe_code)]

mod cache;
mod error;
mod parts;
mod pool;
mod shape;
mod snapshot;

pub use cache::{Cache, LayerMut};
pub use error::CacheError;
pub use parts::{PartBytes, StatePart};
pub use pool::SequenceId;
pub use shape::{CacheShape, LayerState};
pub use snapshot::{LayerSnapshot, Snapshot};
