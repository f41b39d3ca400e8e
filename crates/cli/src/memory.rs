//! How much memory this process may still take.

use std::fs;
use std::path::Path;

/// Left alone for the rest of the machine and for what the ledger does not list.
const HEADROOM_BYTES_MIN: u64 = 256 << 20;
const HEADROOM_SHARE: u64 = 16;

/// Bytes that may be planned with: what is available but for a headroom. None if the system does
/// not tell.
#[must_use]
pub fn plannable_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let group = group_limit(Path::new("/sys/fs/cgroup"));
    let bytes = match (machine, group) {
        (Some(machine), Some(group)) => machine.min(group),
        (one, other) => one.or(other)?,
    };
    Some(without_headroom(bytes))
}

fn without_headroom(bytes: u64) -> u64 {
    bytes.saturating_sub((bytes / HEADROOM_SHARE).max(HEADROOM_BYTES_MIN))
}

/// `MemAvailable` of `/proc/meminfo`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

/// What a container's control group (version 2) leaves.
fn group_limit(folder: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let most: u64 = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    Some(most.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read() {
        let text = "MemTotal:       16 kB\nMemFree:  1 kB\nMemAvailable:   12 kB\n";
        assert_eq!(available(text), Some(12 * 1024));
        assert_eq!(available("MemTotal: 16 kB\n"), None);
        assert_eq!(available("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn a_group_without_a_limit_is_none() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("memory.max"), "max\n").unwrap();
        fs::write(folder.path().join("memory.current"), "5\n").unwrap();
        assert_eq!(group_limit(folder.path()), None);
        fs::write(folder.path().join("memory.max"), "8\n").unwrap();
        assert_eq!(group_limit(folder.path()), Some(3));
    }

    #[test]
    fn headroom_is_left() {
        assert_eq!(without_headroom(16 << 30), 15 << 30);
        assert_eq!(without_headroom(1 << 30), 768 << 20);
        assert_eq!(without_headroom(1 << 20), 0);
    }
}
