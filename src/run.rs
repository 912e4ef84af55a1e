//! `tandem run`: one prompt, streamed.

use std::io::{Write, stdout};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use models::{Batch, BatchSegment, LogitsWanted, Model, SequenceId};
use sampling::{Sampler, SamplingParams, Scratch};
use serde_json::json;
use tokenizer::{Detokenizer, EncodeOptions, Tokenizer};

use crate::cli::RunArgs;
use crate::session;

/// Feeds accepted tokens in pieces; returns the logits of the last one.
pub(crate) fn feed(model: &mut Model, sequence: SequenceId, tokens: &[u32]) -> Result<Vec<f32>> {
    let mut logits = Vec::new();
    let pieces = tokens.len().div_ceil(session::BATCH_ROWS);
    for (i, piece) in tokens.chunks(session::BATCH_ROWS).enumerate() {
        let wanted = if i + 1 == pieces {
            LogitsWanted::Last
        } else {
            LogitsWanted::None
        };
        let segment = BatchSegment {
            sequence,
            tokens: piece.to_vec(),
            parents: Vec::new(),
            advance: true,
            logits: wanted,
        };
        logits = model
            .forward(&Batch {
                segments: vec![segment],
                capture_layers: Vec::new(),
            })?
            .logits;
    }
    Ok(logits)
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let params = SamplingParams {
        temperature: args.temperature,
        top_p: args.top_p,
        top_k: args.top_k,
        min_p: args.min_p,
        seed: args.seed,
        ..SamplingParams::default()
    };
    params.validate()?;
    let sampler = Sampler::new(params);
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
    let mut model = session::load(&file, &args.model, session::device(&args.model)?)?;
    let sequence = model.create_sequence()?;

    let started = Instant::now();
    let mut logits = feed(&mut model, sequence, &prompt)?;
    let prompt_ms = started.elapsed().as_secs_f64() * 1e3;
    let decode_started = Instant::now();
    let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer), false);
    let (mut generated, mut text, mut scratch) = (Vec::new(), String::new(), Scratch::default());
    let mut emit = |piece: String| -> Result<()> {
        if !args.json {
            write!(stdout(), "{piece}")?;
            stdout().flush()?;
        }
        text.push_str(&piece);
        Ok(())
    };
    while generated.len() < args.num_tokens {
        let position = generated.len() as u64;
        let token = sampler.sample_token(&logits, &generated, position, &mut scratch);
        generated.push(token);
        if !args.ignore_eos && tokenizer.stop_ids().contains(&token) {
            break;
        }
        emit(detokenizer.push(token))?;
        if generated.len() < args.num_tokens {
            logits = feed(&mut model, sequence, &[token])?;
        }
    }
    emit(detokenizer.finish())?;
    let predicted_ms = decode_started.elapsed().as_secs_f64() * 1e3;
    if args.json {
        let per_second = |n: usize, ms: f64| n as f64 / ms * 1e3;
        writeln!(
            stdout(),
            "{}",
            json!({
                "tokens": generated,
                "text": text,
                "timings": {
                    "prompt_n": prompt.len(),
                    "prompt_ms": prompt_ms,
                    "prompt_per_second": per_second(prompt.len(), prompt_ms),
                    "predicted_n": generated.len(),
                    "predicted_ms": predicted_ms,
                    "predicted_per_second": per_second(generated.len(), predicted_ms),
                },
            })
        )?;
    } else {
        writeln!(stdout())?;
    }
    Ok(())
}
