//! One answer as it grows: events of the target in, pieces of text out.

use std::sync::Arc;
use std::time::Instant;

use chat::{ReasoningSplitter, ReasoningStart};
use generation::{
    CloseKind, FinishReason, GenerateEvent, ThinkingLimit, ThinkingTracker, Timings, Token,
};
use tokenizer::{Detokenizer, StopMatcher, Tokenizer};
use tool_calls::Ending;

use crate::logprob::TokenLogprob;

mod calls;
mod pieces;

pub(crate) use calls::CallPlan;

use calls::{CallReader, Found};
use pieces::Pieces;

/// How events become text.
#[derive(Debug, Clone)]
pub(crate) struct AnswerPlan {
    /// Texts that end the answer.
    pub stop: Vec<String>,
    pub include_stop: bool,
    /// Tokens that end the answer and are no text.
    pub stop_ids: Vec<u32>,
    /// Where the answer begins, if reasoning is split off.
    pub reasoning: Option<ReasoningStart>,
    /// How calls are found, if there are tools.
    pub calls: Option<CallPlan>,
    pub logprobs: bool,
}

/// What is new in an answer, in the order of the fields.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Piece {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<CallDelta>,
    pub logprobs: Vec<TokenLogprob>,
    /// Why the answer is complete.
    pub finish: Option<FinishReason>,
    /// The stop string that ended it, if one did.
    pub stopped_at: Option<String>,
}

impl Piece {
    fn is_empty(&self) -> bool {
        self.reasoning.is_empty()
            && self.content.is_empty()
            && self.calls.is_empty()
            && self.finish.is_none()
    }

    /// Adds what came later.
    pub fn append(&mut self, later: Piece) {
        self.reasoning.push_str(&later.reasoning);
        self.content.push_str(&later.content);
        for delta in later.calls {
            self.add_call(delta);
        }
        self.logprobs.extend(later.logprobs);
        self.finish = later.finish.or(self.finish);
        self.stopped_at = later.stopped_at.or(self.stopped_at.take());
    }

    fn add_call(&mut self, delta: CallDelta) {
        match self.calls.last_mut() {
            Some(last) if last.index == delta.index => last.arguments += &delta.arguments,
            _ => self.calls.push(delta),
        }
    }
}

/// What is new of a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallDelta {
    /// The call's place among those of the answer; they come one after the other.
    pub index: usize,
    /// There at the call's beginning.
    pub start: Option<CallStart>,
    /// JSON text; all of a call's together are one object.
    pub arguments: String,
}

/// What a tool call begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallStart {
    /// Names the call.
    pub id: String,
    /// Names the tool.
    pub name: String,
}

/// What an answer took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Tally {
    pub cached_tokens: u32,
    pub completion_tokens: u32,
    /// Those of them that are reasoning, its marks and what was forced among them.
    pub reasoning_tokens: u32,
    /// Who closed the reasoning, once it is.
    pub close: Option<CloseKind>,
    /// Whether the answer was ended because it ran in a loop.
    pub is_degenerate: bool,
    /// Tool calls that the answer made.
    pub calls: u32,
    pub timings: Timings,
}

/// One answer as it grows.
#[derive(Debug)]
pub(crate) struct Answer {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    splitter: Option<ReasoningSplitter>,
    calls: Option<CallReader>,
    thinking: Option<Thinking>,
    stop: StopMatcher,
    stop_ids: Vec<u32>,
    /// Entries of tokens whose text is held back, if any are wanted.
    logprobs: Option<Vec<TokenLogprob>>,
    /// Characters so far, held back or not.
    text_offset: usize,
    clock: Clock,
    tally: Tally,
    finish: Option<FinishReason>,
}

/// Follows the reasoning as the target does.
#[derive(Debug)]
struct Thinking {
    tracker: ThinkingTracker,
    ids: Vec<u32>,
}

#[derive(Debug)]
struct Clock {
    started: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Answer {
    /// `thinking` is what the target was told of the answer's reasoning.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        plan: &AnswerPlan,
        thinking: Option<ThinkingLimit>,
    ) -> Self {
        Self {
            detokenizer: Detokenizer::new(Arc::clone(&tokenizer), false),
            tokenizer,
            splitter: plan.reasoning.map(ReasoningSplitter::new),
            calls: plan.calls.as_ref().map(CallReader::new),
            thinking: thinking.map(|limit| Thinking {
                tracker: ThinkingTracker::new(limit),
                ids: Vec::new(),
            }),
            stop: StopMatcher::new(&plan.stop, plan.include_stop),
            stop_ids: plan.stop_ids.clone(),
            logprobs: plan.logprobs.then(Vec::new),
            text_offset: 0,
            clock: Clock {
                started: Instant::now(),
                first: None,
                last: None,
            },
            tally: Tally::default(),
            finish: None,
        }
    }

    /// Takes an event and gives what can be shown by now.
    pub fn push(&mut self, event: GenerateEvent) -> Vec<Piece> {
        if self.is_finished() {
            return Vec::new();
        }
        let mut pieces = Pieces::default();
        match event {
            GenerateEvent::Started {
                prompt_tokens,
                cached_tokens,
            } => {
                self.clock.started = Instant::now();
                self.tally.cached_tokens = cached_tokens;
                self.tally.timings.prompt_tokens = prompt_tokens.saturating_sub(cached_tokens);
            }
            GenerateEvent::Progress { .. } => {}
            GenerateEvent::Token(token) => self.take(&token, &mut pieces),
            GenerateEvent::Finished { reason, timings } => {
                self.flush(reason, &mut pieces);
                self.tally.timings = timings;
                let thinking = self.thinking.as_ref();
                self.tally.is_degenerate =
                    thinking.is_some_and(|thinking| thinking.tracker.is_degenerate(&thinking.ids));
                self.end(reason);
            }
        }
        if self.is_finished() {
            pieces.last().finish = self.finish;
            pieces.last().stopped_at = self.stop.found().map(str::to_owned);
        }
        if (self.is_finished() || pieces.has_answer())
            && let Some(entries) = &mut self.logprobs
        {
            pieces.last().logprobs = std::mem::take(entries);
        }
        pieces.finish()
    }

