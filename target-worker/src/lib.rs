//! The role that owns the target model: serves `Generate` over gRPC.

#![forbid(unsafe_code)]
