//! The demo draft beside the demo target: the rounds of the demo's own reference, and what a proposal costs.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use gguf::GgufFile;
use kernels::{Device, DeviceName};
use models::{
    Batch, DraftBlock, DraftFile, DraftModel, DraftOptions, LoadOptions, load, load_draft,
};
use serde_json::Value;

use common::{chain, device, device_name};

const POSITIONS: usize = 15;
const TOP_K: usize = 8;

fn demo(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy/demo")
        .join(name)
}

fn draft(device: &Arc<dyn Device>) -> DraftModel {
    let target = GgufFile::open(demo("demo-target.gguf")).unwrap();
    let file = DraftFile::open(demo("demo-draft.gguf")).unwrap();
    let options = DraftOptions {
        max_context_tokens: 512,
        max_sequences: 2,
        ..DraftOptions::default()
    };
    load_draft(&file, &target, device.clone(), options, &mut |_| {}).unwrap()
}

/// Features [positions, taps E] of tokens.
fn features(device: &Arc<dyn Device>, tokens: &[u32], layers: &[usize]) -> Vec<f32> {
    let file = GgufFile::open(demo("demo-target.gguf")).unwrap();
    let options = LoadOptions {
        max_tokens: 512,
        max_sequences: 1,
        max_batch_rows: 512,
        kv_type: None,
    };
    let mut model = load(&file, device.clone(), options, &mut |_| {}).unwrap();
    let sequence = model.create_sequence().unwrap();
    model
        .forward(&Batch {
            segments: vec![chain(sequence, tokens)],
            capture_layers: layers.to_vec(),
        })
        .unwrap();
    model.features(0..tokens.len())
}

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().unwrap();
    list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// How far the reference's token may lie below ours, in nats. It computes on expanded weights; here weights of 4 bits meet
/// activations rounded to 8 bits, in the target that makes the features too. Its drafts differ at near ties only: 0.68
/// nats at most, in 40 of 1215 places (measured).
const NEAR_TIE: f32 = 1.0;

#[test]
fn the_demo_draft_proposes_what_the_reference_drafts() {
    let device = device(2);
    let mut model = draft(&device);
    let text = std::fs::read(demo("goldens.json")).unwrap();
    let golden: Value = serde_json::from_slice(&text).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    let row_len = model.config().feature_len();
    let (mut drafted, mut same, mut rounds, mut widest) = (0, 0, 0, 0.0_f32);
    let (mut accepted, mut golden_accepted) = (0, 0);
    for run in golden["speculative"].as_array().unwrap() {
        if !run["budget"].is_null() {
            continue;
        }
        let case = cases
            .iter()
            .find(|case| case["name"] == run["name"])
            .unwrap();
        let mut tokens = ids(&case["prompt_ids"]);
        tokens.extend(ids(&run["ids"]));
        let features = features(&device, &tokens, &model.config().capture_layers.clone());
        let id = model.create_sequence().unwrap();
        let mut done = 0;
        for round in run["rounds"].as_array().unwrap() {
            let anchor = round["anchor"].as_u64().unwrap() as usize;
            if anchor >= tokens.len() {
                break;
            }
            model
                .append(id, &features[done * row_len..anchor * row_len])
                .unwrap();
            done = anchor;
            let block = DraftBlock {
                sequence: id,
                anchor: tokens[anchor],
                depth: POSITIONS,
            };
            let proposal = model.propose(&[block], TOP_K).unwrap().remove(0);
            let want = ids(&round["draft"]);
            let got = proposal.ids.chunks(TOP_K);
            let text = &tokens[anchor + 1..];
            let prefix = |draft: &[u32]| draft.iter().zip(text).take_while(|(a, b)| a == b).count();
            accepted += prefix(&got.clone().map(|ids| ids[0]).collect::<Vec<_>>());
            golden_accepted += prefix(&want);
            for ((got, log_probs), want) in got.zip(proposal.log_probs.chunks(TOP_K)).zip(&want) {
                let rank = got.iter().position(|id| id == want);
                let rank = rank.expect("the reference's token is among the likeliest");
                drafted += 1;
                same += usize::from(rank == 0);
                widest = widest.max(log_probs[0] - log_probs[rank]);
            }
            rounds += 1;
        }
        model.free_sequence(id).unwrap();
    }
    println!(
        "{rounds} rounds: {same} of {drafted} tokens are the reference's, the others within {widest} nats; \
         {accepted} accepted, {golden_accepted} of the reference's"
    );
    assert!(widest <= NEAR_TIE);
    assert!(same * 100 >= drafted * 95, "{same} of {drafted}");
    assert!(accepted * 100 >= golden_accepted * 97);
}

/// Prints what a proposal costs: `cargo test --release -p models --test dflash_demo -- --nocapture cost`.
#[test]
fn the_cost_of_a_proposal_is_printed() {
    let threads: &[usize] = match device_name() {
        DeviceName::Cpu => &[1, 0],
        _ => &[0],
    };
    for &threads in threads {
        print_cost(&device(threads));
    }
}

fn print_cost(device: &Arc<dyn Device>) {
    let mut model = draft(device);
    let row_len = model.config().feature_len();
    let id = model.create_sequence().unwrap();
    let features: Vec<f32> = (0..256 * row_len)
        .map(|i| (i % 251) as f32 / 125.0 - 1.0)
        .collect();
    model.append(id, &features).unwrap();
    let block = [DraftBlock {
        sequence: id,
        anchor: 5,
        depth: POSITIONS,
    }];
    let propose = median_us(|| drop(model.propose(&block, TOP_K).unwrap()));
    let [one, four, many] = [1, 4, 64].map(|n| {
        let rows = &features[..n * row_len];
        median_us(|| model.append(id, rows).unwrap()) / n as f64
    });
    println!(
        "{}, context 256: propose {propose:.0} us; append {one:.0} / {four:.0} / {many:.0} us a row by 1 / 4 / 64 rows",
        device.name(),
    );
}

fn median_us(mut work: impl FnMut()) -> f64 {
    let mut seconds: Vec<f64> = (0..21)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2] * 1e6
}
