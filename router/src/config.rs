//! Settings of the router.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::compression::CompressionConfig;

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
    /// Whether web pages of any origin may call.
    pub cors: bool,
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
            max_in_flight: 64,
            max_body_bytes: 64 << 20,
            drain_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(15),
            keep_attribution: false,
            cors: false,
            status_text: false,
            compression: CompressionConfig::default(),
            defaults: AnswerDefaults::default(),
        }
    }
}

/// What holds where a request says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AnswerDefaults {
    /// New tokens; `None` is all that the context has room for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// 0 to 2; 0 takes the most likely token.
    pub temperature: f32,
    /// Above 0, up to 1; 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 0 to 1; 0 is off.
    pub min_p: f32,
    /// Above 0; 1 is off.
    pub repetition_penalty: f32,
    /// Generated tokens that the penalties look at.
    pub repetition_window: u32,
}

impl Default for AnswerDefaults {
    fn default() -> Self {
        Self {
            max_tokens: None,
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            repetition_window: 256,
        }
    }
}
