//! Arguments that are written as elements, one for each: `<parameter=KEY>VALUE</parameter>` and its kin.
//!
//! Values are any text, markup included. So an end tag ends a value only where what follows it is markup of the call as
//! well; where a model leaves end tags out, the next argument of the tool's schema or the call's end ends the value.

use serde_json::Value;

use crate::cursor::{Cursor, Read, Stop};
use crate::envelope::{DSML, Envelope};
use crate::tools::Tool;
use crate::value::ValueWriter;

/// Bytes of a key at most.
const MAX_KEY: usize = 256;

/// How the elements are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// `<parameter=KEY>` or `<parameter name="KEY">`, with DeepSeek's special bars or without.
    Parameter,
    /// `<arg_key>KEY</arg_key><arg_value>`
    ArgKey,
    /// `<KEY>` for keys of the tool's schema, or as above.
    Key,
}

/// A call's elements as they grow.
#[derive(Debug, Clone)]
pub(crate) struct Params {
    style: Style,
    /// The tag that ends the call.
    end: String,
    envelope: Option<&'static Envelope>,
    /// The argument that is being read.
    open: Option<Open>,
    keys: Vec<String>,
}

#[derive(Debug, Clone)]
struct Open {
    close: String,
    writer: ValueWriter,
}

/// What a tag is to the call.
enum Mark {
    /// It begins an argument; of what key, and the tag that closes it.
    Key { key: String, close: String },
    /// It ends the call.
    End,
    /// It ends the envelope.
    EnvelopeEnd,
    /// It begins another call.
    NextCall,
}

/// How far reading came.
pub(crate) enum Progress {
    /// The call is complete.
    Done,
    /// More text is needed.
    More,
}

impl Params {
    /// For a call whose beginning was read; `end` is its end tag.
    pub fn new(style: Style, end: String, envelope: Option<&'static Envelope>) -> Self {
        Self {
            style,
            end,
            envelope,
            open: None,
            keys: Vec::new(),
        }
    }

    /// Whether an argument or the call's end stands at the cursor, which is what makes it one.
    pub fn begins(&self, tool: &Tool, cursor: &mut Cursor<'_>) -> Read<()> {
        cursor.white_space();
        if cursor.is_at_end()? {
            return if tool.needs_nothing() {
                Ok(())
            } else {
                Err(Stop::No)
            };
        }
        self.mark(tool, cursor).map(|_| ())
    }

    /// Reads from `text`, which goes on where the last one was left, and adds to `json`. Gives the bytes that it took.
    pub fn push(
        &mut self,
        tool: &Tool,
        text: &str,
        ended: bool,
        json: &mut String,
    ) -> (usize, Progress) {
        let mut at = 0;
        loop {
            let step = match self.open.take() {
                Some(open) => self.value(tool, open, &text[at..], ended, json),
                None => self.between(tool, &text[at..], ended, json),
            };
            match step {
                (len, Some(progress)) => return (at + len, progress),
                (len, None) => at += len,
            }
        }
    }

    /// Ends a call whose text breaks off: what there is of its last value is given, and nothing is closed.
    pub fn cut(&mut self, text: &str, json: &mut String) {
        if let Some(open) = &mut self.open {
            json.push_str(&open.writer.push(text));
            json.push_str(&open.writer.cut());
        }
    }

    /// Outside of values.
    fn between(
        &mut self,
        tool: &Tool,
        text: &str,
        ended: bool,
        json: &mut String,
    ) -> (usize, Option<Progress>) {
        let mut cursor = Cursor::new(text, ended);
        cursor.white_space();
        let before = cursor.at();
        match self.mark(tool, &mut cursor) {
            Err(Stop::More) => (0, Some(Progress::More)),
            Ok(Mark::Key { key, close }) => {
                json.push_str(if self.keys.is_empty() { "{" } else { "," });
                json.push_str(&Value::from(key.as_str()).to_string());
                json.push(':');
                self.open = Some(Open {
                    close,
                    writer: ValueWriter::new(tool.property(&key), &tool.parameters),
                });
                self.keys.push(key);
                (cursor.at(), None)
            }
            Ok(Mark::End) => {
                self.finish(json);
                (cursor.at(), Some(Progress::Done))
            }
            Ok(Mark::EnvelopeEnd | Mark::NextCall) | Err(Stop::No) => {
                self.finish(json);
                (before, Some(Progress::Done))
            }
        }
    }

    fn finish(&self, json: &mut String) {
        json.push_str(if self.keys.is_empty() { "{}" } else { "}" });
    }

    /// Inside a value.
    fn value(
        &mut self,
        tool: &Tool,
        mut open: Open,
        text: &str,
        ended: bool,
        json: &mut String,
    ) -> (usize, Option<Progress>) {
        let mut at = 0;
        while let Some(found) = text[at..].find('<') {
            let tag = at + found;
            match self.ends_value(tool, &open, &text[tag..], ended) {
                Ok(tag_len) => {
                    json.push_str(&open.writer.push(&text[..tag]));
                    json.push_str(&open.writer.finish());
                    return (tag + tag_len, None);
                }
                Err(Stop::No) => at = tag + 1,
                Err(Stop::More) => {
                    json.push_str(&open.writer.push(&text[..tag]));
                    self.open = Some(open);
                    return (tag, Some(Progress::More));
                }
            }
        }
        json.push_str(&open.writer.push(text));
        if ended {
            json.push_str(&open.writer.finish());
            return (text.len(), None);
        }
        self.open = Some(open);
        (text.len(), Some(Progress::More))
    }

