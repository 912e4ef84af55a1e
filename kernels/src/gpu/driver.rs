//! What a GPU runtime offers: memory, modules, launches, graphs, events; with [`Sharing`], memory of several processes.
//!
//! One implementation each for CUDA, HIP and the emulation on the host. A driver value stands for one device and one
//! stream: what is asked of it happens in order, and only `copy_to_host` and `synchronize` wait.

use std::ffi::{CStr, c_void};
use std::fmt;

use bytemuck::{Pod, Zeroable};

use crate::error::DeviceError;
use crate::gpu::budget::Budget;
use crate::gpu::sharing::Sharing;

/// An address in device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct DevicePtr(pub u64);

impl DevicePtr {
    pub(crate) const NULL: Self = Self(0);

    pub(crate) fn add(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// A loaded module; lives as long as its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Module(pub u64);

/// A kernel of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Function(pub u64);

/// A captured and instantiated graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Graph(pub u64);

/// Thread blocks of a cluster.
pub(crate) const CLUSTERS: [u32; 3] = [2, 4, 8];

/// What is known of a device.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    /// As the vendor calls it.
    pub name: String,
    /// What kernels are compiled for: `sm_90a`, `gfx1100`, `host`.
    pub arch: String,
    /// Version of the installed driver, for people.
    pub driver_version: String,
    /// Multiprocessors (CUDA) or compute units (HIP).
    pub multiprocessors: u32,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Bytes of shared memory that a block can ask for.
    pub shared_bytes_per_block: u32,
    /// Clusters of two, of four and of eight thread blocks, with a multiprocessor for each block, that run at a time; 0: it has none.
    pub clusters: [u32; CLUSTERS.len()],
    /// Same in every process and container, unlike the ordinal.
    pub uuid: [u8; 16],
}

impl DeviceFacts {
    /// Clusters of so many blocks that run at a time.
    pub(crate) fn clusters_of(&self, blocks: usize) -> usize {
        let known = CLUSTERS.iter().position(|&size| size as usize == blocks);
        known.map_or(0, |known| self.clusters[known] as usize)
    }
}

/// Size of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// Blocks of a multiprocessor up to which a launch can be spread.
const MOST_SPREAD: u32 = 8;
/// What such a block has of its own at most, and is given.
const SPREAD_OWN_BYTES: u32 = 6 << 10;

impl Launch {
    /// With so much shared memory that the blocks come to lie on all multiprocessors alike: they begin while the launch before has not ended, and
    /// all of them would go where that leaves room first. Nothing else finds room beside them.
    pub fn spread(self, facts: &DeviceFacts) -> Self {
        let blocks: u32 = self.grid.iter().product();
        let of_each = blocks.div_ceil(facts.multiprocessors.max(1)).max(1);
        if of_each > MOST_SPREAD {
            return self;
        }
        let bytes = (facts.shared_bytes_per_block / of_each).saturating_sub(SPREAD_OWN_BYTES);
        Self {
            shared_bytes: bytes / 128 * 128,
            ..self
        }
    }
}

/// Source of a module and how to compile it.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// File name, for messages.
    pub name: &'static str,
    /// Text.
    pub text: &'static str,
    /// `-D` constants.
    pub defines: Vec<(&'static str, String)>,
}

/// What a runtime, or its driver, does not do, and why.
pub(crate) fn refused(what: impl fmt::Display) -> DeviceError {
    DeviceError::Driver {
        what: what.to_string(),
    }
}

/// A device of a runtime, and one stream on it.
pub(crate) trait Driver: Sharing + Send + Sync + fmt::Debug {
    /// What is known of the device.
    fn facts(&self) -> &DeviceFacts;

    /// What this process may take of the memory.
    fn budget(&self) -> &Budget;

    /// Free bytes of device memory now, whatever the budget.
    fn free_memory(&self) -> Result<u64, DeviceError>;

    /// A plain allocation, aligned to 256 bytes, with unknown contents.
    fn allocate(&self, bytes: usize) -> Result<DevicePtr, DeviceError>;

