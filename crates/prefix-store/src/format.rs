//! What the bytes of a file mean.
//!
//! A header of 72 bytes, then sections; all numbers are little-endian. The header: magic (8), version (4), kind (4), fingerprint
//! (16), key (16), tokens up to its end (8), bytes of the file (8), checksum of all that (8). A section: bytes of its payload (8),
//! payload, checksum (8). Checksums are XXH3 of 64 bits; that of a section is over the file's fingerprint, kind and key and the
//! section's number too, so that no section stands for another one.

use std::io::{self, Read, Write};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::Refusal;
use crate::key::{Fingerprint, Key};

const MAGIC: [u8; 8] = *b"TANDEMKV";
/// Changes with the format.
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 72;
/// Length and checksum of a section.
const FRAME_BYTES: usize = 16;

/// What a file is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A full page of keys and values: its tokens, its bytes.
    Page = 1,
    /// A cut: all tokens, the shape of its features, its parts.
    Cut = 2,
}

/// What a file says of itself first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub kind: Kind,
    pub fingerprint: Fingerprint,
    pub key: Key,
    /// Tokens up to its end.
    pub end: usize,
}

/// Bytes of a file with these sections.
pub(crate) fn file_bytes(sections: impl IntoIterator<Item = usize>) -> u64 {
    let framed = sections.into_iter().map(|len| (len + FRAME_BYTES) as u64);
    HEADER_BYTES as u64 + framed.sum::<u64>()
}

impl Identity {
    fn header(&self, file_bytes: u64) -> Vec<u8> {
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend((self.kind as u32).to_le_bytes());
        header.extend(self.fingerprint.bytes());
        header.extend(self.key.bytes());
        header.extend((self.end as u64).to_le_bytes());
        header.extend(file_bytes.to_le_bytes());
        let checksum = xxh3_64(&header);
        header.extend(checksum.to_le_bytes());
        header
    }

    fn checksum(&self, number: u64, payload: &[u8]) -> [u8; 8] {
        let mut hasher = Xxh3::new();
        hasher.update(self.fingerprint.bytes());
        hasher.update(&(self.kind as u32).to_le_bytes());
        hasher.update(self.key.bytes());
        hasher.update(&number.to_le_bytes());
        hasher.update(payload);
        hasher.digest().to_le_bytes()
    }
}

/// Writes a file's sections.
#[derive(Debug)]
pub(crate) struct SectionWriter<W> {
    to: W,
    identity: Identity,
    next: u64,
}

impl<W: Write> SectionWriter<W> {
    /// Writes the header of a file that will have `file_bytes` bytes.
    pub fn new(mut to: W, identity: Identity, file_bytes: u64) -> io::Result<Self> {
        to.write_all(&identity.header(file_bytes))?;
        Ok(Self {
            to,
            identity,
            next: 0,
        })
    }

    pub fn write(&mut self, payload: &[u8]) -> io::Result<()> {
        self.to.write_all(&(payload.len() as u64).to_le_bytes())?;
        self.to.write_all(payload)?;
        let checksum = self.identity.checksum(self.next, payload);
        self.next += 1;
        self.to.write_all(&checksum)
    }

    pub fn get_ref(&self) -> &W {
        &self.to
    }

    pub fn get_mut(&mut self) -> &mut W {
        &mut self.to
    }
}

/// Reads a file's sections, and believes none of them.
#[derive(Debug)]
pub(crate) struct SectionReader<R> {
    from: R,
    identity: Identity,
    next: u64,
    /// Bytes of the file that were not read.
    left: u64,
}

impl<R: Read> SectionReader<R> {
    /// Reads the header of a file of `file_bytes` bytes, which must be that of `identity`.
    pub fn new(mut from: R, identity: Identity, file_bytes: u64) -> Result<Self, Refusal> {
        let damaged = Refusal::Damaged { what: "the header" };
        let Some(left) = file_bytes.checked_sub(HEADER_BYTES as u64) else {
            return Err(damaged);
        };
        let mut header = [0; HEADER_BYTES];
        read_exact(&mut from, &mut header, "the header")?;
        let expected = identity.header(file_bytes);
        let differs = |range: std::ops::Range<usize>| header[range.clone()] != expected[range];
        if differs(0..8) {
            return Err(Refusal::Foreign { what: "its magic" });
        }
        if differs(8..12) {
            let [a, b, c, d] = [8, 9, 10, 11].map(|place| header[place]);
            return Err(Refusal::Version {
                got: u32::from_le_bytes([a, b, c, d]),
                expected: VERSION,
            });
        }
        if xxh3_64(&header[..64]).to_le_bytes() != header[64..] {
            return Err(damaged);
        }
        if differs(56..64) {
            return Err(Refusal::Damaged { what: "its length" });
        }
        for (range, what) in [
            (12..16, "its kind"),
            (16..32, "its fingerprint"),
            (32..48, "its key"),
            (48..56, "its position"),
        ] {
            if differs(range) {
                return Err(Refusal::Foreign { what });
            }
        }
        Ok(Self {
            from,
            identity,
            next: 0,
            left,
        })
    }

    /// The payload of the next section, which must have `len` bytes.
    pub fn read(&mut self, what: &'static str, len: usize) -> Result<Vec<u8>, Refusal> {
        self.read_if(what, |got| got == len)
    }

    /// The payload of the next section, which must have `most` bytes at most.
    pub fn read_up_to(&mut self, what: &'static str, most: usize) -> Result<Vec<u8>, Refusal> {
        self.read_if(what, |got| got <= most)
    }

    fn read_if(
        &mut self,
        what: &'static str,
        is_wanted: impl FnOnce(usize) -> bool,
    ) -> Result<Vec<u8>, Refusal> {
        let damaged = Refusal::Damaged { what };
        let mut word = [0; 8];
        read_exact(&mut self.from, &mut word, what)?;
        let len = u64::from_le_bytes(word);
        let rest = len
            .checked_add(FRAME_BYTES as u64)
            .and_then(|framed| self.left.checked_sub(framed));
        // What is asked for is in the file, so the memory for it is bounded too.
        let (Some(rest), Ok(len)) = (rest, usize::try_from(len)) else {
            return Err(damaged);
        };
        if !is_wanted(len) {
            return Err(damaged);
        }
        let mut payload = vec![0; len];
        read_exact(&mut self.from, &mut payload, what)?;
        read_exact(&mut self.from, &mut word, what)?;
        if self.identity.checksum(self.next, &payload) != word {
            return Err(damaged);
        }
        self.next += 1;
        self.left = rest;
        Ok(payload)
    }

    /// Says whether that was all.
    pub fn finish(&self) -> Result<(), Refusal> {
        match self.left {
            0 => Ok(()),
            _ => Err(Refusal::Damaged { what: "its end" }),
        }
    }

    pub fn get_ref(&self) -> &R {
        &self.from
    }

    pub fn into_inner(self) -> R {
        self.from
    }
}

fn read_exact(from: &mut impl Read, to: &mut [u8], what: &'static str) -> Result<(), Refusal> {
    from.read_exact(to).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Refusal::Damaged { what },
        _ => Refusal::Unreadable(error),
    })
}

/// Tokens as they are kept.
pub(crate) fn token_bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
}
