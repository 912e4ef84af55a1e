//! One running request.

use generation::{
    FinishReason, GenerateError, GenerateEvent, GenerateRequest, ThinkingLimit, ThinkingTracker,
    Timings, Token,
};
use grammar::GrammarError;
use models::{Answer, BatchSegment, LogitsWanted, SequenceId};
use sampling::Sampler;
use speculative::{DraftTree, Proposal};

use crate::choice::{Choice, Chooser};
use crate::clock::Clock;
use crate::constraint::Constraint;
use crate::prefixes::Marks;
use crate::queue::Waiting;
use crate::scheduler::Need;
use crate::shadow::fingerprint;
use crate::speculation::Drafting;
use crate::stream::EventSender;

/// New tokens that a request may get at most: what it asks for and what may be forced, or what the context leaves beside the
/// prompt.
pub(crate) fn new_tokens_limit(request: &GenerateRequest, context_length: usize) -> usize {
    let room = context_length.saturating_sub(request.prompt.len());
    let thinking = request.thinking.as_ref();
    let forced = thinking.map_or(0, ThinkingLimit::forced_tokens);
    room.min(request.max_tokens as usize + forced)
}

/// Why a sequence gives its place back.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The answer is complete.
    Finished(FinishReason),
    /// It cannot be completed.
    Failed(GenerateError),
    /// Nobody listens.
    Cancelled,
}

/// What a sequence holds of the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub id: SequenceId,
    /// Pages promised to it.
    pub pages: usize,
}

/// What of a row of logits decides about the token that follows.
#[derive(Clone, Copy, Debug)]
enum Wants {
    /// The likeliest token.
    Best,
    /// So many of the likeliest tokens, and their logits.
    Top(usize),
    /// All of it.
    Row,
}

/// What plain decoding beside a sequence needs to know.
#[derive(Debug)]
struct Plain {
    /// Fingerprint of the logits that each generated token was chosen from.
    fingerprints: Vec<u64>,
    /// The grammar, as far as plain decoding has come.
    constraint: Option<Constraint>,
}

/// A request with a place in the model.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub place: Place,
    request: GenerateRequest,
    events: EventSender,
    sampler: Sampler,
    /// Prompt, then what was generated.
    tokens: Vec<u32>,
    prompt_len: usize,
    /// Leading tokens that the model has seen.
    fed: usize,
    /// Those that it had seen before the request came.
    cached: usize,
    /// Length at which the answer is cut; forced tokens move it.
    max_len: usize,
    /// Length beyond which nothing moves it.
    last_len: usize,
    thinking: Option<ThinkingTracker>,
    ending: Option<Ending>,
    clock: Clock,
    /// Tokens chosen that the caller has not been told.
    unsent: Vec<Token>,
    /// Its grammar, if it has one.
    constraint: Option<Constraint>,
    /// Tokens of the answer before those that the grammar is about; `None` as long as there are only such.
    grammar_from: Option<usize>,
    /// What plain decoding beside it needs to know, where tokens are held against that.
    plain: Option<Plain>,
    pub drafting: Drafting,
    pub marks: Marks,
}

impl Sequence {
    /// Starts the request's clock and says so to the caller. Of the prompt the model has seen what the latest mark says.
    pub(crate) fn start(
        waiting: Waiting,
        place: Place,
        max_new_tokens: usize,
        drafting: Drafting,
        marks: Marks,
    ) -> Self {
        let Waiting {
            mut request,
            matcher,
            events,
        } = waiting;
        let tokens = std::mem::take(&mut request.prompt);
        let prompt_len = tokens.len();
        let last_len = prompt_len + max_new_tokens;
        let max_len = last_len.min(prompt_len + request.max_tokens as usize);
        let thinking = request.thinking.take();
        let starts_inside = thinking.as_ref().is_some_and(|limit| limit.starts_inside);
        let constraint = matcher.map(Constraint::new);
        let is_complete = constraint.as_ref().is_some_and(Constraint::can_only_end);
        let reason = match (max_len == prompt_len, is_complete && !starts_inside) {
            (true, _) => Some(FinishReason::Length),
            (_, true) => Some(FinishReason::Stop),
            _ => None,
        };
        let sequence = Self {
            place,
            sampler: Sampler::new(request.sampling.clone()),
            events,
            tokens,
            prompt_len,
            fed: marks.last,
            cached: marks.last,
            max_len,
            last_len,
            thinking: thinking.map(ThinkingTracker::new),
            request,
            ending: reason.map(Ending::Finished),
            clock: Clock::start(),
            unsent: Vec::new(),
            constraint,
            grammar_from: (!starts_inside).then_some(0),
            plain: None,
            drafting,
            marks,
        };
        sequence.send(Ok(GenerateEvent::Started {
            prompt_tokens: count(prompt_len),
            cached_tokens: count(sequence.cached),
        }));
        sequence
    }

