//! [`Driver`] over CUDA's driver API.

mod call;
mod clusters;
mod context;
mod facts;
mod report;
mod sharing;
mod staging;

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::sys::{self, CUresult, CUstream};

use crate::error::DeviceError;
use crate::gpu::budget::Budget;
use crate::gpu::cuda::call::{check, is_ok, words};
use crate::gpu::cuda::context::Context;
use crate::gpu::cuda::sharing::OpenedMemory;
use crate::gpu::cuda::staging::Staging;
use crate::gpu::driver::{
    DeviceFacts, DevicePtr, Driver, Function, Graph, Launch, Module, Source, refused,
};
use crate::gpu::notes::Notes;
use crate::gpu::nvrtc::Nvrtc;

pub use report::{CudaDevice, CudaReport};

/// Dynamic shared memory from which on kernels are made for all that a multiprocessor has.
const MUCH_SHARED_BYTES: u32 = 64 << 10;

/// A device, and a stream on it.
#[derive(Debug)]
pub(crate) struct Cuda {
    facts: DeviceFacts,
    overlaps_kernels: bool,
    stream: CUstream,
    /// What the compiler is, or why there is none; looked for when first needed.
    nvrtc: OnceLock<Result<Nvrtc, String>>,
    budget: Budget,
    /// Whether the last thing in the stream is a kernel: only then may the next one begin before it has ended. Kernels read
    /// tables before they wait for anything, and those come by copies.
    follows_kernel: AtomicBool,
    /// Told to have the next kernel wait until the last one has ended ([`Driver::settle`]).
    is_settled: AtomicBool,
    notes: Notes,
    staging: Mutex<Staging>,
    opened: Mutex<OpenedMemory>,
    // After the rest, which lives in it.
    context: Context,
}

// SAFETY: handles of the driver, which any thread may use once it has entered the context, as each call does.
unsafe impl Send for Cuda {}
// SAFETY: as above; what the calls change here is behind a lock or atomic.
unsafe impl Sync for Cuda {}

/// Whether there is a GPU of this number.
pub(crate) fn check_cuda(ordinal: usize) -> Result<(), DeviceError> {
    facts::device(ordinal).map(drop)
}

impl Cuda {
    /// The device of a number.
    pub(crate) fn open(ordinal: usize) -> Result<Self, DeviceError> {
        let device = facts::device(ordinal)?;
        let facts = facts::facts(device)?;
        let context = Context::of(device)?;
        let facts = DeviceFacts {
            clusters: clusters::clusters(&context, &facts)?,
            ..facts
        };
        let stream = context.stream()?;
        Ok(Self {
            facts,
            overlaps_kernels: facts::overlaps_kernels(device)?,
            stream,
            nvrtc: OnceLock::new(),
            budget: Budget::default(),
            follows_kernel: AtomicBool::new(false),
            is_settled: AtomicBool::new(false),
            notes: Notes::default(),
            staging: Mutex::new(Staging::new(&context)?),
            opened: Mutex::default(),
            context,
        })
    }

