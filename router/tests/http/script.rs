//! A target that plays a script and remembers what it was asked.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll};

use generation::{
    FinishReason, GenerateEvent, GenerateRequest, MemoryStats, ModelDescription, RoundReport,
    RoundStages, SpeculationStats, SpeculationTimings, Timings, Token, TopToken, WorkerStats,
};
use router::Target;
use tokenizer::Tokenizer;
use tokio_stream::{Stream, StreamExt};
use worker_api::{SpeculationDescription, WorkerError};

use crate::client::WATCHDOG;

/// What happens next in a call.
pub enum Step {
    Event(GenerateEvent),
    Fail(WorkerError),
    /// Nothing, until the call is dropped.
    Hang,
}

type Play = dyn Fn(&GenerateRequest) -> Result<Vec<Step>, WorkerError> + Send + Sync;

#[derive(Clone)]
pub struct Script {
    shared: Arc<Shared>,
    is_up: bool,
    context_length: u32,
}

struct Shared {
    play: Box<Play>,
    asked: Mutex<Vec<GenerateRequest>>,
    dropped: Mutex<usize>,
    drops: Condvar,
    watching: Mutex<usize>,
}

impl Script {
    pub fn new(
        play: impl Fn(&GenerateRequest) -> Result<Vec<Step>, WorkerError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                play: Box::new(play),
                asked: Mutex::default(),
                dropped: Mutex::default(),
                drops: Condvar::new(),
                watching: Mutex::default(),
            }),
            is_up: true,
            context_length: 512,
        }
    }

    /// Every answer is `text`.
    pub fn says(tokenizer: &Arc<Tokenizer>, text: &str) -> Self {
        let ids = tokenizer.encode(text, parsed());
        Self::new(move |request| Ok(answer(request, &ids)))
    }

    /// The target is not there yet.
    pub fn down(self) -> Self {
        Self {
            is_up: false,
            ..self
        }
    }

    /// The target can hold longer sequences.
    pub fn holding(self, context_length: u32) -> Self {
        Self {
            context_length,
            ..self
        }
    }

    pub fn asked(&self) -> Vec<GenerateRequest> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// How many watch rounds now.
    pub fn watching(&self) -> usize {
        *self.shared.watching.lock().unwrap()
    }

    /// Waits until `count` calls are gone.
    pub fn wait_for_drops(&self, count: usize) {
        let dropped = self.shared.dropped.lock().unwrap();
        let waited = self
            .shared
            .drops
            .wait_timeout_while(dropped, WATCHDOG, |dropped| *dropped < count);
        assert!(!waited.unwrap().1.timed_out(), "the calls are still there");
    }
}

pub fn parsed() -> tokenizer::EncodeOptions {
    tokenizer::EncodeOptions {
        add_bos: false,
        parse_special: true,
    }
}

/// Events as a worker would send them: cut at `max_tokens`, else ended by a stop token.
pub fn answer(request: &GenerateRequest, ids: &[u32]) -> Vec<Step> {
    let end = request.stop_ids.first();
    let ids: Vec<u32> = ids.iter().chain(end).copied().collect();
    let length = ids.len().min(request.max_tokens as usize);
    let mut steps = opening(request);
    steps.extend(ids[..length].iter().map(|&id| token(request, id)));
    let reason = if length < ids.len() {
        FinishReason::Length
    } else {
        FinishReason::Stop
    };
    steps.push(Step::Event(GenerateEvent::Finished {
        reason,
        timings: Timings {
            prompt_tokens: request.prompt.len() as u32 - 1,
            prompt_ms: 2.0,
            generated_tokens: length as u32,
            generated_ms: 10.0,
            speculation: SpeculationTimings {
                rounds: 4,
                draft_tokens: 20,
                accepted_tokens: 6,
                verify_ms: 7.5,
                ..SpeculationTimings::default()
            },
        },
    }));
    steps
}

pub fn opening(request: &GenerateRequest) -> Vec<Step> {
    vec![Step::Event(GenerateEvent::Started {
        prompt_tokens: request.prompt.len() as u32,
        cached_tokens: 1,
    })]
}

