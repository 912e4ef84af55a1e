//! The memory's speed, measured.

use std::time::Instant;

use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Launch, Source};
use crate::gpu::memory::DeviceMemory;

/// Bytes read at a time: more than any cache holds.
const MOST_BYTES: u64 = 1 << 30;
/// The emulation's: its speed says nothing.
const EMULATED_BYTES: u64 = 1 << 20;
/// Passes between two looks at the clock, so that what a launch costs is not seen.
const PASSES: u32 = 8;
/// Measurements, of which the middle one counts.
const REPETITIONS: usize = 7;
const THREADS: u32 = 512;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;

/// All that this module launches; see [`crate::gpu::sources`].
pub(super) fn sources() -> Vec<Source> {
    vec![Source {
        name: "bandwidth.cu",
        text: include_str!("../../gpu/bandwidth.cu"),
        defines: Vec::new(),
    }]
}

/// See gpu/bandwidth.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct ReadArgs {
    at: DevicePtr,
    out: DevicePtr,
    count: u64,
}

impl GpuDevice {
    /// Bytes a second, over a part of the memory that is free.
    pub(super) fn measure_read_bandwidth(&self) -> Result<f64, DeviceError> {
        let most = match self.facts().arch.as_str() {
            "host" => EMULATED_BYTES,
            _ => MOST_BYTES,
        };
        let free = self.driver.budget().left_of(self.driver.free_memory()?);
        let bytes = most.min(free / 4) / 16 * 16;
        let memory = DeviceMemory::zeros(&self.driver, usize::try_from(bytes).unwrap_or(0))?;
        let out = DeviceMemory::zeros(&self.driver, 4)?;
        let args = ReadArgs {
            at: memory.ptr(),
            out: out.ptr(),
            count: bytes / 16,
        };
        let launch = Launch {
            grid: [
                self.facts().multiprocessors * BLOCKS_PER_MULTIPROCESSOR,
                1,
                1,
            ],
            threads: THREADS,
            shared_bytes: 0,
        };
        let [source] = &sources()[..] else {
            return Ok(0.0);
        };
        let mut speeds = Vec::with_capacity(REPETITIONS);
        // The first one compiles, and wakes the device up.
        for _ in 0..=REPETITIONS {
            self.driver.synchronize()?;
            let begin = Instant::now();
            for _ in 0..PASSES {
                self.launch(source, "read_all", launch, &args)?;
            }
            self.driver.synchronize()?;
            let seconds = begin.elapsed().as_secs_f64();
            speeds.push(bytes as f64 * f64::from(PASSES) / seconds);
        }
        speeds.remove(0);
        speeds.sort_by(f64::total_cmp);
        Ok(speeds[REPETITIONS / 2])
    }
}

#[cfg(test)]
mod tests {
    use crate::device::Device;
    use crate::gpu::device::GpuDevice;

    #[test]
    fn no_more_memory_is_read_than_a_limit_leaves() {
        let device = GpuDevice::emulated().unwrap();
        device.limit_memory(64 << 10);
        assert!(device.read_bandwidth() > 0.0);
        device.finish().unwrap();
    }
}
