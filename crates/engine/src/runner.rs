//! The engine thread: one step after another, as long as there is something to do.

mod drafts;
mod held;
mod parking;
mod report;
mod reuse;

use std::sync::Arc;
use std::time::{Duration, Instant};

use generation::{GenerateError, GenerateRequest};
use models::{Batch, Model, ModelError, Output};

use crate::choice::Chooser;
use crate::config::EngineConfig;
use crate::disk::DiskTier;
use crate::prefixes::Prefixes;
use crate::queue::Waiting;
use crate::runner::held::HeldRequests;
use crate::runner::parking::PATIENCE;
use crate::scheduler::{Share, StepLimits, rows_for_drafts, share_rows};
use crate::sequence::{Ending, Place, Sequence, new_tokens_limit};
use crate::shadow::Shadows;
use crate::shared::Shared;
use crate::speculation::{Speculator, ms};
use crate::watch::RoundTeller;

/// The model and the sequences in it.
pub(crate) struct Runner {
    model: Model,
    shared: Arc<Shared>,
    context_length: usize,
    limits: StepLimits,
    /// In order of arrival.
    running: Vec<Sequence>,
    /// Pages that the running sequences may come to need, so that none runs out on its way.
    promised_pages: usize,
    chooser: Chooser,
    speculator: Speculator,
    prefixes: Prefixes,
    /// Dropped before the files, which wait for who is being read for.
    held: HeldRequests,
    /// Prefixes in files, where they are kept there.
    disk: Option<DiskTier>,
    /// Draft rows that a sequence may write behind its tokens.
    draft_rows: usize,
    /// Where tokens are held against plain decoding.
    shadows: Option<Shadows>,
    teller: RoundTeller,
    /// How long requests wait for weights that do not come back.
    patience: Duration,
    /// Why the model is of no use any more.
    gone: Option<GenerateError>,
}

impl Runner {
    /// `config` fits the model.
    pub(crate) fn new(
        model: Model,
        shared: Arc<Shared>,
        config: EngineConfig,
        disk: Option<DiskTier>,
    ) -> Self {
        let limits = StepLimits {
            max_batch_rows: model.max_batch_rows(),
            prefill_chunk_tokens: config.prefill_chunk_tokens,
        };
        let sizes = model.config();
        let speculator = Speculator::new(config.speculation, sizes.hidden_size, sizes.vocab_size);
        Self {
            model,
            prefixes: Prefixes::new(config.prefix_cache, Arc::clone(&shared)),
            disk,
            held: HeldRequests::default(),
            teller: RoundTeller::new(shared.watchers.clone()),
            shared,
            context_length: config.context_length,
            limits,
            running: Vec::with_capacity(config.max_sequences),
            promised_pages: 0,
            chooser: Chooser::default(),
            speculator,
            draft_rows: config.speculation.max_rows(),
            shadows: config.verify_lossless.then(Shadows::default),
            patience: PATIENCE,
            gone: None,
        }
    }

    /// Runs until the engine is shut down, or the model is gone.
    pub(crate) fn run(&mut self) {
        let mut has_more = false;
        while self.gone.is_none() && self.shared.wait_for_work(self.rest(has_more)) {
            if !self.give_way() {
                break;
            }
            has_more = self.round();
        }
        let why = self.gone.clone().unwrap_or(GenerateError::ShuttingDown);
        for sequence in &mut self.running {
            sequence.end(Ending::Failed(why.clone()));
        }
        self.release_ended();
        self.end_disk(&why);
        self.shared.refuse(&why);
    }

    /// Makes room, fills it, and computes a step; whether files keep the thread busy beside.
    fn round(&mut self) -> bool {
        for sequence in &mut self.running {
            sequence.end_if_cancelled();
        }
        self.release_ended();
        self.take_draft();
        self.admit();
        let has_more = self.tend_disk();
        self.release_ended();
        self.step();
        has_more
    }

    /// Takes a draft that is offered, and lets go of one that is taken away.
    fn take_draft(&mut self) {
        let counters = &self.shared.counters.speculation;
        if !self.shared.take_draft_news() {
            return;
        }
        self.speculator.check_lease(counters, &mut self.running);
        if let Some(offered) = self.shared.drafter.take() {
            self.speculator.attach(offered, counters, &mut self.running);
        }
    }

