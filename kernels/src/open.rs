//! Devices by their names.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tensor_channel::Transport;

use crate::cpu::CpuDevice;
use crate::device::Device;
use crate::error::DeviceError;
use crate::gpu::GpuDevice;

/// Which device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// `cpu`: the processor's vector and matrix units.
    #[default]
    Cpu,
    /// `cuda:N`: NVIDIA's GPU of this number, as this process sees them; `cuda` is the first.
    Cuda(usize),
    /// `hip:N`: AMD's; `hip` is the first. Never tested on hardware.
    Hip(usize),
    /// `emulated`: kernels for GPUs on the processor, for tests; slow.
    Emulated,
}

impl FromStr for DeviceName {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let unknown = || DeviceError::UnknownDevice {
            got: text.to_owned(),
        };
        let (kind, number) = match text.split_once(':') {
            None => (text, None),
            Some((kind, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                (kind, Some(number.parse().map_err(|_| unknown())?))
            }
            Some(_) => return Err(unknown()),
        };
        match (kind, number) {
            ("cpu", None) => Ok(Self::Cpu),
            ("emulated", None) => Ok(Self::Emulated),
            ("cuda", number) => Ok(Self::Cuda(number.unwrap_or(0))),
            ("hip", number) => Ok(Self::Hip(number.unwrap_or(0))),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for DeviceName {
    /// As it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Hip(ordinal) => write!(f, "hip:{ordinal}"),
            Self::Emulated => f.write_str("emulated"),
        }
    }
}

impl DeviceName {
    /// The transport by which such devices share memory with those of other processes.
    #[must_use]
    pub const fn memory_transport(self) -> Option<Transport> {
        match self {
            Self::Cpu => None,
            Self::Cuda(_) => Some(Transport::CudaIpc),
            Self::Hip(_) => Some(Transport::HipIpc),
            Self::Emulated => Some(Transport::EmulatedIpc),
        }
    }

    /// Whether there is such a device, without taking it. One of AMD's is looked for when it is opened.
    ///
    /// # Errors
    /// It is not there, and why.
    pub fn check(self) -> Result<(), DeviceError> {
        match self {
            Self::Cuda(ordinal) => crate::gpu::check_cuda(ordinal),
            Self::Cpu | Self::Hip(_) | Self::Emulated => Ok(()),
        }
    }
}

/// The device of a name. `threads` are the CPU's, 0: all that the system offers.
///
/// # Errors
/// It is not there, or not of use, and why.
pub fn open_device(name: DeviceName, threads: usize) -> Result<Arc<dyn Device>, DeviceError> {
    Ok(match name {
        DeviceName::Cpu => Arc::new(CpuDevice::new(threads)?),
        DeviceName::Cuda(ordinal) => Arc::new(GpuDevice::cuda(ordinal)?),
        DeviceName::Hip(ordinal) => Arc::new(GpuDevice::hip(ordinal)?),
        DeviceName::Emulated => Arc::new(GpuDevice::emulated()?),
    })
}

/// The same, of whose memory at most so many GiB are taken; `None`: whatever is free.
///
/// # Errors
/// As [`open_device`]; what is no amount of memory.
pub fn open_limited_device(
    name: DeviceName,
    threads: usize,
    memory_gib: Option<f64>,
) -> Result<Arc<dyn Device>, DeviceError> {
    let device = open_device(name, threads)?;
    if let Some(gib) = memory_gib {
        if !(gib > 0.0 && gib.is_finite()) {
            return Err(DeviceError::MemoryLimit { got: gib });
        }
        device.limit_memory((gib * f64::from(1 << 30)) as u64);
    }
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (text, name) in [
            ("cpu", DeviceName::Cpu),
            ("cuda:0", DeviceName::Cuda(0)),
            ("cuda:12", DeviceName::Cuda(12)),
            ("hip:1", DeviceName::Hip(1)),
            ("emulated", DeviceName::Emulated),
        ] {
            assert_eq!(text.parse::<DeviceName>().unwrap(), name);
            assert_eq!(name.to_string(), text);
        }
        assert_eq!("cuda".parse::<DeviceName>().unwrap(), DeviceName::Cuda(0));
        assert_eq!("hip".parse::<DeviceName>().unwrap(), DeviceName::Hip(0));
        for text in [
            "",
            "gpu",
            "cpu:0",
            "CUDA:0",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda:x",
            "cuda:0:0",
            "cuda:99999999999999999999",
            "emulated:0",
        ] {
            let error = text.parse::<DeviceName>().unwrap_err().to_string();
            assert!(error.contains("cuda:N") && error.contains(text), "{error}");
        }
    }

    #[test]
    fn what_is_not_there_is_an_error_that_says_so() {
        let refusal = |name| open_device(name, 1).err().expect("a refusal").to_string();
        // With a runtime or without one, there are not as many.
        let error = refusal(DeviceName::Hip(4096));
        assert!(
            error.contains("libamdhip64") || error.contains("hip:4096"),
            "{error}"
        );
        // With a driver or without one, there are not as many.
        let error = refusal(DeviceName::Cuda(4096));
        assert!(
            error.contains("driver") || error.contains("cuda:4096"),
            "{error}"
        );
        assert!(open_device(DeviceName::Cpu, 1).is_ok());
    }

    #[test]
    fn a_limit_is_an_amount_that_the_device_says_to_have_at_most() {
        let open = |gib| open_limited_device(DeviceName::Cpu, 1, Some(gib));
        assert_eq!(open(0.25).unwrap().free_memory(), Some(1 << 28));
        for gib in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = open(gib).err().expect("a refusal").to_string();
            assert!(error.contains("GiB"), "{error}");
        }
    }
}
