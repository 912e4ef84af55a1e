//! `tandem bench`: prompt processing and decoding, medians.

mod drafts;
mod prompts;

use std::io::{Write, stdout};
use std::time::Instant;

use anyhow::{Result, ensure};
use models::Model;
use serde_json::json;

use crate::cli::BenchArgs;
use crate::{run, session};

struct Row {
    test: String,
    tokens_per_second: f64,
    spread: f64,
}

/// Runs the command.
pub(crate) fn run(args: &BenchArgs, log: &str) -> Result<()> {
    ensure!(args.repetitions > 0, "--repetitions must be at least 1");
    if args.draft.draft.is_some() || !args.mode.is_empty() {
        return drafts::run(args, log);
    }
    let file = session::open(args.model.model.as_deref())?;
    let device = session::device(&args.model)?;
    let mut model = session::load(&file, &args.model, device.clone())?;
    let bandwidth = device.read_bandwidth();
    let mut rows = Vec::new();
    for &n in &args.pp {
        rows.push(measure(format!("pp{n}"), n, args.repetitions, || {
            prefill(&mut model, n)
        })?);
    }
    for &n in &args.tg {
        rows.push(measure(format!("tg{n}"), n, args.repetitions, || {
            decode(&mut model, n)
        })?);
    }
    let name = args
        .model
        .model
        .as_ref()
        .map_or("demo-target.gguf".to_owned(), |p| p.display().to_string());
    if args.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|r| json!({"test": r.test, "tokens_per_second": r.tokens_per_second, "spread": r.spread}))
            .collect();
        writeln!(
            stdout(),
            "{}",
            json!({"model": name, "file_bytes": file.file_len(), "device": device.name(), "read_bytes_per_second": bandwidth, "results": rows})
        )?;
        return Ok(());
    }
    writeln!(
        stdout(),
        "model  {name} ({:.1} MB)\ndevice {}",
        file.file_len() as f64 / 1e6,
        device.name()
    )?;
    writeln!(stdout(), "memory {:.1} GB/s read\n", bandwidth / 1e9)?;
    writeln!(
        stdout(),
        "| test   |    tok/s | +- half range | GB/s of weights | share |"
    )?;
    writeln!(
        stdout(),
        "| ------ | -------: | ------------: | --------------: | ----: |"
    )?;
    for row in rows {
        // Every decoded token reads all weights once; a prompt reads them once for many tokens.
        let (gigabytes, share) = if row.test.starts_with("tg") {
            let rate = row.tokens_per_second * file.file_len() as f64;
            (
                format!("{:.1}", rate / 1e9),
                format!("{:.0} %", rate / bandwidth * 100.0),
            )
        } else {
            ("-".to_owned(), "-".to_owned())
        };
        writeln!(
            stdout(),
            "| {:6} | {:8.1} | {:13.1} | {gigabytes:>15} | {share:>5} |",
            row.test,
            row.tokens_per_second,
            row.spread
        )?;
    }
    Ok(())
}

fn measure(
    test: String,
    tokens: usize,
    repetitions: usize,
    mut work: impl FnMut() -> Result<f64>,
) -> Result<Row> {
    ensure!(tokens > 0, "{test}: a length must be at least 1");
    work()?;
    let mut rates = Vec::with_capacity(repetitions);
    for _ in 0..repetitions {
        rates.push(tokens as f64 / work()?);
    }
    rates.sort_by(f64::total_cmp);
    let spread = (rates[rates.len() - 1] - rates[0]) / 2.0;
    Ok(Row {
        test,
        tokens_per_second: rates[rates.len() / 2],
        spread,
    })
}

/// Token ids without meaning: speed does not depend on them.
fn ids(model: &Model, count: usize) -> Vec<u32> {
    (0..count)
        .map(|i| (i * 7 % model.config().vocab_size) as u32)
        .collect()
}

fn prefill(model: &mut Model, tokens: usize) -> Result<f64> {
    let sequence = model.create_sequence()?;
    let ids = ids(model, tokens);
    let started = Instant::now();
    run::feed(model, sequence, &ids)?;
    let seconds = started.elapsed().as_secs_f64();
    model.free_sequence(sequence)?;
    Ok(seconds)
}

fn decode(model: &mut Model, tokens: usize) -> Result<f64> {
    let sequence = model.create_sequence()?;
    let ids = ids(model, tokens);
    let started = Instant::now();
    for id in ids {
        run::feed(model, sequence, &[id])?;
    }
    let seconds = started.elapsed().as_secs_f64();
    model.free_sequence(sequence)?;
    Ok(seconds)
}