    /// Keeps what [`crate::shadow`] compares.
    pub(crate) fn keep_fingerprints(&mut self) {
        self.plain = Some(Plain {
            fingerprints: Vec::new(),
            constraint: self.constraint.as_ref().map(Constraint::independent),
        });
    }

    /// Fingerprint of the logits that the token at `position` was chosen from, if they are kept.
    pub(crate) fn fingerprint(&self, position: usize) -> Option<u64> {
        let place = position.checked_sub(self.prompt_len)?;
        self.plain.as_ref()?.fingerprints.get(place).copied()
    }

    /// Rows that the next step can give it.
    pub(crate) fn need(&self) -> Need {
        if self.is_decoding() {
            Need::Decode {
                rows: 1 + self.drafting.nodes(),
            }
        } else {
            Need::Prefill {
                tokens: self.marks.stop(self.fed, self.prompt_len) - self.fed,
                position: self.fed,
            }
        }
    }

    /// Whether the model has seen the prompt.
    pub(crate) fn is_decoding(&self) -> bool {
        self.fed >= self.prompt_len
    }

    /// Position and id of the newest token, which the model has not seen.
    pub(crate) fn anchor(&self) -> (usize, u32) {
        let position = self.tokens.len() - 1;
        (position, self.tokens[position])
    }

    /// Tokens that may still come.
    pub(crate) fn room(&self) -> usize {
        self.max_len - self.tokens.len()
    }

    /// Tokens worth drafting behind the newest one: the last token of an answer needs none, and neither does what is forced.
    pub(crate) fn draftable(&self) -> usize {
        let room = self.room().saturating_sub(1);
        let free = self
            .thinking
            .as_ref()
            .and_then(ThinkingTracker::free_tokens);
        free.map_or(room, |free| free.min(room))
    }

    /// Whether a draft could help, and is not asked for already.
    pub(crate) fn can_be_drafted(&self) -> bool {
        self.is_decoding()
            && self.ending.is_none()
            && self.drafting.asked_at.is_none()
            && self.drafting.max_nodes > 0
            && self.draftable() > 0
    }

    /// The next `rows` rows: a draft tree behind the newest token, or accepted tokens. Logits are wanted only where
    /// nothing is known to follow.
    pub(crate) fn segment(&self, rows: usize) -> BatchSegment {
        if let Some(tree) = &self.drafting.tree {
            return BatchSegment {
                sequence: self.place.id,
                tokens: [&[self.anchor().1], tree.tokens()].concat(),
                parents: tree.parents().to_vec(),
                advance: false,
                logits: match self.wants() {
                    Wants::Best => LogitsWanted::AllBest,
                    Wants::Top(k) => LogitsWanted::AllTop(k),
                    Wants::Row => LogitsWanted::All,
                },
            };
        }
        let end = self.fed + rows;
        BatchSegment {
            sequence: self.place.id,
            tokens: self.tokens[self.fed..end].to_vec(),
            parents: Vec::new(),
            advance: true,
            logits: match self.wants() {
                _ if end < self.tokens.len() => LogitsWanted::None,
                Wants::Best => LogitsWanted::LastBest,
                Wants::Top(k) => LogitsWanted::LastTop(k),
                Wants::Row => LogitsWanted::Last,
            },
        }
    }

    /// What it needs to know of what may follow.
    fn wants(&self) -> Wants {
        let generated = self.tokens.len() - self.prompt_len;
        // A tree may reach behind the reasoning that comes before a grammar, a single row does not.
        let is_free = self.constraint.is_none()
            || (self.grammar_from.is_none() && self.drafting.tree.is_none());
        let needs_row = self.plain.is_some()
            || !is_free
            || self.request.logprobs
            || self.request.top_logprobs > 0
            || generated < self.request.min_tokens as usize;
        match self.sampler.decisive() {
            _ if needs_row => Wants::Row,
            _ if self.request.sampling.is_argmax() => Wants::Best,
            Some(k) => Wants::Top(k),
            None => Wants::Row,
        }
    }

