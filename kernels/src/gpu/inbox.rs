//! The inputs of a recorded step, in memory of the host, from where the step itself takes them: see gpu/inputs.cu.
//!
//! A copy by the device's copy engine, and the change between that and its kernels, takes longer than all that there is to copy.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::DeviceError;
use crate::gpu::driver::{DevicePtr, Driver, Launch, Source};
use crate::gpu::words::Words;

/// Tables of a step, its ids, and the number of its results.
pub(super) const PARTS: usize = 7;
/// Words before the parts: the step's number, and of each part where in it its words go and how many there are.
const HEAD_WORDS: usize = 16;
/// Words that are read whatever there is.
const THREADS: usize = 512;

/// See gpu/inputs.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct InputsArgs {
    inbox: DevicePtr,
    parts: [DevicePtr; PARTS],
    taken: DevicePtr,
}

/// Words of a part that are new, and where they go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub first: usize,
    pub words: &'a [u32],
}

/// Room for the inputs of a step.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// The last word: the step whose inputs have been read.
    words: Option<Words>,
    /// The last step, whose inputs are here, and whether it has been asked for.
    number: u32,
    is_asked: bool,
}

impl Inbox {
    /// Room for parts of so many words together. Whether it moved for it.
    pub(super) fn reserve(
        &mut self,
        driver: &Arc<dyn Driver>,
        len: usize,
    ) -> Result<bool, DeviceError> {
        let len = HEAD_WORDS + len + 1;
        if self.words.as_ref().is_some_and(|words| words.len() >= len) {
            return Ok(false);
        }
        // The last step's may not have been read.
        driver.synchronize()?;
        let words = Words::zeros(driver, len.next_power_of_two().max(2 * THREADS))?;
        *self = Self {
            words: Some(words),
            ..Self::default()
        };
        Ok(true)
    }

    fn words(&self) -> &Words {
        self.words.as_ref().expect("room was made before")
    }

    /// Whether the last step's inputs have been read, or will never be.
    pub(super) fn is_free(&self) -> bool {
        let taken = |words: &Words| words.word(words.len() - 1).load(Ordering::Acquire);
        !self.is_asked || taken(self.words()) == self.number
    }

    /// Puts the inputs of another step in place of the last one's.
    pub(super) fn put(&mut self, parts: [Part<'_>; PARTS]) {
        self.number = self.number.wrapping_add(1);
        self.is_asked = false;
        let words = self.words();
        words.write(0, &[self.number]);
        let mut at = HEAD_WORDS;
        for (part, head) in parts.iter().zip((1..).step_by(2)) {
            words.write(head, &[part.first as u32, part.words.len() as u32]);
            words.write(at, part.words);
            at += part.words.len();
        }
        assert!(at < words.len(), "the word of what was taken stays");
        std::sync::atomic::fence(Ordering::Release);
    }

    /// The step is on its way.
    pub(super) fn ask(&mut self) {
        self.is_asked = true;
    }

    /// What takes the inputs to their places on the device.
    pub(super) fn args(&self, parts: [DevicePtr; PARTS]) -> InputsArgs {
        let words = self.words();
        InputsArgs {
            inbox: words.ptr(),
            parts,
            taken: words.ptr().add((words.len() - 1) * size_of::<u32>()),
        }
    }
}

/// One block: a step has few inputs.
pub(super) const LAUNCH: Launch = Launch {
    grid: [1, 1, 1],
    threads: THREADS as u32,
    shared_bytes: 0,
};

pub(super) fn source() -> Source {
    Source {
        name: "inputs.cu",
        text: include_str!("../../gpu/inputs.cu"),
        defines: Vec::new(),
    }
}
