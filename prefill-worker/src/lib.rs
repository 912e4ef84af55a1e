//! The role that owns the prefill drafter: scores the tokens of a long prompt, and says which spans of it are kept.
//!
//! One thread owns the model and takes one prompt at a time. The weights come to the device with the first prompt and,
//! unless told otherwise, leave it with the answer, so that a card can be shared. A prefill worker that is gone costs
//! time and no answer.

#![forbid(unsafe_code)]

mod compressor;
mod config;
mod counters;
mod drafter;
mod handle;
mod job;
mod role;
mod server;

pub use config::Config;
pub use role::run;
