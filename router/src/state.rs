//! What all requests share.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use chat::{ChatTemplate, RenderInput};
use generation::ModelDescription;
use gguf::GgufFile;
use tokenizer::{EncodeOptions, Tokenizer};
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;
use tool_calls::Dialect;

use crate::active::Active;
use crate::compression::{Compressor, Prefill, token_list};
use crate::config::RouterConfig;
use crate::conversation::SkippedTools;
use crate::drafts::DraftStatus;
use crate::error::RouterError;
use crate::history::for_template;
use crate::metrics::Metrics;
use crate::policy::Policy;
use crate::target::Target;

/// Bytes of input from which work on it leaves the async threads.
const OFFLOAD_BYTES: usize = 16 << 10;

/// Clients that watch the live view at a time; one more is answered with 429.
const MAX_WATCHERS: usize = 32;

/// What all requests share.
#[derive(Debug)]
pub(crate) struct State<T> {
    pub target: T,
    pub config: RouterConfig,
    pub words: Arc<Words>,
    pub policy: Policy,
    pub compressor: Compressor,
    pub metrics: Arc<Metrics>,
    pub draft: Arc<DraftStatus>,
    pub active: Active,
    pub skipped_tools: SkippedTools,
    /// One permit per answer being made.
    pub permits: Arc<Semaphore>,
    /// One permit per client that watches the live view.
    pub watchers: Arc<Semaphore>,
    /// The shutdown has begun.
    pub shutdown: CancellationToken,
    /// The shutdown has waited long enough.
    pub deadline: CancellationToken,
    /// Seconds since 1970 at the start.
    pub created: u64,
    description: OnceCell<ModelDescription>,
}

/// The model's side of words.
#[derive(Debug)]
pub(crate) struct Words {
    pub tokenizer: Arc<Tokenizer>,
    /// Tells its tokens from those of other models.
    pub token_list: Option<[u8; 32]>,
    /// Text of the chat template, if there is one.
    pub template_source: Option<String>,
    template: ChatTemplate,
    /// How the template has calls written, if it knows of tools.
    pub dialect: Option<Dialect>,
    /// What clients call the model.
    pub model_name: String,
    /// What they may call it as well.
    pub file_stem: String,
}

impl<T: Target> State<T> {
    pub fn new(
        config: RouterConfig,
        model: &GgufFile,
        target: T,
        draft: Arc<DraftStatus>,
        prefill: Option<Prefill>,
        shutdown: CancellationToken,
    ) -> anyhow::Result<Self> {
        let words = Arc::new(Words::new(&config, model)?);
        let policy = Policy::new(
            &config,
            model.metadata(),
            &words.file_stem,
            &words.tokenizer,
        )?;
        let metrics = Arc::new(Metrics::new().context("setting up the metrics")?);
        let compressor = Compressor::new(
            config.compression.clone(),
            prefill,
            Arc::clone(&words),
            Arc::clone(&metrics),
        );
        let permits = config.max_in_flight.clamp(1, Semaphore::MAX_PERMITS);
        Ok(Self {
            target,
            words,
            policy,
            compressor,
            metrics,
            draft,
            active: Active::default(),
            skipped_tools: SkippedTools::default(),
            permits: Arc::new(Semaphore::new(permits)),
            watchers: Arc::new(Semaphore::new(MAX_WATCHERS)),
            config: RouterConfig {
                max_in_flight: permits,
                ..config
            },
            shutdown,
            deadline: CancellationToken::new(),
            created: unix_seconds(),
            description: OnceCell::new(),
        })
    }

    /// The loaded model; asked for once.
    pub async fn description(&self) -> Result<&ModelDescription, RouterError> {
        let ask = || async { Ok(self.target.describe().await?) };
        self.description.get_or_try_init(ask).await
    }

    /// Whether a request may name the model so.
    pub fn check_model(&self, name: Option<&str>) -> Result<(), RouterError> {
        match name {
            Some(name) if self.config.strict_model_names => self.find_model(name),
            _ => Ok(()),
        }
    }

