//! Incremental decoding: bytes and tokens in, whole characters out.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;

/// Turns a stream of bytes into text, holding back only a character that is not complete yet. The whole
/// output equals `String::from_utf8_lossy` of the whole input.
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// An empty stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes `bytes` and gives what is certain by now; invalid bytes become U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut out = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, tail) = rest.split_at(error.valid_up_to());
                    out.push_str(&String::from_utf8_lossy(valid));
                    rest = tail;
                    let Some(invalid) = error.error_len() else {
                        break;
                    };
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[invalid..];
                }
            }
        }
        let done = self.pending.len() - rest.len();
        self.pending.drain(..done);
        out
    }

    /// Ends the stream: U+FFFD if a character was left incomplete, else nothing.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// Decodes tokens one by one into whole characters.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    show_special: bool,
    stream: Utf8Stream,
}

impl Detokenizer {
    /// A decoder at the start of a text; `show_special` makes control tokens appear as their text.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, show_special: bool) -> Self {
        Self {
            tokenizer,
            show_special,
            stream: Utf8Stream::new(),
        }
    }

    /// Takes a token and gives the characters that are complete by now. Ids outside the vocabulary
    /// give nothing.
    pub fn push(&mut self, id: u32) -> String {
        match self.tokenizer.token_bytes(id, self.show_special) {
            Some(bytes) => self.stream.push(&bytes),
            None => String::new(),
        }
    }

    /// Ends the text: U+FFFD if a character was left incomplete, else nothing.
    pub fn finish(&mut self) -> String {
        self.stream.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_lossy_decoding_in_any_chunking() {
        // Whole characters, stray continuation bytes, overlong and surrogate forms, cut sequences.
        let atoms: [&[u8]; 10] = [
            b"a",
            "é".as_bytes(),
            "中".as_bytes(),
            "🚀".as_bytes(),
            &[0x80],
            &[0xff],
            &[0xc0, 0xaf],
            &[0xed, 0xa0, 0x80],
            &[0xe4, 0xb8],
            &[0xf0, 0x9f, 0x9a],
        ];
        let mut state = 1u64;
        let mut next = |n: usize| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        for _ in 0..3000 {
            let bytes: Vec<u8> = (0..next(8))
                .flat_map(|_| atoms[next(10)].to_vec())
                .collect();
            let mut stream = Utf8Stream::new();
            let (mut text, mut at) = (String::new(), 0);
            while at < bytes.len() {
                let end = (at + 1 + next(4)).min(bytes.len());
                text.push_str(&stream.push(&bytes[at..end]));
                assert!(stream.pending.len() < 4);
                at = end;
            }
            text.push_str(&stream.finish());
            assert_eq!(text, String::from_utf8_lossy(&bytes), "{bytes:?}");
        }
    }

    #[test]
    fn invalid_bytes_do_not_stall() {
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push(&[0xff]), "\u{fffd}");
        assert_eq!(stream.push(&[0xe4, 0xb8]), "");
        assert_eq!(stream.push(b"x"), "\u{fffd}x");
        assert_eq!(stream.push(&[0xf0, 0x9f]), "");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.finish(), "");
    }
}
