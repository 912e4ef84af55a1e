//! GPU kernels on the host: every thread a fiber. Slow; for tests where there is no GPU.

mod sharing;

use std::alloc::Layout;
use std::collections::HashMap;
use std::env::consts::ARCH;
use std::ffi::{CStr, c_void};
use std::io::Write;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};

use libloading::Library;

use crate::error::DeviceError;
use crate::gpu::budget::Budget;
use crate::gpu::driver::{
    DeviceFacts, DevicePtr, Driver, Function, Graph, Launch, Module, Source, refused,
};
use crate::gpu::emulation::sharing::SharedFile;
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
type Emulate = unsafe extern "C" fn(Kernel, *const u32, u32, u32, *const c_void, u32);

/// The host as a GPU.
#[derive(Debug)]
pub(crate) struct Emulation {
    facts: DeviceFacts,
    budget: Budget,
    /// Who runs a kernel holds it: a module's fibers and shared memory are its own, once; and so what is asked meanwhile waits.
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    libraries: Vec<Library>,
    functions: Vec<(Kernel, Emulate)>,
    sizes: HashMap<u64, Layout>,
    /// Begin and end of pinned allocations.
    pinned: Vec<(u64, u64)>,
    /// Memory of several processes.
    shared: HashMap<u64, SharedFile>,
    recording: Option<Recording>,
    graphs: HashMap<u64, Arc<Vec<Asked>>>,
    num_graphs: u64,
}

/// What is recorded at present.
#[derive(Debug, Default)]
struct Recording {
    asked: Vec<Asked>,
    /// What cannot be recorded and was asked for all the same; real runtimes refuse the same.
    not_recordable: Option<&'static str>,
    /// Memory given back meanwhile.
    to_free: Vec<DevicePtr>,
}

/// What a recording repeats.
#[derive(Clone, Debug)]
enum Asked {
    /// The kernel's struct in words that are aligned as any is.
    Launch(Function, Launch, Vec<u128>),
    Copy(u64, u64, usize),
    Zero(DevicePtr, usize),
}

