//! Draft trees, acceptance, and how much to draft. Knows no device and does no I/O.

#![forbid(unsafe_code)]

mod proposal;

pub use proposal::Proposal;
