//! Attention layers of Qwen3.5-27B, and the likeliest ids of a draft block's rows:
//! `TANDEM_BENCH_DEVICE=cuda:0 cargo bench -p kernels --bench attention`.
//!
//! Microseconds a layer, over several layers with keys and values of their own, so that these come from memory and not
//! from a cache; and the bytes of keys and values that are seen, a second. Keys and values are kept as `TANDEM_BENCH_KV` says,
//! such as `q8_0,q4_0`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kernels::{
    AttentionArgs, Buffer, Device, DeviceName, HeadNorm, KvLayer, KvType, KvTypes, PAGE_TOKENS,
    RopeArgs, RopeStyle, Segment, Step, TopKArgs, Visibility, open_device,
};

const DEVICE: &str = "TANDEM_BENCH_DEVICE";
const TYPES: &str = "TANDEM_BENCH_KV";
const HEADS: usize = 24;
const KV_HEADS: usize = 4;
const HEAD_DIM: usize = 256;
const VOCAB: usize = 248_320;
const MOST_ROWS: usize = 512;
const ENOUGH: Duration = Duration::from_millis(300);

struct Bench {
    device: Arc<dyn Device>,
    types: KvTypes,
    layers: Vec<KvLayer>,
    q: Buffer,
    k: Buffer,
    v: Buffer,
    gamma: Buffer,
    out: Buffer,
    pages: Vec<u32>,
    inv_freq: Vec<f32>,
}

fn noise(len: usize) -> Vec<f32> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 32768.0 - 1.0)
        .collect()
}

impl Bench {
    fn new(device: Arc<dyn Device>, types: KvTypes, layers: usize, most_tokens: usize) -> Self {
        let filled = |len: usize| {
            let mut buffer = device.zeros(len).expect("memory");
            device.write(&mut buffer, 0, &noise(len));
            buffer
        };
        // As small floats, codes and scales alike.
        let kept = |len: usize, kv_type: KvType| {
            let mut buffer = device.kv_zeros(len, kv_type).expect("memory");
            buffer.write_bytes(0, &vec![0x2c; kv_type.bytes(len)]);
            buffer
        };
        let num_pages = most_tokens.div_ceil(PAGE_TOKENS);
        let kv_len = num_pages * PAGE_TOKENS * KV_HEADS * HEAD_DIM;
        let layers = (0..layers)
            .map(|_| KvLayer {
                k: kept(kv_len, types.k),
                v: kept(kv_len, types.v),
            })
            .collect();
        let rows_of = |width| filled(MOST_ROWS * width);
        Self {
            types,
            layers,
            q: rows_of(2 * HEADS * HEAD_DIM),
            k: rows_of(KV_HEADS * HEAD_DIM),
            v: rows_of(KV_HEADS * HEAD_DIM),
            out: rows_of(HEADS * HEAD_DIM),
            gamma: filled(HEAD_DIM),
            pages: (0..num_pages as u32).rev().collect(),
            inv_freq: (0..32).map(|i| 1e7_f32.powf(-(i as f32) / 32.0)).collect(),
            device,
        }
    }

    /// All layers once, recorded where the device does that.
    fn pass(&mut self, parents: &[i32], committed_len: usize) {
        let device = Arc::clone(&self.device);
        let pages = std::mem::take(&mut self.pages);
        let segments = [Segment {
            first_row: 0,
            parents,
            committed_len,
            first_position: 0,
            pages: &pages,
            state_index: 0,
            advance: false,
            window: None,
        }];
        let step = Step {
            tokens: &[],
            segments: &segments,
            visibility: Visibility::Ancestors,
            variant: &"bench",
        };
        device.step(&step, &mut || {
            for cache in &mut self.layers {
                device.attention(AttentionArgs {
                    num_heads: HEADS,
                    num_kv_heads: KV_HEADS,
                    head_dim: HEAD_DIM,
                    q: &mut self.q,
                    gated: true,
                    k: &mut self.k,
                    v: &self.v,
                    head_norm: Some(HeadNorm {
                        q_gamma: &self.gamma,
                        k_gamma: &self.gamma,
                        eps: 1e-6,
                    }),
                    rope: RopeArgs {
                        style: RopeStyle::Neox,
                        inv_freq: &self.inv_freq,
                    },
                    cache,
                    segments: &segments,
                    visibility: Visibility::Ancestors,
                    window: None,
                    out: &mut self.out,
                });
            }
        });
        self.pages = pages;
    }

