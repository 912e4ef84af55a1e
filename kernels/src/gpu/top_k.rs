//! The likeliest ids of rows of logits.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::TopKArgs;
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Driver, Launch, Source};
use crate::gpu::scratch::Scratch;
use crate::gpu::words::Words;

/// Logits of a slice; see gpu/top_k.cu.
const SLICE: usize = 2048;
/// The same where only the best of several rows are asked for.
const LONG_SLICE: usize = 4 * SLICE;
const THREADS: u32 = 256;
/// Keys of a part's list: few parts have more of a row's likeliest than some; see gpu/likeliest.h.
pub(super) const LISTED: usize = 4;

/// Shared memory that the lists of so many parts are merged in: what each has next, and how many it has handed out; see gpu/likeliest.h.
pub(super) fn merging_bytes(count: usize) -> usize {
    count * (size_of::<u64>() + size_of::<u32>())
}

/// A row of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Logits {
    pub at: DevicePtr,
    pub len: usize,
}

/// The likeliest ids of a row that a step looks for itself, with their values where they are more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sought {
    pub logits: Logits,
    /// [`MOST_SOUGHT`] at most.
    pub k: usize,
}

/// As many as samplers draw from; see gpu/phases.h.
pub(super) const MOST_SOUGHT: usize = 64;

impl Sought {
    /// Words of its results.
    pub(super) fn words(self) -> usize {
        match self.k {
            1 => 1,
            k => 2 * k,
        }
    }
}

/// See gpu/top_k.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct KernelArgs {
    logits: DevicePtr,
    best: DevicePtr,
    sums: DevicePtr,
    ids: DevicePtr,
    log_probs: DevicePtr,
    values: DevicePtr,
    told: DevicePtr,
    tickets: DevicePtr,
    number_at: DevicePtr,
    number: u32,
    num_rows: u32,
    vocab_size: u32,
    k: u32,
    num_slices: u32,
    per_slice: u32,
}

fn source() -> Source {
    Source {
        name: "top_k.cu",
        text: include_str!("../../gpu/top_k.cu"),
        defines: Vec::new(),
    }
}

/// All that this module launches; see [`crate::gpu::sources`].
pub(super) fn sources() -> Vec<Source> {
    vec![source()]
}

/// The number of a search's results.
#[derive(Clone, Copy, Debug)]
enum Number {
    Known(u32),
    /// On the device.
    At(DevicePtr),
}

/// Where results are put, in memory of the host: of one call at a time.
#[derive(Debug, Default)]
pub(super) struct Results(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    /// The number of the call whose results are there, and those.
    words: Option<Words>,
    /// The last call's.
    number: u32,
}

/// Words before the results, so that both do not share a line.
const TOLD_WORDS: usize = 32;

impl Results {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    /// Room for so many results. Whether it moved for it.
    fn reserve(&mut self, driver: &Arc<dyn Driver>, len: usize) -> Result<bool, DeviceError> {
        let words = TOLD_WORDS + len;
        if self
            .words
            .as_ref()
            .is_some_and(|known| known.len() >= words)
        {
            return Ok(false);
        }
        // Results of a call that failed may be on their way still.
        driver.synchronize()?;
        *self = Self {
            words: Some(Words::zeros(driver, words.next_power_of_two())?),
            number: 0,
        };
        Ok(true)
    }

    /// The number of another call's.
    fn next(&mut self) -> u32 {
        // Zero is what memory begins with.
        self.number = self.number.wrapping_add(1).max(1);
        self.number
    }

    fn words(&self) -> &Words {
        self.words.as_ref().expect("room was made before")
    }
}

fn check(what: &str, got: usize, expected: usize) {
    assert!(
        got >= expected,
        "top_k: {what} holds {got} values, {expected} are needed"
    );
}

impl GpuDevice {
    pub(super) fn top_k_op(&self, args: TopKArgs<'_>) -> Result<(), DeviceError> {
        let (rows, k) = (args.num_rows, args.k);
        assert!(k <= args.vocab_size, "top_k: more ids than the vocabulary");
        check("logits", args.logits.len(), rows * args.vocab_size);
        check("ids", args.ids.len(), rows * k);
        for (what, there) in [("log_probs", &args.log_probs), ("values", &args.values)] {
            if let Some(there) = there {
                check(what, there.len(), rows * k);
            }
        }
        if rows == 0 || k == 0 {
            return Ok(());
        }
        let results = match self.top_of_step(&args)? {
            Some(results) => results,
            None => self.search(&args)?,
        };
        let (ids, of_ids) = results.split_at(rows * k);
        args.ids[..rows * k].copy_from_slice(ids);
        let of_ids = of_ids.chunks_exact(rows * k);
        for (wanted, of_ids) in [args.values, args.log_probs].into_iter().zip(of_ids) {
            for (to, bits) in wanted.into_iter().flatten().zip(of_ids) {
                *to = f32::from_bits(*bits);
            }
        }
        Ok(())
    }

