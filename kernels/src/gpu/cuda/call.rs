//! Calls of the CUDA driver: whether it is there, and what its errors say.

use std::ffi::CStr;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};
use libloading::Library;

use crate::error::DeviceError;
use crate::gpu::driver::refused;

/// The library, as its package and as NVIDIA's containers name it.
const NAMES: [&str; 3] = ["libcuda.so.1", "libcuda.so", "nvcuda.dll"];
/// Least version of CUDA that the driver must know: the first with all that is called here.
const LEAST_VERSION: i32 = 12_000;

/// Makes sure that there is a driver that can be called, once for this process.
pub(super) fn init() -> Result<i32, DeviceError> {
    static VERSION: OnceLock<Result<i32, String>> = OnceLock::new();
    let version = VERSION.get_or_init(|| probe().map_err(|error| error.to_string()));
    version.clone().map_err(|what| DeviceError::Driver { what })
}

fn probe() -> Result<i32, DeviceError> {
    // cudarc panics where the library is missing, so it is asked only when this has found it.
    // SAFETY: the driver's constructors only set it up.
    let is_there = |name: &&str| unsafe { Library::new(*name) }.is_ok();
    if !NAMES.iter().any(is_there) {
        return Err(refused(
            "NVIDIA's driver is not there (no libcuda.so.1): install it, or start the container with its GPUs",
        ));
    }
    // SAFETY: the first call.
    check("cuInit", unsafe { sys::cuInit(0) })?;
    let mut version = 0;
    // SAFETY: a place for the answer.
    check("cuDriverGetVersion", unsafe {
        sys::cuDriverGetVersion(&mut version)
    })?;
    if version < LEAST_VERSION {
        return Err(refused(format_args!(
            "NVIDIA's driver knows CUDA {}, expected at least {}: install a newer one",
            version_text(version),
            version_text(LEAST_VERSION)
        )));
    }
    Ok(version)
}

/// `12.4`, as CUDA counts.
pub(super) fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

pub(super) fn check(call: &str, result: CUresult) -> Result<(), DeviceError> {
    if is_ok(result) {
        return Ok(());
    }
    let words = words(call, result);
    Err(
        match result as u32 == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 {
            true => DeviceError::MemoryFull { call: words },
            false => DeviceError::Driver { what: words },
        },
    )
}

/// Compared as a number: a driver that is newer than the bindings may answer with one that they do not name.
pub(super) fn is_ok(result: CUresult) -> bool {
    result as u32 == CUresult::CUDA_SUCCESS as u32
}

/// The call, CUDA's name for the error, and its explanation.
pub(super) fn words(call: &str, result: CUresult) -> String {
    type Ask = unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult;
    let ask = |ask: Ask| {
        let mut text = std::ptr::null();
        // SAFETY: a place for the answer, a text that the driver keeps.
        if !is_ok(unsafe { ask(result, &mut text) }) || text.is_null() {
            return None;
        }
        // SAFETY: as above.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy())
    };
    let name =
        ask(sys::cuGetErrorName).unwrap_or_else(|| format!("error {}", result as u32).into());
    let why = ask(sys::cuGetErrorString).unwrap_or_else(|| "no explanation".into());
    format!("{call}: {name}: {why}")
}