    fn report(&mut self, what: &str, parents: &[i32], committed_len: usize) {
        let device = Arc::clone(&self.device);
        let us = microseconds(&*device, || self.pass(parents, committed_len));
        let us = us / self.layers.len() as f64;
        let bytes = KV_HEADS * self.types.bytes(HEAD_DIM) * (committed_len + parents.len());
        println!(
            "{what} {} rows after {committed_len}: {us:.1} us, {:.0} GB/s",
            parents.len(),
            bytes as f64 / us / 1e3
        );
    }
}

/// Of one call, after some to warm up and to record.
fn microseconds(device: &dyn Device, mut call: impl FnMut()) -> f64 {
    for _ in 0..3 {
        call();
    }
    device.finish().expect("no fault");
    for calls in (0..).map(|n| 1_u32 << n) {
        let started = Instant::now();
        for _ in 0..calls {
            call();
        }
        device.finish().expect("no fault");
        let elapsed = started.elapsed();
        if elapsed >= ENOUGH || calls >= 1 << 16 {
            return elapsed.as_secs_f64() * 1e6 / f64::from(calls);
        }
    }
    unreachable!("counted without end")
}

fn top_k(device: &dyn Device, rows: usize) {
    let k = 8;
    let mut logits = device.zeros(rows * VOCAB).expect("memory");
    device.write(&mut logits, 0, &noise(rows * VOCAB));
    let (mut ids, mut log_probs) = (vec![0; rows * k], vec![0.0; rows * k]);
    let us = microseconds(device, || {
        device.top_k(TopKArgs {
            num_rows: rows,
            vocab_size: VOCAB,
            k,
            logits: &logits,
            ids: &mut ids,
            log_probs: Some(&mut log_probs),
            values: None,
        });
    });
    println!("top {k} of {rows} rows of {VOCAB}: {us:.1} us");
}

/// Of keys and of values; one name stands for both.
fn types() -> KvTypes {
    let names = std::env::var(TYPES).unwrap_or_else(|_| KvType::F16.name().to_owned());
    let types: Vec<KvType> = names
        .split(',')
        .map(|name| name.parse().expect("a type of keys and values"))
        .collect();
    match types[..] {
        [k, v] => KvTypes { k, v },
        _ => KvTypes::both(types[0]),
    }
}

fn main() {
    let name = std::env::var(DEVICE).unwrap_or_else(|_| "cpu".to_owned());
    let name: DeviceName = name.parse().expect("a device's name");
    let device = open_device(name, 0).expect("a device");
    println!("{}", device.name());
    // An emulation takes minutes for what a GPU does in a second.
    let is_fast = matches!(name, DeviceName::Cuda(_) | DeviceName::Hip(_));
    let contexts: &[usize] = if is_fast {
        &[1000, 4000, 32_000, 128_000]
    } else {
        &[1000]
    };
    let layers = if is_fast { 8 } else { 1 };
    let most_tokens = contexts.iter().max().expect("some") + MOST_ROWS;
    let types = types();
    println!("{types}");
    let mut bench = Bench::new(Arc::clone(&device), types, layers, most_tokens);
    let chain = |len: usize| -> Vec<i32> { (-1..).take(len).collect() };
    for &committed_len in contexts {
        for rows in [1, 8, 24] {
            bench.report("chain,", &chain(rows), committed_len);
        }
        let tree: Vec<i32> = (-1..24 - 1)
            .map(|i| if i < 1 { i } else { i / 2 })
            .collect();
        bench.report("tree,", &tree, committed_len);
    }
    if is_fast {
        for committed_len in [0, 4096, 32_000, 128_000] {
            bench.report("prefill,", &chain(MOST_ROWS), committed_len);
        }
    }
    for rows in [1, 15] {
        top_k(&*device, rows);
    }
}
