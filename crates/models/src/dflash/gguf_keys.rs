//! What a draft's GGUF file says of it, in each of three dialects.

use gguf::{GgufError, GgufFile, Metadata};

use crate::dflash::names::{DraftDialect, extra};
use crate::dflash::said::{AttentionStatement, Said, Statement};
use crate::error::ModelError;

/// Architectures of draft files.
const NAMES: &str = "dflash, dflash-draft, qwen35-dflash-draft, gemma4-dflash-draft";

/// Which dialect a file is written in.
pub(crate) fn dialect(file: &GgufFile) -> Result<DraftDialect, ModelError> {
    match file.architecture()? {
        "dflash" => Ok(DraftDialect::LlamaCpp),
        "dflash-draft" if file.tensor(DraftDialect::Underscore.fc()).is_some() => {
            Ok(DraftDialect::Underscore)
        }
        "dflash-draft" | "qwen35-dflash-draft" | "gemma4-dflash-draft" => Ok(DraftDialect::Lucebox),
        other => Err(ModelError::UnknownArchitecture {
            path: file.path().to_owned(),
            expected: NAMES,
            got: other.to_owned(),
        }),
    }
}

/// Keys under the file's prefix.
struct Keys<'a> {
    file: &'a GgufFile,
    metadata: &'a Metadata,
    prefix: &'a str,
}

impl Keys<'_> {
    fn said<T>(
        &self,
        name: &str,
        get: impl FnOnce(&str) -> Result<T, GgufError>,
    ) -> Result<Said<T>, ModelError> {
        let key = format!("{}.{name}", self.prefix);
        let value = get(&key)?;
        Ok(Said::new(self.file.path(), key, value))
    }

    fn size(&self, name: &str) -> Result<Said<usize>, ModelError> {
        self.said(name, |key| Ok(self.metadata.required_u32(key)? as usize))
    }

    fn optional(&self, name: &str) -> Result<Said<Option<usize>>, ModelError> {
        self.said(name, |key| Ok(self.metadata.u32(key)?.map(|v| v as usize)))
    }

    fn if_there(&self, name: &str) -> Result<Option<Said<usize>>, ModelError> {
        let Said { path, key, value } = self.optional(name)?;
        Ok(value.map(|value| Said { path, key, value }))
    }
}

/// Reads the file's keys.
pub(crate) fn read(file: &GgufFile, dialect: DraftDialect) -> Result<Statement, ModelError> {
    let metadata = file.metadata();
    if let Some((name, what)) = metadata
        .iter()
        .filter(|(key, _)| !key.starts_with("tokenizer.") && !key.starts_with("general."))
        .find_map(|(key, _)| Some((key, extra(key)?)))
    {
        return Err(ModelError::DraftExtra {
            path: file.path().to_owned(),
            name: name.to_owned(),
            what,
        });
    }
    let keys = Keys {
        file,
        metadata,
        prefix: file.architecture()?,
    };
    let own = |name: &str| match dialect {
        DraftDialect::LlamaCpp => name.to_owned(),
        _ => format!("dflash.{name}"),
    };
    let hidden_size = keys.size("embedding_length")?;
    let num_heads = keys.size("attention.head_count")?;
    let head_dim = match keys.if_there("attention.key_length")? {
        Some(said) => said,
        None => {
            let dim = hidden_size.value.checked_div(num_heads.value).unwrap_or(0);
            Said::new(file.path(), num_heads.key.clone(), dim)
        }
    };
    for name in ["attention.value_length", "rope.dimension_count"] {
        if let Some(said) = keys.if_there(name)? {
            let expected = format!("the key length {}", head_dim.value);
            said.checked(expected, |&value| value == head_dim.value)?;
        }
    }
    let scaling = keys.said("rope.scaling.type", |key| {
        Ok(metadata.str(key)?.unwrap_or("none").to_owned())
    })?;
    scaling.checked("none", |scaling| scaling == "none")?;
    Ok(Statement {
        num_layers: keys.size("block_count")?,
        num_kv_heads: keys.size("attention.head_count_kv")?,
        feed_forward_size: keys.size("feed_forward_length")?,
        norm_eps: keys.said("attention.layer_norm_rms_epsilon", |key| {
            metadata.required_f32(key)
        })?,
        block_size: keys.size(&own("block_size"))?,
        rope_theta: keys.said("rope.freq_base", |key| metadata.f32(key))?,
        mask_token_id: mask_token(&keys, dialect)?,
        capture_layers: capture_layers(&keys, dialect)?,
        attention: attention(&keys)?,
        context_length: keys.optional("context_length")?.value,
        vocab_size: keys.if_there("vocab_size")?,
        num_target_layers: None,
        target_hidden_size: keys.if_there(&own("target_hidden_size"))?,
        hidden_size,
        num_heads,
        head_dim,
    })
}

fn mask_token(keys: &Keys<'_>, dialect: DraftDialect) -> Result<Said<Option<u32>>, ModelError> {
    match dialect {
        DraftDialect::LlamaCpp => {
            let key = "tokenizer.ggml.mask_token_id";
            Ok(Said::new(keys.file.path(), key, keys.metadata.u32(key)?))
        }
        _ => keys.said("dflash.mask_token_id", |key| keys.metadata.u32(key)),
    }
}

/// Layers whose outputs are captured. llama.cpp counts inputs instead, each id one higher.
fn capture_layers(
    keys: &Keys<'_>,
    dialect: DraftDialect,
) -> Result<Said<Option<Vec<usize>>>, ModelError> {
    let (name, shift) = match dialect {
        DraftDialect::LlamaCpp => ("target_layers", 1),
        _ => ("dflash.target_layer_ids", 0),
    };
    let ids = keys.said(name, |key| keys.metadata.u32_array(key))?;
    let Some(values) = &ids.value else {
        return Ok(Said::new(&ids.path, ids.key, None));
    };
    let layers: Option<Vec<usize>> = values
        .iter()
        .map(|&id| (id as usize).checked_sub(shift))
        .collect();
    let Some(layers) = layers else {
        return Err(ids.refuse("ids from 1 on", format!("{values:?}")));
    };
    if let Some(count) = keys.if_there("dflash.n_target_layers")? {
        count.checked(format!("the {} capture ids", layers.len()), |&count| {
            count == layers.len()
        })?;
    }
    Ok(Said::new(&ids.path, ids.key, Some(layers)))
}

fn attention(keys: &Keys<'_>) -> Result<Option<AttentionStatement>, ModelError> {
    let window = keys.optional("attention.sliding_window")?;
    let pattern = keys.said("attention.sliding_window_pattern", |key| {
        keys.metadata.bool_array(key)
    })?;
    let causal = keys
        .said("attention.causal", |key| keys.metadata.bool(key))?
        .value;
    let sliding = match pattern.value {
        Some(sliding) => sliding,
        None if window.value.is_some() => {
            return Err(pattern.refuse("which layers have the window", "nothing"));
        }
        None if causal.is_none() => return Ok(None),
        None => vec![false; keys.size("block_count")?.value.min(MAX_LAYERS)],
    };
    Ok(Some(AttentionStatement {
        sliding: Said::new(&pattern.path, pattern.key, sliding),
        window,
        causal,
    }))
}

/// More than any draft has; bounds what a damaged count can ask for.
pub(crate) const MAX_LAYERS: usize = 1024;
