//! Models on a GPU: that a step which repeats a recording is the step. On the emulation, or the GPU asked for.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use models::{Batch, BatchSegment, KvType, Model, SequenceId};

use common::golden::Golden;
use common::watched::Watched;
use common::{chain, data, device_name, gpu, open_on, tree};
use kernels::{DecodePath, DeviceName};

/// Tokens before the decode steps.
const PROMPT: usize = 9;
const DECODE_STEPS: usize = 7;
/// Trees that are verified after them; the third and later ones are repeated.
const TREES: usize = 4;
/// A path of three nodes, and what else a draft might have said.
const PARENTS: [i32; 6] = [-1, 0, 0, 2, 2, 4];
const PATH: [usize; 3] = [0, 2, 4];

/// A model, the device below it, and all that it said.
struct Run {
    device: Arc<Watched>,
    model: Model,
    layers: Vec<usize>,
    logits: Vec<f32>,
    features: Vec<f32>,
}

impl Run {
    fn new(name: &str, repeats: bool, layers: Vec<usize>) -> Self {
        let gpu = gpu();
        // Operations that are told in place of being launched would be counted.
        gpu.set_decode_path(DecodePath::Graph);
        let device = Arc::new(Watched::new(gpu, repeats));
        let path = data().join(format!("{name}.gguf"));
        Self {
            model: open_on(Arc::clone(&device) as _, path, KvType::F32),
            device,
            layers,
            logits: Vec::new(),
            features: Vec::new(),
        }
    }

    /// Computes a batch and keeps what is said of `rows`.
    fn forward(&mut self, segments: Vec<BatchSegment>, rows: &[usize]) {
        let batch = Batch {
            segments,
            capture_layers: self.layers.clone(),
        };
        let output = self.model.forward(&batch).unwrap();
        let vocab = self.model.config().vocab_size;
        for &row in rows {
            self.logits
                .extend(&output.logits[row * vocab..(row + 1) * vocab]);
        }
        // One after another, and those that are not as well.
        self.features
            .extend(self.model.features(rows.iter().copied()));
    }

    fn decode(&mut self, sequence: SequenceId, token: u32) {
        self.forward(vec![chain(sequence, &[token])], &[0]);
    }

    /// Verifies a tree with `tokens` on its path and accepts them; `company` comes first in the batch.
    fn verify(&mut self, sequence: SequenceId, tokens: &[u32], company: Vec<BatchSegment>) {
        let mut nodes = [499, 498, 497, 496, 495, 494];
        for (&node, &token) in PATH.iter().zip(tokens) {
            nodes[node] = token;
        }
        let before: usize = company.iter().map(|segment| segment.tokens.len()).sum();
        let rows: Vec<usize> = PATH.iter().map(|node| before + node).collect();
        let mut segments = company;
        segments.push(tree(sequence, &nodes, &PARENTS));
        self.forward(segments, &rows);
        self.model.commit(sequence, &PATH).unwrap();
    }
}

#[test]
fn decoding_and_trees_are_those_of_the_reference() {
    for name in ["qwen35-nano-Q4_0", "qwen35-nano-F32"] {
        let golden = Golden::open(&data(), name);
        let mut tokens = golden.tokens().into_iter();
        let mut next = |count: usize| tokens.by_ref().take(count).collect::<Vec<u32>>();
        let mut run = Run::new(name, true, golden.layers());
        let sequence = run.model.create_sequence().unwrap();
        let rows: Vec<usize> = (0..PROMPT).collect();
        run.forward(vec![chain(sequence, &next(PROMPT))], &rows);
        for token in next(DECODE_STEPS) {
            run.decode(sequence, token);
        }
        for _ in 0..TREES {
            run.verify(sequence, &next(PATH.len()), Vec::new());
        }
        for token in next(2) {
            run.decode(sequence, token);
        }
        let broken = golden.broken(&run.logits, &run.features);
        assert!(broken.is_empty(), "{broken:#?}");
        // Of steps of one shape the first two are not repetitions, and memory that moves makes a device begin again.
        let repeated = DECODE_STEPS - 2 + TREES - 2 + 2;
        let is_gpu = matches!(device_name(), DeviceName::Cuda(_) | DeviceName::Hip(_));
        let least = if is_gpu { 1 } else { repeated };
        assert!((least..=repeated).contains(&run.device.repeated()));
    }
}

