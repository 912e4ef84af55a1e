//! What is refused, and that nothing has changed then.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use gguf::GgufFile;
use kernels::CpuDevice;
use kv_cache::CacheError;
use models::{LoadOptions, ModelError, load};

use common::{OPTIONS, batch, chain, data, open, tree};

const QWEN35: &str = "qwen35-nano-Q4_0.gguf";

/// Loads it; what is refused must be refused before the first weight is loaded.
fn load_bytes(bytes: Vec<u8>, options: LoadOptions) -> Result<models::Model, ModelError> {
    let file = GgufFile::from_bytes("test.gguf", bytes).unwrap();
    let mut loaded = 0;
    let model = load(
        &file,
        Arc::new(CpuDevice::new(1).unwrap()),
        options,
        &mut |_| loaded += 1,
    );
    assert!(model.is_ok() || loaded == 0, "{loaded} tensors were loaded");
    model
}

/// The file with each `from` replaced by `to`, of the same length.
fn patched(name: &str, from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(data().join(name)).unwrap();
    let mut found = false;
    for at in 0..=bytes.len() - from.len() {
        if bytes[at..].starts_with(from.as_bytes()) {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            found = true;
        }
    }
    assert!(found);
    bytes
}

#[test]
fn the_prediction_block_is_ignored() {
    let model = open(data().join("qwen35-heads-Q8_0.gguf"));
    assert_eq!(model.config().num_layers, 4);
    assert_eq!(model.config().num_prediction_blocks, 1);
}

#[test]
fn progress_ends_at_the_total() {
    let file = GgufFile::open(data().join("llama-nano-Q4_1.gguf")).unwrap();
    let mut last = None;
    load(
        &file,
        Arc::new(CpuDevice::new(1).unwrap()),
        OPTIONS,
        &mut |p| last = Some(p),
    )
    .unwrap();
    let last = last.unwrap();
    assert_eq!(last.bytes_done, last.bytes_total);
}

#[test]
fn an_unknown_architecture_is_refused() {
    let error = load_bytes(patched("llama-nano-Q4_1.gguf", "llama", "lemma"), OPTIONS).unwrap_err();
    assert!(
        matches!(&error, ModelError::UnknownArchitecture { got, .. } if got == "lemma"),
        "{error}"
    );
    assert!(
        error.to_string().contains("qwen35, qwen3, llama"),
        "{error}"
    );
}

#[test]
fn a_missing_tensor_is_named() {
    let error = load_bytes(
        patched(QWEN35, "blk.1.ssm_dt.bias", "blk.1.ssm_dt.bios"),
        OPTIONS,
    )
    .unwrap_err();
    assert!(
        error.to_string().contains("\"blk.1.ssm_dt.bias\": missing"),
        "{error}"
    );
}

#[test]
fn an_unknown_tensor_is_named() {
    let bytes = patched("llama-nano-Q4_1.gguf", "output.weight", "outpot.weight");
    // Attention outputs carry the name too: put those back.
    let bytes = restore(bytes, b"attn_outpot.weight", b"attn_output.weight");
    let error = load_bytes(bytes, OPTIONS).unwrap_err();
    assert!(
        matches!(&error, ModelError::UnknownTensor { tensor, .. } if tensor == "outpot.weight"),
        "{error}"
    );
}

fn restore(mut bytes: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    for at in 0..=bytes.len() - from.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
    bytes
}

#[test]
fn a_wrong_shape_is_named() {
    let file = std::fs::read(data().join("llama-nano-Q4_1.gguf")).unwrap();
    let key = b"llama.feed_forward_length";
    let at = file.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    let mut bytes = file;
    bytes[at] ^= 32;
    let error = load_bytes(bytes, OPTIONS).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("tensor \"blk.0.ffn_gate.weight\": expected shape"),
        "{error}"
    );
}

#[test]
fn a_cache_beyond_all_memory_is_refused() {
    let options = LoadOptions {
        max_tokens: 1 << 50,
        ..OPTIONS
    };
    let error = load_bytes(std::fs::read(data().join(QWEN35)).unwrap(), options).unwrap_err();
    let ModelError::DoesNotFit {
        needed,
        available,
        missing,
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(needed - available, missing);
}

#[test]
fn bad_batches_change_nothing() {
    let mut model = open(data().join(QWEN35));
    let id = model.create_sequence().unwrap();
    model.forward(&batch(vec![chain(id, &[1, 2, 3])])).unwrap();
    let before = model.snapshot(id).unwrap();
    let mut refused = |segments| model.forward(&batch(segments)).unwrap_err();
    assert!(matches!(refused(vec![]), ModelError::EmptySegment { .. }));
    assert!(matches!(
        refused(vec![chain(id, &[])]),
        ModelError::EmptySegment { .. }
    ));
    assert!(matches!(
        refused(vec![chain(id, &[1, 512])]),
        ModelError::TokenOutOfRange {
            index: 1,
            token: 512,
            ..
        }
    ));
    assert!(matches!(
        refused(vec![chain(id, &[1; 65])]),
        ModelError::TooManyRows { limit: 64, got: 65 }
    ));
    assert!(matches!(
        refused(vec![chain(id, &[1]), chain(id, &[2])]),
        ModelError::RepeatedSequence { segment: 1 }
    ));
    assert!(matches!(
        refused(vec![tree(id, &[1, 2], &[-1, 1])]),
        ModelError::Parents { .. }
    ));
    assert!(matches!(
        refused(vec![tree(id, &[1, 2], &[-1])]),
        ModelError::Parents { .. }
    ));
    let mut fork = tree(id, &[1, 2], &[-1, -1]);
    fork.advance = true;
    assert!(matches!(refused(vec![fork]), ModelError::Parents { .. }));
    let mut capture = batch(vec![chain(id, &[1])]);
    capture.capture_layers = vec![4];
    assert!(matches!(
        model.forward(&capture),
        Err(ModelError::CaptureLayer {
            layer: 4,
            num_layers: 4
        })
    ));
    assert!(model.snapshot(id).unwrap() == before);
}

#[test]
fn a_full_pool_is_an_error_and_not_a_loss() {
    let mut model = open(data().join(QWEN35));
    let id = model.create_sequence().unwrap();
    let fill: Vec<u32> = vec![5; 64];
    for _ in 0..8 {
        model.forward(&batch(vec![chain(id, &fill)])).unwrap();
    }
    let error = model.forward(&batch(vec![chain(id, &[1])])).unwrap_err();
    let out_of_room = matches!(
        error,
        ModelError::Cache(CacheError::OutOfPages { missing: 1, .. })
            | ModelError::ContextOverflow { .. }
    );
    assert!(out_of_room, "{error}");
    assert_eq!(model.sequence_len(id).unwrap(), 512);
    model.free_sequence(id).unwrap();
    let id = model.create_sequence().unwrap();
    model.forward(&batch(vec![chain(id, &[1])])).unwrap();
}
