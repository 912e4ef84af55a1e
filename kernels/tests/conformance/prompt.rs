//! What scores a prompt: attention to some key blocks, and what the last rows attend to.

use kernels::{
    AttentionArgs, Buffer, Device, HeadNorm, KEY_BLOCK_TOKENS, KvLayer, KvType, PAGE_TOKENS,
    RopeArgs, RopeStyle, Segment, SparseAttentionArgs, TailProductsArgs, TailWeightsArgs,
    Visibility, mean_pages,
};

use crate::attention::chain;
use crate::data::{Noise, SameBits, devices, download, relative_error, upload, zeros};
use crate::reference::dot;

/// Sums of some hundred terms in f32.
const TOLERANCE: f64 = 3e-6;
/// Matrix units get queries and weights as f16, 2^-11 off each.
const UNITS_TOLERANCE: f64 = 1e-3;

/// Heads of a prompt, and its rows as they are projected.
struct Prompt {
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    inv_freq: Vec<f32>,
    q_gamma: Vec<f32>,
    k_gamma: Vec<f32>,
    /// \[N, heads, D\] each.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

const EPS: f32 = 1e-6;

impl Prompt {
    /// All queries ask for one thing. Of three key blocks the first is about it, the second about something else, and in the
    /// third every other key is the contrary of it, so that their mean says nothing.
    fn new((num_heads, num_kv_heads, head_dim): (usize, usize, usize), tokens: usize) -> Self {
        let mut noise = Noise(71);
        let ones = vec![1.0; head_dim];
        let topics = [noise.values(head_dim), noise.values(head_dim)];
        let mut about = |heads: usize, says: &dyn Fn(usize) -> (usize, f32)| {
            let mut rows = Vec::new();
            for token in (0..tokens * heads).map(|i| i / heads) {
                let (topic, sign) = says(token);
                let pairs = topics[topic].iter().zip(noise.values(head_dim));
                rows.extend(pairs.map(|(topic, own)| sign * topic + 0.3 * own));
            }
            rows
        };
        let says = |token: usize| match token / KEY_BLOCK_TOKENS % 3 {
            0 => (0, 1.0),
            1 => (1, 1.0),
            _ => (0, if token.is_multiple_of(2) { 1.0 } else { -1.0 }),
        };
        Self {
            q: about(num_heads, &|_| (0, 1.0)),
            k: about(num_kv_heads, &says),
            v: noise.values(tokens * num_kv_heads * head_dim),
            num_heads,
            num_kv_heads,
            head_dim,
            inv_freq: vec![1e-3, 1e-4],
            // Larger queries sharpen the softmax.
            q_gamma: ones.iter().map(|one| 1.5 * one).collect(),
            k_gamma: ones,
        }
    }

    fn tokens(&self) -> usize {
        self.q.len() / (self.num_heads * self.head_dim)
    }

    /// A head of a row, normed and rotated.
    fn head(&self, x: &[f32], gamma: &[f32], position: Option<usize>) -> Vec<f32> {
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let mut x = crate::reference::rms_norm(&x, gamma, EPS);
        let half = self.inv_freq.len();
        for (i, f) in self.inv_freq.iter().enumerate() {
            let angle = position.unwrap_or(0) as f64 * f64::from(*f);
            let (u, w) = (x[i], x[i + half]);
            (x[i], x[i + half]) = (
                u * angle.cos() - w * angle.sin(),
                u * angle.sin() + w * angle.cos(),
            );
        }
        x.into_iter().map(|x| x as f32).collect()
    }

    fn queries(&self, head: usize, rotated: bool) -> Vec<Vec<f32>> {
        let rows = self.q.chunks_exact(self.num_heads * self.head_dim);
        let of = |(i, row): (usize, &[f32])| {
            let x = &row[head * self.head_dim..][..self.head_dim];
            self.head(x, &self.q_gamma, rotated.then_some(i))
        };
        rows.enumerate().map(of).collect()
    }

