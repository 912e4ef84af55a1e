//! The input of a tool that takes text, out of the JSON object in which the model writes it.

use serde_json::Value;

/// The one argument of the function that stands for such a tool.
const ARGUMENT: &str = "input";

/// Reads `{"input": "..."}` as it grows.
#[derive(Debug, Default)]
pub(super) struct TextInput {
    json: String,
    /// Where the part of the string begins that was not read yet, once the string has begun.
    unread: Option<usize>,
    /// What was read of it.
    text: String,
}

impl TextInput {
    /// Takes more of the object and gives what is new of the text.
    pub fn push(&mut self, fragment: &str) -> String {
        self.json.push_str(fragment);
        let Some(start) = self.unread.or_else(|| self.beginning()) else {
            return String::new();
        };
        let length = whole_length(&self.json[start..]);
        self.unread = Some(start + length);
        let new = unescaped(&self.json[start..start + length]);
        self.text.push_str(&new);
        new
    }

    /// The rest of the text, and all of it. Where the object is not what it should be, it is itself the text, for nothing that a
    /// model says is to be lost.
    pub fn finish(self) -> (String, String) {
        let whole = match serde_json::from_str(&self.json) {
            Ok(Value::Object(mut map)) => match map.remove(ARGUMENT) {
                Some(Value::String(text)) => Some(text),
                _ => None,
            },
            _ => None,
        };
        let whole = match whole {
            Some(whole) => whole,
            None if self.text.is_empty() => self.json,
            None => self.text.clone(),
        };
        let rest = whole
            .strip_prefix(&self.text)
            .unwrap_or_default()
            .to_owned();
        (rest, whole)
    }

    /// Where the string begins, if the object begins as it should.
    fn beginning(&self) -> Option<usize> {
        let mut rest = self.json.as_str();
        for expected in ["{", "\"input\"", ":", "\""] {
            rest = rest.trim_start().strip_prefix(expected)?;
        }
        Some(self.json.len() - rest.len())
    }
}

/// Bytes of `json`, which stands inside a string, up to its end or to an escape that is not whole.
fn whole_length(json: &str) -> usize {
    let bytes = json.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let length = match bytes[at] {
            b'"' => return at,
            b'\\' => match escape_length(&bytes[at..]) {
                Some(length) => length,
                None => return at,
            },
            _ => 1,
        };
        at += length;
    }
    at
}

/// Bytes of the escape that `bytes` begin with, or of two that make one character; nothing, if more is to come.
fn escape_length(bytes: &[u8]) -> Option<usize> {
    const UNIT: usize = "\\u0000".len();
    match bytes.get(1)? {
        b'u' => {
            let unit = bytes.get(2..UNIT)?;
            let is_first_of_two = matches!(
                unit,
                [b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', ..]
            );
            let length = if is_first_of_two { 2 * UNIT } else { UNIT };
            (bytes.len() >= length).then_some(length)
        }
        _ => Some(2),
    }
}

/// What is not valid stays out, and [`TextInput::finish`] sees that the whole was not.
fn unescaped(json: &str) -> String {
    serde_json::from_str(&format!("\"{json}\"")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::TextInput;

    /// Everything that comes of `fragments`, and the whole.
    fn read<'f>(fragments: impl Iterator<Item = &'f str>) -> (String, String) {
        let mut input = TextInput::default();
        let mut text: String = fragments.map(|fragment| input.push(fragment)).collect();
        let (rest, whole) = input.finish();
        text.push_str(&rest);
        (text, whole)
    }

    #[test]
    fn any_split_gives_the_same_text() {
        let text = "*** Begin\n+\t\"q\" \\ é 中 😀 \u{1} {\"input\": 1}";
        let plain = json!({ "input": text }).to_string();
        let escaped = plain
            .replace('😀', "\\ud83d\\uDE00")
            .replace('é', "\\u00e9");
        for json in [plain.replacen(':', " : ", 1), escaped] {
            for (at, _) in json.char_indices() {
                let (first, second) = json.split_at(at);
                let expected = (text.to_owned(), text.to_owned());
                assert_eq!(read([first, second].into_iter()), expected, "{first}");
            }
            let each = json
                .char_indices()
                .map(|(at, c)| &json[at..at + c.len_utf8()]);
            assert_eq!(read(each).0, text);
        }
    }

    #[test]
    fn what_is_new_comes_at_once() {
        let mut input = TextInput::default();
        assert_eq!(input.push("{\"input\": \"ab"), "ab");
        assert_eq!(input.push("c\\"), "c");
        assert_eq!(input.push("nd"), "\nd");
        assert_eq!(input.push("\"}"), "");
        assert_eq!(input.finish(), (String::new(), "abc\nd".to_owned()));
    }

    #[test]
    fn an_object_of_another_kind_is_the_text() {
        for json in ["{\"patch\": \"x\"}", "[1]", "{\"input\": 5}", "{\"inp"] {
            assert_eq!(read([json].into_iter()), (json.to_owned(), json.to_owned()));
        }
        let cut = "{\"input\": \"half a";
        assert_eq!(read([cut].into_iter()).1, "half a");
    }
}
