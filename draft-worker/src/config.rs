//! Settings of a draft worker.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use kernels::DeviceName;
use serde::{Deserialize, Serialize};
use service::Endpoint;
use tensor_channel::OfferOptions;

/// The table `[draft-worker]` of the configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Draft model: a GGUF file, or a safetensors file or folder with its `config.json`. Without it: the demo draft
    /// inside the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<PathBuf>,
    /// GGUF file of the target, whose embedding and head the draft uses. Without it: the demo model inside the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<PathBuf>,
    /// Where the worker listens for gRPC.
    pub listen: Endpoint,
    /// `HOST:PORT` for tensor channels over TCP; port 0 is any free one. Without it: the host of a TCP `listen`, or
    /// 127.0.0.1, and any free port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel_listen: Option<String>,
    /// Host that targets are told for tensor channels over TCP; without it that of `channel_listen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel_host: Option<String>,
    /// Device to compute on: `cpu`, or `cuda:N` for NVIDIA's GPU number N.
    pub device: String,
    /// GiB of the device's memory that are taken at most; without it all that is free. Plans for a smaller card on a larger
    /// one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<f64>,
    /// CPU threads; 0: all that the system offers.
    pub threads: usize,
    /// Tokens of context that the draft keeps per sequence; of longer ones the oldest go.
    pub ctx_size: usize,
    /// Sequences with a context at a time; the one not used for longest makes room.
    pub parallel: usize,
    /// Seconds that calls get to end at shutdown. Sessions end at once: their targets go on without a draft.
    pub drain_seconds: u64,
    /// Part of the names of shared memory segments; no setting, but what tells sets of one host apart.
    #[serde(skip)]
    pub instance: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            draft: None,
            model: None,
            listen: Endpoint::Tcp("127.0.0.1:7002".to_owned()),
            channel_listen: None,
            channel_host: None,
            device: DeviceName::default().to_string(),
            device_memory: None,
            threads: 0,
            ctx_size: 4096,
            parallel: 8,
            drain_seconds: 30,
            instance: format!("draft-{}", std::process::id()),
        }
    }
}

impl Config {
    /// Names what nothing could be served with.
    ///
    /// # Errors
    /// A size that is 0, a name that no device has, a draft without its target.
    pub fn check(&self) -> Result<()> {
        for (key, value) in [("ctx-size", self.ctx_size), ("parallel", self.parallel)] {
            ensure!(value > 0, "{key} is 0, expected at least 1");
        }
        self.device()?;
        ensure!(
            self.draft.is_some() || self.model.is_none(),
            "draft is missing: the demo draft does not go with another model"
        );
        self.channel_address().map(drop)
    }

    /// The device to compute on.
    ///
    /// # Errors
    /// It names none.
    pub fn device(&self) -> Result<DeviceName> {
        self.device.parse().context("device")
    }

    /// Where channels over TCP listen.
    fn channel_address(&self) -> Result<String> {
        if let Some(address) = &self.channel_listen {
            let port = address.rsplit_once(':').map(|(_, port)| port);
            port.and_then(|port| port.parse::<u16>().ok())
                .with_context(|| format!("channel-listen is `{address}`, expected HOST:PORT"))?;
            return Ok(address.clone());
        }
        let host = match &self.listen {
            Endpoint::Tcp(address) => address.rsplit_once(':').map(|(host, _)| host),
            Endpoint::Unix(_) => None,
        };
        Ok(format!("{}:0", host.unwrap_or("127.0.0.1")))
    }

    /// What channels are offered under.
    pub(crate) fn offer_options(&self) -> Result<OfferOptions> {
        Ok(OfferOptions {
            instance: self.instance.clone(),
            tcp_bind: self.channel_address()?,
            tcp_host: self.channel_host.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_listen_where_the_worker_does_unless_told_otherwise() {
        let check = |listen: &str, channel: Option<&str>, expected: &str| {
            let config = Config {
                listen: listen.parse().unwrap(),
                channel_listen: channel.map(str::to_owned),
                ..Config::default()
            };
            assert_eq!(config.channel_address().unwrap(), expected);
        };
        check("unix:/run/draft.sock", None, "127.0.0.1:0");
        check("tcp:10.0.0.2:7002", None, "10.0.0.2:0");
        check("tcp:[::1]:7002", None, "[::1]:0");
        check("tcp:10.0.0.2:7002", Some("0.0.0.0:7010"), "0.0.0.0:7010");
    }

    #[test]
    fn settings_that_cannot_be_are_refused_by_name() {
        let check = |config: Config, key: &str| {
            let error = config.check().unwrap_err().to_string();
            assert!(error.starts_with(key), "{error}");
        };
        let default = Config::default;
        check(
            Config {
                parallel: 0,
                ..default()
            },
            "parallel",
        );
        check(
            Config {
                ctx_size: 0,
                ..default()
            },
            "ctx-size",
        );
        let device = "gpu".to_owned();
        check(
            Config {
                device,
                ..default()
            },
            "device",
        );
        let model = Some("/models/target.gguf".into());
        check(Config { model, ..default() }, "draft");
        let channel_listen = Some("nowhere".to_owned());
        check(
            Config {
                channel_listen,
                ..default()
            },
            "channel-listen",
        );
        assert!(default().check().is_ok());
    }
}