#[test]
fn a_step_that_memory_is_missing_for_fails_alone() {
    let device = gpu();
    let path = data().join("qwen35-nano-Q4_0.gguf");
    let mut model = open_on(Arc::clone(&device), path, KvType::F32);
    let tokens: Vec<u32> = (0..40).collect();
    let batch = |sequence| Batch {
        segments: vec![chain(sequence, &tokens)],
        capture_layers: Vec::new(),
    };
    let spare = model.create_sequence().unwrap();
    model.forward(&batch(spare)).unwrap();
    let sequence = model.create_sequence().unwrap();
    let expected = model.forward(&batch(sequence)).unwrap().logits;
    model.free_sequence(sequence).unwrap();

    device.limit_memory(0);
    let sequence = model.create_sequence().unwrap();
    let large: Vec<u32> = (0..64).collect();
    let error = model.forward(&Batch {
        segments: vec![chain(sequence, &large)],
        capture_layers: Vec::new(),
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("could not be allocated"), "{error}");
    assert_eq!(device.free_memory(), Some(0));
    model.free_sequence(sequence).unwrap();

    // What is there is enough for this one.
    let sequence = model.create_sequence().unwrap();
    let again = model.forward(&batch(sequence)).unwrap().logits;
    assert_eq!(again, expected);
}

/// All bits of a run in which steps of one shape belong to sequences that lie elsewhere and are of other lengths.
fn bits_of_a_run(name: &str, repeats: bool) -> (Vec<u32>, usize) {
    let mut run = Run::new(name, repeats, vec![0, 2]);
    let token = |i: usize| (i * 37 + i * i * 7) as u32 % 490;
    let tokens = |n: usize| (0..n).map(token).collect::<Vec<u32>>();
    // The second one is about to begin its second page.
    let [one, two] = [5, 60].map(|len| {
        let sequence = run.model.create_sequence().unwrap();
        run.forward(vec![chain(sequence, &tokens(len))], &[len - 1]);
        sequence
    });
    for step in 0..8 {
        run.decode(one, token(step));
        run.decode(two, token(step + 100));
    }
    for round in 0..4 {
        let company = vec![chain(two, &[token(round + 200)])];
        run.verify(one, &tokens(3), company);
    }
    let both = [one, two].map(|sequence| run.model.snapshot(sequence).unwrap());
    run.model.free_sequence(one).unwrap();
    // A new sequence in the old one's place.
    let three = run.model.restore(&both[1]).unwrap();
    for step in 0..3 {
        run.decode(three, token(step + 300));
        run.decode(two, token(step + 300));
    }
    let vocab = run.model.config().vocab_size;
    let last: Vec<&[f32]> = run.logits.chunks(vocab).rev().take(2).collect();
    assert_eq!(last[0], last[1], "{name}: sequences with the same tokens");
    let said = run.logits.iter().chain(&run.features);
    (
        said.map(|value| value.to_bits()).collect(),
        run.device.repeated(),
    )
}

#[test]
fn a_step_that_is_repeated_is_the_step() {
    for name in ["qwen35-nano-Q4_0", "llama-nano-F16"] {
        let (want, never) = bits_of_a_run(name, false);
        let (got, repeated) = bits_of_a_run(name, true);
        assert_eq!(never, 0);
        assert_eq!(repeated, 2 * 8 - 2 + 4 - 2 + 6, "{name}");
        assert!(got == want, "{name}: a repeated step differs");
    }
}
