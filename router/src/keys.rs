//! Who may call: keys, held as digests so that comparing tells nothing of them.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::secret::Secret;

/// The keys that callers may have; without any, everyone may call.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ApiKeys {
    digests: Vec<[u8; 32]>,
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({})", self.digests.len())
    }
}

impl ApiKeys {
    /// Keys as they are written in the configuration, and those of a file with one a line.
    ///
    /// # Errors
    /// The file cannot be read or holds no key, or a key cannot stand in a header. No message shows a key.
    pub fn new(keys: &[Secret], file: Option<&Path>) -> Result<Self> {
        let mut all = Self::default();
        for (place, key) in keys.iter().enumerate() {
            let what = || format!("api-keys, entry {}", place + 1);
            all.add(key.reveal()).with_context(what)?;
        }
        let Some(path) = file else {
            return Ok(all);
        };
        let name = || format!("api-key-file {}", path.display());
        for (line, key) in lines(path)? {
            let what = || format!("{}, line {line}", name());
            all.add(key.reveal()).with_context(what)?;
        }
        Ok(all)
    }

    fn add(&mut self, key: &str) -> Result<()> {
        ensure!(!key.is_empty(), "the key is empty");
        ensure!(
            key.bytes().all(|byte| byte.is_ascii_graphic()),
            "the key has letters that cannot stand in a header; expected printable ASCII without blanks"
        );
        self.digests.push(digest(key.as_bytes()));
        Ok(())
    }

    /// Whether everyone may call.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    /// Whether `key` is one of them. Takes as long for a wrong one as for a right one.
    pub(crate) fn admit(&self, key: &[u8]) -> bool {
        let given = digest(key);
        let same = |found: Choice, kept: &[u8; 32]| found | kept.ct_eq(&given);
        self.digests.iter().fold(Choice::from(0), same).into()
    }
}

/// The keys of a file, with the lines on which they stand; one at least.
pub(crate) fn lines(path: &Path) -> Result<Vec<(usize, Secret)>> {
    let name = || format!("api-key-file {}", path.display());
    let text = fs::read_to_string(path).with_context(name)?;
    let lines = (1..).zip(text.lines().map(str::trim));
    let keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<_> = keys
        .map(|(number, line)| (number, Secret::from(line.to_owned())))
        .collect();
    ensure!(!keys.is_empty(), "{} holds no key", name());
    Ok(keys)
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::ApiKeys;
    use crate::secret::Secret;

    fn secrets(keys: &[&str]) -> Vec<Secret> {
        keys.iter()
            .map(|&key| Secret::from(key.to_owned()))
            .collect()
    }

    #[test]
    fn all_keys_and_no_others_are_admitted() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"# the team\n\n sk-two \nsk-three\r\n")
            .unwrap();
        let keys = ApiKeys::new(&secrets(&["sk-one"]), Some(file.path())).unwrap();
        for key in ["sk-one", "sk-two", "sk-three"] {
            assert!(keys.admit(key.as_bytes()), "{key}");
        }
        for key in ["", "sk-on", "sk-one ", "SK-ONE", "# the team"] {
            assert!(!keys.admit(key.as_bytes()), "{key}");
        }
        assert!(!keys.is_empty() && ApiKeys::default().is_empty());
        assert!(!ApiKeys::default().admit(b""));
    }

    #[test]
    fn bad_keys_are_refused_and_none_is_shown() {
        let refused = |keys: &[&str], text: Option<&str>, words: &[&str]| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.unwrap_or_default().as_bytes()).unwrap();
            let path = text.map(|_| file.path());
            let error = format!("{:#}", ApiKeys::new(&secrets(keys), path).unwrap_err());
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
            assert!(!error.contains("sesame"), "{error}");
        };
        refused(&["sesame", ""], None, &["api-keys, entry 2", "empty"]);
        refused(&["sesame open"], None, &["api-keys, entry 1", "blanks"]);
        refused(&["sesame\u{e9}"], None, &["printable ASCII"]);
        refused(&[], Some("ok\nsesame open"), &["api-key-file", "line 2"]);
        refused(
            &["sesame"],
            Some("# none\n"),
            &["api-key-file", "holds no key"],
        );
        let missing = ApiKeys::new(&[], Some("/nonexistent/keys".as_ref())).unwrap_err();
        assert!(format!("{missing:#}").contains("/nonexistent/keys"));
        let keys = ApiKeys::new(&secrets(&["sesame"]), None).unwrap();
        let shown = format!("{keys:?} {:?}", secrets(&["sesame"]));
        assert!(!shown.contains("sesame"), "{shown}");
    }
}
