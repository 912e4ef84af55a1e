//! Models split over several files: which part a file is, and where its siblings lie.

use std::path::{Path, PathBuf};

use crate::error::GgufError;
use crate::metadata::Metadata;

/// The key that holds a part's number, from 0.
const NO_KEY: &str = "split.no";
/// The key that holds the number of parts.
const COUNT_KEY: &str = "split.count";
/// The key that holds the number of tensors in all parts together.
const TENSORS_KEY: &str = "split.tensors.count";

/// A split model's file name, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PartName {
    dir: PathBuf,
    prefix: String,
    /// This part, from 1.
    pub(crate) part: u64,
    /// All parts.
    pub(crate) count: u64,
}

impl PartName {
    /// Understands `PREFIX-00001-of-0000N.gguf`.
    pub(crate) fn parse(path: &Path) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, part) = rest.rsplit_once('-')?;
        let (part, count) = (five_digits(part)?, five_digits(count)?);
        if part == 0 || part > count {
            return None;
        }
        let dir = path.parent().map(Path::to_owned).unwrap_or_default();
        Some(Self {
            dir,
            prefix: prefix.to_owned(),
            part,
            count,
        })
    }

    /// The path of another part (from 1) of the same model.
    pub(crate) fn sibling(&self, part: u64) -> PathBuf {
        self.dir.join(format!(
            "{}-{part:05}-of-{:05}.gguf",
            self.prefix, self.count
        ))
    }
}

fn five_digits(text: &str) -> Option<u64> {
    (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

/// How many parts the metadata speaks of; 1 when it speaks of none.
pub(crate) fn count(metadata: &Metadata) -> Result<u64, GgufError> {
    Ok(metadata.u64(COUNT_KEY)?.unwrap_or(1))
}

/// Checks that a part's keys agree with its place in the name.
pub(crate) fn check_part(
    path: &Path,
    metadata: &Metadata,
    name: &PartName,
) -> Result<(), GgufError> {
    expect(
        path,
        COUNT_KEY,
        name.count,
        metadata.required_u64(COUNT_KEY)?,
    )?;
    expect(path, NO_KEY, name.part - 1, metadata.required_u64(NO_KEY)?)
}

/// Checks the number of tensors found in all parts, when part 1 states it.
pub(crate) fn check_total(path: &Path, metadata: &Metadata, found: u64) -> Result<(), GgufError> {
    match metadata.u64(TENSORS_KEY)? {
        Some(stated) => expect(path, TENSORS_KEY, found, stated),
        None => Ok(()),
    }
}

fn expect(path: &Path, key: &'static str, expected: u64, got: u64) -> Result<(), GgufError> {
    if expected != got {
        return Err(GgufError::SplitMismatch {
            path: path.to_owned(),
            key,
            expected,
            got,
        });
    }
    Ok(())
}
