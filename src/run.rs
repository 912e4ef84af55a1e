//! `tandem run`: one prompt, streamed.

use std::io::{Write, stdout};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use generation::{GenerateRequest, SpeculationConfig, SpeculationMode, SpeculationTimings};
use gguf::GgufFile;
use models::{Answer, Batch, BatchSegment, LogitsWanted, Model, SequenceId};
use sampling::{Sampler, SamplingParams, Scratch};
use serde_json::{Value, json};
use tokenizer::{Detokenizer, EncodeOptions, Tokenizer};

use crate::cli::RunArgs;
use crate::pair::{Pair, PairConfig};
use crate::stages::{self, SplitModel};
use crate::{session, up};

/// Feeds accepted tokens in pieces, and says what the model has of the last one as it is wanted.
pub(crate) fn feed<T>(
    model: &mut Model,
    sequence: SequenceId,
    tokens: &[u32],
    wanted: LogitsWanted,
    take: impl FnOnce(Answer<'_>) -> T,
) -> Result<T> {
    let rows = model.max_batch_rows();
    let mut pieces = tokens.chunks(rows).peekable();
    while let Some(piece) = pieces.next() {
        let is_last = pieces.peek().is_none();
        let segment = BatchSegment {
            sequence,
            tokens: piece.to_vec(),
            parents: Vec::new(),
            advance: true,
            logits: if is_last { wanted } else { LogitsWanted::None },
        };
        let output = model.forward(&Batch {
            segments: vec![segment],
            capture_layers: Vec::new(),
        })?;
        if is_last && let Some(answer) = output.answer(0, piece.len() - 1) {
            return Ok(take(answer));
        }
    }
    bail!("no token was fed, or nothing wanted of it")
}

/// What came of a prompt.
struct Outcome {
    tokens: Vec<u32>,
    prompt_ms: f64,
    predicted_ms: f64,
    speculation: Option<SpeculationTimings>,
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs, log: &str) -> Result<()> {
    let params = SamplingParams {
        temperature: args.temperature,
        top_p: args.top_p,
        top_k: args.top_k,
        min_p: args.min_p,
        seed: args.seed,
        ..SamplingParams::default()
    };
    params.validate()?;
    let file = session::open(args.model.model.as_deref())?;
    let tokenizer = Arc::new(Tokenizer::from_gguf(file.metadata())?);
    let prompt = match (&args.tokens, &args.prompt) {
        (Some(path), _) => session::read_tokens(path)?,
        (None, text) => tokenizer.encode(
            text.as_deref().unwrap_or_default(),
            EncodeOptions {
                add_bos: true,
                parse_special: true,
            },
        ),
    };
    ensure!(!prompt.is_empty(), "the prompt has no tokens");
    let stop_ids = match args.ignore_eos {
        true => Vec::new(),
        false => tokenizer.stop_ids().to_vec(),
    };
    let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer), false);
    let mut text = String::new();
    let mut emit = |piece: String| -> Result<()> {
        if !args.json {
            write!(stdout(), "{piece}")?;
            stdout().flush()?;
        }
        text.push_str(&piece);
        Ok(())
    };
    let mut seen = |token: u32| match stop_ids.contains(&token) {
        true => Ok(()),
        false => emit(detokenizer.push(token)),
    };
    let prompt_tokens = prompt.len();
    let outcome = if args.draft.draft.is_some() {
        with_draft(args, log, prompt, params, &stop_ids, &mut seen)?
    } else {
        alone(args, log, &file, &prompt, params, &stop_ids, &mut seen)?
    };
    emit(detokenizer.finish())?;
    if args.json {
        writeln!(stdout(), "{}", outcome.to_json(prompt_tokens, &text))?;
    } else {
        writeln!(stdout())?;
    }
    Ok(())
}

/// Decodes in this process, and those of earlier stages where the model is split.
fn alone(
    args: &RunArgs,
    log: &str,
    file: &GgufFile,
    prompt: &[u32],
    params: SamplingParams,
    stop_ids: &[u32],
    seen: &mut dyn FnMut(u32) -> Result<()>,
) -> Result<Outcome> {
    if args.split.target_devices.is_empty() {
        let mut model = session::load(file, &args.model, session::device(&args.model)?)?;
        return decode(args, &mut model, prompt, params, stop_ids, seen);
    }
    let config = target_worker::Config {
        parallel: 1,
        speculation: SpeculationMode::Off.name().to_owned(),
        ..stages::target_config(&args.model, &args.split)
    };
    let mut split = SplitModel::load(config, file, log)?;
    decode(args, split.model(), prompt, params, stop_ids, seen)
}

