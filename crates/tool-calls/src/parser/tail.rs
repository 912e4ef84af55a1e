//! Where the arguments of a call end, and the call.

use crate::body::json::{Relaxed, Until};
use crate::body::params::Progress;
use crate::cursor::{Cursor, Read, Stop};
use crate::head::{Start, Tail};
use crate::json_head;
use crate::tools::Tools;

/// Reads arguments up to their end, which markup makes where the object itself has none.
pub(super) fn read_object(
    object: &mut Relaxed,
    tail: &Tail,
    held: &mut String,
    ended: bool,
    json: &mut String,
) -> Progress {
    loop {
        let (len, until) = object.push(held, json);
        held.drain(..len);
        match until {
            Until::Done => return Progress::Done,
            Until::Short if ended => {
                object.finish(held, json);
                held.clear();
                return Progress::Done;
            }
            Until::Short => return Progress::More,
            Until::Mark => {}
        }
        let close = tail.envelope.map_or("</tool_call>", |around| around.close);
        let mut cursor = Cursor::new(held, ended);
        let end = cursor.first_of(&[&|c: &mut Cursor<'_>| c.literal(close), &|c| {
            c.literal(tail.ends.last().unwrap_or(&close))
        }]);
        match end {
            Ok(()) => {
                object.finish("", json);
                return Progress::Done;
            }
            Err(Stop::More) => return Progress::More,
            Err(Stop::No) => {
                object.push_mark(json);
                held.drain(..1);
            }
        }
    }
}

/// What follows the arguments: ends of objects around them, further members, end tags. Behind an object another call
/// may follow.
pub(super) fn read_tail(
    tools: &Tools,
    tail: &Tail,
    cursor: &mut Cursor<'_>,
) -> Read<Option<Start>> {
    let mut braces = tail.braces;
    while braces > 0 {
        let mut branch = *cursor;
        branch.white_space();
        match branch.peek() {
            Ok('}') => {
                branch.skip(1);
                braces -= 1;
            }
            Ok(',') => match json_head::member(&mut branch) {
                Err(Stop::No) => break,
                read => read?,
            },
            Err(Stop::More) => return Err(Stop::More),
            _ => break,
        }
        *cursor = branch;
    }
    for end in tail.ends {
        optional(cursor, |c| c.literal(end))?;
    }
    if tail.braces > 0 || tail.in_list {
        let again = optional(cursor, |c| {
            match c.peek()? {
                ',' | ';' => c.skip(1),
                _ => return Err(Stop::No),
            }
            c.white_space();
            let again = Tail {
                braces: 0,
                ..tail.clone()
            };
            json_head::object(tools, again, c)
        })?;
        if again.is_some() {
            return Ok(again);
        }
        if tail.in_list {
            optional(cursor, |c| c.literal("]"))?;
        }
    }
    if tail.envelope.is_none() {
        // An end without a beginning.
        optional(cursor, |c| c.literal("</tool_call>"))?;
    }
    Ok(None)
}

/// Reads on behind white space, if it fits.
fn optional<'t, T>(
    cursor: &mut Cursor<'t>,
    read: impl Fn(&mut Cursor<'t>) -> Read<T>,
) -> Read<Option<T>> {
    let mut branch = *cursor;
    branch.white_space();
    match read(&mut branch) {
        Ok(found) => {
            *cursor = branch;
            Ok(Some(found))
        }
        Err(Stop::No) => Ok(None),
        Err(Stop::More) => Err(Stop::More),
    }
}
