//! An item of an answer while it grows, and the events that tell of it.

use api_types::{
    ChatLogprob, ContentPart, ItemStatus, OutputItem, REASONING_MARK, ResponseEventKind as Kind,
};

use crate::http::responses::text_input::TextInput;
use crate::random;

/// Place of the only part in its item.
const ONLY: usize = 0;

/// An item that grows.
#[derive(Debug)]
pub(super) struct Item {
    id: String,
    output_index: usize,
    body: Body,
}

/// What grows in an item.
#[derive(Debug)]
pub(super) enum Body {
    Reasoning {
        text: String,
        is_summary: bool,
    },
    Message {
        text: String,
        logprobs: Vec<ChatLogprob>,
    },
    Function {
        call: Call,
        arguments: String,
    },
    /// Of a tool that takes text.
    Custom {
        call: Call,
        input: TextInput,
    },
}

/// A call of a tool.
#[derive(Debug)]
pub(super) struct Call {
    /// Its number among the answer's calls.
    pub index: usize,
    pub id: String,
    pub name: String,
    pub namespace: Option<String>,
}

impl Body {
    pub fn reasoning(is_summary: bool) -> Self {
        let text = String::new();
        Self::Reasoning { text, is_summary }
    }

    pub fn message() -> Self {
        Self::Message {
            text: String::new(),
            logprobs: Vec::new(),
        }
    }

    pub fn function(call: Call) -> Self {
        let arguments = String::new();
        Self::Function { call, arguments }
    }

    pub fn custom(call: Call) -> Self {
        let input = TextInput::default();
        Self::Custom { call, input }
    }
}

impl Item {
    /// An item with nothing in it yet.
    pub fn new(output_index: usize, body: Body) -> Self {
        let id = random::name(match &body {
            Body::Reasoning { .. } => "rs_",
            Body::Message { .. } => "msg_",
            Body::Function { .. } => "fc_",
            Body::Custom { .. } => "ctc_",
        });
        Self {
            id,
            output_index,
            body,
        }
    }

    pub fn is_reasoning(&self) -> bool {
        matches!(self.body, Body::Reasoning { .. })
    }

    pub fn is_message(&self) -> bool {
        matches!(self.body, Body::Message { .. })
    }

    /// Whether it is the call of this number.
    pub fn is_call(&self, index: usize) -> bool {
        match &self.body {
            Body::Function { call, .. } | Body::Custom { call, .. } => call.index == index,
            _ => false,
        }
    }

    /// What announces it.
    pub fn beginning(&self) -> Vec<Kind> {
        let (item_id, output_index) = (self.id.clone(), self.output_index);
        let mut events = vec![Kind::ItemAdded {
            output_index,
            item: self.empty(),
        }];
        match self.body {
            Body::Reasoning {
                is_summary: true, ..
            } => events.push(Kind::SummaryPartAdded {
                item_id,
                output_index,
                summary_index: ONLY,
                part: ContentPart::SummaryText {
                    text: String::new(),
                },
            }),
            Body::Reasoning { .. } => events.push(Kind::PartAdded {
                item_id,
                output_index,
                content_index: ONLY,
                part: ContentPart::ReasoningText {
                    text: String::new(),
                },
            }),
            Body::Message { .. } => events.push(Kind::PartAdded {
                item_id,
                output_index,
                content_index: ONLY,
                part: ContentPart::output_text(String::new()),
            }),
            Body::Function { .. } | Body::Custom { .. } => {}
        }
        events
    }

    /// Takes more of its text, and tells what is new.
    pub fn push(&mut self, new: &str, new_logprobs: Vec<ChatLogprob>) -> Option<Kind> {
        let (item_id, output_index) = (self.id.clone(), self.output_index);
        let delta = match &mut self.body {
            Body::Custom { input, .. } => input.push(new),
            Body::Reasoning { text, .. }
            | Body::Message { text, .. }
            | Body::Function {
                arguments: text, ..
            } => {
                text.push_str(new);
                new.to_owned()
            }
        };
        if delta.is_empty() && new_logprobs.is_empty() {
            return None;
        }
        Some(match &mut self.body {
            Body::Reasoning {
                is_summary: true, ..
            } => Kind::SummaryDelta {
                item_id,
                output_index,
                summary_index: ONLY,
                delta,
            },
            Body::Reasoning { .. } => Kind::ReasoningDelta {
                item_id,
                output_index,
                content_index: ONLY,
                delta,
            },
            Body::Message { logprobs, .. } => {
                logprobs.extend(new_logprobs.iter().cloned());
                Kind::TextDelta {
                    item_id,
                    output_index,
                    content_index: ONLY,
                    delta,
                    logprobs: new_logprobs,
                }
            }
            Body::Function { .. } => Kind::ArgumentsDelta {
                item_id,
                output_index,
                delta,
            },
            Body::Custom { .. } => Kind::InputDelta {
                item_id,
                output_index,
                delta,
            },
        })
    }

