//! Opens a model for a command: file or demo, device, progress bar.

use std::sync::Arc;

use anyhow::{Context, Result};
use gguf::GgufFile;
use indicatif::{ProgressBar, ProgressStyle};
use kernels::CpuDevice;
use models::{LoadOptions, Model};

use crate::cli::ModelArgs;

/// The demo model, see `deploy/demo/README.md`.
const DEMO_TARGET: &[u8] = include_bytes!("../deploy/demo/demo-target.gguf");
/// Context where none is asked for: larger ones cost memory.
const DEFAULT_CONTEXT_TOKENS: usize = 8192;
/// Rows of one forward pass; longer prompts go in pieces of this size.
pub(crate) const BATCH_ROWS: usize = 512;

/// Opens the file asked for, or the demo.
pub(crate) fn open(args: &ModelArgs) -> Result<GgufFile> {
    match &args.model {
        Some(path) => {
            GgufFile::open(path).with_context(|| format!("opening model {}", path.display()))
        }
        None => GgufFile::from_bytes("demo-target.gguf", DEMO_TARGET.to_vec())
            .context("opening the demo model"),
    }
}

/// The CPU with the threads asked for.
pub(crate) fn device(args: &ModelArgs) -> Result<Arc<CpuDevice>> {
    let threads = match args.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    Ok(Arc::new(CpuDevice::new(threads)?))
}

/// Loads the weights behind a progress bar (on a terminal).
pub(crate) fn load(file: &GgufFile, args: &ModelArgs, device: Arc<CpuDevice>) -> Result<Model> {
    let declared = file
        .architecture()
        .ok()
        .and_then(|a| {
            file.metadata()
                .u64(&format!("{a}.context_length"))
                .ok()
                .flatten()
        })
        .map_or(DEFAULT_CONTEXT_TOKENS, |n| n as usize);
    let max_tokens = if args.ctx_size == 0 {
        declared.min(DEFAULT_CONTEXT_TOKENS)
    } else {
        args.ctx_size
    };
    let bar = ProgressBar::new(0).with_style(
        ProgressStyle::with_template(
            "loading {bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec}",
        )
        .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let options = LoadOptions {
        max_tokens,
        max_sequences: 2,
        max_batch_rows: BATCH_ROWS,
    };
    let model = models::load(file, device, options, &mut |progress| {
        bar.set_length(progress.bytes_total);
        bar.set_position(progress.bytes_done);
    });
    bar.finish_and_clear();
    Ok(model?)
}

/// Reads a JSON list of token ids.
pub(crate) fn read_tokens(path: &std::path::Path) -> Result<Vec<u32>> {
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
