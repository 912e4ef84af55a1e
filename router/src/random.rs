//! Random numbers for names and seeds; nothing here is a secret.

use std::hash::{BuildHasher, RandomState};

/// 64 random bits. The keys of std's hash maps come from the operating system and differ from call to call.
pub(crate) fn bits() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// A name that no other answer has.
pub(crate) fn name(prefix: &str) -> String {
    format!("{prefix}{:016x}{:016x}", bits(), bits())
}
