//! What tensors of a draft are called in each dialect.

/// Where a draft's file comes from: the same weights under four sets of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftDialect {
    /// GGUF of Lucebox: `dflash.fc.weight`.
    Lucebox,
    /// GGUF of `ik_llama` and others: `dflash_fc.weight`.
    Underscore,
    /// GGUF of llama.cpp: `fc.weight`, and capture ids one higher than elsewhere.
    LlamaCpp,
    /// The original safetensors of z-lab.
    HuggingFace,
}

/// A weight of a draft layer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    InputNorm,
    Q,
    K,
    V,
    Output,
    QNorm,
    KNorm,
    FfnNorm,
    Gate,
    Up,
    Down,
}

impl DraftDialect {
    /// Projection of captured features.
    pub(crate) fn fc(self) -> &'static str {
        match self {
            Self::Lucebox => "dflash.fc.weight",
            Self::Underscore => "dflash_fc.weight",
            Self::LlamaCpp | Self::HuggingFace => "fc.weight",
        }
    }

    /// Norm of projected features.
    pub(crate) fn hidden_norm(self) -> &'static str {
        match self {
            Self::Lucebox => "dflash.hidden_norm.weight",
            Self::Underscore => "dflash_hidden_norm.weight",
            Self::LlamaCpp => "enc.output_norm.weight",
            Self::HuggingFace => "hidden_norm.weight",
        }
    }

    /// Norm before the head.
    pub(crate) fn output_norm(self) -> &'static str {
        match self {
            Self::HuggingFace => "norm.weight",
            _ => "output_norm.weight",
        }
    }

    /// A weight of layer `layer`.
    pub(crate) fn layer(self, layer: usize, part: Part) -> String {
        let (gguf, hugging_face) = match part {
            Part::InputNorm => ("attn_norm", "input_layernorm"),
            Part::Q => ("attn_q", "self_attn.q_proj"),
            Part::K => ("attn_k", "self_attn.k_proj"),
            Part::V => ("attn_v", "self_attn.v_proj"),
            Part::Output => ("attn_output", "self_attn.o_proj"),
            Part::QNorm => ("attn_q_norm", "self_attn.q_norm"),
            Part::KNorm => ("attn_k_norm", "self_attn.k_norm"),
            Part::FfnNorm if self == Self::Underscore => ("post_attention_norm", ""),
            Part::FfnNorm => ("ffn_norm", "post_attention_layernorm"),
            Part::Gate => ("ffn_gate", "mlp.gate_proj"),
            Part::Up => ("ffn_up", "mlp.up_proj"),
            Part::Down => ("ffn_down", "mlp.down_proj"),
        };
        match self {
            Self::HuggingFace => format!("layers.{layer}.{hugging_face}.weight"),
            _ => format!("blk.{layer}.{gguf}.weight"),
        }
    }
}

/// Names, or parts of them, of what other drafters have and this graph does not compute. Leaving such a tensor out would
/// go unseen but for an acceptance of under two tokens.
const EXTRAS: &[(&str, &str)] = &[
    ("domino", "Domino's recurrent head"),
    ("dspark", "DSpark's Markov head"),
    ("markov_w", "DSpark's Markov head"),
    ("selector", "DFlash2's selector head"),
    ("_conv_base", "DFlash2's dynamic convolution"),
    ("_conv_proj", "DFlash2's dynamic convolution"),
    ("d2t", "a reduced draft vocabulary"),
    ("t2d", "a reduced draft vocabulary"),
    ("draft_vocab_size", "a reduced draft vocabulary"),
    ("sinks", "attention sinks"),
    ("attn_gate", "gated draft attention (Laguna)"),
    ("aux_hidden_norm", "norms of single features"),
];

/// What a tensor or key of that name belongs to, where it is something known that the graph lacks.
pub(crate) fn extra(name: &str) -> Option<&'static str> {
    EXTRAS
        .iter()
        .find(|(part, _)| name.contains(part))
        .map(|(_, what)| *what)
}