    /// Ends it; reasoning goes with what it takes to send it back, if it `is_sealed`.
    pub fn end(self, status: ItemStatus, is_sealed: bool) -> (Vec<Kind>, OutputItem) {
        let Self {
            id,
            output_index,
            body,
        } = self;
        let (mut events, item) = match body {
            Body::Reasoning { text, is_summary } => {
                let sealed = is_sealed.then(|| format!("{REASONING_MARK}{text}"));
                end_reasoning(id, output_index, status, text, is_summary, sealed)
            }
            Body::Message { text, logprobs } => {
                end_message(id, output_index, status, text, logprobs)
            }
            Body::Function { call, arguments } => {
                let done = Kind::ArgumentsDone {
                    item_id: id.clone(),
                    output_index,
                    name: call.name.clone(),
                    arguments: arguments.clone(),
                };
                (vec![done], call.function(id, status, arguments))
            }
            Body::Custom { call, input } => {
                let (delta, input) = input.finish();
                let rest = (!delta.is_empty()).then(|| Kind::InputDelta {
                    item_id: id.clone(),
                    output_index,
                    delta,
                });
                let done = Kind::InputDone {
                    item_id: id.clone(),
                    output_index,
                    input: input.clone(),
                };
                let events = rest.into_iter().chain([done]).collect();
                (events, call.custom(id, status, input))
            }
        };
        events.push(Kind::ItemDone {
            output_index,
            item: item.clone(),
        });
        (events, item)
    }

    /// As it is announced.
    fn empty(&self) -> OutputItem {
        let (id, status) = (self.id.clone(), ItemStatus::InProgress);
        match &self.body {
            Body::Reasoning { .. } => OutputItem::Reasoning {
                id,
                status,
                summary: Vec::new(),
                content: Vec::new(),
                encrypted_content: None,
            },
            Body::Message { .. } => OutputItem::Message {
                id,
                status,
                role: "assistant",
                content: Vec::new(),
            },
            Body::Function { call, .. } => call.function(id, status, String::new()),
            Body::Custom { call, .. } => call.custom(id, status, String::new()),
        }
    }
}

impl Call {
    fn function(&self, id: String, status: ItemStatus, arguments: String) -> OutputItem {
        OutputItem::FunctionCall {
            id,
            status,
            call_id: self.id.clone(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            arguments,
        }
    }

    fn custom(&self, id: String, status: ItemStatus, input: String) -> OutputItem {
        OutputItem::CustomToolCall {
            id,
            status,
            call_id: self.id.clone(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            input,
        }
    }
}

fn end_reasoning(
    id: String,
    output_index: usize,
    status: ItemStatus,
    text: String,
    is_summary: bool,
    encrypted_content: Option<String>,
) -> (Vec<Kind>, OutputItem) {
    let item_id = id.clone();
    let (mut summary, mut content) = (Vec::new(), Vec::new());
    let events = if is_summary {
        let part = ContentPart::SummaryText { text: text.clone() };
        summary.push(part.clone());
        vec![
            Kind::SummaryDone {
                item_id: item_id.clone(),
                output_index,
                summary_index: ONLY,
                text,
            },
            Kind::SummaryPartDone {
                item_id,
                output_index,
                summary_index: ONLY,
                part,
            },
        ]
    } else {
        let part = ContentPart::ReasoningText { text: text.clone() };
        content.push(part.clone());
        vec![
            Kind::ReasoningDone {
                item_id: item_id.clone(),
                output_index,
                content_index: ONLY,
                text,
            },
            Kind::PartDone {
                item_id,
                output_index,
                content_index: ONLY,
                part,
            },
        ]
    };
    let item = OutputItem::Reasoning {
        id,
        status,
        summary,
        content,
        encrypted_content,
    };
    (events, item)
}

fn end_message(
    id: String,
    output_index: usize,
    status: ItemStatus,
    text: String,
    logprobs: Vec<ChatLogprob>,
) -> (Vec<Kind>, OutputItem) {
    let part = ContentPart::OutputText {
        text: text.clone(),
        annotations: Vec::new(),
        logprobs: logprobs.clone(),
    };
    let events = vec![
        Kind::TextDone {
            item_id: id.clone(),
            output_index,
            content_index: ONLY,
            text,
            logprobs,
        },
        Kind::PartDone {
            item_id: id.clone(),
            output_index,
            content_index: ONLY,
            part: part.clone(),
        },
    ];
    let item = OutputItem::Message {
        id,
        status,
        role: "assistant",
        content: vec![part],
    };
    (events, item)
}
