//! Names of what is kept: hashes of tokens, and of all that gives them their states.

use std::{fmt, io};

use sha2::{Digest as _, Sha256};

/// 128 bits: nobody finds two texts with the same one.
const BYTES: usize = 16;

/// All that decides which state tokens have: model, device, types of the cache, program. Files of another one are never read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; BYTES]);

/// Makes a [`Fingerprint`].
#[derive(Clone, Debug, Default)]
pub struct Fingerprinter(Sha256);

impl Fingerprinter {
    /// Adds something that decides. Its length goes in too, so that one thing's end is never another's beginning.
    pub fn add(&mut self, what: impl AsRef<[u8]>) {
        let bytes = what.as_ref();
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    /// The fingerprint of all that was added.
    #[must_use]
    pub fn finish(self) -> Fingerprint {
        Fingerprint(first_bytes(self.0))
    }
}

/// Bytes that are too many for memory.
impl io::Write for Fingerprinter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Fingerprint {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

/// Names a page or a cut: its tokens and all before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key([u8; BYTES]);

impl Key {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        let is_key = digits.len() == 2 * BYTES
            && digits
                .iter()
                .all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f'));
        if !is_key {
            return None;
        }
        let mut key = [0; BYTES];
        for (place, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok()?;
        }
        Some(Self(key))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

/// Keys of a text's pages, each of which stands for all before it.
#[derive(Clone, Debug)]
pub(crate) struct Chain<'a> {
    tokens: &'a [u32],
    page_tokens: usize,
    /// The first is that of no tokens, then one a full page.
    ends: Vec<Key>,
}

impl<'a> Chain<'a> {
    pub fn new(fingerprint: &Fingerprint, tokens: &'a [u32], page_tokens: usize) -> Self {
        let mut end = link(fingerprint.bytes(), b"text", &[]);
        let mut ends = vec![end];
        for page in tokens.chunks_exact(page_tokens) {
            end = link(end.bytes(), b"page", page);
            ends.push(end);
        }
        Self {
            tokens,
            page_tokens,
            ends,
        }
    }

    /// Key of the full page with this number.
    pub fn page(&self, number: usize) -> Option<Key> {
        self.ends.get(number + 1).copied()
    }

    /// Key of the cut after the first `len` tokens.
    pub fn cut(&self, len: usize) -> Option<Key> {
        let full = len / self.page_tokens;
        let tail = self.tokens.get(full * self.page_tokens..len)?;
        Some(link(self.ends.get(full)?.bytes(), b"cut.", tail))
    }
}

fn link(before: &[u8], kind: &[u8; 4], tokens: &[u32]) -> Key {
    let mut hasher = Sha256::new();
    hasher.update(before);
    hasher.update(kind);
    for token in tokens {
        hasher.update(token.to_le_bytes());
    }
    Key(first_bytes(hasher))
}

fn first_bytes(hasher: Sha256) -> [u8; BYTES] {
    let mut first = [0; BYTES];
    for (to, from) in first.iter_mut().zip(hasher.finalize()) {
        *to = from;
    }
    first
}

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_for_every_token_up_to_its_end_and_for_the_fingerprint() {
        let fingerprints = ["one", "two"].map(|name| {
            let mut maker = Fingerprinter::default();
            maker.add(name);
            maker.finish()
        });
        let text: Vec<u32> = (0..11).collect();
        let mut other = text.clone();
        other[2] += 1;
        let [chain, changed] = [&text, &other].map(|text| Chain::new(&fingerprints[0], text, 4));
        let elsewhere = Chain::new(&fingerprints[1], &text, 4);
        assert_eq!(chain.cut(2), changed.cut(2));
        for len in 3..=11 {
            assert_ne!(chain.cut(len), changed.cut(len), "{len}");
            assert_ne!(chain.cut(len), elsewhere.cut(len), "{len}");
        }
        assert_ne!(chain.page(1), changed.page(1));
        assert_eq!((chain.page(2), chain.cut(12)), (None, None));
        // The cut at a page's end is not the page.
        assert_ne!(chain.page(1), chain.cut(8));
        let key = chain.page(0).unwrap();
        assert_eq!(Key::parse(&key.to_string()), Some(key));
        for bad in ["", "0", &"g".repeat(32), &"0".repeat(33), &"A".repeat(32)] {
            assert_eq!(Key::parse(bad), None);
        }
    }

    #[test]
    fn a_fingerprint_keeps_what_was_added_apart() {
        let of = |parts: &[&str]| {
            let mut maker = Fingerprinter::default();
            parts.iter().for_each(|part| maker.add(part));
            maker.finish()
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_eq!(of(&["ab", "c"]).to_string().len(), 32);
    }
}
