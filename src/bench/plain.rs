//! Prompt processing, decoding and verified trees of one model in this process: medians after a warm-up.

use std::io::{Write, stdout};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use gguf::GgufFile;
use kernels::Device;
use models::{
    Batch, BatchSegment, DecodeTraffic, LoadOptions, LogitsWanted, Model, SequenceId,
    decode_traffic,
};
use serde_json::{Value, json};
use target_worker::context_length;

use crate::cli::BenchArgs;
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
pub(super) fn run(args: &BenchArgs) -> Result<()> {
    ensure!(args.prefill_chunk > 0, "--prefill-chunk must be at least 1");
    let lengths = args.pp.iter().chain(&args.tg).chain(&args.rows);
    ensure!(
        lengths.min() != Some(&0),
        "a length of --pp, --tg or --rows must be at least 1"
    );
    let file = session::open(args.model.model.as_deref())?;
    let device = session::device(&args.model)?;
    let options = options(args, &file);
    let mut bench = Bench {
        model: session::load_with(&file, Arc::clone(&device), options)?,
        bandwidth: device.read_bandwidth(),
        traffic: decode_traffic(&file, &options)?,
        repetitions: args.repetitions,
        device,
    };
    let (mut speeds, mut trees) = (Vec::new(), Vec::new());
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
    let report = Report {
        model: args
            .model
            .model
            .as_ref()
            .map_or("demo-target.gguf".to_owned(), |p| p.display().to_string()),
        file_bytes: file.file_len(),
        device: bench.device.name(),
        bandwidth: bench.bandwidth,
        traffic: bench.traffic,
        speeds,
        trees,
    };
    if args.json {
        writeln!(stdout(), "{}", report.json())?;
        return Ok(());
    }
    report.print()
}

/// Sizes to load the model with: room for the context asked for, and for the longest run.
fn options(args: &BenchArgs, file: &GgufFile) -> LoadOptions {
    let most = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(0);
    let trees = WARM_UP + args.repetitions * TREES;
    let of_trees = match most(&args.rows) {
        0 => 0,
        rows => trees * ACCEPTED + rows,
    };
    let after_depth = most(&args.depth) + most(&args.tg).max(of_trees);
    let context = context_length(file, args.model.ctx_size);
    LoadOptions {
        max_tokens: context.max(most(&args.pp)).max(after_depth),
        max_sequences: 2,
        max_batch_rows: args.prefill_chunk.max(most(&args.rows)),
        kv_type: args.model.cache_type,
    }
}

/// Tokens per second.
struct Speed {
    test: String,
    tokens_per_second: f64,
    /// Half the way from the slowest repetition to the fastest.
    spread: f64,
    /// Bytes that a decoded token moves at least.
    bytes_per_token: Option<u64>,
}

/// Milliseconds of a tree's step and of what follows it.
struct Tree {
    rows: usize,
    depth: usize,
    verify_ms: f64,
    commit_ms: f64,
}

struct Bench {
    model: Model,
    device: Arc<dyn Device>,
    bandwidth: f64,
    traffic: DecodeTraffic,
    repetitions: usize,
}

