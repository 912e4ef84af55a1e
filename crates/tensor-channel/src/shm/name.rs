//! Names of segments: `tandem-UID-INSTANCE-RANDOM`.

use std::fmt::Write;
use std::path::PathBuf;

use crate::error::ChannelError;
use crate::random;

/// Where the system shows segments as files.
pub(crate) const DIRECTORY: &str = "/dev/shm";

/// Bytes of an instance at most; a file name has room for 255.
const INSTANCE_BYTES: usize = 100;

/// What the names of this user's segments start with.
pub(crate) fn prefix(instance: &str) -> String {
    format!("tandem-{}-{instance}", rustix::process::getuid().as_raw())
}

/// A name that nobody can guess.
///
/// # Errors
/// The instance cannot stand in a name; the system has no randomness.
pub(crate) fn unguessable(instance: &str) -> Result<String, ChannelError> {
    check_instance(instance)?;
    let mut name = prefix(instance);
    name.push('-');
    for byte in random::bytes::<16>()? {
        write!(name, "{byte:02x}").expect("writing to a string does not fail");
    }
    Ok(name)
}

/// # Errors
/// The instance cannot stand in a name.
pub(crate) fn check_instance(instance: &str) -> Result<(), ChannelError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !instance.is_empty() && instance.len() <= INSTANCE_BYTES && instance.chars().all(is_plain) {
        return Ok(());
    }
    Err(ChannelError::Invalid {
        field: "instance",
        got: format!("{instance:?}"),
        expected: format!("1 to {INSTANCE_BYTES} letters, digits, dots, dashes, underscores"),
    })
}

/// # Errors
/// A name from a peer is none of ours: it would lead out of the directory, or to another program's segment.
pub(crate) fn check(name: &str) -> Result<(), ChannelError> {
    if name.starts_with("tandem-") && check_rest(name) {
        return Ok(());
    }
    Err(ChannelError::Invalid {
        field: "segment name",
        got: format!("{name:?}"),
        expected: "tandem-UID-INSTANCE-RANDOM".to_owned(),
    })
}

fn check_rest(name: &str) -> bool {
    name.len() <= 255
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// The file of a segment.
pub(crate) fn path(name: &str) -> PathBuf {
    [DIRECTORY, name].iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ours_and_all_different() {
        let names = [(); 2].map(|()| unguessable("target-0").unwrap());
        assert_ne!(names[0], names[1]);
        for name in names {
            assert!(name.starts_with(&prefix("target-0")), "{name}");
            check(&name).unwrap();
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let long = format!("tandem-{}", "x".repeat(250));
        for name in [
            "",
            "other",
            "tandem-/../../etc/passwd",
            "/tandem-0",
            "tandem-\0",
            &long,
        ] {
            assert!(check(name).is_err(), "{name:?}");
        }
    }
}
