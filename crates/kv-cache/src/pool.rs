//! Which sequence holds which pages. Knows nothing of buffers.

use kernels::PAGE_TOKENS;

use crate::error::CacheError;
use crate::shape::pages_for;

/// A sequence of a cache. An id stays invalid after its sequence was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId {
    index: u32,
    generation: u32,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    live: bool,
    len: usize,
    pages: Vec<u32>,
}

/// Free pages and the table of sequences.
#[derive(Debug)]
pub(crate) struct Pool {
    free_pages: Vec<u32>,
    free_slots: Vec<u32>,
    slots: Vec<Slot>,
    num_pages: usize,
}

impl Pool {
    /// `num_pages` and `max_sequences` must fit u32 (the caller's buffers would not exist otherwise).
    pub(crate) fn new(num_pages: usize, max_sequences: usize) -> Self {
        let ids = |n: usize| {
            (0..u32::try_from(n).unwrap_or(u32::MAX))
                .rev()
                .collect::<Vec<_>>()
        };
        let mut slots = Vec::new();
        slots.resize_with(max_sequences, Slot::default);
        Self {
            free_pages: ids(num_pages),
            free_slots: ids(max_sequences),
            slots,
            num_pages,
        }
    }

    pub(crate) fn num_pages(&self) -> usize {
        self.num_pages
    }

    pub(crate) fn free_pages(&self) -> usize {
        self.free_pages.len()
    }

    pub(crate) fn free_slots(&self) -> usize {
        self.free_slots.len()
    }

    fn slot(&self, id: SequenceId) -> Result<&Slot, CacheError> {
        match self.slots.get(id.index as usize) {
            Some(slot) if slot.live && slot.generation == id.generation => Ok(slot),
            _ => Err(CacheError::UnknownSequence {
                index: id.index,
                generation: id.generation,
            }),
        }
    }

    fn slot_mut(&mut self, id: SequenceId) -> Result<&mut Slot, CacheError> {
        self.slot(id)?;
        Ok(&mut self.slots[id.index as usize])
    }

    pub(crate) fn create(&mut self) -> Result<SequenceId, CacheError> {
        let max_sequences = self.slots.len();
        let index = self
            .free_slots
            .pop()
            .ok_or(CacheError::NoFreeSequence { max_sequences })?;
        let slot = &mut self.slots[index as usize];
        slot.live = true;
        slot.len = 0;
        Ok(SequenceId {
            index,
            generation: slot.generation,
        })
    }

    pub(crate) fn free(&mut self, id: SequenceId) -> Result<(), CacheError> {
        let slot = self.slot_mut(id)?;
        slot.live = false;
        slot.generation = slot.generation.wrapping_add(1);
        slot.len = 0;
        let pages = std::mem::take(&mut slot.pages);
        self.free_pages.extend(pages.into_iter().rev());
        self.free_slots.push(id.index);
        Ok(())
    }

    pub(crate) fn len(&self, id: SequenceId) -> Result<usize, CacheError> {
        Ok(self.slot(id)?.len)
    }

    pub(crate) fn pages(&self, id: SequenceId) -> Result<&[u32], CacheError> {
        Ok(&self.slot(id)?.pages)
    }

    pub(crate) fn state_index(&self, id: SequenceId) -> Result<usize, CacheError> {
        self.slot(id).map(|_| id.index as usize)
    }

    /// Pages that `reserve` would take from the free list.
    pub(crate) fn pages_to_add(&self, id: SequenceId, extra: usize) -> Result<usize, CacheError> {
        let slot = self.slot(id)?;
        Ok(pages_for(slot.len.saturating_add(extra)).saturating_sub(slot.pages.len()))
    }

    pub(crate) fn reserve(&mut self, id: SequenceId, extra: usize) -> Result<(), CacheError> {
        let needed = self.pages_to_add(id, extra)?;
        let free = self.free_pages.len();
        if needed > free {
            return Err(CacheError::OutOfPages {
                needed,
                free,
                missing: needed - free,
            });
        }
        let pages = self.free_pages.split_off(free - needed);
        self.slot_mut(id)?.pages.extend(pages.into_iter().rev());
        Ok(())
    }

