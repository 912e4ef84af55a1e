//! The thread that owns the drafter: takes one prompt at a time.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use models::ModelError;
use prompt_selection::{MIN_TOKENS, SelectOptions, chunk_scores, select};
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use worker_api::{CompressError, CompressPhase, CompressProgress, CompressTimings, Compression};

use crate::counters::Counters;
use crate::drafter::{Drafter, refusal};
use crate::job::Job;

/// What the thread is told.
#[derive(Debug)]
pub(crate) enum Command {
    Compress(Job),
    /// Give the device's memory back, and say when it is.
    Park(oneshot::Sender<()>),
    /// The worker shuts down.
    Stop,
}

/// The drafter, and what it is asked for.
pub(crate) struct Compressor {
    pub drafter: Drafter,
    /// Whether the weights stay on the device between prompts.
    pub keeps_weights: bool,
    pub counters: Arc<Counters>,
    /// Cancelled when prompts are not worth finishing any more.
    pub abandoned: CancellationToken,
}

impl Compressor {
    /// Runs until it is told to stop.
    pub fn run(&mut self, mut commands: Receiver<Command>) {
        while let Some(command) = commands.blocking_recv() {
            match command {
                Command::Compress(job) => self.take(job),
                Command::Park(parked) => {
                    self.park();
                    // Who asked may have left.
                    let _ = parked.send(());
                }
                Command::Stop => break,
            }
        }
    }

    fn take(&mut self, job: Job) {
        self.counters.running_requests.add(1);
        let mut answer = self.compress(&job);
        let is_whole = matches!(answer, Ok(_) | Err(CompressError::ShuttingDown));
        if !self.keeps_weights || !is_whole {
            // After an error the next prompt begins with a device opened anew.
            let park = self.park();
            if let Ok(compression) = &mut answer {
                compression.timings.park = park;
            }
        }
        self.note(&job, &answer);
        job.finish(answer);
    }

    fn compress(&mut self, job: &Job) -> Result<Compression, CompressError> {
        let request = &job.request;
        let mut timings = CompressTimings {
            wait: job.since.elapsed(),
            ..CompressTimings::default()
        };
        let importance = if request.tokens.len() < MIN_TOKENS {
            Vec::new()
        } else {
            self.score(job, &mut timings)?
        };
        let started = Instant::now();
        let options = SelectOptions {
            keep_ratio: request.keep_ratio,
            protected: &request.protected,
            within_budget: request.within_budget,
        };
        let kept = select(&request.tokens, &importance, &options).spans;
        timings.select = started.elapsed();
        Ok(Compression {
            tokens_in: request.tokens.len(),
            tokens_out: kept.iter().map(ExactSizeIterator::len).sum(),
            kept,
            timings,
            chunk_scores: match request.chunk_scores {
                true => chunk_scores(&importance),
                false => Vec::new(),
            },
        })
    }

    /// The importance of each token.
    fn score(
        &mut self,
        job: &Job,
        timings: &mut CompressTimings,
    ) -> Result<Vec<f32>, CompressError> {
        let tokens = &job.request.tokens;
        let abandoned = self.abandoned.clone();
        let go_on = || match job.is_cancelled() || abandoned.is_cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        if go_on().is_break() {
            return Err(stopped());
        }
        timings.load = self.load(job)?;
        let scorer = self.drafter.load(tokens.len())?;
        let started = Instant::now();
        let importance = scorer.score(tokens, &mut |so_far| {
            job.tell(CompressProgress {
                phase: CompressPhase::Scoring,
                done: so_far.done,
                total: so_far.total,
            });
            go_on()
        });
        timings.score = started.elapsed();
        match importance {
            Ok(importance) if importance.iter().all(|value| value.is_finite()) => Ok(importance),
            Ok(_) => Err(CompressError::Model(
                "the prefill drafter's scores are no numbers".to_owned(),
            )),
            Err(ModelError::ScoringStopped) => Err(stopped()),
            Err(error) => Err(refusal(error)),
        }
    }

    /// Brings the weights to the device if they are not there, and says how long it took.
    fn load(&mut self, job: &Job) -> Result<Duration, CompressError> {
        if self.drafter.is_loaded() {
            return Ok(Duration::ZERO);
        }
        let total = self.drafter.weight_bytes().map_err(refusal)?;
        let tell = |done| {
            job.tell(CompressProgress {
                phase: CompressPhase::Loading,
                done,
                total,
            });
        };
        tell(0);
        let started = Instant::now();
        self.drafter.load(job.request.tokens.len())?;
        let load = started.elapsed();
        tell(total);
        self.counters.loads.add(1);
        self.counters.load_us.add_time(load);
        self.counters.set_resident(true);
        Ok(load)
    }

    /// Gives the device's memory back, and says how long it took.
    fn park(&mut self) -> Duration {
        if !self.drafter.is_loaded() {
            return Duration::ZERO;
        }
        let started = Instant::now();
        self.drafter.park();
        let park = started.elapsed();
        self.counters.parks.add(1);
        self.counters.park_us.add_time(park);
        self.counters.set_resident(false);
        park
    }

    fn note(&self, job: &Job, answer: &Result<Compression, CompressError>) {
        let counters = &self.counters;
        counters.running_requests.subtract(1);
        counters.open_requests.subtract(1);
        let (request_id, tokens) = (&job.request.request_id, job.request.tokens.len());
        match answer {
            Ok(compression) => {
                counters.finished_requests.add(1);
                counters.tokens_in.add(compression.tokens_in);
                counters.tokens_out.add(compression.tokens_out);
                counters.score_us.add_time(compression.timings.score);
                counters.select_us.add_time(compression.timings.select);
                tracing::info!(
                    request_id,
                    tokens_in = compression.tokens_in,
                    tokens_out = compression.tokens_out,
                    load_ms = compression.timings.load.as_millis(),
                    score_ms = compression.timings.score.as_millis(),
                    park_ms = compression.timings.park.as_millis(),
                    "prompt compressed"
                );
            }
            Err(CompressError::ShuttingDown) => {
                counters.cancelled_requests.add(1);
                tracing::debug!(request_id, tokens, "prompt given up");
            }
            Err(error) => {
                counters.failed_requests.add(1);
                tracing::warn!(request_id, tokens, %error, "prompt not compressed");
            }
        }
    }
}

/// Nobody reads it where the stream was dropped.
fn stopped() -> CompressError {
    CompressError::ShuttingDown
}