    fn staging(&self) -> MutexGuard<'_, Staging> {
        self.staging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self) -> MutexGuard<'_, OpenedMemory> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something else than a kernel goes to the stream.
    fn put_no_kernel(&self) {
        self.follows_kernel.store(false, Ordering::Relaxed);
    }

    fn nvrtc(&self) -> Result<&Nvrtc, DeviceError> {
        let nvrtc = self
            .nvrtc
            .get_or_init(|| Nvrtc::load().map_err(|error| error.to_string()));
        nvrtc.as_ref().map_err(refused)
    }

    /// Whether calls still make sense, with the context entered.
    fn is_usable(&self) -> bool {
        self.notes.is_usable(|| self.context.enter())
    }

    /// # Safety
    /// As [`Driver::launch`].
    unsafe fn launch_with(
        &self,
        function: Function,
        launch: Launch,
        args: *const c_void,
        mut attribute: Option<sys::CUlaunchAttribute>,
    ) -> Result<(), DeviceError> {
        let [x, y, z] = launch.grid;
        let mut params = [args.cast_mut()];
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes,
            hStream: self.stream,
            numAttrs: u32::from(attribute.is_some()),
            attrs: attribute
                .as_mut()
                .map_or(std::ptr::null_mut(), std::ptr::from_mut),
        };
        // SAFETY: the caller's word; the driver copies the struct before it returns.
        let result = unsafe {
            sys::cuLaunchKernelEx(
                &config,
                function.0 as sys::CUfunction,
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        if is_ok(result) {
            return Ok(());
        }
        let name = self.notes.name_of(function);
        let call = format!("cuLaunchKernel of {name} ({launch:?})");
        Err(refused(words(&call, result)))
    }

    fn check(&self, call: &str, result: CUresult) {
        if !is_ok(result) {
            self.notes.note(check(call, result));
        }
    }
}

fn free(ptr: DevicePtr) {
    // SAFETY: from `allocate`, and used by nothing (`Driver::free`). An error would have nobody to go to.
    let _ = unsafe { sys::cuMemFree_v2(ptr.0) };
}

impl Driver for Cuda {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn free_memory(&self) -> Result<u64, DeviceError> {
        self.context.memory().map(|(free, _)| free)
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePtr, DeviceError> {
        self.context.enter()?;
        let mut at = 0;
        // SAFETY: a place for the answer.
        let result = unsafe { sys::cuMemAlloc_v2(&mut at, bytes) };
        if result as u32 == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 {
            return Err(DeviceError::OutOfMemory { bytes });
        }
        check("cuMemAlloc", result)?;
        Ok(DevicePtr(at))
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        if self.notes.puts_off(ptr) {
            return;
        }
        if self.context.enter().is_ok() {
            // SAFETY: a stream of ours. Its error is told by the next call that can.
            let _ = unsafe { sys::cuStreamSynchronize(self.stream) };
            free(ptr);
        }
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        let at = self.context.pinned(bytes)?;
        self.notes.pin(at, bytes);
        Ok(at)
    }

    unsafe fn free_pinned(&self, ptr: *mut u8) {
        self.notes.unpin(ptr);
        if self.context.enter().is_ok() {
            // SAFETY: from `allocate_pinned`; the caller's word. An error would have nobody to go to.
            let _ = unsafe { sys::cuMemFreeHost(ptr.cast()) };
        }
    }

