//! What a generate call asks for and what it answers. Knows no text, no transport and no device.

#![forbid(unsafe_code)]

mod error;
mod event;
mod grammar;
mod mode;
mod request;
mod round;
mod speculation;
mod thinking;
mod worker;

pub use error::{GenerateError, ParkError};
pub use event::{FinishReason, GenerateEvent, Timings, Token, TopToken};
pub use grammar::{Grammar, JSON_WHITESPACE};
pub use mode::{SpeculationConfig, SpeculationMode, UnknownSpeculationMode};
pub use request::GenerateRequest;
pub use round::{RoundReport, RoundStages};
pub use speculation::{SpeculationStats, SpeculationTimings};
pub use thinking::{CloseKind, ThinkingLimit, ThinkingTracker};
pub use worker::{
    DiskCacheStats, MemoryStats, ModelDescription, PrefixCacheStats, RefusedFiles, WorkerStats,
};
