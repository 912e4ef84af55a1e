//! A bounded little-endian reader: each read says for whom and for which field it is made.

use std::path::Path;

use crate::error::GgufError;

/// Whose field is being read; formatted only when something is wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Item<'a> {
    Header,
    KeyAt(u64),
    Key(&'a str),
    TensorAt(u64),
    Tensor(&'a str),
}

impl Item<'_> {
    fn text(self) -> String {
        match self {
            Self::Header => "header".to_owned(),
            Self::KeyAt(i) => format!("key #{i}"),
            Self::Key(k) => format!("key \"{k}\""),
            Self::TensorAt(i) => format!("tensor #{i}"),
            Self::Tensor(t) => format!("tensor \"{t}\""),
        }
    }
}

/// Reads forward through `bytes`, never past their end.
pub(crate) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Self {
            path,
            bytes,
            pos: 0,
        }
    }

    pub(crate) fn pos(&self) -> u64 {
        self.pos as u64
    }

    pub(crate) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.pos) as u64
    }

    pub(crate) fn take(
        &mut self,
        len: u64,
        item: Item<'_>,
        field: &'static str,
    ) -> Result<&'a [u8], GgufError> {
        let taken = usize::try_from(len)
            .ok()
            .and_then(|len| self.pos.checked_add(len))
            .and_then(|end| Some((end, self.bytes.get(self.pos..end)?)));
        let Some((end, taken)) = taken else {
            return Err(GgufError::Truncated {
                path: self.path.to_owned(),
                item: item.text(),
                field,
                needed: len,
                remaining: self.remaining(),
            });
        };
        self.pos = end;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        item: Item<'_>,
        field: &'static str,
    ) -> Result<[u8; N], GgufError> {
        let bytes = self.take(N as u64, item, field)?;
        let mut out = [0; N];
        out.copy_from_slice(bytes);
        Ok(out)
    }

    pub(crate) fn u32(&mut self, item: Item<'_>, field: &'static str) -> Result<u32, GgufError> {
        self.array(item, field).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, item: Item<'_>, field: &'static str) -> Result<u64, GgufError> {
        self.array(item, field).map(u64::from_le_bytes)
    }

    /// A count of things of at least `min_bytes` each, refused when they could not all follow.
    pub(crate) fn count(
        &mut self,
        min_bytes: u64,
        item: Item<'_>,
        field: &'static str,
    ) -> Result<u64, GgufError> {
        let got = self.u64(item, field)?;
        self.cap(got, self.remaining() / min_bytes.max(1), item, field)
    }

    /// Checks an already read count or length against `limit`.
    pub(crate) fn cap(
        &self,
        got: u64,
        limit: u64,
        item: Item<'_>,
        field: &'static str,
    ) -> Result<u64, GgufError> {
        if got > limit {
            let (path, item) = (self.path.to_owned(), item.text());
            return Err(GgufError::TooMany {
                path,
                item,
                field,
                got,
                limit,
            });
        }
        Ok(got)
    }

    /// A length-prefixed UTF-8 string of at most `max` bytes.
    pub(crate) fn str(
        &mut self,
        max: u64,
        item: Item<'_>,
        field: &'static str,
    ) -> Result<&'a str, GgufError> {
        let len = self.count(1, item, field)?;
        let len = self.cap(len, max, item, field)?;
        let bytes = self.take(len, item, field)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text),
            Err(e) => Err(GgufError::InvalidUtf8 {
                path: self.path.to_owned(),
                item: item.text(),
                field,
                at: e.valid_up_to(),
            }),
        }
    }
}
