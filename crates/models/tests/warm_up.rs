//! What models go through before the first answer, where the device compiles kernels. On the processor, which does not.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::watched::Watched;
use common::{OPTIONS, chain, data};
use kernels::{DeviceName, PAGE_TOKENS, open_device};
use models::{Batch, LoadOptions, Model, load_path};

const TOKENS: [u32; 5] = [3, 1, 4, 1, 5];

fn load(name: &str, options: LoadOptions) -> (Arc<Watched>, Model) {
    let cpu = open_device(DeviceName::Cpu, 1).unwrap();
    let device = Arc::new(Watched::new(cpu, false));
    let path = data().join(format!("{name}.gguf"));
    let model = load_path(path, Arc::clone(&device) as _, options, &mut |_| {});
    (device, model.unwrap())
}

/// Logits of the last of some tokens.
fn logits(model: &mut Model) -> Vec<u32> {
    let sequence = model.create_sequence().unwrap();
    let segments = TOKENS.map(|token| vec![chain(sequence, &[token])]);
    let mut bits = Vec::new();
    for segments in segments {
        let batch = Batch {
            segments,
            capture_layers: Vec::new(),
        };
        let output = model.forward(&batch).unwrap();
        bits = output.logits.iter().map(|value| value.to_bits()).collect();
    }
    model.free_sequence(sequence).unwrap();
    bits
}

/// However little room there is, the device hears of all rows that a step may have, and answers begin as if nothing had been.
#[test]
fn the_device_hears_of_all_rows_and_nothing_is_left() {
    for name in ["qwen35-nano-F32", "llama-nano-F16"] {
        let want = logits(&mut load(name, OPTIONS).1);
        for (max_sequences, max_tokens, max_batch_rows, heard) in [
            (4, 512, 64, 64),
            (1, 512, 64, 64),
            // One page, and two sequences that might want one each.
            (2, PAGE_TOKENS, 512, PAGE_TOKENS),
            (2, 512, 2, 2),
            (2, 512, 1, 0),
        ] {
            for draft_nodes in [0, 8] {
                let options = LoadOptions {
                    max_sequences,
                    max_tokens,
                    max_batch_rows,
                    ..OPTIONS
                };
                let what = format!("{name}, {options:?}, {draft_nodes} nodes");
                let (device, mut model) = load(name, options);
                let room =
                    |model: &Model| (model.cache().free_sequences(), model.cache().free_pages());
                let before = room(&model);
                model
                    .warm_up(draft_nodes)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(room(&model), before, "{what}");
                assert_eq!(device.compiled_for(), heard, "{what}");
                assert!(logits(&mut model) == want, "{what}");
            }
        }
    }
}
