//! The role that owns the target model: loads it, runs the engine, serves `Generate` over gRPC.

#![forbid(unsafe_code)]

mod attach;
mod config;
mod load;
mod remote_drafter;
mod role;
mod server;

pub use config::{Config, context_length};
pub use load::local_transport;
pub use role::run;
