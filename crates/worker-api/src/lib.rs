//! Generate calls over gRPC: conversions, client, status codes.

#![forbid(unsafe_code)]
