//! The role that owns the draft model: takes features of accepted tokens, proposes the tokens that follow.
//!
//! A session is set up over gRPC; then target and draft speak over a tensor channel, and one thread, which owns the
//! model, answers all of them. A draft that is gone costs its targets time and no token.

#![forbid(unsafe_code)]

mod accept;
mod config;
mod contexts;
mod counters;
mod load;
mod proposer;
mod questions;
mod role;
mod server;
mod session;

pub use config::Config;
pub use role::{remove_left_behind, run};
