//! Draft models against z-lab's own module: three calls that follow one another, from the original files and from
//! llama.cpp's.

#![allow(clippy::unwrap_used)]

mod common;

use models::{DraftAttention, DraftDialect, DraftFile, DraftModel};

use common::drafts::{
    DRAFTS, OPTIONS, Steps, bits, gguf_draft, max_abs, path, target, token_of, try_load,
};

/// Float weights and activations: the order of sums is all that differs.
const TOLERANCE: f32 = 1e-4;

/// Runs the three calls; the largest difference, and all logits.
fn run(draft: &DraftFile, target_name: &str, name: &str) -> (DraftModel, Vec<f32>) {
    let target = target(target_name);
    let mut model = try_load(draft, &target, OPTIONS).unwrap();
    let steps = Steps::open(name);
    let e = model.config().hidden_size;
    let id = model.create_sequence().unwrap();
    let mut all = Vec::new();
    for call in 0..3 {
        model.append(id, &steps.get(call, "new_features")).unwrap();
        let noise = steps.get(call, "noise_embedding");
        let anchor = token_of(&target, &noise[..e]);
        assert_eq!(
            token_of(&target, &noise[e..2 * e]),
            model.config().mask_token_id
        );
        let hidden = model.block_hidden(id, anchor).unwrap();
        let logits = model.block_logits(id, anchor).unwrap();
        let hidden_error = max_abs(&hidden, &steps.get(call, "draft_hidden"));
        let error = max_abs(&logits, &steps.get(call, "draft_logits"));
        println!(
            "{name} {:?}, call {call}: hidden {hidden_error:.1e}, logits {error:.1e}",
            draft.dialect()
        );
        assert!(hidden_error <= TOLERANCE && error <= TOLERANCE);
        all.extend(logits);
    }
    (model, all)
}

#[test]
fn drafts_give_the_hidden_rows_and_logits_of_the_reference() {
    for (target_name, name) in DRAFTS {
        let original = DraftFile::open(path(name)).unwrap();
        assert_eq!(original.dialect(), DraftDialect::HuggingFace);
        let (model, logits) = run(&original, target_name, name);
        let converted = gguf_draft(name);
        assert_eq!(converted.dialect(), DraftDialect::LlamaCpp);
        let (other, same) = run(&converted, target_name, name);
        // The same weights, so the same bits; and all that one file says the other says too.
        assert_eq!(bits(&logits), bits(&same));
        let mut config = model.config().clone();
        config.dialect = DraftDialect::LlamaCpp;
        assert_eq!(config, *other.config());
        assert!(config.attention.iter().all(|a| *a == DraftAttention::Full));
    }
}

#[test]
fn capture_ids_are_those_of_outputs_in_every_dialect() {
    for ((target_name, name), want) in DRAFTS.into_iter().zip([&[0, 1, 2][..], &[0, 2]]) {
        for draft in [DraftFile::open(path(name)).unwrap(), gguf_draft(name)] {
            let model = try_load(&draft, &target(target_name), OPTIONS).unwrap();
            assert_eq!(model.config().capture_layers, want);
        }
    }
}
