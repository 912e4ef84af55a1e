//! A draft as its definition reads: f64, plain loops, the whole context computed anew each time.

#![allow(clippy::unwrap_used, dead_code)]

use std::collections::HashMap;
use std::path::Path;

use gguf::GgufFile;
use models::{DraftAttention, DraftConfig};
use safetensors::SafeTensors;

type Rows = Vec<Vec<f64>>;

/// Weights of a safetensors draft and its target's embedding, which is the head too.
pub struct NaiveDraft {
    weights: HashMap<String, Vec<f64>>,
    embedding: Rows,
    config: DraftConfig,
}

impl NaiveDraft {
    pub fn open(weights: &Path, target: &GgufFile, config: &DraftConfig) -> Self {
        let bytes = std::fs::read(weights).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let weights = tensors
            .tensors()
            .into_iter()
            .map(|(name, view)| {
                let (halves, _) = view.data().as_chunks();
                let wide = |half: &[u8; 2]| u32::from(u16::from_le_bytes(*half)) << 16;
                let values = halves.iter().map(|h| f64::from(f32::from_bits(wide(h))));
                (name, values.collect())
            })
            .collect();
        let table = target.tensor("token_embd.weight").unwrap();
        let mut row = vec![0.0; table.cols()];
        let embedding = table
            .data
            .chunks_exact(table.data.len() / table.rows())
            .map(|bytes| {
                tensor::decode_row(table.dtype, bytes, &mut row).unwrap();
                row.iter().map(|v| f64::from(*v)).collect()
            })
            .collect();
        Self {
            weights,
            embedding,
            config: config.clone(),
        }
    }

    fn weight(&self, name: &str) -> &[f64] {
        &self.weights[&format!("{name}.weight")]
    }

    fn norm(&self, x: &[f64], name: &str) -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let inverse = 1.0 / (mean + f64::from(self.config.norm_eps)).sqrt();
        let gamma = self.weight(name);
        x.iter().zip(gamma).map(|(x, g)| x * inverse * g).collect()
    }

    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let rows = self.weight(name).chunks_exact(x.len());
        rows.map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum())
            .collect()
    }

    /// Heads of a projection, normalised and turned to their position.
    fn heads(&self, x: &[f64], layer: &str, part: &str, position: usize) -> Rows {
        let d = self.config.head_dim;
        let all = self.product(&format!("{layer}.self_attn.{part}_proj"), x);
        all.chunks_exact(d)
            .map(|head| {
                let head = self.norm(head, &format!("{layer}.self_attn.{part}_norm"));
                let mut turned = head.clone();
                for i in 0..d / 2 {
                    let base = f64::from(self.config.rope_theta);
                    let angle = position as f64 * base.powf(-2.0 * i as f64 / d as f64);
                    let (sin, cos) = angle.sin_cos();
                    turned[i] = head[i] * cos - head[i + d / 2] * sin;
                    turned[i + d / 2] = head[i + d / 2] * cos + head[i] * sin;
                }
                turned
            })
            .collect()
    }

    /// Logits [B - 1, V] of a draft block after `features` (rows from `first_position` on).
    pub fn logits(&self, features: &[Vec<f32>], first_position: usize, anchor: u32) -> Rows {
        let config = &self.config;
        let context: Rows = features
            .iter()
            .map(|f| {
                let f: Vec<f64> = f.iter().map(|v| f64::from(*v)).collect();
                self.norm(&self.product("fc", &f), "hidden_norm")
            })
            .collect();
        let mut tokens = vec![config.mask_token_id; config.block_size];
        tokens[0] = anchor;
        let mut x: Rows = tokens
            .iter()
            .map(|&token| self.embedding[token as usize].clone())
            .collect();
        for (number, attention) in config.attention.iter().enumerate() {
            let layer = format!("layers.{number}");
            let normed: Rows = x
                .iter()
                .map(|x| self.norm(x, &format!("{layer}.input_layernorm")))
                .collect();
            let rows: Vec<&Vec<f64>> = context.iter().chain(&normed).collect();
            let keys: Vec<Rows> = rows
                .iter()
                .enumerate()
                .map(|(i, row)| self.heads(row, &layer, "k", first_position + i))
                .collect();
            let values: Rows = rows
                .iter()
                .map(|row| self.product(&format!("{layer}.self_attn.v_proj"), row))
                .collect();
            for (j, x) in x.iter_mut().enumerate() {
                let at = context.len() + j;
                let q = self.heads(&normed[j], &layer, "q", first_position + at);
                let seen: Vec<usize> = (0..rows.len())
                    .filter(|&key| sees(*attention, at, key))
                    .collect();
                let mixed = self.attend(&q, &keys, &values, &seen);
                add(
                    x,
                    &self.product(&format!("{layer}.self_attn.o_proj"), &mixed),
                );
                let h = self.norm(x, &format!("{layer}.post_attention_layernorm"));
                let gate = self.product(&format!("{layer}.mlp.gate_proj"), &h);
                let up = self.product(&format!("{layer}.mlp.up_proj"), &h);
                let inner: Vec<f64> = gate
                    .iter()
                    .zip(&up)
                    .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
                    .collect();
                add(x, &self.product(&format!("{layer}.mlp.down_proj"), &inner));
            }
        }
        x[1..]
            .iter()
            .map(|x| {
                let x = self.norm(x, "norm");
                let dot = |row: &Vec<f64>| row.iter().zip(&x).map(|(w, x)| w * x).sum();
                self.embedding.iter().map(dot).collect()
            })
            .collect()
    }

    fn attend(&self, q: &Rows, keys: &[Rows], values: &Rows, seen: &[usize]) -> Vec<f64> {
        let (d, group) = (
            self.config.head_dim,
            self.config.num_heads / self.config.num_kv_heads,
        );
        let mut out = Vec::new();
        for (h, q) in q.iter().enumerate() {
            let kv = h / group;
            let weights: Vec<f64> = seen
                .iter()
                .map(|&key| {
                    let dot: f64 = q.iter().zip(&keys[key][kv]).map(|(q, k)| q * k).sum();
                    (dot / (d as f64).sqrt()).exp()
                })
                .collect();
            let total: f64 = weights.iter().sum();
            for i in 0..d {
                let mixed = seen.iter().zip(&weights);
                out.push(
                    mixed
                        .map(|(&key, w)| w / total * values[key][kv * d + i])
                        .sum(),
                );
            }
        }
        out
    }
}

fn add(x: &mut [f64], more: &[f64]) {
    x.iter_mut().zip(more).for_each(|(x, y)| *x += y);
}

/// The rules of the published code, row by row.
fn sees(attention: DraftAttention, row: usize, key: usize) -> bool {
    match attention {
        DraftAttention::Full => true,
        DraftAttention::Causal => key <= row,
        DraftAttention::Sliding { window, causal } => {
            row.abs_diff(key) < window && (key <= row || !causal)
        }
    }
}
