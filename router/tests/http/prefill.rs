//! A prefill worker that keeps what it is told to keep, and the words around each `needle`.

use std::ops::Range;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use gguf::GgufFile;
use proto::prefill::v1 as wire;
use proto::prefill::v1::prefill_server::{Prefill as Service, PrefillServer};
use router::Prefill;
use service::{Endpoint, GrpcListener, serve_grpc};
use tokenizer::Tokenizer;
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use worker_api::{CompressError, PrefillClient, compress_status};

use crate::client::WATCHDOG;
use crate::server::MODEL;

/// What the worker does with a request.
#[derive(Clone)]
pub enum Play {
    Answer,
    Refuse(CompressError),
    /// Has no room unless this says that there is some.
    Crowded(Arc<AtomicBool>),
    /// Tells progress, and then nothing.
    Hang,
    /// Ends without a word.
    BreakOff,
}

/// What the worker was asked.
#[derive(Clone)]
pub struct Asked {
    pub text: String,
    pub keep_ratio: f64,
    /// The parts of `text` that are protected.
    pub protected: Vec<String>,
}

#[derive(Clone)]
pub struct PlayedWorker {
    tokenizer: Arc<Tokenizer>,
    token_list: [u8; 32],
    shared: Arc<Shared>,
}

struct Shared {
    play: Mutex<Play>,
    asked: Mutex<Vec<Asked>>,
    dropped: Mutex<usize>,
    drops: Condvar,
}

impl PlayedWorker {
    /// A worker whose model has these tokens.
    pub fn new(tokenizer: Arc<Tokenizer>, token_list: [u8; 32]) -> Self {
        Self {
            tokenizer,
            token_list,
            shared: Arc::new(Shared {
                play: Mutex::new(Play::Answer),
                asked: Mutex::default(),
                dropped: Mutex::default(),
                drops: Condvar::new(),
            }),
        }
    }

    pub fn set(&self, play: Play) {
        *self.shared.play.lock().unwrap() = play;
    }

    /// Everything that it was asked since this was called last.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.shared.asked.lock().unwrap())
    }

    /// Serves in the runtime that this is called in, until it ends.
    pub fn serve(&self, dir: &Path) -> PrefillClient {
        let endpoint = Endpoint::Unix(dir.join("prefill.sock"));
        let client = PrefillClient::new(&endpoint).unwrap();
        let service = PrefillServer::new(self.clone());
        tokio::spawn(async move {
            let listener = GrpcListener::bind(&endpoint).await.unwrap();
            let (ready, never) = (watch::channel(true).1, CancellationToken::new());
            let served = serve_grpc(listener, service, ready, never, Duration::ZERO);
            served.await.unwrap();
        });
        client
    }

    /// The same for a router that knows of the target's tokens only.
    pub fn prefill(&self, dir: &Path) -> Prefill {
        let target = GgufFile::open(MODEL).unwrap();
        Prefill::new(self.serve(dir), &target).unwrap()
    }

    /// Waits until `count` calls are gone.
    pub fn wait_for_drops(&self, count: usize) {
        let dropped = self.shared.dropped.lock().unwrap();
        let drops = &self.shared.drops;
        let waited = drops.wait_timeout_while(dropped, WATCHDOG, |dropped| *dropped < count);
        assert!(!waited.unwrap().1.timed_out(), "the calls are still there");
    }

    fn compression(&self, request: &wire::CompressRequest) -> wire::Compression {
        let text = self.tokenizer.decode(&request.tokens, true);
        let ends = self.tokenizer.ends(&request.tokens, &text).unwrap();
        let start = |token: usize| token.checked_sub(1).map_or(0, |before| ends[before]);
        let mut keeps = vec![false; request.tokens.len()];
        for (token, keep) in keeps.iter_mut().enumerate() {
            let bytes = start(token)..ends[token];
            let needles = text.match_indices("needle");
            *keep = needles
                .map(|(at, _)| at..at + 20)
                .any(|needle| needle.start < bytes.end && bytes.start < needle.end);
        }
        for span in &request.protected {
            keeps[span.start as usize..span.end as usize].fill(true);
        }
        let mut kept: Vec<wire::Span> = Vec::new();
        for token in (0..keeps.len()).filter(|&token| keeps[token]) {
            match kept.last_mut() {
                Some(last) if last.end as usize == token => last.end += 1,
                _ => kept.push(wire::Span {
                    start: token as u32,
                    end: token as u32 + 1,
                }),
            }
        }
        wire::Compression {
            kept,
            tokens_in: keeps.len() as u32,
            tokens_out: keeps.iter().filter(|keep| **keep).count() as u32,
            timings: Some(wire::Timings::default()),
            chunk_scores: Vec::new(),
        }
    }

    fn note(&self, request: &wire::CompressRequest) {
        let text = self.tokenizer.decode(&request.tokens, true);
        let part = |span: Range<usize>| self.tokenizer.decode(&request.tokens[span], true);
        let spans = request.protected.iter();
        let protected = spans.map(|span| part(span.start as usize..span.end as usize));
        let asked = Asked {
            text,
            keep_ratio: request.keep_ratio,
            protected: protected.collect(),
        };
        self.shared.asked.lock().unwrap().push(asked);
    }
}

