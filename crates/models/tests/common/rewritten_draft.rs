//! One golden draft in other dialects and under other configurations.

#![allow(clippy::unwrap_used, dead_code)]

use gguf::{Array, GgufFile, GgufWriter, Value};
use models::DraftDialect;

use super::drafts::path;

pub const NAME: &str = "dflash-qwen3-nano";

/// llama.cpp's file in another dialect; `change` may edit keys, `tensors` names (an empty one leaves the tensor out).
pub fn rewritten(
    dialect: DraftDialect,
    change: impl FnOnce(&mut GgufWriter<'_>),
    tensors: impl Fn(&str) -> String,
) -> GgufFile {
    let file = GgufFile::open(path(&format!("{NAME}-BF16.gguf"))).unwrap();
    let architecture = match dialect {
        DraftDialect::Lucebox => "qwen35-dflash-draft",
        DraftDialect::Underscore => "dflash-draft",
        _ => "dflash",
    };
    let mut writer = GgufWriter::new();
    writer.set(
        "general.architecture",
        Value::String(architecture.to_owned()),
    );
    for (key, value) in file.metadata().iter() {
        let Some(rest) = key.strip_prefix("dflash.") else {
            continue;
        };
        match (dialect, rest) {
            (DraftDialect::LlamaCpp, _) => writer.set(key, value.clone()),
            (_, "target_layers") => continue,
            (_, "block_size") => writer.set(format!("{architecture}.dflash.{rest}"), value.clone()),
            _ => writer.set(format!("{architecture}.{rest}"), value.clone()),
        };
    }
    if dialect == DraftDialect::LlamaCpp {
        writer.set("tokenizer.ggml.mask_token_id", Value::U32(511));
    } else {
        let own = |name: &str| format!("{architecture}.dflash.{name}");
        writer.set(own("mask_token_id"), Value::U32(511));
        let ids = Array::I32(vec![0, 1, 2]);
        writer.set(own("target_layer_ids"), Value::Array(ids));
        writer.set(own("n_target_layers"), Value::U32(3));
    }
    change(&mut writer);
    for tensor in file.tensors() {
        let name = match (dialect, tensor.name) {
            (DraftDialect::Lucebox, "fc.weight") => "dflash.fc.weight".to_owned(),
            (DraftDialect::Lucebox, "enc.output_norm.weight") => {
                "dflash.hidden_norm.weight".to_owned()
            }
            (DraftDialect::Underscore, "fc.weight") => "dflash_fc.weight".to_owned(),
            (DraftDialect::Underscore, "enc.output_norm.weight") => {
                "dflash_hidden_norm.weight".to_owned()
            }
            (DraftDialect::Underscore, name) => name.replace("ffn_norm", "post_attention_norm"),
            (_, name) => name.to_owned(),
        };
        let name = tensors(&name);
        if !name.is_empty() {
            writer
                .add_tensor(name, tensor.dtype, tensor.dims, tensor.data)
                .unwrap();
        }
    }
    GgufFile::from_bytes("test.gguf", writer.to_bytes().unwrap()).unwrap()
}

pub fn as_is(name: &str) -> String {
    name.to_owned()
}

/// The weights of the draft under another `config.json`.
pub fn folder_with(config: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let weights = folder.path().join("model.safetensors");
    std::fs::copy(path(NAME).join("model.safetensors"), weights).unwrap();
    folder
}
