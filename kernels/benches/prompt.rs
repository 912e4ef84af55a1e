//! One layer of Qwen3-0.6B over a prompt that is scored:
//! `TANDEM_BENCH_DEVICE=cuda:0 cargo bench -p kernels --bench prompt`.
//!
//! Milliseconds of attention over the whole prompt in passes of 2048 rows: by attention's own kernel, over all key blocks, and
//! over no more than must be taken; of the last rows' products and weights; and floating-point operations a second of those
//! over all key blocks.

use std::sync::Arc;
use std::time::Instant;

use kernels::{
    AttentionArgs, Buffer, Device, DeviceName, KvLayer, KvType, PAGE_TOKENS, RopeArgs, RopeStyle,
    Segment, SparseAttentionArgs, TailProductsArgs, TailWeightsArgs, Visibility, mean_pages,
    open_device,
};

const DEVICE: &str = "TANDEM_BENCH_DEVICE";
const HEADS: usize = 16;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const ROWS: usize = 2048;
const QUERIES: usize = 8;
/// Times that each is measured, of which the least counts.
const REPEATS: usize = 3;

struct Bench {
    device: Arc<dyn Device>,
    tokens: usize,
    cache: KvLayer,
    means: Buffer,
    q: Buffer,
    k: Buffer,
    v: Buffer,
    out: Buffer,
    products: Buffer,
    weights: Buffer,
    pages: Vec<u32>,
    chain: Vec<i32>,
    inv_freq: Vec<f32>,
}

fn noise(len: usize) -> Vec<f32> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 32768.0 - 1.0)
        .collect()
}

impl Bench {
    fn new(device: Arc<dyn Device>, tokens: usize) -> Self {
        let rows_of = |heads: usize| {
            let mut buffer = device.zeros(ROWS * heads * HEAD_DIM).expect("memory");
            device.write(&mut buffer, 0, &noise(ROWS * heads * HEAD_DIM));
            buffer
        };
        let page_len = PAGE_TOKENS * KV_HEADS * HEAD_DIM;
        let kept = |pages: usize| {
            device
                .kv_zeros(pages * page_len, KvType::F16)
                .expect("memory")
        };
        let zeros = |len: usize| device.zeros(len).expect("memory");
        let num_pages = tokens.div_ceil(PAGE_TOKENS);
        Self {
            cache: KvLayer {
                k: kept(num_pages),
                v: kept(num_pages),
            },
            means: kept(mean_pages(tokens)),
            q: rows_of(HEADS),
            k: rows_of(KV_HEADS),
            v: rows_of(KV_HEADS),
            out: rows_of(HEADS),
            products: zeros(QUERIES * HEADS * tokens),
            weights: zeros(QUERIES * tokens),
            pages: (0..num_pages as u32).collect(),
            chain: (-1..).take(ROWS).collect(),
            inv_freq: (0..64).map(|i| 1e6_f32.powf(-(i as f32) / 64.0)).collect(),
            tokens,
            device,
        }
    }

    /// All passes; without a threshold by attention's own kernel.
    fn attend(&mut self, threshold: Option<f32>) {
        for first in (0..self.tokens).step_by(ROWS) {
            let segments = [Segment {
                first_row: 0,
                parents: &self.chain[..ROWS.min(self.tokens - first)],
                committed_len: first,
                first_position: 0,
                pages: &self.pages,
                state_index: 0,
                advance: true,
                window: None,
            }];
            let attention = AttentionArgs {
                num_heads: HEADS,
                num_kv_heads: KV_HEADS,
                head_dim: HEAD_DIM,
                q: &mut self.q,
                gated: false,
                k: &mut self.k,
                v: &self.v,
                head_norm: None,
                rope: RopeArgs {
                    style: RopeStyle::Neox,
                    inv_freq: &self.inv_freq,
                },
                cache: &mut self.cache,
                segments: &segments,
                visibility: Visibility::Ancestors,
                window: None,
                out: &mut self.out,
            };
            match threshold {
                None => self.device.attention(attention),
                Some(threshold) => self.device.sparse_attention(SparseAttentionArgs {
                    attention,
                    num_tokens: self.tokens,
                    threshold,
                    means: &mut self.means,
                }),
            }
        }
    }

    fn tail(&mut self) {
        for first_key in (0..self.tokens).step_by(ROWS) {
            self.device.tail_products(TailProductsArgs {
                num_heads: HEADS,
                num_kv_heads: KV_HEADS,
                head_dim: HEAD_DIM,
                num_tokens: self.tokens,
                num_queries: QUERIES,
                q: &self.q,
                first_key,
                num_keys: ROWS.min(self.tokens - first_key),
                k: &self.k,
                head_norm: None,
                rope: RopeArgs {
                    style: RopeStyle::Neox,
                    inv_freq: &[],
                },
                out: &mut self.products,
            });
        }
        self.device.tail_weights(TailWeightsArgs {
            num_heads: HEADS,
            num_tokens: self.tokens,
            num_queries: QUERIES,
            products: &self.products,
            out: &mut self.weights,
        });
    }

    fn seconds(&mut self, what: &str, work: impl Fn(&mut Self)) -> f64 {
        let mut least = f64::INFINITY;
        for _ in 0..REPEATS {
            let started = Instant::now();
            work(self);
            self.device.finish().expect("no fault");
            least = least.min(started.elapsed().as_secs_f64());
        }
        println!("{} tokens, {what}: {:.2} ms", self.tokens, least * 1e3);
        least
    }
}

fn main() {
    let name = std::env::var(DEVICE).unwrap_or_else(|_| "cpu".to_owned());
    let name: DeviceName = name.parse().expect("a device's name");
    let device = open_device(name, 0).expect("a device");
    println!("{}", device.name());
    let is_fast = matches!(name, DeviceName::Cuda(_) | DeviceName::Hip(_));
    let lengths: &[usize] = if is_fast {
        &[8192, 32_768, 131_072]
    } else {
        &[2048]
    };
    for &tokens in lengths {
        let mut bench = Bench::new(Arc::clone(&device), tokens);
        bench.seconds("attention's own kernel", |bench| bench.attend(None));
        let all = bench.seconds("all key blocks", |bench| bench.attend(Some(0.0)));
        bench.seconds("key blocks that must be taken", |bench| {
            bench.attend(Some(1.0))
        });
        bench.seconds("the last rows", Bench::tail);
        let products = 2.0 * (HEADS * HEAD_DIM) as f64 * (tokens as f64).powi(2);
        println!(
            "{tokens} tokens, all key blocks: {:.0} GFLOPS",
            products / all / 1e9
        );
    }
}
