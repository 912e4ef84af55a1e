//! What a draft sees: windows, contexts that lost their oldest pages, and sequences beside each other.

#![allow(clippy::unwrap_used)]

mod common;

use models::{
    DraftAttention, DraftBlock, DraftFile, DraftModel, DraftOptions, KvType, ModelError, SequenceId,
};
use serde_json::{Value, json};

use common::drafts::{OPTIONS, bits, gguf_draft, path, target, try_load};
use common::naive_draft::NaiveDraft;

const NAME: &str = "dflash-qwen35-nano";
const PAGE: usize = 64;

/// Features of a position.
fn feature(model: &DraftModel, position: usize) -> Vec<f32> {
    (0..model.config().feature_len())
        .map(|i| {
            let word = (position * 7919 + i * 104_729 + 13) as u32;
            let word = word.wrapping_mul(2_654_435_761);
            (word >> 16) as f32 / 8192.0 - 4.0
        })
        .collect()
}

fn append(model: &mut DraftModel, id: SequenceId, positions: std::ops::Range<usize>) {
    let rows: Vec<f32> = positions.flat_map(|p| feature(model, p)).collect();
    model.append(id, &rows).unwrap();
}

/// The original files with another `config.json`, as `change` makes it.
fn changed(folder: &tempfile::TempDir, change: impl FnOnce(&mut Value)) -> DraftFile {
    let text = std::fs::read(path(NAME).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    change(&mut config);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let weights = folder.path().join("model.safetensors");
    std::fs::copy(path(NAME).join("model.safetensors"), weights).unwrap();
    DraftFile::open(folder.path()).unwrap()
}

fn sliding(window: usize, causal: bool) -> DraftAttention {
    DraftAttention::Sliding { window, causal }
}

/// Layers of a `config.json`, the same resolved, and the number of context rows, against plain loops in f64.
#[test]
fn windows_are_those_of_a_plain_loop() {
    use DraftAttention::{Causal, Full};
    let types = json!(["sliding_attention", "full_attention", "sliding_attention"]);
    let cases = [
        (json!({}), vec![Full; 3]),
        (
            json!({"layer_types": types, "sliding_window": 5}),
            vec![sliding(5, true), Full, sliding(5, true)],
        ),
        (
            json!({"layer_types": types, "sliding_window": 70, "is_causal": false}),
            vec![sliding(70, false), Full, sliding(70, false)],
        ),
        (
            json!({"layer_types": types, "dflash_config": {"causal": false, "swa_window_size": 9}, "sliding_window": 5}),
            vec![sliding(9, false), Full, sliding(9, false)],
        ),
        (
            json!({"layer_types": null, "dflash_config": {"use_swa": true, "swa_window_size": 20}}),
            vec![sliding(20, false); 3],
        ),
        (json!({"is_causal": true}), vec![Causal; 3]),
    ];
    for (change, want) in cases {
        let folder = tempfile::tempdir().unwrap();
        let draft = changed(&folder, |config| merge(config, &change));
        let target = target("qwen35-nano");
        let mut model = try_load(&draft, &target, OPTIONS).unwrap();
        assert_eq!(model.config().attention, want, "{change}");
        let naive = NaiveDraft::open(draft.path(), &target, model.config());
        for (len, first) in [(3, 0), (75, 0), (64, 40)] {
            let id = model.create_sequence().unwrap();
            model.reset_sequence(id, first).unwrap();
            append(&mut model, id, first..first + len);
            let features: Vec<_> = (first..first + len).map(|p| feature(&model, p)).collect();
            let want = naive.logits(&features, first, 77).concat();
            let got = model.block_logits(id, 77).unwrap();
            let error = got
                .iter()
                .zip(&want)
                .fold(0.0_f64, |most, (g, w)| most.max((f64::from(*g) - w).abs()));
            println!("{change}, {len} rows from {first}: {error:.1e}");
            assert!(
                error <= 1e-4,
                "{change}, {len} rows from {first}: {error:e}"
            );
            model.free_sequence(id).unwrap();
        }
    }
}

fn merge(into: &mut Value, change: &Value) {
    for (key, value) in change.as_object().unwrap() {
        match into.get_mut(key) {
            Some(old @ Value::Object(_)) if value.is_object() => merge(old, value),
            _ => into[key] = value.clone(),
        }
    }
}

#[test]
fn a_window_can_be_set_from_outside() {
    let target = target("qwen35-nano");
    let load = |sliding_window| {
        let options = DraftOptions {
            sliding_window,
            ..OPTIONS
        };
        let model = try_load(&gguf_draft(NAME), &target, options).unwrap();
        model.config().attention.clone()
    };
    let windows = [sliding(7, true), sliding(7, true), DraftAttention::Full];
    assert_eq!(load(Some(7)), windows);
    assert_eq!(load(Some(0)), [DraftAttention::Full; 3]);
}

#[test]
fn several_sequences_at_once_equal_each_alone() {
    let target = target("qwen35-nano");
    for kv_type in [KvType::F32, KvType::F16] {
        let options = DraftOptions {
            kv_type: Some(kv_type),
            ..OPTIONS
        };
        let mut model = try_load(&gguf_draft(NAME), &target, options).unwrap();
        let mut blocks = Vec::new();
        for (i, len) in [70, 0, 49].into_iter().enumerate() {
            let sequence = model.create_sequence().unwrap();
            append(&mut model, sequence, i..i + len);
            blocks.push(DraftBlock {
                sequence,
                anchor: 40 + i as u32,
                depth: [15, 4, 1][i],
            });
        }
        let together = model.propose(&blocks, 5).unwrap();
        for (block, proposal) in blocks.iter().zip(&together) {
            let alone = model.propose(std::slice::from_ref(block), 5).unwrap();
            assert_eq!(*proposal, alone[0]);
            assert_eq!(proposal.depth(), block.depth);
            // A shallower proposal is the beginning of the whole one; the likeliest tokens are those of the logits.
            let whole = model
                .propose(
                    &[DraftBlock {
                        depth: 15,
                        ..*block
                    }],
                    5,
                )
                .unwrap();
            assert_eq!(proposal.ids, whole[0].ids[..block.depth * 5]);
            let logits = model.block_logits(block.sequence, block.anchor).unwrap();
            for (row, ids) in logits.chunks(512).zip(whole[0].ids.chunks(5)) {
                let mut order: Vec<u32> = (0..512).collect();
                order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
                assert_eq!(ids, &order[..5]);
            }
        }
    }
}

#[test]
fn a_context_without_its_oldest_pages_is_one_that_begins_later() {
    let target = target("qwen35-nano");
    let options = DraftOptions {
        max_context_tokens: 2 * PAGE - 5,
        ..OPTIONS
    };
    let mut model = try_load(&gguf_draft(NAME), &target, options).unwrap();
    // (positions in all, how many come at a time, first position that is left)
    for (total, step, first) in [
        (128, 128, 0),
        (129, 1, PAGE),
        (129, 129, PAGE),
        (200, 9, 2 * PAGE),
        (200, 90, 2 * PAGE),
        (1000, 1000, 14 * PAGE),
    ] {
        let id = model.create_sequence().unwrap();
        for start in (0..total).step_by(step) {
            append(&mut model, id, start..(start + step).min(total));
            // Scratch of a draft block between two pieces.
            model.block_logits(id, 3).unwrap();
        }
        assert_eq!(model.context_len(id).unwrap(), total - first);
        assert_eq!(model.next_position(id).unwrap(), total);
        let fresh = model.create_sequence().unwrap();
        model.reset_sequence(fresh, first).unwrap();
        append(&mut model, fresh, first..total);
        let [got, want] = [id, fresh].map(|id| model.block_logits(id, 9).unwrap());
        assert_eq!(bits(&got), bits(&want), "{total} positions by {step}");
        model.free_sequence(id).unwrap();
        model.free_sequence(fresh).unwrap();
    }
}

#[test]
fn every_sequence_can_fill_its_context() {
    let target = target("qwen35-nano");
    let mut model = try_load(&gguf_draft(NAME), &target, OPTIONS).unwrap();
    let ids: Vec<_> = (0..3).map(|_| model.create_sequence().unwrap()).collect();
    for &id in &ids {
        append(&mut model, id, 0..300);
    }
    let blocks: Vec<_> = ids
        .iter()
        .map(|&sequence| DraftBlock {
            sequence,
            anchor: 1,
            depth: 15,
        })
        .collect();
    let proposals = model.propose(&blocks, 2).unwrap();
    assert!(proposals.windows(2).all(|pair| pair[0] == pair[1]));
    assert!(model.create_sequence().is_err());
}

#[test]
fn what_cannot_be_proposed_is_refused_and_changes_nothing() {
    let target = target("qwen35-nano");
    let mut model = try_load(&gguf_draft(NAME), &target, OPTIONS).unwrap();
    let id = model.create_sequence().unwrap();
    append(&mut model, id, 0..10);
    let block = DraftBlock {
        sequence: id,
        anchor: 1,
        depth: 15,
    };
    let before = model.propose(&[block], 3).unwrap();
    let mut refused = |blocks: &[DraftBlock], k| model.propose(blocks, k).unwrap_err();
    let depth = |depth| DraftBlock { depth, ..block };
    assert!(matches!(
        refused(&[depth(0)], 3),
        ModelError::DraftDepth { .. }
    ));
    assert!(matches!(
        refused(&[depth(16)], 3),
        ModelError::DraftDepth { limit: 15, .. }
    ));
    assert!(matches!(
        refused(&[block], 0),
        ModelError::DraftDepth { .. }
    ));
    let twice = refused(&[block, block], 3);
    assert!(matches!(twice, ModelError::RepeatedSequence { segment: 1 }));
    let outside = DraftBlock {
        anchor: 512,
        ..block
    };
    assert!(matches!(
        refused(&[outside], 3),
        ModelError::TokenOutOfRange { .. }
    ));
    let odd = model.append(id, &[0.0; 257]).unwrap_err();
    assert!(matches!(
        odd,
        ModelError::FeatureLen {
            row_len: 256,
            got: 257
        }
    ));
    let far = model.reset_sequence(id, usize::MAX).unwrap_err();
    assert!(matches!(far, ModelError::ContextOverflow { .. }));
    assert_eq!(model.context_len(id).unwrap(), 10);
    assert_eq!(model.propose(&[block], 3).unwrap(), before);
    assert!(model.propose(&[], 3).unwrap().is_empty());
    model.free_sequence(id).unwrap();
    assert!(model.propose(&[block], 3).is_err() && model.append(id, &[]).is_err());
}
