//! The beginning of a call: everything up to where its arguments begin. Until then nothing of it is certain, and all
//! of it may turn out to be text.

use crate::body::json::Relaxed;
use crate::body::params::{Params, Style, unquoted};
use crate::cursor::{Cursor, Read, Stop};
use crate::envelope::{ENVELOPES, Envelope, Form};
use crate::json_head;
use crate::tools::Tools;

/// Bytes of a tool's name at most.
const MAX_NAME: usize = 256;

/// Where in the text a call may begin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// At the beginning of a line.
    pub line_start: bool,
    /// Before all other text.
    pub content_start: bool,
    /// Behind a character that is no part of a word.
    pub word_start: bool,
}

/// A call whose arguments begin.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    /// Place of the tool among all tools.
    pub tool: usize,
    pub body: Body,
    pub tail: Tail,
}

/// How the arguments are written.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    Params(Box<Params>),
    Json(Relaxed),
    /// They are known.
    Given(String),
}

/// What may follow the arguments and is part of the call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail {
    /// Braces of objects around the arguments.
    pub braces: usize,
    /// What ends the call's tag and element, where the arguments do not read it themselves.
    pub ends: &'static [&'static str],
    pub envelope: Option<&'static Envelope>,
    /// Whether calls are members of a list.
    pub in_list: bool,
}

/// Whether JSON counts as a call without any markup around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BareJson {
    Allowed,
    Refused,
}

/// Reads the beginning of a call that stands at the cursor.
pub(crate) fn head<'t>(
    tools: &Tools,
    place: Place,
    bare_json: BareJson,
    cursor: &mut Cursor<'t>,
) -> Read<Start> {
    match cursor.peek()? {
        '<' => cursor.first_of(&[
            &|c: &mut Cursor<'t>| enveloped(tools, c),
            &|c| function(tools, None, c),
            &|c| invoke(tools, None, c),
            &|c| parameter_of_name(tools, c),
            &|c| element(tools, c),
        ]),
        '{' if place.line_start && bare_json == BareJson::Allowed => {
            json_head::object(tools, Tail::default(), cursor)
        }
        '[' if place.content_start && bare_json == BareJson::Allowed => {
            cursor.skip(1);
            cursor.white_space();
            let in_list = Tail {
                in_list: true,
                ..Tail::default()
            };
            json_head::object(tools, in_list, cursor)
        }
        first => {
            if first == 'c' && place.word_start {
                let before = *cursor;
                match verb(tools, None, cursor) {
                    Err(Stop::No) => *cursor = before,
                    other => return other,
                }
            }
            if place.line_start {
                return bare_arg_keys(tools, cursor);
            }
            Err(Stop::No)
        }
    }
}

/// Reads the beginning of a further call inside an envelope.
pub(crate) fn next_head(
    tools: &Tools,
    envelope: &'static Envelope,
    cursor: &mut Cursor<'_>,
) -> Read<Start> {
    cursor.white_space();
    for &form in envelope.forms {
        let mut branch = *cursor;
        match inner(tools, envelope, form, &mut branch) {
            Err(Stop::No) => {}
            Err(Stop::More) => return Err(Stop::More),
            Ok(start) => {
                *cursor = branch;
                return Ok(start);
            }
        }
    }
    Err(Stop::No)
}

fn enveloped(tools: &Tools, cursor: &mut Cursor<'_>) -> Read<Start> {
    let mut stop = Stop::No;
    for envelope in &ENVELOPES {
        let mut branch = *cursor;
        match branch.literal(envelope.open) {
            Ok(()) => {
                *cursor = branch;
                return next_head(tools, envelope, cursor);
            }
            Err(Stop::More) => stop = Stop::More,
            Err(Stop::No) => {}
        }
    }
    Err(stop)
}

