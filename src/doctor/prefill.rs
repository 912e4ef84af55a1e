//! Whether a prefill drafter fits.

use std::io::{Write, stdout};
use std::path::Path;

use anyhow::{Context, Result};
use models::{MemoryNeed, ModelConfig, ScorerOptions, scorer_memory_need};
use serde_json::{Value, json};

use super::{gib, text};
use crate::session;

/// What a drafter takes for its longest prompt, and whether `devices` have it.
pub(super) fn report(drafter: Option<&Path>, devices: &[Value]) -> Result<Value> {
    let file = session::open_drafter(drafter)?;
    let reading = || format!("the prefill drafter {}", file.path().display());
    let model = ModelConfig::read(&file).with_context(reading)?;
    let prompt_tokens = model.context_length;
    let options = ScorerOptions::default();
    let need = scorer_memory_need(&file, &options, prompt_tokens).with_context(reading)?;
    let fits = devices.iter().map(|device| {
        let available = device["memory_available_bytes"].as_u64();
        let missing = available.map(|_| MemoryNeed { available, ..need }.missing());
        json!({"device": device["name"], "missing_bytes": missing})
    });
    Ok(json!({
        "path": file.path(),
        "architecture": model.architecture.name(),
        "prompt_tokens": prompt_tokens,
        "weights_bytes": need.weights,
        "prompt_bytes": need.cache,
        "scratch_bytes": need.scratch,
        "fits": fits.collect::<Vec<_>>(),
    }))
}

pub(super) fn print(report: &Value) -> Result<()> {
    let part = |key: &str| report[key].as_u64().unwrap_or(0);
    let parts = ["weights_bytes", "prompt_bytes", "scratch_bytes"].map(part);
    let [weights, prompt, scratch] = parts.map(gib);
    writeln!(
        stdout(),
        "prefill {} ({})",
        text(&report["path"]),
        text(&report["architecture"])
    )?;
    writeln!(
        stdout(),
        "        a prompt of {} tokens: weights {weights:.2} + prompt {prompt:.2} + scratch {scratch:.2} = {:.2} GiB",
        report["prompt_tokens"],
        weights + prompt + scratch
    )?;
    for fit in report["fits"].as_array().into_iter().flatten() {
        let device = text(&fit["device"]);
        match fit["missing_bytes"].as_u64() {
            None => {}
            Some(0) => writeln!(stdout(), "        fits on {device} by itself")?,
            Some(missing) => writeln!(
                stdout(),
                "        does NOT fit on {device}: {:.2} GiB are missing; shorter prompts take less",
                gib(missing)
            )?,
        }
    }
    Ok(())
}