/// A token with the log-probability -0.5, and as many others as wanted.
pub fn token(request: &GenerateRequest, id: u32) -> Step {
    let top = |rank: u32| TopToken {
        id: id + rank,
        logprob: -0.5 - rank as f32,
    };
    Step::Event(GenerateEvent::Token(Token {
        id,
        logprob: if request.logprobs { -0.5 } else { 0.0 },
        top: (0..request.top_logprobs).map(top).collect(),
    }))
}

impl Target for Script {
    type Events = Call;
    type Rounds = Pin<Box<dyn Stream<Item = Result<RoundReport, WorkerError>> + Send>>;

    async fn describe(&self) -> Result<ModelDescription, WorkerError> {
        if !self.is_up {
            return Err(WorkerError::Unavailable("the model is loading".to_owned()));
        }
        Ok(ModelDescription {
            name: "demo".to_owned(),
            architecture: "qwen35".to_owned(),
            context_length: self.context_length,
            vocab_size: 8192,
            max_sequences: 4,
            device: "script".to_owned(),
        })
    }

    async fn speculation(&self) -> Result<SpeculationDescription, WorkerError> {
        self.describe().await?;
        Ok(SpeculationDescription {
            mode: "tree".to_owned(),
            hidden_size: 512,
            num_layers: 8,
            transports: Vec::new(),
        })
    }

    async fn stats(&self) -> Result<WorkerStats, WorkerError> {
        self.describe().await?;
        Ok(WorkerStats {
            steps: 7,
            memory: MemoryStats {
                resident_bytes: Some(123),
                device_free_bytes: None,
            },
            speculation: SpeculationStats {
                draft_attached: true,
                rounds: 11,
                rounds_by_accepted: vec![5, 2, 0, 4],
                verify_us: 1_500_000,
                ..SpeculationStats::default()
            },
            ..WorkerStats::default()
        })
    }

    async fn watch(&self, max_per_second: u32) -> Result<Self::Rounds, WorkerError> {
        self.describe().await?;
        assert!(max_per_second > 0);
        let watching = Watching::new(&self.shared);
        let rounds = tokio_stream::once(Ok(round())).chain(tokio_stream::pending());
        Ok(Box::pin(rounds.map(move |round| {
            let _held = &watching;
            round
        })))
    }

    async fn generate(&self, request: GenerateRequest) -> Result<Call, WorkerError> {
        let steps = (self.shared.play)(&request)?;
        self.shared.asked.lock().unwrap().push(request);
        Ok(Call {
            steps: steps.into(),
            shared: Arc::clone(&self.shared),
        })
    }
}

/// After `return`: `x` or `y`, and `z` after `y`; the target chose `y`, and then `w`.
pub fn round() -> RoundReport {
    let id = |text: &str| {
        let ids = crate::server::TOKENIZER.encode(text, parsed());
        assert_eq!(ids.len(), 1, "{text}");
        ids[0]
    };
    RoundReport {
        sequence: 3,
        position: 40,
        anchor: id(" return"),
        tokens: vec![id(" x"), id(" y"), id(" z")],
        parents: vec![0, 0, 2],
        log_probs: vec![-0.5, -1.0, -1.5],
        accepted: vec![2],
        chosen: vec![id(" y"), id(" w")],
        step_sequences: 1,
        stages: RoundStages {
            draft_us: 1000,
            channel_us: 200,
            tree_us: 30,
            verify_us: 4500,
            commit_us: 600,
        },
    }
}

/// One who watches rounds.
struct Watching(Arc<Shared>);

impl Watching {
    fn new(shared: &Arc<Shared>) -> Self {
        *shared.watching.lock().unwrap() += 1;
        Self(Arc::clone(shared))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        *self.0.watching.lock().unwrap() -= 1;
    }
}

pub struct Call {
    steps: VecDeque<Step>,
    shared: Arc<Shared>,
}

impl Stream for Call {
    type Item = Result<GenerateEvent, WorkerError>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(Step::Hang) = self.steps.front() {
            return Poll::Pending;
        }
        match self.steps.pop_front() {
            None => Poll::Ready(None),
            Some(Step::Event(event)) => Poll::Ready(Some(Ok(event))),
            Some(Step::Fail(error)) => Poll::Ready(Some(Err(error))),
            Some(Step::Hang) => unreachable!("seen above"),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        *self.shared.dropped.lock().unwrap() += 1;
        self.shared.drops.notify_all();
    }
}
