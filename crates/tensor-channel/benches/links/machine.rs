//! Facts without which a figure says nothing.

use std::fs;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Prints processor, kernel and load.
pub fn print_facts() {
    let processor = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    println!("processor: {processor}, {threads} hardware threads");
    println!("kernel: {}", read("/proc/sys/kernel/osrelease"));
    println!("load: {}", read("/proc/loadavg"));
}

/// Keeps this process on one hardware thread, so that two of them are hot side by side.
pub fn pin(thread: usize) {
    let mut set = CpuSet::new();
    set.set(thread);
    // A container may not own the first two; the figures are then those of wherever the system puts us.
    if let Err(error) = sched_setaffinity(None, &set) {
        println!("not pinned to hardware thread {thread}: {error}");
    }
}

/// How often this thread gave up the processor by itself, that is, slept.
pub struct Switches(u64);

impl Switches {
    pub fn now() -> Self {
        let count = field("/proc/thread-self/status", "voluntary_ctxt_switches");
        Self(count.and_then(|count| count.parse().ok()).unwrap_or(0))
    }

    pub fn voluntary_since(&self, before: &Self) -> u64 {
        self.0 - before.0
    }
}

/// What stands behind `name:` in a file of such lines.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(key, _)| key.trim() == name)?;
    Some(value.trim().to_owned())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}
