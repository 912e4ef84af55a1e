//! Drafts that are refused, by name and before anything is loaded.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use gguf::{Array, GgufFile, GgufWriter, Value};
use kernels::CpuDevice;
use models::{DraftDialect, DraftFile, DraftOptions, load_draft};

use common::drafts::{OPTIONS, gguf_draft, path, target};
use common::rewritten_draft::{NAME, as_is, folder_with, rewritten};

/// Loads a file that must be refused before the first weight is loaded; the message.
fn refused(draft: &DraftFile, target_name: &str, options: DraftOptions) -> String {
    let device = Arc::new(CpuDevice::new(1).unwrap());
    let mut loaded = 0;
    let target = target(target_name);
    let error = load_draft(draft, &target, device, options, &mut |_| loaded += 1).unwrap_err();
    assert_eq!(loaded, 0, "{error}");
    error.to_string()
}

#[test]
fn files_that_the_graph_cannot_use_are_refused_by_name() {
    let lucebox = |change: &dyn Fn(&mut GgufWriter<'_>), tensors: &dyn Fn(&str) -> String| {
        let file = rewritten(DraftDialect::Lucebox, change, tensors);
        refused(&DraftFile::from_gguf(file).unwrap(), "qwen3-nano", OPTIONS)
    };
    let key = |name: &str, value: Value| {
        let key = format!("qwen35-dflash-draft.{name}");
        lucebox(
            &move |writer| {
                writer.set(key.clone(), value.clone());
            },
            &as_is,
        )
    };
    let renamed = |from: &str, to: &str| {
        let (from, to) = (from.to_owned(), to.to_owned());
        lucebox(&|_| (), &move |name| {
            if name == from {
                to.clone()
            } else {
                name.to_owned()
            }
        })
    };
    let ids = |ids: &[i32]| Value::Array(Array::I32(ids.to_vec()));
    for (message, what) in [
        (
            renamed("blk.1.ffn_up.weight", "blk.1.ffn_down_2.weight"),
            "tensor \"blk.1.ffn_up.weight\": missing",
        ),
        (
            renamed("output_norm.weight", ""),
            "tensor \"output_norm.weight\": missing",
        ),
        (
            renamed("blk.0.attn_q_norm.weight", "blk.0.attn_sinks.weight"),
            "\"blk.0.attn_sinks.weight\" belongs to attention sinks",
        ),
        (
            renamed("blk.0.attn_q_norm.weight", "selector_head.weight"),
            "belongs to DFlash2's selector head",
        ),
        (
            renamed("blk.0.attn_q_norm.weight", "d2t"),
            "\"d2t\" belongs to a reduced draft vocabulary",
        ),
        (
            key("dflash.domino.rank", Value::U32(3)),
            "dflash.domino.rank\" belongs to Domino's",
        ),
        (
            key("dflash.mask_token_id", Value::U32(512)),
            "dflash.mask_token_id\": expected an id below the vocabulary of 512, got 512",
        ),
        (
            key("dflash.target_layer_ids", ids(&[0, 1, 4])),
            "target_layer_ids\": expected layers of the target's 4, got [0, 1, 4]",
        ),
        (
            key("dflash.target_layer_ids", ids(&[0, 1])),
            "n_target_layers\": expected the 2 capture ids, got 3",
        ),
        (
            key("dflash.n_target_layers", Value::U32(2)),
            "n_target_layers\": expected the 3 capture ids, got 2",
        ),
        (
            key("embedding_length", Value::U32(256)),
            "embedding_length\": expected 128, as the target's, got 256",
        ),
        (
            key("vocab_size", Value::U32(513)),
            "vocab_size\": expected 512, as the target's, got 513",
        ),
        (
            key("block_count", Value::U32(u32::MAX)),
            "block_count\": expected 1 to",
        ),
        (
            key("block_count", Value::U32(3)),
            "tensor \"blk.2.attn_norm.weight\": missing",
        ),
        (key("block_count", Value::U32(1)), "tensor \"blk.1."),
        (
            key("feed_forward_length", Value::U32(96)),
            "tensor \"blk.0.ffn_gate.weight\": expected shape",
        ),
        (
            key("attention.head_count_kv", Value::U32(3)),
            "head_count_kv\": expected a divisor of 4 heads",
        ),
        (
            key("attention.key_length", Value::U32(40)),
            "expected the key length 40",
        ),
        (
            key("attention.sliding_window", Value::U32(4)),
            "sliding_window_pattern\": expected which layers",
        ),
        (
            key("dflash.block_size", Value::U32(1)),
            "block_size\": expected 2 to 256",
        ),
        (
            key("rope.freq_base", Value::F32(-1.0)),
            "rope.freq_base\": expected a positive number",
        ),
        (
            key("rope.scaling.type", Value::String("yarn".to_owned())),
            "rope.scaling.type\": expected none, got yarn",
        ),
    ] {
        assert!(message.contains(what), "{message}\nlacks {what}");
        assert!(message.contains("test.gguf"), "{message}");
    }
    let huge = DraftOptions {
        max_context_tokens: 1 << 50,
        ..OPTIONS
    };
    let message = refused(&gguf_draft(NAME), "qwen3-nano", huge);
    assert!(message.contains("does not fit"), "{message}");
    let file = GgufFile::open(path("qwen3-nano.ends.gguf")).unwrap();
    let error = DraftFile::from_gguf(file).unwrap_err().to_string();
    assert!(
        error.contains("architecture \"qwen3\" is not supported, expected one of dflash"),
        "{error}"
    );
}

