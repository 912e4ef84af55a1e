//! The stages of a split target: what the settings leave open of them, and their processes.

use std::path::Path;

use anyhow::{Context, Result};
use gguf::GgufFile;
use kernels::{CpuDevice, CudaReport, Device, DeviceName};
use models::Model;
use service::Endpoint;
use target_worker::{Config, LoadedStage, attach_earlier, load_stage, split};
use tokio::runtime::Runtime;
use worker_api::OpenStage;

use crate::cli::{ModelArgs, SplitArgs};
use crate::pair::Worker;
use crate::runtime_dir::RuntimeDir;
use crate::{pair, session};

const GIB: f64 = (1_u64 << 30) as f64;

/// Says where the stages before the target worker listen, in `dir`, and where nothing is said of the layers' shares, that
/// they go by the devices' free memory.
///
/// # Errors
/// A name that no device has.
pub(crate) fn complete(config: &mut Config, dir: &RuntimeDir) -> Result<()> {
    let devices = config.stage_devices()?;
    let listen = |number| Endpoint::Unix(dir.join(&format!("stage-{number}.sock")));
    config.stages = (1..devices.len()).map(listen).collect();
    complete_shares(config, &devices);
    Ok(())
}

/// Without free memory that is known of all devices, the shares stay even.
pub(crate) fn complete_shares(config: &mut Config, devices: &[DeviceName]) {
    if config.layer_split.is_empty() && config.devices.len() > 1 {
        let limit = config
            .device_memory
            .map_or(u64::MAX, |gib| (gib * GIB) as u64);
        config.layer_split = free_memory(devices, limit).unwrap_or_default();
    }
}

fn free_memory(devices: &[DeviceName], limit: u64) -> Option<Vec<f64>> {
    let is_cuda = |device: &DeviceName| matches!(device, DeviceName::Cuda(_));
    let cuda = devices.iter().any(is_cuda).then(CudaReport::new);
    let free = |device: &DeviceName| match *device {
        DeviceName::Cpu => CpuDevice::new(1).ok()?.free_memory(),
        DeviceName::Cuda(ordinal) => {
            let found = cuda.as_ref()?.devices.get(ordinal)?;
            found.as_ref().ok()?.free_bytes
        }
        DeviceName::Hip(_) | DeviceName::Emulated => None,
    };
    let free = devices.iter().map(free).collect::<Option<Vec<u64>>>()?;
    let free = free.into_iter().map(|bytes| bytes.min(limit) as f64);
    let free: Vec<f64> = free.filter(|bytes| *bytes > 0.0).collect();
    (free.len() == devices.len()).then_some(free)
}

/// Where the target is to be computed, by a command's arguments.
pub(crate) fn target_config(model: &ModelArgs, split: &SplitArgs) -> Config {
    let mut config = Config {
        model: model.model.clone(),
        device: match split.target_devices.is_empty() {
            true => model.device.to_string(),
            false => Config::default().device,
        },
        devices: split.target_devices.clone(),
        layer_split: split.target_layer_split.clone(),
        device_memory: model.device_memory,
        threads: model.threads,
        ctx_size: model.ctx_size,
        // Commands compute each prompt.
        prefix_cache_slots: 0,
        ..Config::default()
    };
    model.cache_types.set(&mut config);
    config
}

/// Starts all stages before the target worker.
pub(crate) fn start(config: &Config, path: &Path, log: &str) -> Result<Vec<Worker>> {
    let numbers = 1..=config.stages.len();
    numbers
        .map(|number| {
            let number = number.to_string();
            pair::start("target-stage", &["--stage", &number], path, log)
        })
        .collect()
}

/// A split model whose last stage is in this process.
#[derive(Debug)]
pub(crate) struct SplitModel {
    loaded: LoadedStage,
    earlier: Option<OpenStage>,
    _workers: Vec<Worker>,
    /// Keeps the sessions alive.
    _runtime: Runtime,
    // Dropped last: the processes use it.
    _dir: RuntimeDir,
}

impl SplitModel {
    /// Loads the last stage behind a progress bar, and starts the others. `config` has the devices and sizes.
    pub(crate) fn load(mut config: Config, file: &GgufFile, log: &str) -> Result<Self> {
        let dir = RuntimeDir::create()?;
        complete(&mut config, &dir)?;
        config.check()?;
        let stages = split(&config, file)?;
        let last = stages.last().context("no stages")?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("starting the async runtime")?;
        let path = pair::write_config(&dir, &pair::TargetConfig::new(&config))?;
        let mut workers = {
            let _entered = runtime.enter();
            start(&config, &path, log)?
        };
        let bar = session::LoadBar::new();
        let mut loaded = load_stage(&config, file, last, &mut |so_far| bar.show(so_far))?;
        let earlier = match config.stages.last() {
            Some(endpoint) => Some(runtime.block_on(async {
                tokio::select! {
                    attached = attach_earlier(&mut loaded, endpoint) => attached,
                    ended = pair::until_one_ends(&mut workers) => Err(ended),
                }
            })?),
            None => None,
        };
        loaded.model.warm_up(0)?;
        Ok(Self {
            loaded,
            earlier,
            _workers: workers,
            _runtime: runtime,
            _dir: dir,
        })
    }

    /// The devices of all stages, for people.
    pub(crate) fn devices(&self) -> String {
        let earlier = self.earlier.iter().flat_map(|open| &open.session().stages);
        let mut stages: Vec<_> = earlier.cloned().collect();
        stages.push(self.loaded.description.clone());
        target_worker::devices(&stages)
    }

    pub(crate) fn model(&mut self) -> &mut Model {
        &mut self.loaded.model
    }
}
