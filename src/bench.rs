//! `tandem bench`: what a model does on a device, and what drafts make of it.

mod drafts;
mod needle;
mod plain;
mod prompts;

use anyhow::{Result, ensure};

use crate::cli::BenchArgs;

/// Runs the command.
pub(crate) fn run(args: &BenchArgs, log: &str) -> Result<()> {
    ensure!(args.repetitions > 0, "--repetitions must be at least 1");
    let is_plain = !(args.needle.needle || args.needle.ttft)
        && args.draft.draft.is_none()
        && args.mode.is_empty();
    ensure!(
        !args.energy || is_plain && args.split.target_devices.is_empty(),
        "--energy measures a model by itself on one device: not with --needle, --ttft, --draft, --mode or --target-devices"
    );
    if args.needle.needle || args.needle.ttft {
        needle::run(args, log)
    } else if args.draft.draft.is_some() || !args.mode.is_empty() {
        drafts::run(args, log)
    } else {
        plain::run(args, log)
    }
}
