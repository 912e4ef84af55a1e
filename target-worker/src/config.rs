//! Settings of a target worker.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use engine::{EngineConfig, PrefixCacheConfig};
use generation::{SpeculationConfig, SpeculationMode};
use gguf::GgufFile;
use kernels::{DecodePath, DeviceName};
use models::{KvType, LoadOptions, kv_types, memory_need};
use serde::{Deserialize, Serialize};
use service::Endpoint;

/// Context where none is asked for: larger ones cost memory.
const DEFAULT_CONTEXT_TOKENS: usize = 8192;
/// Prompt tokens of a step where nothing is said: a GPU is at its best with many, a processor would keep others waiting for long.
const PREFILL_CHUNK_OF_GPUS: usize = 512;
const PREFILL_CHUNK: usize = 128;

/// The table `[target-worker]` of the configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// GGUF file (any part of a split one). Without it: the demo model inside the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<PathBuf>,
    /// Where the worker listens for gRPC.
    pub listen: Endpoint,
    /// Device to compute on: `cpu`, or `cuda:N` for NVIDIA's GPU number N.
    pub device: String,
    /// GiB of the device's memory that are taken at most, of several devices of each; without it all that is free. Plans for a
    /// smaller card on a larger one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<f64>,
    /// Devices that the layers are split over, in the order of the layers; the last one is this worker's, and each before it
    /// belongs to a process of its own. Without them `device` has all layers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// What share of the layers' bytes each of `devices` gets; only what they are to each other counts. Without it `tandem up`
    /// goes by the memory that is free, and roles started one by one share evenly.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layer_split: Vec<f64>,
    /// Where the stages before this worker listen, in the order of the layers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Endpoint>,
    /// CPU threads; 0: all that the system offers.
    pub threads: usize,
    /// Tokens that one sequence can hold, prompt and answer together; 0: as the model declares, at most 8192.
    pub ctx_size: usize,
    /// How keys are kept, `f32`, `f16`, `bf16`, `q8_0`, `q5_1`, `q5_0`, `q4_1`, `q4_0` or `tq3_0`; by default f16 where weights are
    /// quantised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_type_k: Option<String>,
    /// The same of values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_type_v: Option<String>,
    /// Positions that full attention sees of a context while an answer is computed, its prompt is read whole; 0: all. Quicker in
    /// a long context, and lossy: what lies further back is forgotten, instructions and tools among it.
    pub fa_window: usize,
    /// How a step of one sequence is launched on a GPU: `graph`, operation by operation, `megakernel`, all in one launch where that
    /// knows the model, or `auto`, what is faster here. No token depends on it.
    pub decode_path: String,
    /// Sequences decoded at a time. Each has room for `ctx_size` tokens.
    pub parallel: usize,
    /// Requests that may wait for a place; one more is answered with 429.
    pub queue_len: usize,
    /// Prompt tokens computed in a step. More finish a prompt sooner, fewer keep the other streams quick. 0: 512 where all layers
    /// are on GPUs, else 128.
    pub prefill_chunk: usize,
    /// Prefixes that are kept for prompts that begin in the same way; 0: none. Fewer, where `prefix_cache_mib` has no room for the
    /// recurrent states of so many. No answer depends on it.
    pub prefix_cache_slots: usize,
    /// MiB that prefixes take at most, of a split target for its last layers: recurrent states, which are set aside at the start,
    /// and what a draft has to see. Keys and values lie in pages that running sequences leave, and give way to them.
    pub prefix_cache_mib: usize,
    /// Folder that prefixes are kept in beyond the process, for this user alone; several processes may share it. Without it they
    /// are kept in memory only. Not for split targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_dir: Option<PathBuf>,
    /// MiB that all files in `kv_cache_dir` take at most; what was not used for longest goes.
    pub kv_cache_budget: usize,
    /// Tokens that a prefix must have to be written, and must have beyond those known in memory to be read.
    pub kv_cache_min_tokens: usize,
    /// How drafts are used where there is one, `off`, `chain`, `tree` or `auto`. No answer depends on it.
    pub speculation: String,
    /// Draft tokens verified at a time, of a tree; with `auto` the most there may be.
    pub ddtree_budget: usize,
    /// Hold every token against plain decoding, at the cost of decoding twice; `/metrics` tells what came of it.
    pub verify_lossless: bool,
    /// Seconds that running answers get to end at shutdown.
    pub drain_seconds: u64,
    /// Part of the names of shared memory segments; no setting, but what tells sets of one host apart.
    #[serde(skip)]
    pub instance: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            model: None,
            listen: Endpoint::Tcp("127.0.0.1:7001".to_owned()),
            device: DeviceName::default().to_string(),
            device_memory: None,
            devices: Vec::new(),
            layer_split: Vec::new(),
            stages: Vec::new(),
            threads: 0,
            ctx_size: 0,
            cache_type_k: None,
            cache_type_v: None,
            fa_window: 0,
            decode_path: DecodePath::Auto.to_string(),
            parallel: 8,
            queue_len: 64,
            prefill_chunk: 0,
            prefix_cache_slots: 32,
            prefix_cache_mib: 1024,
            kv_cache_dir: None,
            kv_cache_budget: 4096,
            kv_cache_min_tokens: 512,
            speculation: SpeculationMode::Auto.name().to_owned(),
            ddtree_budget: 22,
            verify_lossless: false,
            drain_seconds: 30,
            instance: format!("target-{}", std::process::id()),
        }
    }
}

