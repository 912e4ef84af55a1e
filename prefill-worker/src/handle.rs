//! The async side of the device thread.

use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use worker_api::{
    CompressError, CompressPhase, CompressProgress, CompressRequest, PrefillDescription,
};

use crate::compressor::Command;
use crate::counters::Counters;
use crate::job::{Event, Job};

/// A way to the thread that owns the drafter.
#[derive(Debug)]
pub(crate) struct Handle {
    pub description: PrefillDescription,
    /// Bounded: prompts that find no room are refused.
    pub commands: Sender<Command>,
    pub counters: Arc<Counters>,
    /// Cancelled when no more prompts are taken.
    pub stop: CancellationToken,
}

impl Handle {
    pub fn describe(&self) -> PrefillDescription {
        PrefillDescription {
            is_resident: self.counters.is_resident(),
            ..self.description.clone()
        }
    }

    /// Queues a prompt. Dropping the receiver cancels it.
    pub fn compress(&self, request: CompressRequest) -> Result<Receiver<Event>, CompressError> {
        if self.stop.is_cancelled() {
            return Err(CompressError::ShuttingDown);
        }
        self.check(&request.tokens)?;
        let (job, events) = Job::new(request);
        let before = self.counters.open_requests.get();
        if before > 0 {
            job.tell(CompressProgress {
                phase: CompressPhase::Waiting,
                done: 0,
                total: before,
            });
        }
        // Counted before the thread can be done with it.
        self.counters.open_requests.add(1);
        let queued = self.commands.try_send(Command::Compress(job));
        queued.map_err(|error| {
            self.counters.open_requests.subtract(1);
            match error {
                TrySendError::Full(_) => CompressError::QueueFull {
                    limit: self.commands.max_capacity(),
                },
                TrySendError::Closed(_) => CompressError::ShuttingDown,
            }
        })?;
        Ok(events)
    }

    fn check(&self, tokens: &[u32]) -> Result<(), CompressError> {
        let context_length = self.description.context_length as usize;
        if tokens.len() > context_length {
            return Err(CompressError::PromptTooLong {
                prompt_tokens: tokens.len(),
                context_length,
            });
        }
        let vocab_size = self.description.vocab_size;
        match tokens.iter().position(|&token| token >= vocab_size) {
            None => Ok(()),
            Some(index) => Err(CompressError::Invalid(format!(
                "token {} at position {index} is not one of the prefill drafter's {vocab_size}",
                tokens[index]
            ))),
        }
    }

    /// Waits for the prompts that came before, and until the device's memory is free.
    pub async fn park(&self) -> Result<(), CompressError> {
        let (parked, done) = oneshot::channel();
        let gone = |_| CompressError::ShuttingDown;
        let sent = self.commands.send(Command::Park(parked)).await;
        sent.map_err(|_| CompressError::ShuttingDown)?;
        done.await.map_err(gone)
    }
}