impl Emulation {
    pub(crate) fn new() -> Self {
        Self {
            facts: DeviceFacts {
                name: "emulated GPU".to_owned(),
                arch: "host".to_owned(),
                driver_version: env!("CARGO_PKG_VERSION").to_owned(),
                // MAX_BLOCKS of gpu/emulation.h.
                multiprocessors: 4,
                memory_bytes: 1 << 34,
                shared_bytes_per_block: 96 * 1024,
                clusters: [2, 1, 0],
                uuid: [0; 16],
            },
            budget: Budget::default(),
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whether it was only recorded: then it is not to be done.
    fn record(&self, asked: Asked) -> bool {
        let mut state = self.state();
        let recording = state.recording.as_mut();
        recording
            .map(|recording| recording.asked.push(asked))
            .is_some()
    }

    /// Whether there is a recording, which `what` then spoils.
    fn spoils(&self, what: &'static str) -> bool {
        let mut state = self.state();
        let recording = state.recording.as_mut();
        recording
            .map(|recording| recording.not_recordable = Some(what))
            .is_some()
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

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kernel's struct, in words that are aligned as any is.
///
/// # Safety
/// As [`Driver::launch`]'s.
unsafe fn words_of(args: *const c_void, bytes: usize) -> Vec<u128> {
    let mut words = vec![0_u128; bytes.div_ceil(16)];
    // SAFETY: the caller's word; there is room.
    unsafe { std::ptr::copy_nonoverlapping(args.cast::<u8>(), words.as_mut_ptr().cast(), bytes) };
    words
}

impl State {
    /// `together`: blocks take turns.
    ///
    /// # Safety
    /// As [`Driver::launch`]'s.
    unsafe fn run(&self, function: Function, launch: Launch, args: &[u128], together: bool) {
        let (kernel, emulate) = self.functions[function.0 as usize];
        // SAFETY: the caller's word.
        unsafe {
            emulate(
                kernel,
                launch.grid.as_ptr(),
                launch.threads,
                launch.shared_bytes,
                args.as_ptr().cast(),
                u32::from(together),
            );
        }
    }
}

impl Driver for Emulation {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn free_memory(&self) -> Result<u64, DeviceError> {
        Ok(self.facts.memory_bytes)
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePtr, DeviceError> {
        Ok(DevicePtr(self.take(bytes)? as u64))
    }

    unsafe fn free(&self, ptr: DevicePtr) {
        if let Some(recording) = &mut self.state().recording {
            recording.to_free.push(ptr);
            return;
        }
        self.give_back(ptr.0 as *mut u8);
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        let at = self.take(bytes)?;
        self.state()
            .pinned
            .push((at as u64, at as u64 + bytes as u64));
        Ok(at)
    }

    unsafe fn free_pinned(&self, ptr: *mut u8) {
        self.state()
            .pinned
            .retain(|&(begin, _)| begin != ptr as u64);
        self.give_back(ptr);
    }

    unsafe fn copy_to_device(&self, to: DevicePtr, from: *const u8, bytes: usize) {
        let (begin, end) = (from as u64, from as u64 + bytes as u64);
        let is_pinned = |&(first, last): &(u64, u64)| first <= begin && end <= last;
        let is_pinned = self.state().pinned.iter().any(is_pinned);
        if (is_pinned && self.record(Asked::Copy(to.0, begin, bytes)))
            || self.spoils("a copy from host memory that is not pinned")
        {
            return;
        }
        // SAFETY: the caller's word.
        unsafe { std::ptr::copy_nonoverlapping(from, to.0 as *mut u8, bytes) };
    }

    unsafe fn copy_to_host(&self, to: *mut u8, from: DevicePtr, bytes: usize) {
        if self.spoils("a copy to the host") {
            return;
        }
        // SAFETY: the caller's word.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to, bytes) };
    }

    unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) {
        if self.record(Asked::Copy(to.0, from.0, bytes)) {
            return;
        }
        // SAFETY: the caller's word.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to.0 as *mut u8, bytes) };
    }

    unsafe fn zero(&self, at: DevicePtr, bytes: usize) {
        if self.record(Asked::Zero(at, bytes)) {
            return;
        }
        // SAFETY: the caller's word.
        unsafe { (at.0 as *mut u8).write_bytes(0, bytes) };
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.spoils("waiting for the device");
        Ok(())
    }

    fn is_idle(&self) -> Result<bool, DeviceError> {
        self.spoils("waiting for the device");
        Ok(true)
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
            .ok_or_else(|| refused("the emulation needs a C++ compiler, c++"))
    }

    fn compile(&self, source: &Source) -> Result<Vec<u8>, DeviceError> {
        // Tests make a device each, and all of them need the same modules.
        static IMAGES: Mutex<Vec<(String, Vec<u8>)>> = Mutex::new(Vec::new());
        let key = format!("{} {:?}", source.name, source.defines);
        let images = || IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, image)) = images().iter().find(|(known, _)| *known == key) {
            return Ok(image.clone());
        }
        let folder = tempfile::tempdir().map_err(refused)?;
        for (name, text) in HEADERS.iter().chain([&(source.name, source.text)]) {
            std::fs::write(folder.path().join(name), text).map_err(refused)?;
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
            .map_err(refused)?;
        if !output.status.success() {
            return Err(DeviceError::Compile {
                name: source.name,
                log: String::from_utf8_lossy(&output.stderr).into_owned(),
            });
        }
        let image = std::fs::read(&image).map_err(refused)?;
        images().push((key, image.clone()));
        Ok(image)
    }

    fn load(&self, image: &[u8]) -> Result<Module, DeviceError> {
        let mut file = tempfile::NamedTempFile::new().map_err(refused)?;
        file.write_all(image).map_err(refused)?;
        // SAFETY: a module of ours, whose only constructors are those of the C++ library.
        let library = unsafe { Library::new(file.path()) }.map_err(refused)?;
        let mut state = self.state();
        state.libraries.push(library);
        Ok(Module(state.libraries.len() as u64 - 1))
    }

    fn function(&self, module: Module, name: &CStr, _: u32) -> Result<Function, DeviceError> {
        let mut state = self.state();
        let library = &state.libraries[module.0 as usize];
        // SAFETY: `KERNEL` of emulation.h gives this signature.
        let kernel =
            *unsafe { library.get::<Kernel>(name.to_bytes_with_nul()) }.map_err(refused)?;
        // SAFETY: emulation.h has it with this signature.
        let emulate = *unsafe { library.get::<Emulate>(b"emulation_launch\0") }.map_err(refused)?;
        state.functions.push((kernel, emulate));
        Ok(Function(state.functions.len() as u64 - 1))
    }

    unsafe fn launch(
        &self,
        function: Function,
        launch: Launch,
        args: *const c_void,
        arg_bytes: usize,
    ) {
        // SAFETY: the caller's word.
        let words = unsafe { words_of(args, arg_bytes) };
        let mut state = self.state();
        match &mut state.recording {
            Some(recording) => recording.asked.push(Asked::Launch(function, launch, words)),
            // SAFETY: the caller's word.
            None => unsafe { state.run(function, launch, &words, false) },
        }
    }

    /// As on a GPU the caller goes on meanwhile, for he may have more to say to the kernel.
    unsafe fn launch_together(
        &self,
        function: Function,
        launch: Launch,
        args: *const c_void,
        arg_bytes: usize,
    ) -> Result<(), DeviceError> {
        if launch.grid[0] > self.facts.multiprocessors || launch.grid[1..] != [1, 1] {
            return Err(refused(format_args!(
                "blocks that run at a time: there is room for {}, not {:?}",
                self.facts.multiprocessors, launch.grid
            )));
        }
        // SAFETY: the caller's word.
        let words = unsafe { words_of(args, arg_bytes) };
        let state = Arc::clone(&self.state);
        let (begin, begun) = mpsc::channel();
        std::thread::spawn(move || {
            let state = lock(&state);
            // Who waits for it does not leave before.
            let _ = begin.send(());
            // SAFETY: the caller's word; what is asked later waits for the state.
            unsafe { state.run(function, launch, &words, true) };
        });
        begun.recv().map_err(refused)
    }

    fn begin_capture(&self) -> bool {
        self.state().recording = Some(Recording::default());
        true
    }

    fn end_capture(&self) -> Result<Graph, DeviceError> {
        let recording = self.state().recording.take();
        let recording = recording.ok_or_else(|| refused("nothing is recorded"))?;
        for ptr in recording.to_free {
            self.give_back(ptr.0 as *mut u8);
        }
        if let Some(what) = recording.not_recordable {
            return Err(refused(format_args!("{what} cannot be recorded")));
        }
        let mut state = self.state();
        state.num_graphs += 1;
        let graph = Graph(state.num_graphs);
        state.graphs.insert(graph.0, Arc::new(recording.asked));
        Ok(graph)
    }

    unsafe fn launch_graph(&self, graph: Graph) {
        let asked = self.state().graphs.get(&graph.0).map(Arc::clone);
        for asked in asked.iter().flat_map(|asked| asked.iter()) {
            // SAFETY: the caller's word.
            unsafe {
                match asked {
                    Asked::Launch(function, launch, words) => {
                        let args = words.as_ptr().cast();
                        self.launch(*function, *launch, args, size_of_val(&words[..]));
                    }
                    Asked::Copy(to, from, bytes) => {
                        self.copy(DevicePtr(*to), DevicePtr(*from), *bytes);
                    }
                    Asked::Zero(at, bytes) => self.zero(*at, *bytes),
                }
            }
        }
    }

    fn drop_graph(&self, graph: Graph) {
        self.state().graphs.remove(&graph.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_done_when_it_is_launched_and_as_often_and_not_before() {
        let driver = Emulation::new();
        let (a, b) = (driver.allocate(16).unwrap(), driver.allocate(16).unwrap());
        let pinned = driver.allocate_pinned(16).unwrap();
        let mut got = [0_u8; 16];
        // SAFETY: allocations of 16 bytes, given back at the end.
        unsafe {
            driver.copy_to_device(b, [1; 16].as_ptr(), 16);
            assert!(driver.begin_capture());
            driver.copy_to_device(a, pinned, 16);
            driver.copy(b, a, 16);
            driver.zero(a, 8);
            let graph = driver.end_capture().unwrap();
            driver.copy_to_host(got.as_mut_ptr(), b, 16);
            assert_eq!(got, [1; 16]);
            for byte in [5, 6] {
                pinned.write_bytes(byte, 16);
                driver.launch_graph(graph);
                driver.copy_to_host(got.as_mut_ptr(), b, 16);
                assert_eq!(got, [byte; 16]);
            }
            driver.copy_to_host(got.as_mut_ptr(), a, 16);
            assert_eq!(got, [0, 0, 0, 0, 0, 0, 0, 0, 6, 6, 6, 6, 6, 6, 6, 6]);
            driver.drop_graph(graph);
            driver.free_pinned(pinned);
            driver.free(a);
            driver.free(b);
        }
    }

    #[test]
    fn what_real_runtimes_cannot_record_spoils_the_recording_and_nothing_else() {
        let driver = Emulation::new();
        let a = driver.allocate(16).unwrap();
        let mut got = [0_u8; 16];
        // SAFETY: an allocation of 16 bytes, given back at the end.
        unsafe {
            driver.begin_capture();
            driver.copy_to_device(a, [1; 16].as_ptr(), 16);
            let error = driver.end_capture().unwrap_err().to_string();
            assert!(error.contains("not pinned"), "{error}");
            driver.begin_capture();
            driver.copy_to_host(got.as_mut_ptr(), a, 16);
            let error = driver.end_capture().unwrap_err().to_string();
            assert!(error.contains("to the host"), "{error}");
            driver.copy_to_device(a, [2; 16].as_ptr(), 16);
            driver.copy_to_host(got.as_mut_ptr(), a, 16);
            driver.free(a);
        }
        assert_eq!(got, [2; 16]);
    }
}
