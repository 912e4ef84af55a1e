//! [`Driver`] over AMD's HIP runtime.
//!
//! **It has not run on AMD hardware.** Its calls follow HIP's public headers, its copies and recordings are tested over a
//! stand-in for the runtime, and the kernels compile for RDNA 3 and 4; that is all that is known. Where matrix fragments
//! lie in the registers of each chip is to be held against plain sums when a device is opened, before it is trusted.

mod api;
mod facts;
mod hiprtc;
mod sharing;
mod staging;

use std::ffi::{CStr, c_int, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::DeviceError;
use crate::gpu::budget::Budget;
use crate::gpu::driver::{
    DeviceFacts, DevicePtr, Driver, Function, Graph, Launch, Module, Source, refused,
};
use crate::gpu::hip::api::{
    CAPTURE_RELAXED, Direction, Handle, Hip, NOT_READY, OUT_OF_MEMORY, STREAM_NON_BLOCKING, SUCCESS,
};
use crate::gpu::hip::hiprtc::Hiprtc;
use crate::gpu::hip::staging::{Staging, pinned};
use crate::gpu::notes::Notes;

/// A device, and a stream on it.
#[derive(Debug)]
pub(crate) struct HipDriver {
    hip: &'static Hip,
    device: c_int,
    facts: DeviceFacts,
    stream: Handle,
    /// The compiler, or why there is none; looked for when first needed.
    hiprtc: OnceLock<Result<Hiprtc, String>>,
    budget: Budget,
    notes: Notes,
    staging: Mutex<Staging>,
}

// SAFETY: handles of the runtime, which any thread may use once it has entered the device, as each call does.
unsafe impl Send for HipDriver {}
// SAFETY: as above; what the calls change here is behind a lock or atomic.
unsafe impl Sync for HipDriver {}

impl HipDriver {
    /// The device of a number.
    pub(crate) fn open(ordinal: usize) -> Result<Self, DeviceError> {
        Self::with(Hip::get()?, ordinal)
    }

    fn with(hip: &'static Hip, ordinal: usize) -> Result<Self, DeviceError> {
        let device = facts::device(hip, ordinal)?;
        hip.enter(device)?;
        let facts = facts::facts(hip, device)?;
        let staging = Staging::new(hip, device)?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: a place for the answer.
        hip.check("hipStreamCreateWithFlags", unsafe {
            (hip.stream_create)(&mut stream, STREAM_NON_BLOCKING)
        })?;
        tracing::warn!(
            "{}: HIP devices were never tested on hardware, and may compute wrongly",
            facts.name
        );
        Ok(Self {
            hip,
            device,
            facts,
            stream,
            hiprtc: OnceLock::new(),
            budget: Budget::default(),
            notes: Notes::default(),
            staging: Mutex::new(staging),
        })
    }

    fn staging(&self) -> MutexGuard<'_, Staging> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> Result<(), DeviceError> {
        self.hip.enter(self.device)
    }

    fn hiprtc(&self) -> Result<&Hiprtc, DeviceError> {
        let hiprtc = self
            .hiprtc
            .get_or_init(|| Hiprtc::load().map_err(|error| error.to_string()));
        hiprtc.as_ref().map_err(refused)
    }

    fn check(&self, call: &str, result: c_int) {
        self.notes.note(self.hip.check(call, result));
    }

    /// Whether calls still make sense, with the device entered.
    fn is_usable(&self) -> bool {
        self.notes.is_usable(|| self.enter())
    }

    /// Copies between memory that the device reaches.
    ///
    /// # Safety
    /// Both ranges are valid until the stream has passed the copy.
    unsafe fn copy_pinned(&self, to: u64, from: u64, bytes: usize, direction: Direction) {
        // SAFETY: the caller's word.
        let result = unsafe {
            (self.hip.memcpy)(
                to as *mut c_void,
                from as *const c_void,
                bytes,
                direction as c_int,
                self.stream,
            )
        };
        if result != SUCCESS {
            self.check(&format!("hipMemcpyAsync {direction:?}"), result);
        }
    }

    /// Waits for the stream where an error would have nobody to go to: the next call that can tells it. A recording is
    /// not disturbed.
    fn settle(&self) {
        if self.notes.is_recording() {
            return;
        }
        // SAFETY: a stream of ours.
        let _ = unsafe { (self.hip.stream_synchronize)(self.stream) };
    }

    fn free_now(&self, ptr: DevicePtr) {
        // SAFETY: from `allocate`, and used by nothing (`Driver::free`). An error would have nobody to go to.
        let _ = unsafe { (self.hip.free)(ptr.0 as *mut c_void) };
    }
}

