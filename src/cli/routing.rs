//! Flags of the router: how it answers, whom, and for how long.

use std::path::PathBuf;

use clap::Args;
use router::Secret;
use serde::Serialize;

/// What decides how the router answers.
#[derive(Clone, Debug, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct RouterArgs {
    /// HOST:PORT to serve HTTP on [default: 127.0.0.1:8000].
    #[arg(short, long, env = "TANDEM_LISTEN", value_name = "HOST:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Name that clients ask for [default: the model file's own].
    #[arg(long, env = "TANDEM_MODEL_NAME", value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Answer requests that name another model with 404; without it any name will do.
    #[arg(long, env = "TANDEM_STRICT_MODEL_NAMES", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict_model_names: Option<bool>,
    /// Jinja file to use instead of the model's chat template.
    #[arg(long, env = "TANDEM_CHAT_TEMPLATE_FILE", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_file: Option<PathBuf>,
    /// Folder with model cards (sampling defaults and limits by model), which go before those inside this program.
    #[arg(long, env = "TANDEM_MODEL_CARDS", value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_cards: Option<PathBuf>,
    /// Whether answers begin with reasoning where the request does not say: off, on, or template (as that has it)
    /// [default: off].
    #[arg(long, env = "TANDEM_THINKING", value_name = "MODE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Tokens of an answer where the request does not say, and of any answer at most [default: the model card's where the request
    /// does not say, and no most].
    #[arg(long, env = "TANDEM_DEFAULT_MAX_TOKENS", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_max_tokens: Option<u32>,
    /// Reasoning tokens of a request that wants some at most [default: the model card's].
    #[arg(long, env = "TANDEM_THINK_MAX_TOKENS", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think_max_tokens: Option<u32>,
    /// Tokens kept free for what is said behind the reasoning, which is closed by force where they begin; 0: it never is
    /// [default: the model card's, or 4096].
    #[arg(long, env = "TANDEM_HARD_LIMIT_REPLY_BUDGET", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hard_limit_reply_budget: Option<u32>,
    /// Reasoning tokens that effort "low" allows [default: the model card's, or an eighth of --think-max-tokens].
    #[arg(long, env = "TANDEM_REASONING_EFFORT_LOW", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort_low: Option<u32>,
    /// Reasoning tokens that effort "medium" allows [default: the model card's, or half of --think-max-tokens].
    #[arg(long, env = "TANDEM_REASONING_EFFORT_MEDIUM", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort_medium: Option<u32>,
    /// Reasoning tokens that effort "high" allows [default: the model card's, or --think-max-tokens].
    #[arg(long, env = "TANDEM_REASONING_EFFORT_HIGH", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort_high: Option<u32>,
    /// Reasoning tokens that effort "x-high" allows [default: the model card's, or halfway between high and max].
    #[arg(long, env = "TANDEM_REASONING_EFFORT_X_HIGH", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort_x_high: Option<u32>,
    /// Reasoning tokens that effort "max" allows [default: the model card's, or as high].
    #[arg(long, env = "TANDEM_REASONING_EFFORT_MAX", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort_max: Option<u32>,
    /// Key that callers must send as `Authorization: Bearer KEY` or `x-api-key: KEY`; may be given several times. Others on this
    /// machine see command lines: prefer the environment or --api-key-file [default: none, everyone may call].
    #[arg(
        long = "api-key",
        env = "TANDEM_API_KEY",
        hide_env_values = true,
        value_name = "KEY"
    )]
    #[serde(rename = "api-keys", skip_serializing_if = "Vec::is_empty")]
    pub api_keys: Vec<Secret>,
    /// File with such keys, one a line; blank lines and those that begin with # are left out.
    #[arg(long, env = "TANDEM_API_KEY_FILE", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<PathBuf>,
    /// Let everyone call who reaches --listen, though it is not this machine alone.
    #[arg(long, env = "TANDEM_NO_AUTH", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_auth: Option<bool>,
    /// Let everyone read /metrics, who has no key.
    #[arg(long, env = "TANDEM_OPEN_METRICS", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_metrics: Option<bool>,
    /// Seconds until the head of a request is there, and between two requests of a connection; 0: any [default: 60].
    #[arg(long, env = "TANDEM_HEADER_TIMEOUT_SECONDS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header_timeout_seconds: Option<u64>,
    /// Seconds until the body of a request is there; 0: any [default: 300].
    #[arg(long, env = "TANDEM_BODY_TIMEOUT_SECONDS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_timeout_seconds: Option<u64>,
    /// Seconds that a request waits for the target; 0: any [default: 600].
    #[arg(long, env = "TANDEM_QUEUE_TIMEOUT_SECONDS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_timeout_seconds: Option<u64>,
    /// Seconds from there to its first token. A prompt of 200 000 tokens takes minutes on a GPU, and hours on a CPU; 0: any [default: 0].
    #[arg(long, env = "TANDEM_FIRST_TOKEN_TIMEOUT_SECONDS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token_timeout_seconds: Option<u64>,
    /// Seconds from a token to the next; 0: any [default: 300].
    #[arg(long, env = "TANDEM_TOKEN_TIMEOUT_SECONDS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_timeout_seconds: Option<u64>,
    /// Seconds for a whole request; 0: any [default: 0].
    #[arg(long, env = "TANDEM_REQUEST_TIMEOUT_SECONDS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_timeout_seconds: Option<u64>,
    /// Requests at work or waiting at a time; one more is answered with 429 [default: 64].
    #[arg(long, env = "TANDEM_MAX_IN_FLIGHT", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<usize>,
    /// Longest request body; longer ones are answered with 413 [default: 67108864].
    #[arg(long, env = "TANDEM_MAX_BODY_BYTES", value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_body_bytes: Option<usize>,
    /// When long prompts are made shorter by a prefill worker: off, auto (from --prefill-threshold on) or always. Requests may
    /// say otherwise [default: off].
    #[arg(long, env = "TANDEM_PREFILL_COMPRESSION", value_name = "MODE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_compression: Option<String>,
    /// Tokens from which a prompt is long [default: 32000].
    #[arg(long, env = "TANDEM_PREFILL_THRESHOLD", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_threshold: Option<usize>,
    /// Share of what may be cut that is kept, above 0 and up to 1 [default: 0.05].
    #[arg(long, env = "TANDEM_PREFILL_KEEP_RATIO", value_name = "SHARE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_keep_ratio: Option<f64>,
    /// Share by length in place of the one: such as "8000:0.3 32000:0.1 128000:0.02", linear between, constant outside.
    #[arg(long, env = "TANDEM_PREFILL_CURVE", value_name = "TOKENS:SHARE ...")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_curve: Option<String>,
    /// Last messages of a conversation that are never cut [default: 2].
    #[arg(long, env = "TANDEM_PREFILL_HOT_WINDOW", value_name = "MESSAGES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_hot_window: Option<usize>,
    /// Tokens from which an older message of a conversation is cut [default: 2048].
    #[arg(long, env = "TANDEM_PREFILL_MESSAGE_THRESHOLD", value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_message_threshold: Option<usize>,
    /// Seconds that making a prompt shorter may take; then it goes on whole [default: 120].
    #[arg(long, env = "TANDEM_PREFILL_TIMEOUT_SECONDS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_timeout_seconds: Option<u64>,
    /// What stays on its device while a prompt is scored: auto (the draft does, the prefill drafter leaves a GPU when it is done),
    /// persistent (both do) or request-scoped (the draft leaves, and answers are decoded plainly meanwhile) [default: auto].
    #[arg(long, env = "TANDEM_DRAFT_RESIDENCY", value_name = "WHO")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft_residency: Option<String>,
    /// The same as --draft-residency request-scoped.
    #[arg(long, conflicts_with = "draft_residency")]
    #[serde(skip)]
    pub lazy_draft: bool,
    /// When the target leaves its device for a prompt that is scored, while all answers pause: auto (when the prefill worker finds no
    /// room else), persistent (never) or request-scoped (always). One that is split over devices never does [default: auto].
    #[arg(long, env = "TANDEM_TARGET_RESIDENCY", value_name = "WHEN")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_residency: Option<String>,
    /// Seconds of silence in a stream before a sign of life is sent; 0: none is [default: 15].
    #[arg(long, env = "TANDEM_KEEP_ALIVE_SECONDS", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive_seconds: Option<u64>,
    /// Leave Claude Code's attribution line in its system text, where it makes each run's prompts differ from the last one's.
    #[arg(long, env = "TANDEM_KEEP_ATTRIBUTION", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_attribution: Option<bool>,
    /// Which web pages may call: off (none), local (those of this machine) or any; given without a word: any [default: local].
    #[arg(long, env = "TANDEM_CORS", num_args = 0..=1, default_missing_value = "any", value_name = "WHICH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<String>,
    /// Show the tokens of drafts in the live view: text of the requests, to everyone who may see the view.
    #[arg(long, env = "TANDEM_STATUS_TEXT", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_text: Option<bool>,
}

impl RouterArgs {
    /// The key that goes with requests to a server that runs already.
    pub fn key(&self) -> anyhow::Result<Option<Secret>> {
        let settings = router::Settings {
            api_keys: self.api_keys.clone(),
            api_key_file: self.api_key_file.clone(),
            ..router::Settings::default()
        };
        settings.first_key()
    }
}
