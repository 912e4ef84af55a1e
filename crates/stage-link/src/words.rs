//! The words of a command's payload, read with checks.

use crate::error::{LinkError, foreign};

/// Bytes of a word.
pub(crate) const WORD_BYTES: usize = size_of::<u32>();

/// Reads words from the front.
pub(crate) struct Words<'a> {
    left: &'a [u32],
}

impl<'a> Words<'a> {
    pub fn new(words: &'a [u32]) -> Self {
        Self { left: words }
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u32], LinkError> {
        let Some((words, left)) = self.left.split_at_checked(count) else {
            let expected = format!("{count} more words");
            return Err(foreign("batch", "length", self.left.len(), expected));
        };
        self.left = left;
        Ok(words)
    }

    pub fn next(&mut self) -> Result<u32, LinkError> {
        Ok(self.take(1)?[0])
    }

    /// Nothing may be left.
    pub fn finish(self) -> Result<(), LinkError> {
        match self.left.len() {
            0 => Ok(()),
            left => Err(foreign("batch", "length", left, "no more words")),
        }
    }
}
