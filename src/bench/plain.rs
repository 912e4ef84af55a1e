//! Prompt processing, decoding and verified trees of one model in this process: medians after a warm-up.

mod energy;
mod report;

use std::io::{Write, stdout};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use generation::SpeculationMode;
use gguf::GgufFile;
use models::{
    Batch, BatchSegment, DecodeTraffic, LoadOptions, LogitsWanted, Model, SequenceId, Snapshot,
    decode_traffic,
};
use target_worker::{context_length, prefill_chunk};

use energy::{Energy, Meter};
use report::{Report, Speed, Tree};

use crate::cli::BenchArgs;
use crate::stages::{self, SplitModel};
use crate::{run, session};

/// Draft tokens of a tree's chain: those of a block.
const CHAIN: usize = 15;
/// Nodes that are committed, where there are as many.
const ACCEPTED: usize = 5;
/// Trees that go before the measured ones: a device may record the second of a kind.
const WARM_UP: usize = 3;
/// Trees of a repetition.
const TREES: usize = 8;

/// Runs the command.
pub(super) fn run(args: &BenchArgs, log: &str) -> Result<()> {
    let lengths = args.pp.iter().chain(&args.tg).chain(&args.rows);
    ensure!(
        lengths.min() != Some(&0),
        "a length of --pp, --tg or --rows must be at least 1"
    );
    let file = session::open(args.model.model.as_deref())?;
    let options = options(args, &file)?;
    let (mut whole, mut split);
    let mut meter = None;
    let (model, device, bandwidth) = if args.split.target_devices.is_empty() {
        let device = session::device(&args.model)?;
        if args.energy {
            meter = Some(Meter::open(device.as_ref())?);
        }
        whole = session::load_with(&file, Arc::clone(&device), options)?;
        (&mut whole, device.name(), Some(device.read_bandwidth()))
    } else {
        split = SplitModel::load(split_config(args, &options), &file, log)?;
        let devices = split.devices();
        // Each stage has a speed of its own, and its own part of the bytes.
        (split.model(), devices, None)
    };
    let mut bench = Bench {
        model,
        traffic: decode_traffic(&file, &options)?,
        repetitions: args.repetitions,
    };
    let (mut speeds, mut trees, mut energies) = (Vec::new(), Vec::new(), Vec::new());
    for &tokens in &args.pp {
        speeds.push(bench.prefill(tokens)?);
    }
    for &depth in &args.depth {
        for &tokens in &args.tg {
            speeds.push(bench.decode(tokens, depth)?);
        }
        for &rows in &args.rows {
            trees.push(bench.verify(rows, depth)?);
        }
    }
    if let Some(meter) = &meter {
        eprintln!("measuring energy: 12 s of waiting, then 10 s for each length and depth");
        let idle_watts = meter.idle_watts()?;
        for &depth in &args.depth {
            for &tokens in &args.tg {
                energies.push(bench.energy(meter, idle_watts, tokens, depth)?);
            }
        }
    }
    let report = Report {
        model: args
            .model
            .model
            .as_ref()
            .map_or("demo-target.gguf".to_owned(), |p| p.display().to_string()),
        file_bytes: file.file_len(),
        device,
        bandwidth,
        traffic: bench.traffic,
        speeds,
        trees,
        energies,
    };
    if args.json {
        writeln!(stdout(), "{}", report.json())?;
        return Ok(());
    }
    report.print()
}

/// Sizes to load the model with: room for the context asked for, and for the longest run.
fn options(args: &BenchArgs, file: &GgufFile) -> Result<LoadOptions> {
    let most = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(0);
    let trees = WARM_UP + args.repetitions * TREES;
    let of_trees = match most(&args.rows) {
        0 => 0,
        rows => trees * ACCEPTED + rows,
    };
    let after_depth = most(&args.depth) + most(&args.tg).max(of_trees);
    let context = context_length(file, args.model.ctx_size);
    let devices = stages::target_config(&args.model, &args.split).stage_devices()?;
    Ok(LoadOptions {
        max_tokens: context.max(most(&args.pp)).max(after_depth),
        max_sequences: 2,
        max_batch_rows: prefill_chunk(args.prefill_chunk, &devices).max(most(&args.rows)),
        kv_type: Some(args.model.cache_types.of(file)),
    })
}

/// The same as settings, which stages of their own processes are started with.
fn split_config(args: &BenchArgs, options: &LoadOptions) -> target_worker::Config {
    target_worker::Config {
        ctx_size: options.max_tokens,
        parallel: options.max_sequences,
        prefill_chunk: options.max_batch_rows,
        speculation: SpeculationMode::Off.name().to_owned(),
        ..stages::target_config(&args.model, &args.split)
    }
}

struct Bench<'a> {
    model: &'a mut Model,
    traffic: DecodeTraffic,
    repetitions: usize,
}

