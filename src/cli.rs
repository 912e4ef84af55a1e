//! Arguments, and the help that teaches them.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use generation::SpeculationMode;
use gguf::GgufFile;
use kernels::{DecodePath, DeviceName};
use models::{KvType, KvTypes, kv_types};

use crate::health::HealthEndpoint;
use crate::session::BATCH_ROWS;

mod needle;
mod prefill;
mod routing;
mod serve;

pub(crate) use needle::{NeedleArgs, Tokens};
pub(crate) use prefill::{PrefillArgs, PrefillWorkerArgs, ProbeCompressArgs};
pub(crate) use routing::RouterArgs;
pub(crate) use serve::{
    ChatArgs, CommonArgs, DoctorArgs, DraftArgs as UpDraftArgs, DraftWorkerArgs, RouterRoleArgs,
    TargetArgs, TargetStageArgs, TargetWorkerArgs, UpArgs,
};

/// Local LLM inference in separate processes: a router that speaks HTTP, a worker that owns the model, and one that owns
/// a small draft model, which makes the answers come faster and changes nothing in them.
///
/// Without a command it serves the demo models inside this program on http://127.0.0.1:8000, as `tandem up` does.
/// Every setting can be a flag, an environment variable (shown in brackets) or a line of the configuration file.
#[derive(Debug, Parser)]
#[command(name = "tandem", version)]
pub(crate) struct Cli {
    /// What to log on standard error: error, warn, info, debug, trace, or per crate as in `warn,router=debug`
    /// [default: info for commands that serve, warn for the others].
    #[arg(long, global = true, env = "TANDEM_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the router and the workers, keep them running, and stop them together (Ctrl-C).
    Up(UpArgs),
    /// Chat in the terminal, with a server that runs already (--url) or one started for the chat.
    Chat(ChatArgs),
    /// Tell what this machine has, and whether a model fits.
    Doctor(DoctorArgs),
    /// Ask a router or a worker whether it serves: exit status 0, or 1 with the reason. For health checks of containers and units.
    Health(HealthArgs),
    /// Only the router: HTTP in, gRPC to a target worker out.
    Router(RouterRoleArgs),
    /// Only the target worker: loads the model and generates over gRPC.
    TargetWorker(TargetWorkerArgs),
    /// Only a stage of a target that is split over devices: loads some of the layers, for the stage after it.
    TargetStage(TargetStageArgs),
    /// Only the draft worker: loads the draft model and proposes to target workers.
    DraftWorker(DraftWorkerArgs),
    /// Only the prefill worker: says which parts of long prompts are kept.
    PrefillWorker(PrefillWorkerArgs),
    /// Continue a prompt and stream the text: `tandem run -p "def fibonacci(n):"`.
    Run(RunArgs),
    /// Measure prompt processing and decoding in tokens per second (medians after a warm-up), or with --mode or --draft
    /// speculative decoding: tokens per second and per round, and the time of each stage, in real worker processes. With --needle or
    /// --ttft: long prompts through a whole set, with compression and without.
    Bench(BenchArgs),
    /// Look into model files.
    #[command(subcommand)]
    Models(ModelsCommand),
    /// Print intermediate results, to compare with other implementations.
    #[command(subcommand)]
    Probe(ProbeCommand),
}

/// `tandem health`.
#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    /// http://HOST:PORT of a router, or unix:PATH or tcp:HOST:PORT where a worker serves gRPC.
    #[arg(default_value = "http://127.0.0.1:8000", value_name = "ENDPOINT")]
    pub endpoint: HealthEndpoint,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// Print a GGUF file's metadata and tensors.
    Inspect {
        /// The file (any part of a split one).
        model: PathBuf,
    },
}

/// Which model, on what.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// GGUF file. Without it: the demo model inside this program.
    #[arg(short, long)]
    pub model: Option<PathBuf>,
    /// Device to compute on: cpu, or cuda:N for NVIDIA's GPU number N.
    #[arg(short, long, default_value_t = DeviceName::Cpu)]
    pub device: DeviceName,
    /// GiB of the device's memory to take at most, as if it were a smaller one [default: all that is free].
    #[arg(long, value_name = "GIB")]
    pub device_memory: Option<f64>,
    /// How a step of one sequence is launched on a GPU: graph (operation by operation), megakernel (all in one launch, where that
    /// knows the model) or auto (what is faster here). No token depends on it.
    #[arg(long, value_name = "PATH", default_value_t = DecodePath::Auto)]
    pub decode_path: DecodePath,
    /// CPU threads; 0: all that the system offers.
    #[arg(short, long, default_value_t = 0)]
    pub threads: usize,
    /// Tokens of context to hold; 0: as the model declares, at most 8192.
    #[arg(short, long, default_value_t = 0)]
    pub ctx_size: usize,
    #[command(flatten)]
    pub cache_types: CacheTypeArgs,
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct CacheTypeArgs {
    /// How keys are kept, with bits per value: f32 32, f16 16, bf16 16, q8_0 8.5, q5_1 6, q5_0 5.5, q4_1 5, q4_0 4.5, tq3_0 3.5
    /// [default: f16, f32 where all weights are f32].
    #[arg(long, value_name = "TYPE")]
    pub cache_type_k: Option<KvType>,
    /// How values are kept, as one of the same; any goes with any [default: f16, f32 where all weights are
    /// f32].
    #[arg(long, value_name = "TYPE")]
    pub cache_type_v: Option<KvType>,
}

