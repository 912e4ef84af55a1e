//! What a speculative round asks beside products: `cargo bench -p kernels --bench attention [-- THREADS]`.
//!
//! One layer's attention of a draft tree and of a chain of as many rows, and the likeliest ids of a draft block's rows.

use std::time::Instant;

use kernels::{
    AttentionArgs, CpuDevice, Device, KvLayer, KvType, PAGE_TOKENS, RopeArgs, RopeStyle, Segment,
    TopKArgs, Visibility,
};

/// A full-attention layer of Qwen3.5-27B.
const HEADS: usize = 24;
const KV_HEADS: usize = 4;
const HEAD_DIM: usize = 256;
/// The root and a budget of 22.
const NODES: usize = 23;
const VOCAB: usize = 248_320;
const ROUNDS: usize = 31;

fn median_us(mut work: impl FnMut()) -> f64 {
    let mut seconds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    1e6 * seconds[ROUNDS / 2]
}

fn attention(device: &CpuDevice, committed_len: usize, parents: &[i32]) -> f64 {
    let num_pages = (committed_len + NODES).div_ceil(PAGE_TOKENS);
    let len = num_pages * PAGE_TOKENS * KV_HEADS * HEAD_DIM;
    let kv = || device.kv_zeros(len, KvType::F16).expect("memory");
    let mut cache = KvLayer { k: kv(), v: kv() };
    let zeros = |len| device.zeros(len).expect("memory");
    let mut q = zeros(NODES * HEADS * HEAD_DIM);
    let mut k = zeros(NODES * KV_HEADS * HEAD_DIM);
    let v = zeros(NODES * KV_HEADS * HEAD_DIM);
    let mut out = zeros(NODES * HEADS * HEAD_DIM);
    let pages: Vec<u32> = (0..num_pages as u32).collect();
    median_us(|| {
        device.attention(AttentionArgs {
            num_heads: HEADS,
            num_kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            q: &mut q,
            gated: false,
            k: &mut k,
            v: &v,
            head_norm: None,
            rope: RopeArgs {
                style: RopeStyle::Neox,
                inv_freq: &[],
            },
            cache: &mut cache,
            segments: &[Segment {
                first_row: 0,
                parents,
                committed_len,
                first_position: 0,
                pages: &pages,
                state_index: 0,
                advance: false,
            }],
            visibility: Visibility::Ancestors,
            window: None,
            out: &mut out,
        });
    })
}

fn top_k(device: &CpuDevice) -> f64 {
    let (rows, k) = (15, 8);
    let mut logits = device.zeros(rows * VOCAB).expect("memory");
    let values: Vec<f32> = (0..rows * VOCAB)
        .map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 16) as f32 / 4096.0)
        .collect();
    device.write(&mut logits, 0, &values);
    let (mut ids, mut log_probs) = (vec![0; rows * k], vec![0.0; rows * k]);
    median_us(|| {
        device.top_k(TopKArgs {
            num_rows: rows,
            vocab_size: VOCAB,
            k,
            logits: &logits,
            ids: &mut ids,
            log_probs: &mut log_probs,
        });
    })
}

fn main() {
    // `cargo bench` passes flags of its own.
    let threads = std::env::args().find_map(|a| a.parse().ok()).unwrap_or(1);
    let device = CpuDevice::new(threads).expect("a device");
    println!("{}", device.name());
    let chain: Vec<i32> = (-1..).take(NODES).collect();
    let tree: Vec<i32> = (-1..)
        .take(NODES)
        .map(|i| if i < 1 { i } else { i / 2 })
        .collect();
    for committed_len in [300, 2000] {
        let (chain, tree) = (
            attention(&device, committed_len, &chain),
            attention(&device, committed_len, &tree),
        );
        println!("{NODES} nodes after {committed_len}: chain {chain:.0} us, tree {tree:.0} us");
    }
    println!("top 8 of 15 rows of {VOCAB}: {:.0} us", top_k(&device));
}
