//! The printable alphabet in which byte-level BPE vocabularies spell bytes.

/// The character that stands for `byte`.
#[must_use]
pub fn byte_to_char(byte: u8) -> char {
    if is_plain(byte) {
        return char::from(byte);
    }
    let rank = match byte {
        0..=32 => u32::from(byte),
        127..=160 => 33 + u32::from(byte) - 127,
        _ => 67,
    };
    char::from_u32(0x100 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that `c` stands for, if it belongs to the alphabet.
#[must_use]
pub fn char_to_byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0..=255 => u8::try_from(code).ok().filter(|&b| is_plain(b)),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 127).ok(),
        0x143 => Some(173),
        _ => None,
    }
}

/// `bytes` spelled in the alphabet.
#[must_use]
pub fn spell(bytes: &[u8]) -> String {
    bytes.iter().map(|&b| byte_to_char(b)).collect()
}

/// The bytes that `text` spells; characters outside the alphabet stand for themselves.
#[must_use]
pub fn unspell(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for c in text.chars() {
        match char_to_byte(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out
}

/// Bytes that stand for the character of equal value.
fn is_plain(byte: u8) -> bool {
    matches!(byte, 33..=126 | 161..=172 | 174..=255)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_definition() {
        let mut next = 0x100;
        for byte in 0..=255u8 {
            let want = if is_plain(byte) {
                u32::from(byte)
            } else {
                next += 1;
                next - 1
            };
            let c = byte_to_char(byte);
            assert_eq!(u32::from(c), want, "byte {byte}");
            assert_eq!(char_to_byte(c), Some(byte));
        }
        assert_eq!(next, 0x144);
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(byte_to_char(b'\n'), 'Ċ');
        for c in ['\0', ' ', '\u{7f}', '\u{a0}', '\u{ad}', '\u{144}', '中'] {
            assert_eq!(char_to_byte(c), None);
        }
    }

    #[test]
    fn spells_all_bytes_and_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unspell(&spell(&all)), all);
        assert_eq!(unspell("Ġ中"), " 中".as_bytes());
    }
}
