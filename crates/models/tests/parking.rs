//! A model that gave its weights up and took them again says what it would have said.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use gguf::GgufFile;
use kernels::{Device, KvType};
use models::{Batch, BatchSegment, Model, ModelError, load_stage, memory_need};

use common::{OPTIONS, batch, chain, data, device, gpu, open_on, tree};

/// With recurrence and without.
const MODELS: [&str; 2] = ["qwen35-nano-Q4_0.gguf", "llama-nano-F16.gguf"];
/// A path of three nodes, and what else a draft might have said.
const PARENTS: [i32; 6] = [-1, 0, 0, 2, 2, 4];
const PATH: [usize; 3] = [0, 2, 4];

fn tokens(n: usize, seed: u32) -> Vec<u32> {
    let token = |i: u32| (i * 37 + seed * 101 + i * i * 7) % 490;
    (0..n as u32).map(token).collect()
}

fn open(device: Arc<dyn Device>, name: &str) -> Model {
    let path = data().join(name);
    let mut model = open_on(device, &path, KvType::F16);
    model.keep_file(GgufFile::open(&path).unwrap());
    model
}

fn park(model: &mut Model) {
    assert!(model.can_park() && !model.is_parked());
    model.park().unwrap();
    assert!(model.is_parked());
}

/// All bits of a life in which `pause` comes between steps: prompts, trees and their commits, forks, steps that a device
/// repeats.
fn life(model: &mut Model, pause: &mut dyn FnMut(&mut Model)) -> Vec<u32> {
    let mut seen = Vec::new();
    let mut step = |model: &mut Model, segments: Vec<BatchSegment>| {
        let rows = segments.iter().map(|s| s.tokens.len()).sum();
        let output = model.forward(&Batch {
            segments,
            capture_layers: vec![0, 2],
        });
        seen.extend(output.unwrap().logits.iter().map(|value| value.to_bits()));
        seen.extend(model.features(0..rows).iter().map(|value| value.to_bits()));
    };
    let [a, b] = [(); 2].map(|()| model.create_sequence().unwrap());
    step(model, vec![chain(a, &tokens(9, 1))]);
    pause(model);
    step(model, vec![chain(b, &tokens(4, 2))]);
    for token in tokens(2, 3) {
        step(model, vec![chain(a, &[token])]);
    }
    for seed in 4..7 {
        step(model, vec![tree(a, &tokens(6, seed), &PARENTS)]);
        model.commit(a, &PATH).unwrap();
        pause(model);
        // Of one shape with those before the pause.
        step(model, vec![chain(b, &tokens(1, seed))]);
        step(model, vec![chain(a, &tokens(1, seed))]);
    }
    let c = model.fork_sequence(a).unwrap();
    pause(model);
    step(
        model,
        vec![chain(c, &tokens(2, 8)), chain(a, &tokens(1, 9))],
    );
    seen
}

#[test]
fn sequences_go_on_as_if_the_weights_had_not_been_away() {
    for name in MODELS {
        for device in [device(1), gpu()] {
            let want = life(&mut open(Arc::clone(&device), name), &mut |_| {});
            let mut parks = 0;
            let got = life(&mut open(device, name), &mut |model| {
                park(model);
                model.park().unwrap();
                model.unpark().unwrap();
                model.unpark().unwrap();
                parks += 1;
            });
            assert_eq!(parks, 5);
            assert!(got == want, "{name}");
        }
    }
}

#[test]
fn sequences_can_be_made_and_copied_while_the_weights_are_away() {
    let mut model = open(device(1), MODELS[0]);
    let a = model.create_sequence().unwrap();
    model
        .forward(&batch(vec![chain(a, &tokens(9, 1))]))
        .unwrap();
    park(&mut model);
    let fork = model.fork_sequence(a).unwrap();
    let new = model.create_sequence().unwrap();
    assert_eq!(model.sequence_len(fork).unwrap(), 9);
    model.free_sequence(a).unwrap();
    let refused = model.forward(&batch(vec![chain(fork, &tokens(1, 2))]));
    assert!(matches!(refused, Err(ModelError::Parked)));
    assert!(matches!(model.commit(fork, &[]), Err(ModelError::Parked)));
    assert!(model.features(0..1).is_empty());
    model.unpark().unwrap();
    let segments = vec![chain(fork, &tokens(1, 2)), chain(new, &tokens(1, 2))];
    model.forward(&batch(segments)).unwrap();
}

#[test]
fn a_segment_that_waits_is_forgotten() {
    let mut model = open(device(1), MODELS[0]);
    let a = model.create_sequence().unwrap();
    let verified = vec![tree(a, &tokens(6, 1), &PARENTS)];
    model.forward(&batch(verified.clone())).unwrap();
    park(&mut model);
    model.unpark().unwrap();
    let gone = model.commit(a, &PATH);
    assert!(matches!(gone, Err(ModelError::NothingToCommit)));
    model.forward(&batch(verified)).unwrap();
    model.commit(a, &PATH).unwrap();
}

/// The limit counts what the device gave; a CPU's is only said.
#[test]
fn all_but_the_sequences_leaves_the_device_and_comes_back_whole_or_not_at_all() {
    for name in MODELS {
        let device = gpu();
        let limit = |bytes: u64| device.limit_memory(bytes);
        let free = || device.free_memory().unwrap();
        let plenty = 64 << 20;
        limit(plenty);
        let mut model = open(Arc::clone(&device), name);
        let a = model.create_sequence().unwrap();
        let prompt = Batch {
            segments: vec![tree(a, &tokens(6, 1), &PARENTS)],
            capture_layers: vec![0, 2],
        };
        let want = model.forward(&prompt).unwrap().logits;
        let resident = plenty - free();

        park(&mut model);
        let parked = plenty - free();
        let file = GgufFile::open(data().join(name)).unwrap();
        let need = memory_need(&file, &OPTIONS).unwrap();
        assert!(parked + need.weights <= resident, "{parked} of {resident}");
        assert!(parked < need.cache + (64 << 10), "{parked}: {need:?}");

        // Told before anything is read; then where a part of it finds no room, up to the last one.
        limit(parked + need.weights - 1);
        let refused = model.unpark();
        assert!(matches!(refused, Err(ModelError::DoesNotFit { .. })));
        for missing in [1, 4096, 32 << 10] {
            limit(resident - missing);
            assert!(model.unpark().is_err(), "{name}: without {missing} bytes");
            assert!(model.is_parked());
            assert!(matches!(model.forward(&prompt), Err(ModelError::Parked)));
            limit(plenty);
            assert_eq!(plenty - free(), parked);
        }

        limit(resident);
        model.unpark().unwrap();
        // Nothing is asked for later.
        assert_eq!(free(), 0);
        assert_eq!(model.forward(&prompt).unwrap().logits, want);
        model.commit(a, &PATH).unwrap();
    }
}

#[test]
fn a_model_that_cannot_come_back_whole_does_not_leave() {
    let name = MODELS[0];
    let mut without_file = open_on(device(1), data().join(name), KvType::F16);
    let file = || GgufFile::open(data().join(name)).unwrap();
    let layers = without_file.config().num_layers;
    let mut stage = load_stage(&file(), 1..layers, device(1), OPTIONS, &mut |_| {}).unwrap();
    stage.keep_file(file());
    for model in [&mut without_file, &mut stage] {
        assert!(!model.can_park());
        assert!(matches!(model.park(), Err(ModelError::CannotPark)));
        assert!(!model.is_parked());
    }
}
