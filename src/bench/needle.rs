//! `tandem bench --needle` and `--ttft`: long prompts through a whole set, whole and made shorter.
//!
//! Each prompt is code with facts in it, of which one or some are asked for. Nothing of a prompt is kept for the next one.

mod case;
mod report;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use service::StopSignals;
use tokenizer::{EncodeOptions, Tokenizer};

use crate::bench::needle::case::Case;
use crate::bench::needle::report::{Outcome, Report, Row};
use crate::cli::{
    BenchArgs, CommonArgs, NeedleArgs, PrefillArgs, RouterArgs, TargetArgs, UpArgs, UpDraftArgs,
};
use crate::client::Server;
use crate::session;
use crate::up::{Set, runtime};

/// Tokens left for what the chat template puts around a prompt.
const TEMPLATE_TOKENS: usize = 64;

/// Of a prompt long enough to be shortened.
const WARM_UP_BYTES: usize = 12_000;
/// What a prefill worker gets to load its drafter for the first time.
const PREFILL_PATIENCE: Duration = Duration::from_secs(300);
const PREFILL_POLL: Duration = Duration::from_millis(200);

/// Runs the command.
pub(super) fn run(args: &BenchArgs, log: &str) -> Result<()> {
    let needle = &args.needle;
    ensure!(needle.cases > 0, "--cases must be at least 1");
    ensure!(needle.needles > 0, "--needles must be at least 1");
    let shortens = needle.compression.iter().any(|mode| mode != "off");
    for mode in &needle.compression {
        ensure!(
            ["off", "always"].contains(&mode.as_str()),
            "--compression: `{mode}` is neither off nor always"
        );
    }
    ensure!(
        !shortens || needle.prefill_drafter.is_some() || args.model.model.is_none(),
        "--prefill-drafter is missing: the demo's does not go with another model"
    );
    let file = session::open(args.model.model.as_deref())?;
    let tokenizer = Tokenizer::from_gguf(file.metadata())?;
    let up = set_args(args, shortens);
    runtime()?.block_on(async {
        let mut signals = StopSignals::install()?;
        let mut set = Set::start(&up, log)?;
        let server = set.server.clone();
        let work = async {
            set.ready().await?;
            if shortens {
                until_it_shortens(&server, needle).await?;
            }
            let report = measure(args, &tokenizer, &server).await?;
            report.print(args.json)
        };
        let result = tokio::select! {
            result = work => result,
            () = signals.recv() => bail!("stopped"),
        };
        set.stop(&mut signals).await;
        result
    })
}

/// A set for one request at a time, which keeps nothing of a prompt.
fn set_args(args: &BenchArgs, shortens: bool) -> UpArgs {
    let (model, draft, needle) = (&args.model, &args.draft, &args.needle);
    let longest = needle.ctx.iter().map(|tokens| tokens.0).max();
    UpArgs {
        common: CommonArgs {
            model: model.model.clone(),
            ..CommonArgs::default()
        },
        router: RouterArgs {
            listen: Some("127.0.0.1:0".to_owned()),
            prefill_compression: shortens.then(|| "auto".to_owned()),
            ..RouterArgs::default()
        },
        target: TargetArgs {
            target_device: Some(model.device.to_string()),
            device_memory: model.device_memory,
            threads: Some(model.threads),
            ctx_size: longest,
            parallel: Some(1),
            prefill_chunk: Some(args.prefill_chunk),
            prefix_cache_slots: Some(0),
            ..TargetArgs::default()
        },
        draft: UpDraftArgs {
            draft: draft.draft.clone(),
            draft_device: Some(draft.draft_device.to_string()),
            draft_device_memory: draft.draft_device_memory,
            draft_threads: Some(draft.draft_threads),
        },
        prefill: PrefillArgs {
            prefill_drafter: shortens.then(|| needle.prefill_drafter.clone()).flatten(),
            prefill_device: Some(needle.prefill_device.to_string()),
            prefill_threads: Some(model.threads),
            ..PrefillArgs::default()
        },
    }
}

/// A set does not wait for its prefill worker, nor do requests.
async fn until_it_shortens(server: &Server, args: &NeedleArgs) -> Result<()> {
    let case = Case::new(args.seed, 1, WARM_UP_BYTES);
    let started = Instant::now();
    loop {
        let outcome = ask(server, &case, "always", args, 1).await?;
        if outcome.compression_ms.is_some() {
            return Ok(());
        }
        ensure!(
            started.elapsed() < PREFILL_PATIENCE,
            "the prefill worker shortens nothing; --log info says why"
        );
        tokio::time::sleep(PREFILL_POLL).await;
    }
}