impl Driver for HipDriver {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn free_memory(&self) -> Result<u64, DeviceError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: places for the answer.
        self.hip.check("hipMemGetInfo", unsafe {
            (self.hip.memory_info)(&mut free, &mut total)
        })?;
        Ok(free as u64)
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePtr, DeviceError> {
        self.enter()?;
        let mut at = std::ptr::null_mut();
        // SAFETY: a place for the answer.
        let result = unsafe { (self.hip.malloc)(&mut at, bytes) };
        if result == OUT_OF_MEMORY {
            return Err(DeviceError::OutOfMemory { bytes });
        }
        self.hip.check("hipMalloc", result)?;
        Ok(DevicePtr(at as u64))
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        if self.notes.puts_off(ptr) {
        } else if self.enter().is_ok() {
            self.settle();
            self.free_now(ptr);
        }
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        self.enter()?;
        let at = pinned(self.hip, bytes)?;
        self.notes.pin(at, bytes);
        Ok(at)
    }

    unsafe fn free_pinned(&self, ptr: *mut u8) {
        self.notes.unpin(ptr);
        if self.enter().is_ok() {
            // SAFETY: from `allocate_pinned`; the caller's word. An error would have nobody to go to.
            let _ = unsafe { (self.hip.host_free)(ptr.cast()) };
        }
    }

    unsafe fn copy_to_device(&self, to: DevicePtr, from: *const u8, bytes: usize) {
        if bytes == 0 || !self.is_usable() {
            return;
        }
        if self.notes.is_pinned(from, bytes) {
            // SAFETY: the caller's word.
            unsafe { self.copy_pinned(to.0, from as u64, bytes, Direction::ToDevice) };
        } else if !self
            .notes
            .spoils("a copy from host memory that is not pinned")
        {
            // SAFETY: the caller's word; the device is entered.
            self.notes
                .note(unsafe { self.staging().write(self.stream, to.0, from, bytes) });
        }
    }

    unsafe fn copy_to_host(&self, to: *mut u8, from: DevicePtr, bytes: usize) {
        if bytes == 0 || !self.is_usable() || self.notes.spoils("a copy to the host") {
            return;
        }
        if self.notes.is_pinned(to, bytes) {
            // SAFETY: the caller's word.
            unsafe { self.copy_pinned(to as u64, from.0, bytes, Direction::ToHost) };
            // SAFETY: a stream of ours.
            let result = unsafe { (self.hip.stream_synchronize)(self.stream) };
            self.check("a copy (hipStreamSynchronize)", result);
        } else {
            // SAFETY: the caller's word; the device is entered.
            self.notes
                .note(unsafe { self.staging().read(self.stream, to, from.0, bytes) });
        }
    }

    unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) {
        if bytes > 0 && self.is_usable() {
            // SAFETY: the caller's word.
            unsafe { self.copy_pinned(to.0, from.0, bytes, Direction::OnDevice) };
        }
    }

    unsafe fn zero(&self, at: DevicePtr, bytes: usize) {
        if bytes > 0 && self.is_usable() {
            // SAFETY: the caller's word.
            let result = unsafe { (self.hip.memset)(at.0 as *mut c_void, 0, bytes, self.stream) };
            self.check("hipMemsetAsync", result);
        }
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        if !self.notes.spoils("waiting for the device") && self.is_usable() {
            // SAFETY: a stream of ours.
            let result = unsafe { (self.hip.stream_synchronize)(self.stream) };
            self.check("waiting for kernels (hipStreamSynchronize)", result);
        }
        self.notes.check()
    }

    fn is_idle(&self) -> Result<bool, DeviceError> {
        if !self.notes.spoils("waiting for the device") && self.is_usable() {
            // SAFETY: a stream of ours.
            let result = unsafe { (self.hip.stream_query)(self.stream) };
            if result == NOT_READY {
                return Ok(false);
            }
            self.check("kernels (hipStreamQuery)", result);
        }
        self.notes.check().map(|()| true)
    }

    fn compiler(&self) -> Result<String, DeviceError> {
        Ok(self.hiprtc()?.identity())
    }

    fn compile(&self, source: &Source) -> Result<Vec<u8>, DeviceError> {
        self.hiprtc()?.compile(source, &self.facts.arch)
    }

    fn load(&self, image: &[u8]) -> Result<Module, DeviceError> {
        self.enter()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: a place for the answer, and a code object, whose own head has its length. It comes from the compiler,
        // or from a file with its checksum.
        self.hip.check("hipModuleLoadData", unsafe {
            (self.hip.module_load)(&mut module, image.as_ptr().cast())
        })?;
        let module = Module(module as u64);
        self.notes.add_module(module);
        Ok(module)
    }

    fn function(
        &self,
        module: Module,
        name: &CStr,
        shared_bytes: u32,
    ) -> Result<Function, DeviceError> {
        self.enter()?;
        let kernel = name.to_string_lossy();
        let room = self.facts.shared_bytes_per_block;
        // Unlike CUDA, HIP lets a launch ask for all that there is.
        if shared_bytes > room {
            return Err(refused(format_args!(
                "kernel {kernel} asks for {shared_bytes} bytes of shared memory, and there are {room}"
            )));
        }
        let mut function = std::ptr::null_mut();
        // SAFETY: a place for the answer, and a module that `load` made.
        let result =
            unsafe { (self.hip.module_function)(&mut function, module.0 as Handle, name.as_ptr()) };
        let call = format!("hipModuleGetFunction of kernel {kernel}");
        self.hip.check(&call, result)?;
        let function = Function(function as u64);
        self.notes.name(function, kernel.into_owned());
        Ok(function)
    }

    unsafe fn launch(&self, function: Function, launch: Launch, args: *const c_void, _: usize) {
        if !self.is_usable() {
            return;
        }
        let [x, y, z] = launch.grid;
        let mut params = [args.cast_mut()];
        // SAFETY: the caller's word; the runtime copies the struct before it returns.
        let result = unsafe {
            (self.hip.launch_kernel)(
                function.0 as Handle,
                x,
                y,
                z,
                launch.threads,
                1,
                1,
                launch.shared_bytes,
                self.stream,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        if result != SUCCESS {
            let name = self.notes.name_of(function);
            let call = format!("hipModuleLaunchKernel of {name} ({launch:?})");
            self.check(&call, result);
        }
    }

    unsafe fn launch_together(
        &self,
        _: Function,
        _: Launch,
        _: *const c_void,
        _: usize,
    ) -> Result<(), DeviceError> {
        Err(DeviceError::Driver {
            what: "blocks that wait for each other are not written for HIP".to_owned(),
        })
    }

    fn begin_capture(&self) -> bool {
        if !self.is_usable() {
            return false;
        }
        // Relaxed: a module that is loaded or memory that is allocated meanwhile is nothing to record.
        // SAFETY: a stream of ours.
        let result = unsafe { (self.hip.begin_capture)(self.stream, CAPTURE_RELAXED) };
        self.check("hipStreamBeginCapture", result);
        if result == SUCCESS {
            self.notes.begin_recording();
        }
        result == SUCCESS
    }

    fn end_capture(&self) -> Result<Graph, DeviceError> {
        self.enter()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: a stream of ours, and a place for the answer.
        let ended = self.hip.check("hipStreamEndCapture", unsafe {
            (self.hip.end_capture)(self.stream, &mut graph)
        });
        let (to_free, recorded) = self.notes.end_recording();
        if !to_free.is_empty() {
            self.settle();
            to_free.into_iter().for_each(|ptr| self.free_now(ptr));
        }
        let instantiated = recorded.and(ended).and_then(|()| {
            let mut runnable = std::ptr::null_mut();
            // SAFETY: a place for the answer, the graph made above, and no wish for a log.
            self.hip.check("hipGraphInstantiate", unsafe {
                (self.hip.graph_instantiate)(
                    &mut runnable,
                    graph,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    0,
                )
            })?;
            Ok(Graph(runnable as u64))
        });
        if !graph.is_null() {
            // SAFETY: made above; what runs is a copy.
            let _ = unsafe { (self.hip.graph_destroy)(graph) };
        }
        instantiated
    }

    unsafe fn launch_graph(&self, graph: Graph) {
        if self.is_usable() {
            // SAFETY: the caller's word.
            let result = unsafe { (self.hip.graph_launch)(graph.0 as Handle, self.stream) };
            self.check("hipGraphLaunch", result);
        }
    }

    fn drop_graph(&self, graph: Graph) {
        if self.enter().is_ok() {
            // Unlike CUDA, HIP does not promise that one that still runs is kept until it is done.
            self.settle();
            // SAFETY: from `end_capture`, and no longer running. An error would have nobody to go to.
            let _ = unsafe { (self.hip.graph_exec_destroy)(graph.0 as Handle) };
        }
    }
}

impl Drop for HipDriver {
    fn drop(&mut self) {
        if self.enter().is_err() {
            return;
        }
        self.settle();
        for module in self.notes.take_modules() {
            // SAFETY: from `load`; nothing runs any more. An error would have nobody to go to.
            let _ = unsafe { (self.hip.module_unload)(module.0 as Handle) };
        }
        // SAFETY: as above.
        let _ = unsafe { (self.hip.stream_destroy)(self.stream) };
    }
}

#[cfg(test)]
mod tests;
