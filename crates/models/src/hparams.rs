//! Sizes and constants of a model, all read from its file.

use gguf::GgufFile;
use kernels::DeltaNetShape;

use crate::error::ModelError;

/// Model families that there are graphs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Qwen3.5 / 3.6 hybrid of gated attention and gated DeltaNet.
    Qwen35,
    /// Qwen3 dense.
    Qwen3,
    /// Llama dense.
    Llama,
}

impl Architecture {
    /// Every name in files, for messages.
    pub(crate) const NAMES: &str = "qwen35, qwen3, llama";

    /// Name in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Qwen35 => "qwen35",
            Self::Qwen3 => "qwen3",
            Self::Llama => "llama",
        }
    }

    fn of(file: &GgufFile) -> Result<Self, ModelError> {
        match file.architecture()? {
            "qwen35" => Ok(Self::Qwen35),
            "qwen3" => Ok(Self::Qwen3),
            "llama" => Ok(Self::Llama),
            other => Err(ModelError::UnknownArchitecture {
                path: file.path().to_owned(),
                expected: Self::NAMES,
                got: other.to_owned(),
            }),
        }
    }
}

/// How a layer mixes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Softmax attention.
    Attention {
        /// Hkv.
        num_kv_heads: usize,
    },
    /// Gated DeltaNet.
    DeltaNet(DeltaNetShape),
}

/// Sizes and constants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family.
    pub architecture: Architecture,
    /// E.
    pub hidden_size: usize,
    /// V.
    pub vocab_size: usize,
    /// L, without appended prediction blocks.
    pub num_layers: usize,
    /// Longest sequence that the model was made for.
    pub context_length: usize,
    /// F.
    pub feed_forward_size: usize,
    /// H.
    pub num_heads: usize,
    /// D.
    pub head_dim: usize,
    /// Leading dims of a head that turn.
    pub rope_dims: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Divides every rotary frequency (linear scaling); 1 without scaling.
    pub rope_factor: f32,
    /// Added to the mean square in every norm.
    pub norm_eps: f32,
    /// Kind of each layer.
    pub layers: Vec<LayerKind>,
    /// Blocks of the file after the trunk, which the graph ignores.
    pub num_prediction_blocks: usize,
}

/// Keys under the architecture's prefix, with errors that name file and key.
struct Keys<'a> {
    file: &'a GgufFile,
    prefix: &'static str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    fn bad(&self, name: &str, expected: impl Into<String>, got: impl ToString) -> ModelError {
        ModelError::Key {
            path: self.file.path().to_owned(),
            key: self.key(name),
            expected: expected.into(),
            got: got.to_string(),
        }
    }

    fn optional(&self, name: &str) -> Result<Option<usize>, ModelError> {
        Ok(self
            .file
            .metadata()
            .u32(&self.key(name))?
            .map(|value| value as usize))
    }

    /// A required size of at least 1.
    fn size(&self, name: &str) -> Result<usize, ModelError> {
        let value = self.file.metadata().required_u32(&self.key(name))? as usize;
        if value == 0 {
            Err(self.bad(name, "at least 1", 0))
        } else {
            Ok(value)
        }
    }

    fn size_or(&self, name: &str, default: usize) -> Result<usize, ModelError> {
        match self.optional(name)? {
            Some(0) => Err(self.bad(name, "at least 1", 0)),
            value => Ok(value.unwrap_or(default)),
        }
    }

    fn positive(&self, name: &str, default: f32) -> Result<f32, ModelError> {
        let value = self
            .file
            .metadata()
            .f32(&self.key(name))?
            .unwrap_or(default);
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(self.bad(name, "a positive number", value))
        }
    }
}

impl ModelConfig {
    /// Reads everything that the graph of the file's architecture needs.
    ///
    /// # Errors
    /// An architecture that there is no graph for; a key that is missing or has a value that cannot be.
    pub fn read(file: &GgufFile) -> Result<Self, ModelError> {
        let architecture = Architecture::of(file)?;
        let keys = Keys {
            file,
            prefix: architecture.name(),
        };
        let blocks = keys.size("block_count")?;
        let num_prediction_blocks = keys.optional("nextn_predict_layers")?.unwrap_or(0);
        if num_prediction_blocks >= blocks {
            return Err(keys.bad(
                "nextn_predict_layers",
                format!("less than {blocks} blocks"),
                num_prediction_blocks,
            ));
        }
        let num_layers = blocks - num_prediction_blocks;
        let hidden_size = keys.size("embedding_length")?;
        let num_heads = keys.size("attention.head_count")?;
        let head_dim = keys.size_or("attention.key_length", hidden_size / num_heads)?;
        let value_dim = keys.size_or("attention.value_length", head_dim)?;
        if value_dim != head_dim {
            return Err(keys.bad(
                "attention.value_length",
                format!("the key length {head_dim}"),
                value_dim,
            ));
        }
        let rope_dims = keys.size_or("rope.dimension_count", head_dim)?;
        if !rope_dims.is_multiple_of(2) || rope_dims > head_dim {
            return Err(keys.bad(
                "rope.dimension_count",
                format!("an even size up to {head_dim}"),
                rope_dims,
            ));
        }
        let eps = "attention.layer_norm_rms_epsilon";
        let norm_eps = file.metadata().required_f32(&keys.key(eps))?;
        if !(norm_eps.is_finite() && norm_eps >= 0.0) {
            return Err(keys.bad(eps, "a number of at least 0", norm_eps));
        }
        let embedding = file.required_tensor("token_embd.weight")?;
        Ok(Self {
            architecture,
            hidden_size,
            vocab_size: embedding.rows(),
            num_layers,
            context_length: keys.size("context_length")?,
            feed_forward_size: keys.size("feed_forward_length")?,
            num_heads,
            head_dim,
            rope_dims,
            rope_base: keys.positive("rope.freq_base", 10_000.0)?,
            rope_factor: rope_factor(&keys)?,
            norm_eps,
            layers: layer_kinds(&keys, architecture, blocks, num_layers, num_heads)?,
            num_prediction_blocks,
        })
    }

