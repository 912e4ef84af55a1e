//! Arguments that are written as JSON or nearly so: they become JSON as they grow.
//!
//! Other quotes, Python's words for true, false and null, keys and texts without quotes, line breaks and odd escapes in
//! strings, commas too many and brackets that are missing at the end are mended. Where the structure itself is lost,
//! the rest is given on as it stands: such arguments do not parse, and whoever called for them sees that.

use crate::value::{escaped, is_number};

/// Brackets inside brackets at most; deeper ones are given on as they stand.
const MAX_DEPTH: usize = 128;

/// The quote of Gemma's calls.
const TOKEN_QUOTE: &str = "<|\"|>";

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// A value comes, or the end of a list.
    Value,
    /// A key comes, or the end of an object.
    Key,
    /// The mark between key and value comes.
    Colon,
    /// A comma comes, or an end.
    Next,
    /// Inside a string that ends with the quote; of a key or a value.
    Text { quote: &'static str, is_key: bool },
    /// The root is complete.
    Done,
    /// The structure is lost.
    Lost,
}

/// One object in the making.
#[derive(Debug, Clone)]
pub(crate) struct Relaxed {
    state: State,
    /// The ends that are to come, the innermost last.
    ends: Vec<char>,
    /// Whether no member was written in the innermost yet.
    is_first: bool,
}

/// Why reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// The object is complete.
    Done,
    /// A `<` outside of strings comes, which may be the markup behind the object.
    Mark,
    /// What is left, if anything, means nothing before more of it is there.
    Short,
}

/// What comes of the text at one place.
enum Step {
    /// So many bytes were read. None, where only the state changed.
    Took(usize),
    Mark,
    Short,
}

impl Relaxed {
    /// For a text that begins with the object's brace.
    pub fn object() -> Self {
        Self {
            state: State::Value,
            ends: Vec::new(),
            is_first: true,
        }
    }

    /// For the arguments in a signature; the opening bracket was read.
    pub fn signature() -> Self {
        Self {
            state: State::Key,
            ends: vec![')'],
            ..Self::object()
        }
    }

    /// Whether it is the arguments of a signature, whose opening brace is to be written before.
    pub fn is_signature(&self) -> bool {
        self.ends.first() == Some(&')')
    }

    /// Whether the structure is lost.
    pub fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    /// A whole value in one go, if it makes sense.
    pub fn whole(text: &str) -> Option<String> {
        let mut relaxed = Self::object();
        let mut json = String::new();
        let (taken, until) = relaxed.push(text, &mut json);
        (until == Until::Done && text[taken..].trim().is_empty()).then_some(json)
    }

    /// Reads `text`, which goes on where the last one was left, and adds what is certain of the JSON to `json`. Gives the
    /// bytes that it took, and why no more; what it did not take is to come again.
    pub fn push(&mut self, text: &str, json: &mut String) -> (usize, Until) {
        let mut at = 0;
        while self.state != State::Done {
            match self.step(&text[at..], json) {
                Step::Took(len) => at += len,
                Step::Mark => return (at, Until::Mark),
                Step::Short => return (at, Until::Short),
            }
        }
        (at, Until::Done)
    }

    /// Takes a `<` that is no markup.
    pub fn push_mark(&mut self, json: &mut String) {
        self.state = State::Lost;
        json.push('<');
    }

    /// Ends the text, of which `rest` was not taken. Brackets are closed; a string is not, for nobody knows what else was
    /// in it.
    pub fn finish(&mut self, rest: &str, json: &mut String) {
        let rest = rest.trim();
        match self.state {
            State::Done => return,
            State::Text { .. } | State::Lost => return,
            State::Value | State::Key if !rest.is_empty() => self.word(rest, json),
            _ => {}
        }
        match self.state {
            State::Colon => json.push_str(":null"),
            State::Value if self.ends.last() != Some(&']') => json.push_str("null"),
            _ => {}
        }
        while let Some(end) = self.ends.pop() {
            json.push(if end == ')' { '}' } else { end });
        }
        self.state = State::Done;
    }

    fn step(&mut self, text: &str, json: &mut String) -> Step {
        if text.is_empty() {
            return Step::Short;
        }
        match self.state {
            State::Text { quote, is_key } => self.text(text, quote, is_key, json),
            State::Lost => match text.find('<') {
                Some(0) => Step::Mark,
                found => {
                    let len = found.unwrap_or(text.len());
                    json.push_str(&text[..len]);
                    Step::Took(len)
                }
            },
            _ => self.token(text, json),
        }
    }

    /// What stands outside of strings.
    fn token(&mut self, text: &str, json: &mut String) -> Step {
        let first = text.chars().next().unwrap_or_default();
        if first.is_whitespace() {
            return Step::Took(first.len_utf8());
        }
        if first == '<' && text.starts_with(TOKEN_QUOTE) {
            return Step::Took(self.quote(TOKEN_QUOTE, json));
        }
        if first == '<' {
            let may_be_quote = TOKEN_QUOTE.starts_with(text);
            return if may_be_quote {
                Step::Short
            } else {
                Step::Mark
            };
        }
        let len = match (first, &self.state) {
            ('"', State::Value | State::Key) => self.quote("\"", json),
            ('\'', State::Value | State::Key) => self.quote("'", json),
            ('{', State::Value) => self.open('}', json),
            ('[', State::Value) => self.open(']', json),
            ('}' | ']' | ')', State::Value | State::Key | State::Next) => self.close(first, json),
            (':' | '=', State::Colon) => {
                json.push(':');
                self.state = State::Value;
                1
            }
            (',', State::Next) => {
                self.state = match self.ends.last() {
                    Some(']') => State::Value,
                    _ => State::Key,
                };
                1
            }
            // A comma too many.
            (',', State::Key) => 1,
            (',', State::Value) if self.ends.last() == Some(&']') => 1,
            (_, State::Value | State::Key) if !",:=({".contains(first) => {
                return self.bare(text, json);
            }
            _ => self.lose(),
        };
        Step::Took(len)
    }