fn decode(
    args: &RunArgs,
    model: &mut Model,
    prompt: &[u32],
    params: SamplingParams,
    stop_ids: &[u32],
    seen: &mut dyn FnMut(u32) -> Result<()>,
) -> Result<Outcome> {
    let is_argmax = params.is_argmax();
    let sampler = Sampler::new(params);
    let wanted = match sampler.decisive() {
        _ if is_argmax => LogitsWanted::LastBest,
        Some(k) => LogitsWanted::LastTop(k),
        None => LogitsWanted::Last,
    };
    let sequence = model.create_sequence()?;
    let started = Instant::now();
    let (mut tokens, mut scratch) = (Vec::new(), Scratch::default());
    let mut choose = |answer: Answer<'_>, tokens: &[u32]| match answer {
        Answer::Best(id) => id,
        Answer::Top(top) => sampler.sample_top(top, tokens.len() as u64, &mut scratch),
        Answer::Logits(row) => sampler.sample_token(row, tokens, tokens.len() as u64, &mut scratch),
    };
    let mut token = feed(model, sequence, prompt, wanted, |answer| {
        choose(answer, &tokens)
    })?;
    let prompt_ms = started.elapsed().as_secs_f64() * 1e3;
    let decode_started = Instant::now();
    while tokens.len() < args.num_tokens {
        tokens.push(token);
        seen(token)?;
        if stop_ids.contains(&token) {
            break;
        }
        if tokens.len() < args.num_tokens {
            token = feed(model, sequence, &[token], wanted, |answer| {
                choose(answer, &tokens)
            })?;
        }
    }
    Ok(Outcome {
        tokens,
        prompt_ms,
        predicted_ms: decode_started.elapsed().as_secs_f64() * 1e3,
        speculation: None,
    })
}

/// Decodes in a target worker with a draft worker beside it.
fn with_draft(
    args: &RunArgs,
    log: &str,
    prompt: Vec<u32>,
    params: SamplingParams,
    stop_ids: &[u32],
    seen: &mut dyn FnMut(u32) -> Result<()>,
) -> Result<Outcome> {
    let budget = args.draft.ddtree_budget;
    ensure!(budget > 0, "--ddtree-budget is 0, expected at least 1");
    let config = PairConfig::new(&args.model, &args.split, &args.draft, budget)?;
    let request = GenerateRequest {
        request_id: "run".to_owned(),
        prompt,
        history_tokens: 0,
        max_tokens: u32::try_from(args.num_tokens).context("--num-tokens")?,
        min_tokens: 0,
        stop_ids: stop_ids.to_vec(),
        sampling: params,
        logprobs: false,
        top_logprobs: 0,
        speculation: Some(SpeculationConfig {
            mode: args.speculation,
            budget,
        }),
        thinking: None,
        grammar: None,
    };
    let answer = up::runtime()?.block_on(async {
        let pair = Pair::start(config, log).await?;
        pair.generate(request, |token| seen(token.id)).await
    })?;
    Ok(Outcome {
        tokens: answer.tokens,
        prompt_ms: answer.timings.prompt_ms,
        predicted_ms: answer.timings.generated_ms,
        speculation: Some(answer.timings.speculation),
    })
}

impl Outcome {
    fn to_json(&self, prompt_tokens: usize, text: &str) -> Value {
        let per_second = |n: usize, ms: f64| n as f64 / ms * 1e3;
        let mut timings = json!({
            "prompt_n": prompt_tokens,
            "prompt_ms": self.prompt_ms,
            "prompt_per_second": per_second(prompt_tokens, self.prompt_ms),
            "predicted_n": self.tokens.len(),
            "predicted_ms": self.predicted_ms,
            "predicted_per_second": per_second(self.tokens.len(), self.predicted_ms),
        });
        if let Some(speculation) = self.speculation {
            timings["rounds"] = speculation.rounds.into();
            timings["draft_n"] = speculation.draft_tokens.into();
            timings["draft_n_accepted"] = speculation.accepted_tokens.into();
        }
        json!({"tokens": self.tokens, "text": text, "timings": timings})
    }
}
