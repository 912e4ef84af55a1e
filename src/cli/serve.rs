//! Flags of the commands that serve. What is not given here comes from the configuration file, then from the defaults.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::cli::{CacheTypeArgs, PrefillArgs, RouterArgs};

/// What all serving commands take.
#[derive(Clone, Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct CommonArgs {
    /// TOML file with the tables [target-worker], [draft-worker], [prefill-worker] and [router]; see deploy/config/tandem.toml.
    #[arg(long, env = "TANDEM_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// GGUF file (any part of a split one) [default: the demo model inside this program].
    #[arg(short, long, env = "TANDEM_MODEL", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<PathBuf>,
    /// Seconds that running answers get to end at shutdown [default: 30].
    #[arg(long, env = "TANDEM_DRAIN_SECONDS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_seconds: Option<u64>,
    /// Process that this one ends with.
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub supervisor_pid: Option<i32>,
}

/// What decides how the target runs.
#[derive(Clone, Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct TargetArgs {
    /// Device of the target: cpu, or cuda:N for NVIDIA's GPU number N [default: cpu].
    #[arg(
        short = 'd',
        long = "target-device",
        visible_alias = "device",
        env = "TANDEM_TARGET_DEVICE",
        value_name = "DEVICE"
    )]
    #[serde(rename = "device", skip_serializing_if = "Option::is_none")]
    pub target_device: Option<String>,
    /// GiB of the target's device, or of each of its devices, to take at most, as if it were a smaller one [default: all that is free].
    #[arg(long, env = "TANDEM_DEVICE_MEMORY", value_name = "GIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<f64>,
    /// Devices to split the target's layers over, in their order: cuda:0,cuda:1 or cuda:0,cpu and so on. Each has a process of
    /// its own [default: one device has all].
    #[arg(
        long,
        env = "TANDEM_TARGET_DEVICES",
        value_delimiter = ',',
        value_name = "DEVICE,DEVICE",
        conflicts_with = "target_device"
    )]
    #[serde(rename = "devices", skip_serializing_if = "Option::is_none")]
    pub target_devices: Option<Vec<String>>,
    /// What share of the layers each of --target-devices gets, such as 0.6,0.4 [default: as the devices have free memory].
    #[arg(
        long,
        env = "TANDEM_TARGET_LAYER_SPLIT",
        value_delimiter = ',',
        allow_hyphen_values = true,
        value_name = "SHARE,SHARE"
    )]
    #[serde(rename = "layer-split", skip_serializing_if = "Option::is_none")]
    pub target_layer_split: Option<Vec<f64>>,
    /// CPU threads; 0: all that the system offers [default: 0].
    #[arg(short, long, env = "TANDEM_THREADS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Tokens that one sequence can hold, prompt and answer together; 0: as the model declares, at most 8192
    /// [default: 0].
    #[arg(short, long, env = "TANDEM_CTX_SIZE", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ctx_size: Option<usize>,
    /// How keys are kept, with bits per value: f32 32, f16 16, bf16 16, q8_0 8.5, q5_1 6, q5_0 5.5, q4_1 5, q4_0 4.5, tq3_0 3.5
    /// [default: f16, f32 where all weights are f32].
    #[arg(long, env = "TANDEM_CACHE_TYPE_K", value_name = "TYPE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_type_k: Option<String>,
    /// How values are kept, as one of the same; any goes with any [default: f16, f32 where all weights are
    /// f32].
    #[arg(long, env = "TANDEM_CACHE_TYPE_V", value_name = "TYPE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_type_v: Option<String>,
    /// Positions of a context that full attention sees while an answer is computed; its prompt is read whole. Quicker in a long
    /// context and lossy: what lies further back, instructions and tools among it, is forgotten; 0: all [default: 0].
    #[arg(long, env = "TANDEM_FA_WINDOW", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fa_window: Option<usize>,
    /// How a step of one sequence is launched on a GPU: graph (operation by operation), megakernel (all in one launch, where that
    /// knows the model) or auto (what is faster here). No token depends on it [default: auto].
    #[arg(long, env = "TANDEM_DECODE_PATH", value_name = "PATH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_path: Option<String>,
    /// Sequences decoded at a time; each has room for the whole context [default: 8].
    #[arg(long, env = "TANDEM_PARALLEL", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel: Option<usize>,
    /// Requests that may wait for a place; one more is answered with 429 [default: 64].
    #[arg(long, env = "TANDEM_QUEUE_LEN", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_len: Option<usize>,
    /// Prompt tokens computed in a step; more finish a prompt sooner, fewer keep other streams quick [default: 512 where
    /// all layers are on GPUs, else 128].
    #[arg(long, env = "TANDEM_PREFILL_CHUNK", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_chunk: Option<usize>,
    /// Prefixes kept for prompts that begin in the same way, such as the next turn of a chat; 0: none [default: 32].
    #[arg(long, env = "TANDEM_PREFIX_CACHE_SLOTS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_cache_slots: Option<usize>,
    /// MiB that prefixes take at most [default: 1024].
    #[arg(long, env = "TANDEM_PREFIX_CACHE_MIB", value_name = "MIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_cache_mib: Option<usize>,
    /// Folder that prefixes are kept in beyond the process, so that they are there after a restart [default: none].
    #[arg(long, env = "TANDEM_KV_CACHE_DIR", value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_dir: Option<PathBuf>,
    /// MiB that the files in --kv-cache-dir take at most [default: 4096].
    #[arg(long, env = "TANDEM_KV_CACHE_BUDGET", value_name = "MIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_budget: Option<usize>,
    /// Tokens from which a prefix is worth a file [default: 512].
    #[arg(long, env = "TANDEM_KV_CACHE_MIN_TOKENS", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_min_tokens: Option<usize>,
    /// How drafts are used where there is one: off, chain, tree or auto; no answer depends on it [default: auto].
    #[arg(long, env = "TANDEM_SPECULATION", value_name = "MODE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<String>,
    /// Draft tokens verified at a time, of a tree; with auto the most there may be [default: 22].
    #[arg(long, env = "TANDEM_DDTREE_BUDGET", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ddtree_budget: Option<usize>,
    /// Hold every token against plain decoding, at the cost of decoding twice.
    #[arg(long, env = "TANDEM_VERIFY_LOSSLESS", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify_lossless: Option<bool>,
}