    /// A word without quotes, which ends before what cannot be part of it.
    fn bare(&mut self, text: &str, json: &mut String) -> Step {
        let is_key = self.state == State::Key;
        let ends = |c: char| match c {
            ':' | '=' => is_key,
            ',' | '}' | ']' | ')' | '\n' | '<' => true,
            _ => false,
        };
        let Some(len) = text.find(ends) else {
            return Step::Short;
        };
        self.word(text[..len].trim_end(), json);
        Step::Took(len)
    }

    fn word(&mut self, word: &str, json: &mut String) {
        let is_key = self.state == State::Key;
        self.comma(json);
        let text = match word {
            _ if is_key => format!("\"{}\"", escaped(word)),
            "true" | "True" => "true".to_owned(),
            "false" | "False" => "false".to_owned(),
            "null" | "None" => "null".to_owned(),
            number if is_number(number) => number.to_owned(),
            other => format!("\"{}\"", escaped(other)),
        };
        json.push_str(&text);
        self.written(is_key);
    }

    fn quote(&mut self, quote: &'static str, json: &mut String) -> usize {
        let is_key = self.state == State::Key;
        if !matches!(self.state, State::Key | State::Value) {
            return self.lose();
        }
        self.comma(json);
        json.push('"');
        self.state = State::Text { quote, is_key };
        quote.len()
    }

    /// Inside a string: up to its end, or as far as the text goes.
    fn text(&mut self, text: &str, quote: &'static str, is_key: bool, json: &mut String) -> Step {
        if text.starts_with(quote) {
            json.push('"');
            self.written(is_key);
            return Step::Took(quote.len());
        }
        if quote == TOKEN_QUOTE && quote.starts_with(text) {
            return Step::Short;
        }
        if quote != TOKEN_QUOTE && text.starts_with('\\') {
            return escape(text, json);
        }
        // The first character is none of these, or is one that means nothing here.
        let specials = if quote == TOKEN_QUOTE { "<" } else { "\\'\"" };
        let first = first_len(text);
        let len = text[first..].find(|c| specials.contains(c));
        let len = len.map_or(text.len(), |at| first + at);
        json.push_str(&escaped(&text[..len]));
        Step::Took(len)
    }

    fn open(&mut self, end: char, json: &mut String) -> usize {
        if self.ends.len() == MAX_DEPTH {
            return self.lose();
        }
        self.comma(json);
        json.push(if end == '}' { '{' } else { '[' });
        self.state = if end == '}' { State::Key } else { State::Value };
        self.ends.push(end);
        self.is_first = true;
        1
    }

    /// An end; those that are missing before it are written as well.
    fn close(&mut self, end: char, json: &mut String) -> usize {
        if !self.ends.contains(&end) {
            return self.lose();
        }
        if self.state == State::Value && self.ends.last() != Some(&']') {
            json.push_str("null");
        }
        while let Some(missing) = self.ends.pop() {
            json.push(if missing == ')' { '}' } else { missing });
            if missing == end {
                break;
            }
        }
        self.written(false);
        1
    }

    /// Separates a member from the one before it.
    fn comma(&mut self, json: &mut String) {
        let is_value_of_key = self.state == State::Value && self.ends.last() != Some(&']');
        if !self.is_first && !is_value_of_key {
            json.push(',');
        }
        if !is_value_of_key {
            self.is_first = false;
        }
    }

    /// A key or a value is there.
    fn written(&mut self, is_key: bool) {
        self.is_first = false;
        self.state = match (is_key, self.ends.is_empty()) {
            (true, _) => State::Colon,
            (false, true) => State::Done,
            (false, false) => State::Next,
        };
    }

    fn lose(&mut self) -> usize {
        // What follows is not read, and begins with what did not fit: the state gives it on.
        self.state = State::Lost;
        0
    }
}

fn first_len(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

/// An escape as JSON has it; one that JSON does not have is a backslash.
fn escape(text: &str, json: &mut String) -> Step {
    let Some(next) = text[1..].chars().next() else {
        return Step::Short;
    };
    match next {
        '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => {
            json.push_str(&text[..2]);
            Step::Took(2)
        }
        'u' => {
            let digits: Vec<char> = text[2..].chars().take(4).collect();
            if !digits.iter().all(char::is_ascii_hexdigit) {
                json.push_str("\\\\u");
                return Step::Took(2);
            }
            if digits.len() < 4 {
                return Step::Short;
            }
            json.push_str(&text[..6]);
            Step::Took(6)
        }
        '\'' => {
            json.push('\'');
            Step::Took(2)
        }
        _ => {
            json.push_str("\\\\");
            Step::Took(1)
        }
    }
}

#[cfg(test)]
mod tests;
