//! Has long prompts made shorter before the target reads them.
//!
//! What may be cut is said by the crate `compression`, what of it is worth keeping by the prefill worker. Where that one is not
//! there, is too slow or fails, the prompt goes on whole. What was kept of a body is remembered, so that the prompt of the next
//! turn begins as this one did and the target's prefixes stay good.

mod drafter;
mod job;
mod presence;
mod skip;
mod turns;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api_types::{CompressionMode, CompressionReport};
use compression::{Keep, Memory, Part, Rules, complement, inside, intersect, outside, widen};
use tokio::time::Instant;
use tokio_stream::StreamExt;
use worker_api::{
    CompressEvent, CompressRequest, Compression, PrefillClient, PrefillDescription, PrefillStats,
    WorkerError,
};

use crate::compression::drafter::Drafter;
pub use crate::compression::drafter::Prefill;
pub(crate) use crate::compression::drafter::token_list;
pub(crate) use crate::compression::job::Job;
use crate::compression::presence::Presence;
pub(crate) use crate::compression::skip::Skip;
pub use crate::compression::turns::TargetResidency;
use crate::compression::turns::{Turn, Turns};
use crate::metrics::Metrics;
use crate::progress::Progress;
use crate::state::{Words, offload};

/// Bodies that are remembered.
const REMEMBERED: usize = 1024;

/// When prompts are made shorter, and how much.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressionConfig {
    /// What holds where a request says nothing.
    pub mode: CompressionMode,
    /// Tokens from which a prompt is long.
    pub threshold: usize,
    /// What share is kept.
    pub keep: Keep,
    /// Which messages of a conversation are cut by themselves.
    pub rules: Rules,
    /// What a prompt may take; then it goes on whole.
    pub timeout: Duration,
}

impl Default for CompressionConfig {
    fn default() -> Self {
        Self {
            mode: CompressionMode::Off,
            threshold: 32_000,
            keep: Keep::Ratio(0.05),
            rules: Rules {
                hot_window: 2,
                // Most of an agent's prompt are results of a few thousand tokens; no single one comes near to `threshold`.
                message_tokens: 2048,
            },
            timeout: Duration::from_secs(120),
        }
    }
}

/// Makes prompts shorter.
#[derive(Debug)]
pub(crate) struct Compressor {
    config: CompressionConfig,
    words: Arc<Words>,
    metrics: Arc<Metrics>,
    memory: Mutex<Memory>,
    /// None is configured.
    worker: Option<Worker>,
}

#[derive(Debug)]
struct Worker {
    client: PrefillClient,
    drafter: Drafter,
    presence: Presence,
    /// With target and draft.
    turns: Turns,
}

/// A prompt as the target gets it.
#[derive(Debug, Clone)]
pub(crate) struct Shortened {
    pub ids: Vec<u32>,
    pub history_tokens: u32,
    /// Nothing where it is whole.
    pub report: Option<CompressionReport>,
}

impl Compressor {
    pub fn new(
        config: CompressionConfig,
        prefill: Option<Prefill>,
        words: Arc<Words>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let worker = prefill.map(|prefill| Worker {
            client: prefill.client,
            drafter: prefill.drafter,
            presence: Presence::default(),
            turns: Turns::new(prefill.others, config.timeout, Arc::clone(&metrics)),
        });
        Self {
            config,
            words,
            metrics,
            memory: Mutex::new(Memory::new(REMEMBERED)),
            worker,
        }
    }

    pub fn config(&self) -> &CompressionConfig {
        &self.config
    }

    /// Why the worker is not used now, if it is not.
    pub fn trouble(&self) -> Option<String> {
        match &self.worker {
            Some(worker) => worker.presence.trouble(),
            None => Some("none is configured".to_owned()),
        }
    }

    /// What the worker is and has done; `None` where none is configured.
    pub async fn worker(&self) -> Option<Result<(PrefillDescription, PrefillStats), WorkerError>> {
        let client = &self.worker.as_ref()?.client;
        Some(tokio::try_join!(client.describe(), client.stats()))
    }

    /// Makes the prompt of `job` shorter, as far as that can be done.
    pub async fn shorten(&self, mut job: Job, request_id: &str, progress: &Progress) -> Shortened {
        let started = Instant::now();
        let asked = self.ask_for_all(&mut job, request_id, progress).await;
        let elapsed = started.elapsed();
        if let Err(skip) = asked {
            self.skipped(skip);
        }
        let shortened = job.shortened(&self.words.tokenizer, elapsed);
        if let Some(report) = &shortened.report {
            self.metrics.compression.ran(report, elapsed);
            tracing::info!(
                request_id,
                scope = report.scope,
                original_tokens = report.original_tokens,
                kept_tokens = report.kept_tokens,
                elapsed_ms = report.ms,
                "prompt compressed"
            );
        }
        shortened
    }

    /// Counts a prompt that stays whole.
    pub fn skipped(&self, skip: Skip) {
        self.metrics.compression.skipped(skip);
    }

