//! AMD's HIP runtime, found on this machine, and the calls of it that are made.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

use crate::error::DeviceError;
use crate::gpu::driver::refused;
use crate::gpu::places;

/// The library, the latest version first.
const NAMES: [&str; 6] = [
    "libamdhip64.so.7",
    "libamdhip64.so.6",
    "libamdhip64.so.5",
    "libamdhip64.so",
    "amdhip64_7.dll",
    "amdhip64_6.dll",
];
/// Codes of `hipError_t`.
pub(super) const SUCCESS: c_int = 0;
pub(super) const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
pub(super) const NOT_READY: c_int = 600;

/// A handle of the runtime.
pub(super) type Handle = *mut c_void;
/// What a kernel is launched with: function, blocks and threads in three dimensions, bytes of dynamic shared memory,
/// stream, addresses of arguments, nothing.
type LaunchKernel = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

/// Function pointers, each under the name that HIP's header declares it with.
macro_rules! calls {
    ($($(#[$doc:meta])* $field:ident: $symbol:literal = $kind:ty;)*) => {
        #[derive(Debug)]
        pub(super) struct Hip {
            $($(#[$doc])* pub $field: $kind,)*
            pub error_name: unsafe extern "C" fn(c_int) -> *const c_char,
            pub error_string: unsafe extern "C" fn(c_int) -> *const c_char,
            /// Fills a struct whose layout differs between versions.
            pub device_properties: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
            /// The functions above are in it.
            _library: Library,
        }

        impl Hip {
            /// Looks all calls up; what is missing is the error.
            pub(super) fn from_library(library: Library) -> Result<Self, String> {
                // SAFETY: the struct that this one fills is shorter than what it is given, in every version.
                let properties = unsafe { call(&library, "hipGetDevicePropertiesR0600") }
                    // SAFETY: as above.
                    .or_else(|_| unsafe { call(&library, "hipGetDeviceProperties") });
                Ok(Self {
                    $(
                        // SAFETY: HIP's header declares the function as the field has it.
                        $field: unsafe { call(&library, $symbol) }?,
                    )*
                    // SAFETY: as above.
                    error_name: unsafe { call(&library, "hipGetErrorName") }?,
                    // SAFETY: as above.
                    error_string: unsafe { call(&library, "hipGetErrorString") }?,
                    device_properties: properties?,
                    _library: library,
                })
            }
        }
    };
}

/// A function of a library.
///
/// # Safety
/// It is what `T` says.
pub(super) unsafe fn call<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
    // SAFETY: the caller's word.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found
        .map(|call| *call)
        .map_err(|_| format!("it has no {name}"))
}

/// The first library of a name that opens and has what is wanted; else why the last one that is there has not.
pub(super) fn find<T>(
    names: &[&str],
    from_library: fn(Library) -> Result<T, String>,
) -> Result<T, String> {
    let mut why = String::new();
    for candidate in places::rocm_libraries(names) {
        // SAFETY: the constructors of ROCm's libraries only set them up.
        let opened = unsafe { Library::new(&candidate) };
        let is_there = opened.is_ok() || (candidate.is_absolute() && candidate.exists());
        let source = |error: &libloading::Error| {
            std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
        };
        match opened
            .map_err(|error| source(&error))
            .and_then(from_library)
        {
            Ok(found) => return Ok(found),
            // Of names that nobody knows the reason does not count.
            Err(error) if is_there => why = format!(" ({}: {error})", candidate.display()),
            Err(_) => {}
        }
    }
    Err(why)
}

type Of<A> = unsafe extern "C" fn(A) -> c_int;
type Of2<A, B> = unsafe extern "C" fn(A, B) -> c_int;
type Of3<A, B, C> = unsafe extern "C" fn(A, B, C) -> c_int;

calls! {
    init: "hipInit" = Of<c_uint>;
    runtime_version: "hipRuntimeGetVersion" = Of<*mut c_int>;
    device_count: "hipGetDeviceCount" = Of<*mut c_int>;
    set_device: "hipSetDevice" = Of<c_int>;
    device_attribute: "hipDeviceGetAttribute" = Of3<*mut c_int, c_int, c_int>;
    device_name: "hipDeviceGetName" = Of3<*mut c_char, c_int, c_int>;
    device_uuid: "hipDeviceGetUuid" = Of2<*mut [u8; 16], c_int>;
    device_memory: "hipDeviceTotalMem" = Of2<*mut usize, c_int>;
    memory_info: "hipMemGetInfo" = Of2<*mut usize, *mut usize>;
    malloc: "hipMalloc" = Of2<*mut *mut c_void, usize>;
    free: "hipFree" = Of<*mut c_void>;
    host_malloc: "hipHostMalloc" = Of3<*mut *mut c_void, usize, c_uint>;
    host_free: "hipHostFree" = Of<*mut c_void>;
    host_register: "hipHostRegister" = Of3<*mut c_void, usize, c_uint>;
    host_unregister: "hipHostUnregister" = Of<*mut c_void>;
    ipc_get: "hipIpcGetMemHandle" = Of2<*mut IpcHandle, *mut c_void>;
    ipc_open: "hipIpcOpenMemHandle" = Of3<*mut *mut c_void, IpcHandle, c_uint>;
    ipc_close: "hipIpcCloseMemHandle" = Of<*mut c_void>;
    stream_create: "hipStreamCreateWithFlags" = Of2<*mut Handle, c_uint>;
    stream_destroy: "hipStreamDestroy" = Of<Handle>;
    stream_synchronize: "hipStreamSynchronize" = Of<Handle>;
    stream_query: "hipStreamQuery" = Of<Handle>;
    /// To, from, bytes, [`Direction`], stream.
    memcpy: "hipMemcpyAsync" =
        unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int, Handle) -> c_int;
    memset: "hipMemsetAsync" = unsafe extern "C" fn(*mut c_void, c_int, usize, Handle) -> c_int;
    module_load: "hipModuleLoadData" = Of2<*mut Handle, *const c_void>;
    module_unload: "hipModuleUnload" = Of<Handle>;
    module_function: "hipModuleGetFunction" = Of3<*mut Handle, Handle, *const c_char>;
    launch_kernel: "hipModuleLaunchKernel" = LaunchKernel;
    begin_capture: "hipStreamBeginCapture" = Of2<Handle, c_int>;
    end_capture: "hipStreamEndCapture" = Of2<Handle, *mut Handle>;
    /// Runnable graph, graph, place for a node at fault, for a log, its bytes.
    graph_instantiate: "hipGraphInstantiate" =
        unsafe extern "C" fn(*mut Handle, Handle, *mut Handle, *mut c_char, usize) -> c_int;
    graph_launch: "hipGraphLaunch" = Of2<Handle, Handle>;
    graph_destroy: "hipGraphDestroy" = Of<Handle>;
    graph_exec_destroy: "hipGraphExecDestroy" = Of<Handle>;
}

/// `hipIpcMemHandle_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct IpcHandle(pub [u8; 64]);

/// `hipMemcpyKind`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum Direction {
    ToDevice = 1,
    ToHost = 2,
    OnDevice = 3,
}

/// `hipDeviceAttribute_t`, as it has been since version 5.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum Attribute {
    Multiprocessors = 63,
    SharedBytesPerBlock = 74,
    WarpSize = 87,
}

