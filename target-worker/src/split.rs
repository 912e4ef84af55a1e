//! How a target is split over devices: which layers are whose.

use std::fmt;
use std::ops::Range;

use anyhow::{Context, Result, ensure};
use gguf::GgufFile;
use kernels::DeviceName;
use models::split_layers;

use crate::config::Config;

/// Layers on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// From 1 on, in the order of the layers.
    pub number: usize,
    /// How many there are. The last one is the target worker.
    pub of: usize,
    /// Where it computes.
    pub device: DeviceName,
    /// Its layers.
    pub layers: Range<usize>,
}

impl fmt::Display for Stage {
    /// For messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            number,
            of,
            device,
            layers,
        } = self;
        let layers = layer_words(layers.start, layers.end);
        write!(f, "stage {number} of {of} ({device}, {layers})")
    }
}

/// Layers from `first` on and before `end`, for messages.
pub(crate) fn layer_words(first: usize, end: usize) -> String {
    match end.saturating_sub(1) {
        last if last == first => format!("layer {first}"),
        last => format!("layers {first} to {last}"),
    }
}

impl Config {
    /// The devices of the stages: one, where the target is not split.
    ///
    /// # Errors
    /// A name that no device has.
    pub fn stage_devices(&self) -> Result<Vec<DeviceName>> {
        let names = match self.devices.as_slice() {
            [] => std::slice::from_ref(&self.device),
            devices => devices,
        };
        let parse = |name: &String| name.parse().context(self.device_setting());
        names.iter().map(parse).collect()
    }

    /// The setting that names them.
    #[must_use]
    pub fn device_setting(&self) -> &'static str {
        if self.devices.is_empty() {
            "target-device"
        } else {
            "target-devices"
        }
    }

    /// Says whether the model can be split like this.
    ///
    /// # Errors
    /// A name that no device has, or shares that do not go with the devices.
    pub fn check_devices(&self) -> Result<()> {
        self.stage_devices()?;
        let (devices, shares) = (self.devices.len(), self.layer_split.len());
        let is_default = self.device == Self::default().device;
        ensure!(
            devices == 0 || is_default,
            "target-device {} and target-devices {} are both set; leave one of them out",
            self.device,
            self.devices.join(",")
        );
        ensure!(
            shares == 0 || shares == devices,
            "target-layer-split has {shares} shares for {devices} target-devices"
        );
        for share in &self.layer_split {
            ensure!(
                share.is_finite() && *share > 0.0,
                "target-layer-split: {share} is no share, expected a number above 0"
            );
        }
        Ok(())
    }

    pub(crate) fn check_split(&self) -> Result<()> {
        self.check_devices()?;
        let (stages, expected) = (self.stages.len(), self.devices.len().saturating_sub(1));
        ensure!(
            stages == expected,
            "stages names {stages} endpoints, expected {expected}: one for each of target-devices but the last"
        );
        Ok(())
    }
}

/// The stages of `file`, the first one first; one, where it is not split.
///
/// # Errors
/// A name that no device has; fewer layers than devices.
pub fn split(config: &Config, file: &GgufFile) -> Result<Vec<Stage>> {
    let devices = config.stage_devices()?;
    let shares = match config.layer_split.as_slice() {
        [] => vec![1.0; devices.len()],
        shares => shares.to_vec(),
    };
    let layers = split_layers(file, &shares).with_context(|| config.device_setting())?;
    let of = devices.len();
    let stages = (1..).zip(devices).zip(layers);
    Ok(stages
        .map(|((number, device), layers)| Stage {
            number,
            of,
            device,
            layers,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(devices: &[&str], layer_split: &[f64]) -> Config {
        Config {
            devices: devices.iter().map(ToString::to_string).collect(),
            layer_split: layer_split.to_vec(),
            stages: devices
                .iter()
                .skip(1)
                .map(|_| Config::default().listen)
                .collect(),
            ..Config::default()
        }
    }

    #[test]
    fn splits_that_cannot_be_are_refused_by_the_flag() {
        let check = |config: Config, words: &str| {
            let error = format!("{:#}", config.check().unwrap_err());
            assert!(error.contains(words), "{error}");
        };
        check(config(&["cpu", "gpu"], &[]), "target-devices: there is no");
        check(config(&["cpu", "cpu"], &[1.0]), "1 shares for 2");
        check(config(&[], &[0.5, 0.5]), "2 shares for 0");
        for share in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            check(config(&["cpu", "cpu"], &[1.0, share]), "target-layer-split");
        }
        let both = Config {
            device: "cuda:1".to_owned(),
            ..config(&["cuda:0", "cpu"], &[])
        };
        check(both, "target-device cuda:1 and target-devices cuda:0,cpu");
        let alone = Config {
            stages: Vec::new(),
            ..config(&["cpu", "cpu"], &[])
        };
        check(alone, "stages names 0 endpoints, expected 1");
        assert!(
            config(&["cuda:0", "hip:1", "cpu"], &[3.0, 2.0, 1.0])
                .check()
                .is_ok()
        );
        assert!(config(&["cpu"], &[]).check().is_ok());
    }
}