    /// Leading tokens that the model has seen.
    pub(crate) fn fed(&self) -> usize {
        self.fed
    }

    /// The model has taken in `rows` more tokens; how many of them are of the prompt.
    pub(crate) fn advance(&mut self, rows: usize) -> usize {
        let prompt_tokens = self.prompt_len.saturating_sub(self.fed).min(rows);
        self.fed += rows;
        prompt_tokens
    }

    /// Takes the token that has to come, or chooses the one that `answer` asks for. `None`: it is the last one.
    pub(crate) fn extend(&mut self, answer: Answer<'_>, chooser: &mut Chooser) -> Option<u32> {
        let generated = &self.tokens[self.prompt_len..];
        let forced = self.thinking.as_ref().and_then(ThinkingTracker::forced);
        let of_id = |id| {
            Ok(Choice::Token(Token {
                id: forced.unwrap_or(id),
                logprob: 0.0,
                top: Vec::new(),
            }))
        };
        let choice = match (answer, forced) {
            (Answer::Best(best), _) => of_id(best),
            (Answer::Top(top), _) => of_id(chooser.choose_top(&self.sampler, top, generated)),
            (Answer::Logits(logits), forced) => {
                if let Some(plain) = &mut self.plain {
                    plain.fingerprints.push(fingerprint(logits));
                }
                let from = self.grammar_from;
                let constraint = self.constraint.as_mut().filter(|_| from.is_some());
                match forced {
                    Some(id) => Ok(Choice::Token(Chooser::take(&self.request, logits, id))),
                    None => {
                        let (request, sampler) = (&self.request, &self.sampler);
                        chooser.choose(request, sampler, logits, generated, constraint)
                    }
                }
            }
        };
        match choice {
            Ok(Choice::Token(token)) => {
                let id = self.instead_of(token.id, self.grammar_from.is_some());
                self.push(Token { id, ..token }, forced.is_some());
            }
            Ok(Choice::End) => self.end(Ending::Finished(FinishReason::Stop)),
            Err(error) => self.end(stuck(&error)),
        }
        let newest = self.tokens.last().copied();
        newest.filter(|_| self.ending.is_none())
    }

    /// The token that stands where the model chose `id`: before the grammar has begun an answer cannot end, so that an end closes
    /// the reasoning. It keeps the log-probabilities of what was chosen.
    fn instead_of(&self, id: u32, has_begun: bool) -> u32 {
        let is_early = self.is_constrained() && !has_begun && self.request.stop_ids.contains(&id);
        let close = self.thinking.as_ref().map(ThinkingTracker::close_id);
        close.filter(|_| is_early).unwrap_or(id)
    }

    fn push(&mut self, token: Token, is_forced: bool) {
        let id = token.id;
        self.clock.token();
        self.tokens.push(id);
        self.unsent.push(token);
        let is_degenerate = self.note_thinking(id);
        if !is_forced && self.request.stop_ids.contains(&id) {
            return self.end(Ending::Finished(FinishReason::Stop));
        }
        self.note_grammar(id);
        if is_degenerate || self.tokens.len() == self.max_len {
            // The last token needs no place in the context: nothing follows it.
            self.end(Ending::Finished(FinishReason::Length));
        }
    }

    /// What a proposal becomes: of its tokens those that may come.
    pub(crate) fn grow(&self, proposal: &Proposal) -> DraftTree {
        let constraint = self.constraint.as_ref();
        let branch = constraint.filter(|_| self.grammar_from.is_some());
        let branch = branch.map(Constraint::branch);
        self.drafting.grow(proposal, branch)
    }

    /// Whether not every token may come next.
    pub(crate) fn is_constrained(&self) -> bool {
        self.constraint.is_some()
    }

    /// Follows the grammar, which begins behind the reasoning.
    fn note_grammar(&mut self, id: u32) {
        let is_reasoning = self.thinking.as_ref().is_some_and(ThinkingTracker::is_open);
        let Some(constraint) = &mut self.constraint else {
            return;
        };
        let is_complete = match self.grammar_from {
            Some(_) => constraint.advance(id),
            None if is_reasoning => return,
            None => {
                self.grammar_from = Some(self.tokens.len() - self.prompt_len);
                Ok(constraint.can_only_end())
            }
        };
        match is_complete {
            Ok(true) => self.end(Ending::Finished(FinishReason::Stop)),
            Ok(false) => {}
            Err(error) => self.end(stuck(&error)),
        }
    }

