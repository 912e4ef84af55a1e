//! The driver over a stand-in for the runtime: what it asks for, in which order, and what it keeps until when.
#![allow(clippy::unwrap_used)]

use std::process::Command;

use libloading::Library;
use tensor_channel::MemoryHandle;

use super::*;
use crate::gpu::sharing::Sharing;

/// The struct of the stand-in's one kernel.
#[repr(C)]
struct Args {
    at: DevicePtr,
    count: u32,
    value: u32,
}

/// A runtime of its own for each test: it has one stream.
struct StandIn {
    hip: &'static Hip,
    set: extern "C" fn(c_int, c_int),
    allocations: extern "C" fn() -> c_int,
}

impl StandIn {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (source, image) = (folder.path().join("hip.cpp"), folder.path().join("hip.so"));
        std::fs::write(&source, include_str!("tests/stand_in.cpp")).unwrap();
        let mut compiler = Command::new("c++");
        compiler.args(["-std=c++17", "-shared", "-fPIC", "-o"]);
        let output = compiler.arg(&image).arg(&source).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        // SAFETY: the library made above.
        let library = unsafe { Library::new(&image) }.unwrap();
        // SAFETY: declared so in its source.
        let set = *unsafe { library.get(b"stand_in_set\0") }.unwrap();
        // SAFETY: as above.
        let allocations = *unsafe { library.get(b"stand_in_allocations\0") }.unwrap();
        Self {
            hip: Box::leak(Box::new(Hip::from_library(library).unwrap())),
            set,
            allocations,
        }
    }

    fn open(&self) -> Result<HipDriver, DeviceError> {
        HipDriver::with(self.hip, 0)
    }
}

fn launch(threads: u32) -> Launch {
    Launch {
        grid: [1, 1, 1],
        threads,
        shared_bytes: 0,
    }
}

/// Asks for `value` to be added to each byte.
fn add(driver: &HipDriver, at: DevicePtr, count: usize, value: u32, threads: u32) {
    let module = driver.load(b"image").unwrap();
    let function = driver.function(module, c"add_bytes", 0).unwrap();
    let count = u32::try_from(count).unwrap();
    let args = Args { at, count, value };
    // SAFETY: the kernel's struct, with memory of that size.
    unsafe {
        driver.launch(
            function,
            launch(threads),
            (&raw const args).cast(),
            size_of_val(&args),
        )
    };
}

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed)
        .collect()
}

fn read(driver: &HipDriver, at: DevicePtr, len: usize) -> Vec<u8> {
    let mut got = vec![0; len];
    // SAFETY: ranges of this size.
    unsafe { driver.copy_to_host(got.as_mut_ptr(), at, len) };
    got
}

