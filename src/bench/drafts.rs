//! `tandem bench --draft`: speculative decoding in real worker processes, beside plain decoding.
//!
//! For each prompt the ways take turns, so that a change of the machine's mood meets all of them.

use std::io::{Write, stdout};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use generation::{GenerateRequest, SpeculationConfig, SpeculationMode};
use indicatif::{ProgressBar, ProgressStyle};
use sampling::SamplingParams;
use serde_json::{Value, json};
use tokenizer::Tokenizer;

use crate::bench::prompts;
use crate::cli::{BenchArgs, BenchMode};
use crate::pair::{Answer, Pair, PairConfig};
use crate::{session, up};

/// One way of decoding and what it gave.
struct Way {
    mode: BenchMode,
    speculation: SpeculationConfig,
    /// By prompt, then by repetition.
    answers: Vec<Vec<Answer>>,
    /// Rounds by the number of draft tokens accepted.
    rounds_by_accepted: Vec<u64>,
}

/// Runs the command.
pub(super) fn run(args: &BenchArgs, log: &str) -> Result<()> {
    let file = session::open(args.model.model.as_deref())?;
    let tokenizer = Arc::new(Tokenizer::from_gguf(file.metadata())?);
    ensure!(
        args.prompts.is_some() || args.model.model.is_none(),
        "--prompts is missing: the prompts inside this program are for the demo model"
    );
    let prompts = prompts::read(args.prompts.as_deref(), &tokenizer)?;
    let mut ways = ways(args)?;
    let largest = ways.iter().map(|way| way.speculation.max_rows()).max();
    let config = PairConfig::new(
        &args.model,
        &args.split,
        &args.draft,
        largest.unwrap_or(0).max(1),
    )?;
    let (device, transport) = up::runtime()?.block_on(async {
        let pair = Pair::start(config, log).await?;
        let bench = Bench {
            pair: &pair,
            prompts: &prompts,
            max_tokens: args.num_tokens,
            stop_ids: tokenizer.stop_ids(),
        };
        bench.run(&mut ways, args.repetitions).await?;
        anyhow::Ok((pair.target.describe().await?.device, pair.transport.clone()))
    })?;
    let report = Report {
        model: args.model.model.as_ref().map_or_else(
            || "demo-target.gguf".to_owned(),
            |path| path.display().to_string(),
        ),
        device,
        transport,
        repetitions: args.repetitions,
        ways: &ways,
    };
    if args.json {
        writeln!(stdout(), "{}", report.json())?;
    } else {
        report.print()?;
    }
    report.check_tokens()
}

fn ways(args: &BenchArgs) -> Result<Vec<Way>> {
    use BenchMode::{Ar, Auto, Chain, Tree};
    let modes = match args.mode.as_slice() {
        [] => &[Ar, Chain, Tree, Auto],
        modes => modes,
    };
    let budgets = match args.budget.as_slice() {
        [] => &[args.draft.ddtree_budget],
        budgets => budgets,
    };
    ensure!(
        !budgets.contains(&0),
        "--budget: a tree needs at least 1 node"
    );
    let mut ways = Vec::new();
    for &mode in modes {
        let (speculation, budgets) = match mode {
            Ar => (SpeculationMode::Off, &[0][..]),
            Chain => (SpeculationMode::Chain, &[0][..]),
            Tree => (SpeculationMode::Tree, budgets),
            Auto => (SpeculationMode::Auto, &[args.draft.ddtree_budget][..]),
        };
        ways.extend(budgets.iter().map(|&budget| Way {
            mode,
            speculation: SpeculationConfig {
                mode: speculation,
                budget,
            },
            answers: Vec::new(),
            rounds_by_accepted: Vec::new(),
        }));
    }
    Ok(ways)
}

struct Bench<'a> {
    pair: &'a Pair,
    prompts: &'a [Vec<u32>],
    max_tokens: u32,
    stop_ids: &'a [u32],
}

