//! The text of an answer, split into what is said and what is called.

use std::sync::Arc;

use crate::body::json::{Relaxed, Until};
use crate::body::params::Progress;
use crate::cursor::{Cursor, Read, Stop};
use crate::envelope::Envelope;
use crate::head::{BareJson, Body, Start, Tail, head, next_head};
use crate::json_head;
use crate::parser::place::Tracker;
use crate::parser::tail::{read_object, read_tail};
use crate::tools::Tools;

mod place;
mod tail;

/// Bytes of a call's beginning at most, with arguments that come before the name.
const MAX_HEAD: usize = 1 << 20;
/// A beginning above this length is not looked at again for each piece of text that comes.
const LONG_HEAD: usize = 4096;

/// What is new of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallEvent {
    /// Something is said.
    Text(String),
    /// A call of the tool of this name begins; the one before is complete.
    Start(String),
    /// More of the arguments of the call that began last: JSON text.
    Arguments(String),
}

/// Why an answer's text is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The model has ended it.
    Complete,
    /// It was cut off. A call that it broke is left as it is.
    Cut,
}

/// Finds the calls in a text that arrives in chunks. The result does not depend on the chunking; only what may still
/// become a call, and white space next to one, is held back.
#[derive(Debug, Clone)]
pub struct CallParser {
    tools: Arc<Tools>,
    bare_json: BareJson,
    /// Whether the first call ends the answer.
    is_single: bool,
    state: State,
    held: String,
    /// Length of `held` below which there is no point in looking again.
    wait_len: usize,
    tracker: Tracker,
    has_text: bool,
    has_calls: bool,
    /// Whether nothing but white space came since the last call.
    is_behind_call: bool,
    /// Whether the answer turned out not to be the arguments of the only tool.
    is_not_whole: bool,
}

#[derive(Debug, Clone)]
enum State {
    Text,
    /// The answer may be an object that is the only tool's arguments and nothing else.
    Whole {
        object: Relaxed,
        /// Bytes of it that were read.
        read: usize,
    },
    Inside(Box<Start>),
    /// Behind a call's arguments.
    Behind(Tail),
    /// Behind a call inside of an envelope.
    Enveloped(&'static Envelope),
    /// Nothing more is wanted.
    Over,
}

impl CallParser {
    /// A parser for calls of `tools`. `bare_json`: whether JSON with no markup around it may be a call, which it is not where
    /// JSON was asked for. `is_single`: whether one call is all there may be.
    #[must_use]
    pub fn new(tools: Arc<Tools>, bare_json: bool, is_single: bool) -> Self {
        Self {
            tools,
            bare_json: if bare_json {
                BareJson::Allowed
            } else {
                BareJson::Refused
            },
            is_single,
            state: State::Text,
            held: String::new(),
            wait_len: 0,
            tracker: Tracker::default(),
            has_text: false,
            has_calls: false,
            is_behind_call: false,
            is_not_whole: false,
        }
    }

    /// Takes `chunk` and gives what is certain by now.
    pub fn push(&mut self, chunk: &str) -> Vec<CallEvent> {
        self.held.push_str(chunk);
        let mut out = Vec::new();
        while self.held.len() >= self.wait_len && self.step(false, &mut out) {}
        out
    }

    /// Ends the text: what was held back.
    pub fn finish(&mut self, ending: Ending) -> Vec<CallEvent> {
        let mut out = Vec::new();
        if ending == Ending::Complete {
            while self.step(true, &mut out) {}
            return out;
        }
        let held = std::mem::take(&mut self.held);
        match &mut self.state {
            State::Text | State::Whole { .. } => {
                // Behind a call only the beginning of another is held back.
                if !self.is_behind_call {
                    self.say(&held, &mut out);
                }
            }
            State::Inside(start) => {
                if let Body::Params(params) = &mut start.body {
                    let mut json = String::new();
                    params.cut(&held, &mut json);
                    give(json, &mut out);
                }
            }
            State::Behind(_) | State::Enveloped(_) | State::Over => {}
        }
        out
    }

