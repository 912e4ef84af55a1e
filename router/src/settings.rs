//! The table `[router]` of the configuration file, before it is checked.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use service::Endpoint;

use crate::config::{AnswerDefaults, RouterConfig};

/// Settings as the user writes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// GGUF file whose tokenizer and chat template speak. Without it: the demo model inside the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<PathBuf>,
    /// `HOST:PORT` to serve HTTP on.
    pub listen: String,
    /// Where the target worker listens.
    pub target: Endpoint,
    /// Where the draft worker listens; without it the target decodes plainly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<Endpoint>,
    /// Where the prefill worker listens; without it no prompt is made shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<Endpoint>,
    /// GGUF file of the prefill worker's drafter, whose tokenizer speaks where its tokens are not the target's. Without it: the
    /// demo's inside the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_drafter: Option<PathBuf>,
    /// Name that clients ask for; by default `general.name` of the model file, or the file's own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Jinja file to use instead of the model's chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_file: Option<PathBuf>,
    /// Requests at work or waiting at a time; one more is answered with 429.
    pub max_in_flight: usize,
    /// Longest request body, in bytes; longer ones are answered with 413.
    pub max_body_bytes: usize,
    /// Seconds that running answers get to end at shutdown.
    pub drain_seconds: u64,
    /// Seconds of silence in a stream before a sign of life is sent.
    pub keep_alive_seconds: u64,
    /// Whether web pages of any origin may call.
    pub cors: bool,
    /// Variables given to the chat template unless the request sets them, such as `enable_thinking`.
    pub template_kwargs: Map<String, Value>,
    /// What holds where a request says nothing.
    pub defaults: AnswerDefaults,
}

impl Default for Settings {
    fn default() -> Self {
        let config = RouterConfig::default();
        Self {
            model: None,
            listen: "127.0.0.1:8000".to_owned(),
            target: Endpoint::Tcp("127.0.0.1:7001".to_owned()),
            draft: None,
            prefill: None,
            prefill_drafter: None,
            model_name: None,
            chat_template_file: None,
            max_in_flight: config.max_in_flight,
            max_body_bytes: config.max_body_bytes,
            drain_seconds: config.drain_timeout.as_secs(),
            keep_alive_seconds: config.keep_alive.as_secs(),
            cors: config.cors,
            template_kwargs: config.template_kwargs,
            defaults: config.defaults,
        }
    }
}

impl Settings {
    /// Reads what the settings point at.
    ///
    /// # Errors
    /// The chat template cannot be read.
    pub fn check(self) -> anyhow::Result<RouterConfig> {
        let read = |path: PathBuf| {
            std::fs::read_to_string(&path)
                .with_context(|| format!("reading the chat template {}", path.display()))
        };
        Ok(RouterConfig {
            model_name: self.model_name,
            chat_template: self.chat_template_file.map(read).transpose()?,
            template_kwargs: self.template_kwargs,
            max_in_flight: self.max_in_flight,
            max_body_bytes: self.max_body_bytes,
            drain_timeout: Duration::from_secs(self.drain_seconds),
            keep_alive: Duration::from_secs(self.keep_alive_seconds),
            cors: self.cors,
            defaults: self.defaults,
        })
    }
}
