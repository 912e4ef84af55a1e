//! Models of the test data, and shorthand for batches.

#![allow(clippy::unwrap_used, dead_code)]

pub mod drafts;
pub mod naive_draft;
pub mod rewritten_draft;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::{CpuDevice, KvType};
use models::{Batch, BatchSegment, LoadOptions, LogitsWanted, Model, SequenceId, load_path};

pub const OPTIONS: LoadOptions = LoadOptions {
    max_tokens: 512,
    max_sequences: 4,
    max_batch_rows: 64,
    kv_type: Some(KvType::F32),
};

pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

pub fn open(path: impl AsRef<Path>) -> Model {
    open_with(path, KvType::F32)
}

pub fn open_with(path: impl AsRef<Path>, kv_type: KvType) -> Model {
    let device = Arc::new(CpuDevice::new(2).unwrap());
    let options = LoadOptions {
        kv_type: Some(kv_type),
        ..OPTIONS
    };
    load_path(path, device, options, &mut |_| {}).unwrap()
}

/// A chain that is accepted already, with all logits.
pub fn chain(sequence: SequenceId, tokens: &[u32]) -> BatchSegment {
    BatchSegment {
        sequence,
        tokens: tokens.to_vec(),
        parents: Vec::new(),
        advance: true,
        logits: LogitsWanted::All,
    }
}

/// A tree to verify, with all logits.
pub fn tree(sequence: SequenceId, tokens: &[u32], parents: &[i32]) -> BatchSegment {
    BatchSegment {
        parents: parents.to_vec(),
        advance: false,
        ..chain(sequence, tokens)
    }
}

pub fn batch(segments: Vec<BatchSegment>) -> Batch {
    Batch {
        segments,
        capture_layers: Vec::new(),
    }
}
