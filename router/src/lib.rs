//! The role that speaks HTTP: text in, text out.

#![forbid(unsafe_code)]
