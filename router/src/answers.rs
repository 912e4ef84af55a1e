//! The answers to one request: admission, and the events of all of them as one stream of pieces.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use api_types::CompressionReport;
use generation::{FinishReason, GenerateEvent, SpeculationTimings};
use metrics::Gauge;
use tokio::sync::OwnedSemaphorePermit;
use tokio_stream::{Stream, StreamExt, StreamMap};
use tokio_util::sync::WaitForCancellationFutureOwned;
use worker_api::WorkerError;

use crate::active::Listed;
use crate::answer::{Answer, Piece, Tally};
use crate::deadlines::Deadlines;
use crate::error::RouterError;
use crate::metrics::Metrics;
use crate::plan::AnswersPlan;
use crate::progress::{Progress, Stage};
use crate::record::{Outcome, Phase, RequestRecord};
use crate::state::State;
use crate::target::Target;

type Events = Pin<Box<dyn Stream<Item = Result<GenerateEvent, WorkerError>> + Send>>;

/// The answers to one request, prompt by prompt, `n` to each. Dropping it cancels them.
pub(crate) struct Answers {
    events: StreamMap<usize, Events>,
    answers: Vec<Answer>,
    /// Pieces that nobody took yet.
    ready: VecDeque<(usize, Piece)>,
    prompt_tokens: u32,
    compression: Option<CompressionReport>,
    /// Answers per prompt.
    n: usize,
    deadline: Pin<Box<WaitForCancellationFutureOwned>>,
    deadlines: Deadlines,
    metrics: Arc<Metrics>,
    record: Arc<RequestRecord>,
    progress: Progress,
    /// When the target was asked.
    asked: Instant,
    /// None of it is needed once the answers are complete or have failed.
    held: Option<Held>,
    _listed: Listed,
}

/// Room for the answers, given back when dropped.
pub(crate) struct Held {
    gauge: Gauge,
    answers: f64,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gauge.decrement(self.answers);
    }
}

impl Answers {
    /// Starts the answers at the target, or refuses them all. A prompt that may be made shorter is before.
    pub async fn start<T: Target>(
        state: &State<T>,
        mut plan: AnswersPlan,
        held: Held,
        record: Arc<RequestRecord>,
        progress: &Progress,
    ) -> Result<Self, RouterError> {
        let listed = state.active.list(&record);
        let n = plan.options.n as usize;
        let mut compression = None;
        if let Some(job) = plan.compression.take() {
            let shortened = tokio::select! {
                shortened = state.compressor.shorten(job, &record.id, progress) => shortened,
                () = state.deadline.cancelled() => return Err(RouterError::Draining),
            };
            progress.set(None);
            compression = shortened.report;
            plan.history_tokens = shortened.history_tokens;
            plan.prompts[0].0 = shortened.ids;
        }
        let requests = plan.requests(state, &record.id).await?;
        let thinking: Vec<_> = requests.iter().map(|r| r.thinking.clone()).collect();
        let deadlines = Deadlines::new(state.config.times, requests.len(), record.started);
        let mut events = StreamMap::with_capacity(requests.len());
        for (index, request) in requests.into_iter().enumerate() {
            let stream: Events = {
                let started = state.target.generate(request).await;
                Box::pin(started.map_err(|error| plan.blame(error))?)
            };
            events.insert(index, stream);
        }
        let prompt_tokens: usize = plan.prompts.iter().map(|(prompt, _)| prompt.len()).sum();
        let prompt_tokens = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
        state.metrics.prompt_tokens.increment(prompt_tokens.into());
        record.progressed(|so_far| {
            so_far.phase = Phase::Queued;
            so_far.prompt_tokens = prompt_tokens;
        });
        let tokenizer = &state.words.tokenizer;
        let answer = |(plan, thinking)| Answer::new(Arc::clone(tokenizer), plan, thinking);
        Ok(Self {
            events,
            answers: plan
                .prompts
                .iter()
                .flat_map(|(_, plan)| std::iter::repeat_n(plan, n))
                .zip(thinking)
                .map(answer)
                .collect(),
            ready: VecDeque::new(),
            prompt_tokens,
            compression,
            n,
            deadlines,
            deadline: Box::pin(state.deadline.clone().cancelled_owned()),
            metrics: Arc::clone(&state.metrics),
            record,
            progress: progress.clone(),
            asked: Instant::now(),
            held: Some(held),
            _listed: listed,
        })
    }

    /// Waits until the target has begun with the prompt, so that it is known how much of it was cached, or for
    /// `patience`.
    pub async fn begun(&mut self, patience: Duration) -> Result<(), RouterError> {
        let begun = poll_fn(|cx| {
            while self.record.so_far().phase < Phase::Prefill {
                match ready!(self.poll_event(cx)) {
                    Some(Ok(())) => {}
                    Some(Err(error)) => return Poll::Ready(Err(error)),
                    None => break,
                }
            }
            Poll::Ready(Ok(()))
        });
        let begun = tokio::time::timeout(patience, begun).await;
        begun.unwrap_or(Ok(()))
    }

    /// What one of them took so far.
    pub fn tally(&self, index: usize) -> Tally {
        self.answers[index].tally()
    }

    /// Tokens of the prompts.
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// How the prompt was made shorter, if it was.
    pub fn compression(&self) -> Option<&CompressionReport> {
        self.compression.as_ref()
    }