    fn keys(&self, head: usize, rotated: bool) -> Vec<Vec<f32>> {
        let at = head * self.num_kv_heads / self.num_heads * self.head_dim;
        let rows = self.k.chunks_exact(self.num_kv_heads * self.head_dim);
        let of = |(i, row): (usize, &[f32])| {
            self.head(
                &row[at..][..self.head_dim],
                &self.k_gamma,
                rotated.then_some(i),
            )
        };
        rows.enumerate().map(of).collect()
    }

    fn softmax(&self, q: &[f32], keys: &[Vec<f32>]) -> Vec<f64> {
        let scale = (self.head_dim as f64).sqrt();
        let scores: Vec<f64> = keys.iter().map(|k| dot(q, k) / scale).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        scores.iter().map(|s| (s - max).exp() / total).collect()
    }

    /// Key blocks that each query block of a head takes. None is near the threshold.
    fn taken(&self, head: usize, threshold: f64) -> Vec<Vec<usize>> {
        let mean = |rows: &[Vec<f32>]| -> Vec<f32> {
            let sum = |d: usize| rows.iter().map(|row| f64::from(row[d])).sum::<f64>();
            let mean = |d| (sum(d) / rows.len() as f64) as f32;
            (0..self.head_dim).map(mean).collect()
        };
        let means: Vec<Vec<f32>> = self
            .keys(head, true)
            .chunks(KEY_BLOCK_TOKENS)
            .map(mean)
            .collect();
        let queries = self.queries(head, true);
        let of = |(m, rows): (usize, &[Vec<f32>])| {
            let mut weights = vec![0.0; m + 1];
            for q in rows {
                let row = self.softmax(q, &means[..=m]);
                weights
                    .iter_mut()
                    .zip(row)
                    .for_each(|(sum, weight)| *sum += weight);
            }
            let least = threshold * weights.iter().copied().fold(0.0, f64::max);
            let is_taken = |n: &usize| {
                let is_near = (weights[*n] / least - 1.0).abs() < 0.1;
                assert!(
                    !is_near,
                    "key block {n} of {m} is too near the threshold for a test"
                );
                *n < 2 || m - n < 4 || m + 2 >= means.len() || weights[*n] > least
            };
            (0..=m).filter(is_taken).collect()
        };
        queries
            .chunks(KEY_BLOCK_TOKENS)
            .enumerate()
            .map(of)
            .collect()
    }

    /// Attention of all rows, \[N, H, D\], over key blocks that are taken.
    fn attended(&self, threshold: f64) -> Vec<f64> {
        let width = self.num_heads * self.head_dim;
        let mut out = vec![0.0; self.tokens() * width];
        for head in 0..self.num_heads {
            let (queries, keys) = (self.queries(head, true), self.keys(head, true));
            let taken = self.taken(head, threshold);
            let value = head * self.num_kv_heads / self.num_heads * self.head_dim;
            for (row, q) in queries.iter().enumerate() {
                let blocks = taken[row / KEY_BLOCK_TOKENS].iter();
                let places = blocks.flat_map(|n| n * KEY_BLOCK_TOKENS..(n + 1) * KEY_BLOCK_TOKENS);
                let places: Vec<usize> = places.filter(|place| *place <= row).collect();
                let seen: Vec<Vec<f32>> = places.iter().map(|&place| keys[place].clone()).collect();
                for (place, weight) in places.iter().zip(self.softmax(q, &seen)) {
                    let v = &self.v[place * self.num_kv_heads * self.head_dim + value..];
                    for d in 0..self.head_dim {
                        out[row * width + head * self.head_dim + d] += weight * f64::from(v[d]);
                    }
                }
            }
        }
        out
    }

