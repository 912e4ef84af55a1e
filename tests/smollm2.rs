//! SmolLM2-135M-Instruct Q4_1 against transformers in f32 (`exact`) and llama.cpp (`llamacpp`), token for token.
//!
//! Needs the file: `TANDEM_SMOLLM2_GGUF=$(.ci/fetch-smollm2) cargo test --release --test smollm2 -- --nocapture`.
//! All runs are teacher-forced on the reference's tokens, so one difference does not hide the next; up to the first
//! difference this is the same as continuing greedily.
//!
//! Two claims. In f32 every token is the reference's. With int8 activations (as llama.cpp's own) the roundings of 30
//! layers are chaotic: they change the gap between the two best logits by 0.145 (standard deviation over these 384
//! steps) for llama.cpp as for us, and llama.cpp differs from itself at gaps up to 0.263 when the same tokens come as
//! one batch instead of one at a time. So there a difference is allowed, but only at a near-tie.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;

use gguf::{GgufFile, GgufWriter};
use kernels::CpuDevice;
use models::{Batch, BatchSegment, KvType, KvTypes, LoadOptions, LogitsWanted, Model};
use serde_json::Value;
use tensor::{DType, decode_row};

/// Largest gap between llama.cpp's two best logits that int8 roundings may turn: two standard deviations.
const NEAR_TIE: f64 = 0.3;
/// Differences allowed in the 384 steps; f32 math itself differs from llama.cpp at 12, an ulp moves ours by several.
const MAX_DIFFERENCES: usize = 24;
/// Mean negative log-likelihood of the text, against f32 math; llama.cpp is off by 0.0125.
const NLL_TOLERANCE_INT8: f64 = 0.03;
const NLL_TOLERANCE_F32: f64 = 1e-4;

#[test]
fn int8_activations_differ_from_llamacpp_at_near_ties_only() {
    let Some(path) = model_path() else { return };
    let golden = golden();
    let mut model = load(&GgufFile::open(path).unwrap());
    let differences = compare(&mut model, &golden, "llamacpp");
    assert!(
        differences.iter().all(|d| d.reference_gap <= NEAR_TIE),
        "a difference where llama.cpp's two best logits are more than {NEAR_TIE} apart"
    );
    assert!(
        differences.iter().all(|d| d.our_gap <= NEAR_TIE),
        "a difference where we prefer our token by more than {NEAR_TIE}"
    );
    assert!(differences.len() <= MAX_DIFFERENCES);
    check_nll(&mut model, &golden, NLL_TOLERANCE_INT8);
}

#[test]
fn f32_weights_give_the_exact_references_tokens() {
    let Some(path) = model_path() else { return };
    let golden = golden();
    let mut model = load(&dequantised(&GgufFile::open(path).unwrap()));
    let differences = compare(&mut model, &golden, "exact");
    assert!(differences.is_empty());
    check_nll(&mut model, &golden, NLL_TOLERANCE_F32);
}

/// A step whose best token is not the reference's.
struct Difference {
    /// Between the reference's two best logits.
    reference_gap: f64,
    /// Between our best logit and ours of the reference's token.
    our_gap: f64,
}

fn model_path() -> Option<PathBuf> {
    let path = std::env::var_os("TANDEM_SMOLLM2_GGUF").map(PathBuf::from);
    if path.is_none() {
        println!("skipped: TANDEM_SMOLLM2_GGUF names no file; .ci/fetch-smollm2 fetches it");
    }
    path
}

fn golden() -> Value {
    serde_json::from_str(include_str!("data/smollm2_greedy.json")).unwrap()
}

fn load(file: &GgufFile) -> Model {
    let options = LoadOptions {
        max_tokens: 256,
        max_sequences: 1,
        max_batch_rows: 256,
        kv_type: Some(KvTypes::both(KvType::F32)),
    };
    let device = Arc::new(CpuDevice::new(2).unwrap());
    models::load(file, device, options, &mut |_| {}).unwrap()
}

/// The same model with every tensor in f32, so that activations stay f32 too.
fn dequantised(file: &GgufFile) -> GgufFile {
    let mut writer = GgufWriter::new();
    for (key, value) in file.metadata().iter() {
        writer.set(key, value.clone());
    }
    for tensor in file.tensors() {
        let mut values = vec![0.0_f32; tensor.cols() * tensor.rows()];
        decode_row(tensor.dtype, tensor.data, &mut values).unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        writer
            .add_tensor(tensor.name, DType::F32, tensor.dims, bytes)
            .unwrap();
    }
    GgufFile::from_bytes("smollm2-f32.gguf", writer.to_bytes().unwrap()).unwrap()
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
        .collect()
}

/// Logits after each token of a fresh sequence.
fn logits(model: &mut Model, tokens: &[u32]) -> Vec<Vec<f32>> {
    let sequence = model.create_sequence().unwrap();
    let segment = BatchSegment {
        sequence,
        tokens: tokens.to_vec(),
        parents: Vec::new(),
        advance: true,
        logits: LogitsWanted::All,
    };
    let output = model
        .forward(&Batch {
            segments: vec![segment],
            capture_layers: Vec::new(),
        })
        .unwrap();
    model.free_sequence(sequence).unwrap();
    let vocab_size = model.config().vocab_size;
    output
        .logits
        .chunks(vocab_size)
        .map(<[f32]>::to_vec)
        .collect()
}

fn best(logits: &[f32]) -> usize {
    (0..logits.len())
        .max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
        .unwrap()
}

/// Feeds each run with the reference's tokens; prints and returns the steps where another token is best.
fn compare(model: &mut Model, golden: &Value, reference: &str) -> Vec<Difference> {
    let mut out = Vec::new();
    for (number, run) in golden["runs"].as_array().unwrap().iter().enumerate() {
        let prompt = ids(&run["prompt_ids"]);
        let wanted = ids(&run[reference]["ids"]);
        let tokens = [prompt.as_slice(), &wanted[..wanted.len() - 1]].concat();
        let rows = &logits(model, &tokens)[prompt.len() - 1..];
        assert_eq!(rows.len(), wanted.len());
        let mut first = None;
        for (step, (row, &id)) in rows.iter().zip(&wanted).enumerate() {
            let top = best(row);
            if top == id as usize {
                continue;
            }
            first.get_or_insert(step);
            let difference = Difference {
                reference_gap: run[reference]["margins"][step].as_f64().unwrap(),
                our_gap: f64::from(row[top] - row[id as usize]),
            };
            println!(
                "{reference} run {number} step {step}: token {id} wanted, {top} best; gap of the reference {:.3}, \
                 ours {:.3}",
                difference.reference_gap, difference.our_gap
            );
            out.push(difference);
        }
        let agreed = first.unwrap_or(wanted.len());
        println!(
            "{reference} run {number}: first {agreed} of {} tokens agree",
            wanted.len()
        );
    }
    out
}

fn check_nll(model: &mut Model, golden: &Value, tolerance: f64) {
    let tokens = ids(&golden["nll"]["ids"]);
    let rows = logits(model, &tokens);
    let losses = rows.iter().zip(&tokens[1..]).map(|(row, &next)| {
        let top = f64::from(row[best(row)]);
        let sum: f64 = row.iter().map(|v| (f64::from(*v) - top).exp()).sum();
        sum.ln() + top - f64::from(row[next as usize])
    });
    let mean = losses.sum::<f64>() / (tokens.len() - 1) as f64;
    let exact = golden["nll"]["mean_nll_exact"].as_f64().unwrap();
    println!("mean negative log-likelihood {mean:.4}, f32 math {exact:.4}");
    assert!((mean - exact).abs() <= tolerance);
}
