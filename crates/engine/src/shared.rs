//! What the async side and the engine thread share.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use generation::{GenerateError, GenerateRequest, ModelDescription, WorkerStats};
use tokio::sync::watch;

use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::drafter::Drafter;
use crate::lease::{DrafterLease, DrafterSlot};
use crate::queue::{Phase, Queue, Waiting};
use crate::stream::{GenerateStream, stopped};

/// The queue with its lock, and the counters.
#[derive(Debug)]
pub(crate) struct Shared {
    pub description: ModelDescription,
    pub counters: Counters,
    /// A draft on its way to the thread.
    pub drafter: DrafterSlot,
    /// Held for moments only, never over a step or an `.await`.
    queue: Mutex<Queue>,
    /// Rung when the thread may have something to do.
    wake: Condvar,
    closed: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn new(description: ModelDescription, config: &EngineConfig) -> Self {
        Self {
            description,
            counters: Counters::default(),
            drafter: DrafterSlot::default(),
            queue: Mutex::new(Queue::new(config.max_sequences, config.queue_len)),
            wake: Condvar::new(),
            closed: watch::Sender::new(false),
        }
    }

    /// The queue is whole between any two of its methods, so a panic elsewhere under the lock does no harm.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drop_cancelled(&self, queue: &mut Queue) {
        self.counters.cancelled_requests.add(queue.drop_cancelled());
    }

    /// Puts a request into the queue.
    pub(crate) fn push(&self, request: GenerateRequest) -> Result<GenerateStream, GenerateError> {
        let (events, stream) = GenerateStream::new();
        let mut queue = self.queue();
        self.drop_cancelled(&mut queue);
        queue.push(Waiting { request, events })?;
        drop(queue);
        self.wake.notify_one();
        Ok(stream)
    }

    /// Blocks an idle thread until a request waits. `false` where the thread shall end.
    pub(crate) fn wait_for_work(&self, idle: bool) -> bool {
        let mut queue = self.queue();
        loop {
            let nothing = idle && queue.waiting() == 0 && !self.drafter.has_news();
            match queue.phase() {
                Phase::Open if !nothing => return true,
                Phase::Open => {}
                Phase::Draining { deadline } => {
                    let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
                    return !nothing && !late;
                }
                Phase::Closed(_) => return false,
            }
            queue = self
                .wake
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Offers the thread a draft.
    pub(crate) fn offer_drafter(self: &Arc<Self>, drafter: Box<dyn Drafter>) -> DrafterLease {
        let lease = DrafterLease::new(self.drafter.offer(drafter), Arc::clone(self));
        self.drafter_has_news();
        lease
    }

    /// Wakes the thread for a draft that is offered or taken away.
    pub(crate) fn drafter_has_news(&self) {
        // Under the lock, so that it cannot fall between the thread's look and its sleep.
        let queue = self.queue();
        self.drafter.note_news();
        drop(queue);
        self.wake.notify_one();
    }

    /// Whether a draft was offered or taken away since the last time.
    pub(crate) fn take_draft_news(&self) -> bool {
        self.drafter.take_news()
    }

    /// See [`Queue::admit`]; forgets cancelled requests first.
    pub(crate) fn admit(&self, fits: impl FnOnce(&GenerateRequest) -> bool) -> Option<Waiting> {
        let mut queue = self.queue();
        self.drop_cancelled(&mut queue);
        queue.admit(fits)
    }

    /// See [`Queue::leave`].
    pub(crate) fn leave(&self) {
        self.queue().leave();
    }

    /// Takes no more requests; those taken have `grace` to end.
    pub(crate) fn drain(&self, grace: Duration) {
        self.queue().drain(Instant::now().checked_add(grace));
        self.wake.notify_one();
    }

    /// The thread ends: answers what waits and tells everyone.
    pub(crate) fn close(&self) {
        let why = if std::thread::panicking() {
            stopped()
        } else {
            GenerateError::ShuttingDown
        };
        self.refuse(&why);
        self.closed.send_replace(true);
    }

    /// Answers what waits, and everything from now on, with `why`, or with what was said before.
    pub(crate) fn refuse(&self, why: &GenerateError) {
        let waiting = self.queue().close(why.clone());
        for Waiting { events, .. } in waiting {
            // A caller that left needs no answer.
            let _ = events.send(Err(why.clone()));
        }
    }

    /// Whether the thread runs.
    pub(crate) fn is_alive(&self) -> bool {
        !*self.closed.borrow()
    }

    /// Returns when the thread has ended.
    pub(crate) async fn closed(&self) {
        let mut closed = self.closed.subscribe();
        // Fails only where the sender is gone, and `self` holds it.
        let _ = closed.wait_for(|closed| *closed).await;
    }

    pub(crate) fn stats(&self) -> WorkerStats {
        let queue = self.queue();
        let count = |places: usize| u32::try_from(places).unwrap_or(u32::MAX);
        let (running, waiting) = (count(queue.running()), count(queue.waiting()));
        drop(queue);
        let counters = &self.counters;
        WorkerStats {
            running_sequences: running,
            queued_requests: waiting,
            prompt_tokens: counters.prompt_tokens.get(),
            generated_tokens: counters.generated_tokens.get(),
            steps: counters.steps.get(),
            finished_requests: counters.finished_requests.get(),
            cancelled_requests: counters.cancelled_requests.get(),
            speculation: counters.speculation.get(),
            prefix_cache: counters.prefix_cache.get(),
        }
    }
}
