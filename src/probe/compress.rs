//! `tandem probe compress`: how important a prompt's chunks are, and which are kept.

use std::fs;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gguf::GgufFile;
use kernels::open_limited_device;
use models::{PromptScorer, ScorerOptions};
use prompt_selection::{CHUNK_TOKENS, MIN_TOKENS, SelectOptions, chunk_scores, select};
use serde_json::json;
use tokenizer::{EncodeOptions, Tokenizer};

use crate::cli::ProbeCompressArgs;
use crate::session;

pub(super) fn run(args: &ProbeCompressArgs) -> Result<()> {
    let keep_ratio = args.keep_ratio;
    ensure!(
        keep_ratio > 0.0 && keep_ratio <= 1.0,
        "keep-ratio is {keep_ratio}, expected above 0 and up to 1"
    );
    let options = scorer_options(args)?;
    let file = session::open_drafter(args.prefill_drafter.as_deref())?;
    let tokens = tokens(args, &file)?;
    let scored = score(args, &file, options, &tokens)?;
    let started = Instant::now();
    let select_options = SelectOptions {
        keep_ratio,
        protected: &[],
        within_budget: args.within_budget,
    };
    let selection = select(&tokens, &scored.importance, &select_options);
    let select_ms = ms(started.elapsed());
    let spans: Vec<[usize; 2]> = (selection.spans.iter())
        .map(|span| [span.start, span.end])
        .collect();
    let report = json!({
        "tokens": tokens.len(),
        "chunk": CHUNK_TOKENS,
        "chunk_scores": chunk_scores(&scored.importance),
        "kept_chunks": selection.chunks,
        "kept_spans": spans,
        "kept_tokens": selection.spans.iter().map(ExactSizeIterator::len).sum::<usize>(),
        "options": {
            "drafter": file.path(),
            "device": scored.device,
            "keep_ratio": keep_ratio,
            "within_budget": args.within_budget,
            "layers": options.scored_layers,
            "positions": args.positions,
            "sparsity": options.sparsity,
            "exact": options.exact,
        },
        "ms": {"load": ms(scored.load), "score": ms(scored.score), "select": select_ms},
    });
    let out = &args.out;
    fs::write(out, report.to_string()).with_context(|| format!("writing {}", out.display()))
}

/// As the worker reads them.
fn scorer_options(args: &ProbeCompressArgs) -> Result<ScorerOptions> {
    let config = prefill_worker::Config {
        score_layers: args.layers,
        score_positions: args.positions.clone(),
        sparsity: args.sparsity.clone(),
        ..prefill_worker::Config::default()
    };
    Ok(ScorerOptions {
        exact: !args.as_served,
        ..config.scorer_options()?
    })
}

fn tokens(args: &ProbeCompressArgs, file: &GgufFile) -> Result<Vec<u32>> {
    if let Some(path) = &args.tokens {
        return session::read_tokens(path);
    }
    let path = args.prompt_file.as_deref();
    let path = path.context("one of --tokens and --prompt-file is needed")?;
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let options = EncodeOptions {
        add_bos: true,
        parse_special: true,
    };
    Ok(Tokenizer::from_gguf(file.metadata())?.encode(&text, options))
}

#[derive(Default)]
struct Scored {
    importance: Vec<f32>,
    device: String,
    load: Duration,
    score: Duration,
}

/// Nothing for a prompt that is too short.
fn score(
    args: &ProbeCompressArgs,
    file: &GgufFile,
    options: ScorerOptions,
    tokens: &[u32],
) -> Result<Scored> {
    if tokens.len() < MIN_TOKENS {
        return Ok(Scored::default());
    }
    let device = open_limited_device(args.device, args.threads, args.device_memory);
    let device = device.context("device")?;
    let device_name = device.name();
    let started = Instant::now();
    let drafter = || format!("the prefill drafter {}", file.path().display());
    let mut scorer = PromptScorer::load(file, device, options).with_context(drafter)?;
    let load = started.elapsed();
    let started = Instant::now();
    let importance = scorer.score(tokens, &mut |_| ControlFlow::Continue(()));
    Ok(Scored {
        importance: importance.with_context(drafter)?,
        device: device_name,
        load,
        score: started.elapsed(),
    })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