    /// Ids, values and logarithms of probabilities of all rows; ids alone, where no more is wanted than the best one of each.
    fn search(&self, args: &TopKArgs<'_>) -> Result<Vec<u32>, DeviceError> {
        let (rows, k) = (args.num_rows, args.k);
        // One of a row alone needs no sums.
        let is_best = k == 1 && args.log_probs.is_none() && args.values.is_none();
        self.reserve_results(3 * rows * k)?;
        let number = self.next_results();
        let logits = Logits {
            at: args.logits.on_gpu().memory.ptr(),
            len: args.vocab_size,
        };
        self.look_for(logits, (rows, k), is_best, Number::Known(number))?;
        self.told(number, if is_best { rows } else { 3 * rows * k })
    }

    /// Launches the search for the `k` likeliest ids of rows of logits, and for the best one only where `is_best`.
    fn look_for(
        &self,
        logits: Logits,
        (rows, k): (usize, usize),
        is_best: bool,
        number: Number,
    ) -> Result<(), DeviceError> {
        let (kernel, slice) = match (is_best, rows) {
            (true, 2..) => ("best_ids_of_rows", LONG_SLICE),
            (true, _) => ("best_ids", SLICE),
            (false, _) => ("top_k", SLICE),
        };
        let num_slices = logits.len.div_ceil(slice);
        let per_slice = k.min(LISTED);
        let best_bytes = rows * num_slices * per_slice * size_of::<u64>();
        let sums_bytes = rows * num_slices * 2 * size_of::<f32>();
        let best = self.scratch(Scratch::Partials, best_bytes + sums_bytes)?;
        let tickets = self.scratch(Scratch::Tickets, (rows + 1) * size_of::<u32>())?;
        let told = self.results.lock().words().ptr();
        let ids = told.add(TOLD_WORDS * size_of::<u32>());
        let (number_at, number) = match number {
            Number::Known(number) => (DevicePtr::NULL, number),
            Number::At(at) => (at, 0),
        };
        let args = KernelArgs {
            logits: logits.at,
            best,
            sums: best.add(best_bytes),
            ids,
            values: ids.add(rows * k * size_of::<u32>()),
            log_probs: ids.add(2 * rows * k * size_of::<u32>()),
            told,
            tickets,
            number_at,
            number,
            num_rows: rows as u32,
            vocab_size: logits.len as u32,
            k: k as u32,
            num_slices: num_slices as u32,
            per_slice: per_slice as u32,
        };
        let slices = Launch {
            grid: [num_slices as u32, rows as u32, 1],
            threads: THREADS,
            shared_bytes: match is_best {
                true => 0,
                false => merging_bytes(num_slices) as u32,
            },
        };
        self.launch(&source(), kernel, slices, &args)
    }

    /// In a recording: what is sought becomes the step's result.
    pub(super) fn look_for_sought(&self, sought: Sought) -> Result<(), DeviceError> {
        let Sought { logits, k } = sought;
        let number = Number::At(self.number_of_results());
        self.look_for(logits, (1, k), k == 1, number)
    }

    /// Waits for results, and gives the first `len` words of them.
    pub(super) fn told(&self, number: u32, len: usize) -> Result<Vec<u32>, DeviceError> {
        let told = self.results.lock();
        let word = |at| told.words().word(at);
        let is_told = || word(0).load(Ordering::Acquire) == number;
        self.wait_until("the likeliest ids", is_told)?;
        self.one_row.set_done();
        let words = (TOLD_WORDS..TOLD_WORDS + len).map(|at| word(at).load(Ordering::Relaxed));
        Ok(words.collect())
    }

    /// Room for so many words of results.
    fn reserve_results(&self, len: usize) -> Result<(), DeviceError> {
        if self.results.lock().reserve(&self.driver, len)? {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Room for the results of a recorded step.
    pub(super) fn reserve_sought(&self) -> Result<(), DeviceError> {
        self.reserve_results(3 * MOST_SOUGHT)
    }

    /// The number of the next results.
    pub(super) fn next_results(&self) -> u32 {
        self.results.lock().next()
    }
}