impl Bench<'_> {
    async fn run(&self, ways: &mut [Way], repetitions: usize) -> Result<()> {
        // Pages are touched, and `auto` has measured what it decides by.
        for prompt in self.prompts.iter().take(4) {
            for way in ways.iter() {
                self.answer(prompt, way.speculation).await?;
            }
        }
        let bar = progress(self.prompts.len() * repetitions);
        for way in ways.iter_mut() {
            way.answers.resize_with(self.prompts.len(), Vec::new);
        }
        for _ in 0..repetitions {
            for (place, prompt) in self.prompts.iter().enumerate() {
                for way in ways.iter_mut() {
                    let before = self.histogram().await?;
                    let answer = self.answer(prompt, way.speculation).await?;
                    way.count_rounds(&before, &self.histogram().await?);
                    way.answers[place].push(answer);
                }
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    async fn answer(&self, prompt: &[u32], speculation: SpeculationConfig) -> Result<Answer> {
        let request = GenerateRequest {
            request_id: "bench".to_owned(),
            prompt: prompt.to_vec(),
            history_tokens: 0,
            max_tokens: self.max_tokens,
            min_tokens: 0,
            stop_ids: self.stop_ids.to_vec(),
            sampling: SamplingParams::default(),
            logprobs: false,
            top_logprobs: 0,
            speculation: Some(speculation),
            thinking: None,
            grammar: None,
        };
        self.pair.generate(request, |_| Ok(())).await
    }

    async fn histogram(&self) -> Result<Vec<u64>> {
        let stats = self
            .pair
            .target
            .stats()
            .await
            .context("asking for counters")?;
        Ok(stats.speculation.rounds_by_accepted)
    }
}

fn progress(len: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("measuring {bar:40} {pos}/{len} prompts, {eta} left");
    ProgressBar::new(len as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

impl Way {
    fn name(&self) -> String {
        match self.mode {
            BenchMode::Ar => "ar".to_owned(),
            BenchMode::Chain => "chain".to_owned(),
            BenchMode::Tree => format!("tree {}", self.speculation.budget),
            BenchMode::Auto => "auto".to_owned(),
        }
    }

    fn count_rounds(&mut self, before: &[u64], after: &[u64]) {
        if self.rounds_by_accepted.len() < after.len() {
            self.rounds_by_accepted.resize(after.len(), 0);
        }
        for (accepted, count) in after.iter().enumerate() {
            let earlier = before.get(accepted).copied().unwrap_or(0);
            self.rounds_by_accepted[accepted] += count.saturating_sub(earlier);
        }
    }

    fn all(&self) -> impl Iterator<Item = &Answer> {
        self.answers.iter().flatten()
    }

    /// Tokens and seconds of a prompt's answer: the median repetition, from the first token to the last.
    fn median(answers: &[Answer]) -> (f64, f64) {
        let mut times: Vec<f64> = answers
            .iter()
            .map(|answer| answer.timings.generated_ms / 1e3)
            .collect();
        times.sort_by(f64::total_cmp);
        let tokens = answers.first().map_or(0, |answer| answer.tokens.len());
        let seconds = times.get(times.len() / 2).copied().unwrap_or(0.0);
        (tokens.saturating_sub(1) as f64, seconds)
    }

    /// All prompts together.
    fn tokens_per_second(&self) -> f64 {
        let sum = |sum: (f64, f64), next: (f64, f64)| (sum.0 + next.0, sum.1 + next.1);
        let (tokens, seconds) = self
            .answers
            .iter()
            .map(|answers| Self::median(answers))
            .fold((0.0, 0.0), sum);
        tokens / seconds.max(1e-9)
    }

    /// Tokens per round, the target's own included; nothing without rounds.
    fn acceptance_length<'a>(answers: impl Iterator<Item = &'a Answer>) -> Option<f64> {
        let (mut rounds, mut accepted) = (0, 0);
        for answer in answers {
            rounds += answer.timings.speculation.rounds;
            accepted += answer.timings.speculation.accepted_tokens;
        }
        (rounds > 0).then(|| 1.0 + f64::from(accepted) / f64::from(rounds))
    }

    /// Milliseconds per round: draft, channel, tree, verify, commit.
    fn stages(&self) -> Option<[(&'static str, f64); 5]> {
        let rounds: u32 = self.all().map(|a| a.timings.speculation.rounds).sum();
        let per_round = |stage: fn(&Answer) -> f64| {
            self.all().map(stage).sum::<f64>() / f64::from(rounds.max(1))
        };
        (rounds > 0).then(|| {
            [
                ("draft", per_round(|a| a.timings.speculation.draft_ms)),
                ("channel", per_round(|a| a.timings.speculation.channel_ms)),
                ("tree", per_round(|a| a.timings.speculation.tree_ms)),
                ("verify", per_round(|a| a.timings.speculation.verify_ms)),
                ("commit", per_round(|a| a.timings.speculation.commit_ms)),
            ]
        })
    }
}

struct Report<'a> {
    model: String,
    device: String,
    transport: String,
    repetitions: usize,
    ways: &'a [Way],
}

impl Report<'_> {
    fn plain(&self) -> Option<&Way> {
        self.ways.iter().find(|way| way.mode == BenchMode::Ar)
    }

    /// Share of plain decoding's time that a way saves.
    fn saved(&self, way: &Way) -> Option<f64> {
        let plain = self.plain()?.tokens_per_second();
        Some(1.0 - plain / way.tokens_per_second())
    }

    /// Answers whose tokens are those of the first way.
    fn equal(&self, way: &Way) -> usize {
        let first = self.ways.iter().flat_map(Way::all);
        let pairs = way.all().zip(first);
        pairs.filter(|(a, b)| a.tokens == b.tokens).count()
    }

    /// Fails where a way of decoding changed a token: that is a bug, and no figure counts then.
    fn check_tokens(&self) -> Result<()> {
        for way in self.ways {
            let (equal, all) = (self.equal(way), way.all().count());
            ensure!(
                equal == all,
                "{}: only {equal} of {all} answers have the tokens of {}; please report this",
                way.name(),
                self.ways[0].name()
            );
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let results: Vec<Value> = self.ways.iter().map(|way| self.way_json(way)).collect();
        json!({
            "model": self.model,
            "device": self.device,
            "transport": self.transport,
            "repetitions": self.repetitions,
            "results": results,
        })
    }

    fn way_json(&self, way: &Way) -> Value {
        let prompts: Vec<Value> = way
            .answers
            .iter()
            .map(|answers| {
                let (tokens, seconds) = Way::median(answers);
                json!({
                    "tokens_per_second": tokens / seconds.max(1e-9),
                    "acceptance_length": Way::acceptance_length(answers.iter()),
                    "tokens": answers.first().map(|answer| answer.tokens.as_slice()),
                })
            })
            .collect();
        let stages = way.stages().map(|stages| {
            let stage = |(name, ms): (&str, f64)| (name.to_owned(), Value::from(ms));
            Value::Object(stages.into_iter().map(stage).collect())
        });
        json!({
            "mode": match way.mode {
                BenchMode::Ar => "ar",
                BenchMode::Chain => "chain",
                BenchMode::Tree => "tree",
                BenchMode::Auto => "auto",
            },
            "budget": (way.speculation.budget > 0).then_some(way.speculation.budget),
            "tokens_per_second": way.tokens_per_second(),
            "acceptance_length": Way::acceptance_length(way.all()),
            "rounds_by_accepted": way.rounds_by_accepted,
            "stage_ms_per_round": stages,
            "saved_share": self.saved(way),
            "prompts": prompts,
        })
    }

    fn print(&self) -> Result<()> {
        let mut out = stdout().lock();
        writeln!(out, "model    {}\ndevice   {}", self.model, self.device)?;
        let (prompts, repetitions) = (self.ways[0].answers.len(), self.repetitions);
        writeln!(
            out,
            "workers  target and draft over {}; {prompts} prompts, {repetitions} repetitions\n",
            self.transport
        )?;
        writeln!(
            out,
            "| way     |   tok/s | saved | tokens/round | draft ms | channel |  tree | verify | commit |\n\
             | ------- | ------: | ----: | -----------: | -------: | ------: | ----: | -----: | -----: |"
        )?;
        for way in self.ways {
            let length = Way::acceptance_length(way.all());
            let length = length.map_or("-".to_owned(), |length| format!("{length:.2}"));
            let saved = self
                .saved(way)
                .map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
            let stages = way
                .stages()
                .map(|stages| stages.map(|(_, ms)| format!("{ms:.3}")));
            let [draft, channel, tree, verify, commit] =
                stages.unwrap_or_else(|| std::array::from_fn(|_| "-".to_owned()));
            writeln!(
                out,
                "| {:7} | {:7.1} | {saved:>5} | {length:>12} | {draft:>8} | {channel:>7} | {tree:>5} | {verify:>6} | {commit:>6} |",
                way.name(),
                way.tokens_per_second()
            )?;
        }
        writeln!(out, "\nrounds by draft tokens accepted, from 0 on")?;
        for way in self.ways.iter().filter(|way| way.mode != BenchMode::Ar) {
            let counts: Vec<String> = way.rounds_by_accepted.iter().map(u64::to_string).collect();
            writeln!(out, "{:8} {}", way.name(), counts.join(" "))?;
        }
        Ok(())
    }
}
