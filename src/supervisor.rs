//! Keeps the processes of a set running.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

/// Wait before the first restart; doubles with every further one.
const FIRST_BACK_OFF: Duration = Duration::from_millis(250);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(10);
/// A process that ran this long starts again with the first wait.
const STEADY: Duration = Duration::from_secs(30);
/// On top of the drain, before a process that does not end is killed.
const KILL_GRACE: Duration = Duration::from_secs(3);

/// One process of the set.
#[derive(Debug)]
pub(crate) struct Role {
    /// Name of the process.
    pub name: String,
    /// Subcommand.
    pub command: &'static str,
    /// This program. Found at the start: the system forgets where a file is that an update has replaced.
    pub program: PathBuf,
    /// Arguments behind it.
    pub args: Vec<OsString>,
    /// Ends the process with SIGTERM, then by force after `drain`.
    pub stop: CancellationToken,
    /// Ends the process by force.
    pub kill: CancellationToken,
    /// Whether the set cannot be without it. Others are restarted from the first moment on, and told of.
    pub is_vital: bool,
    /// Set when the whole set has been ready once: from then on the process is restarted when it ends.
    pub was_ready: CancellationToken,
    /// What the process may take to end.
    pub drain: Duration,
}

impl Role {
    /// Runs the process, again and again, until it is told to stop.
    ///
    /// # Errors
    /// It cannot be started; or it is vital and ended before the set was ready: then something is wrong that a restart
    /// won't mend.
    pub(crate) async fn keep_running(self) -> Result<()> {
        let mut back_off = FIRST_BACK_OFF;
        loop {
            let mut process = self.start()?;
            let started = Instant::now();
            let status = tokio::select! {
                status = process.wait() => status,
                () = self.stop.cancelled() => return self.end(process).await,
            };
            let status = status.with_context(|| format!("waiting for the {}", self.name))?;
            if self.is_vital && !self.was_ready.is_cancelled() {
                return Err(anyhow!(
                    "the {} ended before it was ready ({status})",
                    self.name
                ));
            }
            if started.elapsed() >= STEADY {
                back_off = FIRST_BACK_OFF;
            }
            let restart_ms = back_off.as_millis();
            if self.is_vital {
                tracing::error!(role = self.name, %status, restart_ms, "a process ended");
            } else {
                tracing::warn!(
                    role = self.name,
                    %status,
                    restart_ms,
                    "a process ended, and said why above; requests are answered without it"
                );
            }
            tokio::select! {
                () = tokio::time::sleep(back_off) => {}
                () = self.stop.cancelled() => return Ok(()),
            }
            back_off = (back_off * 2).min(LONGEST_BACK_OFF);
        }
    }

    fn start(&self) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command
            .arg(self.command)
            .args(&self.args)
            .arg("--supervisor-pid")
            .arg(std::process::id().to_string())
            // Ctrl-C in a terminal reaches the whole process group; the supervisor alone decides who ends when.
            .process_group(0)
            .kill_on_drop(true);
        // All of it is in the configuration file that the role is given.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TANDEM_") {
                command.env_remove(name);
            }
        }
        let child = command
            .spawn()
            .with_context(|| format!("starting the {}", self.name))?;
        tracing::info!(role = self.name, pid = child.id(), "started");
        Ok(child)
    }

    async fn end(&self, mut process: Child) -> Result<()> {
        let pid = process.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid {
            // It may have ended by itself.
            let _gone = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let status: Option<ExitStatus> = tokio::select! {
            status = process.wait() => Some(status?),
            () = tokio::time::sleep(self.drain + KILL_GRACE) => None,
            () = self.kill.cancelled() => None,
        };
        match status {
            Some(status) => tracing::info!(role = self.name, %status, "ended"),
            None => {
                tracing::warn!(role = self.name, "killed");
                process.kill().await?;
            }
        }
        Ok(())
    }
}