#[test]
fn without_a_runtime_or_a_device_there_is_an_error_that_says_so() {
    let error = HipDriver::open(4096).unwrap_err().to_string();
    assert!(
        error.contains("libamdhip64") || error.contains("hip:4096"),
        "{error}"
    );
    if let Err(error) = Hiprtc::load() {
        assert!(error.to_string().contains("libhiprtc.so"), "{error}");
    }
    let runtime = StandIn::new();
    let error = HipDriver::with(runtime.hip, 1).unwrap_err().to_string();
    assert!(error.contains("hip:1") && error.contains("HIP"), "{error}");
    (runtime.set)(32, 0);
    assert!(runtime.open().is_err());
    (runtime.set)(64, 1);
    let error = runtime.open().unwrap_err().to_string();
    assert!(
        error.contains("gfx1100") && error.contains("64 lanes"),
        "{error}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_library_that_is_another_is_an_error_that_names_what_is_missing() {
    // SAFETY: the C library's mathematics.
    let library = unsafe { Library::new("libm.so.6") }.unwrap();
    assert_eq!(Hip::from_library(library).unwrap_err(), "it has no hipInit");
}

#[test]
fn the_facts_are_those_of_the_runtime() {
    let driver = StandIn::new().open().unwrap();
    let facts = driver.facts();
    assert_eq!(
        (&*facts.name, &*facts.arch, &*facts.driver_version),
        ("a stand-in", "gfx1100", "HIP 6.3")
    );
    assert_eq!(
        (facts.multiprocessors, facts.shared_bytes_per_block),
        (96, 65536)
    );
    assert_eq!(&facts.uuid, b"0123456789abcdef");
    assert_eq!(
        (facts.memory_bytes, driver.free_memory().unwrap()),
        (1 << 30, 1 << 29)
    );
}

/// Smaller and larger than the staging memory, many of them before anything is waited for.
#[test]
fn copies_of_any_size_arrive_whatever_becomes_of_their_source() {
    let runtime = StandIn::new();
    let driver = runtime.open().unwrap();
    for round in 0..3 {
        let sizes = [1, 1000, 65_536, 3 << 20, (4 << 20) + 1, 13 << 20, 7];
        let wanted: Vec<_> = (round..).zip(sizes).map(|(i, len)| bytes(i, len)).collect();
        let copies: Vec<_> = wanted
            .iter()
            .map(|wanted| {
                let at = driver.allocate(wanted.len()).unwrap();
                let mut source = wanted.clone();
                // SAFETY: ranges of this size.
                unsafe { driver.copy_to_device(at, source.as_ptr(), source.len()) };
                source.fill(0xff);
                add(&driver, at, source.len(), 3, 256);
                at
            })
            .collect();
        for (wanted, &at) in wanted.iter().zip(&copies) {
            let wanted: Vec<u8> = wanted.iter().map(|byte| byte.wrapping_add(3)).collect();
            assert!(read(&driver, at, wanted.len()) == wanted);
            // SAFETY: ranges of this size, apart.
            unsafe { driver.zero(at, wanted.len()) };
            // SAFETY: as above; from `allocate`, and used by nothing asked later.
            unsafe { driver.free(at) };
        }
    }
    driver.synchronize().unwrap();
    drop(driver);
    assert_eq!((runtime.allocations)(), 0);
}

#[test]
fn a_recording_runs_when_asked_and_reads_pinned_memory_anew() {
    let runtime = StandIn::new();
    let driver = runtime.open().unwrap();
    let len = 64;
    let (pinned, at, other) = (
        driver.allocate_pinned(len).unwrap(),
        driver.allocate(len).unwrap(),
        driver.allocate(len).unwrap(),
    );
    let allocated = (runtime.allocations)();
    let given_back = driver.allocate(len).unwrap();
    assert!(driver.begin_capture());
    // SAFETY: ranges of this size.
    unsafe { driver.copy_to_device(at, pinned, len) };
    add(&driver, at, len, 5, 64);
    // SAFETY: as above, and apart.
    unsafe { driver.copy(other, at, len) };
    // SAFETY: from `allocate`, and used by nothing.
    unsafe { driver.free(given_back) };
    assert_eq!((runtime.allocations)(), allocated + 1, "put off");
    let graph = driver.end_capture().unwrap();
    assert_eq!((runtime.allocations)(), allocated);
    for round in 1..4 {
        // SAFETY: a range of this size, and nothing is on its way.
        unsafe { pinned.write_bytes(round, len) };
        // SAFETY: what was recorded is still there.
        unsafe { driver.launch_graph(graph) };
        assert_eq!(read(&driver, other, len), vec![round + 5; len]);
    }
    driver.drop_graph(graph);
    driver.synchronize().unwrap();
}

#[test]
fn what_cannot_be_recorded_is_refused_and_the_device_is_as_before() {
    let driver = StandIn::new().open().unwrap();
    let at = driver.allocate(8).unwrap();
    let asks: [(&str, &dyn Fn()); 4] = [
        // SAFETY: ranges of this size.
        ("not pinned", &|| unsafe {
            driver.copy_to_device(at, [1; 8].as_ptr(), 8)
        }),
        ("to the host", &|| drop(read(&driver, at, 8))),
        ("waiting", &|| drop(driver.synchronize())),
        ("waiting", &|| drop(driver.is_idle())),
    ];
    for (what, ask) in asks {
        assert!(driver.begin_capture());
        ask();
        let error = driver.end_capture().unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    // SAFETY: a range of this size.
    unsafe { driver.zero(at, 8) };
    add(&driver, at, 8, 9, 8);
    assert_eq!(read(&driver, at, 8), [9; 8]);
    driver.synchronize().unwrap();
}

#[test]
fn the_device_is_idle_when_all_is_done() {
    let driver = StandIn::new().open().unwrap();
    let at = driver.allocate(8).unwrap();
    assert!(driver.is_idle().unwrap());
    add(&driver, at, 8, 1, 8);
    assert!(!driver.is_idle().unwrap());
    driver.synchronize().unwrap();
    assert!(driver.is_idle().unwrap());
    add(&driver, at, 8, 1, 2048);
    let error = driver.is_idle().unwrap_err().to_string();
    assert!(error.contains("hipErrorInvalidConfiguration"), "{error}");
}

#[test]
fn registered_host_memory_is_copied_from_without_a_detour() {
    let runtime = StandIn::new();
    let driver = runtime.open().unwrap();
    let at = driver.allocate(8).unwrap();
    let allocated = (runtime.allocations)();
    let mut host = [1_u8; 8];
    // SAFETY: it lives until it is given back below.
    unsafe { driver.register(host.as_mut_ptr(), 8) }.unwrap();
    assert_eq!((runtime.allocations)(), allocated + 1);
    // SAFETY: ranges of this size, and the host's stays.
    unsafe { driver.copy_to_device(at, host.as_ptr(), 8) };
    // What is copied later is what stands there later: it went nowhere in between.
    host.fill(2);
    driver.synchronize().unwrap();
    assert_eq!(read(&driver, at, 8), [2; 8]);
    // SAFETY: registered above; all copies were waited for.
    unsafe { driver.unregister(host.as_mut_ptr()) };
    assert_eq!((runtime.allocations)(), allocated);
    // SAFETY: as above.
    unsafe { driver.copy_to_device(at, host.as_ptr(), 8) };
    host.fill(3);
    driver.synchronize().unwrap();
    assert_eq!(read(&driver, at, 8), [2; 8]);
}

#[test]
fn memory_is_shared_by_its_handle_and_given_back() {
    let runtime = StandIn::new();
    let driver = runtime.open().unwrap();
    let from = driver.allocate(8).unwrap();
    let allocated = (runtime.allocations)();
    let (own, handle) = driver.share(8).unwrap();
    let mut handle = MemoryHandle {
        device: driver.facts().uuid,
        bytes: 8,
        handle,
    };
    let opened = driver.open_shared(&handle).unwrap();
    // SAFETY: ranges of this size.
    unsafe { driver.zero(from, 8) };
    add(&driver, from, 8, 7, 8);
    // SAFETY: as above, and apart.
    unsafe { driver.copy_to_shared(opened, from, 8) };
    assert_eq!(read(&driver, own, 8), [7; 8]);
    handle.handle.pop();
    let error = driver.open_shared(&handle).unwrap_err().to_string();
    assert!(error.contains("63 bytes"), "{error}");
    // SAFETY: opened and shared above; all copies were waited for.
    unsafe {
        driver.close_shared(opened);
        driver.unshare(own);
    }
    assert_eq!((runtime.allocations)(), allocated);
}

#[test]
fn errors_name_the_call_and_the_first_of_them_stays() {
    let driver = StandIn::new().open().unwrap();
    assert!(matches!(
        driver.allocate(2 << 30),
        Err(DeviceError::OutOfMemory { bytes }) if bytes == 2 << 30
    ));
    let full = driver.allocate_pinned(2 << 30).unwrap_err();
    assert!(full.is_out_of_memory(), "{full}");
    assert!(full.to_string().contains("hipHostMalloc"), "{full}");
    let module = driver.load(b"image").unwrap();
    let error = driver.function(module, c"absent", 0).unwrap_err();
    assert!(error.to_string().contains("kernel absent"), "{error}");
    let error = driver.function(module, c"add_bytes", 65_537).unwrap_err();
    assert!(error.to_string().contains("shared memory"), "{error}");
    driver.synchronize().unwrap();
    let at = driver.allocate(8).unwrap();
    add(&driver, at, 8, 1, 2048);
    add(&driver, at, 8, 1, 8);
    for _ in 0..2 {
        let error = driver.synchronize().unwrap_err().to_string();
        assert!(
            error.contains("add_bytes") && error.contains("hipErrorInvalidConfiguration"),
            "{error}"
        );
    }
}