impl Bench<'_> {
    /// Token ids without meaning: speed does not depend on them.
    fn ids(&self, count: usize) -> Vec<u32> {
        let vocab_size = self.model.config().vocab_size;
        (0..count).map(|i| (i * 7 % vocab_size) as u32).collect()
    }

    /// The median of repeated work on `tokens` tokens, which says how long it took.
    fn speed(
        &mut self,
        test: String,
        tokens: usize,
        mut work: impl FnMut(&mut Self) -> Result<f64>,
    ) -> Result<Speed> {
        work(self)?;
        let mut rates = Vec::with_capacity(self.repetitions);
        for _ in 0..self.repetitions {
            rates.push(tokens as f64 / work(self)?);
        }
        rates.sort_by(f64::total_cmp);
        Ok(Speed {
            test,
            tokens_per_second: rates[rates.len() / 2],
            spread: (rates[rates.len() - 1] - rates[0]) / 2.0,
            bytes_per_token: None,
        })
    }

    fn prefill(&mut self, tokens: usize) -> Result<Speed> {
        let ids = self.ids(tokens);
        self.speed(format!("pp{tokens}"), tokens, |bench| {
            let sequence = bench.model.create_sequence()?;
            let started = Instant::now();
            run::feed(bench.model, sequence, &ids, LogitsWanted::Last, |_| ())?;
            let seconds = started.elapsed().as_secs_f64();
            bench.model.free_sequence(sequence)?;
            Ok(seconds)
        })
    }

    fn decode(&mut self, tokens: usize, depth: usize) -> Result<Speed> {
        let start = self.start(depth)?;
        let mut speed = self.speed(decode_name(tokens, depth), tokens, |bench| {
            bench.decode_once(&start, tokens)
        })?;
        let middle = (depth + tokens / 2) as u64;
        speed.bytes_per_token = Some(self.traffic.after(middle));
        Ok(speed)
    }

    fn energy(
        &mut self,
        meter: &Meter,
        idle_watts: f64,
        tokens: usize,
        depth: usize,
    ) -> Result<Energy> {
        let start = self.start(depth)?;
        meter.measure(decode_name(tokens, depth), idle_watts, || {
            self.decode_once(&start, tokens)?;
            Ok(tokens)
        })
    }

    /// What decoding after `depth` tokens begins with.
    fn start(&mut self, depth: usize) -> Result<Start> {
        if self.model.stage().start > 0 {
            return Ok(Start::Depth(depth));
        }
        let context = self.context(depth)?;
        let start = Start::Kept(self.model.snapshot(context)?);
        self.model.free_sequence(context)?;
        Ok(start)
    }

    /// Seconds for `tokens` tokens.
    fn decode_once(&mut self, start: &Start, tokens: usize) -> Result<f64> {
        let sequence = match start {
            Start::Kept(start) => self.model.restore(start)?,
            Start::Depth(depth) => self.context(*depth)?,
        };
        self.model.finish()?;
        let ids = self.ids(tokens);
        let started = Instant::now();
        for id in ids {
            let step = segment(sequence, vec![id], Vec::new(), LogitsWanted::LastBest);
            self.forward(step)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        self.model.free_sequence(sequence)?;
        Ok(seconds)
    }

    fn verify(&mut self, rows: usize, depth: usize) -> Result<Tree> {
        let sequence = self.context(depth)?;
        let (ids, parents) = (self.ids(rows), tree(rows));
        let chain = parents.iter().zip(-1..).take_while(|(a, b)| **a == *b);
        let path: Vec<usize> = (0..chain.count().min(ACCEPTED)).collect();
        let (mut verify, mut commit) = (Vec::new(), Vec::new());
        for _ in 0..WARM_UP + self.repetitions * TREES {
            let mut step = segment(
                sequence,
                ids.clone(),
                parents.clone(),
                LogitsWanted::AllBest,
            );
            step.advance = false;
            let started = Instant::now();
            self.forward(step)?;
            let verified = Instant::now();
            self.model.commit(sequence, &path)?;
            self.model.finish()?;
            verify.push((verified - started).as_secs_f64() * 1e3);
            commit.push(verified.elapsed().as_secs_f64() * 1e3);
        }
        self.model.free_sequence(sequence)?;
        let median = |mut times: Vec<f64>| {
            times.drain(..WARM_UP);
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        Ok(Tree {
            rows,
            depth,
            verify_ms: median(verify),
            commit_ms: median(commit),
        })
    }

    /// A sequence of `depth` tokens.
    fn context(&mut self, depth: usize) -> Result<SequenceId> {
        let sequence = self.model.create_sequence()?;
        let ids = self.ids(depth);
        if !ids.is_empty() {
            run::feed(self.model, sequence, &ids, LogitsWanted::Last, |_| ())?;
        }
        Ok(sequence)
    }

    fn forward(&mut self, segment: BatchSegment) -> Result<()> {
        self.model.forward(&Batch {
            segments: vec![segment],
            capture_layers: Vec::new(),
        })?;
        Ok(())
    }
}

/// A context to decode after.
enum Start {
    Kept(Snapshot),
    /// A split model keeps none: so many tokens are computed anew each time.
    Depth(usize),
}

fn decode_name(tokens: usize, depth: usize) -> String {
    match depth {
        0 => format!("tg{tokens}"),
        _ => format!("tg{tokens} @ d{depth}"),
    }
}

fn segment(
    sequence: SequenceId,
    tokens: Vec<u32>,
    parents: Vec<i32>,
    logits: LogitsWanted,
) -> BatchSegment {
    BatchSegment {
        sequence,
        tokens,
        parents,
        advance: true,
        logits,
    }
}

/// Parents of a tree of `rows` nodes: the root, a chain of half of the others, leaves beside it.
fn tree(rows: usize) -> Vec<i32> {
    let chain = (rows - 1).div_ceil(2).min(CHAIN);
    let leaves = (0..chain).cycle().take(rows - 1 - chain);
    let nodes = (0..=chain).map(|node| node as i32 - 1);
    nodes.chain(leaves.map(|parent| parent as i32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_have_a_chain_and_leaves_beside_it() {
        assert_eq!(tree(1), [-1]);
        assert_eq!(tree(2), [-1, 0]);
        assert_eq!(tree(8), [-1, 0, 1, 2, 3, 0, 1, 2]);
        let large = tree(64);
        assert_eq!(large.len(), 64);
        assert_eq!(large[15..18], [14, 0, 1]);
    }
}
