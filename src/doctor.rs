//! `tandem doctor`: what this machine has, and whether a model fits.

mod prefill;

use std::collections::HashMap;
use std::io::{Write, stdout};

use anyhow::{Context, Result};
use gguf::GgufFile;
use kernels::{CpuDevice, CudaDevice, CudaReport, Device, DeviceError, DeviceName, open_device};
use models::{MemoryNeed, memory_need, stage_memory_need};
use serde_json::{Value, json};
use target_worker::{context_length, transport_between};

use crate::cli::DoctorArgs;
use crate::{session, stages};

const GIB: f64 = (1_u64 << 30) as f64;

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let cpu = CpuDevice::new(args.threads)?;
    let cuda = CudaReport::new();
    let file = session::open(args.model.as_deref())?;
    let context_length = context_length(&file, args.ctx_size);
    let mut config = target_worker::Config {
        parallel: args.parallel,
        ctx_size: context_length,
        devices: args.target_devices.clone(),
        layer_split: args.target_layer_split.clone(),
        ..target_worker::Config::default()
    };
    args.cache_types.set(&mut config);
    let options = config.load_options(&file)?;
    let need = memory_need(&file, &options)
        .with_context(|| format!("reading {}", file.path().display()))?
        .on(&cpu);
    let mut devices = vec![json!({
        "name": DeviceName::Cpu.to_string(),
        "description": cpu.name(),
        "read_bytes_per_second": cpu.read_bandwidth(),
        "memory_available_bytes": need.available,
        "missing_bytes": need.missing(),
    })];
    let cuda_devices = cuda.devices.iter().enumerate();
    devices.extend(cuda_devices.map(|(ordinal, device)| cuda_device(ordinal, device, need)));
    let stages = stages(&mut config, &file, &devices)?;
    // The demo's own says nothing of another model.
    let has_drafter = args.prefill_drafter.is_some() || args.model.is_none();
    let prefill = has_drafter
        .then(|| prefill::report(args.prefill_drafter.as_deref(), &devices))
        .transpose()?;
    let report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "cuda": {"driver": said(&cuda.driver), "compiler": said(&cuda.compiler)},
        "transports": transports(&cuda.devices),
        "devices": devices,
        "model": {
            "path": file.path(),
            "architecture": file.architecture()?,
            "context_length": context_length,
            "parallel": args.parallel,
            "weights_bytes": need.weights,
            "cache_bytes": need.cache,
            "scratch_bytes": need.scratch,
            "missing_bytes": need.missing(),
            "stages": stages,
        },
        "prefill": prefill,
    });
    if args.json {
        writeln!(stdout(), "{report}")?;
    } else {
        print(&report, &need)?;
    }
    Ok(())
}

/// The stages of a split model, and whether they fit: those of one device together.
fn stages(
    config: &mut target_worker::Config,
    file: &GgufFile,
    devices: &[Value],
) -> Result<Vec<Value>> {
    if config.devices.is_empty() {
        return Ok(Vec::new());
    }
    let names = config.stage_devices()?;
    stages::complete_shares(config, &names);
    config.check_devices()?;
    let options = config.load_options(file)?;
    let mut taken: HashMap<DeviceName, u64> = HashMap::new();
    let mut report = Vec::new();
    for stage in target_worker::split(config, file)? {
        let need = stage_memory_need(file, &stage.layers, &options)?.total();
        let taken = taken.entry(stage.device).or_default();
        *taken += need;
        let device = stage.device.to_string();
        let device = devices.iter().find(|found| found["name"] == device);
        let available = device.and_then(|found| found["memory_available_bytes"].as_u64());
        report.push(json!({
            "name": stage.to_string(),
            "needed_bytes": need,
            "missing_bytes": available.map(|available| taken.saturating_sub(available)),
        }));
    }
    Ok(report)
}

/// A version, or why there is none.
fn said(found: &Result<String, DeviceError>) -> Value {
    match found {
        Ok(version) => json!({"version": version}),
        Err(error) => json!({"missing": error.to_string()}),
    }
}

/// What a GPU is, and whether it computes: its memory's speed is measured with a kernel compiled for it.
fn cuda_device(
    ordinal: usize,
    device: &Result<CudaDevice, DeviceError>,
    need: MemoryNeed,
) -> Value {
    let name = DeviceName::Cuda(ordinal);
    let device = match device {
        Ok(device) => device,
        Err(error) => return json!({"name": name.to_string(), "error": error.to_string()}),
    };
    let available = device.free_bytes;
    let mut report = json!({
        "name": name.to_string(),
        "description": format!("{} ({})", device.facts.name, device.facts.arch),
        "memory_available_bytes": available,
        "memory_bytes": device.facts.memory_bytes,
        "missing_bytes": MemoryNeed { available, ..need }.missing(),
        "peers": device.peers.iter().map(|&peer| DeviceName::Cuda(peer).to_string()).collect::<Vec<_>>(),
    });
    let speed = open_device(name, 0).and_then(|device| {
        let speed = device.read_bandwidth();
        device.finish().map(|()| speed)
    });
    match speed {
        Ok(speed) => report["read_bytes_per_second"] = json!(speed),
        Err(error) => report["error"] = json!(error.to_string()),
    }
    report
}

