//! A target worker and a draft worker of this command's own, as processes that speculate together; and how a command starts
//! workers and waits for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use generation::{GenerateEvent, GenerateRequest, SpeculationMode, Timings, Token};
use serde::Serialize;
use service::Endpoint;
use tokio::process::{Child, Command};
use tokio_stream::StreamExt as _;
use worker_api::{DraftClient, Joined, TargetClient, WorkerError, join};

use crate::cli::{DraftArgs, ModelArgs, SplitArgs};
use crate::runtime_dir::RuntimeDir;
use crate::stages;

/// How often a worker that loads is asked whether it is ready.
const READY_POLL: Duration = Duration::from_millis(20);

/// What the two are started with: the file that they read.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct PairConfig {
    pub target_worker: target_worker::Config,
    pub draft_worker: draft_worker::Config,
}

/// The two processes and the session between them; all ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Pair {
    pub target: TargetClient,
    /// Way between the two.
    pub transport: String,
    _joined: Joined,
    _workers: Vec<Worker>,
    // Dropped last: the processes use it.
    _dir: RuntimeDir,
}

/// An answer from beginning to end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub tokens: Vec<u32>,
    pub timings: Timings,
}

impl PairConfig {
    /// For one sequence at a time of the model and the draft asked for.
    pub(crate) fn new(
        model: &ModelArgs,
        split: &SplitArgs,
        draft: &DraftArgs,
        budget: usize,
    ) -> Result<Self> {
        ensure!(
            draft.draft.is_some() || model.model.is_none(),
            "--draft is missing: the demo draft does not go with another model"
        );
        Ok(Self {
            target_worker: target_worker::Config {
                parallel: 1,
                speculation: SpeculationMode::Tree.name().to_owned(),
                ddtree_budget: budget,
                ..stages::target_config(model, split)
            },
            draft_worker: draft_worker::Config {
                draft: draft.draft.clone(),
                model: model.model.clone(),
                device: draft.draft_device.to_string(),
                device_memory: draft.draft_device_memory,
                threads: draft.draft_threads,
                parallel: 1,
                ..draft_worker::Config::default()
            },
        })
    }
}

impl Pair {
    /// Starts both, waits until they are loaded and brings them together. To be called on the runtime of
    /// [`crate::up::runtime`].
    pub(crate) async fn start(mut config: PairConfig, log: &str) -> Result<Self> {
        let dir = RuntimeDir::create()?;
        config.target_worker.listen = Endpoint::Unix(dir.join("target.sock"));
        config.draft_worker.listen = Endpoint::Unix(dir.join("draft.sock"));
        stages::complete(&mut config.target_worker, &dir)?;
        config.target_worker.check()?;
        let path = write_config(&dir, &config)?;
        let mut workers = stages::start(&config.target_worker, &path, log)?;
        workers.push(start("target-worker", &[], &path, log)?);
        workers.push(start("draft-worker", &[], &path, log)?);
        let target = TargetClient::new(&config.target_worker.listen)?;
        let draft = DraftClient::new(&config.draft_worker.listen)?;
        let ready = async {
            until_ready(async || target.describe().await.map(drop)).await;
            until_ready(async || draft.describe().await.map(drop)).await;
        };
        tokio::select! {
            () = ready => {}
            ended = until_one_ends(&mut workers) => return Err(ended),
        }
        let joined = join(&target, &draft).await?;
        Ok(Self {
            transport: joined.open.session().transport().to_string(),
            target,
            _joined: joined,
            _workers: workers,
            _dir: dir,
        })
    }

    /// The whole answer to a request; `seen` is told each token as it comes.
    pub(crate) async fn generate(
        &self,
        request: GenerateRequest,
        mut seen: impl FnMut(&Token) -> Result<()>,
    ) -> Result<Answer> {
        let mut events = self.target.generate(request).await?;
        let mut tokens = Vec::new();
        while let Some(event) = events.next().await {
            match event? {
                GenerateEvent::Started { .. } | GenerateEvent::Progress { .. } => {}
                GenerateEvent::Token(token) => {
                    seen(&token)?;
                    tokens.push(token.id);
                }
                GenerateEvent::Finished { timings, .. } => {
                    return Ok(Answer { tokens, timings });
                }
            }
        }
        anyhow::bail!("the target worker ended in the middle of an answer")
    }
}

/// The file of a target alone.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct TargetConfig<'a> {
    target_worker: &'a target_worker::Config,
}

impl<'a> TargetConfig<'a> {
    pub(crate) fn new(target_worker: &'a target_worker::Config) -> Self {
        Self { target_worker }
    }
}

/// Writes what workers are started with.
pub(crate) fn write_config(dir: &RuntimeDir, config: &impl Serialize) -> Result<PathBuf> {
    let path = dir.join("tandem.toml");
    fs::write(&path, toml::to_string(config)?)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// A process that ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    role: String,
    process: Child,
}

/// Starts a worker.
pub(crate) fn start(role: &str, more: &[&str], config: &Path, log: &str) -> Result<Worker> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command
        .args([role, "--log", log, "--config"])
        .arg(config)
        .args(["--supervisor-pid", &std::process::id().to_string()])
        .args(more)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    // What this command was told in variables stands in the file.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TANDEM_") {
            command.env_remove(name);
        }
    }
    let process = command
        .spawn()
        .with_context(|| format!("starting the {role}"))?;
    Ok(Worker {
        role: role.to_owned(),
        process,
    })
}

async fn until_ready(mut ask: impl AsyncFnMut() -> Result<(), WorkerError>) {
    while ask().await.is_err() {
        tokio::time::sleep(READY_POLL).await;
    }
}

/// Returns when a worker has ended that should not have.
pub(crate) async fn until_one_ends(workers: &mut [Worker]) -> anyhow::Error {
    loop {
        for Worker { role, process } in &mut *workers {
            match process.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => {
                    return anyhow!("the {role} ended before it was ready ({status})");
                }
                Err(error) => return anyhow::Error::new(error).context("waiting for a worker"),
            }
        }
        tokio::time::sleep(READY_POLL).await;
    }
}