impl Bench {
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
            run::feed(&mut bench.model, sequence, &ids)?;
            let seconds = started.elapsed().as_secs_f64();
            bench.model.free_sequence(sequence)?;
            Ok(seconds)
        })
    }

    fn decode(&mut self, tokens: usize, depth: usize) -> Result<Speed> {
        let ids = self.ids(tokens);
        let context = self.context(depth)?;
        let start = self.model.snapshot(context)?;
        self.model.free_sequence(context)?;
        let test = match depth {
            0 => format!("tg{tokens}"),
            _ => format!("tg{tokens} @ d{depth}"),
        };
        let mut speed = self.speed(test, tokens, |bench| {
            let sequence = bench.model.restore(&start)?;
            bench.device.finish()?;
            let started = Instant::now();
            for &id in &ids {
                let step = segment(sequence, vec![id], Vec::new(), LogitsWanted::LastBest);
                bench.forward(step)?;
            }
            let seconds = started.elapsed().as_secs_f64();
            bench.model.free_sequence(sequence)?;
            Ok(seconds)
        })?;
        let middle = (depth + tokens / 2) as u64;
        speed.bytes_per_token = Some(self.traffic.after(middle));
        Ok(speed)
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
            self.device.finish()?;
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
        run::feed(&mut self.model, sequence, &ids)?;
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

struct Report {
    model: String,
    file_bytes: u64,
    device: String,
    bandwidth: f64,
    traffic: DecodeTraffic,
    speeds: Vec<Speed>,
    trees: Vec<Tree>,
}

impl Report {
    fn json(&self) -> Value {
        let speed = |speed: &Speed| {
            json!({
                "test": speed.test,
                "tokens_per_second": speed.tokens_per_second,
                "spread": speed.spread,
                "bytes_per_token": speed.bytes_per_token,
            })
        };
        let tree = |tree: &Tree| {
            json!({
                "rows": tree.rows,
                "depth": tree.depth,
                "verify_ms": tree.verify_ms,
                "commit_ms": tree.commit_ms,
            })
        };
        json!({
            "model": self.model,
            "file_bytes": self.file_bytes,
            "device": self.device,
            "read_bytes_per_second": self.bandwidth,
            "results": self.speeds.iter().map(speed).collect::<Vec<_>>(),
            "trees": self.trees.iter().map(tree).collect::<Vec<_>>(),
        })
    }

    fn print(&self) -> Result<()> {
        let mut out = stdout().lock();
        writeln!(
            out,
            "model  {} ({:.1} MB)\ndevice {}",
            self.model,
            self.file_bytes as f64 / 1e6,
            self.device
        )?;
        let bytes = self.traffic.after(0);
        writeln!(
            out,
            "memory {:.1} GB/s read; a decoded token moves {:.1} MB or more: {:.3} ms",
            self.bandwidth / 1e9,
            bytes as f64 / 1e6,
            bytes as f64 / self.bandwidth * 1e3
        )?;
        if !self.speeds.is_empty() {
            self.print_speeds(&mut out)?;
        }
        if !self.trees.is_empty() {
            self.print_trees(&mut out)?;
        }
        Ok(())
    }

    fn print_speeds(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "\n| test           |    tok/s | +- half range |   GB/s | share |\n\
             | -------------- | -------: | ------------: | -----: | ----: |"
        )?;
        for speed in &self.speeds {
            // A decoded token reads all weights once; a prompt reads them once for many tokens.
            let rate = speed
                .bytes_per_token
                .map(|bytes| bytes as f64 * speed.tokens_per_second);
            let (gigabytes, share) = rate.map_or(("-".to_owned(), "-".to_owned()), |rate| {
                (
                    format!("{:.1}", rate / 1e9),
                    format!("{:.0} %", rate / self.bandwidth * 100.0),
                )
            });
            writeln!(
                out,
                "| {:14} | {:8.1} | {:13.1} | {gigabytes:>6} | {share:>5} |",
                speed.test, speed.tokens_per_second, speed.spread
            )?;
        }
        Ok(())
    }

    fn print_trees(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "\n| verified rows | depth | verify ms | commit ms | of one row |\n\
             | ------------: | ----: | --------: | --------: | ---------: |"
        )?;
        for tree in &self.trees {
            let single = |other: &&Tree| other.rows == 1 && other.depth == tree.depth;
            let single = self.trees.iter().find(single);
            let ratio = single.map_or("-".to_owned(), |single| {
                format!("{:.2}", tree.verify_ms / single.verify_ms)
            });
            writeln!(
                out,
                "| {:13} | {:5} | {:9.3} | {:9.3} | {ratio:>10} |",
                tree.rows, tree.depth, tree.verify_ms, tree.commit_ms
            )?;
        }
        Ok(())
    }
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