    unsafe fn copy_to_device(&self, to: DevicePtr, from: *const u8, bytes: usize) {
        if bytes == 0 || !self.is_usable() {
            return;
        }
        self.put_no_kernel();
        if self.notes.is_pinned(from, bytes) {
            // SAFETY: the caller's word.
            let result =
                unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, from.cast(), bytes, self.stream) };
            self.check("cuMemcpyHtoDAsync", result);
        } else if !self
            .notes
            .spoils("a copy from host memory that is not pinned")
        {
            // SAFETY: the caller's word; the context is entered.
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
            let result =
                unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from.0, bytes, self.stream) };
            self.check("cuMemcpyDtoHAsync", result);
            // SAFETY: a stream of ours.
            let result = unsafe { sys::cuStreamSynchronize(self.stream) };
            self.check("a copy (cuStreamSynchronize)", result);
        } else {
            // SAFETY: the caller's word; the context is entered.
            self.notes
                .note(unsafe { self.staging().read(self.stream, to, from.0, bytes) });
        }
    }

    unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) {
        if bytes > 0 && self.is_usable() {
            self.put_no_kernel();
            // SAFETY: the caller's word.
            let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to.0, from.0, bytes, self.stream) };
            self.check("cuMemcpyDtoDAsync", result);
        }
    }

    unsafe fn zero(&self, at: DevicePtr, bytes: usize) {
        if bytes > 0 && self.is_usable() {
            self.put_no_kernel();
            // SAFETY: the caller's word.
            let result = unsafe { sys::cuMemsetD8Async(at.0, 0, bytes, self.stream) };
            self.check("cuMemsetD8Async", result);
        }
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        if !self.notes.spoils("waiting for the device") && self.is_usable() {
            // SAFETY: a stream of ours.
            let result = unsafe { sys::cuStreamSynchronize(self.stream) };
            self.check("waiting for kernels (cuStreamSynchronize)", result);
        }
        self.notes.check()
    }

    fn is_idle(&self) -> Result<bool, DeviceError> {
        if !self.notes.spoils("waiting for the device") && self.is_usable() {
            // SAFETY: a stream of ours.
            let result = unsafe { sys::cuStreamQuery(self.stream) };
            if result as u32 == CUresult::CUDA_ERROR_NOT_READY as u32 {
                return Ok(false);
            }
            self.check("kernels (cuStreamQuery)", result);
        }
        self.notes.check().map(|()| true)
    }

    fn compiler(&self) -> Result<String, DeviceError> {
        Ok(self.nvrtc()?.identity())
    }

    fn compile(&self, source: &Source) -> Result<Vec<u8>, DeviceError> {
        let (nvrtc, arch) = (self.nvrtc()?, &self.facts.arch);
        if !nvrtc.knows(arch) {
            return Err(refused(format_args!(
                "{} does not know {arch}, the chip of {}: install another version of it",
                nvrtc.version(),
                self.facts.name
            )));
        }
        nvrtc.compile(source, arch)
    }

    fn load(&self, image: &[u8]) -> Result<Module, DeviceError> {
        self.context.enter()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: a place for the answer, and machine code, whose own head has its length. It comes from the compiler, or
        // from a file with its checksum.
        let result = unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) };
        if !is_ok(result) {
            // A compiler of a later major version than the driver makes what the driver does not take.
            let compiler = self.nvrtc().map_or(String::new(), Nvrtc::version);
            let words = words("cuModuleLoadData", result);
            let driver = &self.facts.driver_version;
            return Err(refused(format_args!(
                "{words} ({compiler}, driver for {driver})"
            )));
        }
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
        self.context.enter()?;
        let about = |call: &str| format!("{call} of kernel {}", name.to_string_lossy());
        let mut function = std::ptr::null_mut();
        // SAFETY: a place for the answer, and a module that `load` made.
        check(&about("cuModuleGetFunction"), unsafe {
            sys::cuModuleGetFunction(&mut function, module.0 as sys::CUmodule, name.as_ptr())
        })?;
        if shared_bytes > 0 {
            let limit = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a function of ours. More than 48 KiB have to be asked for.
            let result =
                unsafe { sys::cuFuncSetAttribute(function, limit, shared_bytes.cast_signed()) };
            let what = format!("{shared_bytes} bytes of shared memory (cuFuncSetAttribute)");
            check(&about(&what), result)?;
        }
        if shared_bytes > MUCH_SHARED_BYTES {
            // Else the driver may leave a multiprocessor room for one block alone, and the next kernel's could not begin.
            let share =
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            // SAFETY: a function of ours. All of what it can be, in hundredths.
            let result = unsafe { sys::cuFuncSetAttribute(function, share, 100) };
            check(&about("its share of L1 (cuFuncSetAttribute)"), result)?;
        }
        let function = Function(function as u64);
        self.notes
            .name(function, name.to_string_lossy().into_owned());
        Ok(function)
    }

    unsafe fn launch(&self, function: Function, launch: Launch, args: *const c_void, _: usize) {
        if !self.is_usable() {
            return;
        }
        let follows_kernel = self.follows_kernel.swap(true, Ordering::Relaxed);
        let is_settled = self.is_settled.swap(false, Ordering::Relaxed);
        let overlaps = self.overlaps_kernels && follows_kernel && !is_settled;
        // Kernels wait for what they read themselves: `wait_for_inputs` of gpu/arch.h.
        let overlap = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                programmaticStreamSerializationAllowed: 1,
            },
        };
        // SAFETY: the caller's word.
        let result =
            unsafe { self.launch_with(function, launch, args, overlaps.then_some(overlap)) };
        self.notes.note(result);
    }

    unsafe fn launch_together(
        &self,
        function: Function,
        launch: Launch,
        args: *const c_void,
        _: usize,
    ) -> Result<(), DeviceError> {
        if !self.is_usable() {
            // `synchronize` tells why.
            return Ok(());
        }
        self.follows_kernel.store(true, Ordering::Relaxed);
        let together = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { cooperative: 1 },
        };
        // SAFETY: the caller's word.
        unsafe { self.launch_with(function, launch, args, Some(together)) }
    }

    fn settle(&self) {
        self.is_settled.store(true, Ordering::Relaxed);
    }

    fn unsettle(&self) {
        self.is_settled.store(false, Ordering::Relaxed);
    }

    fn begin_capture(&self) -> bool {
        if !self.is_usable() {
            return false;
        }
        self.put_no_kernel();
        // Relaxed: a module that is loaded or memory that is allocated meanwhile is nothing to record.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: a stream of ours.
        let result = unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode) };
        self.check("cuStreamBeginCapture", result);
        if is_ok(result) {
            self.notes.begin_recording();
        }
        is_ok(result)
    }

    fn end_capture(&self) -> Result<Graph, DeviceError> {
        self.context.enter()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: a stream of ours, and a place for the answer.
        let ended = check("cuStreamEndCapture", unsafe {
            sys::cuStreamEndCapture(self.stream, &mut graph)
        });
        let (to_free, recorded) = self.notes.end_recording();
        if !to_free.is_empty() {
            // SAFETY: a stream of ours. Its error is told by the next call that can.
            let _ = unsafe { sys::cuStreamSynchronize(self.stream) };
            to_free.into_iter().for_each(free);
        }
        let instantiated = recorded.and(ended).and_then(|()| {
            let mut runnable = std::ptr::null_mut();
            // SAFETY: a place for the answer, and the graph made above.
            check("cuGraphInstantiate", unsafe {
                sys::cuGraphInstantiateWithFlags(&mut runnable, graph, 0)
            })?;
            Ok(Graph(runnable as u64))
        });
        if !graph.is_null() {
            // SAFETY: made above; what runs is a copy.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
        let runnable = instantiated?;
        // SAFETY: made above, and a stream of the same context.
        let uploaded = check("cuGraphUpload", unsafe {
            sys::cuGraphUpload(runnable.0 as sys::CUgraphExec, self.stream)
        });
        uploaded
            .map(|()| runnable)
            .inspect_err(|_| self.drop_graph(runnable))
    }

    unsafe fn launch_graph(&self, graph: Graph) {
        if self.is_usable() {
            self.put_no_kernel();
            // SAFETY: the caller's word.
            let result = unsafe { sys::cuGraphLaunch(graph.0 as sys::CUgraphExec, self.stream) };
            self.check("cuGraphLaunch", result);
        }
    }

    fn drop_graph(&self, graph: Graph) {
        if self.context.enter().is_ok() {
            // SAFETY: from `end_capture`; one that still runs goes when it is done. An error would have nobody to go to.
            let _ = unsafe { sys::cuGraphExecDestroy(graph.0 as sys::CUgraphExec) };
        }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if self.context.enter().is_err() {
            return;
        }
        // SAFETY: a stream of ours, used by nobody any more. Errors would have nobody to go to.
        let _ = unsafe { sys::cuStreamSynchronize(self.stream) };
        for module in self.notes.take_modules() {
            // SAFETY: from `load`; nothing runs any more.
            let _ = unsafe { sys::cuModuleUnload(module.0 as sys::CUmodule) };
        }
        // SAFETY: as above.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
    }
}
