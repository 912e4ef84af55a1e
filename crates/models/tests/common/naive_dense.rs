//! Importance of a prompt's tokens as its definition reads: a dense model in f32 and plain loops, with nothing fused, cut in
//! pieces or left out.

#![allow(clippy::unwrap_used, dead_code)]

use gguf::GgufFile;
use tensor::decode_row;

/// Values of all tokens: \[dims, S\], so that inner loops go over tokens.
type Columns = Vec<Vec<f32>>;

pub struct NaiveDense {
    file: GgufFile,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    eps: f32,
    base: f32,
}

impl NaiveDense {
    pub fn new(file: GgufFile) -> Self {
        let key = |name: &str| {
            file.metadata()
                .required_u32(&format!("qwen3.{name}"))
                .unwrap() as usize
        };
        let number = |name: &str| {
            file.metadata()
                .required_f32(&format!("qwen3.{name}"))
                .unwrap()
        };
        Self {
            layers: key("block_count"),
            heads: key("attention.head_count"),
            kv_heads: key("attention.head_count_kv"),
            eps: number("attention.layer_norm_rms_epsilon"),
            base: number("rope.freq_base"),
            file,
        }
    }

    /// Rows of a tensor.
    fn rows(&self, name: &str) -> Vec<Vec<f32>> {
        let view = self.file.tensor(name).unwrap();
        let len = view.dims[0] as usize;
        let count: usize = view.dims.iter().map(|dim| *dim as usize).product();
        let mut values = vec![0.0; count];
        decode_row(view.dtype, view.data, &mut values).unwrap();
        values.chunks(len).map(<[f32]>::to_vec).collect()
    }

    fn of_layer(&self, layer: usize, name: &str) -> Vec<Vec<f32>> {
        self.rows(&format!("blk.{layer}.{name}.weight"))
    }

    /// Normed over the dims of each token.
    fn normed(&self, x: &[Vec<f32>], gamma: &[f32]) -> Columns {
        let tokens = x[0].len();
        let mut squares = vec![0.0; tokens];
        for column in x {
            squares
                .iter_mut()
                .zip(column)
                .for_each(|(sum, x)| *sum += x * x);
        }
        let scale = |square: &f32| 1.0 / (square / x.len() as f32 + self.eps).sqrt();
        let scales: Vec<f32> = squares.iter().map(scale).collect();
        let of = |(column, gamma): (&Vec<f32>, &f32)| {
            column
                .iter()
                .zip(&scales)
                .map(|(x, scale)| x * scale * gamma)
                .collect()
        };
        x.iter().zip(gamma).map(of).collect()
    }

    /// Normed heads of queries or keys, and the same rotated.
    fn heads(&self, x: &[Vec<f32>], count: usize, gamma: &[f32]) -> (Vec<Columns>, Vec<Columns>) {
        let dim = x.len() / count;
        let normed: Vec<Columns> = x.chunks(dim).map(|head| self.normed(head, gamma)).collect();
        let mut rotated = normed.clone();
        for head in &mut rotated {
            for i in 0..dim / 2 {
                let frequency = f64::from(self.base).powf(-2.0 * i as f64 / dim as f64);
                for token in 0..head[0].len() {
                    let (sin, cos) = (token as f64 * frequency).sin_cos();
                    let (u, w) = (
                        f64::from(head[i][token]),
                        f64::from(head[i + dim / 2][token]),
                    );
                    head[i][token] = (u * cos - w * sin) as f32;
                    head[i + dim / 2][token] = (w * cos + u * sin) as f32;
                }
            }
        }
        (normed, rotated)
    }