    /// Whether the tag that `text` begins with ends the value, and how much of it is to be read.
    fn ends_value(&self, tool: &Tool, open: &Open, text: &str, ended: bool) -> Read<usize> {
        let mut cursor = Cursor::new(text, ended);
        match cursor.literal(&open.close) {
            Ok(()) => {
                let len = cursor.at();
                cursor.white_space();
                if cursor.is_at_end()? {
                    return Ok(len);
                }
                return self.mark(tool, &mut cursor).map(|_| len);
            }
            Err(Stop::More) => return Err(Stop::More),
            Err(Stop::No) => {}
        }
        let mut cursor = Cursor::new(text, ended);
        let mark = self.mark(tool, &mut cursor)?;
        let is_end = match &mark {
            Mark::Key { key, .. } => {
                let is_next = tool.property(key).is_some() && !self.keys.contains(key);
                return if is_next { Ok(0) } else { Err(Stop::No) };
            }
            Mark::NextCall => return Err(Stop::No),
            Mark::End => true,
            Mark::EnvelopeEnd => false,
        };
        // The argument's own end tag was left out, unless all this is part of its value.
        cursor.white_space();
        if cursor.is_at_end()? {
            return Ok(0);
        }
        match self.mark(tool, &mut cursor)? {
            Mark::NextCall => Ok(0),
            Mark::EnvelopeEnd if is_end => Ok(0),
            _ => Err(Stop::No),
        }
    }

    /// The tag at the cursor, if it belongs to the call or ends it.
    fn mark<'t>(&self, tool: &Tool, cursor: &mut Cursor<'t>) -> Read<Mark> {
        cursor.first_of(&[
            &|c: &mut Cursor<'t>| self.key(tool, c),
            &|c| c.literal(&self.end).map(|()| Mark::End),
            &|c| self.envelope_end(c).map(|()| Mark::EnvelopeEnd),
            &|c| self.next_call(c).map(|()| Mark::NextCall),
        ])
    }

    fn key(&self, tool: &Tool, cursor: &mut Cursor<'_>) -> Read<Mark> {
        let (key, close) = match self.style {
            Style::ArgKey => (arg_key(cursor)?, "</arg_value>".to_owned()),
            Style::Parameter => parameter(cursor)?,
            Style::Key => cursor.first_of(&[&|c| parameter(c), &|c| named_key(tool, c)])?,
        };
        Ok(Mark::Key { key, close })
    }

    /// Without an envelope one may be closed all the same.
    fn envelope_end(&self, cursor: &mut Cursor<'_>) -> Read<()> {
        let close = self.envelope.map_or("</tool_call>", |around| around.close);
        cursor.literal(close)
    }

    fn next_call<'t>(&self, cursor: &mut Cursor<'t>) -> Read<()> {
        let open = self.envelope.map_or("<tool_call>", |around| around.open);
        cursor.first_of(&[
            &|c: &mut Cursor<'t>| c.literal(open),
            &|c| c.literal("<tool_call>"),
            &|c| c.literal("<function="),
            &|c| c.literal("<invoke name="),
            &|c| c.literal("<｜DSML｜invoke name="),
        ])
    }
}

/// `<parameter=KEY>` or `<parameter name="KEY" ...>`, and what closes it.
fn parameter(cursor: &mut Cursor<'_>) -> Read<(String, String)> {
    cursor.literal("<")?;
    let bar = if cursor.peek()? == '｜' {
        cursor.literal(DSML)?;
        DSML
    } else {
        ""
    };
    cursor.literal("parameter")?;
    let key = match cursor.peek()? {
        '=' => {
            cursor.skip(1);
            cursor.until(&['>'], MAX_KEY)?
        }
        ' ' => {
            cursor.literal(" name=")?;
            cursor.until(&['>'], MAX_KEY)?
        }
        _ => return Err(Stop::No),
    };
    let key = unquoted(key);
    if key.is_empty() || key.contains('<') {
        return Err(Stop::No);
    }
    Ok((key.to_owned(), format!("</{bar}parameter>")))
}

fn arg_key(cursor: &mut Cursor<'_>) -> Read<String> {
    cursor.literal("<arg_key>")?;
    let key = cursor.until(&['<'], MAX_KEY)?.trim();
    cursor.literal("/arg_key>")?;
    cursor.white_space();
    cursor.literal("<arg_value>")?;
    Ok(key.to_owned())
}

/// `<KEY>` where the tool has such an argument.
fn named_key(tool: &Tool, cursor: &mut Cursor<'_>) -> Read<(String, String)> {
    cursor.literal("<")?;
    let keys = tool.parameters.get("properties").and_then(Value::as_object);
    let mut stop = Stop::No;
    for key in keys.into_iter().flat_map(|keys| keys.keys()) {
        match cursor.literal(&format!("{key}>")) {
            Ok(()) => return Ok((key.clone(), format!("</{key}>"))),
            Err(Stop::More) => stop = Stop::More,
            Err(Stop::No) => {}
        }
    }
    Err(stop)
}

/// A name in quotes with perhaps more attributes behind it, or without quotes.
pub(crate) fn unquoted(name: &str) -> &str {
    let name = name.trim();
    for quote in ['"', '\''] {
        if let Some(inner) = name.strip_prefix(quote) {
            return inner.split(quote).next().unwrap_or(inner).trim();
        }
    }
    name
}