async fn measure(args: &BenchArgs, tokenizer: &Tokenizer, server: &Server) -> Result<Report> {
    let needle = &args.needle;
    let answer_tokens = if needle.needle {
        needle.answer_tokens
    } else {
        1
    };
    let steps = needle.ctx.len() * needle.cases;
    let bar = ProgressBar::new(steps as u64).with_style(
        ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} {elapsed} (eta {eta})")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let mut rows = Vec::new();
    for &ctx in &needle.ctx {
        let room = ctx.0.saturating_sub(answer_tokens + TEMPLATE_TOKENS);
        let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); needle.compression.len()];
        for number in 0..needle.cases {
            bar.set_message(format!("prompts of {ctx} tokens"));
            let seed = needle.seed + number as u64;
            let case = fitting(seed, needle.needles, room, tokenizer)
                .with_context(|| format!("prompts of {ctx} tokens"))?;
            for (mode, outcomes) in needle.compression.iter().zip(&mut outcomes) {
                outcomes.push(ask(server, &case, mode, needle, answer_tokens).await?);
            }
            bar.inc(1);
        }
        for (mode, outcomes) in needle.compression.iter().zip(outcomes) {
            rows.push(Row {
                ctx,
                mode: mode.clone(),
                outcomes,
            });
        }
    }
    bar.finish_and_clear();
    Ok(Report {
        is_needle: needle.needle,
        rows,
    })
}

/// The longest case of at most `room` tokens, nearly.
fn fitting(seed: u64, needles: usize, room: usize, tokenizer: &Tokenizer) -> Result<Case> {
    let mut length = room * 3;
    for _ in 0..20 {
        let case = Case::new(seed, needles, length);
        let tokens = tokenizer.encode(&case.text, EncodeOptions::default()).len();
        if tokens <= room && (tokens + 400 > room || tokens * 20 > room * 19) {
            return Ok(case);
        }
        // A little below: the last function may be long.
        length = (length * room / tokens.max(1)).saturating_sub(300);
    }
    bail!("too short for {needles} facts and a question")
}

async fn ask(
    server: &Server,
    case: &Case,
    mode: &str,
    args: &NeedleArgs,
    answer_tokens: usize,
) -> Result<Outcome> {
    let mut compression = json!({"mode": mode, "return_prompt": true});
    if let Some(ratio) = args.keep_ratio {
        compression["keep_ratio"] = json!(ratio);
    }
    let body = json!({
        "messages": [{"role": "user", "content": case.text}],
        "max_tokens": answer_tokens,
        "temperature": 0,
        "stream": true,
        "stream_options": {"include_usage": true},
        "chat_template_kwargs": {"enable_thinking": false},
        "prefill_compression": compression,
    });
    let (mut answer, mut first, mut usage) = (String::new(), None, Value::Null);
    let started = Instant::now();
    let take = |event: Value| {
        let choice = &event["choices"][0];
        let text = choice["delta"]["content"].as_str().unwrap_or_default();
        let thought = choice["delta"]["reasoning_content"].as_str();
        let says = !text.is_empty() || thought.is_some_and(|thought| !thought.is_empty());
        // An answer may end with its first token.
        if first.is_none() && (says || choice["finish_reason"].is_string()) {
            first = Some(started.elapsed().as_secs_f64());
        }
        answer.push_str(text);
        if event["usage"].is_object() {
            usage = event["usage"].clone();
        }
        Ok(())
    };
    server.stream("/v1/chat/completions", &body, take).await?;
    let report = &usage["compression"];
    let prompt_tokens = usage["prompt_tokens"].as_u64().context("no usage")?;
    let seen = report["prompt"].as_str();
    Ok(Outcome {
        prompt_tokens,
        original_tokens: report["original_tokens"].as_u64().unwrap_or(prompt_tokens),
        // What was not shortened the model has seen whole.
        is_kept: seen.is_none_or(|prompt| {
            let mut facts = case.facts.iter().map(|fact| &case.text[fact.place.clone()]);
            facts.all(|fact| prompt.contains(fact))
        }),
        is_answered: case.is_answered(&answer),
        first_seconds: first.context("an answer without a token")?,
        compression_ms: report["ms"].as_f64(),
    })
}
