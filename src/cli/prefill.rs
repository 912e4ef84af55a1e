//! Flags of the prefill worker: what makes long prompts shorter.

use std::path::PathBuf;

use clap::Args;
use kernels::DeviceName;
use serde::Serialize;

/// What decides how prompts are scored; all of it is in the table [prefill-worker].
#[derive(Clone, Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct PrefillArgs {
    /// GGUF file of the prefill drafter, a small dense model (qwen3, llama) that says which parts of a long prompt are kept.
    #[arg(long, env = "TANDEM_PREFILL_DRAFTER", value_name = "FILE")]
    #[serde(rename = "drafter", skip_serializing_if = "Option::is_none")]
    pub prefill_drafter: Option<PathBuf>,
    /// Device of the prefill drafter: cpu, or cuda:N for NVIDIA's GPU number N [default: cpu].
    #[arg(long, env = "TANDEM_PREFILL_DEVICE", value_name = "DEVICE")]
    #[serde(rename = "device", skip_serializing_if = "Option::is_none")]
    pub prefill_device: Option<String>,
    /// GiB of the prefill drafter's device to take at most [default: all that is free].
    #[arg(long, env = "TANDEM_PREFILL_DEVICE_MEMORY", value_name = "GIB")]
    #[serde(rename = "device-memory", skip_serializing_if = "Option::is_none")]
    pub prefill_device_memory: Option<f64>,
    /// Leave the prefill drafter's weights on its device between prompts [default: on the CPU they stay, a GPU they leave].
    #[arg(long, env = "TANDEM_PREFILL_SKIP_PARK", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    #[serde(rename = "skip-park", skip_serializing_if = "Option::is_none")]
    pub prefill_skip_park: Option<bool>,
    /// CPU threads of the prefill drafter; 0: all that the system offers [default: 0].
    #[arg(long, env = "TANDEM_PREFILL_THREADS", value_name = "N")]
    #[serde(rename = "threads", skip_serializing_if = "Option::is_none")]
    pub prefill_threads: Option<usize>,
    /// How many of the prefill drafter's last layers score [default: all].
    #[arg(long, env = "TANDEM_PREFILL_SCORE_LAYERS", value_name = "N")]
    #[serde(rename = "score-layers", skip_serializing_if = "Option::is_none")]
    pub prefill_score_layers: Option<usize>,
    /// Queries and keys that score: unrotated, so that what is far away counts as much, or rotated [default: unrotated].
    #[arg(long, env = "TANDEM_PREFILL_SCORE_POSITIONS", value_name = "POSITIONS")]
    #[serde(rename = "score-positions", skip_serializing_if = "Option::is_none")]
    pub prefill_score_positions: Option<String>,
    /// Attention of the prefill drafter leaves out blocks of keys of less than this part of the strongest block's weight, above 0
    /// and up to 1; off: none [default: 0.005].
    #[arg(long, env = "TANDEM_PREFILL_SPARSITY", value_name = "ALPHA|off")]
    #[serde(rename = "sparsity", skip_serializing_if = "Option::is_none")]
    pub prefill_sparsity: Option<String>,
}

/// `tandem prefill-worker`.
#[derive(Clone, Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct PrefillWorkerArgs {
    /// TOML file with the table [prefill-worker]; see deploy/config/tandem.toml.
    #[arg(long, env = "TANDEM_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// unix:PATH or tcp:HOST:PORT to serve gRPC on. TCP is neither encrypted nor authenticated: trusted networks only
    /// [default: tcp:127.0.0.1:7003].
    #[arg(short, long, env = "TANDEM_PREFILL_LISTEN", value_name = "ENDPOINT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub prefill: PrefillArgs,
    /// Prompts that may wait while one is scored; one more is refused [default: 8].
    #[arg(long, env = "TANDEM_PREFILL_QUEUE_LEN", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_len: Option<usize>,
    /// Seconds that calls get to end at shutdown [default: 30].
    #[arg(long, env = "TANDEM_DRAIN_SECONDS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_seconds: Option<u64>,
    /// Process that this one ends with.
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub supervisor_pid: Option<i32>,
}

/// `tandem probe compress`.
#[derive(Debug, Args)]
pub(crate) struct ProbeCompressArgs {
    /// GGUF file of the prefill drafter. Without it: the demo's inside this program.
    #[arg(long, value_name = "FILE")]
    pub prefill_drafter: Option<PathBuf>,
    /// JSON file: a list of the prefill drafter's token ids.
    #[arg(
        long,
        required_unless_present = "prompt_file",
        conflicts_with = "prompt_file"
    )]
    pub tokens: Option<PathBuf>,
    /// File with the prompt's text, instead of token ids; special tokens are recognised.
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// Share of the chunks of 32 tokens to keep, above 0 and up to 1.
    #[arg(long, default_value_t = 0.05, value_name = "SHARE")]
    pub keep_ratio: f64,
    /// Keep no more than that even where the end of the prompt names more passages.
    #[arg(long)]
    pub within_budget: bool,
    /// How many of the last layers score [default: all].
    #[arg(long, value_name = "N")]
    pub layers: Option<usize>,
    /// Queries and keys that score: unrotated or rotated.
    #[arg(long, default_value = "unrotated")]
    pub positions: String,
    /// Leave out blocks of keys of less than this part of the strongest block's weight; off: none.
    #[arg(long, default_value = "off", value_name = "ALPHA|off")]
    pub sparsity: String,
    /// Score as the worker does, whose products round what they multiply, and not with exact ones.
    #[arg(long)]
    pub as_served: bool,
    /// Device to compute on: cpu, or cuda:N for NVIDIA's GPU number N.
    #[arg(short, long, default_value_t = DeviceName::Cpu)]
    pub device: DeviceName,
    /// GiB of the device's memory to take at most [default: all that is free].
    #[arg(long, value_name = "GIB")]
    pub device_memory: Option<f64>,
    /// CPU threads; 0: all that the system offers.
    #[arg(short, long, default_value_t = 0)]
    pub threads: usize,
    /// File to write.
    #[arg(long)]
    pub out: PathBuf,
}
