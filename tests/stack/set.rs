//! A set started with `tandem up`.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::ExitStatus;
use std::sync::mpsc;
use std::thread;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::http::Client;
use crate::processes::{self, Process, WATCHDOG, children, is_running, tandem, wait_for};

/// A served demo model.
pub struct Set {
    pub supervisor: Process,
    pub address: SocketAddr,
    pub runtime_dir: TempDir,
}

impl Set {
    /// Starts a set and waits until it is ready.
    pub fn start(args: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), args)
    }

    pub fn start_in(runtime_dir: TempDir, args: &[&str]) -> Self {
        let own = ["up", "--listen", "127.0.0.1:0"];
        let small = ["--threads", "1", "--draft-threads", "1"];
        let all = [&own[..], &small, args].concat();
        let mut supervisor = Process::start(tandem(runtime_dir.path(), &all));
        let address = served_address(&mut supervisor);
        Self {
            supervisor,
            address,
            runtime_dir,
        }
    }

    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// The process of a role.
    pub fn pid(&self, role: &str) -> i32 {
        self.find(role, |arguments| arguments.split(' ').nth(1) == Some(role))
    }

    /// The process of a stage before the target worker.
    pub fn stage_pid(&self, number: usize) -> i32 {
        let words = format!("--stage {number} ");
        self.find("a stage", |arguments| arguments.contains(&words))
    }

    fn find(&self, what: &str, is_it: impl Fn(&str) -> bool) -> i32 {
        let supervisor = self.supervisor.pid();
        let is_it = |(_, arguments): &(i32, String)| is_it(arguments);
        wait_for(what, || children(supervisor).into_iter().find(&is_it)).0
    }

    /// The supervisor and its processes.
    pub fn pids(&self) -> Vec<i32> {
        let supervisor = self.supervisor.pid();
        let children = children(supervisor).into_iter().map(|(pid, _)| pid);
        [supervisor].into_iter().chain(children).collect()
    }

    /// Ctrl-C, and what the set is after it.
    pub fn stop(mut self) -> ExitStatus {
        let pids = self.pids();
        self.supervisor.signal(Signal::SIGINT);
        let status = self.supervisor.wait();
        self.assert_nothing_is_left(&pids);
        status
    }

    /// The set has ended: it holds no process, file, socket or memory.
    pub fn assert_nothing_is_left(&self, pids: &[i32]) {
        let running: Vec<_> = pids.iter().filter(|pid| is_running(**pid)).collect();
        assert!(running.is_empty(), "processes {running:?} are left");
        let left = processes::entries(self.runtime_dir.path());
        assert!(left.is_empty(), "{left:?} is left in the runtime folder");
        let left = processes::shared_memory(self.supervisor.pid());
        assert!(left.is_empty(), "{left:?} is left in shared memory");
        std::net::TcpListener::bind(self.address).expect("the port is free");
    }
}

/// Reads what `tandem up` prints when it is ready.
fn served_address(supervisor: &mut Process) -> SocketAddr {
    let stdout = BufReader::new(supervisor.stdout());
    let (sender, lines) = mpsc::channel();
    // Reads on to the end, so that the pipe never fills.
    thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            // The test reads up to the address only.
            let _taken = sender.send(line);
        }
    });
    loop {
        let line = lines.recv_timeout(WATCHDOG).expect("the set gets ready");
        if let Some((_, address)) = line.split_once(" is served on http://") {
            return address.trim().parse().expect("host and port");
        }
    }
}
