//! A target worker and a draft worker of this command's own, as processes that speculate together.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use generation::{GenerateEvent, GenerateRequest, SpeculationMode, Timings, Token};
use serde::Serialize;
use service::Endpoint;
use tokio::process::{Child, Command};
use tokio_stream::StreamExt as _;
use worker_api::{Attachment, DraftClient, OpenSession, TargetClient, WorkerError};

use crate::cli::{DraftArgs, ModelArgs};
use crate::runtime_dir::RuntimeDir;

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
    _attachment: Attachment,
    _session: OpenSession,
    _processes: [Child; 2],
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
    pub(crate) fn new(model: &ModelArgs, draft: &DraftArgs, budget: usize) -> Result<Self> {
        ensure!(
            draft.draft.is_some() || model.model.is_none(),
            "--draft is missing: the demo draft does not go with another model"
        );
        let cache_type = model.cache_type.map(|kv_type| kv_type.to_string());
        Ok(Self {
            target_worker: target_worker::Config {
                model: model.model.clone(),
                device: model.device.to_string(),
                device_memory: model.device_memory,
                threads: model.threads,
                ctx_size: model.ctx_size,
                cache_type,
                parallel: 1,
                speculation: SpeculationMode::Tree.name().to_owned(),
                ddtree_budget: budget,
                ..target_worker::Config::default()
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
        let path = dir.join("tandem.toml");
        fs::write(&path, toml::to_string(&config)?)
            .with_context(|| format!("writing {}", path.display()))?;
        let mut target_process = start("target-worker", &path, log)?;
        let mut draft_process = start("draft-worker", &path, log)?;
        let target = TargetClient::new(&config.target_worker.listen)?;
        let draft = DraftClient::new(&config.draft_worker.listen)?;
        until_ready(&mut target_process, "target-worker", async || {
            target.describe().await.map(drop)
        })
        .await?;
        until_ready(&mut draft_process, "draft-worker", async || {
            draft.describe().await.map(drop)
        })
        .await?;
        let speculation = target.describe_speculation().await?;
        let session = draft.open(&speculation.transports).await?;
        let attachment = target.attach(session.session()).await?;
        Ok(Self {
            transport: session.session().transport().to_string(),
            target,
            _attachment: attachment,
            _session: session,
            _processes: [target_process, draft_process],
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
                GenerateEvent::Started { .. } => {}
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

fn start(role: &str, config: &PathBuf, log: &str) -> Result<Child> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command
        .args([role, "--log", log, "--config"])
        .arg(config)
        .args(["--supervisor-pid", &std::process::id().to_string()])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    // What this command was told in variables stands in the file.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TANDEM_") {
            command.env_remove(name);
        }
    }
    command
        .spawn()
        .with_context(|| format!("starting the {role}"))
}

async fn until_ready(
    process: &mut Child,
    role: &str,
    mut ask: impl AsyncFnMut() -> Result<(), WorkerError>,
) -> Result<()> {
    while ask().await.is_err() {
        let ended = process.try_wait().context("waiting for a worker")?;
        ensure!(
            ended.is_none(),
            "the {role} ended before it was ready ({})",
            ended.unwrap_or_default()
        );
        tokio::time::sleep(READY_POLL).await;
    }
    Ok(())
}
