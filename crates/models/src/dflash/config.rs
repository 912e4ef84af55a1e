//! Sizes and constants of a draft: what its files say, what was set over it, and what the target asks for.

use kernels::KvType;

use crate::dflash::attention::{self, DraftAttention};
use crate::dflash::file::DraftFile;
use crate::dflash::gguf_keys::MAX_LAYERS;
use crate::dflash::names::DraftDialect;
use crate::dflash::said::Said;
use crate::error::ModelError;
use crate::hparams::ModelConfig;

/// Sizes and constants of a draft model.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftConfig {
    /// Names of its tensors.
    pub dialect: DraftDialect,
    /// E, the target's too.
    pub hidden_size: usize,
    /// L.
    pub num_layers: usize,
    /// H.
    pub num_heads: usize,
    /// Hkv.
    pub num_kv_heads: usize,
    /// D; all of a head turns.
    pub head_dim: usize,
    /// F.
    pub feed_forward_size: usize,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// B: the anchor and the positions after it.
    pub block_size: usize,
    /// Token that stands where the draft is to say one.
    pub mask_token_id: u32,
    /// Target layers whose outputs the draft reads, 0-based, in the order of its features.
    pub capture_layers: Vec<usize>,
    /// Per layer.
    pub attention: Vec<DraftAttention>,
    /// Longest context that the draft was made for.
    pub context_length: usize,
    /// V, of the target.
    pub vocab_size: usize,
}

/// Sizes that a draft is loaded for, and what is known better than its files say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftOptions {
    /// Positions of context that a sequence keeps, rounded up to whole pages; of longer ones the oldest pages go.
    pub max_context_tokens: usize,
    /// Sequences at a time.
    pub max_sequences: usize,
    /// Rows of context that are computed together.
    pub max_rows: usize,
    /// How keys and values are kept. `None`: f16 where weights are quantised, f32 where they are floats.
    pub kv_type: Option<KvType>,
    /// Instead of the mask token that the files say.
    pub mask_token_id: Option<u32>,
    /// Instead of the base of the rotary frequencies that the files say.
    pub rope_theta: Option<f32>,
    /// Instead of the window that the files say. Where they say none, all layers but the last get it, causal, as in the
    /// drafts that were trained with one. 0: no windows.
    pub sliding_window: Option<usize>,
}

impl Default for DraftOptions {
    fn default() -> Self {
        Self {
            max_context_tokens: 4096,
            max_sequences: 1,
            max_rows: 128,
            kv_type: None,
            mask_token_id: None,
            rope_theta: None,
            sliding_window: None,
        }
    }
}

impl DraftConfig {
    /// Features of a position: the captured layers' outputs one after another.
    #[must_use]
    pub fn feature_len(&self) -> usize {
        self.capture_layers.len() * self.hidden_size
    }

    /// Positions after the anchor.
    #[must_use]
    pub fn max_depth(&self) -> usize {
        self.block_size - 1
    }

    /// Settles everything that the graph needs.
    pub(crate) fn settle(
        file: &DraftFile,
        target: &ModelConfig,
        options: &DraftOptions,
    ) -> Result<Self, ModelError> {
        let said = file.read()?;
        let (layers, vocab) = (target.num_layers, target.vocab_size);
        let e = target.hidden_size;
        let hidden_size =
            (said.hidden_size).checked(format!("{e}, as the target's"), |&v| v == e)?;
        let of_target = |said: Option<Said<usize>>, what: usize| match said {
            Some(said) => said
                .checked(format!("{what}, as the target's"), |&v| v == what)
                .map(drop),
            None => Ok(()),
        };
        of_target(said.num_target_layers, layers)?;
        of_target(said.target_hidden_size, e)?;
        of_target(said.vocab_size, vocab)?;
        let num_layers = size(said.num_layers, MAX_LAYERS)?;
        let num_heads = size(said.num_heads, MAX_SIZE)?;
        let expected = format!("a divisor of {num_heads} heads");
        let num_kv_heads =
            (said.num_kv_heads).checked(expected, |&v| v > 0 && num_heads.is_multiple_of(v))?;
        let head_dim = said
            .head_dim
            .checked("a multiple of 16 up to 65536", |&v| {
                v > 0 && v <= MAX_SIZE && v.is_multiple_of(16)
            })?;
        let block_size = (said.block_size).checked(format!("2 to {MAX_BLOCK}"), |&v| {
            (2..=MAX_BLOCK).contains(&v)
        })?;
        Ok(Self {
            dialect: file.dialect(),
            hidden_size,
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            feed_forward_size: size(said.feed_forward_size, MAX_FEED_FORWARD)?,
            norm_eps: (said.norm_eps)
                .checked("a number of at least 0", |v| v.is_finite() && *v >= 0.0)?,
            rope_theta: known(
                said.rope_theta,
                options.rope_theta,
                "the base of the rotation",
            )?
            .checked("a positive number", |v| v.is_finite() && *v > 0.0)?,
            block_size,
            mask_token_id: known(said.mask_token_id, options.mask_token_id, "a token id")?
                .checked(format!("an id below the vocabulary of {vocab}"), |&v| {
                    (v as usize) < vocab
                })?,
            capture_layers: capture_layers(file, &said.capture_layers, target)?,
            attention: attention::settle(said.attention, num_layers, options.sliding_window)?,
            context_length: said.context_length.unwrap_or(target.context_length),
            vocab_size: vocab,
        })
    }

