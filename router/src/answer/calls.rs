//! Tool calls of one answer.

use std::sync::Arc;

use tool_calls::{CallEvent, CallParser, Ending, Tools};

use crate::answer::{CallDelta, CallStart};
use crate::random;

/// What calls begin with that a model makes in its thoughts.
const MARKS: [&str; 3] = ["<tool_call>", "<function=", "<|tool_call>"];

/// How calls are found.
#[derive(Debug, Clone)]
pub(crate) struct CallPlan {
    pub tools: Arc<Tools>,
    /// Whether JSON with no markup around it may be a call.
    pub bare_json: bool,
    /// Whether an answer may hold several.
    pub is_parallel: bool,
}

impl CallPlan {
    fn parser(&self) -> CallParser {
        CallParser::new(Arc::clone(&self.tools), self.bare_json, !self.is_parallel)
    }
}

/// What the content of an answer turns out to be.
#[derive(Debug)]
pub(super) enum Found {
    Text(String),
    Call(CallDelta),
}

/// Finds the calls of one answer.
#[derive(Debug)]
pub(super) struct CallReader {
    parser: CallParser,
    thoughts: Thoughts,
    /// Calls that have begun.
    count: usize,
}

impl CallReader {
    pub fn new(plan: &CallPlan) -> Self {
        Self {
            parser: plan.parser(),
            thoughts: Thoughts {
                plan: plan.clone(),
                held: String::new(),
                trial: None,
            },
            count: 0,
        }
    }

    /// Takes more of the content.
    pub fn push(&mut self, text: &str) -> Vec<Found> {
        let events = self.parser.push(text);
        self.found(events)
    }

    /// Ends the content.
    pub fn finish(&mut self, ending: Ending) -> Vec<Found> {
        let events = self.parser.finish(ending);
        self.found(events)
    }

    /// Takes more of the thoughts and gives what of them is certain. Calls in thoughts are not made, unless nothing else
    /// comes: then the model forgot to end its thoughts.
    pub fn think(&mut self, text: &str, is_over: bool) -> String {
        self.thoughts.push(text, is_over)
    }

    /// The thoughts are the end of the answer: a call at their end, or the rest of them.
    pub fn forgotten(&mut self, ending: Ending) -> Result<Vec<Found>, String> {
        let held = std::mem::take(&mut self.thoughts.held);
        let has_call = self
            .thoughts
            .trial
            .take()
            .is_some_and(|trial| trial.has_call);
        if !has_call || ending == Ending::Cut {
            return Err(held);
        }
        let mut found = self.push(&held);
        found.extend(self.finish(ending));
        Ok(found)
    }

    /// Whether the one call that there may be is complete.
    pub fn is_over(&self) -> bool {
        self.parser.is_over()
    }

    fn found(&mut self, events: Vec<CallEvent>) -> Vec<Found> {
        let mut found = Vec::new();
        for event in events {
            let (start, arguments) = match event {
                CallEvent::Text(text) => {
                    found.push(Found::Text(text));
                    continue;
                }
                CallEvent::Start(name) => {
                    self.count += 1;
                    let id = random::name("call_");
                    (Some(CallStart { id, name }), String::new())
                }
                CallEvent::Arguments(json) => (None, json),
            };
            found.push(Found::Call(CallDelta {
                index: self.count - 1,
                start,
                arguments,
            }));
        }
        found
    }
}

/// Thoughts in which a call may be the last thing.
#[derive(Debug)]
struct Thoughts {
    plan: CallPlan,
    /// What begins with a mark, or with a part of one.
    held: String,
    /// Reads what is held, once it begins with a mark.
    trial: Option<Trial>,
}

#[derive(Debug)]
struct Trial {
    parser: CallParser,
    has_call: bool,
}

impl Thoughts {
    fn push(&mut self, text: &str, is_over: bool) -> String {
        self.held.push_str(text);
        if is_over {
            self.trial = None;
            return std::mem::take(&mut self.held);
        }
        let mut shown = String::new();
        let mut fresh = text.to_owned();
        loop {
            if let Some(trial) = &mut self.trial {
                let events = trial.parser.push(&fresh);
                let is_text = matches!(events.first(), Some(CallEvent::Text(_)));
                trial.has_call |= matches!(events.first(), Some(CallEvent::Start(_)));
                if !is_text || trial.has_call {
                    return shown;
                }
                // The mark was none; there may be another behind it.
                self.trial = None;
                let mark = self.held.chars().next().map_or(0, char::len_utf8);
                shown.extend(self.held.drain(..mark));
            }
            let Some(at) = MARKS.iter().filter_map(|mark| self.held.find(mark)).min() else {
                let end = self.held.len() - self.open_mark_len();
                shown.extend(self.held.drain(..end));
                return shown;
            };
            shown.extend(self.held.drain(..at));
            fresh = self.held.clone();
            self.trial = Some(Trial {
                parser: self.plan.parser(),
                has_call: false,
            });
        }
    }

    /// Bytes at the end that may become a mark.
    fn open_mark_len(&self) -> usize {
        let overlap = |mark: &&str| {
            let lens = (1..mark.len()).rev();
            lens.into_iter()
                .find(|&len| self.held.ends_with(&mark[..len]))
        };
        MARKS.iter().filter_map(overlap).max().unwrap_or(0)
    }
}