    /// What a device says, with rows in runs of `run`.
    fn run(&self, device: &dyn Device, kv_type: KvType, threshold: f32, run: usize) -> Vec<f32> {
        let tokens = self.tokens();
        let num_pages = tokens.div_ceil(PAGE_TOKENS);
        let kv = |pages: usize| {
            let len = pages * PAGE_TOKENS * self.num_kv_heads * self.head_dim;
            device.kv_zeros(len, kv_type).expect("memory")
        };
        let mut cache = KvLayer {
            k: kv(num_pages),
            v: kv(num_pages),
        };
        let mut means = kv(mean_pages(tokens));
        let pages: Vec<u32> = (0..num_pages as u32).rev().collect();
        let (q_gamma, k_gamma) = (upload(device, &self.q_gamma), upload(device, &self.k_gamma));
        let mut all = Vec::new();
        for first in (0..tokens).step_by(run) {
            let count = run.min(tokens - first);
            let rows = |x: &[f32], heads: usize| {
                let len = heads * self.head_dim;
                upload(device, &x[first * len..][..count * len])
            };
            let mut q = rows(&self.q, self.num_heads);
            let mut k = rows(&self.k, self.num_kv_heads);
            let v = rows(&self.v, self.num_kv_heads);
            let mut out = zeros(device, q.len());
            device.sparse_attention(SparseAttentionArgs {
                attention: AttentionArgs {
                    num_heads: self.num_heads,
                    num_kv_heads: self.num_kv_heads,
                    head_dim: self.head_dim,
                    q: &mut q,
                    gated: false,
                    k: &mut k,
                    v: &v,
                    head_norm: Some(head_norm(&q_gamma, &k_gamma)),
                    rope: self.rope(true),
                    cache: &mut cache,
                    segments: &[Segment {
                        first_row: 0,
                        parents: &chain(count),
                        committed_len: first,
                        first_position: 0,
                        pages: &pages,
                        state_index: 0,
                        advance: true,
                        window: None,
                    }],
                    visibility: Visibility::Ancestors,
                    window: None,
                    out: &mut out,
                },
                num_tokens: tokens,
                threshold,
                means: &mut means,
            });
            all.extend(download(device, &out));
        }
        device.finish().expect("no fault");
        all
    }

    fn rope(&self, rotated: bool) -> RopeArgs<'_> {
        RopeArgs {
            style: RopeStyle::Neox,
            inv_freq: if rotated { &self.inv_freq } else { &[] },
        }
    }

    /// What a device makes of the last rows, with keys in runs of `run`.
    fn tail(&self, device: &dyn Device, queries: usize, rotated: bool, run: usize) -> Vec<f32> {
        let tokens = self.tokens();
        let (q_gamma, k_gamma) = (upload(device, &self.q_gamma), upload(device, &self.k_gamma));
        let q_len = self.num_heads * self.head_dim;
        let q = upload(device, &self.q[(tokens - queries) * q_len..]);
        let mut products = zeros(device, queries * self.num_heads * tokens);
        let mut out = zeros(device, queries * tokens);
        let k_len = self.num_kv_heads * self.head_dim;
        for (i, rows) in self.k.chunks(run * k_len).enumerate() {
            device.tail_products(TailProductsArgs {
                num_heads: self.num_heads,
                num_kv_heads: self.num_kv_heads,
                head_dim: self.head_dim,
                num_tokens: tokens,
                num_queries: queries,
                q: &q,
                first_key: i * run,
                num_keys: rows.len() / k_len,
                k: &upload(device, rows),
                head_norm: Some(head_norm(&q_gamma, &k_gamma)),
                rope: self.rope(rotated),
                out: &mut products,
            });
        }
        device.tail_weights(TailWeightsArgs {
            num_heads: self.num_heads,
            num_tokens: tokens,
            num_queries: queries,
            products: &products,
            out: &mut out,
        });
        device.finish().expect("no fault");
        download(device, &out)
    }

