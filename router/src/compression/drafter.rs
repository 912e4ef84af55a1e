//! The prefill worker and the words of its model.

use std::sync::Arc;

use anyhow::Context as _;
use gguf::{GgufFile, Metadata};
use tokenizer::{EncodeOptions, Tokenizer};
use worker_api::{DraftClient, PrefillClient, TargetClient};

use crate::compression::turns::{Others, TargetResidency};

/// Who says what of a prompt is worth keeping.
#[derive(Debug)]
pub struct Prefill {
    pub(super) client: PrefillClient,
    pub(super) drafter: Drafter,
    /// Leave their device while prompts are scored.
    pub(super) others: Others,
}

/// The words of its model.
#[derive(Debug)]
pub(super) struct Drafter {
    pub tokenizer: Arc<Tokenizer>,
    pub token_list: [u8; 32],
}

impl Prefill {
    /// The worker behind `client`, which need not be there yet. `drafter` is the file of its model, whose tokenizer speaks where
    /// the tokens are not the target's.
    ///
    /// # Errors
    /// A file without a usable tokenizer.
    pub fn new(client: PrefillClient, drafter: &GgufFile) -> anyhow::Result<Self> {
        let context = || format!("reading the tokenizer of {}", drafter.path().display());
        let tokenizer = Tokenizer::from_gguf(drafter.metadata()).with_context(context)?;
        let token_list = token_list(drafter.metadata()).with_context(context)?;
        Ok(Self {
            client,
            drafter: Drafter {
                tokenizer: Arc::new(tokenizer),
                token_list,
            },
            others: Others {
                draft: None,
                target: None,
            },
        })
    }

    /// Has the draft leave its device while prompts are scored: for one that has no room for both.
    #[must_use]
    pub fn in_turn_with(mut self, draft: DraftClient) -> Self {
        self.others.draft = Some(draft);
        self
    }

    /// Has the target leave its device for prompts, when `residency` says so.
    #[must_use]
    pub fn in_turn_with_target(mut self, target: TargetClient, residency: TargetResidency) -> Self {
        let leaves = residency != TargetResidency::Persistent;
        self.others.target = leaves.then_some((target, residency));
        self
    }
}

/// What tells the tokens of one model from those of another.
pub(crate) fn token_list(metadata: &Metadata) -> anyhow::Result<[u8; 32]> {
    let tokens = metadata.required_str_array("tokenizer.ggml.tokens")?;
    Ok(tokens.sha256())
}

/// The tokens of `text` and where they end. `None` where they do not spell it.
pub(super) fn spell(tokenizer: &Tokenizer, text: &str) -> Option<(Vec<u32>, Vec<usize>)> {
    let options = EncodeOptions {
        add_bos: false,
        parse_special: true,
    };
    let tokens = tokenizer.encode(text, options);
    let ends = tokenizer.ends(&tokens, text)?;
    Some((tokens, ends))
}