    /// Fills in what is kept of each body that is due and not remembered.
    async fn ask_for_all(
        &self,
        job: &mut Job,
        request_id: &str,
        progress: &Progress,
    ) -> Result<(), Skip> {
        let unknown = job.unknown();
        if unknown.is_empty() {
            return Ok(());
        }
        let worker = self.worker.as_ref().ok_or(Skip::Absent)?;
        if !worker.presence.may_try() {
            return Err(Skip::Absent);
        }
        let ask = async {
            let turn = worker.turns.take().await;
            if job.is_opening() {
                let parts: Vec<&Part> = unknown.iter().map(|&part| job.part(part)).collect();
                let cuts = parts.iter().map(|part| part.cut.clone()).collect();
                let text = Arc::clone(&job.text);
                let question = self.question(job, text, cuts, request_id);
                let kept = worker.ask(&self.words, question, progress, &turn).await?;
                for part in unknown {
                    self.learn(job, part, &kept);
                }
                return Ok(());
            }
            for part in unknown {
                let body = job.part(part).body.bytes.clone();
                let text: Arc<str> = job.text[body.clone()].into();
                let cut = &job.part(part).cut;
                let cut = cut.start - body.start..cut.end - body.start;
                let question = self.question(job, text, vec![cut], request_id);
                let kept = worker.ask(&self.words, question, progress, &turn).await?;
                let kept: Vec<Range<usize>> = kept
                    .iter()
                    .map(|kept| kept.start + body.start..kept.end + body.start)
                    .collect();
                self.learn(job, part, &kept);
            }
            Ok(())
        };
        let asked = tokio::time::timeout(self.config.timeout, ask).await;
        let asked = asked.unwrap_or_else(|_| {
            let seconds = self.config.timeout.as_secs_f64();
            worker
                .presence
                .failed(&format!("no answer within {seconds} s"));
            Err(Skip::Timeout)
        });
        if asked.is_ok() {
            worker.presence.answered();
        }
        asked
    }

    fn question(
        &self,
        job: &Job,
        text: Arc<str>,
        cuts: Vec<Range<usize>>,
        request_id: &str,
    ) -> Question {
        Question {
            text,
            cuts,
            keep: match job.keep_ratio {
                Some(ratio) => Keep::Ratio(ratio),
                None => self.config.keep.clone(),
            },
            request_id: request_id.to_owned(),
        }
    }

    /// Takes what of the prompt is kept for a part of it, and remembers it.
    fn learn(&self, job: &mut Job, part: usize, kept: &[Range<usize>]) {
        let (key, kept) = job.keep(part, kept);
        self.memory().insert(key, kept);
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // Whoever panicked left whole entries.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a worker is asked.
struct Question {
    text: Arc<str>,
    /// Bytes of the text that may go.
    cuts: Vec<Range<usize>>,
    keep: Keep,
    request_id: String,
}

impl Worker {
    /// The bytes of a text that are kept, of those that may go. Where there is no room, the target makes some.
    async fn ask(
        &self,
        words: &Arc<Words>,
        question: Question,
        progress: &Progress,
        turn: &Turn,
    ) -> Result<Vec<Range<usize>>, Skip> {
        let (request, ends) = self.request(words, &question).await?;
        let tokens = request.tokens.len();
        let mut answer = self.answer(request.clone(), progress).await;
        if let Err(WorkerError::NoRoom(why)) = &answer {
            match turn.make_room(tokens).await {
                Ok(true) => {
                    answer = self.answer(request, progress).await;
                    if matches!(answer, Err(WorkerError::NoRoom(_))) {
                        turn.note_in_vain(tokens);
                    }
                }
                Ok(false) => {}
                Err(error) => {
                    let words = format!("{why}; the target does not leave its device: {error}");
                    answer = Err(WorkerError::NoRoom(words));
                }
            }
        }
        let compression = answer.map_err(|error| self.presence.refused(&error))?;
        let kept = compression.kept.iter();
        let kept: Vec<Range<usize>> = kept.map(|span| outside(&ends, span)).collect();
        let cuts = question.cuts.iter();
        let pieces = cuts.flat_map(|cut| widen(&question.text, &intersect(&kept, cut), cut));
        Ok(pieces.collect())
    }

    /// The question in the tokens of the worker's model, and where each of them ends in the text.
    async fn request(
        &self,
        words: &Arc<Words>,
        question: &Question,
    ) -> Result<(CompressRequest, Vec<usize>), Skip> {
        let described = self.client.describe().await;
        let model = described.map_err(|error| self.presence.refused(&error))?;
        let tokenizer = if model.token_list.is_some() && words.token_list == model.token_list {
            &words.tokenizer
        } else if Some(self.drafter.token_list) == model.token_list {
            &self.drafter.tokenizer
        } else {
            let name = &model.name;
            self.presence
                .failed(&format!("nothing is known of the tokens of its {name}"));
            return Err(Skip::Vocabulary);
        };
        let tokenizer = Arc::clone(tokenizer);
        let text = Arc::clone(&question.text);
        let spelled = offload(text.len(), move || drafter::spell(&tokenizer, &text)).await;
        let (tokens, ends) = spelled.ok().flatten().ok_or(Skip::Text)?;
        if tokens.len() > model.context_length as usize {
            return Err(Skip::TooLong);
        }
        let loose = question.cuts.iter().map(|cut| inside(&ends, cut));
        let loose: Vec<Range<usize>> = loose.filter(|tokens| !tokens.is_empty()).collect();
        let request = CompressRequest {
            request_id: question.request_id.clone(),
            keep_ratio: question.keep.of(tokens.len()),
            protected: complement(&loose, &(0..tokens.len())),
            tokens,
            // A table or a log repeats so much of itself that nothing would be cut else.
            within_budget: true,
            chunk_scores: false,
        };
        Ok((request, ends))
    }

    async fn answer(
        &self,
        request: CompressRequest,
        progress: &Progress,
    ) -> Result<Compression, WorkerError> {
        let mut stream = self.client.compress(request).await?;
        while let Some(event) = stream.next().await {
            match event? {
                CompressEvent::Progress(so_far) => progress.compressing(so_far),
                CompressEvent::Finished(compression) => return Ok(compression),
            }
        }
        Err(WorkerError::Internal("it broke off its answer".to_owned()))
    }
}
