//! The other process of a test: the test program itself, started again to run its test `peer` only.
#![allow(dead_code, reason = "each test program uses its part")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tensor_channel::{Descriptor, Segments};

/// Marks what a peer says among what the test harness prints.
const MARK: &str = "peer says: ";

/// A process that runs the test `peer`. Killed when this drops.
pub struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts it with a task: the line that it reads first.
    pub fn start(task: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("a test program has a path"))
            .args(["--exact", "peer", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test program starts");
        let mut to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        writeln!(to, "{task}").expect("the peer reads its task");
        Self { child, to, from }
    }

    /// The next thing that it says.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.from.read_line(&mut line).expect("the peer speaks");
            assert!(read > 0, "the peer ended instead of saying something");
            // The harness prints the test's name without a line end before it.
            if let Some((_, said)) = line.trim_end().split_once(MARK) {
                return said.to_owned();
            }
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("the peer can be killed");
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the peer takes signals");
    }

    /// Lets it end by itself; it must not have failed.
    pub fn finish(mut self) {
        let said = writeln!(self.to, "end");
        drop(said);
        let status = self.child.wait().expect("the peer ends");
        assert!(status.success(), "the peer failed: {status}");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Either it has ended already, or it must.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the peer: its task, as words.
pub fn task() -> Vec<String> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a task");
    line.split_whitespace().map(str::to_owned).collect()
}

/// In the peer: says something to the test.
pub fn say(what: &str) {
    println!("{MARK}{what}");
}

/// In the peer: waits until the test lets it end, or is gone itself.
pub fn wait_for_end() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a pipe");
}

/// A descriptor as words.
pub fn write(descriptor: &Descriptor) -> String {
    match descriptor {
        Descriptor::Shm(Segments {
            inbound,
            outbound,
            generation,
        }) => format!("shm {inbound} {outbound} {generation}"),
        Descriptor::Device { .. } => panic!("no device here"),
        Descriptor::Tcp { address, secret } => {
            format!("tcp {address} {}", u128::from_le_bytes(*secret))
        }
    }
}

/// The words of a descriptor.
pub fn read(words: &[String]) -> Descriptor {
    match words {
        [kind, inbound, outbound, generation] if kind == "shm" => Descriptor::Shm(Segments {
            inbound: inbound.clone(),
            outbound: outbound.clone(),
            generation: generation.parse().expect("a number"),
        }),
        [kind, address, secret] if kind == "tcp" => Descriptor::Tcp {
            address: address.clone(),
            secret: secret.parse::<u128>().expect("a number").to_le_bytes(),
        },
        other => panic!("{other:?} is no descriptor"),
    }
}
