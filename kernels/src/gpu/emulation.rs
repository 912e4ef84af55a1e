//! GPU kernels on the host: every thread a fiber. Slow; for tests where there is no GPU.

use std::alloc::Layout;
use std::collections::HashMap;
use std::env::consts::ARCH;
use std::ffi::{CStr, c_void};
use std::io::Write;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;

use crate::error::DeviceError;
use crate::gpu::driver::{DeviceFacts, DevicePtr, Driver, Function, Graph, Launch, Module, Source};
use crate::gpu::modules::HEADERS;

/// Alignment of device memory, as CUDA's.
const ALIGN: usize = 256;
/// How the compiler makes a module.
const OPTIONS: [&str; 9] = [
    "-O2",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-w",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-x",
    "c++",
];

type Kernel = unsafe extern "C" fn(*const c_void);
type Emulate = unsafe extern "C" fn(Kernel, *const u32, u32, u32, *const c_void);

/// The host as a GPU.
#[derive(Debug)]
pub(crate) struct Emulation {
    facts: DeviceFacts,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    libraries: Vec<Library>,
    functions: Vec<(Kernel, Emulate)>,
    sizes: HashMap<u64, Layout>,
}

impl Emulation {
    pub(crate) fn new() -> Self {
        Self {
            facts: DeviceFacts {
                name: "emulated GPU".to_owned(),
                arch: "host".to_owned(),
                driver_version: env!("CARGO_PKG_VERSION").to_owned(),
                multiprocessors: 4,
                memory_bytes: 1 << 34,
                shared_bytes_per_block: 96 * 1024,
                uuid: [0; 16],
            },
            state: Mutex::default(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Host memory that stands for the device's, full of what no value should be made from.
    fn take(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        let failed = || DeviceError::OutOfMemory { bytes };
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).map_err(|_| failed())?;
        // SAFETY: the size is not zero.
        let at = unsafe { std::alloc::alloc(layout) };
        if at.is_null() {
            return Err(failed());
        }
        // SAFETY: just allocated.
        unsafe { at.write_bytes(0xff, bytes) };
        self.state().sizes.insert(at as u64, layout);
        Ok(at)
    }

    fn give_back(&self, at: *mut u8) {
        if let Some(layout) = self.state().sizes.remove(&(at as u64)) {
            // SAFETY: allocated with this layout, and no longer in the table.
            unsafe { std::alloc::dealloc(at, layout) };
        }
    }
}

fn failed(what: impl std::fmt::Display) -> DeviceError {
    DeviceError::Driver {
        what: what.to_string(),
    }
}

impl Driver for Emulation {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn free_memory(&self) -> Result<u64, DeviceError> {
        Ok(self.facts.memory_bytes)
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePtr, DeviceError> {
        Ok(DevicePtr(self.take(bytes)? as u64))
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        self.give_back(ptr.0 as *mut u8);
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        self.take(bytes)
    }

    unsafe fn free_pinned(&self, ptr: *mut u8) {
        self.give_back(ptr);
    }

    unsafe fn copy_to_device(&self, to: DevicePtr, from: *const u8, bytes: usize) {
        // SAFETY: the caller's word.
        unsafe { std::ptr::copy_nonoverlapping(from, to.0 as *mut u8, bytes) };
    }

    unsafe fn copy_to_host(&self, to: *mut u8, from: DevicePtr, bytes: usize) {
        // SAFETY: the caller's word.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to, bytes) };
    }

    unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) {
        // SAFETY: the caller's word.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to.0 as *mut u8, bytes) };
    }

    unsafe fn zero(&self, at: DevicePtr, bytes: usize) {
        // SAFETY: the caller's word.
        unsafe { (at.0 as *mut u8).write_bytes(0, bytes) };
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn compiler(&self) -> Result<String, DeviceError> {
        static IDENTITY: OnceLock<Option<String>> = OnceLock::new();
        let identity = IDENTITY.get_or_init(|| {
            let output = Command::new("c++").arg("--version").output().ok()?;
            let version = String::from_utf8_lossy(&output.stdout);
            let options = OPTIONS.join(" ");
            Some(format!("{} {ARCH} {options}", version.lines().next()?))
        });
        identity
            .clone()
            .ok_or_else(|| failed("the emulation needs a C++ compiler, c++"))
    }

    fn compile(&self, source: &Source) -> Result<Vec<u8>, DeviceError> {
        // Tests make a device each, and all of them need the same modules.
        static IMAGES: Mutex<Vec<(String, Vec<u8>)>> = Mutex::new(Vec::new());
        let key = format!("{} {:?}", source.name, source.defines);
        let images = || IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, image)) = images().iter().find(|(known, _)| *known == key) {
            return Ok(image.clone());
        }
        let folder = tempfile::tempdir().map_err(failed)?;
        for (name, text) in HEADERS.iter().chain([&(source.name, source.text)]) {
            std::fs::write(folder.path().join(name), text).map_err(failed)?;
        }
        let image = folder.path().join("image.so");
        let defines = source
            .defines
            .iter()
            .map(|(name, value)| format!("-D{name}={value}"));
        let output = Command::new("c++")
            .args(OPTIONS)
            .args(defines)
            .arg("-o")
            .arg(&image)
            .arg(folder.path().join(source.name))
            .output()
            .map_err(failed)?;
        if !output.status.success() {
            return Err(DeviceError::Compile {
                name: source.name,
                log: String::from_utf8_lossy(&output.stderr).into_owned(),
            });
        }
        let image = std::fs::read(&image).map_err(failed)?;
        images().push((key, image.clone()));
        Ok(image)
    }

    fn load(&self, image: &[u8]) -> Result<Module, DeviceError> {
        let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
        file.write_all(image).map_err(failed)?;
        // SAFETY: a module of ours, whose only constructors are those of the C++ library.
        let library = unsafe { Library::new(file.path()) }.map_err(failed)?;
        let mut state = self.state();
        state.libraries.push(library);
        Ok(Module(state.libraries.len() as u64 - 1))
    }

    fn function(&self, module: Module, name: &CStr, _: u32) -> Result<Function, DeviceError> {
        let mut state = self.state();
        let library = &state.libraries[module.0 as usize];
        // SAFETY: `KERNEL` of emulation.h gives this signature.
        let kernel = *unsafe { library.get::<Kernel>(name.to_bytes_with_nul()) }.map_err(failed)?;
        // SAFETY: emulation.h has it with this signature.
        let emulate = *unsafe { library.get::<Emulate>(b"emulation_launch\0") }.map_err(failed)?;
        state.functions.push((kernel, emulate));
        Ok(Function(state.functions.len() as u64 - 1))
    }

    unsafe fn launch(&self, function: Function, launch: Launch, args: *const c_void) {
        // Held during the run: a module's fibers and shared memory are its own, once.
        let state = self.state();
        let (kernel, emulate) = state.functions[function.0 as usize];
        // SAFETY: the caller's word.
        unsafe {
            emulate(
                kernel,
                launch.grid.as_ptr(),
                launch.threads,
                launch.shared_bytes,
                args,
            );
        }
    }

    fn begin_capture(&self) -> bool {
        false
    }

    fn end_capture(&self) -> Result<Graph, DeviceError> {
        Err(failed("the emulation records no graphs"))
    }

    unsafe fn launch_graph(&self, _: Graph) {}

    fn drop_graph(&self, _: Graph) {}
}
