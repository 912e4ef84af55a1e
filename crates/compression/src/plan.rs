//! Which bodies are cut now, which later, and which never.

use std::ops::Range;

use serde_json::Value;

use crate::bodies::Body;
use crate::question;
use crate::spans::inside;

/// What may be cut is left as it is where it has fewer tokens: it would not be worth the time.
pub const MIN_CUT_TOKENS: usize = 512;

/// What decides when a message of a conversation is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// So many last messages are never cut.
    pub hot_window: usize,
    /// Messages of fewer tokens are not cut by themselves.
    pub message_tokens: usize,
}

/// What may be cut of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Nobody has answered yet: the bodies are weighed together, by what the prompt's end asks. Else each one by itself, so
    /// that what is left of it stays the same from turn to turn.
    pub is_opening: bool,
    /// In the order of the prompt.
    pub parts: Vec<Part>,
}

/// A body that may be cut, now or later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The message and its place.
    pub body: Body,
    /// The bytes of it that may go.
    pub cut: Range<usize>,
    /// It stands before the first answer.
    pub in_opening: bool,
    /// Long enough to be cut by itself.
    pub is_long: bool,
    /// Its time has come.
    pub is_due: bool,
}

impl Plan {
    /// Tokens that may go now.
    #[must_use]
    pub fn due_tokens(&self, ends: &[usize]) -> usize {
        let due = self.parts.iter().filter(|part| part.is_due);
        due.map(|part| inside(ends, &part.cut).len()).sum()
    }
}

/// What may be cut of `prompt`, whose tokens end at `ends` and which has `bodies` of `messages`.
///
/// Never: system text (it has no body), the first and last paragraph of what a user says, the last `hot_window` messages,
/// and the last round of tools with all its results.
#[must_use]
pub fn plan(
    messages: &[Value],
    bodies: Vec<Body>,
    prompt: &str,
    ends: &[usize],
    rules: Rules,
) -> Plan {
    let role = |index: usize| messages[index]["role"].as_str().unwrap_or_default();
    let opening = opening(messages);
    let is_opening = opening == messages.len();
    let hot = messages.len().saturating_sub(rules.hot_window);
    let round = last_round(messages);
    let part = |body: Body| {
        let cut = match role(body.message) {
            "user" => question::middle(prompt, &body.bytes, ends),
            _ => body.bytes.clone(),
        };
        let in_opening = body.message < opening;
        let is_long = inside(ends, &body.bytes).len() >= rules.message_tokens;
        let is_due = is_opening || is_long && body.message < hot && !round.contains(&body.message);
        Part {
            body,
            cut,
            in_opening,
            is_long,
            is_due,
        }
    };
    let mut parts: Vec<Part> = bodies.into_iter().map(part).collect();
    parts.retain(|part| !inside(ends, &part.cut).is_empty());
    let mut plan = Plan { is_opening, parts };
    if plan.due_tokens(ends) < MIN_CUT_TOKENS {
        for part in &mut plan.parts {
            part.is_due = false;
        }
    }
    plan
}

/// How many messages come before the first that is an answer, or belongs to one.
pub(crate) fn opening(messages: &[Value]) -> usize {
    let is_answer =
        |message: &Value| matches!(message["role"].as_str(), Some("assistant" | "tool"));
    messages
        .iter()
        .position(is_answer)
        .unwrap_or(messages.len())
}

/// The last assistant's message that calls tools, with the results that follow it.
fn last_round(messages: &[Value]) -> Range<usize> {
    let calls = |message: &Value| {
        message["tool_calls"]
            .as_array()
            .is_some_and(|c| !c.is_empty())
    };
    let Some(start) = messages.iter().rposition(calls) else {
        return 0..0;
    };
    let results = messages[start + 1..].iter();
    let results = results.take_while(|message| message["role"] == "tool");
    start..start + 1 + results.count()
}