    /// What all of them took so far; a prompt with several answers counts its cached tokens once.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        for (index, answer) in self.answers.iter().enumerate() {
            let tally = answer.tally();
            if index % self.n == 0 {
                total.cached_tokens += tally.cached_tokens;
            }
            total.completion_tokens += tally.completion_tokens;
            total.reasoning_tokens += tally.reasoning_tokens;
            total.calls += tally.calls;
            total.timings.prompt_tokens += tally.timings.prompt_tokens;
            total.timings.prompt_ms += tally.timings.prompt_ms;
            total.timings.generated_tokens += tally.timings.generated_tokens;
            total.timings.generated_ms += tally.timings.generated_ms;
            add(&mut total.timings.speculation, &tally.timings.speculation);
        }
        total
    }

    /// Waits for the whole of each answer.
    pub async fn complete(&mut self) -> Result<Vec<(Piece, FinishReason)>, RouterError> {
        let mut whole = vec![Piece::default(); self.answers.len()];
        while let Some(next) = self.next().await {
            let (index, piece) = next?;
            whole[index].append(piece);
        }
        let finish = |piece: Piece| {
            let reason = piece.finish.expect("the stream ends after the last answer");
            (piece, reason)
        };
        Ok(whole.into_iter().map(finish).collect())
    }

    fn take(&mut self, index: usize, event: GenerateEvent) {
        self.deadlines.note(index, &event);
        let answer = &mut self.answers[index];
        match &event {
            GenerateEvent::Started { cached_tokens, .. } => {
                let waited = self.asked.elapsed();
                self.metrics.queue.record(waited);
                self.metrics
                    .cached_tokens
                    .increment((*cached_tokens).into());
                self.record.progressed(|so_far| {
                    so_far.phase = so_far.phase.max(Phase::Prefill);
                    so_far.cached_tokens += cached_tokens;
                });
            }
            GenerateEvent::Token(_) => {
                self.progress.set(None);
                self.metrics.generated_tokens.increment(1);
                self.record.progressed(|so_far| {
                    so_far.phase = Phase::Decode;
                    so_far.completion_tokens += 1;
                });
                match answer.last_token() {
                    None => self
                        .metrics
                        .first_token
                        .record(self.record.started.elapsed()),
                    Some(last) => self.metrics.inter_token.record(last.elapsed()),
                }
            }
            GenerateEvent::Progress { prompt_tokens } => {
                let tally = answer.tally();
                self.progress.set(Some(Stage::Prefilling {
                    cached: tally.cached_tokens,
                    done: *prompt_tokens,
                    total: tally.cached_tokens + tally.timings.prompt_tokens,
                }));
            }
            GenerateEvent::Finished { .. } => {}
        }
        let pieces = answer.push(event).into_iter();
        self.ready.extend(pieces.map(|piece| (index, piece)));
        if answer.is_finished() {
            // Nobody waits for what the target may still say.
            self.events.remove(&index);
            self.deadlines.complete(index);
            let tally = answer.tally();
            self.metrics.note_reasoning(&tally);
        }
    }

    fn end(&mut self, outcome: Outcome) {
        if self.held.take().is_some() {
            self.events.clear();
            let completion_tokens = self.total().completion_tokens;
            self.record
                .answered(outcome, self.prompt_tokens, completion_tokens);
        }
    }

    /// Takes the next event, if there is one to come.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(), RouterError>>> {
        if self.held.is_none() {
            return Poll::Ready(None);
        }
        if self.answers.iter().all(Answer::is_finished) {
            self.end(Outcome::Complete);
            return Poll::Ready(None);
        }
        if self.deadline.as_mut().poll(cx).is_ready() {
            return self.fail(RouterError::Draining);
        }
        // What is there counts, however late it is looked at.
        let Poll::Ready(next) = Pin::new(&mut self.events).poll_next(cx) else {
            let late = ready!(self.deadlines.poll(cx));
            if let RouterError::TooLong { wait, .. } = late {
                self.metrics.timed_out(wait);
            }
            return self.fail(late);
        };
        match next {
            Some((index, Ok(event))) => {
                self.take(index, event);
                Poll::Ready(Some(Ok(())))
            }
            Some((_, Err(error))) => self.fail(error.into()),
            None => {
                let broken = "the worker broke off its answer".to_owned();
                self.fail(WorkerError::Internal(broken).into())
            }
        }
    }

    fn fail(&mut self, error: RouterError) -> Poll<Option<Result<(), RouterError>>> {
        self.end(Outcome::Failed);
        Poll::Ready(Some(Err(error)))
    }
}

impl Stream for Answers {
    type Item = Result<(usize, Piece), RouterError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(next) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(next)));
            }
            match ready!(this.poll_event(cx)) {
                Some(Ok(())) => {}
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.end(Outcome::Cancelled);
    }
}

/// Takes room for all answers of `plan` at once, or none.
pub(crate) fn admit<T: Target>(state: &State<T>, plan: &AnswersPlan) -> Result<Held, RouterError> {
    if state.shutdown.is_cancelled() {
        return Err(RouterError::Draining);
    }
    let wanted = plan.prompts.len() * plan.options.n as usize;
    let limit = state.config.max_in_flight;
    let permits = u32::try_from(wanted).ok().filter(|_| wanted <= limit);
    let Some(permits) = permits else {
        return Err(RouterError::TooManyAnswers { wanted, limit });
    };
    let permit = Arc::clone(&state.permits).try_acquire_many_owned(permits);
    let permit = permit.map_err(|_| RouterError::Busy { limit })?;
    let answers = f64::from(permits);
    state.metrics.in_flight.increment(answers);
    Ok(Held {
        gauge: state.metrics.in_flight.clone(),
        answers,
        _permit: permit,
    })
}

fn add(total: &mut SpeculationTimings, more: &SpeculationTimings) {
    total.rounds += more.rounds;
    total.draft_tokens += more.draft_tokens;
    total.accepted_tokens += more.accepted_tokens;
    total.draft_ms += more.draft_ms;
    total.channel_ms += more.channel_ms;
    total.tree_ms += more.tree_ms;
    total.verify_ms += more.verify_ms;
    total.commit_ms += more.commit_ms;
}
