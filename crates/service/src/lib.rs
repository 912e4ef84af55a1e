//! What every role needs to run: endpoints, configuration layers, telemetry, a gRPC server with health, shutdown.

#![forbid(unsafe_code)]

mod config;
mod endpoint;
mod error;
mod grpc;
mod held_stream;
mod memory;
mod shutdown;
mod telemetry;

pub use config::load_config;
pub use endpoint::Endpoint;
pub use error::ServiceError;
pub use grpc::{GrpcListener, GrpcService, serve_grpc};
pub use held_stream::HeldStream;
pub use memory::resident_bytes;
pub use shutdown::{StopSignals, cancel_on_signal};
pub use telemetry::init_telemetry;