    /// Gives the first `pages` pages back: what was slot `pages * PAGE_TOKENS` is slot 0 then.
    pub(crate) fn drop_oldest(&mut self, id: SequenceId, pages: usize) -> Result<(), CacheError> {
        let slot = self.slot_mut(id)?;
        let held = slot.len / PAGE_TOKENS;
        if pages > held {
            return Err(CacheError::NotFilled {
                wanted: pages,
                held,
            });
        }
        slot.len -= pages * PAGE_TOKENS;
        let dropped: Vec<u32> = slot.pages.drain(..pages).collect();
        self.free_pages.extend(dropped.into_iter().rev());
        Ok(())
    }

    /// Gives all pages back; the sequence lives on, empty.
    pub(crate) fn clear(&mut self, id: SequenceId) -> Result<(), CacheError> {
        let slot = self.slot_mut(id)?;
        slot.len = 0;
        let pages = std::mem::take(&mut slot.pages);
        self.free_pages.extend(pages.into_iter().rev());
        Ok(())
    }

    pub(crate) fn advance(&mut self, id: SequenceId, tokens: usize) -> Result<(), CacheError> {
        let slot = self.slot_mut(id)?;
        let wanted = slot.len.saturating_add(tokens);
        let reserved = slot.pages.len() * PAGE_TOKENS;
        if wanted > reserved {
            return Err(CacheError::NotReserved { wanted, reserved });
        }
        slot.len = wanted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;

    /// A small generator, so that a failing run can be repeated.
    struct Rng(u64);

    impl Rng {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (self.0 >> 33) as usize % n
        }
    }

    #[test]
    fn random_operations_agree_with_naive_counts() {
        const PAGES: usize = 13;
        const SLOTS: usize = 4;
        let mut pool = Pool::new(PAGES, SLOTS);
        // The twin knows only (len, reserved pages) of each live id.
        let mut twin: HashMap<SequenceId, (usize, usize)> = HashMap::new();
        let mut dead: Vec<SequenceId> = Vec::new();
        let mut rng = Rng(7);
        for _ in 0..20_000 {
            let mut ids: Vec<_> = twin.keys().copied().collect();
            ids.sort();
            let used: usize = twin.values().map(|v| v.1).sum();
            let pick = (!ids.is_empty()).then(|| ids[rng.below(ids.len().max(1))]);
            match (rng.below(10), pick) {
                (0 | 1, _) => match pool.create() {
                    Ok(id) => {
                        assert!(twin.len() < SLOTS && !dead.contains(&id));
                        twin.insert(id, (0, 0));
                    }
                    Err(_) => assert_eq!(twin.len(), SLOTS),
                },
                (2, Some(id)) => {
                    pool.free(id).unwrap();
                    twin.remove(&id);
                    dead.push(id);
                }
                (3..=5, Some(id)) => {
                    let extra = rng.below(200);
                    let (len, held) = twin[&id];
                    let add = (len + extra).div_ceil(PAGE_TOKENS).saturating_sub(held);
                    match pool.reserve(id, extra) {
                        Ok(()) => {
                            assert!(used + add <= PAGES);
                            twin.insert(id, (len, held + add));
                        }
                        Err(CacheError::OutOfPages { missing, .. }) => {
                            assert_eq!(missing, used + add - PAGES);
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
                (6, Some(id)) => {
                    let n = rng.below(150);
                    let (len, held) = twin[&id];
                    let fits = len + n <= held * PAGE_TOKENS;
                    assert_eq!(pool.advance(id, n).is_ok(), fits);
                    if fits {
                        twin.insert(id, (len + n, held));
                    }
                }
                (7, Some(id)) => {
                    let n = rng.below(4);
                    let (len, held) = twin[&id];
                    assert_eq!(pool.drop_oldest(id, n).is_ok(), n <= len / PAGE_TOKENS);
                    if n <= len / PAGE_TOKENS {
                        twin.insert(id, (len - n * PAGE_TOKENS, held - n));
                    }
                }
                (8, Some(id)) if rng.below(4) == 0 => {
                    pool.clear(id).unwrap();
                    twin.insert(id, (0, 0));
                }
                _ => {
                    if let Some(&id) = dead.last() {
                        assert!(pool.len(id).is_err() && pool.reserve(id, 1).is_err());
                    }
                }
            }
            let mut seen = BTreeSet::new();
            for (&id, &(len, held)) in &twin {
                assert_eq!(pool.len(id).unwrap(), len);
                assert_eq!(pool.pages(id).unwrap().len(), held);
                for &page in pool.pages(id).unwrap() {
                    assert!(
                        (page as usize) < PAGES && seen.insert(page),
                        "page {page} held twice"
                    );
                }
            }
            assert_eq!(pool.free_pages(), PAGES - seen.len());
        }
    }
}