/// What decides how the draft of a set runs; all of it is in the table [draft-worker].
#[derive(Clone, Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct DraftArgs {
    /// Draft model for the target: GGUF, or safetensors with its config.json [default: the demo draft for the demo
    /// model, none for others].
    #[arg(long, env = "TANDEM_DRAFT", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<PathBuf>,
    /// Device of the draft: cpu, or cuda:N for NVIDIA's GPU number N [default: cpu].
    #[arg(
        long = "draft-device",
        env = "TANDEM_DRAFT_DEVICE",
        value_name = "DEVICE"
    )]
    #[serde(rename = "device", skip_serializing_if = "Option::is_none")]
    pub draft_device: Option<String>,
    /// GiB of the draft's device to take at most [default: all that is free].
    #[arg(
        long = "draft-device-memory",
        env = "TANDEM_DRAFT_DEVICE_MEMORY",
        value_name = "GIB"
    )]
    #[serde(rename = "device-memory", skip_serializing_if = "Option::is_none")]
    pub draft_device_memory: Option<f64>,
    /// CPU threads of the draft; 0: all that the system offers [default: 0].
    #[arg(long = "draft-threads", env = "TANDEM_DRAFT_THREADS", value_name = "N")]
    #[serde(rename = "threads", skip_serializing_if = "Option::is_none")]
    pub draft_threads: Option<usize>,
}

/// `tandem up`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub router: RouterArgs,
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub draft: DraftArgs,
    #[command(flatten)]
    pub prefill: PrefillArgs,
}

/// `tandem target-worker`.
#[derive(Clone, Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct TargetWorkerArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
    /// unix:PATH or tcp:HOST:PORT to serve gRPC on. TCP is neither encrypted nor authenticated: trusted networks only
    /// [default: tcp:127.0.0.1:7001].
    #[arg(short, long, env = "TANDEM_TARGET_LISTEN", value_name = "ENDPOINT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Where the stages before this worker listen, in the order of --target-devices: unix:PATH or tcp:HOST:PORT.
    #[arg(
        long,
        env = "TANDEM_TARGET_STAGES",
        value_delimiter = ',',
        value_name = "ENDPOINT"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<Vec<String>>,
    #[command(flatten)]
    #[serde(flatten)]
    pub target: TargetArgs,
}

/// `tandem target-stage`.
#[derive(Clone, Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct TargetStageArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
    /// Which of --target-devices is this one's, from 1 on; the last is the target worker's.
    #[arg(long, value_name = "N")]
    #[serde(skip)]
    pub stage: usize,
    /// Where the stages before the target worker listen, this one among them: unix:PATH or tcp:HOST:PORT. TCP is neither
    /// encrypted nor authenticated: trusted networks only.
    #[arg(
        long,
        env = "TANDEM_TARGET_STAGES",
        value_delimiter = ',',
        value_name = "ENDPOINT"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<Vec<String>>,
    #[command(flatten)]
    #[serde(flatten)]
    pub target: TargetArgs,
}

