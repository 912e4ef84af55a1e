//! The table `[router]` of the configuration file, before it is checked.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use api_types::CompressionMode;
use compression::{Keep, Rules};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use service::Endpoint;

use crate::compression::{CompressionConfig, TargetResidency};
use crate::config::{
    AnswerDefaults, Cors, DefaultThinking, LengthLimits, RouterConfig, TimeLimits,
};
use crate::keys::{self, ApiKeys};
use crate::secret::Secret;
use crate::tiers::EffortTiers;

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
    /// Folder with model cards, which go before those inside the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_cards: Option<PathBuf>,
    /// Whether answers begin with reasoning where the request does not say: off, on, or as the template has it.
    pub thinking: DefaultThinking,
    /// Tokens of an answer where the request does not say, and of any answer at most; by default the model card's, and no most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_max_tokens: Option<u32>,
    /// Reasoning tokens of a request that wants some at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think_max_tokens: Option<u32>,
    /// Tokens kept free for what is said behind the reasoning; 0: no close is forced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hard_limit_reply_budget: Option<u32>,
    /// Reasoning tokens that effort "low" allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort_low: Option<u32>,
    /// Reasoning tokens that effort "medium" allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort_medium: Option<u32>,
    /// Reasoning tokens that effort "high" allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort_high: Option<u32>,
    /// Reasoning tokens that effort "x-high" allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort_x_high: Option<u32>,
    /// Reasoning tokens that effort "max" allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort_max: Option<u32>,
    /// Keys that callers may have; without any, everyone may call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub api_keys: Vec<Secret>,
    /// File with further keys, one a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<PathBuf>,
    /// Whether others than this machine may call without a key.
    pub no_auth: bool,
    /// Whether the metrics need no key.
    pub open_metrics: bool,
    /// Seconds until the head of a request is there, and between two requests of a connection; 0: any.
    pub header_timeout_seconds: u64,
    /// Seconds until the body of a request is there; 0: any.
    pub body_timeout_seconds: u64,
    /// Seconds that a request waits for the target; 0: any.
    pub queue_timeout_seconds: u64,
    /// Seconds from there to its first token; 0: any.
    pub first_token_timeout_seconds: u64,
    /// Seconds from a token to the next; 0: any.
    pub token_timeout_seconds: u64,
    /// Seconds for a whole request; 0: any.
    pub request_timeout_seconds: u64,
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
    /// Where the target is while a prompt is scored: `auto`: away, where the prefill worker finds no room else; `persistent`: on its
    /// device; `request-scoped`: away.
    pub target_residency: String,
    /// Seconds of silence in a stream before a sign of life is sent; 0: none is.
    pub keep_alive_seconds: u64,
    /// Whether the line that Claude Code begins its system text with stays there; it differs from run to run, so that nothing
    /// kept of one run is of use to the next.
    pub keep_attribution: bool,
    /// Which web pages may call: off (none), local (those of this machine) or any.
    pub cors: Cors,
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
        let times = config.times;
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
            model_cards: None,
            // Who wants it says so; a request that says nothing gets its answer soonest.
            thinking: DefaultThinking::Off,
            default_max_tokens: None,
            think_max_tokens: None,
            hard_limit_reply_budget: None,
            reasoning_effort_low: None,
            reasoning_effort_medium: None,
            reasoning_effort_high: None,
            reasoning_effort_x_high: None,
            reasoning_effort_max: None,
            api_keys: Vec::new(),
            api_key_file: None,
            no_auth: false,
            open_metrics: config.open_metrics,
            header_timeout_seconds: times.header.as_secs(),
            body_timeout_seconds: times.body.as_secs(),
            queue_timeout_seconds: times.queue.as_secs(),
            first_token_timeout_seconds: times.first_token.as_secs(),
            token_timeout_seconds: times.between_tokens.as_secs(),
            request_timeout_seconds: times.request.as_secs(),
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
            target_residency: "auto".to_owned(),
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
        let (lengths, times) = (self.lengths()?, self.times());
        let keys = ApiKeys::new(&self.api_keys, self.api_key_file.as_deref())?;
        ensure!(
            !keys.is_empty() || self.no_auth || is_of_this_machine(&self.listen),
            "listen is {}, which others than this machine can reach, and there is no key: set api-key-file, or no-auth to let everyone in",
            self.listen
        );
        if keys.is_empty() && !is_of_this_machine(&self.listen) {
            tracing::warn!(
                listen = self.listen,
                "everyone who reaches this address may call"
            );
        }
        let read = |path: PathBuf| {
            std::fs::read_to_string(&path)
                .with_context(|| format!("reading the chat template {}", path.display()))
        };
        Ok(RouterConfig {
            model_name: self.model_name,
            strict_model_names: self.strict_model_names,
            chat_template: self.chat_template_file.map(read).transpose()?,
            template_kwargs: self.template_kwargs,
            thinking: self.thinking,
            lengths,
            model_cards: self.model_cards,
            keys,
            open_metrics: self.open_metrics,
            times,
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

    /// One of the keys, for a client of the same user.
    ///
    /// # Errors
    /// The file with keys cannot be read, or holds none.
    pub fn first_key(&self) -> anyhow::Result<Option<Secret>> {
        if let Some(key) = self.api_keys.first() {
            return Ok(Some(key.clone()));
        }
        let file = self.api_key_file.as_deref();
        let keys = file.map(keys::lines).transpose()?.into_iter().flatten();
        Ok(keys.map(|(_, key)| key).next())
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

    /// When the target leaves its device for a prompt that is scored.
    ///
    /// # Errors
    /// A word that nobody knows.
    pub fn target_residency(&self) -> anyhow::Result<TargetResidency> {
        Ok(match self.target_residency.as_str() {
            "auto" => TargetResidency::Auto,
            "persistent" => TargetResidency::Persistent,
            "request-scoped" => TargetResidency::RequestScoped,
            other => anyhow::bail!(
                "target-residency is `{other}`; expected auto, persistent or request-scoped"
            ),
        })
    }

    fn lengths(&self) -> anyhow::Result<LengthLimits> {
        for (name, tokens) in [
            ("default-max-tokens", self.default_max_tokens),
            ("think-max-tokens", self.think_max_tokens),
            ("reasoning-effort-low", self.reasoning_effort_low),
            ("reasoning-effort-medium", self.reasoning_effort_medium),
            ("reasoning-effort-high", self.reasoning_effort_high),
            ("reasoning-effort-x-high", self.reasoning_effort_x_high),
            ("reasoning-effort-max", self.reasoning_effort_max),
        ] {
            ensure!(tokens != Some(0), "{name} is 0; expected 1 or more");
        }
        Ok(LengthLimits {
            default_max_tokens: self.default_max_tokens,
            think_max_tokens: self.think_max_tokens,
            reply_budget: self.hard_limit_reply_budget,
            efforts: EffortTiers {
                low: self.reasoning_effort_low,
                medium: self.reasoning_effort_medium,
                high: self.reasoning_effort_high,
                x_high: self.reasoning_effort_x_high,
                max: self.reasoning_effort_max,
            },
        })
    }

    fn times(&self) -> TimeLimits {
        TimeLimits {
            header: Duration::from_secs(self.header_timeout_seconds),
            body: Duration::from_secs(self.body_timeout_seconds),
            queue: Duration::from_secs(self.queue_timeout_seconds),
            first_token: Duration::from_secs(self.first_token_timeout_seconds),
            between_tokens: Duration::from_secs(self.token_timeout_seconds),
            request: Duration::from_secs(self.request_timeout_seconds),
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

/// Whether only this machine reaches `listen`, a `HOST:PORT`.
fn is_of_this_machine(listen: &str) -> bool {
    let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address: Option<IpAddr> = host.parse().ok();
    host == "localhost" || address.is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::{Settings, is_of_this_machine};
    use crate::secret::Secret;

    #[test]
    fn an_address_that_others_reach_wants_a_key() {
        for listen in ["127.0.0.1:8000", "[::1]:8000", "localhost:0", "127.0.0.5:1"] {
            assert!(is_of_this_machine(listen), "{listen}");
        }
        let listening = |listen: &str| Settings {
            listen: listen.to_owned(),
            ..Settings::default()
        };
        for listen in ["0.0.0.0:8000", "[::]:8000", "192.168.0.2:80", "box:80"] {
            let error = listening(listen).check().unwrap_err().to_string();
            assert!(
                error.contains(listen) && error.contains("api-key-file"),
                "{error}"
            );
            let keyed = Settings {
                api_keys: vec![Secret::from("sk".to_owned())],
                ..listening(listen)
            };
            assert!(keyed.check().is_ok());
            let accepted = Settings {
                no_auth: true,
                ..listening(listen)
            };
            assert!(accepted.check().is_ok());
        }
    }

    #[test]
    fn lengths_of_nothing_are_refused_by_their_key() {
        let settings = Settings {
            reasoning_effort_x_high: Some(0),
            ..Settings::default()
        };
        let error = settings.check().unwrap_err().to_string();
        assert!(error.contains("reasoning-effort-x-high is 0"), "{error}");
        let unforced = Settings {
            hard_limit_reply_budget: Some(0),
            ..Settings::default()
        };
        assert!(unforced.check().is_ok(), "0 switches forcing off");
    }

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
            target_residency: "never".to_owned(),
            ..Settings::default()
        };
        let words = settings.draft_gives_way().unwrap_err().to_string();
        assert!(words.contains("draft-residency is `sometimes`"), "{words}");
        let words = settings.target_residency().unwrap_err().to_string();
        assert!(words.contains("target-residency is `never`"), "{words}");
    }
}
