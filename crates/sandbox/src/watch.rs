//! Limits that someone must look at, and when each counts as struck.
//!
//! | limit | kept by | struck when |
//! |---|---|---|
//! | cpu | cgroup accounting, else the process tree and `RLIMIT_CPU` | more was used |
//! | memory | cgroup, else the process tree, `RLIMIT_DATA`, and no memory that belongs to no process | someone was killed for it, or more is used |
//! | processes | `RLIMIT_NPROC` of the jail's own user; without a jail a cgroup and the process tree | not one more could be made, or more are there |
//! | open files | `RLIMIT_NOFILE` | a process is seen with every descriptor in use |
//! | file size | `RLIMIT_FSIZE` | the program ended by `SIGXFSZ`, or said so and left a file of that size |
//! | disk, inodes | size of the scratch filesystem; what is written directly is counted | nothing is free on it; more was added |

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstatfs, fstatvfs, openat, statat};
use warrant_protocol::{LimitKind, Limits};

use crate::cgroup::Group;
use crate::started::{HostWrites, TreeEnd};
use crate::supervise::Watcher;
use crate::tree;

/// Looks at one run.
#[derive(Debug)]
pub(crate) struct LimitWatch {
    pub(crate) limits: Limits,
    pub(crate) group: Group,
    /// Pid 1 of the tree.
    pub(crate) root: i32,
    /// The filesystem whose fullness is a limit.
    pub(crate) scratch: Option<OwnedFd>,
    /// What is written besides the scratch filesystem.
    pub(crate) writes: HostWrites,
    /// How the tree is found.
    pub(crate) tree: TreeEnd,
    /// The most that was seen of each figure.
    pub(crate) seen: SeenUsage,
}

/// The highest figures of the tree that were seen; nothing where nobody looked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SeenUsage {
    /// CPU time, in milliseconds.
    pub(crate) cpu_ms: Option<u64>,
    /// Memory of all processes together, in bytes.
    pub(crate) memory_bytes: Option<u64>,
}

impl SeenUsage {
    fn add(&mut self, usage: &tree::TreeUsage) {
        self.cpu_ms = self.cpu_ms.max(Some(usage.cpu_ms));
        self.memory_bytes = self.memory_bytes.max(Some(usage.memory_bytes));
    }
}

/// What the kernel calls the filesystem of a scratch on disk.
const EXT4: rustix::fs::FsWord = 0xef53;
/// Blocks such a filesystem does not give to data when it is full.
const DISK_SLACK_BLOCKS: u64 = 64;
/// Directories nested deeper are not looked at for a file that met its limit.
const DEEPEST: usize = 100;
/// By how much two clocks of the kernel may differ about the same CPU time.
const CPU_SLACK_MS: u64 = 50;
const INTERVAL: Duration = Duration::from_millis(40);

impl LimitWatch {
    fn tree_struck(&mut self) -> Option<LimitKind> {
        // SECURITY: a program that shares its user with the supervisor can leave its group.
        let can_leave = self.tree == TreeEnd::ByGroup;
        let is_sampled = |kind| can_leave || self.group.kind_of(kind).is_none();
        let needs = |kind| self.limits.of(kind).filter(|_| is_sampled(kind));
        let cpu = needs(LimitKind::Cpu);
        let memory = needs(LimitKind::Memory);
        let processes = self.limits.processes.filter(|_| can_leave);
        let open = self.limits.open_files;
        // Without any of these nobody has to look.
        cpu.or(memory).or(processes).or(open)?;
        let usage = tree::usage(self.root);
        self.seen.add(&usage);
        if cpu.is_some_and(|limit| usage.cpu_ms > limit) {
            return Some(LimitKind::Cpu);
        }
        if memory.is_some_and(|limit| usage.memory_bytes > limit) {
            return Some(LimitKind::Memory);
        }
        if processes.is_some_and(|limit| usage.processes > limit) {
            return Some(LimitKind::Processes);
        }
        open.is_some_and(|limit| usage.most_open_files >= limit).then_some(LimitKind::OpenFiles)
    }

    fn scratch_struck(&self) -> Option<LimitKind> {
        if self.limits.disk_bytes.is_none() && self.limits.inodes.is_none() {
            return None;
        }
        let scratch = self.scratch.as_ref()?;
        let free = fstatvfs(scratch).ok()?;
        let is_on_disk = fstatfs(scratch).is_ok_and(|found| found.f_type == EXT4);
        let slack = if is_on_disk { DISK_SLACK_BLOCKS } else { 0 };
        if self.limits.disk_bytes.is_some() && free.f_bavail <= slack {
            return Some(LimitKind::Disk);
        }
        (self.limits.inodes.is_some() && free.f_ffree == 0).then_some(LimitKind::Inodes)
    }
}

impl Watcher for LimitWatch {
    fn interval(&self) -> Option<Duration> {
        use LimitKind::{Cpu, Disk, Inodes, Memory, OpenFiles, Processes};
        let looks = [Cpu, Memory, Processes, OpenFiles, Disk, Inodes];
        let nearest = self.limits.cpu_ms.map(|ms| Duration::from_millis((ms / 8).max(5)));
        looks
            .into_iter()
            .any(|kind| self.limits.of(kind).is_some())
            .then(|| nearest.map_or(INTERVAL, |nearest| nearest.min(INTERVAL)))
    }

    fn look(&mut self) -> Option<LimitKind> {
        self.group.hush();
        if self.group.memory_struck() {
            return Some(LimitKind::Memory);
        }
        if self.group.processes_struck() {
            return Some(LimitKind::Processes);
        }
        let cpu_limit = self.limits.cpu_ms.unwrap_or(u64::MAX);
        if self.group.cpu_us().is_some_and(|used| used / 1000 > cpu_limit) {
            return Some(LimitKind::Cpu);
        }
        let by_writes = match &self.writes {
            HostWrites::Counted(watch) => watch.struck(&self.limits),
            HostWrites::None | HostWrites::NotLimited | HostWrites::Uncounted => None,
        };
        by_writes.or_else(|| self.scratch_struck()).or_else(|| self.tree_struck())
    }

    fn confirms(&self, limit: LimitKind) -> bool {
        let Some(most) = self.limits.of(limit) else { return false };
        match limit {
            LimitKind::Cpu => {
                let by_group = self.group.cpu_us().map(|used| used / 1000);
                let used = by_group.unwrap_or_else(|| tree::usage(self.root).cpu_ms);
                used.saturating_add(CPU_SLACK_MS) >= most
            }
            LimitKind::FileSize => self.scratch.as_ref().is_some_and(|top| has_file(top, most, 0)),
            _ => false,
        }
    }

    fn count_usage(&mut self) {
        self.seen.add(&tree::usage(self.root));
    }

    fn alarms(&self) -> Vec<BorrowedFd<'_>> {
        self.group.alarms().collect()
    }
}

/// Returns whether a file of at least `bytes` lies below a directory that nobody writes any more.
/// What cannot be opened is not looked at.
fn has_file(directory: &OwnedFd, bytes: u64, depth: usize) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(entries) = Dir::read_from(directory) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => u64::try_from(stat.st_size).is_ok_and(|size| size >= bytes),
            FileType::Directory if !is_dot(name) && depth < DEEPEST => {
                let below = openat(directory, name, flags, Mode::empty());
                below.is_ok_and(|below| has_file(&below, bytes, depth + 1))
            }
            _ => false,
        }
    })
}

fn is_dot(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}
