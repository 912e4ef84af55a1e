//! Prefixes: states of sequences, kept for requests that begin with the same tokens.
//!
//! A prefix is a fork of a sequence that nobody feeds, and what goes on from it is a fork again: keys and values are there once
//! however many share them, and a prefix stays good for other continuations. Its tokens are its key, compared one by one.

mod marks;
mod saving;

use std::sync::Arc;
use std::time::Instant;

use models::{Model, ModelError, PAGE_TOKENS, SequenceId};

pub(crate) use marks::{Marks, Worth};
pub(crate) use saving::Due;

use crate::config::PrefixCacheConfig;
use crate::shared::Shared;
use crate::speculation::KeptFeatures;

/// Names a prefix; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrefixId(u64);

/// The prefixes that are kept.
#[derive(Debug)]
pub(crate) struct Prefixes {
    config: PrefixCacheConfig,
    /// Where they are counted.
    shared: Arc<Shared>,
    kept: Vec<Prefix>,
    /// Grows with every use.
    clock: u64,
    /// The one that is being written to files; last to make room.
    saving: Option<PrefixId>,
}

#[derive(Debug)]
struct Prefix {
    id: PrefixId,
    sequence: SequenceId,
    tokens: Vec<u32>,
    /// What a draft has to see of it.
    features: Option<KeptFeatures>,
    last_used: u64,
    /// Since when it has not been used.
    rests_since: Instant,
    /// Files have it, or could not be given it.
    is_saved: bool,
    /// Sequences that went on from it.
    uses: usize,
    worth: Worth,
}

/// What is kept of a sequence.
#[derive(Debug)]
pub(crate) struct Keep<'a> {
    pub sequence: SequenceId,
    /// All that the model has seen of it.
    pub tokens: &'a [u32],
    pub features: Option<KeptFeatures>,
    pub worth: Worth,
    /// Where it went on from.
    pub origin: Option<PrefixId>,
}

/// What there is for a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The longest prefix of it, and how many tokens that has.
    pub prefix: Option<(PrefixId, usize)>,
    /// Leading tokens that the prompt has in common with any prefix; there need be no state there.
    pub common: usize,
}

impl Prefix {
    /// Whether it only led to a longer one. A second use shows that texts part there.
    fn is_step(&self) -> bool {
        self.worth == Worth::Step && self.uses < 2
    }
}

impl Prefixes {
    pub fn new(config: PrefixCacheConfig, shared: Arc<Shared>) -> Self {
        Self {
            config,
            shared,
            kept: Vec::new(),
            clock: 0,
            saving: None,
        }
    }

    /// Whether anything is ever kept.
    pub fn is_on(&self) -> bool {
        self.config.slots > 0
    }

    /// What there is for a prompt, of which a token at least is left to compute.
    pub fn find(&self, prompt: &[u32]) -> Found {
        let mut found = Found::default();
        let known = prompt.len().saturating_sub(1);
        for prefix in &self.kept {
            let pairs = prefix.tokens.iter().zip(&prompt[..known]);
            let common = pairs.take_while(|(a, b)| a == b).count();
            found.common = found.common.max(common);
            let longest = found.prefix.map_or(0, |(_, len)| len);
            if common == prefix.tokens.len() && common > longest {
                found.prefix = Some((prefix.id, common));
            }
        }
        found
    }

    /// A sequence that goes on from a prefix. `None`: it cannot be had, for lack of a page.
    ///
    /// # Errors
    /// The model is gone.
    pub fn resume(
        &mut self,
        model: &mut Model,
        id: PrefixId,
    ) -> Result<Option<SequenceId>, ModelError> {
        self.clock += 1;
        let same = |prefix: &&mut Prefix| prefix.id == id;
        let Some(prefix) = self.kept.iter_mut().find(same) else {
            return Ok(None);
        };
        prefix.last_used = self.clock;
        prefix.rests_since = Instant::now();
        let pages = own_pages(&prefix.tokens);
        self.give_way(model, pages, Some(id))?;
        let Some(prefix) = self.kept.iter_mut().find(same) else {
            return Ok(None);
        };
        let sequence = fork(model, prefix.sequence)?;
        prefix.uses += usize::from(sequence.is_some());
        Ok(sequence)
    }

    fn get(&self, id: PrefixId) -> Option<&Prefix> {
        self.kept.iter().find(|prefix| prefix.id == id)
    }

    /// What a draft has to see of a prefix.
    pub fn features(&self, id: PrefixId) -> Option<&KeptFeatures> {
        self.get(id)?.features.as_ref()
    }

    /// All tokens of a prefix.
    pub fn tokens(&self, id: PrefixId) -> Option<&[u32]> {
        self.get(id).map(|prefix| prefix.tokens.as_slice())
    }

    /// The sequence that nobody feeds.
    pub fn sequence(&self, id: PrefixId) -> Option<SequenceId> {
        self.get(id).map(|prefix| prefix.sequence)
    }

    /// Whether this very prefix is there. If so it counts as used.
    pub fn has(&mut self, tokens: &[u32]) -> bool {
        self.clock += 1;
        let Some(same) = self.kept.iter_mut().find(|kept| kept.tokens == tokens) else {
            return false;
        };
        same.last_used = self.clock;
        same.rests_since = Instant::now();
        true
    }

