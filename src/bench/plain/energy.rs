//! Joules of decoded tokens, by the energy counter that NVIDIA's management library reads.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kernels::Device;
use nvml_wrapper::Nvml;

/// Time that a measurement takes at least: the counter moves some ten times a second.
const LEAST: Duration = Duration::from_secs(10);
/// Time after work until the chip's clocks have come down.
const SETTLE: Duration = Duration::from_secs(2);

/// A GPU's energy counter. It only reads: no limit or clock is changed.
pub(super) struct Meter {
    nvml: Nvml,
    uuid: String,
}

/// What decoding took, beside what the GPU takes while it waits with the same model loaded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Energy {
    pub test: String,
    pub tokens: usize,
    pub seconds: f64,
    pub joules: f64,
    pub idle_watts: f64,
    /// The power cap in force.
    pub limit_watts: f64,
}

impl Energy {
    pub fn watts(&self) -> f64 {
        self.joules / self.seconds
    }

    pub fn tokens_per_joule(&self) -> f64 {
        self.tokens as f64 / self.joules
    }

    /// Of what decoding takes beyond waiting.
    pub fn tokens_per_joule_over_idle(&self) -> f64 {
        self.tokens as f64 / (self.joules - self.idle_watts * self.seconds)
    }
}

impl Meter {
    /// The counter of the device.
    ///
    /// # Errors
    /// The device is not one of NVIDIA's, or its management library is not there.
    pub fn open(device: &dyn Device) -> Result<Self> {
        let uuid = device.uuid().with_context(|| {
            format!(
                "--energy reads the energy counter of NVIDIA's GPUs, and {} has none",
                device.name()
            )
        })?;
        let nvml = Nvml::init().context("NVIDIA's management library (libnvidia-ml.so.1)")?;
        let meter = Self {
            nvml,
            uuid: gpu_name(uuid),
        };
        meter.joules()?;
        Ok(meter)
    }

    /// Watts while nothing is computed.
    pub fn idle_watts(&self) -> Result<f64> {
        sleep(SETTLE);
        let (before, started) = (self.joules()?, Instant::now());
        sleep(LEAST);
        Ok((self.joules()? - before) / started.elapsed().as_secs_f64())
    }

    /// What repeated work takes, which says how many tokens it decoded.
    pub fn measure(
        &self,
        test: String,
        idle_watts: f64,
        mut work: impl FnMut() -> Result<usize>,
    ) -> Result<Energy> {
        work()?;
        let mut tokens = 0;
        let (before, started) = (self.joules()?, Instant::now());
        while started.elapsed() < LEAST {
            tokens += work()?;
        }
        Ok(Energy {
            test,
            tokens,
            joules: self.joules()? - before,
            seconds: started.elapsed().as_secs_f64(),
            idle_watts,
            limit_watts: f64::from(self.gpu()?.enforced_power_limit()?) / 1e3,
        })
    }

    /// Since the driver was loaded.
    fn joules(&self) -> Result<f64> {
        let millijoules = self.gpu()?.total_energy_consumption();
        Ok(millijoules.context("the GPU's energy counter")? as f64 / 1e3)
    }

    fn gpu(&self) -> Result<nvml_wrapper::Device<'_>> {
        let gpu = self.nvml.device_by_uuid(self.uuid.as_str());
        gpu.with_context(|| format!("{} in NVIDIA's management library", self.uuid))
    }
}

/// A GPU's name there.
fn gpu_name(uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let (a, b, c, d, e) = (
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    );
    format!("GPU-{a}-{b}-{c}-{d}-{e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_taken_off() {
        let energy = Energy {
            test: "tg128".to_owned(),
            tokens: 6000,
            seconds: 10.0,
            joules: 4000.0,
            idle_watts: 100.0,
            limit_watts: 700.0,
        };
        assert_eq!(energy.watts(), 400.0);
        assert_eq!(energy.tokens_per_joule(), 1.5);
        assert_eq!(energy.tokens_per_joule_over_idle(), 2.0);
    }

    #[test]
    fn a_gpu_has_the_name_that_its_tools_print() {
        let uuid = std::array::from_fn(|i| 0x10 * (i as u8) + 1);
        assert_eq!(gpu_name(uuid), "GPU-01112131-4151-6171-8191-a1b1c1d1e1f1");
    }

    #[test]
    fn what_has_no_counter_is_named() {
        let device = kernels::open_device(kernels::DeviceName::Cpu, 1).unwrap();
        let error = Meter::open(device.as_ref()).err().unwrap().to_string();
        assert!(
            error.contains("--energy") && error.contains("cpu"),
            "{error}"
        );
    }
}
