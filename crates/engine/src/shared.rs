//! What the async side and the engine thread share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use generation::{
    GenerateError, GenerateRequest, MemoryStats, ModelDescription, PrefixCacheStats, WorkerStats,
};
use grammar::Matcher;
use tokio::sync::watch;

use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::drafter::Drafter;
use crate::lease::{DrafterLease, DrafterSlot};
use crate::parking::{Parking, ParkingLease, Residency};
use crate::queue::{Phase, Queue, Waiting};
use crate::stream::{GenerateStream, stopped};
use crate::watch::Watchers;

/// The queue with its lock, and the counters.
#[derive(Debug)]
pub(crate) struct Shared {
    pub description: ModelDescription,
    pub counters: Counters,
    pub watchers: Watchers,
    /// A draft on its way to the thread.
    pub drafter: DrafterSlot,
    /// Who wants the weights away.
    pub parking: Parking,
    /// Whether the weights can leave.
    pub can_park: bool,
    /// Held for moments only, never over a step or an `.await`.
    queue: Mutex<Queue>,
    /// Rung when the thread may have something to do.
    wake: Condvar,
    closed: watch::Sender<bool>,
    /// Something came from files, or is wanted for them. Release by `store_has_news` pairs with Acquire in `take_store_news`.
    store_news: AtomicBool,
}

/// What an idle thread waits for, beside requests and drafts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rest {
    /// It is not idle.
    pub is_busy: bool,
    /// It has something to do then.
    pub until: Option<Instant>,
    /// Requests wait for what comes from files.
    pub owes_answers: bool,
}

/// What a thread whose weights are away does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhileParked {
    /// Look after callers, and rest again; whether that is because somebody wants the weights away.
    Wait { is_wanted: bool },
    /// Have the weights back.
    Return,
    /// There is nothing left to compute.
    End,
}

/// How often a thread whose weights are away looks whether callers left.
const PARKED_REST: Duration = Duration::from_millis(20);

impl Shared {
    pub(crate) fn new(
        description: ModelDescription,
        config: &EngineConfig,
        can_park: bool,
    ) -> Self {
        Self {
            description,
            counters: Counters::default(),
            watchers: Watchers::default(),
            drafter: DrafterSlot::default(),
            parking: Parking::default(),
            can_park,
            queue: Mutex::new(Queue::new(config.max_sequences, config.queue_len)),
            wake: Condvar::new(),
            closed: watch::Sender::new(false),
            store_news: AtomicBool::new(false),
        }
    }

