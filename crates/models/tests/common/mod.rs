//! Models of the test data, and shorthand for batches.

#![allow(clippy::unwrap_used, dead_code)]

pub mod drafts;
pub mod golden;
pub mod naive_dense;
pub mod naive_draft;
pub mod rewritten_draft;
pub mod stages;
pub mod watched;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::{Device, DeviceName, KvType, KvTypes, open_device};
use models::{Batch, BatchSegment, LoadOptions, LogitsWanted, Model, SequenceId, load_path};

pub const OPTIONS: LoadOptions = LoadOptions {
    max_tokens: 512,
    max_sequences: 4,
    max_batch_rows: 64,
    kv_type: Some(KvTypes::both(KvType::F32)),
};

pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// Variable that names the device that tests of models compute on: `cpu` unless it says `emulated` (kernels for GPUs, run on
/// the host; slow), `cuda:0` or the like.
const DEVICE: &str = "TANDEM_TEST_DEVICE";

pub fn device_name() -> DeviceName {
    let name = std::env::var(DEVICE).unwrap_or_default();
    let name = Some(name).filter(|name| !name.is_empty());
    name.map_or_else(DeviceName::default, |name| {
        name.parse()
            .unwrap_or_else(|error| panic!("{DEVICE}: {error}"))
    })
}

/// The device that tests compute on; `threads`: the CPU's.
pub fn device(threads: usize) -> Arc<dyn Device> {
    open_device(device_name(), threads).unwrap_or_else(|error| panic!("{DEVICE}: {error}"))
}

/// The GPU that tests of GPUs compute on: the one asked for, or the emulation.
pub fn gpu() -> Arc<dyn Device> {
    let name = match device_name() {
        DeviceName::Cpu => DeviceName::Emulated,
        gpu => gpu,
    };
    open_device(name, 0).unwrap_or_else(|error| panic!("{DEVICE}: {error}"))
}

pub fn open(path: impl AsRef<Path>) -> Model {
    open_with(path, KvType::F32)
}

pub fn open_with(path: impl AsRef<Path>, kv_type: KvType) -> Model {
    open_on(device(2), path, kv_type)
}

pub fn open_on(device: Arc<dyn Device>, path: impl AsRef<Path>, kv_type: KvType) -> Model {
    let options = LoadOptions {
        kv_type: Some(KvTypes::both(kv_type)),
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
