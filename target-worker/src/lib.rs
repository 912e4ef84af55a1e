//! The role that owns the target model: loads it, runs the engine, serves `Generate` over gRPC.
//!
//! A model that is split over devices is a chain of processes: this role is the last of them, [`run_stage`] is each before it.

#![forbid(unsafe_code)]

mod attach;
mod config;
mod disk;
mod earlier;
mod grammars;
mod load;
mod remote_drafter;
mod role;
mod server;
mod split;
mod stage;
mod watch;

pub use config::{Config, context_length, prefill_chunk};
pub use earlier::attach_earlier;
pub use load::{LoadedStage, devices, load_stage, transport_between};
pub use role::run;
pub use split::{Stage, split};
pub use stage::run_stage;
