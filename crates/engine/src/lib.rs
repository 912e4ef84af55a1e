//! Sequences to steps: schedules prefill and decode, owns the model thread.
//!
//! [`Engine::start`] moves a model onto a thread of its own. An [`EngineHandle`] is the async side: a request goes in,
//! a [`GenerateStream`] comes back, and dropping the stream cancels the request. Each step is one forward pass over
//! all running sequences: a row for every one that decodes, and a bounded piece of the prompts that are being
//! prefilled. What a sequence generates does not depend on its company.

#![forbid(unsafe_code)]

mod choice;
mod clock;
mod config;
mod constraint;
mod counters;
mod disk;
mod drafter;
mod engine;
mod error;
mod handle;
mod lease;
mod parking;
mod prefixes;
mod queue;
mod runner;
mod scheduler;
mod sequence;
mod shadow;
mod shared;
mod speculation;
mod stream;
mod watch;

pub use config::{DiskCacheConfig, EngineConfig, PrefixCacheConfig};
pub use drafter::{Ask, DraftShape, Drafted, Drafter, DrafterError};
pub use engine::Engine;
pub use error::ConfigError;
pub use handle::EngineHandle;
pub use lease::DrafterLease;
pub use parking::ParkingLease;
pub use prefix_store::{Fingerprint, Fingerprinter};
pub use stream::GenerateStream;
pub use watch::RoundStream;
