//! Where the bodies of messages stand in a rendered prompt.
//!
//! A text may occur in a prompt more than once, so that looking for it says little. The template itself is asked: it
//! renders the conversation with a mark in the place of each body, and what stands around the marks is laid over the prompt.

use std::ops::Range;

use serde_json::Value;

/// Shorter contents are not looked for, in bytes.
const MIN_BYTES: usize = 128;
/// No letter: templates have no reason to treat it as anything but text.
const MARK: char = '\u{e000}';
/// Marks of that many characters occur in no honest prompt.
const MAX_MARK: usize = 8;
/// Times that the template is asked, at most: once, twice for each role that it treats in its own way, and once more for
/// what it does not show.
const MAX_RENDERS: usize = 8;

/// The body of a message in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    /// Index of the message.
    pub message: usize,
    /// Its place in the prompt, in bytes: the content, or what the template leaves of it when it trims white space.
    pub bytes: Range<usize>,
}

/// The bodies of users, assistants and tools that `prompt` has verbatim, in order. `render` is what made `prompt` of
/// `messages`. A body that the template shows twice, changes or reads is not among them.
pub fn find<E>(
    messages: &[Value],
    prompt: &str,
    render: impl Fn(Vec<Value>) -> Result<String, E>,
) -> Vec<Body> {
    let mut fence = MARK.to_string();
    while prompt.contains(&fence) {
        fence.push(MARK);
        if fence.chars().count() > MAX_MARK {
            return Vec::new();
        }
    }
    let mut wanted: Vec<usize> = (0..messages.len())
        .filter(|&index| content(&messages[index]).is_some())
        .collect();
    let mut strange_before: Vec<usize> = Vec::new();
    for _ in 0..MAX_RENDERS {
        let marks: Vec<String> = wanted
            .iter()
            .map(|index| format!("{fence}{index}{fence}"))
            .collect();
        let mut marked = messages.to_vec();
        for (&index, mark) in wanted.iter().zip(&marks) {
            marked[index]["content"] = mark.as_str().into();
        }
        let Ok(around) = render(marked) else {
            return Vec::new();
        };
        match lay_over(messages, &wanted, &marks, &around, prompt) {
            Ok(bodies) => return bodies,
            Err(strange) => {
                // Where the second of a role is strange, so are the others, as a rule.
                let role = |index: usize| &messages[index]["role"];
                let is_again = |index: usize| {
                    let both = |before: &usize| role(*before) == role(index);
                    strange.iter().any(both) && strange_before.iter().any(both)
                };
                wanted.retain(|&index| !strange.contains(&index) && !is_again(index));
                strange_before.extend(strange);
            }
        }
    }
    Vec::new()
}

/// A content that may be cut.
fn content(message: &Value) -> Option<&str> {
    let role = message["role"].as_str()?;
    let is_cut = matches!(role, "user" | "assistant" | "tool");
    let content = message["content"].as_str()?;
    (is_cut && content.len() >= MIN_BYTES).then_some(content)
}

/// Finds in `prompt` what stands around the marks, with bodies between. `Err` has the messages that do not stand there as
/// they should.
fn lay_over(
    messages: &[Value],
    wanted: &[usize],
    marks: &[String],
    around: &str,
    prompt: &str,
) -> Result<Vec<Body>, Vec<usize>> {
    let once = |mark: &String| around.matches(mark.as_str()).count() == 1;
    let mut strange: Vec<usize> = wanted
        .iter()
        .zip(marks)
        .filter(|(_, mark)| !once(mark))
        .map(|(&index, _)| index)
        .collect();
    let mut pieces = Vec::with_capacity(marks.len() + 1);
    let mut rest = around;
    for (&index, mark) in wanted.iter().zip(marks) {
        match rest.split_once(mark.as_str()) {
            Some((piece, after)) => {
                pieces.push(piece);
                rest = after;
            }
            // Missing, or before another that it should follow.
            None => strange.push(index),
        }
    }
    if !strange.is_empty() {
        return Err(strange);
    }
    pieces.push(rest);
    let Some(mut left) = prompt.strip_prefix(pieces[0]) else {
        // A body has a say in what comes before it.
        return Err(wanted.to_vec());
    };
    let mut bodies = Vec::with_capacity(wanted.len());
    for (place, &message) in wanted.iter().enumerate() {
        let next = pieces[place + 1];
        let is_last = place + 1 == wanted.len();
        let body = content(&messages[message]).and_then(|content| {
            let forms = [
                content,
                content.trim(),
                content.trim_end(),
                content.trim_start(),
            ];
            forms.into_iter().find(|form| {
                let after = left.strip_prefix(form);
                after.is_some_and(|after| {
                    if is_last {
                        after == next
                    } else {
                        after.starts_with(next)
                    }
                })
            })
        });
        let Some(body) = body else {
            return Err(vec![message]);
        };
        let start = prompt.len() - left.len();
        let bytes = start..start + body.len();
        left = &left[body.len() + next.len()..];
        bodies.push(Body { message, bytes });
    }
    Ok(bodies)
}
