//! Reads along a text that may still grow. What is decided once does not depend on what follows, so that the result
//! is the same wherever the text was cut.

/// Why reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The text is something else.
    No,
    /// It may be that, if it goes on so.
    More,
}

pub(crate) type Read<T> = Result<T, Stop>;

/// A way to read on.
pub(crate) type Way<'w, 't, T> = &'w dyn Fn(&mut Cursor<'t>) -> Read<T>;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'t> {
    text: &'t str,
    at: usize,
    /// Nothing follows.
    ended: bool,
}

impl<'t> Cursor<'t> {
    pub fn new(text: &'t str, ended: bool) -> Self {
        Self { text, at: 0, ended }
    }

    /// Bytes read.
    pub fn at(&self) -> usize {
        self.at
    }

    pub fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    /// Whether the text is over, which is not known while it may grow.
    pub fn is_at_end(&self) -> Read<bool> {
        match (self.rest().is_empty(), self.ended) {
            (false, _) => Ok(false),
            (true, true) => Ok(true),
            (true, false) => Err(Stop::More),
        }
    }

    /// The next character, not read yet.
    pub fn peek(&self) -> Read<char> {
        self.rest().chars().next().ok_or(self.short())
    }

    /// Reads `len` bytes, which end between characters.
    pub fn skip(&mut self, len: usize) {
        self.at += len;
    }

    pub fn literal(&mut self, literal: &str) -> Read<()> {
        let rest = self.rest();
        if rest.starts_with(literal) {
            self.at += literal.len();
            return Ok(());
        }
        Err(if literal.starts_with(rest) {
            self.short()
        } else {
            Stop::No
        })
    }

    pub fn white_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// The text before the first of `ends`, which is read as well. It has `max` bytes at most and no line break.
    pub fn until(&mut self, ends: &[char], max: usize) -> Read<&'t str> {
        let rest = self.rest();
        let end = rest.find(|c: char| ends.contains(&c) || c == '\n');
        let found = &rest[..end.unwrap_or(rest.len())];
        if found.len() > max {
            return Err(Stop::No);
        }
        match rest[found.len()..].chars().next() {
            None => Err(self.short()),
            Some(c) if ends.contains(&c) => {
                self.at += found.len() + c.len_utf8();
                Ok(found)
            }
            Some(_) => Err(Stop::No),
        }
    }

    /// The text for all characters of which `fits` holds; more may follow where the text may grow.
    pub fn while_some(&mut self, fits: impl Fn(char) -> bool, max: usize) -> Read<&'t str> {
        let rest = self.rest();
        let len = rest.find(|c| !fits(c)).unwrap_or(rest.len());
        if len > max {
            return Err(Stop::No);
        }
        if len == rest.len() && !self.ended {
            return Err(Stop::More);
        }
        self.at += len;
        Ok(&rest[..len])
    }

    /// The first of several ways to read on that fits. A way that may still fit is waited for, so that the choice does
    /// not depend on how much of the text is there.
    pub fn first_of<T>(&mut self, ways: &[Way<'_, 't, T>]) -> Read<T> {
        for way in ways {
            let mut branch = *self;
            match way(&mut branch) {
                Err(Stop::No) => {}
                Err(Stop::More) => return Err(Stop::More),
                Ok(value) => {
                    *self = branch;
                    return Ok(value);
                }
            }
        }
        Err(Stop::No)
    }

    /// What it is to run out of text.
    pub fn short(&self) -> Stop {
        if self.ended { Stop::No } else { Stop::More }
    }
}