    /// Gives an allocation back, after what was asked before is done.
    ///
    /// # Safety
    /// It came from `allocate` and is used by nothing that is asked later.
    unsafe fn free(&self, ptr: DevicePtr);

    /// Host memory that copies are asynchronous from and to.
    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, DeviceError>;

    /// # Safety
    /// It came from `allocate_pinned` and is used by nothing any more.
    unsafe fn free_pinned(&self, ptr: *mut u8);

    /// Copies to the device. Returns when `from` may be changed, unless it is pinned: then it must stay until
    /// `synchronize`, and in a recording for as long as that is used, which reads it anew each time it runs. Memory that
    /// is not pinned cannot be copied from in a recording.
    ///
    /// # Safety
    /// Both ranges are valid.
    unsafe fn copy_to_device(&self, to: DevicePtr, from: *const u8, bytes: usize);

    /// Copies to the host, after everything asked before, and waits for it. Not for recordings.
    ///
    /// # Safety
    /// Both ranges are valid.
    unsafe fn copy_to_host(&self, to: *mut u8, from: DevicePtr, bytes: usize);

    /// Copies on the device.
    ///
    /// # Safety
    /// Both ranges are valid and apart.
    unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize);

    /// Fills with zeros.
    ///
    /// # Safety
    /// The range is valid.
    unsafe fn zero(&self, at: DevicePtr, bytes: usize);

    /// Waits until everything asked is done. What went wrong in a call that cannot say so, or in a kernel, is told here;
    /// the first such error is the one that is told, from then on.
    fn synchronize(&self) -> Result<(), DeviceError>;

    /// Whether everything asked is done; does not wait. Errors as of `synchronize`.
    fn is_idle(&self) -> Result<bool, DeviceError>;

    /// Name, version and options of the compiler, part of a compiled module's identity.
    ///
    /// # Errors
    /// There is none, and what to install.
    fn compiler(&self) -> Result<String, DeviceError>;

    /// Compiles for this device.
    fn compile(&self, source: &Source) -> Result<Vec<u8>, DeviceError>;

    /// Loads what `compile` made, here or in an earlier process.
    fn load(&self, image: &[u8]) -> Result<Module, DeviceError>;

    /// A kernel of a module; `shared_bytes`: the most dynamic shared memory that launches ask for until this is asked for
    /// again.
    fn function(
        &self,
        module: Module,
        name: &CStr,
        shared_bytes: u32,
    ) -> Result<Function, DeviceError>;

    /// Launches a kernel, whose one argument is the struct of `arg_bytes` at `args`, which is copied.
    ///
    /// # Safety
    /// `args` is what the kernel takes, and what it points to is valid when it runs.
    unsafe fn launch(
        &self,
        function: Function,
        launch: Launch,
        args: *const c_void,
        arg_bytes: usize,
    );

    /// Launches a kernel of which all blocks run at a time, so that they may wait for each other.
    ///
    /// # Errors
    /// There is no room for all of them, or the runtime has no such launches; nothing was launched.
    ///
    /// # Safety
    /// As `launch`.
    unsafe fn launch_together(
        &self,
        function: Function,
        launch: Launch,
        args: *const c_void,
        arg_bytes: usize,
    ) -> Result<(), DeviceError>;

    /// What is launched next begins when all before has ended: it may read before it waits what that writes.
    fn settle(&self) {}

    /// Takes `settle` back: what is launched next waits before it reads anything, and then lets begin what follows it.
    fn unsettle(&self) {}

    /// From here to `end_capture`, what is asked is recorded and not done. False where the runtime has no graphs. Modules
    /// may be loaded meanwhile and memory given back, which is put off.
    fn begin_capture(&self) -> bool;

    /// Ends the recording and makes it ready to run.
    ///
    /// # Errors
    /// Something was asked that cannot be recorded. The device is as before.
    fn end_capture(&self) -> Result<Graph, DeviceError>;

    /// Runs a recording.
    ///
    /// # Safety
    /// What its kernels point to is still valid.
    unsafe fn launch_graph(&self, graph: Graph);

    /// Forgets a recording.
    fn drop_graph(&self, graph: Graph);
}
