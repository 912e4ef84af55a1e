//! `tandem probe perplexity`: how well a model expects a text, and what types of keys and values change of that.

use std::io::{Write, stdout};

use anyhow::{Context, Result, ensure};
use gguf::GgufFile;
use models::{Batch, BatchSegment, KvType, KvTypes, LoadOptions, LogitsWanted};
use tokenizer::{EncodeOptions, Tokenizer};

use crate::cli::{ModelArgs, ProbePerplexityArgs};
use crate::session;

/// What is said of all tokens but the last, of each about the next one.
#[derive(Default)]
struct Said {
    /// \[T - 1, V\] logarithms of probabilities.
    log_probs: Vec<f32>,
    /// Sum of those of the tokens that came.
    log_likelihood: f64,
}

pub(super) fn run(args: &ProbePerplexityArgs) -> Result<()> {
    let file = session::open(args.model.model.as_deref())?;
    let text = std::fs::read_to_string(&args.text)
        .with_context(|| format!("reading {}", args.text.display()))?;
    let options = EncodeOptions {
        add_bos: true,
        parse_special: false,
    };
    let mut tokens = Tokenizer::from_gguf(file.metadata())?.encode(&text, options);
    tokens.truncate(args.max_tokens);
    ensure!(
        tokens.len() > 1,
        "{}: {} tokens, expected at least 2",
        args.text.display(),
        tokens.len()
    );
    let types = args.model.cache_types.of(&file);
    let exact = say(&file, &args.model, KvTypes::both(KvType::F32), &tokens)?;
    let said = say(&file, &args.model, types, &tokens)?;
    let count = tokens.len() - 1;
    let vocab_size = exact.log_probs.len() / count;
    let (mut total, mut most, mut same) = (0.0, 0.0_f64, 0);
    let rows = exact.log_probs.chunks_exact(vocab_size);
    for (exact, said) in rows.zip(said.log_probs.chunks_exact(vocab_size)) {
        let divergence = divergence(exact, said);
        total += divergence;
        most = most.max(divergence);
        same += usize::from(best(exact) == best(said));
    }
    let perplexity = |said: &Said| (-said.log_likelihood / count as f64).exp();
    writeln!(
        stdout(),
        "{types}: {} and {} bits a value, {} tokens\n\
         perplexity {:.4}, with f32 {:.4}\n\
         KL from f32 mean {:.2e}, max {most:.2e}; same best token {:.2} %",
        types.k.bits(),
        types.v.bits(),
        tokens.len(),
        perplexity(&said),
        perplexity(&exact),
        total / count as f64,
        100.0 * same as f64 / count as f64,
    )?;
    Ok(())
}

/// Reads the text with keys and values of some types.
fn say(file: &GgufFile, args: &ModelArgs, types: KvTypes, tokens: &[u32]) -> Result<Said> {
    let options = LoadOptions {
        max_tokens: tokens.len(),
        max_sequences: 1,
        max_batch_rows: session::BATCH_ROWS,
        kv_type: Some(types),
    };
    let mut model = session::load_with(file, session::device(args)?, options)?;
    let sequence = model.create_sequence()?;
    let vocab_size = model.config().vocab_size;
    let mut said = Said::default();
    let (read, next) = (&tokens[..tokens.len() - 1], &tokens[1..]);
    for (piece, next) in (read.chunks(session::BATCH_ROWS)).zip(next.chunks(session::BATCH_ROWS)) {
        let segment = BatchSegment {
            sequence,
            tokens: piece.to_vec(),
            parents: Vec::new(),
            advance: true,
            logits: LogitsWanted::All,
        };
        let output = model.forward(&Batch {
            segments: vec![segment],
            capture_layers: Vec::new(),
        })?;
        for (logits, &next) in output.logits.chunks_exact(vocab_size).zip(next) {
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
            let log_sum = f64::from(most) + sum.ln();
            let log_prob = |logit: f32| f64::from(logit) - log_sum;
            said.log_likelihood += log_prob(logits[next as usize]);
            said.log_probs
                .extend(logits.iter().map(|logit| log_prob(*logit) as f32));
        }
    }
    Ok(said)
}

/// Kullback and Leibler's, in nats: what is lost by taking `said` for `exact`.
fn divergence(exact: &[f32], said: &[f32]) -> f64 {
    let rows = exact.iter().zip(said);
    rows.map(|(exact, said)| {
        let exact = f64::from(*exact);
        exact.exp() * (exact - f64::from(*said))
    })
    .sum()
}

fn best(row: &[f32]) -> Option<usize> {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_divergence_is_that_of_a_hand_calculation() {
        let logs = |row: [f64; 2]| row.map(|x| x.ln() as f32);
        let (exact, said) = (logs([0.75, 0.25]), logs([0.5, 0.5]));
        assert!((divergence(&exact, &said) - 0.130_812).abs() < 1e-6);
        assert!(divergence(&exact, &exact).abs() < 1e-12);
        assert_eq!(best(&exact), Some(0));
    }
}
