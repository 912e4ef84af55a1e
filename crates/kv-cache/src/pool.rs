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
    /// Sequences that hold each page; those that share one have it full.
    holders: Vec<u32>,
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
            holders: vec![0; num_pages],
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

    pub(crate) fn num_slots(&self) -> usize {
        self.slots.len()
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
        self.let_go(pages);
        self.free_slots.push(id.index);
        Ok(())
    }

    /// A page that nobody holds any more is free.
    fn let_go(&mut self, pages: Vec<u32>) {
        for page in pages.into_iter().rev() {
            let holders = &mut self.holders[page as usize];
            *holders -= 1;
            if *holders == 0 {
                self.free_pages.push(page);
            }
        }
    }

    /// A sequence of the same length that shares the full pages of `id`. Where the last page is not full it has one of its
    /// own there, without the tokens: both are to be written to.
    pub(crate) fn fork(&mut self, id: SequenceId) -> Result<SequenceId, CacheError> {
        let source = self.slot(id)?;
        let len = source.len;
        let shared = source.pages[..len / PAGE_TOKENS].to_vec();
        let fork = self.create()?;
        for &page in &shared {
            self.holders[page as usize] += 1;
        }
        self.slots[fork.index as usize].pages = shared;
        if let Err(error) = self.reserve(fork, len) {
            self.free(fork)?;
            return Err(error);
        }
        self.slots[fork.index as usize].len = len;
        Ok(fork)
    }

    pub(crate) fn len(&self, id: SequenceId) -> Result<usize, CacheError> {
        Ok(self.slot(id)?.len)
    }

    pub(crate) fn pages(&self, id: SequenceId) -> Result<&[u32], CacheError> {
        Ok(&self.slot(id)?.pages)
    }

    /// Sequences that hold a page; 0 for one that there is not.
    pub(crate) fn holders(&self, page: u32) -> usize {
        (self.holders.get(page as usize)).map_or(0, |holders| *holders as usize)
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
        for &page in &pages {
            self.holders[page as usize] = 1;
        }
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
        self.let_go(dropped);
        Ok(())
    }

    /// Gives all pages back; the sequence lives on, empty.
    pub(crate) fn clear(&mut self, id: SequenceId) -> Result<(), CacheError> {
        let slot = self.slot_mut(id)?;
        slot.len = 0;
        let pages = std::mem::take(&mut slot.pages);
        self.let_go(pages);
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
mod tests;
