//! Element types and quant blocks: what the bytes of a tensor mean.
//!
//! [`DType`] names the element types of GGUF files and their block geometry,
//! [`decode_row`] turns a row of blocks into `f32` and is the specification
//! that every faster kernel is held against, and [`encode_row`] makes blocks
//! of the types the project writes itself.

#![forbid(unsafe_code)]

mod decode;
mod dtype;
mod encode;
mod error;

pub use decode::{IQ4_TABLE, decode_row};
pub use dtype::{DType, ggml_type_name};
pub use encode::encode_row;
pub use error::QuantError;
