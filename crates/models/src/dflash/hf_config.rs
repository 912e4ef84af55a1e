//! What a draft's `config.json` says of it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::dflash::gguf_keys::MAX_LAYERS;
use crate::dflash::names::extra;
use crate::dflash::said::{AttentionStatement, Said, Statement};
use crate::error::ModelError;

/// A `config.json`.
#[derive(Debug)]
pub(crate) struct HfConfig {
    path: PathBuf,
    root: Value,
}

impl HfConfig {
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let text = std::fs::read(path).map_err(|source| ModelError::Read {
            path: path.to_owned(),
            source,
        })?;
        let root = serde_json::from_slice(&text).map_err(|source| ModelError::Json {
            path: path.to_owned(),
            source,
        })?;
        let path = path.to_owned();
        Ok(Self { path, root })
    }

    /// Whether it is about a draft at all: beside a GGUF file may lie the configuration of any model.
    pub(crate) fn is_of_a_draft(&self) -> bool {
        self.find("dflash_config").is_some()
    }

    /// The value under a dotted key; null is as good as nothing.
    fn find(&self, key: &str) -> Option<&Value> {
        key.split('.')
            .try_fold(&self.root, |value, part| value.get(part))
            .filter(|value| !value.is_null())
    }

    fn said<T>(&self, key: &str, value: T) -> Said<T> {
        Said::new(&self.path, key, value)
    }

    /// The value under the first of `keys` that is there, converted.
    fn get<T>(
        &self,
        keys: &[&str],
        expected: &str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<Said<Option<T>>, ModelError> {
        for key in keys {
            if let Some(value) = self.find(key) {
                return match convert(value) {
                    Some(converted) => Ok(self.said(key, Some(converted))),
                    None => Err(self.said(key, ()).refuse(expected, value)),
                };
            }
        }
        Ok(self.said(keys[0], None))
    }

    fn size(&self, keys: &[&str]) -> Result<Said<usize>, ModelError> {
        let said = self.optional_size(keys)?;
        match said.value {
            Some(value) => Ok(self.said(&said.key, value)),
            None => Err(said.refuse("an integer", "nothing")),
        }
    }

    fn optional_size(&self, keys: &[&str]) -> Result<Said<Option<usize>>, ModelError> {
        self.get(keys, "an integer", to_size)
    }

    fn if_there(&self, key: &str) -> Result<Option<Said<usize>>, ModelError> {
        let said = self.optional_size(&[key])?;
        Ok(said.value.map(|value| self.said(key, value)))
    }

    fn bool(&self, keys: &[&str]) -> Result<Option<bool>, ModelError> {
        Ok(self.get(keys, "true or false", Value::as_bool)?.value)
    }

    /// Reads everything; a file that lacks what shapes need is refused.
    pub(crate) fn read(&self) -> Result<Statement, ModelError> {
        self.refuse_extras()?;
        let hidden_size = self.size(&["hidden_size"])?;
        let num_heads = self.size(&["num_attention_heads"])?;
        let head_dim = match self.if_there("head_dim")? {
            Some(said) => said,
            None => {
                let dim = hidden_size.value.checked_div(num_heads.value).unwrap_or(0);
                self.said("head_dim", dim)
            }
        };
        let eps = self.get(&["rms_norm_eps"], "a number", to_f32)?;
        let Some(norm_eps) = eps.value else {
            return Err(eps.refuse("a number", "nothing"));
        };
        Ok(Statement {
            num_layers: self.size(&["num_hidden_layers"])?,
            num_kv_heads: self.size(&["num_key_value_heads"])?,
            feed_forward_size: self.size(&["intermediate_size"])?,
            norm_eps: self.said("rms_norm_eps", norm_eps),
            block_size: self.size(&["block_size", "dflash_config.block_size"])?,
            rope_theta: self.rope_theta()?,
            mask_token_id: self.mask_token()?,
            capture_layers: self.get(
                &["dflash_config.target_layer_ids", "target_layer_ids"],
                "a list of layers",
                |value| value.as_array()?.iter().map(to_size).collect(),
            )?,
            attention: self.attention()?,
            context_length: self.optional_size(&["max_position_embeddings"])?.value,
            vocab_size: self.if_there("vocab_size")?,
            num_target_layers: self.if_there("num_target_layers")?,
            target_hidden_size: self.if_there("dflash_config.target_hidden_size")?,
            hidden_size,
            num_heads,
            head_dim,
        })
    }

    pub(crate) fn rope_theta(&self) -> Result<Said<Option<f32>>, ModelError> {
        self.get(
            &["rope_theta", "rope_parameters.rope_theta"],
            "a number",
            to_f32,
        )
    }

    pub(crate) fn mask_token(&self) -> Result<Said<Option<u32>>, ModelError> {
        self.get(
            &["dflash_config.mask_token_id", "mask_token_id"],
            "a token id",
            |value| u32::try_from(value.as_u64()?).ok(),
        )
    }

    /// Windows and what is causal, where the file says something of either.
    pub(crate) fn attention(&self) -> Result<Option<AttentionStatement>, ModelError> {
        let window = self.optional_size(&["dflash_config.swa_window_size", "sliding_window"])?;
        let causal = self.bool(&["is_causal", "dflash_config.causal"])?;
        let types = self.get(
            &["layer_types"],
            "a list of full_attention and sliding_attention",
            |value| {
                let kinds = value.as_array()?.iter().map(|kind| match kind.as_str()? {
                    "full_attention" => Some(false),
                    "sliding_attention" => Some(true),
                    _ => None,
                });
                kinds.collect::<Option<Vec<bool>>>()
            },
        )?;
        let num_layers = || -> Result<usize, ModelError> {
            Ok(self.size(&["num_hidden_layers"])?.value.min(MAX_LAYERS))
        };
        let all_sliding = self.bool(&["dflash_config.use_swa"])? == Some(true);
        let (sliding, causal) = match types.value {
            Some(sliding) => (sliding, causal),
            // Such layers look both ways unless something says otherwise.
            None if all_sliding => (vec![true; num_layers()?], Some(causal.unwrap_or(false))),
            None if self.bool(&["use_sliding_window"])? == Some(true) => {
                return Err(types.refuse("which layers have the window", "nothing"));
            }
            None if causal.is_none() => return Ok(None),
            None => (vec![false; num_layers()?], causal),
        };
        Ok(Some(AttentionStatement {
            sliding: self.said("layer_types", sliding),
            window,
            causal,
        }))
    }

    /// Settings under which the graph would compute something else.
    fn refuse_extras(&self) -> Result<(), ModelError> {
        let keys = [
            &self.root,
            self.find("dflash_config").unwrap_or(&Value::Null),
        ];
        for key in keys
            .into_iter()
            .filter_map(Value::as_object)
            .flat_map(|object| object.keys())
        {
            if let Some(what) = extra(key) {
                return Err(ModelError::DraftExtra {
                    path: self.path.clone(),
                    name: key.clone(),
                    what,
                });
            }
        }
        let plain: [(&str, &[&str]); 4] = [
            ("hidden_act", &["silu", "swish"]),
            ("rope_scaling.rope_type", &["default"]),
            ("rope_scaling.type", &["default"]),
            ("rope_parameters.rope_type", &["default"]),
        ];
        for (key, allowed) in plain {
            if let Some(value) = self.find(key)
                && !value.as_str().is_some_and(|text| allowed.contains(&text))
            {
                return Err(self.said(key, ()).refuse(allowed[0], value));
            }
        }
        match self.find("partial_rotary_factor") {
            Some(value) if value.as_f64() != Some(1.0) => {
                Err(self.said("partial_rotary_factor", ()).refuse("1", value))
            }
            _ => Ok(()),
        }
    }
}

fn to_size(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

fn to_f32(value: &Value) -> Option<f32> {
    Some(value.as_f64()? as f32)
}
