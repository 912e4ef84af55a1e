//! The events of a stream of the Responses API.

use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::ChatLogprob;
use crate::responses::object::{ContentPart, OutputItem, ResponseObject};

/// An event with its place among the others.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ResponseEvent {
    /// What happened.
    #[serde(flatten)]
    pub kind: ResponseEventKind,
    /// Counts the events of a stream, from 0.
    pub sequence_number: u64,
}

macro_rules! events {
    ($($(#[$doc:meta])* $name:literal $variant:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })*) => {
        /// What happened.
        #[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
        #[serde(tag = "type")]
        pub enum ResponseEventKind {
            $($(#[$doc])* #[serde(rename = $name)] $variant { $($(#[$field_doc])* $field: $kind,)* },)*
        }

        impl ResponseEventKind {
            /// The name of the event, which stands in its `type` as well.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $name,)* }
            }
        }
    };
}

events! {
    /// The request was accepted.
    "response.created" Created {
        /// Without output.
        response: Box<ResponseObject>,
    }
    /// It is worked on; comes again as a sign of life.
    "response.in_progress" InProgress {
        /// With the items that are whole.
        response: Box<ResponseObject>,
    }
    /// An item begins.
    "response.output_item.added" ItemAdded {
        /// Its place in the output.
        output_index: usize,
        /// The item, still empty.
        item: OutputItem,
    }
    /// An item is whole.
    "response.output_item.done" ItemDone {
        /// Its place in the output.
        output_index: usize,
        /// The item as it stands in the output.
        item: OutputItem,
    }
    /// A part of a message or of a reasoning begins.
    "response.content_part.added" PartAdded {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// The part's place in the item.
        content_index: usize,
        /// The part, still empty.
        part: ContentPart,
    }
    /// A part of a message or of a reasoning is whole.
    "response.content_part.done" PartDone {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// The part's place in the item.
        content_index: usize,
        /// The part.
        part: ContentPart,
    }
    /// New text of a message.
    "response.output_text.delta" TextDelta {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// The part's place in the item.
        content_index: usize,
        /// The new text.
        delta: String,
        /// Of its tokens, if wanted.
        logprobs: Vec<ChatLogprob>,
    }
    /// The text of a message is whole.
    "response.output_text.done" TextDone {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// The part's place in the item.
        content_index: usize,
        /// All of it.
        text: String,
        /// Of its tokens, if wanted.
        logprobs: Vec<ChatLogprob>,
    }
    /// New reasoning.
    "response.reasoning_text.delta" ReasoningDelta {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// The part's place in the item.
        content_index: usize,
        /// The new text.
        delta: String,
    }
    /// The reasoning is whole.
    "response.reasoning_text.done" ReasoningDone {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// The part's place in the item.
        content_index: usize,
        /// All of it.
        text: String,
    }
    /// Reasoning begins that is sent as a summary.
    "response.reasoning_summary_part.added" SummaryPartAdded {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// The part's place in the item.
        summary_index: usize,
        /// The part, still empty.
        part: ContentPart,
    }
    /// Reasoning that is sent as a summary is whole.
    "response.reasoning_summary_part.done" SummaryPartDone {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// The part's place in the item.
        summary_index: usize,
        /// The part.
        part: ContentPart,
    }
    /// New reasoning that is sent as a summary.
    "response.reasoning_summary_text.delta" SummaryDelta {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// The part's place in the item.
        summary_index: usize,
        /// The new text.
        delta: String,
    }
    /// The text of such reasoning is whole.
    "response.reasoning_summary_text.done" SummaryDone {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// The part's place in the item.
        summary_index: usize,
        /// All of it.
        text: String,
    }
    /// New arguments of a function.
    "response.function_call_arguments.delta" ArgumentsDelta {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// The new text.
        delta: String,
    }
    /// The arguments of a function are whole.
    "response.function_call_arguments.done" ArgumentsDone {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// The function.
        name: String,
        /// All of them.
        arguments: String,
    }
    /// New input of a tool that takes text.
    "response.custom_tool_call_input.delta" InputDelta {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// The new text.
        delta: String,
    }
    /// The input of a tool that takes text is whole.
    "response.custom_tool_call_input.done" InputDone {
        /// The item.
        item_id: String,
        /// Its place in the output.
        output_index: usize,
        /// All of it.
        input: String,
    }
    /// The answer came to its end.
    "response.completed" Completed {
        /// All of it.
        response: Box<ResponseObject>,
    }
    /// The answer was cut.
    "response.incomplete" Incomplete {
        /// What there is.
        response: Box<ResponseObject>,
    }
    /// The answer broke off.
    "response.failed" Failed {
        /// What there is.
        response: Box<ResponseObject>,
    }
}