    /// Inverse rotary frequencies \[D/2\].
    pub(crate) fn inverse_frequencies(&self) -> Vec<f32> {
        let dims = self.head_dim;
        (0..dims / 2)
            .map(|i| {
                let exponent = -2.0 * i as f64 / dims as f64;
                f64::from(self.rope_theta).powf(exponent) as f32
            })
            .collect()
    }
}

/// Larger than any head or number of heads.
const MAX_SIZE: usize = 1 << 16;
/// Larger than any inner size of a feed-forward.
const MAX_FEED_FORWARD: usize = 1 << 24;
/// Rows of a draft block; released drafts have 8 or 16.
const MAX_BLOCK: usize = 256;

fn size(said: Said<usize>, most: usize) -> Result<usize, ModelError> {
    said.checked(format!("1 to {most}"), |&v| (1..=most).contains(&v))
}

/// What was set, or else what was said.
fn known<T>(said: Said<Option<T>>, set: Option<T>, what: &str) -> Result<Said<T>, ModelError> {
    let Said { path, key, value } = said;
    match set.or(value) {
        Some(value) => Ok(Said { path, key, value }),
        None => Err(Said::new(&path, key, ()).refuse(what, "nothing")),
    }
}

fn capture_layers(
    file: &DraftFile,
    said: &Said<Option<Vec<usize>>>,
    target: &ModelConfig,
) -> Result<Vec<usize>, ModelError> {
    let layers = match &said.value {
        Some(layers) => layers.clone(),
        None => default_layers(features(file, target.hidden_size), target.num_layers),
    };
    if layers.is_empty() || layers.iter().any(|&layer| layer >= target.num_layers) {
        let expected = format!("layers of the target's {}", target.num_layers);
        return Err(said.refuse(expected, format!("{layers:?}")));
    }
    Ok(layers)
}

/// How many layers the projection of features is made for.
fn features(file: &DraftFile, hidden_size: usize) -> usize {
    let fc = file.tensors().tensor(file.dialect().fc());
    fc.map_or(0, |fc| fc.cols() / hidden_size)
}

/// The layers that training takes where nothing else is said: evenly from the second to the third but last.
fn default_layers(features: usize, num_layers: usize) -> Vec<usize> {
    match features {
        0 => Vec::new(),
        1 => vec![num_layers / 2],
        n => (0..n.min(num_layers + 1))
            .map(|i| {
                let span = num_layers.saturating_sub(4) as f64;
                (1.0 + i as f64 * span / (n - 1) as f64).round_ties_even() as usize
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_capture_layers_are_those_of_released_drafts() {
        assert_eq!(default_layers(5, 64), [1, 16, 31, 46, 61]);
        assert_eq!(default_layers(5, 36), [1, 9, 17, 25, 33]);
        assert_eq!(default_layers(5, 32), [1, 8, 15, 22, 29]);
        assert_eq!(default_layers(8, 32), [1, 5, 9, 13, 17, 21, 25, 29]);
        assert_eq!(default_layers(5, 40), [1, 10, 19, 28, 37]);
        assert_eq!(default_layers(1, 4), [2]);
    }
}
