//! How keys and values are kept: types, and rows of them.

mod rotation;
mod rows;
mod types;

pub(crate) use crate::kv::rotation::{rotate, rotate_back};
pub(crate) use crate::kv::rows::{Codes, Format, LEVELS};
pub use crate::kv::rows::{Side, clear_slots};
pub(crate) use crate::kv::types::BLOCK;
pub use crate::kv::types::{KvType, KvTypes};
