//! Segments whose creator died before the peer was there.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::ChannelError;
use crate::shm::name;

/// Removes this user's segments of instances whose name starts with `instance_prefix` and whose creator is dead, and
/// gives their names. A worker calls it at its start. Segments of the living stay, whatever their pid namespace.
///
/// # Errors
/// The directory of shared memory cannot be read. A segment that cannot be removed is logged and left.
pub fn remove_left_behind(instance_prefix: &str) -> Result<Vec<String>, ChannelError> {
    let prefix = name::prefix(instance_prefix);
    let failed = |source| ChannelError::Io {
        what: format!("reading {}", name::DIRECTORY),
        source,
    };
    let mut removed = Vec::new();
    for entry in fs::read_dir(name::DIRECTORY).map_err(failed)? {
        let Some(name) = entry.map_err(failed)?.file_name().into_string().ok() else {
            continue;
        };
        if !name.starts_with(&prefix) {
            continue;
        }
        match remove_if_dead(&name::path(&name)) {
            Ok(true) => removed.push(name),
            Ok(false) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(name, %error, "a shared memory segment stays behind"),
        }
    }
    Ok(removed)
}

/// Removes a segment that nobody holds locked; true: it was removed.
fn remove_if_dead(path: &Path) -> io::Result<bool> {
    let file = File::options()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() != rustix::process::getuid().as_raw() {
        return Ok(false);
    }
    match file.try_lock() {
        Ok(()) => fs::remove_file(path).map(|()| true),
        Err(fs::TryLockError::WouldBlock) => Ok(false),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}
