//! What the process takes.

use std::fs;

/// Bytes of the host's memory that this process has in use, where the system tells.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    resident_of(&fs::read_to_string("/proc/self/status").ok()?)
}

/// From the text of `/proc/PID/status`, which counts in units of 1024 bytes.
fn resident_of(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::{resident_bytes, resident_of};

    #[test]
    fn the_line_is_found_and_counted_in_bytes() {
        let status = "Name:\ttandem\nVmPeak:\t  9000 kB\nVmRSS:\t  1234 kB\nThreads:\t3\n";
        assert_eq!(resident_of(status), Some(1234 * 1024));
        assert_eq!(resident_of("VmRSS:\t lots\n"), None);
        assert_eq!(resident_of(""), None);
    }

    #[test]
    fn this_process_takes_more_than_a_page_and_less_than_a_terabyte() {
        if cfg!(target_os = "linux") {
            let bytes = resident_bytes().expect("Linux tells");
            assert!((4096..1 << 40).contains(&bytes), "{bytes}");
        }
    }
}