/// `tandem draft-worker`.
#[derive(Clone, Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct DraftWorkerArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
    /// Draft model: GGUF, or safetensors with its config.json [default: the demo draft inside this program].
    #[arg(long, env = "TANDEM_DRAFT", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<PathBuf>,
    /// unix:PATH or tcp:HOST:PORT to serve gRPC on. TCP is neither encrypted nor authenticated: trusted networks only
    /// [default: tcp:127.0.0.1:7002].
    #[arg(short, long, env = "TANDEM_DRAFT_LISTEN", value_name = "ENDPOINT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// HOST:PORT for tensor channels over TCP; port 0 is any free one [default: the host that --listen names, or
    /// 127.0.0.1, and port 0].
    #[arg(long, env = "TANDEM_DRAFT_CHANNEL_LISTEN", value_name = "HOST:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel_listen: Option<String>,
    /// Host that targets are told for tensor channels over TCP [default: that of --channel-listen].
    #[arg(long, env = "TANDEM_DRAFT_CHANNEL_HOST", value_name = "HOST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel_host: Option<String>,
    /// Device to compute on: cpu, or cuda:N for NVIDIA's GPU number N [default: cpu].
    #[arg(short, long, env = "TANDEM_DRAFT_DEVICE", value_name = "DEVICE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// GiB of the device's memory to take at most [default: all that is free].
    #[arg(long, env = "TANDEM_DRAFT_DEVICE_MEMORY", value_name = "GIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<f64>,
    /// CPU threads; 0: all that the system offers [default: 0].
    #[arg(short, long, env = "TANDEM_DRAFT_THREADS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Tokens of context that the draft keeps per sequence; of longer ones the oldest go [default: 4096].
    #[arg(short, long, env = "TANDEM_DRAFT_CTX_SIZE", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ctx_size: Option<usize>,
    /// Sequences with a context at a time; the one not used for longest makes room [default: 8].
    #[arg(long, env = "TANDEM_DRAFT_PARALLEL", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel: Option<usize>,
}

/// `tandem router`.
#[derive(Clone, Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct RouterRoleArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
    /// Where the target worker listens: unix:PATH or tcp:HOST:PORT [default: tcp:127.0.0.1:7001].
    #[arg(long, env = "TANDEM_TARGET", value_name = "ENDPOINT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Where the draft worker listens: unix:PATH or tcp:HOST:PORT [default: the target decodes plainly].
    #[arg(long, env = "TANDEM_DRAFT_ENDPOINT", value_name = "ENDPOINT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<String>,
    /// Where the prefill worker listens: unix:PATH or tcp:HOST:PORT [default: no prompt is made shorter].
    #[arg(long, env = "TANDEM_PREFILL_ENDPOINT", value_name = "ENDPOINT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<String>,
    /// GGUF file of the prefill worker's drafter, whose tokenizer speaks where its tokens are not the target's [default: the
    /// demo's inside this program].
    #[arg(long, env = "TANDEM_PREFILL_DRAFTER", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_drafter: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub router: RouterArgs,
}

/// `tandem chat`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ChatArgs {
    /// Server to talk to, such as http://127.0.0.1:8000 [default: start one for this chat].
    #[arg(long, env = "TANDEM_URL", conflicts_with = "model")]
    pub url: Option<String>,
    #[command(flatten)]
    pub up: UpArgs,
    /// System prompt.
    #[arg(long)]
    pub system: Option<String>,
    /// 0 is greedy [default: the server's].
    #[arg(long, allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// New tokens per answer at most [default: the server's].
    #[arg(short = 'n', long)]
    pub max_tokens: Option<u32>,
    /// Say this, print the answer and leave.
    #[arg(short, long)]
    pub prompt: Option<String>,
}

/// `tandem doctor`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DoctorArgs {
    /// GGUF file whose memory need to tell [default: the demo model inside this program].
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Tokens of context per sequence; 0: as the model declares, at most 8192.
    #[arg(short, long, default_value_t = 0, value_name = "TOKENS")]
    pub ctx_size: usize,
    #[command(flatten)]
    pub cache_types: CacheTypeArgs,
    /// Sequences decoded at a time.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub parallel: usize,
    /// Devices that the layers would be split over: tell whether each stage fits.
    #[arg(long, value_delimiter = ',', value_name = "DEVICE,DEVICE")]
    pub target_devices: Vec<String>,
    /// What share of the layers each of --target-devices would get [default: as the devices have free memory].
    #[arg(
        long,
        value_delimiter = ',',
        allow_hyphen_values = true,
        value_name = "SHARE,SHARE"
    )]
    pub target_layer_split: Vec<f64>,
    /// GGUF file of a prefill drafter: tell what it takes [default: the demo's for the demo model, none for others].
    #[arg(long, value_name = "FILE")]
    pub prefill_drafter: Option<PathBuf>,
    /// CPU threads; 0: all that the system offers.
    #[arg(short, long, default_value_t = 0, value_name = "N")]
    pub threads: usize,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}
