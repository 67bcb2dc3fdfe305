//! A process tree seen from outside, for limits the kernel does not keep by itself here.
//!
//! The tree hangs from one process; orphans are reparented to it (it is pid 1 of a namespace or a
//! subreaper), so walking children from there finds everyone.

use std::collections::BTreeMap;
use std::fs;

/// What the processes of a tree use together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TreeUsage {
    /// CPU time of the living and of those they have waited for, in milliseconds.
    pub(crate) cpu_ms: u64,
    /// Memory that belongs to single processes, their page tables, and shared memory that has no
    /// file, each piece once and as large as it is mapped.
    pub(crate) memory_bytes: u64,
    /// Pages of files that they map, counted for each.
    pub(crate) mapped_bytes: u64,
    /// How many processes there are.
    pub(crate) processes: u64,
    /// Most descriptors open in one process.
    pub(crate) most_open_files: u64,
}

/// More processes than this are not walked in one look.
const MOST_PROCESSES: usize = 4096;
/// Ticks of the kernel's clock in `/proc` are a hundredth of a second on every Linux we run on.
const MS_PER_TICK: u64 = 10;

/// Returns the processes below `root`, without itself.
pub(crate) fn descendants(root: i32) -> Vec<i32> {
    let mut found = children(root);
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        if found.len() > MOST_PROCESSES {
            break;
        }
        found.extend(children(pid));
        next += 1;
    }
    found
}

fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

/// Returns what everyone below `root` uses.
pub(crate) fn usage(root: i32) -> TreeUsage {
    let mut total = reaped_cpu(root);
    let mut shared = BTreeMap::new();
    for pid in descendants(root) {
        add_shared(pid, &mut shared);
        total.processes += 1;
        total.cpu_ms += cpu_ms(pid, 11..15);
        let (own, mapped) = memory_bytes(pid);
        total.memory_bytes += own;
        total.mapped_bytes += mapped;
        let open = fs::metadata(format!("/proc/{pid}/fd")).map_or(0, |fd| fd.len());
        total.most_open_files = total.most_open_files.max(open);
    }
    total.memory_bytes += shared.values().sum::<u64>();
    total
}

/// The root itself is ours; only what it waited for belongs to the program.
fn reaped_cpu(root: i32) -> TreeUsage {
    TreeUsage { cpu_ms: cpu_ms(root, 13..15), ..TreeUsage::default() }
}

/// Sums fields of `/proc/<pid>/stat`, counted from the one after the name.
fn cpu_ms(pid: i32, fields: std::ops::Range<usize>) -> u64 {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0 };
    // The name may contain anything, a parenthesis included; what follows the last one is ours.
    let Some((_, rest)) = stat.rsplit_once(')') else { return 0 };
    let values = rest.split_whitespace().skip(fields.start).take(fields.len());
    values.filter_map(|value| value.parse::<u64>().ok()).sum::<u64>() * MS_PER_TICK
}

/// Names under which the kernel shows shared memory without a file of its own.
const SHARED_WITHOUT_FILE: [&str; 4] =
    ["/dev/zero (deleted)", "/SYSV", "/memfd:", "/anon_hugepage (deleted)"];

/// Adds the shared memory without a file that a process maps, by its number.
///
/// How much of it is there cannot be seen from outside, so it counts with all that is mapped.
fn add_shared(pid: i32, shared: &mut BTreeMap<String, u64>) {
    let Ok(maps) = fs::read_to_string(format!("/proc/{pid}/maps")) else { return };
    for (number, end) in maps.lines().filter_map(shared_mapping) {
        let known = shared.entry(number.to_owned()).or_default();
        *known = (*known).max(end);
    }
}

/// Returns the number of what a line of `maps` is about and how far it is mapped, if it is shared
/// memory without a file.
fn shared_mapping(line: &str) -> Option<(&str, u64)> {
    let mut fields = line.splitn(6, ' ');
    let (range, _, offset) = (fields.next()?, fields.next()?, fields.next()?);
    let (_, number, name) = (fields.next()?, fields.next()?, fields.next()?.trim_start());
    if !SHARED_WITHOUT_FILE.iter().any(|start| name.starts_with(start)) {
        return None;
    }
    let (from, to) = range.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    Some((number, hex(to)?.checked_sub(hex(from)?)?.checked_add(hex(offset)?)?))
}

/// Returns what belongs to a process, and what it maps of files.
fn memory_bytes(pid: i32) -> (u64, u64) {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return (0, 0) };
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    let own = ["RssAnon:", "VmPTE:", "HugetlbPages:"].iter().filter_map(|name| of(name)).sum();
    (own, of("RssFile:").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_without_a_file_is_told_from_files() {
        let zero = "7f00-9f00 rw-s 00001000 00:01 1042   /dev/zero (deleted)";
        assert_eq!(shared_mapping(zero), Some(("1042", 0x3000)));
        let segment = "7f00-9f00 rw-s 00000000 00:01 32769   /SYSV00000000 (deleted)";
        assert_eq!(shared_mapping(segment), Some(("32769", 0x2000)));
        assert_eq!(shared_mapping("7f00-9f00 r-xp 00000000 fe:00 12   /usr/lib/x.so"), None);
        assert_eq!(shared_mapping("7f00-9f00 rw-p 00000000 00:00 0 "), None);
    }

    #[test]
    fn a_child_is_found_and_measured() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let me = std::process::id() as i32;
        assert!(descendants(me).contains(&(child.id() as i32)));
        assert!(usage(me).memory_bytes > 0);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
