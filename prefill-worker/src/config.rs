//! Settings of a prefill worker.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use kernels::DeviceName;
use models::{DEFAULT_SPARSITY, ScorePositions, ScorerOptions};
use serde::{Deserialize, Serialize};
use service::Endpoint;

/// The table `[prefill-worker]` of the configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// GGUF file of the drafter, a dense model (qwen3, llama). Without it: the demo drafter inside the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drafter: Option<PathBuf>,
    /// Where the worker listens for gRPC.
    pub listen: Endpoint,
    /// Device to compute on: `cpu`, or `cuda:N` for NVIDIA's GPU number N.
    pub device: String,
    /// GiB of the device's memory that are taken at most; without it all that is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<f64>,
    /// Whether the weights stay on the device between prompts. Without it: on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_park: Option<bool>,
    /// CPU threads; 0: all that the system offers.
    pub threads: usize,
    /// How many of the drafter's last layers score; without it all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score_layers: Option<usize>,
    /// Queries and keys that score: `unrotated`, so that what is far away counts as much, or `rotated`.
    pub score_positions: String,
    /// Attention leaves out blocks of keys of less than this part of the strongest block's weight, above 0 and up to 1; `off`:
    /// none.
    pub sparsity: String,
    /// Prompts that may wait while one is scored; one more is refused.
    pub queue_len: usize,
    /// Seconds that calls get to end at shutdown.
    pub drain_seconds: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            drafter: None,
            listen: Endpoint::Tcp("127.0.0.1:7003".to_owned()),
            device: DeviceName::default().to_string(),
            device_memory: None,
            skip_park: None,
            threads: 0,
            score_layers: None,
            score_positions: "unrotated".to_owned(),
            sparsity: DEFAULT_SPARSITY.to_string(),
            queue_len: 8,
            drain_seconds: 30,
        }
    }
}

impl Config {
    /// Names what nothing could be served with.
    ///
    /// # Errors
    /// A size that is 0, a name that no device has, a way to score that is none.
    pub fn check(&self) -> Result<()> {
        ensure!(self.queue_len > 0, "queue-len is 0, expected at least 1");
        self.device()?;
        self.scorer_options().map(drop)
    }

    /// The device to compute on.
    ///
    /// # Errors
    /// It names none.
    pub fn device(&self) -> Result<DeviceName> {
        self.device.parse().context("device")
    }

    /// How prompts are scored.
    ///
    /// # Errors
    /// A setting is none of its values. Which layers there are is for the model to say.
    pub fn scorer_options(&self) -> Result<ScorerOptions> {
        let positions = match self.score_positions.as_str() {
            "unrotated" => ScorePositions::Unrotated,
            "rotated" => ScorePositions::Rotated,
            other => bail!("score-positions is `{other}`, expected unrotated or rotated"),
        };
        Ok(ScorerOptions {
            scored_layers: self.score_layers,
            positions,
            sparsity: sparsity(&self.sparsity)?,
            ..ScorerOptions::default()
        })
    }

    /// Whether the weights stay on the device between prompts.
    pub(crate) fn keeps_weights(&self) -> Result<bool> {
        let is_cpu = self.device()? == DeviceName::Cpu;
        Ok(self.skip_park.unwrap_or(is_cpu))
    }
}

fn sparsity(words: &str) -> Result<Option<f32>> {
    if words == "off" {
        return Ok(None);
    }
    match words.parse() {
        Ok(alpha) if alpha > 0.0 && alpha <= 1.0 => Ok(Some(alpha)),
        _ => bail!("sparsity is `{words}`, expected off or a number above 0 and up to 1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_are_refused_by_name() {
        let check = |change: fn(&mut Config), words: &str| {
            let mut config = Config::default();
            change(&mut config);
            let error = config.check().unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        };
        check(|config| config.queue_len = 0, "queue-len is 0");
        check(|config| config.device = "gpu".to_owned(), "device");
        check(
            |config| config.score_positions = "nope".to_owned(),
            "score-positions is `nope`",
        );
        for alpha in ["0", "1.5", "-1", "NaN", "on"] {
            let config = Config {
                sparsity: alpha.to_owned(),
                ..Config::default()
            };
            let error = config.check().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("sparsity is `{alpha}`")),
                "{error}"
            );
        }
        assert!(Config::default().check().is_ok());
    }

    #[test]
    fn settings_become_options() {
        let config = Config {
            score_layers: Some(3),
            score_positions: "rotated".to_owned(),
            sparsity: "0.25".to_owned(),
            ..Config::default()
        };
        let options = config.scorer_options().unwrap();
        assert_eq!(options.scored_layers, Some(3));
        assert_eq!(options.positions, ScorePositions::Rotated);
        assert_eq!(options.sparsity, Some(0.25));
        assert!(!options.exact);
        let config = Config {
            sparsity: "off".to_owned(),
            ..Config::default()
        };
        assert_eq!(config.scorer_options().unwrap().sparsity, None);
        let options = Config::default().scorer_options().unwrap();
        assert_eq!(options, ScorerOptions::default());
    }

    #[test]
    fn weights_stay_on_the_cpu_and_leave_a_gpu_unless_told_otherwise() {
        let keeps = |device: &str, skip_park| {
            let config = Config {
                device: device.to_owned(),
                skip_park,
                ..Config::default()
            };
            config.keeps_weights().unwrap()
        };
        assert!(keeps("cpu", None) && !keeps("cuda:0", None));
        assert!(!keeps("cpu", Some(false)) && keeps("cuda:0", Some(true)));
    }
}
