//! `tandem probe draft`: the target reads a context, the draft reads the target.

use std::collections::HashMap;

use anyhow::{Context, Result};
use kernels::DecodePath;
use models::{Batch, BatchSegment, DraftOptions, LogitsWanted, load_draft};

use crate::cli::{ModelArgs, ProbeDraftArgs};
use crate::session;

pub(crate) fn run(args: &ProbeDraftArgs) -> Result<()> {
    let tokens = session::read_tokens(&args.tokens)?;
    let (&anchor, context) = tokens
        .split_last()
        .with_context(|| format!("{}: no anchor", args.tokens.display()))?;
    let target_args = ModelArgs {
        model: args.target.clone(),
        device: args.device,
        device_memory: None,
        threads: args.threads,
        ctx_size: 0,
        cache_types: args.cache_types,
        decode_path: DecodePath::Auto,
    };
    let device = session::device(&target_args)?;
    let file = session::open(args.target.as_deref())?;
    let draft_file = session::open_draft(args.draft.as_deref())?;
    let options = DraftOptions {
        max_context_tokens: tokens.len(),
        max_rows: session::BATCH_ROWS,
        // The draft keeps both as the target keeps keys.
        kv_type: args.cache_types.cache_type_k,
        ..DraftOptions::default()
    };
    let bar = session::LoadBar::new();
    let mut draft = load_draft(&draft_file, &file, device.clone(), options, &mut |so_far| {
        bar.show(so_far);
    })?;
    let mut target = session::load(&file, &target_args, device)?;

    let (sequence, draft_sequence) = (target.create_sequence()?, draft.create_sequence()?);
    for piece in context.chunks(session::BATCH_ROWS) {
        let segment = BatchSegment {
            sequence,
            tokens: piece.to_vec(),
            parents: Vec::new(),
            advance: true,
            logits: LogitsWanted::None,
        };
        target.forward(&Batch {
            segments: vec![segment],
            capture_layers: draft.config().capture_layers.clone(),
        })?;
        let features = target.features(0..piece.len());
        draft.append(draft_sequence, &features)?;
    }
    let logits = draft.block_logits(draft_sequence, anchor)?;
    let vocab_size = draft.config().vocab_size;
    let tensors = HashMap::from([("draft_logits".to_owned(), (logits, vocab_size))]);
    super::write_tensors(&tensors, &args.out)
}
