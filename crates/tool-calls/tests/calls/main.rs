//! Calls in texts: every dialect, and any cut.

// What a test cannot go on without ends it.
#![allow(clippy::unwrap_used)]

mod chunks;
mod dialects;
mod read;
