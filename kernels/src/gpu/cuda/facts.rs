//! What CUDA says of its devices.

use std::ffi::{CStr, c_int};

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute};

use crate::error::DeviceError;
use crate::gpu::cuda::call::{check, init, version_text};
use crate::gpu::driver::{CLUSTERS, DeviceFacts};

/// Devices that this process sees.
pub(super) fn count() -> Result<usize, DeviceError> {
    init()?;
    let mut count = 0;
    // SAFETY: a place for the answer.
    check("cuDeviceGetCount", unsafe {
        sys::cuDeviceGetCount(&mut count)
    })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// The device of a number, which is less than [`count`].
pub(super) fn device(ordinal: usize) -> Result<CUdevice, DeviceError> {
    let there = count()?;
    if ordinal >= there {
        return Err(DeviceError::NoSuchDevice {
            name: format!("cuda:{ordinal}"),
            kind: "CUDA",
            there,
        });
    }
    let mut device = 0;
    let ordinal = c_int::try_from(ordinal).expect("less than a count of theirs");
    // SAFETY: a place for the answer.
    check("cuDeviceGet", unsafe {
        sys::cuDeviceGet(&mut device, ordinal)
    })?;
    Ok(device)
}

/// Whether a kernel may start before the one before it has ended, in recordings too: sm_90, and a driver of CUDA 12.4.
pub(super) fn overlaps_kernels(device: CUdevice) -> Result<bool, DeviceError> {
    let major = attribute(
        device,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    )?;
    Ok(major >= 9 && init()? >= 12_040)
}

/// What is known of a device without using it: all but its clusters.
pub(super) fn facts(device: CUdevice) -> Result<DeviceFacts, DeviceError> {
    let major = attribute(
        device,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    )?;
    let minor = attribute(
        device,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    )?;
    let mut bytes = 0;
    // SAFETY: a place for the answer.
    check("cuDeviceTotalMem", unsafe {
        sys::cuDeviceTotalMem_v2(&mut bytes, device)
    })?;
    Ok(DeviceFacts {
        name: name(device)?,
        arch: arch(major, minor),
        driver_version: format!("CUDA {}", version_text(init()?)),
        multiprocessors: attribute(
            device,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        )?,
        memory_bytes: bytes as u64,
        shared_bytes_per_block: attribute(
            device,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
        clusters: [0; CLUSTERS.len()],
        uuid: uuid(device)?,
    })
}

fn attribute(device: CUdevice, which: CUdevice_attribute) -> Result<u32, DeviceError> {
    let mut value = 0;
    // SAFETY: a place for the answer.
    check("cuDeviceGetAttribute", unsafe {
        sys::cuDeviceGetAttribute(&mut value, which, device)
    })?;
    Ok(u32::try_from(value).unwrap_or(0))
}

fn name(device: CUdevice) -> Result<String, DeviceError> {
    let mut text = [0_u8; 256];
    // SAFETY: as much room as said; the driver ends the text with a zero.
    check("cuDeviceGetName", unsafe {
        sys::cuDeviceGetName(text.as_mut_ptr().cast(), text.len() as c_int, device)
    })?;
    let name = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

/// The identity of a device in every process.
pub(super) fn uuid(device: CUdevice) -> Result<[u8; 16], DeviceError> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: a place for the answer.
    check("cuDeviceGetUuid", unsafe {
        sys::cuDeviceGetUuid_v2(&mut uuid, device)
    })?;
    Ok(uuid.bytes.map(|byte| u8::from_ne_bytes(byte.to_ne_bytes())))
}

/// Whether kernels on `device` can use memory of `peer`.
pub(super) fn reaches(device: CUdevice, peer: CUdevice) -> bool {
    let mut can = 0;
    // SAFETY: a place for the answer.
    let asked = check("cuDeviceCanAccessPeer", unsafe {
        sys::cuDeviceCanAccessPeer(&mut can, device, peer)
    });
    asked.is_ok() && can != 0
}

/// What to compile for: of Hopper, all that it has.
fn arch(major: u32, minor: u32) -> String {
    let own = if (major, minor) == (9, 0) { "a" } else { "" };
    format!("sm_{major}{minor}{own}")
}
