//! What is said of an answer in content blocks: pieces in, events out.

use std::time::Duration;

use api_types::{AnthropicBlock, AnthropicDelta, AnthropicEvent};
use serde_json::{Map, Value};

use crate::answer::{CallDelta, Piece};

/// Comes back with the reasoning, and nobody checks it.
const SIGNATURE: &str = "dGFuZGVt";

/// How long clients wait for content, pings or not, is 300 seconds. From here on they are given some that says nothing.
const CONTENT_SILENCE: Duration = Duration::from_secs(120);
/// How often they are.
const CONTENT_INTERVAL: Duration = Duration::from_secs(60);

/// Opens blocks when there is something to put into them, and closes each before the next.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Whether the answer is expected to begin with reasoning.
    thinks: bool,
    /// How many have been opened.
    count: usize,
    open: Option<Kind>,
    /// White space with which no text has come yet. Alone it is no content: clients could not send it back.
    held: String,
    /// The silence at which something that says nothing was last given as content.
    filled: Option<Duration>,
    calls: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    ToolUse,
}

impl Blocks {
    pub fn new(thinks: bool) -> Self {
        Self {
            thinks,
            count: 0,
            open: None,
            held: String::new(),
            filled: None,
            calls: false,
        }
    }

    /// Whether a tool was called.
    pub fn has_calls(&self) -> bool {
        self.calls
    }

    /// Takes what is new.
    pub fn push(&mut self, piece: Piece) -> Vec<AnthropicEvent> {
        let mut events = Vec::new();
        self.filled = None;
        if !piece.reasoning.is_empty() {
            self.enter(Kind::Thinking, &mut events);
            events.push(self.delta(AnthropicDelta::ThinkingDelta {
                thinking: piece.reasoning,
            }));
        }
        if !piece.content.is_empty() {
            self.text(&piece.content, &mut events);
        }
        for call in piece.calls {
            self.call(call, &mut events);
        }
        if piece.finish.is_some() {
            self.close(&mut events);
        }
        events
    }

    /// Takes that nothing has come for `silence`.
    pub fn wait(&mut self, silence: Duration) -> Vec<AnthropicEvent> {
        let mut events = Vec::new();
        let since = self.filled.map(|at| silence.saturating_sub(at));
        if silence < CONTENT_SILENCE || since.is_some_and(|since| since < CONTENT_INTERVAL) {
            return events;
        }
        self.filled = Some(silence);
        if self.open.is_none() {
            let kind = if self.thinks && self.count == 0 {
                Kind::Thinking
            } else {
                Kind::Text
            };
            self.enter(kind, &mut events);
        }
        let nothing = match self.open {
            Some(Kind::Thinking) => AnthropicDelta::ThinkingDelta {
                thinking: String::new(),
            },
            Some(Kind::ToolUse) => AnthropicDelta::InputJsonDelta {
                partial_json: String::new(),
            },
            Some(Kind::Text) | None => AnthropicDelta::TextDelta {
                text: String::new(),
            },
        };
        events.push(self.delta(nothing));
        events
    }

    fn text(&mut self, content: &str, events: &mut Vec<AnthropicEvent>) {
        self.held.push_str(content);
        if self.open != Some(Kind::Text) && self.held.trim().is_empty() {
            return;
        }
        let text = std::mem::take(&mut self.held);
        self.enter(Kind::Text, events);
        events.push(self.delta(AnthropicDelta::TextDelta { text }));
    }

    fn call(&mut self, call: CallDelta, events: &mut Vec<AnthropicEvent>) {
        if let Some(start) = call.start {
            self.close(events);
            self.calls = true;
            let id = match start.id.strip_prefix("call_") {
                Some(rest) => format!("toolu_{rest}"),
                None => start.id,
            };
            let block = AnthropicBlock::ToolUse {
                id,
                name: start.name,
                input: Value::Object(Map::new()),
            };
            self.open(Kind::ToolUse, block, events);
        }
        if !call.arguments.is_empty() {
            events.push(self.delta(AnthropicDelta::InputJsonDelta {
                partial_json: call.arguments,
            }));
        }
    }

    /// Has a block of `kind`, reasoning or text, open.
    fn enter(&mut self, kind: Kind, events: &mut Vec<AnthropicEvent>) {
        if self.open == Some(kind) {
            return;
        }
        self.close(events);
        let block = match kind {
            Kind::Thinking => AnthropicBlock::Thinking {
                thinking: String::new(),
                signature: String::new(),
            },
            _ => AnthropicBlock::Text {
                text: String::new(),
            },
        };
        self.open(kind, block, events);
    }

    fn open(&mut self, kind: Kind, block: AnthropicBlock, events: &mut Vec<AnthropicEvent>) {
        self.held.clear();
        self.open = Some(kind);
        self.count += 1;
        events.push(AnthropicEvent::ContentBlockStart {
            index: self.count - 1,
            content_block: block,
        });
    }

    fn close(&mut self, events: &mut Vec<AnthropicEvent>) {
        let Some(kind) = self.open.take() else {
            return;
        };
        if kind == Kind::Thinking {
            events.push(self.delta(AnthropicDelta::SignatureDelta {
                signature: SIGNATURE.to_owned(),
            }));
        }
        events.push(AnthropicEvent::ContentBlockStop {
            index: self.count - 1,
        });
    }

    fn delta(&self, delta: AnthropicDelta) -> AnthropicEvent {
        AnthropicEvent::ContentBlockDelta {
            index: self.count - 1,
            delta,
        }
    }
}

/// The content that events come to.
#[derive(Debug, Default)]
pub(super) struct Content {
    blocks: Vec<AnthropicBlock>,
    /// The arguments of the call that is open.
    json: String,
}

impl Content {
    pub fn take(&mut self, event: AnthropicEvent) {
        match event {
            AnthropicEvent::ContentBlockStart { content_block, .. } => {
                self.json.clear();
                self.blocks.push(content_block);
            }
            AnthropicEvent::ContentBlockDelta { delta, .. } => self.grow(delta),
            AnthropicEvent::ContentBlockStop { .. } => self.end(),
            _ => {}
        }
    }

    pub fn into_blocks(self) -> Vec<AnthropicBlock> {
        self.blocks
    }

    fn grow(&mut self, delta: AnthropicDelta) {
        match (delta, self.blocks.last_mut()) {
            (
                AnthropicDelta::ThinkingDelta { thinking: more },
                Some(AnthropicBlock::Thinking { thinking, .. }),
            ) => thinking.push_str(&more),
            (
                AnthropicDelta::SignatureDelta { signature: whole },
                Some(AnthropicBlock::Thinking { signature, .. }),
            ) => *signature = whole,
            (AnthropicDelta::TextDelta { text: more }, Some(AnthropicBlock::Text { text })) => {
                text.push_str(&more);
            }
            (AnthropicDelta::InputJsonDelta { partial_json }, _) => {
                self.json.push_str(&partial_json);
            }
            _ => {}
        }
    }

    /// Where an answer was cut off within the arguments, they stay an empty object.
    fn end(&mut self) {
        if let Some(AnthropicBlock::ToolUse { input, .. }) = self.blocks.last_mut()
            && let Ok(whole @ Value::Object(_)) = serde_json::from_str(&self.json)
        {
            *input = whole;
        }
    }
}

#[cfg(test)]
mod tests;
