//! The table `[router]` of the configuration file, before it is checked.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use api_types::CompressionMode;
use compression::{Keep, Rules};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use service::Endpoint;

use crate::compression::CompressionConfig;
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
    /// Whether requests that name another model are answered with 404.
    pub strict_model_names: bool,
    /// Jinja file to use instead of the model's chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template_file: Option<PathBuf>,
    /// Requests at work or waiting at a time; one more is answered with 429.
    pub max_in_flight: usize,
    /// Longest request body, in bytes; longer ones are answered with 413.
    pub max_body_bytes: usize,
    /// Seconds that running answers get to end at shutdown.
    pub drain_seconds: u64,
    /// When long prompts are made shorter: off, auto (from `prefill-threshold` on) or always.
    pub prefill_compression: String,
    /// Tokens from which a prompt is long.
    pub prefill_threshold: usize,
    /// Share of what may be cut that is kept, above 0 and up to 1.
    pub prefill_keep_ratio: f64,
    /// `TOKENS:SHARE ...` in place of the one share: linear between the points, constant outside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_curve: Option<String>,
    /// Last messages of a conversation that are never cut.
    pub prefill_hot_window: usize,
    /// Tokens from which an older message of a conversation is cut by itself.
    pub prefill_message_threshold: usize,
    /// Seconds that making a prompt shorter may take; then it goes on whole.
    pub prefill_timeout_seconds: u64,
    /// Where the draft is while a prompt is scored: `auto` and `persistent`: on its device; `request-scoped`: away.
    pub draft_residency: String,
    /// Seconds of silence in a stream before a sign of life is sent; 0: none is.
    pub keep_alive_seconds: u64,
    /// Whether the line that Claude Code begins its system text with stays there; it differs from run to run, so that nothing
    /// kept of one run is of use to the next.
    pub keep_attribution: bool,
    /// Whether web pages of any origin may call.
    pub cors: bool,
    /// Whether the live view shows the tokens of drafts, which are text of the requests.
    pub status_text: bool,
    /// Variables given to the chat template unless the request sets them, such as `enable_thinking`.
    pub template_kwargs: Map<String, Value>,
    /// What holds where a request says nothing.
    pub defaults: AnswerDefaults,
}

impl Default for Settings {
    fn default() -> Self {
        let config = RouterConfig::default();
        let compression = config.compression;
        Self {
            model: None,
            listen: "127.0.0.1:8000".to_owned(),
            target: Endpoint::Tcp("127.0.0.1:7001".to_owned()),
            draft: None,
            prefill: None,
            prefill_drafter: None,
            model_name: None,
            strict_model_names: config.strict_model_names,
            chat_template_file: None,
            max_in_flight: config.max_in_flight,
            max_body_bytes: config.max_body_bytes,
            drain_seconds: config.drain_timeout.as_secs(),
            prefill_compression: compression.mode.to_string(),
            prefill_threshold: compression.threshold,
            prefill_keep_ratio: 0.05,
            prefill_curve: None,
            prefill_hot_window: compression.rules.hot_window,
            prefill_message_threshold: compression.rules.message_tokens,
            prefill_timeout_seconds: compression.timeout.as_secs(),
            draft_residency: "auto".to_owned(),
            keep_alive_seconds: config.keep_alive.as_secs(),
            keep_attribution: config.keep_attribution,
            cors: config.cors,
            status_text: config.status_text,
            template_kwargs: config.template_kwargs,
            defaults: config.defaults,
        }
    }
}

