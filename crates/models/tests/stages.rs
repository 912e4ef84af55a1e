//! A model in stages gives what the whole model gives, bit for bit, wherever it is cut.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use gguf::GgufFile;
use kernels::{Device, DeviceName, KvType, open_device};
use models::{
    Batch, LogitsWanted, Model, ModelError, load_stage, memory_need, split_layers,
    stage_memory_need,
};

use common::golden::Golden;
use common::stages::{num_layers, open_stages};
use common::{OPTIONS, batch, chain, data, device, gpu, open_with, tree};

/// With attention and recurrence, with and without a head of its own, and both ways to keep keys and values.
const MODELS: [(&str, KvType); 4] = [
    ("qwen35-nano-Q4_0.gguf", KvType::F16),
    ("qwen35-heads-Q8_0.gguf", KvType::F32),
    ("qwen3-tiny-Q5_K_M.gguf", KvType::F32),
    ("llama-nano-F16.gguf", KvType::F16),
];

fn tokens(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32)
        .map(|i| (i * 37 + seed * 101 + i * i * 7) % 500)
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Logits, likeliest tokens and features of everything that sequences live through: a prompt, trees beside it, commits
/// of different lengths, forks, ends and new beginnings.
fn life(model: &mut Model) -> Vec<u32> {
    let layers = model.config().num_layers;
    // Not in order, and one twice: features stand as they were asked for.
    let capture_layers: Vec<usize> = (0..layers).rev().chain([0]).collect();
    let mut seen = Vec::new();
    let mut step = |model: &mut Model, segments, rows: &[usize]| {
        let batch = Batch {
            segments,
            capture_layers: capture_layers.clone(),
        };
        let output = model.forward(&batch).unwrap();
        seen.extend(bits(&output.logits));
        seen.extend(output.best.iter().map(|(_, token)| *token));
        seen.extend(bits(&model.features(rows.iter().copied())));
    };
    let [a, b] = [(); 2].map(|()| model.create_sequence().unwrap());
    step(model, vec![chain(a, &tokens(60, 1))], &[0, 59]);
    let parents = [-1, 0, 0, 1, 2, 2, 4, 3, 6, 0];
    let segments = vec![chain(b, &tokens(3, 2)), tree(a, &tokens(10, 3), &parents)];
    step(model, segments, &[3, 5, 7, 9]);
    model.commit(a, &[0, 2, 4, 6, 8]).unwrap();
    let segments = vec![
        tree(b, &tokens(4, 4), &[-1, 0, 0, 1]),
        tree(a, &tokens(3, 5), &[-1, 0, 1]),
    ];
    step(model, segments, &[6, 0]);
    model.commit(a, &[0]).unwrap();
    model.commit(b, &[]).unwrap();
    let d = model.fork_sequence(a).unwrap();
    model.free_sequence(a).unwrap();
    step(model, vec![chain(d, &tokens(2, 8))], &[1]);
    let c = model.create_sequence().unwrap();
    let mut best = chain(b, &tokens(1, 6));
    best.logits = LogitsWanted::LastBest;
    step(model, vec![chain(c, &tokens(7, 7)), best], &[]);
    assert_eq!(model.sequence_len(b).unwrap(), 4);
    seen
}

#[test]
fn wherever_a_model_is_cut_it_gives_the_same_bits() {
    for (name, kv_type) in MODELS {
        let path = data().join(name);
        let whole = life(&mut open_with(&path, kv_type));
        let layers = num_layers(&GgufFile::open(&path).unwrap());
        let two = (1..layers).map(|cut| vec![cut]);
        let three = (2..layers).map(|cut| vec![1, cut]);
        for cuts in two.chain(three) {
            let devices: Vec<_> = (0..=cuts.len()).map(|_| device(1)).collect();
            let mut split = open_stages(&path, kv_type, &cuts, &devices);
            assert!(life(&mut split) == whole, "{name}, cut at {cuts:?}");
        }
    }
}

#[test]
fn stages_of_different_devices_stay_near_the_reference() {
    let mixed = |name: &str, devices: [Arc<dyn Device>; 2]| {
        let golden = Golden::open(&data(), name);
        let path = data().join(format!("{name}.gguf"));
        let mut model = open_stages(path, KvType::F32, &[1], &devices);
        assert!(model.compiles_kernels());
        let sequence = model.create_sequence().unwrap();
        let tokens = &golden.prompt[..12];
        let batch = Batch {
            segments: vec![chain(sequence, tokens)],
            capture_layers: golden.layers(),
        };
        let logits = model.forward(&batch).unwrap().logits;
        golden.broken(&logits, &model.features(0..tokens.len()))
    };
    let cpu = || open_device(DeviceName::Cpu, 1).unwrap();
    let broken = [
        mixed("qwen35-nano-F32", [gpu(), cpu()]),
        mixed("llama-nano-F16", [cpu(), gpu()]),
    ];
    assert!(broken.iter().all(Vec::is_empty), "{broken:#?}");
}

