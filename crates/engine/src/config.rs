//! Sizes of an engine, held against the model before anything runs.

use std::path::PathBuf;
use std::time::Duration;

use generation::{ModelDescription, SpeculationConfig, SpeculationMode};
use models::{KvTypes, LoadOptions, Model, PAGE_TOKENS};
use prefix_store::Fingerprint;

use crate::error::ConfigError;

/// Sizes of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Sequences that run at a time. Fewer run where their pages are promised to others.
    pub max_sequences: usize,
    /// Requests that may wait beyond those that there is a place for; one more is refused.
    pub queue_len: usize,
    /// Tokens that one sequence can hold, prompt and answer together.
    pub context_length: usize,
    /// Prompt tokens computed in a step, of all sequences together; fewer where the model's batch has no more rows.
    /// More finish a prompt sooner, fewer keep the sequences that decode beside it quick.
    pub prefill_chunk_tokens: usize,
    /// How drafts are used, where there is one and a request says nothing; no request may have larger ones.
    pub speculation: SpeculationConfig,
    /// States kept for prompts that begin in the same way.
    pub prefix_cache: PrefixCacheConfig,
    /// Hold every token against plain decoding, at the cost of decoding twice. The model needs room for twice as many
    /// sequences and tokens.
    pub verify_lossless: bool,
}

/// How much is kept for prompts that begin in the same way. Nothing of it changes a token, and nothing waits for it: it gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixCacheConfig {
    /// Prefixes at most; the model has recurrent states for so many sequences more. 0: none.
    pub slots: usize,
    /// Bytes at most, of recurrent states and of what a draft has to see. Pages are those that running sequences leave.
    pub max_bytes: usize,
}

impl PrefixCacheConfig {
    /// Nothing is kept.
    pub const OFF: Self = Self {
        slots: 0,
        max_bytes: 0,
    };
}

/// Prefixes in files, which outlive the engine. Nothing of it changes a token, and nothing waits for it but a request for a prefix
/// that is longer than what memory has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCacheConfig {
    /// The folder. Engines of several processes may share it.
    pub dir: PathBuf,
    /// Bytes of its files at most.
    pub budget_bytes: u64,
    /// Tokens that a prefix must have to be written, and must have beyond those known in memory to be read.
    pub min_tokens: usize,
    /// How long a prefix must not have been used before it is written.
    pub settle: Duration,
    /// What decides the states of tokens: only prefixes with the same one are read.
    pub fingerprint: Fingerprint,
}

/// Draft rows of a step, of all sequences together: where more are wanted they share. What the model holds for a step
/// does not grow with the budget beyond this.
const MAX_DRAFT_ROWS: usize = 256;

impl EngineConfig {
    /// What a model must be loaded for to run with these sizes.
    #[must_use]
    pub fn load_options(&self, kv_type: Option<KvTypes>) -> LoadOptions {
        let draft_rows = self.speculation.max_rows();
        let each = if self.verify_lossless { 2 } else { 1 };
        let tokens = self.context_length.saturating_mul(each) + draft_rows;
        // Each sequence has whole pages of its own.
        let pages = tokens.div_ceil(PAGE_TOKENS) + each - 1;
        LoadOptions {
            max_tokens: self
                .max_sequences
                .saturating_mul(pages)
                .saturating_mul(PAGE_TOKENS),
            max_sequences: self
                .max_sequences
                .saturating_mul(each)
                .saturating_add(self.prefix_cache.slots),
            max_batch_rows: (self.max_sequences.saturating_mul(draft_rows))
                .min(MAX_DRAFT_ROWS)
                .saturating_add(self.max_sequences)
                .saturating_add(self.prefill_chunk_tokens),
            kv_type,
        }
    }

    /// Says whether `model` can run with these sizes, and whether `description` tells the same.
    pub(crate) fn check(
        &self,
        model: &Model,
        description: &ModelDescription,
    ) -> Result<(), ConfigError> {
        for (field, value) in [
            ("max_sequences", self.max_sequences),
            ("queue_len", self.queue_len),
            ("context_length", self.context_length),
            ("prefill_chunk_tokens", self.prefill_chunk_tokens),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero { field });
            }
        }
        let drafts = matches!(
            self.speculation.mode,
            SpeculationMode::Tree | SpeculationMode::Auto
        );
        if drafts && self.speculation.budget == 0 {
            return Err(ConfigError::Zero {
                field: "speculation budget",
            });
        }
        self.check_model(model)?;
        let vocab_size = model.config().vocab_size;
        for (field, described, expected) in [
            (
                "context_length",
                description.context_length,
                self.context_length,
            ),
            (
                "max_sequences",
                description.max_sequences,
                self.max_sequences,
            ),
            ("vocab_size", description.vocab_size, vocab_size),
        ] {
            if described as usize != expected {
                return Err(ConfigError::Description {
                    field,
                    described,
                    expected,
                });
            }
        }
        Ok(())
    }

    /// Says whether prefixes of `model` can be kept in files.
    pub(crate) fn check_disk(&self, model: &Model) -> Result<(), ConfigError> {
        if self.prefix_cache.slots == 0 {
            let why = "none are kept in memory";
            return Err(ConfigError::NoDiskCache { why });
        }
        if !model.has_parts() {
            let why = "the model is split";
            return Err(ConfigError::NoDiskCache { why });
        }
        Ok(())
    }

    fn check_model(&self, model: &Model) -> Result<(), ConfigError> {
        let cache = model.cache();
        let fits = |field, got, limit, of| {
            if got <= limit {
                Ok(())
            } else {
                Err(ConfigError::TooLarge {
                    field,
                    got,
                    limit,
                    of,
                })
            }
        };
        let each = if self.verify_lossless { 2 } else { 1 };
        fits(
            "max_sequences",
            self.max_sequences * each + self.prefix_cache.slots,
            cache.free_sequences(),
            "sequences",
        )?;
        // A row for every sequence, so that none waits for another's turn.
        fits(
            "max_sequences",
            self.max_sequences,
            model.max_batch_rows(),
            "batch rows",
        )?;
        fits(
            "context_length",
            self.context_length,
            model.config().context_length,
            "tokens of context",
        )?;
        // The first request of the queue must be able to run alone.
        let shadow = cache.pages_for(self.context_length) * (each - 1);
        let draft_rows = self.speculation.max_rows();
        let needed = cache.pages_for(self.context_length + draft_rows) + shadow;
        if needed > cache.num_pages() {
            return Err(ConfigError::TooFewPages {
                context_length: self.context_length,
                needed,
                pages: cache.num_pages(),
            });
        }
        Ok(())
    }
}
