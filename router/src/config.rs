//! Settings of the router.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::compression::CompressionConfig;
use crate::keys::ApiKeys;
use crate::tiers::EffortTiers;

/// How the router serves.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterConfig {
    /// Name that clients ask for; by default `general.name` of the model file, or the file's own name.
    pub model_name: Option<String>,
    /// Whether requests that name another model are answered with 404. Otherwise any name will do, for many clients
    /// know only those of the model that they were made for.
    pub strict_model_names: bool,
    /// Text of a Jinja chat template; by default the model file's own, or plain ChatML.
    pub chat_template: Option<String>,
    /// Variables given to the chat template unless the request sets them, such as `enable_thinking`.
    pub template_kwargs: Map<String, Value>,
    /// Whether answers begin with reasoning where the request does not say.
    pub thinking: DefaultThinking,
    /// How long answers and their reasoning may be.
    pub lengths: LengthLimits,
    /// Folder with model cards, which go before those inside the program.
    pub model_cards: Option<PathBuf>,
    /// Who may call.
    pub keys: ApiKeys,
    /// Whether the metrics need no key.
    pub open_metrics: bool,
    /// How long the parts of a request may take.
    pub times: TimeLimits,
    /// Generate calls at work or queued at the target at a time; more are answered with 429.
    pub max_in_flight: usize,
    /// Longest request body, in bytes; longer ones are answered with 413.
    pub max_body_bytes: usize,
    /// How long requests may go on after the shutdown began.
    pub drain_timeout: Duration,
    /// Longest silence in a stream; then a sign of life is sent. Zero: none is.
    pub keep_alive: Duration,
    /// Whether the line that Claude Code begins its system text with stays there; it differs from run to run.
    pub keep_attribution: bool,
    /// Which web pages may call.
    pub cors: Cors,
    /// Whether the live view shows the tokens of drafts, which are text of the requests.
    pub status_text: bool,
    /// When prompts are made shorter.
    pub compression: CompressionConfig,
    /// What holds where a request says nothing.
    pub defaults: AnswerDefaults,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            model_name: None,
            strict_model_names: false,
            chat_template: None,
            template_kwargs: Map::new(),
            thinking: DefaultThinking::Template,
            lengths: LengthLimits::default(),
            model_cards: None,
            keys: ApiKeys::default(),
            open_metrics: false,
            times: TimeLimits::default(),
            max_in_flight: 64,
            max_body_bytes: 64 << 20,
            drain_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(15),
            keep_attribution: false,
            cors: Cors::Local,
            status_text: false,
            compression: CompressionConfig::default(),
            defaults: AnswerDefaults::default(),
        }
    }
}

/// Which web pages may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cors {
    /// None.
    Off,
    /// Those of this machine.
    Local,
    /// All.
    Any,
}

/// Whether answers begin with reasoning where the request does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DefaultThinking {
    /// They do not.
    Off,
    /// They do.
    On,
    /// As the chat template has it.
    Template,
}

/// How long answers and their reasoning may be; what is not said is the model card's to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LengthLimits {
    /// Tokens of an answer where the request does not say, and of any answer at most.
    pub default_max_tokens: Option<u32>,
    /// Reasoning tokens of a request that wants some at most.
    pub think_max_tokens: Option<u32>,
    /// Tokens kept free for what is said behind the reasoning; 0: no close is forced.
    pub reply_budget: Option<u32>,
    /// Reasoning tokens by effort.
    pub efforts: EffortTiers,
}

/// How long the parts of a request may take; zero: as long as they like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// Until the head of a request is there, and between two requests of a connection.
    pub header: Duration,
    /// Until its body is there.
    pub body: Duration,
    /// Until the target begins with it.
    pub queue: Duration,
    /// From there to its first token. A prompt of 200 000 tokens takes minutes on a GPU, and hours on a CPU.
    pub first_token: Duration,
    /// From a token to the next.
    pub between_tokens: Duration,
    /// For all of it.
    pub request: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(60),
            body: Duration::from_secs(300),
            queue: Duration::from_secs(600),
            first_token: Duration::ZERO,
            between_tokens: Duration::from_secs(300),
            request: Duration::ZERO,
        }
    }
}

/// How tokens are chosen where a request says nothing; what is not said here is the model card's to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AnswerDefaults {
    /// 0 to 2; 0 takes the most likely token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Above 0, up to 1; 1 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// 0 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// 0 to 1; 0 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// -2 to 2; 0 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f32>,
    /// Above 0; 1 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    /// Generated tokens that the penalties look at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_window: Option<u32>,
}