    /// Inverse rotary frequencies \[rd/2\]; `divisors` (all 1 where absent) slow single pairs down.
    pub(crate) fn inverse_frequencies(&self, divisors: Option<&[f32]>) -> Vec<f32> {
        let dims = self.rope_dims;
        (0..dims / 2)
            .map(|i| {
                let exponent = -2.0 * i as f64 / dims as f64;
                let divisor = divisors
                    .and_then(|d| d.get(i))
                    .map_or(1.0, |&d| f64::from(d));
                (f64::from(self.rope_base).powf(exponent) / f64::from(self.rope_factor) / divisor)
                    as f32
            })
            .collect()
    }
}

fn rope_factor(keys: &Keys<'_>) -> Result<f32, ModelError> {
    match keys.file.metadata().str(&keys.key("rope.scaling.type"))? {
        None | Some("none") => Ok(1.0),
        Some("linear") => keys.positive("rope.scaling.factor", 1.0),
        Some(other) => Err(keys.bad("rope.scaling.type", "none or linear", other)),
    }
}

fn layer_kinds(
    keys: &Keys<'_>,
    architecture: Architecture,
    blocks: usize,
    num_layers: usize,
    num_heads: usize,
) -> Result<Vec<LayerKind>, ModelError> {
    let name = "attention.head_count_kv";
    let metadata = keys.file.metadata();
    let num_kv_heads = match metadata.u32_per_layer(&keys.key(name), blocks)? {
        Some(counts) => counts,
        None => vec![metadata.required_u32(&keys.key("attention.head_count"))?; blocks],
    };
    let recurrent = match architecture {
        Architecture::Qwen35 => recurrent_layers(keys, blocks)?,
        Architecture::Qwen3 | Architecture::Llama => vec![false; blocks],
    };
    let delta_net = if architecture == Architecture::Qwen35 {
        Some(delta_net_shape(keys)?)
    } else {
        None
    };
    let mut kinds = Vec::with_capacity(num_layers);
    for (heads, recurrent) in num_kv_heads.into_iter().zip(recurrent).take(num_layers) {
        kinds.push(match delta_net {
            Some(shape) if recurrent => LayerKind::DeltaNet(shape),
            _ if heads == 0 || !num_heads.is_multiple_of(heads as usize) => {
                return Err(keys.bad(name, format!("a divisor of {num_heads} heads"), heads));
            }
            _ => LayerKind::Attention {
                num_kv_heads: heads as usize,
            },
        });
    }
    Ok(kinds)
}

fn recurrent_layers(keys: &Keys<'_>, blocks: usize) -> Result<Vec<bool>, ModelError> {
    let name = "attention.recurrent_layers";
    if let Some(flags) = keys.file.metadata().bool_array(&keys.key(name))? {
        if flags.len() != blocks {
            return Err(keys.bad(name, format!("{blocks} entries"), flags.len()));
        }
        return Ok(flags);
    }
    let interval = keys.size_or("full_attention_interval", 4)?;
    Ok((0..blocks)
        .map(|layer| !(layer + 1).is_multiple_of(interval))
        .collect())
}

fn delta_net_shape(keys: &Keys<'_>) -> Result<DeltaNetShape, ModelError> {
    let num_k_heads = keys.size("ssm.group_count")?;
    let num_v_heads = keys.size("ssm.time_step_rank")?;
    let k_dim = keys.size("ssm.state_size")?;
    let inner = keys.size("ssm.inner_size")?;
    let conv_taps = keys.size("ssm.conv_kernel")?;
    if !num_v_heads.is_multiple_of(num_k_heads) {
        return Err(keys.bad(
            "ssm.time_step_rank",
            format!("a multiple of {num_k_heads} groups"),
            num_v_heads,
        ));
    }
    if !inner.is_multiple_of(num_v_heads) {
        return Err(keys.bad(
            "ssm.inner_size",
            format!("a multiple of {num_v_heads} value heads"),
            inner,
        ));
    }
    if conv_taps < 2 {
        return Err(keys.bad("ssm.conv_kernel", "at least 2", conv_taps));
    }
    Ok(DeltaNetShape {
        num_k_heads,
        num_v_heads,
        k_dim,
        v_dim: inner / num_v_heads,
        conv_taps,
    })
}