    /// Starts the requests that there are places and pages for.
    fn admit(&mut self) {
        while let Some(waiting) = self.next_waiting() {
            self.start_or_hold(waiting);
        }
        // Those that want no tokens have ended.
        self.release_ended();
    }

    fn next_waiting(&self) -> Option<Waiting> {
        let free_pages = self.model.cache().num_pages() - self.promised_pages;
        self.shared
            .admit(|request| self.pages(request) <= free_pages)
    }

    /// Pages that a request may come to need: of the tokens fed, which the last one is not, and of a draft behind them.
    fn pages(&self, request: &GenerateRequest) -> usize {
        let new_tokens = new_tokens_limit(request, self.context_length);
        let fed = request.prompt.len() + new_tokens.saturating_sub(1);
        let cache = self.model.cache();
        let shadow = self.shadows.as_ref().map_or(0, |_| cache.pages_for(fed));
        cache.pages_for(fed + self.draft_rows) + shadow
    }

    fn start(&mut self, waiting: Waiting) {
        let pages = self.pages(&waiting.request);
        match self.sequence_for(&waiting.request) {
            Ok((id, marks)) => {
                let prompt_len = waiting.request.prompt.len();
                self.model.begin_decoding(id, prompt_len);
                let new_tokens = new_tokens_limit(&waiting.request, self.context_length);
                let place = Place { id, pages };
                let mut drafting = self.speculator.start(waiting.request.speculation);
                self.restore_features(&mut drafting, marks);
                let mut sequence = Sequence::start(waiting, place, new_tokens, drafting, marks);
                if self.shadows.is_some() {
                    sequence.keep_fingerprints();
                }
                self.promised_pages += pages;
                self.running.push(sequence);
            }
            Err(error) => {
                let request_id = waiting.request.request_id.as_str();
                tracing::error!(request_id, %error, "no sequence");
                note_gone(&mut self.gone, &error);
                self.shared.leave();
                // A caller that left needs no answer.
                let _ = waiting.events.send(Err(model_error(&error)));
            }
        }
    }

    fn step(&mut self) {
        let needs: Vec<_> = self.running.iter().map(Sequence::need).collect();
        let free_rows = rows_for_drafts(&needs, self.limits);
        let counters = &self.shared.counters.speculation;
        self.speculator.plan(counters, &mut self.running, free_rows);
        let needs: Vec<_> = self.running.iter().map(Sequence::need).collect();
        let shares = share_rows(&needs, self.limits);
        if shares.is_empty() {
            return;
        }
        let segment = |share: &Share| self.running[share.sequence].segment(share.rows);
        let batch = Batch {
            segments: shares.iter().map(segment).collect(),
            capture_layers: self.speculator.capture_layers().to_vec(),
        };
        let start = Instant::now();
        let room = self.make_room_for(&shares);
        let result = room.and_then(|()| self.model.forward(&batch));
        let elapsed = start.elapsed();
        tracing::debug!(sequences = shares.len(), elapsed_ms = ms(elapsed), "step");
        match result {
            Ok(output) => self.take_in(&shares, &output, elapsed),
            Err(error) => {
                self.fail(&shares, &error);
                self.ask_draft();
            }
        }
        self.release_ended();
    }

    /// Moves the sequences of a step on. Counts first: who sees an event sees it counted.
    fn take_in(&mut self, shares: &[Share], output: &Output, elapsed: Duration) {
        let (mut rows, mut prompt_tokens) = (0, 0);
        let mut verified = Vec::new();
        for (segment, share) in shares.iter().enumerate() {
            let place = Rows {
                segment,
                first: rows,
            };
            rows += share.rows;
            prompt_tokens += match self.running[share.sequence].drafting.tree.take() {
                Some(tree) => {
                    let round = self.take_in_draft(share, tree, output, place, elapsed);
                    self.note_round(&round, shares.len());
                    verified.push(round);
                    0
                }
                None => self.take_in_tokens(share, output, place, elapsed),
            };
        }
        if prompt_tokens == 0 {
            self.speculator.note_step(rows, elapsed);
        }
        // Commits lie beside what the draft does. Plain decoding, where tokens are held against it, would be taken for the draft's time.
        let is_checked = self.shadows.is_some();
        if !is_checked {
            self.ask_draft();
        }
        for round in &verified {
            self.commit(round, shares.len());
        }
        if is_checked {
            self.check_shadows(shares);
            self.ask_draft();
        }
        self.keep_prompts(shares);
        let counters = &self.shared.counters;
        let unsent = |share: &Share| self.running[share.sequence].unsent();
        counters.steps.add(1);
        counters
            .generated_tokens
            .add(shares.iter().map(unsent).sum());
        counters.prompt_tokens.add(prompt_tokens);
        for share in shares {
            self.running[share.sequence].send_news();
        }
    }