    /// Keeps the state of a sequence, in place of others where there is no room.
    ///
    /// # Errors
    /// The model is gone.
    pub fn keep(&mut self, model: &mut Model, keep: Keep<'_>) -> Result<(), ModelError> {
        // First: it may have to make room for what came of it.
        let mut kept = self.kept.iter_mut();
        if let Some(origin) = kept.find(|kept| Some(kept.id) == keep.origin) {
            origin.worth = Worth::Step;
        }
        while self.kept.len() >= self.config.slots {
            self.evict(model, |_| true)?;
        }
        self.make_room(model, own_pages(keep.tokens))?;
        let Some(sequence) = fork(model, keep.sequence)? else {
            self.count(model);
            return Ok(());
        };
        self.add(sequence, keep.tokens.to_vec(), keep.features, keep.worth);
        self.trim(model)
    }

    /// Keeps a sequence that came from files, as it is.
    ///
    /// # Errors
    /// The model is gone.
    pub fn adopt(
        &mut self,
        model: &mut Model,
        sequence: SequenceId,
        tokens: Vec<u32>,
        features: Option<KeptFeatures>,
    ) -> Result<(), ModelError> {
        while self.kept.len() >= self.config.slots {
            self.evict(model, |_| true)?;
        }
        self.add(sequence, tokens, features, Worth::Own).is_saved = true;
        self.trim(model)
    }

    fn add(
        &mut self,
        sequence: SequenceId,
        tokens: Vec<u32>,
        features: Option<KeptFeatures>,
        worth: Worth,
    ) -> &mut Prefix {
        self.clock += 1;
        self.kept.push_mut(Prefix {
            id: PrefixId(self.clock),
            sequence,
            tokens,
            features,
            last_used: self.clock,
            rests_since: Instant::now(),
            is_saved: false,
            uses: 0,
            worth,
        })
    }

    fn trim(&mut self, model: &mut Model) -> Result<(), ModelError> {
        while self.bytes(model) > self.config.max_bytes {
            self.evict(model, |_| true)?;
        }
        self.count(model);
        Ok(())
    }

    /// Lets go of prefixes until `pages` pages are free, as far as that frees any: what others hold too is not.
    ///
    /// # Errors
    /// The model is gone.
    pub fn make_room(&mut self, model: &mut Model, pages: usize) -> Result<(), ModelError> {
        self.give_way(model, pages, None)
    }

    /// The same, where one of them stays.
    fn give_way(
        &mut self,
        model: &mut Model,
        pages: usize,
        stays: Option<PrefixId>,
    ) -> Result<(), ModelError> {
        if model.cache().free_pages() >= pages {
            return Ok(());
        }
        let (cache, holders) = (model.cache(), self.holders(model)?);
        let mut frees = Vec::new();
        for kept in self.kept.iter().filter(|kept| Some(kept.id) != stays) {
            let mut pages = cache.pages(kept.sequence)?.iter();
            if pages.any(|&page| holders[page as usize] == cache.page_holders(page)) {
                frees.push(kept.id);
            }
        }
        let may_go = |prefix: &Prefix| frees.contains(&prefix.id);
        while model.cache().free_pages() < pages && self.evict(model, may_go)? {}
        self.count(model);
        Ok(())
    }

    /// Lets go of the prefix that is missed least: one that only led to a longer one, then the one not used for longest.
    fn evict(
        &mut self,
        model: &mut Model,
        may_go: impl Fn(&Prefix) -> bool,
    ) -> Result<bool, ModelError> {
        let least = (self.kept.iter().enumerate())
            .filter(|(_, prefix)| may_go(prefix))
            .min_by_key(|(_, prefix)| {
                let is_saving = Some(prefix.id) == self.saving;
                (is_saving, !prefix.is_step(), prefix.last_used)
            });
        let Some((place, _)) = least else {
            return Ok(false);
        };
        let prefix = self.kept.swap_remove(place);
        let counters = &self.shared.counters.prefix_cache;
        counters.update(|stats| stats.evictions += 1);
        model.free_sequence(prefix.sequence)?;
        Ok(true)
    }

    /// Bytes that the prefixes hold: states and features. Their pages would be free otherwise, and are when they are needed.
    fn bytes(&self, model: &Model) -> usize {
        let states = model.cache().shape().bytes(0, self.kept.len());
        let features = self.kept.iter().filter_map(|kept| kept.features.as_ref());
        states + features.map(KeptFeatures::bytes).sum::<usize>()
    }

    /// How many prefixes hold each page.
    fn holders(&self, model: &Model) -> Result<Vec<usize>, ModelError> {
        let mut holders = vec![0; model.cache().num_pages()];
        for kept in &self.kept {
            for &page in model.cache().pages(kept.sequence)? {
                holders[page as usize] += 1;
            }
        }
        Ok(holders)
    }

    fn count(&self, model: &Model) {
        let bytes = self.bytes(model);
        self.shared.counters.prefix_cache.update(|stats| {
            stats.prefixes = self.kept.len() as u64;
            stats.bytes = bytes as u64;
        });
    }
}

/// Pages that a fork has of its own: the last, where that is not full.
fn own_pages(tokens: &[u32]) -> usize {
    usize::from(!tokens.len().is_multiple_of(PAGE_TOKENS))
}

/// `None`: there is no page for it.
fn fork(model: &mut Model, sequence: SequenceId) -> Result<Option<SequenceId>, ModelError> {
    match model.fork_sequence(sequence) {
        Ok(fork) => Ok(Some(fork)),
        Err(ModelError::Cache(error)) => {
            tracing::debug!(%error, "no fork");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
