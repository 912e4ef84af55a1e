//! Prefixes in files: what is written of those in memory, and what is read for requests that memory has less for.
//!
//! Files are read and written by the store's own threads. What the engine thread does is the way between device and host, in
//! pieces between steps: a prefix is never worth a stalled answer.

mod loading;
mod saving;

use std::sync::Arc;

use models::{Model, PAGE_TOKENS, StatePart};
use prefix_store::{Layout, OpenError, Part, Store, StoreConfig};

use crate::config::DiskCacheConfig;
use crate::shared::Shared;

pub(crate) use loading::Loading;
use saving::Saving;

/// Bytes that a round moves between device and host for each of reading and writing: a few milliseconds.
const ROUND_BYTES: usize = 8 << 20;

/// The files, and what is on its way to and from them.
#[derive(Debug)]
pub(crate) struct DiskTier {
    /// Dropped before the store, which waits for what is being written.
    saving: Option<Saving>,
    store: Store,
    config: DiskCacheConfig,
    shared: Arc<Shared>,
}

/// How far something got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// As far as one round goes; there is more to do.
    Some,
    /// It waits for the store, or for time to pass.
    Waits,
    /// To its end.
    Ended,
}

impl DiskTier {
    /// Opens the files for the states of `model`.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(
        config: DiskCacheConfig,
        model: &Model,
        shared: &Arc<Shared>,
    ) -> Result<Self, OpenError> {
        let bytes = model.part_bytes();
        let store = StoreConfig {
            dir: config.dir.clone(),
            budget_bytes: config.budget_bytes,
            fingerprint: config.fingerprint,
            layout: Layout {
                page_tokens: PAGE_TOKENS,
                page_bytes: bytes.page,
                state_bytes: bytes.recurrent,
            },
        };
        let counters = shared.counters.disk.clone();
        let wake = {
            let shared = Arc::clone(shared);
            move || shared.store_has_news()
        };
        Ok(Self {
            saving: None,
            store: Store::open(store, counters, wake)?,
            config,
            shared: Arc::clone(shared),
        })
    }

    /// Leading tokens of a prompt that are in files, where that is enough more than the `known` ones in memory.
    pub fn longest(&self, prompt: &[u32], known: usize) -> Option<usize> {
        let worth_it = known.saturating_add(self.config.min_tokens.max(1));
        // A token at least is left to compute.
        self.store.longest(prompt, worth_it..prompt.len())
    }
}

/// Where a part lies in a sequence; `None`: not there, it is of a draft's features.
fn state_part(part: Part) -> Option<StatePart> {
    match part {
        Part::Page(number) => Some(StatePart::Page(number)),
        Part::State(number) => Some(StatePart::Recurrent(number)),
        Part::Features { .. } => None,
    }
}
