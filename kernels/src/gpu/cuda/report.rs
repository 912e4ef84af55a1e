//! What this machine has of CUDA, for people: never fails, and says what is missing.

use crate::error::DeviceError;
use crate::gpu::cuda::context::Context;
use crate::gpu::cuda::{call, facts};
use crate::gpu::driver::DeviceFacts;
use crate::gpu::nvrtc::Nvrtc;

/// The driver, the compiler and the devices.
#[derive(Debug)]
pub struct CudaReport {
    /// `CUDA 13.0`, or why there is none.
    pub driver: Result<String, DeviceError>,
    /// `NVRTC 13.0`, or why there is none.
    pub compiler: Result<String, DeviceError>,
    /// By number; those that could not be asked are an error.
    pub devices: Vec<Result<CudaDevice, DeviceError>>,
}

/// A device.
#[derive(Clone, Debug)]
pub struct CudaDevice {
    /// What is known of it.
    pub facts: DeviceFacts,
    /// Free bytes of its memory, where it could be asked.
    pub free_bytes: Option<u64>,
    /// Numbers of the devices whose memory its kernels can use.
    pub peers: Vec<usize>,
}

impl CudaReport {
    /// Looks.
    #[must_use]
    pub fn new() -> Self {
        let driver = call::init().map(|version| format!("CUDA {}", call::version_text(version)));
        let count = facts::count().unwrap_or(0);
        Self {
            driver,
            compiler: Nvrtc::load().map(|nvrtc| nvrtc.version()),
            devices: (0..count).map(|ordinal| look(ordinal, count)).collect(),
        }
    }
}

impl Default for CudaReport {
    fn default() -> Self {
        Self::new()
    }
}

fn look(ordinal: usize, count: usize) -> Result<CudaDevice, DeviceError> {
    let device = facts::device(ordinal)?;
    let memory = Context::of(device).and_then(|context| context.memory());
    let peers = (0..count).filter(|&peer| peer != ordinal);
    let peers =
        peers.filter(|&peer| facts::device(peer).is_ok_and(|peer| facts::reaches(device, peer)));
    Ok(CudaDevice {
        facts: facts::facts(device)?,
        free_bytes: memory.ok().map(|(free, _)| free),
        peers: peers.collect(),
    })
}