#[test]
fn layers_are_divided_by_their_bytes() {
    let file = GgufFile::open(data().join("qwen35-nano-Q4_0.gguf")).unwrap();
    let layers = num_layers(&file);
    for shares in [
        vec![1.0],
        vec![2.0, 1.0],
        vec![1e-9, 1.0, 1e9],
        vec![1.0; layers],
    ] {
        let stages = split_layers(&file, &shares).unwrap();
        assert_eq!(stages.len(), shares.len());
        let mut next = 0;
        for stage in &stages {
            assert_eq!(stage.start, next);
            assert!(!stage.is_empty(), "{stages:?}");
            next = stage.end;
        }
        assert_eq!(next, layers);
    }
    // Only what shares are to each other counts, and more of them is never fewer layers.
    assert_eq!(
        split_layers(&file, &[0.3, 0.7]).unwrap(),
        split_layers(&file, &[3.0, 7.0]).unwrap()
    );
    let first = |share: f64| split_layers(&file, &[share, 1.0 - share]).unwrap()[0].end;
    let firsts: Vec<usize> = (1..20).map(|i| first(f64::from(i) / 20.0)).collect();
    assert!(firsts.is_sorted(), "{firsts:?}");
    assert_eq!((firsts[0], firsts[18]), (1, layers - 1));
    let refused = split_layers(&file, &vec![1.0; layers + 1]).unwrap_err();
    assert!(matches!(refused, ModelError::Stages { .. }), "{refused}");
    for share in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let refused = split_layers(&file, &[1.0, share]).unwrap_err();
        assert!(matches!(refused, ModelError::Share { .. }), "{refused}");
    }
}

#[test]
fn a_stage_loads_and_needs_its_own_part_only() {
    for (name, _) in MODELS {
        let file = GgufFile::open(data().join(name)).unwrap();
        let whole = memory_need(&file, &OPTIONS).unwrap();
        let (mut weights, mut cache) = (0, 0);
        for stage in split_layers(&file, &[1.0, 1.0]).unwrap() {
            let need = stage_memory_need(&file, &stage, &OPTIONS).unwrap();
            assert!(need.total() < whole.total());
            let mut last = None;
            load_stage(&file, stage, device(1), OPTIONS, &mut |so_far| {
                last = Some(so_far)
            })
            .unwrap();
            let last = last.unwrap();
            assert_eq!(
                (last.bytes_done, last.bytes_total),
                (need.weights, need.weights)
            );
            weights += need.weights;
            cache += need.cache;
        }
        assert_eq!(cache, whole.cache);
        // What two stages have to have, an embedding that is the head too, is there twice.
        let embedding = file.tensor("token_embd.weight").unwrap().data.len() as u64;
        let head = file.tensor("output.weight");
        let twice = if head.is_some() { 0 } else { embedding };
        assert_eq!(weights, whole.weights + twice, "{name}");
    }
}

#[test]
fn what_a_stage_cannot_do_it_refuses() {
    let file = GgufFile::open(data().join(MODELS[0].0)).unwrap();
    let layers = num_layers(&file);
    let load = |stage| load_stage(&file, stage, device(1), OPTIONS, &mut |_| {});
    for stage in [layers..layers + 1, 1..1, 0..layers + 1] {
        assert!(matches!(load(stage), Err(ModelError::NoSuchLayers { .. })));
    }
    let mut alone = load(1..layers).unwrap();
    let sequence = alone.create_sequence().unwrap();
    let refused = alone.forward(&batch(vec![chain(sequence, &[1])]));
    assert!(matches!(
        refused,
        Err(ModelError::NoEarlierLayers { start: 1 })
    ));
    // Layers after it are not its own.
    let mut first = load(0..1).unwrap();
    let sequence = first.create_sequence().unwrap();
    let refused = first.forward(&Batch {
        segments: vec![chain(sequence, &[1])],
        capture_layers: vec![1],
    });
    assert!(matches!(refused, Err(ModelError::CaptureLayer { .. })));
    let path = data().join(MODELS[0].0);
    let mut split = open_stages(path, KvType::F32, &[1], &[device(1), device(1)]);
    let sequence = split.create_sequence().unwrap();
    assert!(matches!(
        split.snapshot(sequence),
        Err(ModelError::SplitSnapshot)
    ));
    assert!(matches!(
        split.set_decode_window(Some(8)),
        Err(ModelError::SplitWindow)
    ));
}