    /// Whether this is the name of the model.
    pub fn find_model(&self, name: &str) -> Result<(), RouterError> {
        if name == self.words.model_name || name == self.words.file_stem {
            return Ok(());
        }
        Err(RouterError::UnknownModel {
            name: name.to_owned(),
            served: self.words.model_name.clone(),
        })
    }
}

impl Words {
    fn new(config: &RouterConfig, model: &GgufFile) -> anyhow::Result<Self> {
        let tokenizer = Tokenizer::from_gguf(model.metadata()).context("reading the tokenizer")?;
        let metadata = model.metadata();
        let own_template = metadata.str("tokenizer.chat_template")?;
        let template_source = config
            .chat_template
            .clone()
            .or_else(|| own_template.map(str::to_owned));
        let template = match &template_source {
            Some(source) => {
                let (bos, eos) = (
                    token_text(&tokenizer, tokenizer.bos()),
                    token_text(&tokenizer, tokenizer.eos()),
                );
                ChatTemplate::new(source, bos, eos).context("compiling the chat template")?
            }
            None => ChatTemplate::fallback_chatml()?,
        };
        let file_stem = stem(model.path());
        let general_name = metadata
            .str("general.name")?
            .filter(|name| !name.is_empty());
        let model_name = config
            .model_name
            .as_deref()
            .or(general_name)
            .unwrap_or(&file_stem)
            .to_owned();
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            token_list: token_list(metadata).ok(),
            dialect: match &template_source {
                Some(source) => Dialect::of_template(source),
                // The one that stands in for it has them so.
                None => Some(Dialect::Elements),
            },
            template_source,
            template,
            model_name,
            file_stem,
        })
    }

    /// The prompt of a conversation, as text.
    pub fn render(&self, input: &RenderInput) -> Result<String, RouterError> {
        Ok(self.template.render(&for_template(input, self.dialect))?)
    }

    /// The ids of a text that begins a sequence.
    pub fn encode_prompt(&self, text: &str) -> Vec<u32> {
        // Templates may spell the token that begins a sequence themselves.
        let bos = self.bos();
        let options = EncodeOptions {
            add_bos: bos.is_empty() || !text.starts_with(bos),
            parse_special: true,
        };
        self.tokenizer.encode(text, options)
    }

    /// How many of `ids`, which are those of `text`, are those of its `beginning`. 0, where it has another one, or a token goes
    /// past it.
    pub fn tokens_of_beginning(&self, ids: &[u32], text: &str, beginning: &str) -> u32 {
        let Some(rest) = text.strip_prefix(beginning) else {
            return 0;
        };
        let options = EncodeOptions {
            add_bos: false,
            parse_special: true,
        };
        let rest = self.tokenizer.encode(rest, options);
        let tokens = ids.strip_suffix(&rest[..]).map_or(0, <[u32]>::len);
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// The tokens that end an answer.
    pub fn stop_ids(&self, ignore_eos: bool) -> Vec<u32> {
        if ignore_eos {
            return Vec::new();
        }
        self.tokenizer.stop_ids().to_vec()
    }

    /// Text of the token that begins a sequence, or nothing.
    pub fn bos(&self) -> &str {
        token_text(&self.tokenizer, self.tokenizer.bos())
    }

    /// Text of the token that ends a sequence, or nothing.
    pub fn eos(&self) -> &str {
        token_text(&self.tokenizer, self.tokenizer.eos())
    }
}

/// Runs work on `bytes` bytes of input where it blocks nobody.
pub(crate) async fn offload<R: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, RouterError> {
    if bytes < OFFLOAD_BYTES {
        return Ok(work());
    }
    let result = tokio::task::spawn_blocking(work).await;
    result.map_err(|error| {
        tracing::error!(%error, "work on a large input broke off");
        RouterError::Panicked
    })
}

pub(crate) fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn token_text(tokenizer: &Tokenizer, id: Option<u32>) -> &str {
    id.and_then(|id| tokenizer.token_text(id)).unwrap_or("")
}

fn stem(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    stem.to_string_lossy().into_owned()
}
