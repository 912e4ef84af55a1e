//! Bytes that nobody can guess.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::ChannelError;

/// `N` random bytes from the system, 256 at most.
///
/// # Errors
/// The system has none.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N], ChannelError> {
    const { assert!(N <= 256, "the system gives up to 256 bytes whole") };
    let mut bytes = [0; N];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map(|_| bytes)
        .map_err(|error| ChannelError::Io {
            what: "asking the system for random bytes".to_owned(),
            source: error.into(),
        })
}
