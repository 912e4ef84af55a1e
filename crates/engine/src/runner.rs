//! The engine thread: one step after another, as long as there is something to do.

use std::sync::Arc;
use std::time::Instant;

use generation::{GenerateError, GenerateRequest};
use models::{Batch, Model, ModelError, Output};

use crate::choice::Chooser;
use crate::config::EngineConfig;
use crate::queue::Waiting;
use crate::scheduler::{Share, StepLimits, share_rows};
use crate::sequence::{Ending, Place, Sequence, new_tokens_limit};
use crate::shared::Shared;

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
}

impl Runner {
    /// `config` fits the model.
    pub(crate) fn new(model: Model, shared: Arc<Shared>, config: EngineConfig) -> Self {
        let limits = StepLimits {
            max_batch_rows: model.max_batch_rows(),
            prefill_chunk_tokens: config.prefill_chunk_tokens,
        };
        Self {
            model,
            shared,
            context_length: config.context_length,
            limits,
            running: Vec::with_capacity(config.max_sequences),
            promised_pages: 0,
            chooser: Chooser::default(),
        }
    }

    /// Runs until the engine is shut down.
    pub(crate) fn run(&mut self) {
        while self.shared.wait_for_work(self.running.is_empty()) {
            self.round();
        }
        for sequence in &mut self.running {
            sequence.end(Ending::Failed(GenerateError::ShuttingDown));
        }
        self.release_ended();
    }

    /// Makes room, fills it, and computes a step.
    fn round(&mut self) {
        for sequence in &mut self.running {
            sequence.end_if_cancelled();
        }
        self.release_ended();
        self.admit();
        self.step();
    }

    /// Starts the requests that there are places and pages for.
    fn admit(&mut self) {
        while let Some(waiting) = self.next_waiting() {
            self.start(waiting);
        }
        // Those that want no tokens have ended.
        self.release_ended();
    }

    fn next_waiting(&self) -> Option<Waiting> {
        let free_pages = self.model.cache().num_pages() - self.promised_pages;
        self.shared
            .admit(|request| self.pages(request) <= free_pages)
    }

    /// Pages that a request may come to need: of the tokens fed, which the last one is not.
    fn pages(&self, request: &GenerateRequest) -> usize {
        let new_tokens = new_tokens_limit(request, self.context_length);
        let fed = request.prompt.len() + new_tokens.saturating_sub(1);
        self.model.cache().pages_for(fed)
    }

    fn start(&mut self, waiting: Waiting) {
        let pages = self.pages(&waiting.request);
        match self.model.create_sequence() {
            Ok(id) => {
                let new_tokens = new_tokens_limit(&waiting.request, self.context_length);
                let sequence = Sequence::start(waiting, Place { id, pages }, new_tokens);
                self.promised_pages += pages;
                self.running.push(sequence);
            }
            Err(error) => {
                let request_id = waiting.request.request_id.as_str();
                tracing::error!(request_id, %error, "no sequence");
                self.shared.leave();
                // A caller that left needs no answer.
                let _ = waiting.events.send(Err(model_error(&error)));
            }
        }
    }

    fn step(&mut self) {
        let needs: Vec<_> = self.running.iter().map(Sequence::need).collect();
        let shares = share_rows(&needs, self.limits);
        if shares.is_empty() {
            return;
        }
        let segment = |share: &Share| self.running[share.sequence].segment(share.rows);
        let batch = Batch {
            segments: shares.iter().map(segment).collect(),
            capture_layers: Vec::new(),
        };
        let start = Instant::now();
        match self.model.forward(&batch) {
            Ok(output) => self.take_in(&shares, &output),
            Err(error) => self.fail(&shares, &error),
        }
        let elapsed_ms = start.elapsed().as_secs_f64() * 1000.0;
        tracing::debug!(sequences = shares.len(), elapsed_ms, "step");
        self.release_ended();
    }

    /// Moves the sequences of a step on. Counts first: who sees an event sees it counted.
    fn take_in(&mut self, shares: &[Share], output: &Output) {
        let counters = &self.shared.counters;
        counters.steps.add(1);
        counters.generated_tokens.add(output.rows.len());
        for share in shares {
            let prompt_tokens = self.running[share.sequence].advance(share.rows);
            counters.prompt_tokens.add(prompt_tokens);
        }
        let vocab_size = self.model.config().vocab_size;
        for (row, logits) in output
            .rows
            .iter()
            .zip(output.logits.chunks_exact(vocab_size))
        {
            let sequence = &mut self.running[shares[row.segment].sequence];
            sequence.extend(logits, &mut self.chooser);
        }
    }

    /// Ends the sequences of a step that could not be computed: what the model holds of them is uncertain.
    fn fail(&mut self, shares: &[Share], error: &ModelError) {
        tracing::error!(%error, sequences = shares.len(), "step");
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
        for sequence in ended {
            if let Err(error) = self.model.free_sequence(sequence.place.id) {
                tracing::error!(%error, "a sequence could not be freed");
            }
            self.promised_pages -= sequence.place.pages;
            self.shared.leave();
            match sequence.ending() {
                Some(Ending::Finished(_)) => self.shared.counters.finished_requests.add(1),
                Some(Ending::Cancelled) => self.shared.counters.cancelled_requests.add(1),
                Some(Ending::Failed(_)) | None => {}
            }
            sequence.say_ending();
        }
    }
}

fn model_error(error: &ModelError) -> GenerateError {
    GenerateError::Model(error.to_string())
}

#[cfg(test)]
mod tests;
