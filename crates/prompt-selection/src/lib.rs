//! Which chunks of a long prompt are kept, given how important each of its tokens is. No device, no I/O.
//!
//! The prompt's head and tail are kept, passages that the end of the prompt repeats (anchors), what the caller protects,
//! and then the most important chunks until the budget is used up.

#![forbid(unsafe_code)]

mod anchors;
mod protection;
mod select;

pub use select::{CHUNK_TOKENS, MIN_TOKENS, SelectOptions, Selection, chunk_scores, select};
