//! `tandem doctor`: what this machine has, and whether a model fits.

use std::io::{Write, stdout};

use anyhow::{Context, Result};
use kernels::{CpuDevice, Device};
use models::{MemoryNeed, memory_need};
use serde_json::{Value, json};
use target_worker::context_length;

use crate::cli::DoctorArgs;
use crate::session;

const GIB: f64 = (1_u64 << 30) as f64;

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let device = CpuDevice::new(args.threads)?;
    let file = session::open(args.model.as_deref())?;
    let context_length = context_length(&file, args.ctx_size);
    let config = target_worker::Config {
        parallel: args.parallel,
        ..target_worker::Config::default()
    };
    let options = config.sizes(context_length)?.load_options(args.cache_type);
    let need = memory_need(&file, &options)
        .with_context(|| format!("reading {}", file.path().display()))?
        .on(&device);
    let report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "devices": [{
            "name": "cpu",
            "description": device.name(),
            "read_bytes_per_second": device.read_bandwidth(),
            "memory_available_bytes": need.available,
        }],
        "model": {
            "path": file.path(),
            "architecture": file.architecture()?,
            "context_length": context_length,
            "parallel": args.parallel,
            "weights_bytes": need.weights,
            "cache_bytes": need.cache,
            "scratch_bytes": need.scratch,
            "missing_bytes": need.missing(),
        },
    });
    if args.json {
        writeln!(stdout(), "{report}")?;
    } else {
        print(&report, &need)?;
    }
    Ok(())
}

fn print(report: &Value, need: &MemoryNeed) -> Result<()> {
    let gib = |bytes: u64| bytes as f64 / GIB;
    let device = &report["devices"][0];
    let model = &report["model"];
    writeln!(stdout(), "tandem  {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(stdout(), "device  {}", text(&device["description"]))?;
    writeln!(
        stdout(),
        "        memory reads at {:.1} GB/s",
        device["read_bytes_per_second"].as_f64().unwrap_or(0.0) / 1e9
    )?;
    if let Some(available) = need.available {
        writeln!(
            stdout(),
            "        {:.2} GiB of memory are available",
            gib(available)
        )?;
    }
    writeln!(stdout(), "        GPUs are not used by this version")?;
    writeln!(
        stdout(),
        "model   {} ({})",
        text(&model["path"]),
        text(&model["architecture"])
    )?;
    writeln!(
        stdout(),
        "        {} sequences of {} tokens: weights {:.2} + cache {:.2} + scratch {:.2} = {:.2} GiB",
        model["parallel"],
        model["context_length"],
        gib(need.weights),
        gib(need.cache),
        gib(need.scratch),
        gib(need.total())
    )?;
    match need.missing() {
        0 => writeln!(stdout(), "        fits")?,
        missing => writeln!(
            stdout(),
            "        does NOT fit: {:.2} GiB are missing; lower --ctx-size or --parallel",
            gib(missing)
        )?,
    }
    Ok(())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}