    /// Smoothed scores of all tokens by the last 8, from the last `scored` layers.
    pub fn scores(&self, tokens: &[u32], scored: usize, rotated: bool) -> Vec<f32> {
        let count = tokens.len();
        let embedding = self.rows("token_embd.weight");
        let dims = 0..embedding[0].len();
        let mut h: Columns = dims
            .map(|d| tokens.iter().map(|id| embedding[*id as usize][d]).collect())
            .collect();
        let mut most = vec![vec![0.0_f32; count]; 8];
        for layer in 0..self.layers {
            let weights = |name: &str| self.of_layer(layer, name);
            let x = self.normed(&h, &weights("attn_norm")[0]);
            let of = |name: &str| product(&weights(name), &x);
            let (plain_q, q) = self.heads(&of("attn_q"), self.heads, &weights("attn_q_norm")[0]);
            let (plain_k, k) = self.heads(&of("attn_k"), self.kv_heads, &weights("attn_k_norm")[0]);
            let v = of("attn_v");
            let dim = v.len() / self.kv_heads;
            let mut mixed: Columns = Vec::new();
            for head in 0..self.heads {
                let kv_head = head * self.kv_heads / self.heads;
                if layer + scored >= self.layers {
                    for (t, most) in most.iter_mut().enumerate() {
                        let (q, k) = match rotated {
                            true => (&q[head], &k[kv_head]),
                            false => (&plain_q[head], &plain_k[kv_head]),
                        };
                        let weights = attention(q, k, count - 8 + t);
                        most.iter_mut()
                            .zip(weights)
                            .for_each(|(most, weight)| *most = most.max(weight));
                    }
                }
                let values: Vec<Vec<f32>> = (0..count)
                    .map(|token| (0..dim).map(|d| v[kv_head * dim + d][token]).collect())
                    .collect();
                let answer = |token: usize| {
                    let mut sum = vec![0.0; dim];
                    let weights = attention(&q[head], &k[kv_head], token);
                    for (weight, value) in weights.iter().zip(&values) {
                        let pairs = sum.iter_mut().zip(value);
                        pairs.for_each(|(sum, value)| *sum += weight * value);
                    }
                    sum
                };
                let answers: Vec<Vec<f32>> = (0..count).map(answer).collect();
                let column = |d: usize| answers.iter().map(|answer| answer[d]).collect();
                mixed.extend((0..dim).map(column));
            }
            add(&mut h, &product(&weights("attn_output"), &mixed));
            let x = self.normed(&h, &weights("ffn_norm")[0]);
            let mut inner = product(&weights("ffn_gate"), &x);
            for (gate, up) in inner.iter_mut().zip(product(&weights("ffn_up"), &x)) {
                gate.iter_mut()
                    .zip(up)
                    .for_each(|(gate, up)| *gate *= up / (1.0 + (-*gate).exp()));
            }
            add(&mut h, &product(&weights("ffn_down"), &inner));
        }
        let mean = |j: usize| most.iter().map(|row| row[j]).sum::<f32>() / 8.0;
        let scores: Vec<f32> = (0..count).map(mean).collect();
        let smooth = |j: usize| {
            let near = j.saturating_sub(6)..(j + 7).min(count);
            scores[near.clone()].iter().sum::<f32>() / near.len() as f32
        };
        (0..count).map(smooth).collect()
    }
}

/// `weights x`.
fn product(weights: &[Vec<f32>], x: &[Vec<f32>]) -> Columns {
    let of = |weights: &Vec<f32>| {
        let mut sum = vec![0.0; x[0].len()];
        for (weight, x) in weights.iter().zip(x) {
            sum.iter_mut()
                .zip(x)
                .for_each(|(sum, x)| *sum += weight * x);
        }
        sum
    };
    weights.iter().map(of).collect()
}

fn add(h: &mut Columns, x: &[Vec<f32>]) {
    for (h, x) in h.iter_mut().zip(x) {
        h.iter_mut().zip(x).for_each(|(h, x)| *h += x);
    }
}

/// What the query of `token` gives to each token up to it.
fn attention(q: &[Vec<f32>], k: &[Vec<f32>], token: usize) -> Vec<f32> {
    let scale = 1.0 / (q.len() as f32).sqrt();
    let mut weights = vec![0.0; token + 1];
    for (q, k) in q.iter().zip(k) {
        let q = q[token] * scale;
        weights.iter_mut().zip(k).for_each(|(sum, k)| *sum += q * k);
    }
    let most = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    weights
        .iter_mut()
        .for_each(|weight| *weight = (*weight - most).exp());
    let total: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= total);
    weights
}