    /// The queue is whole between any two of its methods, so a panic elsewhere under the lock does no harm.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drop_cancelled(&self, queue: &mut Queue) {
        self.counters.cancelled_requests.add(queue.drop_cancelled());
    }

    /// Puts a request into the queue, with its grammar at its beginning.
    pub(crate) fn push(
        &self,
        request: GenerateRequest,
        matcher: Option<Matcher>,
    ) -> Result<GenerateStream, GenerateError> {
        if let Residency::Away(why) = self.parking.residency() {
            return Err(GenerateError::Away(why));
        }
        let (events, stream) = GenerateStream::new();
        let mut queue = self.queue();
        self.drop_cancelled(&mut queue);
        queue.push(Waiting {
            request,
            matcher,
            events,
        })?;
        drop(queue);
        self.wake.notify_one();
        Ok(stream)
    }

    /// Blocks an idle thread until there is something to do. `false` where the thread shall end.
    pub(crate) fn wait_for_work(&self, rest: Rest) -> bool {
        let mut queue = self.queue();
        loop {
            let now = Instant::now();
            let has_news = self.drafter.has_news() || self.take_store_news();
            let has_work = rest.is_busy || queue.waiting() > 0 || has_news;
            let until = match queue.phase() {
                Phase::Open if has_work || self.parking.is_wanted() => return true,
                Phase::Open if rest.until.is_some_and(|time| now >= time) => return true,
                Phase::Open => rest.until,
                Phase::Draining { deadline } => {
                    let late = deadline.is_some_and(|deadline| now >= deadline);
                    if late || !rest.owes_answers || has_work {
                        return has_work && !late;
                    }
                    *deadline
                }
                Phase::Closed(_) => return false,
            };
            queue = self.sleep(queue, until);
        }
    }

    /// Sleeps until it is woken, or until a time.
    fn sleep<'a>(
        &self,
        queue: MutexGuard<'a, Queue>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Queue> {
        let Some(until) = until else {
            let woken = self.wake.wait(queue);
            return woken.unwrap_or_else(PoisonError::into_inner);
        };
        let time = until.saturating_duration_since(Instant::now());
        let woken = self.wake.wait_timeout(queue, time);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Blocks the thread until there is news of files, or until a time.
    pub(crate) fn wait_for_store(&self, until: Instant) {
        let mut queue = self.queue();
        while !self.take_store_news() && Instant::now() < until {
            queue = self.sleep(queue, Some(until));
        }
    }

    /// Wakes the thread for what came from files, or is wanted for them.
    pub(crate) fn store_has_news(&self) {
        // Under the lock, so that it cannot fall between the thread's look and its sleep.
        let queue = self.queue();
        self.store_news.store(true, Ordering::Release);
        drop(queue);
        self.wake.notify_one();
    }

    fn take_store_news(&self) -> bool {
        self.store_news.swap(false, Ordering::Acquire)
    }

    /// When what runs at shutdown must have ended; `None` where there is no shutdown, or no hurry.
    pub(crate) fn drain_deadline(&self) -> Option<Instant> {
        match self.queue().phase() {
            Phase::Draining { deadline } => *deadline,
            Phase::Open | Phase::Closed(_) => None,
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

    /// Wants the weights away, and wakes the thread for it.
    pub(crate) fn park(self: &Arc<Self>, at_most: Duration) -> ParkingLease {
        let lease = ParkingLease::new(self.parking.hold(at_most), Arc::clone(self));
        self.parking_has_news();
        lease
    }

    /// Wakes the thread for those who want the weights away, or back.
    pub(crate) fn parking_has_news(&self) {
        // Under the lock, so that it cannot fall between the thread's look and its sleep.
        drop(self.queue());
        self.wake.notify_one();
    }

    /// Whether the weights are to leave. At the end of the engine nobody is asked.
    pub(crate) fn is_to_park(&self) -> bool {
        matches!(self.queue().phase(), Phase::Open) && self.parking.note_leaving()
    }

    /// Blocks a thread whose weights are away for a moment at most, and says what is next. Weights that do not come back are tried
    /// again at `next_try`.
    pub(crate) fn rest_parked(&self, next_try: Option<Instant>) -> WhileParked {
        let queue = self.queue();
        match queue.phase() {
            Phase::Open if self.parking.note_away() => {
                drop(self.sleep(queue, Some(Instant::now() + PARKED_REST)));
                return WhileParked::Wait { is_wanted: true };
            }
            Phase::Open => {}
            Phase::Draining { deadline } => {
                let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
                if late || queue.running() + queue.waiting() == 0 {
                    return WhileParked::End;
                }
                self.parking.release();
                self.parking.note_away();
            }
            Phase::Closed(_) => return WhileParked::End,
        }
        if next_try.is_some_and(|time| Instant::now() < time) {
            drop(self.sleep(queue, Some(Instant::now() + PARKED_REST)));
            return WhileParked::Wait { is_wanted: false };
        }
        WhileParked::Return
    }

    /// Forgets requests without a place whose callers left.
    pub(crate) fn forget_cancelled(&self) {
        self.drop_cancelled(&mut self.queue());
    }

    /// Answers what waits with `why`.
    pub(crate) fn turn_away(&self, why: &GenerateError) {
        let waiting = self.queue().take_waiting();
        answer_all(waiting, why);
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
        // Who waits for the weights to leave or come back learns of the end by `closed`.
        self.parking.release();
        let waiting = self.queue().close(why.clone());
        answer_all(waiting, why);
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
            prefix_cache: PrefixCacheStats {
                disk: counters.disk.get(),
                ..counters.prefix_cache.get()
            },
            // Whoever runs the engine knows.
            memory: MemoryStats::default(),
        }
    }
}

fn answer_all(waiting: VecDeque<Waiting>, why: &GenerateError) {
    for Waiting { events, .. } in waiting {
        // A caller that left needs no answer.
        let _ = events.send(Err(why.clone()));
    }
}
