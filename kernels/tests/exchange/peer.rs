//! The other process of a test: the test program itself, started again to run its test `peer` only.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

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
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "peer", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        let to = child.stdin.take().unwrap();
        let mut peer = Self { child, to, from };
        peer.tell(task);
        peer
    }

    /// Says a line to it.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    /// The next thing that it says.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.from.read_line(&mut line).unwrap();
            assert!(read > 0, "the peer ended instead of saying something");
            // The harness prints the test's name without a line end before it.
            if let Some((_, said)) = line.trim_end().split_once(MARK) {
                return said.to_owned();
            }
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets it end by itself; it must not have failed.
    pub fn finish(mut self) {
        // One that has ended already reads nothing.
        let _ = writeln!(self.to, "end");
        let status = self.child.wait().unwrap();
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

/// In the peer: what the test says next, as words.
pub fn listen() -> Vec<String> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.split_whitespace().map(str::to_owned).collect()
}

/// In the peer: says something to the test.
pub fn say(what: &str) {
    println!("{MARK}{what}");
}