/// Flags and modes of calls.
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
pub(super) const HOST_MALLOC_DEFAULT: c_uint = 0;
pub(super) const HOST_REGISTER_PORTABLE: c_uint = 1;
pub(super) const HOST_REGISTER_MAPPED: c_uint = 2;
pub(super) const IPC_LAZY_PEER_ACCESS: c_uint = 1;
pub(super) const CAPTURE_RELAXED: c_int = 2;

thread_local! {
    /// The device that this thread's calls go to. All that asks HIP for anything in this process goes through
    /// [`Hip::enter`], so it need not be asked.
    static CURRENT: Cell<Option<c_int>> = const { Cell::new(None) };
}

impl Hip {
    /// The runtime, loaded once for this process.
    ///
    /// # Errors
    /// There is none, or it does not start.
    pub(super) fn get() -> Result<&'static Self, DeviceError> {
        static HIP: OnceLock<Result<Hip, String>> = OnceLock::new();
        let hip = HIP.get_or_init(|| Self::load().map_err(|error| error.to_string()));
        hip.as_ref().map_err(refused)
    }

    fn load() -> Result<Self, DeviceError> {
        let hip = find(&NAMES, Self::from_library).map_err(|why| {
            refused(format_args!(
                "AMD's HIP runtime is not there (no libamdhip64.so){why}: install ROCm, or start the container with \
                 its GPUs and ROCm's libraries"
            ))
        })?;
        // SAFETY: the first call; no flags are defined.
        hip.check("hipInit", unsafe { (hip.init)(0) })?;
        Ok(hip)
    }

    /// Makes a device the one that this thread's calls go to.
    pub(super) fn enter(&self, device: c_int) -> Result<(), DeviceError> {
        if CURRENT.get() == Some(device) {
            return Ok(());
        }
        // SAFETY: any number may be asked for.
        self.check("hipSetDevice", unsafe { (self.set_device)(device) })?;
        CURRENT.set(Some(device));
        Ok(())
    }

    /// Devices that this process sees.
    pub(super) fn count(&self) -> Result<usize, DeviceError> {
        let mut count = 0;
        // SAFETY: a place for the answer.
        let result = unsafe { (self.device_count)(&mut count) };
        if result == NO_DEVICE {
            return Ok(0);
        }
        self.check("hipGetDeviceCount", result)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    pub(super) fn check(&self, call: &str, result: c_int) -> Result<(), DeviceError> {
        if result == SUCCESS {
            return Ok(());
        }
        let words = self.words(call, result);
        Err(match result {
            OUT_OF_MEMORY => DeviceError::MemoryFull { call: words },
            _ => refused(words),
        })
    }

    /// The call, HIP's name for the error, and its explanation.
    pub(super) fn words(&self, call: &str, result: c_int) -> String {
        let text = |ask: unsafe extern "C" fn(c_int) -> *const c_char| {
            // SAFETY: it answers any number.
            let text = unsafe { ask(result) };
            if text.is_null() {
                return format!("error {result}");
            }
            // SAFETY: a text that the runtime keeps.
            let text = unsafe { CStr::from_ptr(text) };
            text.to_string_lossy().into_owned()
        };
        format!(
            "{call}: {}: {}",
            text(self.error_name),
            text(self.error_string)
        )
    }
}