    pub fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// When the latest token came.
    pub fn last_token(&self) -> Option<Instant> {
        self.clock.last
    }

    fn take(&mut self, token: &Token, pieces: &mut Pieces) {
        self.count();
        let was_forced = self.thinking.as_mut().is_some_and(|thinking| {
            thinking.ids.push(token.id);
            let was_forced = thinking.tracker.push(token.id);
            self.tally.close = thinking.tracker.close();
            was_forced
        });
        if self.stop_ids.contains(&token.id) {
            return;
        }
        let was_reasoning = self.is_reasoning();
        let offset = self.text_offset;
        let text = self.text_of(token.id);
        self.text_offset += text.chars().count();
        self.feed(&text, pieces);
        if was_forced || was_reasoning || self.is_reasoning() {
            self.tally.reasoning_tokens += 1;
        } else if let Some(entries) = &mut self.logprobs {
            entries.push(TokenLogprob::new(token, &self.tokenizer, offset));
        }
        let is_over = self.calls.as_ref().is_some_and(CallReader::is_over);
        if is_over || self.stop.stopped() {
            self.end(FinishReason::Stop);
        }
    }

    /// The answer may end before the target's own timings come, so that they are kept here as well.
    fn count(&mut self) {
        let now = Instant::now();
        let first = *self.clock.first.get_or_insert(now);
        self.clock.last = Some(now);
        self.tally.completion_tokens += 1;
        let timings = &mut self.tally.timings;
        timings.generated_tokens = self.tally.completion_tokens;
        timings.prompt_ms = (first - self.clock.started).as_secs_f64() * 1e3;
        timings.generated_ms = (now - first).as_secs_f64() * 1e3;
    }

    fn is_reasoning(&self) -> bool {
        let splitter = self.splitter.as_ref();
        splitter.is_some_and(ReasoningSplitter::is_reasoning)
    }

    /// The characters that `id` completes. The marks around the reasoning and around calls are text for who looks for them
    /// even where the vocabulary calls them control tokens.
    fn text_of(&mut self, id: u32) -> String {
        let text = self.tokenizer.token_text(id).unwrap_or_default();
        let is_mark = match text {
            "<think>" | "</think>" => self.splitter.is_some(),
            _ => self.calls.is_some() && tool_calls::is_mark(text),
        };
        if is_mark && self.tokenizer.is_special(id) {
            return self.detokenizer.finish() + text;
        }
        self.detokenizer.push(id)
    }

    fn feed(&mut self, text: &str, pieces: &mut Pieces) {
        let Some(splitter) = &mut self.splitter else {
            return self.content(text, pieces);
        };
        let split = splitter.push(text);
        let is_over = !splitter.is_reasoning();
        self.thoughts(&split.reasoning, is_over, pieces);
        self.content(&split.content, pieces);
    }

    fn thoughts(&mut self, text: &str, is_over: bool, pieces: &mut Pieces) {
        match &mut self.calls {
            None => pieces.reasoning(text),
            Some(calls) => pieces.reasoning(&calls.think(text, is_over)),
        }
    }

    fn content(&mut self, text: &str, pieces: &mut Pieces) {
        match &mut self.calls {
            None => pieces.content(&self.stop.push(text).emit),
            Some(calls) => {
                let found = calls.push(text);
                self.found(found, pieces);
            }
        }
    }

    /// Stop strings are looked for in what is said, and do not reach over a call.
    fn found(&mut self, found: Vec<Found>, pieces: &mut Pieces) {
        for found in found {
            if self.stop.stopped() {
                return;
            }
            match found {
                Found::Text(text) => pieces.content(&self.stop.push(&text).emit),
                Found::Call(delta) => {
                    pieces.content(&self.stop.finish());
                    self.tally.calls += u32::from(delta.start.is_some());
                    pieces.call(delta);
                }
            }
        }
    }

    /// Lets go of everything that was held back.
    fn flush(&mut self, reason: FinishReason, pieces: &mut Pieces) {
        let tail = self.detokenizer.finish();
        self.feed(&tail, pieces);
        if let Some(splitter) = &mut self.splitter {
            let is_reasoning = splitter.is_reasoning();
            let rest = splitter.finish();
            self.thoughts(&rest.reasoning, !is_reasoning, pieces);
            self.content(&rest.content, pieces);
            if is_reasoning {
                self.forgotten(reason, pieces);
            }
        }
        if let Some(calls) = &mut self.calls {
            let found = calls.finish(ending(reason));
            self.found(found, pieces);
        }
        pieces.content(&self.stop.finish());
    }

    /// A call at the end of thoughts that were never ended is one.
    fn forgotten(&mut self, reason: FinishReason, pieces: &mut Pieces) {
        match self
            .calls
            .as_mut()
            .map(|calls| calls.forgotten(ending(reason)))
        {
            None => {}
            Some(Ok(found)) => self.found(found, pieces),
            Some(Err(thoughts)) => pieces.reasoning(&thoughts),
        }
    }

    fn end(&mut self, reason: FinishReason) {
        let stopped = self.stop.stopped();
        self.finish = Some(if stopped { FinishReason::Stop } else { reason });
    }
}

fn ending(reason: FinishReason) -> Ending {
    match reason {
        FinishReason::Stop => Ending::Complete,
        FinishReason::Length => Ending::Cut,
    }
}

#[cfg(test)]
mod tests;
