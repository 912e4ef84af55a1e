//! The same draft in every dialect, and what lies beside it.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use gguf::{Array, GgufFile, GgufWriter, Value};
use kernels::CpuDevice;
use models::{DraftAttention, DraftDialect, DraftFile, DraftModel, DraftOptions, load_draft};

use common::drafts::{OPTIONS, Steps, bits, gguf_draft, path, target, try_load};
use common::rewritten_draft::{NAME, as_is, folder_with, rewritten};

fn load(file: GgufFile) -> DraftModel {
    let draft = DraftFile::from_gguf(file).unwrap();
    try_load(&draft, &target("qwen3-nano"), OPTIONS).unwrap()
}

fn logits(model: &mut DraftModel) -> Vec<f32> {
    let id = model.create_sequence().unwrap();
    let features = Steps::open(NAME).get(0, "new_features");
    model.append(id, &features).unwrap();
    model.block_logits(id, 100).unwrap()
}

#[test]
fn every_dialect_gives_the_same_bits() {
    let target = target("qwen3-nano");
    let mut model = try_load(&gguf_draft(NAME), &target, OPTIONS).unwrap();
    let want = logits(&mut model);
    for dialect in [
        DraftDialect::Lucebox,
        DraftDialect::Underscore,
        DraftDialect::LlamaCpp,
    ] {
        let mut other = load(rewritten(dialect, |_| (), as_is));
        let mut config = other.config().clone();
        assert_eq!(config.dialect, dialect);
        config.dialect = DraftDialect::LlamaCpp;
        assert_eq!(config, *model.config());
        assert_eq!(bits(&logits(&mut other)), bits(&want), "{dialect:?}");
    }
}

#[test]
fn windows_are_read_from_keys() {
    let config = |change: &dyn Fn(&mut GgufWriter<'_>)| {
        let model = load(rewritten(DraftDialect::LlamaCpp, change, as_is));
        model.config().attention.clone()
    };
    let set = |writer: &mut GgufWriter<'_>| {
        writer.set("dflash.attention.sliding_window", Value::U32(9));
        let pattern = Value::Array(Array::Bool(vec![true, false]));
        writer.set("dflash.attention.sliding_window_pattern", pattern);
    };
    let sliding = |causal| DraftAttention::Sliding { window: 9, causal };
    assert_eq!(config(&set), [sliding(true), DraftAttention::Full]);
    let both_ways = |writer: &mut GgufWriter<'_>| {
        set(writer);
        writer.set("dflash.attention.causal", Value::Bool(false));
    };
    assert_eq!(config(&both_ways), [sliding(false), DraftAttention::Full]);
    let causal = |writer: &mut GgufWriter<'_>| {
        set(writer);
        writer.set("dflash.attention.causal", Value::Bool(true));
    };
    assert_eq!(config(&causal), [sliding(true), DraftAttention::Causal]);
}

#[test]
fn missing_capture_ids_are_those_of_training() {
    let text = std::fs::read_to_string(path(NAME).join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["dflash_config"]["target_layer_ids"].take();
    let folder = folder_with(&config.to_string());
    let draft = DraftFile::open(folder.path()).unwrap();
    let model = try_load(&draft, &target("qwen3-nano"), OPTIONS).unwrap();
    assert_eq!(model.config().capture_layers, [1, 1, 1]);
}

#[test]
fn a_configuration_beside_a_gguf_file_knows_base_and_mask_better() {
    let text = std::fs::read_to_string(path(NAME).join("config.json")).unwrap();
    let nested = text
        .replace(
            "\"rope_theta\": 1000000.0",
            "\"rope_parameters\": {\"rope_theta\": 5000.0}",
        )
        .replace("511", "7");
    let folder = folder_with(&nested);
    let file = folder.path().join("draft.gguf");
    std::fs::copy(path(&format!("{NAME}-BF16.gguf")), &file).unwrap();
    let load = |options| {
        let draft = DraftFile::open(&file).unwrap();
        try_load(&draft, &target("qwen3-nano"), options).unwrap()
    };
    let model = load(OPTIONS);
    let config = model.config();
    assert_eq!((config.rope_theta, config.mask_token_id), (5000.0, 7));
    let model = load(DraftOptions {
        rope_theta: Some(3e5),
        mask_token_id: Some(9),
        ..OPTIONS
    });
    let config = model.config();
    assert_eq!((config.rope_theta, config.mask_token_id), (3e5, 9));
    // The configuration of some other model is none of the draft's business, that of another draft is an error.
    let json = folder.path().join("config.json");
    std::fs::write(&json, r#"{"rope_theta": 1.0, "hidden_size": 5}"#).unwrap();
    assert_eq!(load(OPTIONS).config().rope_theta, 1e6);
    std::fs::write(
        &json,
        nested.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"),
    )
    .unwrap();
    let draft = DraftFile::open(&file).unwrap();
    let error = try_load(&draft, &target("qwen3-nano"), OPTIONS).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("\"num_hidden_layers\": expected 2"),
        "{error}"
    );
}

#[test]
fn progress_ends_at_the_total() {
    let device = Arc::new(CpuDevice::new(1).unwrap());
    let mut last = None;
    let (draft, target) = (gguf_draft(NAME), target("qwen3-nano"));
    load_draft(&draft, &target, device, OPTIONS, &mut |p| last = Some(p)).unwrap();
    let last = last.unwrap();
    assert_eq!(last.bytes_done, last.bytes_total);
}
