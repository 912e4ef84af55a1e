//! Opens a model for a command: file or demo, device, progress bar.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use gguf::GgufFile;
use indicatif::{ProgressBar, ProgressStyle};
use kernels::{Device, open_limited_device};
use models::{DraftFile, LoadOptions, LoadProgress, Model, ModelError};
use target_worker::{context_length, prefill_chunk};

use crate::cli::ModelArgs;

/// The demo model, see `deploy/demo/README.md`.
const DEMO_TARGET: &[u8] = include_bytes!("../deploy/demo/demo-target.gguf");
/// Its draft.
const DEMO_DRAFT: &[u8] = include_bytes!("../deploy/demo/demo-draft.gguf");
/// What scores long prompts for it.
const DEMO_DRAFTER: &[u8] = include_bytes!("../deploy/demo/demo-prefill.gguf");
/// Tokens of a forward pass of the commands that look into a model.
pub(crate) const BATCH_ROWS: usize = 128;

/// Opens the file asked for, or the demo.
pub(crate) fn open(model: Option<&Path>) -> Result<GgufFile> {
    match model {
        Some(path) => {
            GgufFile::open(path).with_context(|| format!("opening model {}", path.display()))
        }
        None => GgufFile::from_bytes("demo-target.gguf", DEMO_TARGET.to_vec())
            .context("opening the demo model"),
    }
}

/// Opens the draft asked for, or the demo's.
pub(crate) fn open_draft(draft: Option<&Path>) -> Result<DraftFile> {
    match draft {
        Some(path) => {
            DraftFile::open(path).with_context(|| format!("opening draft {}", path.display()))
        }
        None => GgufFile::from_bytes("demo-draft.gguf", DEMO_DRAFT.to_vec())
            .map_err(ModelError::from)
            .and_then(DraftFile::from_gguf)
            .context("opening the demo draft"),
    }
}

/// Opens the prefill drafter asked for, or the demo's.
pub(crate) fn open_drafter(drafter: Option<&Path>) -> Result<GgufFile> {
    match drafter {
        Some(path) => GgufFile::open(path)
            .with_context(|| format!("opening prefill drafter {}", path.display())),
        None => GgufFile::from_bytes("demo-prefill.gguf", DEMO_DRAFTER.to_vec())
            .context("opening the demo prefill drafter"),
    }
}

/// The device asked for.
pub(crate) fn device(args: &ModelArgs) -> Result<Arc<dyn Device>> {
    let device = open_limited_device(args.device, args.threads, args.device_memory);
    let device = device.context("device")?;
    device.set_decode_path(args.decode_path);
    Ok(device)
}

/// Loads the weights behind a progress bar (on a terminal).
pub(crate) fn load(file: &GgufFile, args: &ModelArgs, device: Arc<dyn Device>) -> Result<Model> {
    let options = LoadOptions {
        max_tokens: context_length(file, args.ctx_size),
        max_sequences: 2,
        max_batch_rows: prefill_chunk(0, &[args.device]),
        kv_type: Some(args.cache_types.of(file)),
    };
    load_with(file, device, options)
}

/// The same for other sizes.
pub(crate) fn load_with(
    file: &GgufFile,
    device: Arc<dyn Device>,
    options: LoadOptions,
) -> Result<Model> {
    let bar = LoadBar::new();
    let mut model = models::load(file, device, options, &mut |so_far| {
        bar.show(so_far);
    })?;
    // No drafts in this process.
    model.warm_up(0)?;
    Ok(model)
}

/// A progress bar over the bytes of a model; goes when all are there.
pub(crate) struct LoadBar(ProgressBar);

impl LoadBar {
    pub(crate) fn new() -> Self {
        let style = ProgressStyle::with_template(
            "loading {bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec}",
        );
        Self(ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    pub(crate) fn show(&self, so_far: LoadProgress) {
        self.0.set_length(so_far.bytes_total);
        self.0.set_position(so_far.bytes_done);
        if so_far.bytes_done == so_far.bytes_total {
            self.0.finish_and_clear();
        }
    }
}

impl Drop for LoadBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Reads a JSON list of token ids.
pub(crate) fn read_tokens(path: &Path) -> Result<Vec<u32>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let value: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    let list = value
        .as_array()
        .with_context(|| format!("{}: expected a list of token ids", path.display()))?;
    list.iter()
        .enumerate()
        .map(|(i, v)| {
            v.as_u64()
                .and_then(|v| u32::try_from(v).ok())
                .with_context(|| format!("{}: element {i} is no token id: {v}", path.display()))
        })
        .collect()
}
