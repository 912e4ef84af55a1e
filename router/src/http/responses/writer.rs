//! What happens in an answer, as the events of the Responses API: pieces in, events out. Whole answers are written by it too, so
//! that both forms have the same items.

use std::collections::HashMap;

use api_types::{
    DeclaredTool, IncompleteDetails, ItemStatus, ResponseError, ResponseEvent,
    ResponseEventKind as Kind, ResponseObject, ResponseStatus, ResponseUsage,
};
use generation::FinishReason;

use crate::answer::{CallDelta, CallStart, Piece};
use crate::http::logprobs::chat_logprobs;
use crate::http::responses::item::{Body, Call, Item};
use crate::logprob::TokenLogprob;
use crate::state::unix_seconds;

/// Writes one answer.
#[derive(Debug)]
pub(super) struct Writer {
    /// What is known so far; its output has the items that are whole.
    response: ResponseObject,
    /// The tools by the names that the model knows.
    tools: HashMap<String, DeclaredTool>,
    /// Reasoning goes with what it takes to send it back.
    seals_reasoning: bool,
    events: Vec<ResponseEvent>,
    sequence_number: u64,
    open: Option<Item>,
    /// Blank text, which is no message unless more follows.
    blank: Piece,
    finish: Option<FinishReason>,
}

impl Writer {
    /// Begins `response`, which has no output yet.
    pub fn new(
        response: ResponseObject,
        tools: HashMap<String, DeclaredTool>,
        seals_reasoning: bool,
    ) -> Self {
        Self {
            response,
            tools,
            seals_reasoning,
            events: Vec::new(),
            sequence_number: 0,
            open: None,
            blank: Piece::default(),
            finish: None,
        }
    }

    /// The events since the last call of this.
    pub fn events(&mut self) -> Vec<ResponseEvent> {
        std::mem::take(&mut self.events)
    }

    /// The answer as it stands.
    pub fn response(self) -> ResponseObject {
        self.response
    }

    /// What goes out before anything is known of the answer.
    pub fn open(&mut self) {
        let response = self.snapshot();
        self.say(Kind::Created { response });
        self.stay();
    }

    /// Says that it is worked on.
    pub fn stay(&mut self) {
        let response = self.snapshot();
        self.say(Kind::InProgress { response });
    }

    /// Takes what is new.
    pub fn piece(&mut self, mut piece: Piece) {
        self.finish = piece.finish.or(self.finish);
        // What ends a call comes before what follows it, though the piece has it beside it.
        let mut calls = std::mem::take(&mut piece.calls).into_iter().peekable();
        while let Some(more) = calls.next_if(|call| call.start.is_none()) {
            self.call(more);
        }
        if !piece.reasoning.is_empty() {
            self.reasoning(&piece.reasoning);
        }
        self.text(piece);
        for call in calls {
            self.call(call);
        }
    }

    /// Ends the answer, which has had its last piece.
    pub fn close(&mut self, usage: ResponseUsage) {
        let is_cut = self.finish == Some(FinishReason::Length);
        if !is_cut && self.open.is_none() && self.response.output.is_empty() {
            // An answer with nothing in it looks like none at all.
            let blank = std::mem::take(&mut self.blank);
            self.message(&blank);
        }
        self.response.usage = Some(usage);
        if is_cut {
            self.end_item(ItemStatus::Incomplete);
            self.response.status = ResponseStatus::Incomplete;
            self.response.incomplete_details = Some(IncompleteDetails {
                reason: "max_output_tokens",
            });
            let response = self.snapshot();
            self.say(Kind::Incomplete { response });
        } else {
            self.end_item(ItemStatus::Completed);
            self.response.status = ResponseStatus::Completed;
            self.response.completed_at = Some(unix_seconds());
            let response = self.snapshot();
            self.say(Kind::Completed { response });
        }
    }

    /// Ends the answer, which will have no last piece. The item that grew is not called done: clients call the tools of items that
    /// are.
    pub fn fail(&mut self, error: ResponseError) {
        self.response.status = ResponseStatus::Failed;
        self.response.error = Some(error);
        let response = self.snapshot();
        self.say(Kind::Failed { response });
    }

    fn snapshot(&self) -> Box<ResponseObject> {
        Box::new(self.response.clone())
    }

    fn say(&mut self, kind: Kind) {
        self.events.push(ResponseEvent {
            kind,
            sequence_number: self.sequence_number,
        });
        self.sequence_number += 1;
    }

    fn reasoning(&mut self, new: &str) {
        if !self.open.as_ref().is_some_and(Item::is_reasoning) {
            let is_summary = self.response.reasoning.summary.is_some();
            self.begin(Body::reasoning(is_summary));
        }
        self.grow(new, &[]);
    }

    /// Text of a message, which does not begin with nothing.
    fn text(&mut self, piece: Piece) {
        if piece.content.is_empty() && piece.logprobs.is_empty() {
            return;
        }
        if self.open.as_ref().is_some_and(Item::is_message) {
            self.message(&piece);
            return;
        }
        self.blank.append(piece);
        if !self.blank.content.trim().is_empty() {
            let piece = std::mem::take(&mut self.blank);
            self.message(&piece);
        }
    }

    fn message(&mut self, piece: &Piece) {
        if !self.open.as_ref().is_some_and(Item::is_message) {
            self.begin(Body::message());
        }
        self.grow(&piece.content, &piece.logprobs);
    }

    fn call(&mut self, delta: CallDelta) {
        if let Some(start) = delta.start {
            self.begin_call(delta.index, start);
        }
        if self
            .open
            .as_ref()
            .is_some_and(|item| item.is_call(delta.index))
        {
            self.grow(&delta.arguments, &[]);
        }
    }

    fn begin_call(&mut self, index: usize, start: CallStart) {
        // Blanks between calls say nothing.
        self.blank = Piece::default();
        let declared = self.tools.get(&start.name);
        let takes_text = declared.is_some_and(|tool| tool.takes_text);
        let namespace = declared.and_then(|tool| tool.namespace.clone());
        let call = Call {
            index,
            id: start.id,
            name: declared.map_or(start.name, |tool| tool.name.clone()),
            namespace,
        };
        self.begin(if takes_text {
            Body::custom(call)
        } else {
            Body::function(call)
        });
    }

    /// Ends the open item and begins one.
    fn begin(&mut self, body: Body) {
        self.end_item(ItemStatus::Completed);
        let item = Item::new(self.response.output.len(), body);
        for event in item.beginning() {
            self.say(event);
        }
        self.open = Some(item);
    }

    /// Gives the open item more.
    fn grow(&mut self, new: &str, logprobs: &[TokenLogprob]) {
        let logprobs = chat_logprobs(logprobs);
        let event = self.open.as_mut().and_then(|item| item.push(new, logprobs));
        if let Some(event) = event {
            self.say(event);
        }
    }

    /// Ends the open item, if there is one.
    fn end_item(&mut self, status: ItemStatus) {
        let Some(item) = self.open.take() else {
            return;
        };
        let (events, item) = item.end(status, self.seals_reasoning);
        for event in events {
            self.say(event);
        }
        self.response.output.push(item);
    }
}

#[cfg(test)]
mod tests;
