//! What a file says, and where: so that an error about a value names its key and its file.

use std::path::{Path, PathBuf};

use crate::error::ModelError;

/// A value under a key of a file.
#[derive(Clone, Debug)]
pub(crate) struct Said<T> {
    pub path: PathBuf,
    pub key: String,
    pub value: T,
}

impl<T> Said<T> {
    pub(crate) fn new(path: &Path, key: impl Into<String>, value: T) -> Self {
        Self {
            path: path.to_owned(),
            key: key.into(),
            value,
        }
    }

    /// The error that this value is not what was expected.
    pub(crate) fn refuse(&self, expected: impl Into<String>, got: impl ToString) -> ModelError {
        ModelError::Key {
            path: self.path.clone(),
            key: self.key.clone(),
            expected: expected.into(),
            got: got.to_string(),
        }
    }

    /// The value, where `holds`.
    pub(crate) fn checked(
        self,
        expected: impl Into<String>,
        holds: impl FnOnce(&T) -> bool,
    ) -> Result<T, ModelError>
    where
        T: ToString,
    {
        if holds(&self.value) {
            Ok(self.value)
        } else {
            Err(self.refuse(expected, self.value.to_string()))
        }
    }
}

/// Everything that a draft's file says of it, before any of it is believed.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub hidden_size: Said<usize>,
    pub num_layers: Said<usize>,
    pub num_heads: Said<usize>,
    pub num_kv_heads: Said<usize>,
    pub head_dim: Said<usize>,
    pub feed_forward_size: Said<usize>,
    pub norm_eps: Said<f32>,
    pub block_size: Said<usize>,
    pub rope_theta: Said<Option<f32>>,
    pub mask_token_id: Said<Option<u32>>,
    /// 0-based, output of the layer.
    pub capture_layers: Said<Option<Vec<usize>>>,
    pub attention: Option<AttentionStatement>,
    pub context_length: Option<usize>,
    pub vocab_size: Option<Said<usize>>,
    pub num_target_layers: Option<Said<usize>>,
    pub target_hidden_size: Option<Said<usize>>,
}

/// Which layers have windows, and what they see.
#[derive(Clone, Debug)]
pub(crate) struct AttentionStatement {
    /// Per layer.
    pub sliding: Said<Vec<bool>>,
    pub window: Said<Option<usize>>,
    /// For all layers; otherwise layers with windows are causal and the others are not.
    pub causal: Option<bool>,
}
