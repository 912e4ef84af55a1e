//! `tandem up`: the whole set from one configuration.

mod prefill;

use std::ffi::OsString;
use std::fs;
use std::io::{IsTerminal, Write, stdout};
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context, Result};
use kernels::DeviceName;
use models::DraftOptions;
use serde::Serialize;
use service::{Endpoint, StopSignals};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cli::UpArgs;
use crate::client::Server;
use crate::config;
use crate::runtime_dir::RuntimeDir;
use crate::session;
use crate::stages;
use crate::supervisor::Role;

/// How often a set that starts is asked whether it is ready.
const READY_POLL: Duration = Duration::from_millis(50);

/// The configuration of all roles: the file that a set's processes are started with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct SetConfig {
    target_worker: target_worker::Config,
    /// Left out where there is no draft, or none is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_worker: Option<draft_worker::Config>,
    /// The same of the drafter that makes prompts shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill_worker: Option<prefill_worker::Config>,
    router: router::Settings,
}

impl SetConfig {
    /// Reads all layers, and fills in what the roles must agree on.
    fn load(args: &UpArgs, dir: &RuntimeDir) -> Result<Self> {
        #[derive(Serialize)]
        struct Flags<'a, A: Serialize> {
            #[serde(flatten)]
            common: &'a crate::cli::CommonArgs,
            #[serde(flatten)]
            role: &'a A,
        }
        let common = &args.common;
        let file = common.config.as_deref();
        let target_flags = Flags {
            common,
            role: &args.target,
        };
        let draft_flags = Flags {
            common,
            role: &args.draft,
        };
        let router_flags = Flags {
            common,
            role: &args.router,
        };
        let mut target_worker: target_worker::Config =
            config::load(file, "target-worker", &target_flags)?;
        let draft_worker: draft_worker::Config = config::load(file, "draft-worker", &draft_flags)?;
        let mut router: router::Settings = config::load(file, "router", &router_flags)?;
        if args.router.lazy_draft {
            "request-scoped".clone_into(&mut router.draft_residency);
        }
        router.draft_gives_way()?;
        router.target_residency()?;
        stages::complete(&mut target_worker, dir)?;
        let socket = Endpoint::Unix(dir.join("target.sock"));
        target_worker.listen = socket.clone();
        router.target = socket;
        if router.model.is_none() {
            router.model.clone_from(&target_worker.model);
        }
        let draft_worker = local_draft(draft_worker, &target_worker)?.map(|mut draft| {
            draft.listen = Endpoint::Unix(dir.join("draft.sock"));
            router.draft = Some(draft.listen.clone());
            draft
        });
        if router.draft.is_none() {
            // Room for drafts that never come would be wasted.
            "off".clone_into(&mut target_worker.speculation);
        }
        let prefill_worker = prefill::load(args, dir, &mut router)?;
        router.listen = free_address(&router.listen)?;
        Ok(Self {
            target_worker,
            draft_worker,
            prefill_worker,
            router,
        })
    }

    /// Opens the model files: one that cannot be read, or a draft of another model, fails before any process is there.
    fn check_files(&self) -> Result<()> {
        self.target_worker.check()?;
        self.router.clone().check()?;
        let target = session::open(self.target_worker.model.as_deref())?;
        target_worker::split(&self.target_worker, &target)?;
        if let Some(config) = &self.prefill_worker {
            prefill::check(config)?;
        }
        for device in self.target_worker.stage_devices()? {
            check_device(self.target_worker.device_setting(), device)?;
        }
        let Some(config) = &self.draft_worker else {
            return Ok(());
        };
        config.check()?;
        check_device("draft-device", config.device()?)?;
        let draft = session::open_draft(config.draft.as_deref())?;
        let need = models::draft_memory_need(&draft, &target, &DraftOptions::default());
        let (draft, target) = (draft.path().display(), target.path().display());
        need.with_context(|| format!("the draft {draft} for {target}"))?;
        Ok(())
    }
}

/// A process of a set.
struct Process {
    name: String,
    command: &'static str,
    args: Vec<OsString>,
    is_vital: bool,
    drain_seconds: u64,
}

impl Process {
    fn vital(command: &'static str, drain_seconds: u64) -> Self {
        Self {
            name: command.to_owned(),
            command,
            args: Vec::new(),
            is_vital: true,
            drain_seconds,
        }
    }
}

impl SetConfig {
    /// All processes, in the order in which they end: the router first, so that running answers still have their workers, and
    /// the stages after the target that needs them.
    fn processes(&self) -> Vec<Process> {
        let target = &self.target_worker;
        let stage = |number: usize| Process {
            name: format!("target-stage {number}"),
            args: vec!["--stage".into(), number.to_string().into()],
            ..Process::vital("target-stage", target.drain_seconds)
        };
        let draft = self.draft_worker.iter().map(|draft| Process {
            is_vital: false,
            ..Process::vital("draft-worker", draft.drain_seconds)
        });
        let prefill = self.prefill_worker.iter().map(|prefill| Process {
            is_vital: false,
            ..Process::vital("prefill-worker", prefill.drain_seconds)
        });
        let workers = [
            Process::vital("router", self.router.drain_seconds),
            Process::vital("target-worker", target.drain_seconds),
        ];
        let stages = (1..=target.stages.len()).map(stage);
        let workers = workers.into_iter().chain(stages);
        workers.chain(draft).chain(prefill).collect()
    }
}

/// Refuses a device that is not there, which a worker would be started for again and again.
fn check_device(setting: &str, device: DeviceName) -> Result<()> {
    device
        .check()
        .with_context(|| format!("{setting} {device}"))
}