    /// Follows the reasoning; whether the answer behind a forced close runs in a loop.
    fn note_thinking(&mut self, id: u32) -> bool {
        let Some(thinking) = &mut self.thinking else {
            return false;
        };
        if thinking.push(id) {
            self.max_len = self.last_len.min(self.max_len + 1);
        }
        thinking.is_degenerate(&self.tokens[self.prompt_len..])
    }

    /// Tokens chosen that the caller has not been told.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Tells the caller which tokens were chosen, or how far the prompt is.
    pub(crate) fn send_news(&mut self) {
        if !self.is_decoding() {
            let prompt_tokens = count(self.fed);
            self.send(Ok(GenerateEvent::Progress { prompt_tokens }));
        }
        for token in std::mem::take(&mut self.unsent) {
            self.send(Ok(GenerateEvent::Token(token)));
        }
    }

    /// The token that plain decoding chooses at `position`, where `logits` are those of the token before it. `None`: none. Called
    /// for one position after the other.
    pub(crate) fn chosen_plainly(
        &mut self,
        position: usize,
        logits: &[f32],
        chooser: &mut Chooser,
    ) -> Option<u32> {
        let generated = &self.tokens[self.prompt_len..position];
        let thinking = self.thinking.as_ref();
        if let Some(forced) = thinking.and_then(|thinking| thinking.forced_at(generated.len())) {
            return Some(forced);
        }
        let has_begun = self
            .grammar_from
            .is_some_and(|from| from <= generated.len());
        let mut constraint = self.plain.as_mut()?.constraint.as_mut();
        constraint = constraint.filter(|_| has_begun);
        let grammar = constraint.as_deref_mut();
        let choice = chooser.choose(&self.request, &self.sampler, logits, generated, grammar);
        let Ok(Choice::Token(token)) = choice else {
            return None;
        };
        let is_stop = self.request.stop_ids.contains(&token.id);
        if let Some(constraint) = constraint.filter(|_| !is_stop) {
            // Where it fails, the sequence has failed there as well.
            constraint.advance(token.id).ok()?;
        }
        Some(self.instead_of(token.id, has_begun))
    }

    /// Prompt, then what was generated.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// Notes why it ends; what was noted first holds.
    pub(crate) fn end(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    /// Ends it if its caller dropped the stream.
    pub(crate) fn end_if_cancelled(&mut self) {
        if self.events.is_closed() {
            self.end(Ending::Cancelled);
        }
    }

    /// Why it ends, if it does.
    pub(crate) fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// Says how it ended. Its place has been given back already, so a caller can count on it.
    pub(crate) fn say_ending(self) {
        let Some(ending) = &self.ending else { return };
        let timings = self.timings();
        tracing::debug!(
            request_id = self.request.request_id,
            prompt_tokens = self.prompt_len,
            cached_tokens = self.cached,
            generated_tokens = timings.generated_tokens,
            prompt_ms = timings.prompt_ms,
            generated_ms = timings.generated_ms,
            ?ending,
            "request"
        );
        match ending {
            Ending::Finished(reason) => self.send(Ok(GenerateEvent::Finished {
                reason: *reason,
                timings,
            })),
            Ending::Failed(error) => self.send(Err(error.clone())),
            Ending::Cancelled => {}
        }
    }

    fn timings(&self) -> Timings {
        Timings {
            prompt_tokens: count(self.fed.min(self.prompt_len) - self.cached),
            prompt_ms: self.clock.prompt_ms(),
            generated_tokens: count(self.tokens.len() - self.prompt_len),
            generated_ms: self.clock.generated_ms(),
            speculation: self.drafting.timings,
        }
    }

    fn send(&self, event: Result<GenerateEvent, GenerateError>) {
        // Fails where the caller left, which the next step sees.
        let _ = self.events.send(event);
    }
}

fn stuck(error: &GrammarError) -> Ending {
    Ending::Failed(GenerateError::GrammarStuck(error.to_string()))
}

/// Lengths are bounded by the context, which is a `u32`.
fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