    /// Accepted tokens, whose last row may say what follows. How many of them were of a prompt.
    fn take_in_tokens(
        &mut self,
        share: &Share,
        output: &Output,
        place: Rows,
        elapsed: Duration,
    ) -> usize {
        let sequence = &mut self.running[share.sequence];
        let rows = place.first..place.first + share.rows;
        let position = sequence.fed();
        self.speculator
            .keep_features(sequence, &mut self.model, position, rows);
        let was_decoding = sequence.is_decoding();
        let prompt_tokens = sequence.advance(share.rows);
        if let Some(answer) = output.answer(place.segment, share.rows - 1) {
            sequence.extend(answer, &mut self.chooser);
        }
        if was_decoding {
            self.speculator.note_plain(sequence, elapsed);
            let counters = &self.shared.counters.speculation;
            counters.update(|stats| stats.plain_tokens += 1);
        }
        prompt_tokens
    }

    /// Holds what was chosen against plain decoding, if that is wanted.
    fn check_shadows(&mut self, shares: &[Share]) {
        let Some(shadows) = &mut self.shadows else {
            return;
        };
        for share in shares {
            let sequence = &mut self.running[share.sequence];
            let counters = &self.shared.counters.speculation;
            if let Err(error) = shadows.check(&mut self.model, sequence, counters) {
                tracing::error!(%error, "plain decoding beside a sequence");
                note_gone(&mut self.gone, &error);
                sequence.end(Ending::Failed(model_error(&error)));
            }
        }
    }

    /// Ends the sequences of a step that could not be computed: what the model holds of them is uncertain.
    fn fail(&mut self, shares: &[Share], error: &ModelError) {
        tracing::error!(%error, sequences = shares.len(), "step");
        note_gone(&mut self.gone, error);
        for share in shares {
            self.running[share.sequence].end(Ending::Failed(model_error(error)));
        }
    }

    /// Frees what ended sequences held, counts them, and only then tells their callers.
    fn release_ended(&mut self) {
        let ended: Vec<Sequence> = self
            .running
            .extract_if(.., |sequence| sequence.ending().is_some())
            .collect();
        for mut sequence in ended {
            self.keep_ended(&sequence);
            if let Err(error) = self.model.free_sequence(sequence.place.id)
                && self.gone.is_none()
            {
                tracing::error!(%error, "a sequence could not be freed");
                note_gone(&mut self.gone, &error);
            }
            if let Some(shadows) = &mut self.shadows {
                shadows.free(&mut self.model, &sequence);
            }
            self.speculator.forget(&mut sequence);
            self.promised_pages -= sequence.place.pages;
            self.shared.leave();
            match sequence.ending() {
                Some(Ending::Finished(_)) => self.shared.counters.finished_requests.add(1),
                Some(Ending::Cancelled) => self.shared.counters.cancelled_requests.add(1),
                Some(Ending::Failed(_)) | None => {}
            }
            sequence.say_ending();
        }
        let counters = &self.shared.counters.speculation;
        self.speculator.tell_endings(counters, &mut self.running);
    }
}

/// Where a sequence's rows stand in a step's output.
#[derive(Clone, Copy, Debug)]
struct Rows {
    segment: usize,
    first: usize,
}

fn model_error(error: &ModelError) -> GenerateError {
    match error {
        ModelError::EarlierLayers(error) => GenerateError::Gone(error.to_string()),
        error => GenerateError::Model(error.to_string()),
    }
}

/// Keeps the first error after which there is no model.
fn note_gone(gone: &mut Option<GenerateError>, error: &ModelError) {
    if matches!(error, ModelError::EarlierLayers(_)) {
        gone.get_or_insert_with(|| model_error(error));
    }
}

#[cfg(test)]
mod tests;