impl Config {
    /// Names what nothing could be served with.
    ///
    /// # Errors
    /// A size that is 0, a name that no device has, a split that cannot be, a mode of speculation that is none.
    pub fn check(&self) -> Result<()> {
        for (key, value) in [
            ("parallel", self.parallel),
            ("queue-len", self.queue_len),
            ("kv-cache-budget", self.kv_cache_budget),
        ] {
            ensure!(value > 0, "{key} is 0, expected at least 1");
        }
        self.check_split()?;
        ensure!(
            self.fa_window == 0 || self.devices.len() < 2,
            "fa-window is {}, expected 0 where the target is split over devices",
            self.fa_window
        );
        self.speculation()?;
        self.decode_path()?;
        Ok(())
    }

    /// How steps of one sequence are launched.
    ///
    /// # Errors
    /// A path that is none.
    pub fn decode_path(&self) -> Result<DecodePath> {
        Ok(self.decode_path.parse()?)
    }

    /// How drafts are used.
    ///
    /// # Errors
    /// A mode that is none, or trees without a node.
    pub fn speculation(&self) -> Result<SpeculationConfig> {
        let mode: SpeculationMode = self.speculation.parse()?;
        let grows_trees = matches!(mode, SpeculationMode::Tree | SpeculationMode::Auto);
        ensure!(
            self.ddtree_budget > 0 || !grows_trees,
            "ddtree-budget is 0, expected at least 1; speculation off is plain decoding"
        );
        Ok(SpeculationConfig {
            mode,
            budget: self.ddtree_budget,
        })
    }

    /// Whether a draft would be used.
    ///
    /// # Errors
    /// As [`Config::speculation`].
    pub fn speculates(&self) -> Result<bool> {
        Ok(self.speculation()?.mode != SpeculationMode::Off)
    }

    /// What the model, or a stage of it, is loaded for.
    ///
    /// # Errors
    /// As [`Config::speculation`]; a type that keys and values cannot be kept in.
    pub fn load_options(&self, file: &GgufFile) -> Result<LoadOptions> {
        let side = |key, name: &Option<String>| {
            let kv_type = name.as_deref().map(str::parse::<KvType>).transpose();
            kv_type.context(key)
        };
        let k = side("cache-type-k", &self.cache_type_k)?;
        let v = side("cache-type-v", &self.cache_type_v)?;
        let sizes = self.sizes(file)?;
        Ok(sizes.load_options(Some(kv_types(file, k, v))))
    }

    /// Sizes of the engine.
    ///
    /// # Errors
    /// As [`Config::speculation`]; a name that no device has; no model can be read from the file.
    pub fn sizes(&self, file: &GgufFile) -> Result<EngineConfig> {
        Ok(EngineConfig {
            max_sequences: self.parallel,
            queue_len: self.queue_len,
            context_length: context_length(file, self.ctx_size),
            prefill_chunk_tokens: prefill_chunk(self.prefill_chunk, &self.stage_devices()?),
            speculation: self.speculation()?,
            prefix_cache: self.prefix_cache(file)?,
            verify_lossless: self.verify_lossless,
        })
    }

    /// As many prefixes as there is room for the recurrent states of.
    fn prefix_cache(&self, file: &GgufFile) -> Result<PrefixCacheConfig> {
        let one_state = LoadOptions {
            max_tokens: 0,
            max_sequences: 1,
            max_batch_rows: 0,
            kv_type: None,
        };
        let state_bytes = usize::try_from(memory_need(file, &one_state)?.cache)?;
        let max_bytes = self.prefix_cache_mib.saturating_mul(1 << 20);
        Ok(PrefixCacheConfig {
            slots: self.prefix_cache_slots.min(max_bytes / state_bytes.max(1)),
            max_bytes,
        })
    }
}

/// Prompt tokens computed in a step of a target on these devices: `asked`, or what suits them where that is 0.
#[must_use]
pub fn prefill_chunk(asked: usize, devices: &[DeviceName]) -> usize {
    let is_gpu = |device: &DeviceName| matches!(device, DeviceName::Cuda(_) | DeviceName::Hip(_));
    match asked {
        0 if devices.iter().all(is_gpu) => PREFILL_CHUNK_OF_GPUS,
        0 => PREFILL_CHUNK,
        asked => asked,
    }
}

/// Tokens of context for a model, where `asked` (0: no wish) are asked for.
#[must_use]
pub fn context_length(file: &GgufFile, asked: usize) -> usize {
    if asked > 0 {
        return asked;
    }
    let declared = file.architecture().ok().and_then(|architecture| {
        let key = format!("{architecture}.context_length");
        file.metadata().u64(&key).ok().flatten()
    });
    declared.map_or(DEFAULT_CONTEXT_TOKENS, |tokens| {
        usize::try_from(tokens)
            .unwrap_or(usize::MAX)
            .min(DEFAULT_CONTEXT_TOKENS)
    })
}

#[cfg(test)]
mod tests {
    use kernels::DeviceName::{Cpu, Cuda, Hip};

    use super::prefill_chunk;

    #[test]
    fn prompts_go_in_larger_pieces_where_all_layers_are_on_gpus() {
        for (devices, expected) in [
            (vec![Cuda(0)], 512),
            (vec![Cuda(1), Hip(0)], 512),
            (vec![Cpu], 128),
            (vec![Cuda(0), Cpu], 128),
        ] {
            assert_eq!(prefill_chunk(0, &devices), expected, "{devices:?}");
            assert_eq!(prefill_chunk(64, &devices), 64, "{devices:?}");
        }
    }
}