impl Settings {
    /// Reads what the settings point at.
    ///
    /// # Errors
    /// The chat template cannot be read, or what is said of compression cannot be.
    pub fn check(self) -> anyhow::Result<RouterConfig> {
        let compression = self.compression()?;
        let read = |path: PathBuf| {
            std::fs::read_to_string(&path)
                .with_context(|| format!("reading the chat template {}", path.display()))
        };
        Ok(RouterConfig {
            model_name: self.model_name,
            strict_model_names: self.strict_model_names,
            chat_template: self.chat_template_file.map(read).transpose()?,
            template_kwargs: self.template_kwargs,
            max_in_flight: self.max_in_flight,
            max_body_bytes: self.max_body_bytes,
            drain_timeout: Duration::from_secs(self.drain_seconds),
            keep_alive: Duration::from_secs(self.keep_alive_seconds),
            keep_attribution: self.keep_attribution,
            cors: self.cors,
            status_text: self.status_text,
            compression,
            defaults: self.defaults,
        })
    }

    /// Whether the draft leaves its device while a prompt is scored.
    ///
    /// # Errors
    /// A word that nobody knows.
    pub fn draft_gives_way(&self) -> anyhow::Result<bool> {
        match self.draft_residency.as_str() {
            "auto" | "persistent" => Ok(false),
            "request-scoped" => Ok(true),
            other => anyhow::bail!(
                "draft-residency is `{other}`; expected auto, persistent or request-scoped"
            ),
        }
    }

    fn compression(&self) -> anyhow::Result<CompressionConfig> {
        let mode: CompressionMode = self
            .prefill_compression
            .parse()
            .map_err(anyhow::Error::msg)
            .context("prefill-compression")?;
        ensure!(
            mode == CompressionMode::Off || self.prefill.is_some(),
            "prefill-compression is {mode}, but there is no prefill worker: neither a drafter nor an endpoint of one is configured"
        );
        let keep = match &self.prefill_curve {
            Some(curve) => curve.parse().context("prefill-curve")?,
            None => Keep::ratio(self.prefill_keep_ratio).context("prefill-keep-ratio")?,
        };
        let positive = |name, value: usize| {
            ensure!(value > 0, "{name} is 0; expected 1 or more");
            Ok(value)
        };
        let timeout = Duration::from_secs(self.prefill_timeout_seconds);
        ensure!(
            !timeout.is_zero(),
            "prefill-timeout-seconds is 0; expected 1 or more"
        );
        Ok(CompressionConfig {
            mode,
            threshold: self.prefill_threshold,
            keep,
            rules: Rules {
                hot_window: positive("prefill-hot-window", self.prefill_hot_window)?,
                message_tokens: positive(
                    "prefill-message-threshold",
                    self.prefill_message_threshold,
                )?,
            },
            timeout,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Settings;

    #[test]
    fn what_cannot_be_said_of_compression_is_refused_by_its_key() {
        let refused = |change: fn(&mut Settings), parts: [&str; 2]| {
            let mut settings = Settings::default();
            change(&mut settings);
            let error = format!("{:#}", settings.check().unwrap_err());
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        refused(
            |s| s.prefill_compression = "often".to_owned(),
            ["prefill-compression", "\"often\""],
        );
        refused(
            |s| s.prefill_compression = "auto".to_owned(),
            ["prefill-compression is auto", "no prefill worker"],
        );
        refused(
            |s| s.prefill_keep_ratio = 1.5,
            ["prefill-keep-ratio", "1.5"],
        );
        refused(
            |s| s.prefill_curve = Some("8000:x".to_owned()),
            ["prefill-curve", "`8000:x`"],
        );
        refused(|s| s.prefill_hot_window = 0, ["prefill-hot-window", "0"]);
        refused(
            |s| s.prefill_message_threshold = 0,
            ["prefill-message-threshold", "0"],
        );
        refused(
            |s| s.prefill_timeout_seconds = 0,
            ["prefill-timeout-seconds", "0"],
        );
        assert!(Settings::default().check().is_ok());
        let settings = Settings {
            draft_residency: "sometimes".to_owned(),
            ..Settings::default()
        };
        let words = settings.draft_gives_way().unwrap_err().to_string();
        assert!(words.contains("draft-residency is `sometimes`"), "{words}");
    }
}
