//! Drafts of the test data.

#![allow(clippy::unwrap_used, dead_code)]

use std::path::PathBuf;

use gguf::GgufFile;
use models::{DraftFile, DraftModel, DraftOptions, KvType, ModelError, load_draft};
use safetensors::SafeTensors;

use super::{data, device};

/// Target (only its keys, embedding and head) and name of each golden draft.
pub const DRAFTS: [(&str, &str); 2] = [
    ("qwen3-nano", "dflash-qwen3-nano"),
    ("qwen35-nano", "dflash-qwen35-nano"),
];

pub const OPTIONS: DraftOptions = DraftOptions {
    max_context_tokens: 256,
    max_sequences: 3,
    max_rows: 16,
    kv_type: Some(KvType::F32),
    mask_token_id: None,
    rope_theta: None,
    sliding_window: None,
};

pub fn path(name: &str) -> PathBuf {
    data().join("dflash").join(name)
}

pub fn target(name: &str) -> GgufFile {
    GgufFile::open(path(&format!("{name}.ends.gguf"))).unwrap()
}

pub fn gguf_draft(name: &str) -> DraftFile {
    DraftFile::open(path(&format!("{name}-BF16.gguf"))).unwrap()
}

pub fn try_load(
    draft: &DraftFile,
    target: &GgufFile,
    options: DraftOptions,
) -> Result<DraftModel, ModelError> {
    load_draft(draft, target, device(2), options, &mut |_| {})
}

/// Inputs and outputs of three calls of the reference.
pub struct Steps {
    bytes: Vec<u8>,
}

impl Steps {
    pub fn open(name: &str) -> Self {
        let bytes = std::fs::read(path(&format!("{name}.steps.safetensors"))).unwrap();
        Self { bytes }
    }

    pub fn get(&self, call: usize, name: &str) -> Vec<f32> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(&format!("step{call}.{name}")).unwrap();
        let (words, rest) = tensor.data().as_chunks();
        assert!(rest.is_empty());
        words.iter().map(|word| f32::from_le_bytes(*word)).collect()
    }
}

/// The token whose embedding a row is.
pub fn token_of(target: &GgufFile, row: &[f32]) -> u32 {
    let table = target.tensor("token_embd.weight").unwrap();
    let mut values = vec![0.0; table.cols()];
    table
        .data
        .chunks_exact(table.data.len() / table.rows())
        .position(|bytes| {
            tensor::decode_row(table.dtype, bytes, &mut values).unwrap();
            values == row
        })
        .unwrap() as u32
}

pub fn max_abs(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .fold(0.0, |most, (x, y)| most.max((x - y).abs()))
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