    /// The same as its definition reads, \[T, S\].
    fn tail_by_definition(&self, queries: usize, rotated: bool) -> Vec<f64> {
        let tokens = self.tokens();
        let mut out = vec![0.0_f64; queries * tokens];
        for head in 0..self.num_heads {
            let (q, k) = (self.queries(head, rotated), self.keys(head, rotated));
            for t in 0..queries {
                let last = tokens - queries + t;
                let weights = self.softmax(&q[last], &k[..=last]);
                for (out, weight) in out[t * tokens..].iter_mut().zip(weights) {
                    *out = out.max(weight);
                }
            }
        }
        out
    }
}

fn head_norm<'a>(q_gamma: &'a Buffer, k_gamma: &'a Buffer) -> HeadNorm<'a> {
    HeadNorm {
        q_gamma,
        k_gamma,
        eps: EPS,
    }
}

#[test]
fn a_query_block_attends_to_the_key_blocks_that_it_takes() {
    let prompt = Prompt::new((2, 1, 32), 9 * KEY_BLOCK_TOKENS + 77);
    let taken = prompt.taken(1, 0.05);
    assert_eq!(taken[5], [0, 1, 2, 3, 4, 5], "the first and the nearest");
    assert_eq!(taken[6], [0, 1, 3, 4, 5, 6], "not the third");
    assert_eq!(taken[7], [0, 1, 3, 4, 5, 6, 7], "the fourth for its weight");
    assert_eq!(taken[8].len(), 9, "all of one of the last");
    let want = prompt.attended(0.05);
    let all: Vec<f32> = prompt.attended(1e-30).iter().map(|x| *x as f32).collect();
    assert!(relative_error(&all, &want) > 0.05, "it shows what is taken");
    for kv_type in [KvType::F32, KvType::F16] {
        let mut same = SameBits::default();
        for device in devices().iter().map(AsRef::as_ref) {
            if !device.name().starts_with("cpu") && kv_type == KvType::F32 {
                // No kernel for these: takes everything.
                continue;
            }
            let got = prompt.run(device, kv_type, 0.05, 4 * KEY_BLOCK_TOKENS);
            let what = format!("{kv_type} on {}", device.name());
            let error = relative_error(&got, &want);
            let most = match kv_type {
                KvType::F32 => TOLERANCE,
                _ => UNITS_TOLERANCE,
            };
            assert!(error < most, "{what}: {error:e}");
            same.check(device, got, &what);
        }
    }
}

#[test]
fn a_threshold_of_zero_takes_everything() {
    for (heads, tokens) in [((4, 2, 64), 300), ((1, 1, 128), 140), ((2, 2, 80), 130)] {
        let prompt = Prompt::new(heads, tokens);
        let want = prompt.attended(1e-30);
        for device in devices().iter().map(AsRef::as_ref) {
            for kv_type in [KvType::F32, KvType::F16] {
                let got = prompt.run(device, kv_type, 0.0, 2 * KEY_BLOCK_TOKENS);
                let error = relative_error(&got, &want);
                let most = match kv_type {
                    KvType::F32 => TOLERANCE,
                    _ => UNITS_TOLERANCE,
                };
                let what = format!("{heads:?}, {kv_type} on {}", device.name());
                assert!(error < most, "{what}: {error:e}");
            }
        }
    }
}

#[test]
fn the_last_rows_weigh_all_tokens() {
    for (heads, tokens, queries) in [
        ((4, 2, 64), 150, 8),
        ((3, 1, 80), 70, 8),
        ((2, 2, 128), 5, 5),
    ] {
        let prompt = Prompt::new(heads, tokens);
        for rotated in [false, true] {
            let want = prompt.tail_by_definition(queries, rotated);
            let mut same = SameBits::default();
            for device in devices().iter().map(AsRef::as_ref) {
                let got = prompt.tail(device, queries, rotated, 64);
                let what = format!("{heads:?}, rotated: {rotated}, on {}", device.name());
                let error = relative_error(&got, &want);
                assert!(error < TOLERANCE, "{what}: {error:e}");
                let whole = prompt.tail(device, queries, rotated, tokens);
                assert!(crate::data::same_bits(&got, &whole), "{what}: in one run");
                same.check(device, got, &what);
            }
        }
    }
}