/// Tells of its end.
struct Dropped(Arc<Shared>);

impl Drop for Dropped {
    fn drop(&mut self) {
        *self.0.dropped.lock().unwrap() += 1;
        self.0.drops.notify_all();
    }
}

type Events = Pin<Box<dyn Stream<Item = Result<wire::CompressEvent, Status>> + Send>>;

#[tonic::async_trait]
impl Service for PlayedWorker {
    type CompressStream = Events;

    async fn describe(
        &self,
        _: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::PrefillDescription>, Status> {
        Ok(Response::new(wire::PrefillDescription {
            name: "played".to_owned(),
            context_length: 20_000,
            vocab_size: self.tokenizer.vocab_size() as u32,
            token_list: self.token_list.to_vec(),
            ..wire::PrefillDescription::default()
        }))
    }

    async fn compress(
        &self,
        request: Request<wire::CompressRequest>,
    ) -> Result<Response<Events>, Status> {
        let request = request.into_inner();
        self.note(&request);
        let progress = wire::Progress {
            phase: wire::progress::Phase::Scoring.into(),
            done: 3,
            total: 28,
        };
        let event = |event| Ok(wire::CompressEvent { event: Some(event) });
        use wire::compress_event::Event::{Compression, Progress};
        let opening = tokio_stream::once(event(Progress(progress)));
        let play = self.shared.play.lock().unwrap().clone();
        let events: Events = match play {
            Play::Refuse(error) => return Err(compress_status(&error)),
            Play::BreakOff => Box::pin(opening),
            Play::Hang => Box::pin(opening.chain(tokio_stream::pending())),
            Play::Crowded(has_room) if !has_room.load(Ordering::SeqCst) => {
                let no_room = CompressError::NoRoom("2 GiB of 1".to_owned());
                Box::pin(opening.chain(tokio_stream::once(Err(compress_status(&no_room)))))
            }
            Play::Answer | Play::Crowded(_) => {
                let compression = Compression(self.compression(&request));
                Box::pin(opening.chain(tokio_stream::once(event(compression))))
            }
        };
        let dropped = Dropped(Arc::clone(&self.shared));
        let events = events.map(move |event| {
            let _held = &dropped;
            event
        });
        Ok(Response::new(Box::pin(events)))
    }

    async fn park(&self, _: Request<wire::ParkRequest>) -> Result<Response<wire::Parked>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn stats(
        &self,
        _: Request<wire::StatsRequest>,
    ) -> Result<Response<wire::PrefillStats>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }
}
