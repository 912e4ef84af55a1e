//! Processes and what the system knows of them, and waiting for a condition.

use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A test that waits this long has failed.
pub const WATCHDOG: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// Waits until `found` finds something.
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(started.elapsed() < WATCHDOG, "waited too long for {what}");
        thread::sleep(POLL);
    }
}

/// Waits until `holds`.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || holds().then_some(()));
}

/// `tandem` with `args`, with nothing of this process's settings, and a folder of its own for what it leaves behind.
pub fn tandem(runtime_dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TANDEM_") {
            command.env_remove(name);
        }
    }
    command
        .args(args)
        .env("XDG_RUNTIME_DIR", runtime_dir)
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A process, killed when dropped.
pub struct Process {
    child: Child,
    pub stderr: Option<JoinHandle<String>>,
}

impl Process {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the program starts");
        let stderr = read_all(child.stderr.take().expect("is a pipe"));
        Self {
            child,
            stderr: Some(stderr),
        }
    }

    pub fn stdout(&mut self) -> std::process::ChildStdout {
        self.child.stdout.take().expect("nobody took it before")
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Waits for the end by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let child = &mut self.child;
        wait_for("a process to end", || child.try_wait().unwrap())
    }

    /// What it said on standard error, once it and its children have ended.
    pub fn stderr(&mut self) -> String {
        let thread = self.stderr.take().expect("nobody asked before");
        wait_until("the end of standard error", || thread.is_finished());
        thread.join().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.child.kill();
        let _status = self.child.wait();
        let thread = self.stderr.take();
        if let (true, Some(thread)) = (thread::panicking(), thread) {
            // Its children end with it.
            eprintln!("{}", thread.join().unwrap_or_default());
        }
    }
}

/// How a program ended, and what it said.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn is_success(&self) -> bool {
        self.status.success()
    }

    /// Whether it ended by itself, with a status that tells of a failure.
    pub fn is_failure(&self) -> bool {
        !self.status.success() && self.status.signal().is_none()
    }
}

/// Runs a program to its end.
pub fn run(command: Command) -> Ended {
    let mut process = Process::start(command);
    let stdout = read_all(process.stdout());
    let status = process.wait();
    Ended {
        status,
        stdout: stdout.join().unwrap(),
        stderr: process.stderr(),
    }
}

fn read_all(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before a broken pipe is worth having.
        let _end = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

pub fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("the process is there");
}

/// Processes whose parent is `parent`, with the arguments they were started with.
pub fn children(parent: i32) -> Vec<(i32, String)> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |pid: &i32| stat(*pid).is_some_and(|(_, found)| found == parent);
    let arguments = |pid| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        (pid, line.replace('\0', " "))
    };
    pids.filter(is_child).map(arguments).collect()
}

/// Whether a process runs; one that ended and was not waited for does not.
pub fn is_running(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// State and parent of a process.
fn stat(pid: i32) -> Option<(char, i32)> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold anything.
    let mut rest = line.rsplit_once(')')?.1.split_whitespace();
    let state = rest.next()?.chars().next()?;
    Some((state, rest.next()?.parse().ok()?))
}

/// Files and sockets that a process holds open.
pub fn open_files(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Connections that the process listening at `address` (IPv4) has not closed.
pub fn connections(address: SocketAddr) -> usize {
    const ESTABLISHED: &str = "01";
    const CLOSE_WAIT: &str = "08";
    let port = format!(":{:04X}", address.port());
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let is_open = |line: &&str| {
        let mut columns = line.split_whitespace().skip(1);
        let local = columns.next().unwrap_or_default();
        let state = columns.nth(1).unwrap_or_default();
        local.ends_with(&port) && [ESTABLISHED, CLOSE_WAIT].contains(&state)
    };
    table.lines().filter(is_open).count()
}

/// Shared memory of the set that a supervisor runs.
pub fn shared_memory(supervisor: i32) -> Vec<String> {
    let prefix = format!("tandem-{}-set-{supervisor}-", nix::unistd::Uid::current());
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

pub fn entries(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}
