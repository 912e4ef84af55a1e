//! `tandem router`, `tandem target-worker`, `tandem target-stage`, `tandem draft-worker` and `tandem prefill-worker`: one role in this
//! process.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::getppid;
use router::{Drafts, Prefill};
use tokio::runtime::Runtime;
use worker_api::{DraftClient, PrefillClient, TargetClient};

use crate::cli::{
    DraftWorkerArgs, PrefillWorkerArgs, RouterRoleArgs, TargetStageArgs, TargetWorkerArgs,
};
use crate::config;
use crate::session;

/// What the runtime's blocking threads get to end in; a model that is being loaded does not stop for a signal.
const LAST_WORDS: Duration = Duration::from_millis(200);

pub(crate) fn target_worker(args: &TargetWorkerArgs) -> Result<()> {
    end_with(args.common.supervisor_pid)?;
    let config: target_worker::Config =
        config::load(args.common.config.as_deref(), "target-worker", args)?;
    let file = session::open(config.model.as_deref())?;
    let bar = session::LoadBar::new();
    // Network and streams only; the engine and the device have threads of their own.
    in_runtime(1, async {
        let shutdown = service::cancel_on_signal()?;
        target_worker::run(config, file, move |so_far| bar.show(so_far), shutdown).await
    })
}

pub(crate) fn target_stage(args: &TargetStageArgs) -> Result<()> {
    end_with(args.common.supervisor_pid)?;
    let mut config: target_worker::Config =
        config::load(args.common.config.as_deref(), "target-worker", args)?;
    if let Some(pid) = args.common.supervisor_pid {
        config.instance = set_instance(pid);
    }
    let file = session::open(config.model.as_deref())?;
    let bar = session::LoadBar::new();
    // Sessions are set up here; the device has threads of its own.
    in_runtime(1, async {
        let shutdown = service::cancel_on_signal()?;
        let progress = move |so_far| bar.show(so_far);
        target_worker::run_stage(config, args.stage, file, progress, shutdown).await
    })
}

/// What a set leaves in shared memory bears its name, whichever of its processes made it.
fn set_instance(supervisor_pid: i32) -> String {
    format!("set-{supervisor_pid}")
}

pub(crate) fn draft_worker(args: &DraftWorkerArgs) -> Result<()> {
    end_with(args.common.supervisor_pid)?;
    let mut config: draft_worker::Config =
        config::load(args.common.config.as_deref(), "draft-worker", args)?;
    if let Some(pid) = args.common.supervisor_pid {
        config.instance = set_instance(pid);
    }
    config.check()?;
    let draft = session::open_draft(config.draft.as_deref())?;
    let target = session::open(config.model.as_deref())?;
    let bar = session::LoadBar::new();
    // Sessions are set up here; the device has threads of its own.
    in_runtime(1, async {
        let shutdown = service::cancel_on_signal()?;
        let progress = move |so_far| bar.show(so_far);
        draft_worker::run(config, draft, target, progress, shutdown).await
    })
}

pub(crate) fn prefill_worker(args: &PrefillWorkerArgs) -> Result<()> {
    end_with(args.supervisor_pid)?;
    let config: prefill_worker::Config =
        config::load(args.config.as_deref(), "prefill-worker", args)?;
    config.check()?;
    let file = session::open_drafter(config.drafter.as_deref())?;
    // Calls only; the device has a thread of its own.
    in_runtime(1, async {
        let shutdown = service::cancel_on_signal()?;
        prefill_worker::run(config, file, shutdown).await
    })
}

pub(crate) fn router(args: &RouterRoleArgs) -> Result<()> {
    end_with(args.common.supervisor_pid)?;
    let settings: router::Settings = config::load(args.common.config.as_deref(), "router", args)?;
    let gives_way = args.router.lazy_draft || settings.draft_gives_way()?;
    let residency = settings.target_residency()?;
    let file = session::open(settings.model.as_deref())?;
    in_runtime(2, async {
        let shutdown = service::cancel_on_signal()?;
        let target = TargetClient::new(&settings.target)?;
        let draft = settings.draft.as_ref().map(DraftClient::new).transpose()?;
        let gives_way = draft.clone().filter(|_| gives_way);
        let drafts = draft.map(|draft| Drafts::new(target.clone(), draft));
        let prefill = settings.prefill.as_ref().map(|endpoint| {
            let drafter = session::open_drafter(settings.prefill_drafter.as_deref())?;
            let prefill = Prefill::new(PrefillClient::new(endpoint)?, &drafter)?;
            let prefill = prefill.in_turn_with_target(target.clone(), residency);
            anyhow::Ok(match gives_way {
                Some(draft) => prefill.in_turn_with(draft),
                None => prefill,
            })
        });
        let prefill = prefill.transpose()?;
        let listener = tokio::net::TcpListener::bind(&settings.listen)
            .await
            .with_context(|| format!("listening on {}", settings.listen))?;
        let config = settings.check()?;
        router::run(config, file, target, drafts, prefill, listener, shutdown).await
    })
}

fn in_runtime(threads: usize, role: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime: Runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .context("starting the async runtime")?;
    let result = runtime.block_on(role);
    runtime.shutdown_timeout(LAST_WORDS);
    result
}

/// Has the system send SIGTERM when the supervisor ends, however it does.
fn end_with(supervisor_pid: Option<i32>) -> Result<()> {
    let Some(pid) = supervisor_pid else {
        return Ok(());
    };
    set_pdeathsig(Signal::SIGTERM).context("asking for the supervisor's end")?;
    // It may have ended before the call.
    ensure!(getppid().as_raw() == pid, "the supervisor {pid} is gone");
    Ok(())
}
