//! What a step reads, its tables and ids: copied to the device, or put where a recorded step takes them itself, with the number of its
//! results.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::{Segment, Visibility};
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Driver};
use crate::gpu::inbox::{self, Inbox, Part};
use crate::gpu::memory::DeviceMemory;
use crate::gpu::steps::Recording;
use crate::gpu::tables::{DeviceTables, HostTables, TablePtrs};

/// Those of the running step, or of the one that is next.
#[derive(Debug)]
pub(super) struct Inputs {
    tables: Mutex<DeviceTables>,
    ids: Mutex<DeviceIds>,
    /// Of the results of a recorded step, one word.
    number: DeviceMemory,
    inbox: Mutex<Inbox>,
}

impl Inputs {
    pub fn new(driver: &Arc<dyn Driver>) -> Result<Self, DeviceError> {
        Ok(Self {
            tables: Mutex::new(DeviceTables::new(driver)?),
            ids: Mutex::new(DeviceIds {
                memory: DeviceMemory::new(driver, 0)?,
                host: Vec::new(),
            }),
            number: DeviceMemory::new(driver, size_of::<u32>())?,
            inbox: Mutex::default(),
        })
    }
}

/// Ids on the device.
#[derive(Debug)]
struct DeviceIds {
    memory: DeviceMemory,
    host: Vec<u32>,
}

/// Tables on the device and on the host; no others are put there as long as this lives.
pub(super) struct Staged<'a> {
    pub ptrs: TablePtrs,
    tables: MutexGuard<'a, DeviceTables>,
}

impl Staged<'_> {
    pub fn host(&self) -> &HostTables {
        self.tables.host()
    }
}

impl GpuDevice {
    /// Tables of a batch on the device, uploaded unless they are the last ones.
    pub(super) fn tables(
        &self,
        segments: &[Segment<'_>],
        visibility: Visibility,
    ) -> Result<Staged<'_>, DeviceError> {
        self.stage(HostTables::new(segments, visibility))
    }

    /// Tables on the device, uploaded unless they are the last ones.
    pub(super) fn stage(&self, host: HostTables) -> Result<Staged<'_>, DeviceError> {
        self.reserve(&host)?;
        let mut tables = self.staged();
        tables.set(host);
        let ptrs = tables.ptrs();
        Ok(Staged { ptrs, tables })
    }

    /// Room for tables on the device.
    fn reserve(&self, host: &HostTables) -> Result<(), DeviceError> {
        if self.staged().reserve(&self.driver, host)? {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What tables are on the device.
    pub(super) fn staged(&self) -> MutexGuard<'_, DeviceTables> {
        self.inputs
            .tables
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Ids on the device, uploaded unless they are the last ones.
    pub(super) fn ids(&self, ids: &[u32]) -> Result<DevicePtr, DeviceError> {
        let mut there = self.reserve_ids(ids.len())?;
        if there.host != ids {
            there.memory.write(0, bytemuck::cast_slice(ids));
            there.host = ids.to_vec();
        }
        Ok(there.memory.ptr())
    }

    /// Room for ids on the device.
    fn reserve_ids(&self, count: usize) -> Result<MutexGuard<'_, DeviceIds>, DeviceError> {
        let mut there = self
            .inputs
            .ids
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let bytes = count * size_of::<u32>();
        if there.memory.bytes() < bytes {
            there.memory = DeviceMemory::new(&self.driver, bytes.next_power_of_two().max(4096))?;
            there.host.clear();
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        Ok(there)
    }

    /// Room for what a step reads, wherever it comes from.
    pub(super) fn reserve_inputs(
        &self,
        tables: &HostTables,
        num_ids: usize,
    ) -> Result<(), DeviceError> {
        self.reserve(tables)?;
        drop(self.reserve_ids(num_ids)?);
        let words = self.staged().room_words() + num_ids.next_power_of_two();
        if self.inbox().reserve(&self.driver, words)? {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        self.reserve_sought()
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inputs
            .inbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies what a step reads to the device.
    pub(super) fn copy_inputs(&self, tables: HostTables, ids: &[u32]) -> Result<(), DeviceError> {
        self.stage(tables)?;
        self.ids(ids)?;
        Ok(())
    }

    /// Puts what a step reads where `replay` finds it, when the one before has taken its own. Gives the number of its results.
    pub(super) fn put_inputs(&self, tables: HostTables, ids: &[u32]) -> Result<u32, DeviceError> {
        self.wait_until("what takes a step's inputs", || self.inbox().is_free())?;
        let mut staged = self.staged();
        let [rows, segments, pages, paths, steps] = tables.words();
        // Of the pages, which may be many, those that are not there yet.
        let known = staged.known_pages(&tables);
        let number = self.next_results();
        let whole = |words| Part { first: 0, words };
        self.inbox().put([
            whole(rows),
            whole(segments),
            Part {
                first: known,
                words: &pages[known..],
            },
            whole(paths),
            whole(steps),
            whole(ids),
            whole(&[number]),
        ]);
        ids.clone_into(&mut self.reserve_ids(ids.len())?.host);
        staged.hold(tables);
        Ok(number)
    }

    /// In a recording: what was put comes to the device.
    pub(super) fn take_inputs(&self) -> Result<(), DeviceError> {
        let TablePtrs {
            rows,
            segments,
            pages,
            paths,
            steps,
        } = self.staged().ptrs();
        let ids = self.reserve_ids(0)?.memory.ptr();
        let number = self.number_of_results();
        let args = self
            .inbox()
            .args([rows, segments, pages, paths, steps, ids, number]);
        self.launch(&inbox::source(), "take_inputs", inbox::LAUNCH, &args)?;
        // Kernels read tables before they wait for anything.
        self.driver.settle();
        Ok(())
    }

    /// Where the number of its results is for a recorded step.
    pub(super) fn number_of_results(&self) -> DevicePtr {
        self.inputs.number.ptr()
    }

    /// Runs a recording of this memory, with the inputs that were put; `number`: of its results.
    pub(super) fn replay(&self, recording: &Recording, number: u32) {
        self.inbox().ask();
        // SAFETY: nothing moved since it was recorded, and the caller's buffers are those of its variant.
        unsafe { self.driver.launch_graph(recording.graph) };
        if let Some(sought) = recording.sought {
            self.one_row.set_sought(sought, Some(number));
        }
    }

    /// Inputs that were put will not be taken.
    pub(super) fn forget_inputs(&self) {
        self.staged().hold(HostTables::default());
        let mut ids = self
            .inputs
            .ids
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        ids.host.clear();
    }
}
