//! What every role needs to run: configuration, telemetry, gRPC server, shutdown.

#![forbid(unsafe_code)]
