//! Limits that someone must look at, and when each counts as struck.
//!
//! | limit | kept by | struck when |
//! |---|---|---|
//! | cpu | cgroup accounting, else the process tree and `RLIMIT_CPU` | more was used |
//! | memory | cgroup, else the process tree and `RLIMIT_DATA` | someone was killed for it, or more is used |
//! | processes | `RLIMIT_NPROC` of the jail's own user; without a jail a cgroup | not one more could be made |
//! | open files | `RLIMIT_NOFILE` | a process is seen with every descriptor in use |
//! | file size | `RLIMIT_FSIZE` | the program ended by `SIGXFSZ` |
//! | disk, inodes | size of the scratch filesystem | nothing is free on it |

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::fstatvfs;
use warrant_protocol::{LimitKind, Limits};

use crate::cgroup::{Cgroups, Group};
use crate::supervise::Watcher;
use crate::tree;

/// Looks at one run.
#[derive(Debug)]
pub(crate) struct LimitWatch<'a> {
    pub(crate) limits: Limits,
    pub(crate) cgroups: &'a Cgroups,
    pub(crate) group: Group,
    /// Whether the groups that can wait have been joined: a short run never needs them.
    pub(crate) is_extended: bool,
    /// Pid 1 of the tree.
    pub(crate) root: i32,
    /// The filesystem whose fullness is a limit.
    pub(crate) scratch: Option<OwnedFd>,
}

const INTERVAL: Duration = Duration::from_millis(40);

impl LimitWatch<'_> {
    /// Joins the groups that could wait until the run has lasted a moment. If that fails the
    /// kernel's own limits and the look at the tree go on holding.
    fn extend(&mut self) {
        // Processes are not among them: the jail's own user is counted from the first one on.
        let late = Limits { processes: None, ..self.limits.clone() };
        if !std::mem::replace(&mut self.is_extended, true)
            && self.cgroups.extend(&mut self.group, &late).is_ok()
        {
            let _ = self.group.add_tree(self.root);
        }
    }

    fn tree_struck(&self) -> Option<LimitKind> {
        let needs = |kind| self.limits.of(kind).filter(|_| self.group.kind_of(kind).is_none());
        let cpu = needs(LimitKind::Cpu);
        let memory = needs(LimitKind::Memory);
        let open = self.limits.open_files;
        if cpu.is_none() && memory.is_none() && open.is_none() {
            return None;
        }
        let usage = tree::usage(self.root);
        if cpu.is_some_and(|limit| usage.cpu_ms > limit) {
            return Some(LimitKind::Cpu);
        }
        if memory.is_some_and(|limit| usage.memory_bytes > limit) {
            return Some(LimitKind::Memory);
        }
        open.is_some_and(|limit| usage.most_open_files >= limit).then_some(LimitKind::OpenFiles)
    }

    fn scratch_struck(&self) -> Option<LimitKind> {
        if self.limits.disk_bytes.is_none() && self.limits.inodes.is_none() {
            return None;
        }
        let free = fstatvfs(self.scratch.as_ref()?).ok()?;
        if self.limits.disk_bytes.is_some() && free.f_bfree == 0 {
            return Some(LimitKind::Disk);
        }
        (self.limits.inodes.is_some() && free.f_ffree == 0).then_some(LimitKind::Inodes)
    }
}

impl Watcher for LimitWatch<'_> {
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
        if self.group.cpu_ms().is_some_and(|used| used > cpu_limit) {
            return Some(LimitKind::Cpu);
        }
        self.scratch_struck().or_else(|| self.tree_struck())
    }

    fn settle_in(&mut self) {
        self.extend();
    }

    fn alarms(&self) -> Vec<BorrowedFd<'_>> {
        self.group.alarms().collect()
    }
}