fn inner(
    tools: &Tools,
    envelope: &'static Envelope,
    form: Form,
    cursor: &mut Cursor<'_>,
) -> Read<Start> {
    match form {
        Form::Json => json_head::enveloped(tools, envelope, cursor),
        Form::Function => function(tools, Some(envelope), cursor),
        Form::Invoke => invoke(tools, Some(envelope), cursor),
        Form::ArgKeys => arg_keys(tools, envelope, cursor),
        Form::Signature => signature(tools, envelope, cursor),
        Form::Verb => verb(tools, Some(envelope), cursor),
    }
}

/// `<function=NAME>`, `<function NAME>`, `<function name="NAME">`, `<funcname>NAME`, and `<function=NAME(key="value")>`.
fn function(
    tools: &Tools,
    envelope: Option<&'static Envelope>,
    cursor: &mut Cursor<'_>,
) -> Read<Start> {
    cursor.literal("<func")?;
    let name = if cursor.peek()? == 'n' {
        cursor.literal("name>")?;
        cursor.white_space();
        cursor.while_some(|c| !c.is_whitespace() && c != '<', MAX_NAME)?
    } else {
        cursor.literal("tion")?;
        match cursor.peek()? {
            '=' | ' ' => cursor.skip(1),
            _ => return Err(Stop::No),
        }
        let name = cursor.while_some(|c| !['>', '(', '<', '\n'].contains(&c), MAX_NAME)?;
        if cursor.peek()? == '(' {
            cursor.skip(1);
            return Ok(Start {
                tool: tools.place(name.trim()).ok_or(Stop::No)?,
                body: Body::Json(Relaxed::signature()),
                tail: Tail {
                    ends: &[">", "</function>"],
                    envelope,
                    ..Tail::default()
                },
            });
        }
        cursor.literal(">")?;
        name.trim().strip_prefix("name=").unwrap_or(name)
    };
    let tool = tools.place(unquoted(name)).ok_or(Stop::No)?;
    in_element(
        tools,
        tool,
        Style::Parameter,
        "</function>",
        envelope,
        cursor,
    )
}

/// `<invoke name="NAME">`
fn invoke(
    tools: &Tools,
    envelope: Option<&'static Envelope>,
    cursor: &mut Cursor<'_>,
) -> Read<Start> {
    cursor.literal("<")?;
    let is_barred = cursor.peek()? == '｜';
    if is_barred {
        cursor.literal(crate::envelope::DSML)?;
    }
    cursor.literal("invoke name=")?;
    let name = unquoted(cursor.until(&['>'], MAX_NAME)?);
    let tool = tools.place(name).ok_or(Stop::No)?;
    let end = if is_barred {
        "</｜DSML｜invoke>"
    } else {
        "</invoke>"
    };
    in_element(tools, tool, Style::Parameter, end, envelope, cursor)
}

/// `<parameter name="NAME">` with parameters inside, where a model takes the wrong word for the function.
fn parameter_of_name(tools: &Tools, cursor: &mut Cursor<'_>) -> Read<Start> {
    cursor.literal("<parameter name=")?;
    let name = unquoted(cursor.until(&['>'], MAX_NAME)?);
    let tool = tools.place(name).ok_or(Stop::No)?;
    in_element(tools, tool, Style::Parameter, "</function>", None, cursor)
}

/// `<NAME>`
fn element(tools: &Tools, cursor: &mut Cursor<'_>) -> Read<Start> {
    cursor.literal("<")?;
    let mut stop = Stop::No;
    for (tool, declared) in tools.list().iter().enumerate() {
        let mut branch = *cursor;
        match branch.literal(&format!("{}>", declared.name)) {
            Ok(()) => {
                *cursor = branch;
                let end = format!("</{}>", declared.name);
                return in_element(tools, tool, Style::Key, &end, None, cursor);
            }
            Err(Stop::More) => stop = Stop::More,
            Err(Stop::No) => {}
        }
    }
    Err(stop)
}

