//! CPU time and memory of another process, as the kernel tells them.

use std::time::Duration;

/// Memory of a process in bytes.
pub(super) struct Memory {
    /// What it holds now.
    pub now: u64,
    /// The most it ever held.
    pub peak: u64,
}

/// Returns the user and system time of all threads of a process, also of one not yet reaped.
pub(super) fn cpu(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; the numbers come after the last one.
    let (_, numbers) = stat.rsplit_once(')')?;
    let mut numbers = numbers.split_ascii_whitespace().skip(11);
    let user: u64 = numbers.next()?.parse().ok()?;
    let system: u64 = numbers.next()?.parse().ok()?;
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_millis((user + system) * 1000 / ticks_per_second.max(1)))
}

/// Returns the resident memory of a process.
pub(super) fn memory(pid: u32) -> Option<Memory> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
        Some(kib * 1024)
    };
    Some(Memory { now: field("VmRSS:")?, peak: field("VmHWM:")? })
}
