//! Reads (memory-mapped) and writes GGUF model files.
//!
//! [`GgufFile`] opens versions 2 and 3, little-endian, in one file or in numbered parts. A file
//! is believed about nothing: every count, length, offset and shape is checked against the bytes
//! that are there before it is used, and what is refused is refused by name (file, key or tensor,
//! field). [`GgufWriter`] writes version 3.

#![deny(unsafe_code)]

mod cursor;
mod error;
mod file;
mod geometry;
mod metadata;
mod mmap;
mod parse;
mod split;
mod strings;
mod value;
mod writer;

pub use error::GgufError;
pub use file::{GgufFile, TensorView};
pub use metadata::Metadata;
pub use mmap::Mapping;
pub use strings::Strings;
pub use value::{Array, Value};
pub use writer::GgufWriter;
