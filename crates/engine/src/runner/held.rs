//! The runner's part in prefixes in files: requests wait for theirs while others go on, and what was kept is written.

use std::collections::VecDeque;
use std::time::Instant;

use generation::GenerateError;
use models::ModelError;

use crate::disk::{DiskTier, Loading, Progress};
use crate::prefixes::PrefixId;
use crate::queue::Waiting;
use crate::runner::{Runner, note_gone};
use crate::sequence::Sequence;
use crate::shared::Rest;

/// Requests that have a place and wait for a prefix.
#[derive(Debug, Default)]
pub(super) struct HeldRequests {
    /// In order of arrival; the first one's prefix is on its way.
    requests: VecDeque<Held>,
    loading: Option<Loading>,
}

#[derive(Debug)]
struct Held {
    waiting: Waiting,
    /// Pages promised to it. Its prefix is read into some of them.
    pages: usize,
}

impl Runner {
    /// Starts a request, or has it wait for a prefix in files where that is longer than what there is in memory.
    pub(super) fn start_or_hold(&mut self, waiting: Waiting) {
        if self.longest_in_files(&waiting.request.prompt).is_none() {
            return self.start(waiting);
        }
        let pages = self.pages(&waiting.request);
        self.promised_pages += pages;
        self.held.requests.push_back(Held { waiting, pages });
    }

    fn longest_in_files(&self, prompt: &[u32]) -> Option<usize> {
        let in_memory = self.prefixes.find(prompt).prefix;
        let known = in_memory.map_or(0, |(_, len)| len);
        self.disk.as_ref()?.longest(prompt, known)
    }

    /// Goes on with what is on its way from and to files, for so long as a step can wait; whether there is more to do.
    pub(super) fn tend_disk(&mut self) -> bool {
        self.drop_cancelled_held();
        let loads = self.load_some();
        let (running, model) = (&self.running, &self.model);
        let are_used = |id| is_origin(running, id);
        let saves = self
            .disk
            .as_mut()
            .map(|disk: &mut DiskTier| disk.save_some(model, &mut self.prefixes, are_used));
        loads == Progress::Some || saves == Some(Progress::Some)
    }

    /// What the thread waits for where it has nothing to do.
    pub(super) fn rest(&self, has_more: bool) -> Rest {
        let are_used = |id| is_origin(&self.running, id);
        let disk = self.disk.as_ref();
        Rest {
            is_busy: has_more || !self.running.is_empty(),
            until: disk.and_then(|disk| disk.next_save(&self.prefixes, are_used)),
            owes_answers: !self.held.requests.is_empty(),
        }
    }

    fn load_some(&mut self) -> Progress {
        loop {
            let Some(held) = self.held.requests.front() else {
                return Progress::Waits;
            };
            let Some(mut loading) = self.held.loading.take() else {
                let prompt = &held.waiting.request.prompt;
                match self.longest_in_files(prompt) {
                    Some(len) => self.begin_load(len),
                    None => self.release_held(),
                }
                continue;
            };
            match loading.take_some(&mut self.model) {
                Ok((Progress::Ended, true)) => {
                    let counters = &self.shared.counters.disk;
                    counters.update(|stats| stats.hits += 1);
                    let kept = loading.finish(&mut self.model, &mut self.prefixes);
                    self.note_load(kept);
                    // Whatever there is now: what was read may have made room already.
                    self.release_held();
                }
                Ok((Progress::Ended, false)) => {
                    let freed = loading.give_up(&mut self.model);
                    self.note_load(freed);
                }
                Ok((progress, _)) => {
                    self.held.loading = Some(loading);
                    return progress;
                }
                Err(error) => {
                    self.note_load(Err(error));
                    let freed = loading.give_up(&mut self.model);
                    self.note_load(freed);
                    self.release_held();
                }
            }
        }
    }

    /// Begins to read a prefix for the first request that waits, or starts that without.
    fn begin_load(&mut self, len: usize) {
        let (Some(disk), Some(held)) = (&self.disk, self.held.requests.front()) else {
            return;
        };
        let tokens = &held.waiting.request.prompt[..len];
        match disk.begin_load(&mut self.model, &mut self.prefixes, tokens) {
            Ok(Some(loading)) => self.held.loading = Some(loading),
            Ok(None) => self.release_held(),
            Err(error) => {
                self.note_load(Err(error));
                self.release_held();
            }
        }
    }

    /// Starts the first request that waits.
    fn release_held(&mut self) {
        if let Some(held) = self.held.requests.pop_front() {
            self.promised_pages -= held.pages;
            self.start(held.waiting);
        }
    }

    fn note_load(&mut self, done: Result<(), ModelError>) {
        if let Err(error) = done {
            tracing::error!(%error, "a prefix could not be read");
            note_gone(&mut self.gone, &error);
        }
    }

    /// Gives back what requests hold whose callers left.
    pub(super) fn drop_cancelled_held(&mut self) {
        let is_cancelled = |held: &Held| held.waiting.events.is_closed();
        if self.held.requests.front().is_some_and(is_cancelled) {
            self.give_up_loading();
        }
        let (shared, promised_pages) = (&self.shared, &mut self.promised_pages);
        self.held.requests.retain(|held| {
            let stays = !is_cancelled(held);
            if !stays {
                *promised_pages -= held.pages;
                shared.leave();
                shared.counters.cancelled_requests.add(1);
            }
            stays
        });
    }

    fn give_up_loading(&mut self) {
        if let Some(loading) = self.held.loading.take() {
            let freed = loading.give_up(&mut self.model);
            self.note_load(freed);
        }
    }

    /// Ends the requests that wait for files.
    pub(super) fn end_held(&mut self, why: &GenerateError) {
        self.give_up_loading();
        for held in std::mem::take(&mut self.held.requests) {
            self.promised_pages -= held.pages;
            self.shared.leave();
            // A caller that left needs no answer.
            let _left = held.waiting.events.send(Err(why.clone()));
        }
    }

    /// Ends: tells those that wait, and writes what is not in files within what is left of the grace.
    pub(super) fn end_disk(&mut self, why: &GenerateError) {
        self.end_held(why);
        let deadline = self.shared.drain_deadline().unwrap_or_else(Instant::now);
        if let Some(disk) = self.disk.as_mut().filter(|_| self.gone.is_none()) {
            disk.flush(&self.model, &mut self.prefixes, deadline);
        }
    }
}

fn is_origin(running: &[Sequence], id: PrefixId) -> bool {
    running
        .iter()
        .any(|sequence| sequence.marks.origin == Some(id))
}