impl CacheTypeArgs {
    /// What a model is loaded with.
    pub fn of(self, file: &GgufFile) -> KvTypes {
        kv_types(file, self.cache_type_k, self.cache_type_v)
    }

    /// The same as settings of the target worker.
    pub fn set(self, config: &mut target_worker::Config) {
        [config.cache_type_k, config.cache_type_v] =
            [self.cache_type_k, self.cache_type_v].map(|kv_type| kv_type.map(|t| t.to_string()));
    }
}

/// A target over several devices.
#[derive(Debug, Args)]
pub(crate) struct SplitArgs {
    /// Devices to split the target's layers over, in their order: cuda:0,cuda:1 or cuda:0,cpu and so on. Each has a process of
    /// its own, the last one's is the target worker, or this one.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "DEVICE,DEVICE",
        conflicts_with = "device"
    )]
    pub target_devices: Vec<String>,
    /// What share of the layers each of --target-devices gets, such as 0.6,0.4 [default: as the devices have free memory].
    #[arg(
        long,
        value_delimiter = ',',
        allow_hyphen_values = true,
        value_name = "SHARE,SHARE"
    )]
    pub target_layer_split: Vec<f64>,
}

/// Which draft, and how it is used.
#[derive(Debug, Args)]
pub(crate) struct DraftArgs {
    /// Draft model (DFlash): a GGUF file, a safetensors file, or a folder of safetensors with its config.json. Runs in a
    /// process of its own, and the target in another.
    #[arg(long, value_name = "FILE")]
    pub draft: Option<PathBuf>,
    /// Draft tokens verified at a time, of a tree; the most with auto.
    #[arg(long, default_value_t = 22, value_name = "N")]
    pub ddtree_budget: usize,
    /// Device of the draft: cpu, or cuda:N for NVIDIA's GPU number N.
    #[arg(long, default_value_t = DeviceName::Cpu)]
    pub draft_device: DeviceName,
    /// GiB of the draft's device to take at most [default: all that is free].
    #[arg(long, value_name = "GIB")]
    pub draft_device_memory: Option<f64>,
    /// CPU threads of the draft; 0: all that the system offers.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub draft_threads: usize,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub split: SplitArgs,
    #[command(flatten)]
    pub draft: DraftArgs,
    /// How the draft is used: off, chain, tree or auto. The text is the same.
    #[arg(long, default_value = "auto", value_name = "MODE")]
    pub speculation: SpeculationMode,
    /// Prompt text; special tokens such as `<|im_start|>` are recognised.
    #[arg(short, long, required_unless_present = "tokens")]
    pub prompt: Option<String>,
    /// JSON file with prompt token ids, instead of text.
    #[arg(long, conflicts_with = "prompt")]
    pub tokens: Option<PathBuf>,
    /// New tokens at most.
    #[arg(short, long, default_value_t = 128)]
    pub num_tokens: usize,
    /// 0 is greedy.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Keep the likeliest tokens that make up this share of the probability.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Keep this many of the likeliest tokens; 0: all.
    #[arg(long, default_value_t = 0)]
    pub top_k: u32,
    /// Drop tokens below this share of the likeliest one's probability.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub min_p: f32,
    /// Seed of the draws; the same seed gives the same tokens.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Go on past the end-of-text tokens.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Print one JSON object at the end instead of streaming text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub split: SplitArgs,
    /// Prompt lengths.
    #[arg(long, value_delimiter = ',', default_value = "512")]
    pub pp: Vec<usize>,
    /// Decode lengths.
    #[arg(long, value_delimiter = ',', default_value = "128")]
    pub tg: Vec<usize>,
    /// Tokens of context before those that are decoded, or before the trees of --rows.
    #[arg(long, value_delimiter = ',', default_value = "0", value_name = "N")]
    pub depth: Vec<usize>,
    /// Also measure steps that verify a draft tree, by their rows (1,8,16,23,32,64): the root, a chain of at most 15 tokens and
    /// leaves beside it. The root and at most four of the chain are committed.
    #[arg(long, value_delimiter = ',', value_name = "N")]
    pub rows: Vec<usize>,
    /// Prompt tokens computed in a step; 0: 512 where all layers are on GPUs, else 128.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub prefill_chunk: usize,
    #[command(flatten)]
    pub draft: DraftArgs,
    /// Ways of decoding to measure beside each other: ar (plain), chain, tree, auto [default with --draft: all].
    #[arg(long, value_delimiter = ',', value_name = "MODE")]
    pub mode: Vec<BenchMode>,
    /// Budgets of the trees [default: the one of --ddtree-budget].
    #[arg(long, value_delimiter = ',', value_name = "N")]
    pub budget: Vec<usize>,
    /// Prompts to continue, one JSON object per line: {"prompt": "text"} or {"tokens": [1, 2]}; or one JSON list of texts or
    /// such objects; or, in a file that ends in .txt, one text per line [default: those for the demo model].
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// New tokens per prompt at most, with --mode or --draft.
    #[arg(short, long, default_value_t = 128)]
    pub num_tokens: u32,
    /// Repetitions after the warm-up.
    #[arg(short, long, default_value_t = 5)]
    pub repetitions: usize,
    /// Also measure the energy that decoding takes, for 10 seconds or more for each length and depth, and that of waiting: by the
    /// energy counter of NVIDIA's GPUs. The power cap is told, and nothing of the GPU changed.
    #[arg(long)]
    pub energy: bool,
    #[command(flatten)]
    pub needle: NeedleArgs,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Ways of decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchMode {
    /// One token after another.
    Ar,
    /// DFlash's chain.
    Chain,
    /// DDTree's trees, one run for each budget.
    Tree,
    /// As much of a tree as pays.
    Auto,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProbeCommand {
    /// Logits `[T, vocab]` and layer outputs `hidden.<layer>` `[T, hidden]` of token ids, as safetensors.
    Target {
        #[command(flatten)]
        model: ModelArgs,
        /// JSON file: a list of token ids.
        #[arg(long)]
        tokens: PathBuf,
        /// Layers whose output is wanted, 0-based.
        #[arg(long, value_delimiter = ',')]
        features: Vec<usize>,
        /// Tokens of a step; 1: as decoding does it, on a GPU by --decode-path.
        #[arg(long, value_name = "N", default_value_t = BATCH_ROWS as u16, value_parser = value_parser!(u16).range(1..=BATCH_ROWS as i64))]
        rows: u16,
        /// File to write.
        #[arg(long)]
        out: PathBuf,
    },
    /// What a draft says after a context: `draft_logits` `[block - 1, vocab]`, as safetensors.
    Draft(ProbeDraftArgs),
    /// How well a model expects a text, and how far its logits with `--cache-type-k` and `--cache-type-v` are from those with f32.
    Perplexity(ProbePerplexityArgs),
    /// The draft tree that logits make: `{"tokens": [...], "depths": [...], "parents": [-1, ...]}`, as JSON. Parents count
    /// the root as node 0 and begin with it.
    Tree {
        /// Safetensors file with logits `[positions, vocab]` in F32.
        #[arg(long)]
        logits: PathBuf,
        /// Tensor to take; needed where the file has several.
        #[arg(long)]
        tensor: Option<String>,
        /// Nodes at most, the root not counted.
        #[arg(long)]
        budget: usize,
        /// Begin with the likeliest token of each position.
        #[arg(long)]
        chain_seed: bool,
        /// File to write.
        #[arg(long)]
        out: PathBuf,
    },
    /// How important the chunks of a prompt are to its end, and which are kept: `{"chunk_scores": [...], "kept_chunks": [...],
    /// "kept_spans": [[start, end], ...], ...}`, as JSON.
    Compress(ProbeCompressArgs),
    /// Token ids of the text on standard input, as JSON.
    Tokenize {
        #[command(flatten)]
        model: ModelArgs,
        /// Take control tokens in the text as plain text.
        #[arg(long)]
        no_special: bool,
    },
    /// The prompt that the model's chat template makes of messages.
    Template {
        #[command(flatten)]
        model: ModelArgs,
        /// JSON file: a list of messages, or an object with messages, tools, add_generation_prompt and kwargs.
        #[arg(long)]
        messages: PathBuf,
        /// Jinja file to use instead of the model's template.
        #[arg(long)]
        chat_template_file: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ProbePerplexityArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Text to read, in UTF-8.
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Tokens of it to read at most. Logits of all are held in memory.
    #[arg(long, default_value_t = 2048, value_name = "N")]
    pub max_tokens: usize,
}

#[derive(Debug, Args)]
pub(crate) struct ProbeDraftArgs {
    /// Draft model: a GGUF file, a safetensors file, or a folder of safetensors with its config.json. Without it: the demo
    /// draft inside this program.
    #[arg(long)]
    pub draft: Option<PathBuf>,
    /// GGUF file of its target. Without it: the demo model inside this program.
    #[arg(long)]
    pub target: Option<PathBuf>,
    /// Device to compute on: cpu, or cuda:N for NVIDIA's GPU number N.
    #[arg(short, long, default_value_t = DeviceName::Cpu)]
    pub device: DeviceName,
    /// CPU threads; 0: all that the system offers.
    #[arg(short, long, default_value_t = 0)]
    pub threads: usize,
    #[command(flatten)]
    pub cache_types: CacheTypeArgs,
    /// JSON file: a list of token ids, the context and then the anchor.
    #[arg(long)]
    pub tokens: PathBuf,
    /// File to write.
    #[arg(long)]
    pub out: PathBuf,
}