/// How a target on one of two devices and a draft on the other would exchange tensors.
fn transports(cuda: &[Result<CudaDevice, DeviceError>]) -> Vec<Value> {
    let numbers = (0..cuda.len()).map(DeviceName::Cuda);
    let names: Vec<DeviceName> = [DeviceName::Cpu].into_iter().chain(numbers).collect();
    let pairs = names
        .iter()
        .enumerate()
        .flat_map(|(i, one)| names[i..].iter().map(move |other| [*one, *other]));
    pairs
        .map(|[one, other]| {
            let transport = transport_between(one, other);
            json!({
                "devices": [one.to_string(), other.to_string()],
                "transport": transport.map(|transport| transport.to_string()),
                "payload": payload_way(one, other, cuda),
            })
        })
        .collect()
}

/// Which way the features of a target go between two devices.
fn payload_way(
    one: DeviceName,
    other: DeviceName,
    cuda: &[Result<CudaDevice, DeviceError>],
) -> &'static str {
    match (one, other) {
        (DeviceName::Cuda(one), DeviceName::Cuda(other)) if one == other => "within the card",
        (DeviceName::Cuda(one), DeviceName::Cuda(other)) => {
            let reaches = cuda.get(one).and_then(|device| device.as_ref().ok());
            match reaches.is_some_and(|device| device.peers.contains(&other)) {
                true => "from card to card",
                false => {
                    "from card to card by the driver's detour, as they do not reach each other"
                }
            }
        }
        (DeviceName::Cpu, DeviceName::Cpu) => "in host memory",
        _ => "in host memory that the card copies from and to by itself",
    }
}

fn print(report: &Value, need: &MemoryNeed) -> Result<()> {
    let model = &report["model"];
    writeln!(stdout(), "tandem  {}", env!("CARGO_PKG_VERSION"))?;
    for device in report["devices"].as_array().into_iter().flatten() {
        print_device(device)?;
    }
    print_cuda(&report["cuda"])?;
    for pair in report["transports"].as_array().into_iter().flatten() {
        let (one, other) = (text(&pair["devices"][0]), text(&pair["devices"][1]));
        let way = text(&pair["transport"]);
        let payload = text(&pair["payload"]);
        writeln!(stdout(), "way     {one} to {other}: {way}, {payload}")?;
    }
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
    for device in report["devices"].as_array().into_iter().flatten() {
        let name = text(&device["name"]);
        print_fit(&format!("on {name}"), &device["missing_bytes"], "")?;
    }
    for stage in model["stages"].as_array().into_iter().flatten() {
        let needed = gib(stage["needed_bytes"].as_u64().unwrap_or(0));
        writeln!(
            stdout(),
            "        {}: {needed:.2} GiB",
            text(&stage["name"])
        )?;
        print_fit(
            "there",
            &stage["missing_bytes"],
            ", or its --target-layer-split",
        )?;
    }
    if !report["prefill"].is_null() {
        prefill::print(&report["prefill"])?;
    }
    Ok(())
}

/// Nothing where it is not known.
fn print_fit(place: &str, missing: &Value, or: &str) -> Result<()> {
    match missing.as_u64() {
        None => {}
        Some(0) => writeln!(stdout(), "        fits {place}")?,
        Some(missing) => writeln!(
            stdout(),
            "        does NOT fit {place}: {:.2} GiB are missing; lower --ctx-size, --parallel or the bits of --cache-type-k and -v{or}",
            gib(missing)
        )?,
    }
    Ok(())
}

fn print_device(device: &Value) -> Result<()> {
    let description = device["description"].as_str().unwrap_or_default();
    writeln!(stdout(), "device  {}: {description}", text(&device["name"]))?;
    if let Some(speed) = device["read_bytes_per_second"].as_f64() {
        writeln!(stdout(), "        memory reads at {:.1} GB/s", speed / 1e9)?;
    }
    if let Some(available) = device["memory_available_bytes"].as_u64() {
        let of = device["memory_bytes"].as_u64();
        let of = of.map_or(String::new(), |all| format!(" of {:.2}", gib(all)));
        writeln!(
            stdout(),
            "        {:.2}{of} GiB of memory are available",
            gib(available)
        )?;
    }
    if let Some(error) = device["error"].as_str() {
        writeln!(stdout(), "        cannot be used: {error}")?;
    }
    Ok(())
}

fn print_cuda(cuda: &Value) -> Result<()> {
    for part in ["driver", "compiler"] {
        let found = &cuda[part];
        let said = found["version"].as_str().or(found["missing"].as_str());
        writeln!(stdout(), "cuda    {part}: {}", said.unwrap_or("?"))?;
    }
    Ok(())
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / GIB
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}