/// Behind the tag that names the tool: an argument, an object of arguments, or the end.
fn in_element(
    tools: &Tools,
    tool: usize,
    style: Style,
    end: &str,
    envelope: Option<&'static Envelope>,
    cursor: &mut Cursor<'_>,
) -> Read<Start> {
    let mut ahead = *cursor;
    ahead.white_space();
    if ahead.peek() == Ok('{') {
        cursor.skip(ahead.at() - cursor.at());
        json_head::begins_object(&mut ahead)?;
        return Ok(Start {
            tool,
            body: Body::Json(Relaxed::object()),
            tail: Tail {
                ends: match end {
                    "</function>" => &["</function>"],
                    "</invoke>" => &["</invoke>"],
                    _ => &[],
                },
                envelope,
                ..Tail::default()
            },
        });
    }
    let params = Params::new(style, end.to_owned(), envelope);
    params.begins(&tools.list()[tool], &mut ahead)?;
    Ok(Start {
        tool,
        body: Body::Params(Box::new(params)),
        tail: Tail {
            envelope,
            ..Tail::default()
        },
    })
}

/// `NAME`, then its first key or the envelope's end.
fn arg_keys(tools: &Tools, envelope: &'static Envelope, cursor: &mut Cursor<'_>) -> Read<Start> {
    let name = cursor.while_some(|c| !c.is_whitespace() && c != '<', MAX_NAME)?;
    let tool = tools.place(name).ok_or(Stop::No)?;
    let params = Params::new(Style::ArgKey, envelope.close.to_owned(), Some(envelope));
    let mut ahead = *cursor;
    params.begins(&tools.list()[tool], &mut ahead)?;
    Ok(Start {
        tool,
        body: Body::Params(Box::new(params)),
        tail: Tail::default(),
    })
}

/// The same without an envelope: the first key has to be there.
fn bare_arg_keys(tools: &Tools, cursor: &mut Cursor<'_>) -> Read<Start> {
    let mut stop = Stop::No;
    for (tool, declared) in tools.list().iter().enumerate() {
        let mut branch = *cursor;
        let read = branch.literal(&declared.name).and_then(|()| {
            let mut ahead = branch;
            ahead.white_space();
            ahead.literal("<arg_key>")
        });
        match read {
            Ok(()) => {
                *cursor = branch;
                let end = "</tool_call>".to_owned();
                return Ok(Start {
                    tool,
                    body: Body::Params(Box::new(Params::new(Style::ArgKey, end, None))),
                    tail: Tail::default(),
                });
            }
            Err(Stop::More) => stop = Stop::More,
            Err(Stop::No) => {}
        }
    }
    Err(stop)
}

/// `NAME(key="value", ...)`
fn signature(tools: &Tools, envelope: &'static Envelope, cursor: &mut Cursor<'_>) -> Read<Start> {
    let name = cursor.while_some(|c| !c.is_whitespace() && !"<({".contains(c), MAX_NAME)?;
    cursor.literal("(")?;
    Ok(Start {
        tool: tools.place(name).ok_or(Stop::No)?,
        body: Body::Json(Relaxed::signature()),
        tail: Tail {
            envelope: Some(envelope),
            ..Tail::default()
        },
    })
}

/// `call:NAMESPACE:NAME{`
fn verb(
    tools: &Tools,
    envelope: Option<&'static Envelope>,
    cursor: &mut Cursor<'_>,
) -> Read<Start> {
    cursor.literal("call:")?;
    let path = cursor.while_some(|c| c.is_alphanumeric() || "_.:-".contains(c), MAX_NAME)?;
    cursor.white_space();
    if cursor.peek()? != '{' {
        return Err(Stop::No);
    }
    Ok(Start {
        tool: tools.place_of_path(path).ok_or(Stop::No)?,
        body: Body::Json(Relaxed::object()),
        tail: Tail {
            envelope,
            ..Tail::default()
        },
    })
}