    /// Whether the one call that there may be is complete.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Whether the text is inside a call now.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        matches!(self.state, State::Inside(_))
    }

    /// Goes on with the held text; says whether there may be more to do.
    fn step(&mut self, ended: bool, out: &mut Vec<CallEvent>) -> bool {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.text(ended, out),
            State::Whole { object, read } => self.whole(object, read, ended, out),
            State::Inside(start) => self.inside(start, ended, out),
            State::Behind(tail) => self.behind(tail, ended, out),
            State::Enveloped(envelope) => self.enveloped(envelope, ended, out),
            State::Over => {
                self.held.clear();
                self.state = State::Over;
                false
            }
        }
    }

    fn text(&mut self, ended: bool, out: &mut Vec<CallEvent>) -> bool {
        let held = std::mem::take(&mut self.held);
        let mut tracker = self.tracker.clone();
        // What comes behind the last character that is no white space, and how it was there.
        let mut said = (0, self.tracker.clone());
        for (at, c) in held.char_indices() {
            if let Some(place) = tracker.place(c, self.has_text || self.has_calls || said.0 > 0) {
                let mut cursor = Cursor::new(&held[at..], ended);
                let found = head(&self.tools, place, self.bare_json, &mut cursor);
                let found = match found {
                    Err(Stop::No) if place.content_start && c == '{' => {
                        match self.begins_whole(&held[at..], ended) {
                            Ok(()) => {
                                self.held = held;
                                self.state = State::Whole {
                                    object: Relaxed::object(),
                                    read: 0,
                                };
                                return true;
                            }
                            Err(stop) => Err(stop),
                        }
                    }
                    found => found,
                };
                match found {
                    Ok(start) => {
                        self.say(&held[..said.0], out);
                        self.held = held[at + cursor.at()..].to_owned();
                        self.begin(start, out);
                        return true;
                    }
                    Err(Stop::More) if held.len() - at <= MAX_HEAD => {
                        let waiting = held.len() - at;
                        self.say(&held[..said.0], out);
                        self.tracker = said.1;
                        self.held = held[said.0..].to_owned();
                        self.wait_len = match waiting {
                            LONG_HEAD.. => self.held.len() + waiting / 8,
                            _ => 0,
                        };
                        return false;
                    }
                    Err(_) => {}
                }
            }
            tracker.advance(c);
            if !c.is_whitespace() {
                said = (at + c.len_utf8(), tracker.clone());
            }
        }
        // White space at the end is part of the text, unless it only follows a call.
        let is_text = ended && (said.0 > 0 || !self.is_behind_call);
        let end = if is_text { held.len() } else { said.0 };
        self.say(&held[..end], out);
        self.tracker = said.1;
        self.wait_len = 0;
        if !ended {
            self.held = held[end..].to_owned();
        }
        false
    }

    /// Passes `text` on. White space before a call is not part of it, nor is that behind one where there is no text before.
    fn say(&mut self, text: &str, out: &mut Vec<CallEvent>) {
        let text = if self.has_calls && !self.has_text {
            text.trim_start()
        } else {
            text
        };
        if text.is_empty() {
            return;
        }
        self.has_text = true;
        self.is_behind_call = false;
        match out.last_mut() {
            Some(CallEvent::Text(before)) => before.push_str(text),
            _ => out.push(CallEvent::Text(text.to_owned())),
        }
    }

    fn begins_whole(&self, text: &str, ended: bool) -> Read<()> {
        match (self.tools.list(), self.bare_json) {
            ([tool], BareJson::Allowed) if !self.is_not_whole => {
                json_head::begins_arguments(tool, &mut Cursor::new(text, ended))
            }
            _ => Err(Stop::No),
        }
    }

    /// The answer is an object so far, and has begun as arguments do.
    fn whole(
        &mut self,
        mut object: Relaxed,
        mut read: usize,
        ended: bool,
        out: &mut Vec<CallEvent>,
    ) -> bool {
        let (len, until) = object.push(&self.held[read..], &mut String::new());
        read += len;
        let is_whole = match until {
            Until::Done => self.held[read..].trim().is_empty(),
            Until::Mark => false,
            Until::Short => !object.is_lost(),
        };
        if is_whole && !ended {
            self.state = State::Whole { object, read };
            return false;
        }
        let tool = &self.tools.list()[0];
        match json_head::whole_arguments(tool, &self.held).filter(|_| is_whole) {
            Some(arguments) => {
                let start = Start {
                    tool: 0,
                    body: Body::Given(arguments),
                    tail: Tail::default(),
                };
                self.held.clear();
                self.begin(start, out);
            }
            None => self.is_not_whole = true,
        }
        true
    }

    fn begin(&mut self, start: Start, out: &mut Vec<CallEvent>) {
        let name = &self.tools.list()[start.tool].name;
        out.push(CallEvent::Start(name.clone()));
        if let Body::Json(object) = &start.body
            && object.is_signature()
        {
            give("{".to_owned(), out);
        }
        self.has_calls = true;
        self.is_behind_call = true;
        self.wait_len = 0;
        // What follows a call begins a line of its own.
        self.tracker = Tracker::default();
        self.state = State::Inside(Box::new(start));
    }

    fn inside(&mut self, mut start: Box<Start>, ended: bool, out: &mut Vec<CallEvent>) -> bool {
        let mut json = String::new();
        let is_done = match &mut start.body {
            Body::Given(arguments) => {
                json.push_str(arguments);
                true
            }
            Body::Params(params) => {
                let tool = &self.tools.list()[start.tool];
                let (len, progress) = params.push(tool, &self.held, ended, &mut json);
                self.held.drain(..len);
                matches!(progress, Progress::Done)
            }
            Body::Json(object) => {
                let read = read_object(object, &start.tail, &mut self.held, ended, &mut json);
                matches!(read, Progress::Done)
            }
        };
        give(json, out);
        if !is_done {
            self.state = State::Inside(start);
            return false;
        }
        self.state = if self.is_single {
            State::Over
        } else {
            State::Behind(start.tail)
        };
        true
    }

    fn behind(&mut self, tail: Tail, ended: bool, out: &mut Vec<CallEvent>) -> bool {
        let mut cursor = Cursor::new(&self.held, ended);
        let next = match read_tail(&self.tools, &tail, &mut cursor) {
            Err(Stop::More) => {
                self.state = State::Behind(tail);
                return false;
            }
            // Nothing of it is needed.
            Err(Stop::No) => None,
            Ok(next) => next,
        };
        let len = cursor.at();
        self.held.drain(..len);
        match (next, tail.envelope) {
            (Some(start), _) => self.begin(start, out),
            (None, Some(envelope)) => self.state = State::Enveloped(envelope),
            (None, None) => {}
        }
        true
    }

    fn enveloped(
        &mut self,
        envelope: &'static Envelope,
        ended: bool,
        out: &mut Vec<CallEvent>,
    ) -> bool {
        let mut cursor = Cursor::new(&self.held, ended);
        cursor.white_space();
        if ended && envelope.close.starts_with(cursor.rest()) {
            self.held.clear();
            return true;
        }
        let next = match cursor.literal(envelope.close) {
            Ok(()) => Ok(None),
            Err(Stop::More) => Err(Stop::More),
            Err(Stop::No) => next_head(&self.tools, envelope, &mut cursor).map(Some),
        };
        match next {
            Err(Stop::More) => {
                self.state = State::Enveloped(envelope);
                return false;
            }
            Err(Stop::No) => {}
            Ok(next) => {
                let len = cursor.at();
                self.held.drain(..len);
                if let Some(start) = next {
                    self.begin(start, out);
                }
            }
        }
        true
    }
}

fn give(json: String, out: &mut Vec<CallEvent>) {
    match out.last_mut() {
        _ if json.is_empty() => {}
        Some(CallEvent::Arguments(before)) => before.push_str(&json),
        _ => out.push(CallEvent::Arguments(json)),
    }
}