/// llama.cpp's ids count inputs: 0 would be the output of no layer.
#[test]
fn an_id_of_no_output_is_refused() {
    let file = rewritten(
        DraftDialect::LlamaCpp,
        |writer| {
            let ids = Value::Array(Array::I32(vec![0, 1, 2]));
            writer.set("dflash.target_layers", ids);
        },
        as_is,
    );
    let message = refused(&DraftFile::from_gguf(file).unwrap(), "qwen3-nano", OPTIONS);
    assert!(
        message.contains("\"dflash.target_layers\": expected ids from 1 on"),
        "{message}"
    );
}

#[test]
fn hostile_safetensors_and_configurations_are_errors() {
    let good = std::fs::read_to_string(path(NAME).join("config.json")).unwrap();
    for (from, to) in [
        ("\"hidden_size\": 128", "\"hidden_size\": -1"),
        (
            "\"hidden_size\": 128",
            "\"hidden_size\": 18446744073709551615",
        ),
        ("\"hidden_size\": 128", "\"hidden_size\": null"),
        ("\"head_dim\": 64", "\"head_dim\": 18446744073709551615"),
        (
            "\"num_hidden_layers\": 2",
            "\"num_hidden_layers\": 4294967296",
        ),
        ("\"num_attention_heads\": 4", "\"num_attention_heads\": 0"),
        ("\"block_size\": 8", "\"block_size\": 1e99"),
        ("\"mask_token_id\": 511", "\"mask_token_id\": \"x\""),
        ("\"rope_theta\": 1000000.0", "\"rope_theta\": 1e99"),
        ("\"full_attention\",", "\"strange_attention\","),
        ("\"full_attention\",", "\"sliding_attention\","),
        ("\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\""),
        ("\"model_type\"", "\"draft_vocab_size\": 3, \"model_type\""),
        ("\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": -1"),
    ] {
        let folder = folder_with(&good.replacen(from, to, 1));
        assert!(good.contains(from));
        let draft = DraftFile::open(folder.path()).unwrap();
        let message = refused(&draft, "qwen3-nano", OPTIONS);
        assert!(message.contains("config.json"), "{message}");
    }
    for text in [
        "",
        "{",
        "[]",
        "null",
        "{\"dflash_config\": 3}",
        &"[".repeat(100_000),
    ] {
        let folder = folder_with(text);
        let opened = DraftFile::open(folder.path());
        assert!(opened.is_err() || !refused(&opened.unwrap(), "qwen3-nano", OPTIONS).is_empty());
    }
    // A file cut at every power of two, one with a huge header, and one with a table that lies.
    let bytes = std::fs::read(path(NAME).join("model.safetensors")).unwrap();
    let mut damaged: Vec<Vec<u8>> = (0..20).map(|i| bytes[..1 << i].to_vec()).collect();
    damaged.push([&u64::MAX.to_le_bytes()[..], &bytes[8..]].concat());
    let text = String::from_utf8_lossy(&bytes[8..2000]).into_owned();
    for (from, to) in [
        ("BF16", "I8  "),
        ("BF16", "F32\""),
        ("[128]", "[999]"),
        ("data_offsets", "data_affsets"),
    ] {
        let at = text.find(from).unwrap() + 8;
        let mut bytes = bytes.clone();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        damaged.push(bytes);
    }
    for bytes in damaged {
        let folder = folder_with(&good);
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        let error = DraftFile::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("model.safetensors"), "{error}");
    }
    let empty = tempfile::tempdir().unwrap();
    let error = DraftFile::open(empty.path()).unwrap_err().to_string();
    assert!(error.contains("no model.safetensors"), "{error}");
}
