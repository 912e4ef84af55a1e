//! Generate calls over gRPC: conversions, the client, status codes.

#![forbid(unsafe_code)]

mod client;
mod convert;
mod error;
mod status;

pub use client::{GenerateStream, TargetClient};
pub use convert::{description_to_proto, event_to_proto, request_from_proto, stats_to_proto};
pub use error::WorkerError;
pub use status::to_status;
