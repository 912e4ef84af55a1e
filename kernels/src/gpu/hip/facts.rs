//! What HIP says of its devices.

use std::ffi::{CStr, c_int};

use crate::error::DeviceError;
use crate::gpu::driver::{DeviceFacts, refused};
use crate::gpu::hip::api::{Attribute, Hip};

/// Lanes of a warp that kernels are written for; AMD's chips for data centres have 64.
const LANES: u32 = 32;
/// Room for the properties of a device: several times what any version fills.
const PROPERTIES_BYTES: usize = 16 * 1024;
/// The properties begin with the device's name, which is no chip's.
const NAME_BYTES: usize = 256;

/// The number of a device, which must be there.
pub(super) fn device(hip: &Hip, ordinal: usize) -> Result<c_int, DeviceError> {
    let there = hip.count()?;
    match c_int::try_from(ordinal) {
        Ok(device) if ordinal < there => Ok(device),
        _ => Err(DeviceError::NoSuchDevice {
            name: format!("hip:{ordinal}"),
            kind: "HIP",
            there,
        }),
    }
}

/// What is known of a device.
pub(super) fn facts(hip: &Hip, device: c_int) -> Result<DeviceFacts, DeviceError> {
    let name = name(hip, device)?;
    let arch = arch(hip, device)?;
    let lanes = attribute(hip, device, Attribute::WarpSize)?;
    if lanes != LANES {
        return Err(refused(format_args!(
            "{name} ({arch}) has warps of {lanes} lanes, and kernels are written for {LANES}"
        )));
    }
    let mut bytes = 0;
    // SAFETY: a place for the answer.
    hip.check("hipDeviceTotalMem", unsafe {
        (hip.device_memory)(&mut bytes, device)
    })?;
    let mut uuid = [0; 16];
    // SAFETY: a place for the answer.
    hip.check("hipDeviceGetUuid", unsafe {
        (hip.device_uuid)(&mut uuid, device)
    })?;
    let mut version = 0;
    // SAFETY: a place for the answer.
    hip.check("hipRuntimeGetVersion", unsafe {
        (hip.runtime_version)(&mut version)
    })?;
    Ok(DeviceFacts {
        name,
        arch,
        driver_version: version_text(version),
        multiprocessors: attribute(hip, device, Attribute::Multiprocessors)?,
        memory_bytes: bytes as u64,
        shared_bytes_per_block: attribute(hip, device, Attribute::SharedBytesPerBlock)?,
        clusters: [0; 3],
        uuid,
    })
}

/// `HIP 6.2`, as HIP counts.
fn version_text(version: c_int) -> String {
    format!(
        "HIP {}.{}",
        version / 10_000_000,
        version % 10_000_000 / 100_000
    )
}

fn attribute(hip: &Hip, device: c_int, which: Attribute) -> Result<u32, DeviceError> {
    let mut value = 0;
    // SAFETY: a place for the answer.
    let result = unsafe { (hip.device_attribute)(&mut value, which as c_int, device) };
    hip.check(&format!("hipDeviceGetAttribute of {which:?}"), result)?;
    Ok(u32::try_from(value).unwrap_or(0))
}

fn name(hip: &Hip, device: c_int) -> Result<String, DeviceError> {
    let mut text = [0_u8; NAME_BYTES];
    // SAFETY: as much room as said; the runtime ends the text with a zero.
    hip.check("hipDeviceGetName", unsafe {
        (hip.device_name)(text.as_mut_ptr().cast(), NAME_BYTES as c_int, device)
    })?;
    let name = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

/// The chip, such as `gfx1100`.
fn arch(hip: &Hip, device: c_int) -> Result<String, DeviceError> {
    // Words, so that the struct is aligned.
    let mut properties = vec![0_u64; PROPERTIES_BYTES / 8];
    // SAFETY: far more room than the struct takes in any version.
    hip.check("hipGetDeviceProperties", unsafe {
        (hip.device_properties)(properties.as_mut_ptr().cast(), device)
    })?;
    arch_in(bytemuck::cast_slice(&properties)).ok_or_else(|| {
        refused(format_args!(
            "hipGetDeviceProperties says no chip of device {device}"
        ))
    })
}

/// The chip's name where it stands in the properties: its place differs between versions, but no other text is there.
fn arch_in(properties: &[u8]) -> Option<String> {
    let after_name = properties.get(NAME_BYTES..)?;
    let at = after_name.windows(3).position(|text| text == b"gfx")?;
    let text = CStr::from_bytes_until_nul(&after_name[at..]).ok()?;
    let arch = text.to_str().ok()?;
    let is_said = |c: char| c.is_ascii_alphanumeric() || ":+-".contains(c);
    (arch.len() > 3 && arch.chars().all(is_said)).then(|| arch.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chip_is_found_wherever_it_stands() {
        let mut properties = vec![0; PROPERTIES_BYTES];
        properties[..10].copy_from_slice(b"gfx1036 as");
        assert_eq!(arch_in(&properties), None);
        for at in [396, 1160] {
            let mut properties = properties.clone();
            properties[at..at + 25].copy_from_slice(b"gfx90a:sramecc+:xnack-\0\0\0");
            let arch = arch_in(&properties);
            assert_eq!(arch.as_deref(), Some("gfx90a:sramecc+:xnack-"));
        }
        assert_eq!(arch_in(b"short"), None);
    }

    #[test]
    fn versions_are_read_as_hip_counts_them() {
        assert_eq!(version_text(60_342_131), "HIP 6.3");
        assert_eq!(version_text(70_000_000), "HIP 7.0");
    }
}