/// The draft that the set itself runs: the one asked for, or the demo's for the demo. `None` where drafts are not wanted,
/// or nothing is known of one that goes with the model.
fn local_draft(
    draft: draft_worker::Config,
    target: &target_worker::Config,
) -> Result<Option<draft_worker::Config>> {
    let is_there = draft.draft.is_some() || target.model.is_none();
    if !is_there || !target.speculates()? {
        return Ok(None);
    }
    Ok(Some(draft_worker::Config {
        model: draft.model.or_else(|| target.model.clone()),
        // With fewer the sequences would push each other out in turn.
        parallel: draft.parallel.max(target.parallel),
        ..draft
    }))
}

/// Makes sure that the router can listen: a server that is there already would pass for it. Port 0 becomes a free one,
/// so that the address can be told and stays over restarts.
fn free_address(listen: &str) -> Result<String> {
    let probe = TcpListener::bind(listen).with_context(|| format!("listening on {listen}"))?;
    if !listen.ends_with(":0") {
        return Ok(listen.to_owned());
    }
    Ok(probe.local_addr()?.to_string())
}

pub(crate) fn run(args: &UpArgs, log: &str) -> Result<()> {
    runtime()?.block_on(async {
        let mut signals = StopSignals::install()?;
        let mut set = Set::start(args, log)?;
        let ended = tokio::select! {
            ended = set.serve() => ended,
            () = signals.recv() => Ok(()),
        };
        tracing::info!("draining; once more ends at once");
        set.stop(&mut signals).await;
        ended
    })
}

/// One thread: the processes' parent-death signal is tied to the thread that starts them.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the async runtime")
}

/// A running set of processes.
#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) server: Server,
    roles: JoinSet<Result<()>>,
    was_ready: CancellationToken,
    /// In the order in which the processes end.
    ends: Vec<End>,
    kill: CancellationToken,
    // Dropped last: the processes use it.
    _dir: RuntimeDir,
}

/// The end of one process.
#[derive(Debug, Default)]
struct End {
    /// Asks for it.
    stop: CancellationToken,
    /// Cancelled when it has come.
    ended: CancellationToken,
}

impl Set {
    /// Starts the processes, without waiting for them.
    pub(crate) fn start(args: &UpArgs, log: &str) -> Result<Self> {
        let dir = RuntimeDir::create()?;
        let config = SetConfig::load(args, &dir)?;
        config.check_files()?;
        let config_path = dir.join("tandem.toml");
        fs::write(&config_path, toml::to_string(&config)?)
            .with_context(|| format!("writing {}", config_path.display()))?;
        let key = config.router.first_key()?;
        let server = Server::new(&format!("http://{}", config.router.listen), key.as_ref())?;
        let program = std::env::current_exe().context("finding this program")?;
        let args: Vec<OsString> = vec![
            "--log".into(),
            log.into(),
            "--config".into(),
            config_path.into(),
        ];
        let mut set = Self {
            server,
            roles: JoinSet::new(),
            was_ready: CancellationToken::new(),
            ends: Vec::new(),
            kill: CancellationToken::new(),
            _dir: dir,
        };
        for process in config.processes() {
            let end = End::default();
            let role = Role {
                name: process.name,
                command: process.command,
                program: program.clone(),
                args: [args.clone(), process.args].concat(),
                stop: end.stop.clone(),
                kill: set.kill.clone(),
                is_vital: process.is_vital,
                was_ready: set.was_ready.clone(),
                drain: Duration::from_secs(process.drain_seconds),
            };
            let ended = end.ended.clone().drop_guard();
            set.ends.push(end);
            set.roles.spawn(async move {
                let _ended = ended;
                role.keep_running().await
            });
        }
        Ok(set)
    }

    /// Waits until requests can be answered.
    ///
    /// # Errors
    /// A process ended.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        loop {
            tokio::select! {
                ended = self.roles.join_next() => return role_result(ended),
                () = tokio::time::sleep(READY_POLL) => {}
            }
            if self.server.is_ready().await {
                self.was_ready.cancel();
                return Ok(());
            }
        }
    }

    /// Tells when the set is ready, then waits until a process cannot be kept running.
    async fn serve(&mut self) -> Result<()> {
        self.ready().await?;
        print_welcome(&self.server).await?;
        role_result(self.roles.join_next().await)
    }

    /// Ends the processes one after another. One more signal kills.
    pub(crate) async fn stop(self, signals: &mut StopSignals) {
        let kill = self.kill.clone();
        let end = async {
            for End { stop, ended } in &self.ends {
                stop.cancel();
                ended.cancelled().await;
            }
        };
        tokio::pin!(end);
        tokio::select! {
            () = &mut end => {}
            () = signals.recv() => {
                kill.cancel();
                end.await;
            }
        }
        // One that was killed while it opened a channel left it behind.
        draft_worker::remove_left_behind();
    }
}

fn role_result(ended: Option<Result<Result<()>, tokio::task::JoinError>>) -> Result<()> {
    ended.context("no process is running")??
}

async fn print_welcome(server: &Server) -> Result<()> {
    let url = server.url();
    let model = server.model().await?;
    writeln!(stdout(), "\n  {model} is served on {url}\n")?;
    if stdout().is_terminal() {
        writeln!(
            stdout(),
            "  Page:  {url} in a browser, with a live view at {url}/status"
        )?;
        writeln!(stdout(), "  Chat:  tandem chat --url {url}")?;
        writeln!(
            stdout(),
            "  Ask:   curl -N {url}/v1/chat/completions -d '{{\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"Write a function that reverses a string.\"}}]}}'"
        )?;
        writeln!(stdout(), "  Stop:  Ctrl-C\n")?;
    }
    Ok(())
}
