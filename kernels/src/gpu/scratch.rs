//! Memory that operations use between their kernels.

use std::sync::Arc;

use crate::error::DeviceError;
use crate::gpu::driver::{DevicePtr, Driver};
use crate::gpu::memory::DeviceMemory;

/// Which piece of scratch memory; an operation may hold several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scratch {
    /// Quantised activations.
    Activations,
    /// Partial results of attention.
    Partials,
    /// Prepared rows of a recurrence.
    Recurrence,
    /// The same of a commit, which is no part of a recorded step.
    Commit,
    /// Counters that are zero, and that kernels leave so.
    Tickets,
    /// Lists of ids or rows.
    Lists,
}
const ALL: [Scratch; 6] = [
    Scratch::Activations,
    Scratch::Partials,
    Scratch::Recurrence,
    Scratch::Commit,
    Scratch::Tickets,
    Scratch::Lists,
];
/// Bytes of a piece.
const LEAST_BYTES: usize = 4096;

/// All pieces; each grows to what the largest operation needed.
#[derive(Debug)]
pub(super) struct ScratchMemory {
    driver: Arc<dyn Driver>,
    pieces: [DeviceMemory; ALL.len()],
    /// Bytes that each piece had when it was released.
    released: [usize; ALL.len()],
}

impl ScratchMemory {
    pub(super) fn new(driver: &Arc<dyn Driver>) -> Result<Self, DeviceError> {
        // Enough for short lists, so that the first of them does not move one that a step was recorded with.
        let least = || DeviceMemory::zeros(driver, LEAST_BYTES);
        Ok(Self {
            driver: Arc::clone(driver),
            pieces: [least()?, least()?, least()?, least()?, least()?, least()?],
            released: [0; ALL.len()],
        })
    }

    pub(super) fn bytes(&self, which: Scratch) -> usize {
        self.pieces[which as usize].bytes()
    }

    pub(super) fn ptr(&self, which: Scratch) -> DevicePtr {
        self.pieces[which as usize].ptr()
    }

    /// Has at least `bytes` in a piece, which moves.
    pub(super) fn grow(&mut self, which: Scratch, bytes: usize) -> Result<(), DeviceError> {
        // What moves later is recorded anew, so that it grows in few steps; by a quarter at most, for large pieces.
        let step = (bytes.next_power_of_two() / 4).max(LEAST_BYTES);
        let bytes = bytes.next_multiple_of(step);
        let before = self.bytes(which);
        tracing::debug!(?which, bytes, before, "scratch memory grows");
        self.put(which, bytes)
    }

    fn put(&mut self, which: Scratch, bytes: usize) -> Result<(), DeviceError> {
        let piece = &mut self.pieces[which as usize];
        // Room that there is for the old piece or the new one is enough.
        *piece = DeviceMemory::new(&self.driver, 0)?;
        *piece = match which {
            Scratch::Tickets => DeviceMemory::zeros(&self.driver, bytes)?,
            _ => DeviceMemory::new(&self.driver, bytes)?,
        };
        Ok(())
    }

    /// Gives all pieces back.
    pub(super) fn release(&mut self) -> Result<(), DeviceError> {
        for which in ALL {
            let released = &mut self.released[which as usize];
            // One that was never taken again is as large as it was.
            *released = self.pieces[which as usize].bytes().max(*released);
            self.put(which, 0)?;
        }
        Ok(())
    }

    /// Takes all pieces again, as large as they were.
    pub(super) fn restore(&mut self) -> Result<(), DeviceError> {
        for which in ALL {
            let bytes = self.released[which as usize];
            if self.bytes(which) < bytes {
                self.put(which, bytes)?;
            }
        }
        self.released = [0; ALL.len()];
        Ok(())
    }
}
