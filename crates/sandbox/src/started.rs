//! A started program, watched to the end of its whole tree and told about: where every tier that
//! starts a real program ends its runs.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use warrant_jail::{Confinement, Jail};
use warrant_protocol::{LimitKind, Outcome, Posture, Usage};

use crate::cgroup::Group;
use crate::closing::close_later;
use crate::door::Door;
use crate::growth::GrowthWatch;
use crate::namespace::NamespaceIdentity;
use crate::neighbors::Resident;
use crate::pipes::Outside;
use crate::sight::{DirectWrites, RunSight};
use crate::streams::Output;
use crate::supervise::{Supervision, supervise};
use crate::watch::{LimitWatch, SeenUsage};
use crate::{BoundaryError, Cancel, Invocation, RunReport, Sink};

/// A program that runs, and everything of ours that belongs to it.
pub(crate) struct Started<'a> {
    pub(crate) invocation: &'a Invocation,
    pub(crate) jail: Jail,
    pub(crate) outside: Outside,
    pub(crate) group: Group,
    pub(crate) door: Door,
    /// The filesystem whose fullness is a limit.
    pub(crate) scratch: Option<OwnedFd>,
    /// What pid 1 saw of its namespaces and its root.
    pub(crate) seen: Confinement,
    /// Its stay among the commands beside it.
    pub(crate) resident: Option<Resident>,
    /// The identity that is its own until its whole tree is gone.
    pub(crate) run: Option<Arc<NamespaceIdentity>>,
    /// What it writes besides the scratch filesystem.
    pub(crate) writes: HostWrites,
    /// How its tree is found when it ends.
    pub(crate) tree: TreeEnd,
    /// Its mounts, which are taken down after its end.
    pub(crate) mounts: Option<OwnedFd>,
}

/// Directories of the host that a started program writes directly.
#[derive(Debug)]
pub(crate) enum HostWrites {
    /// None.
    None,
    /// Some, all of which are counted.
    Counted(GrowthWatch),
    /// Some, and no limit for which they would be counted.
    NotLimited,
    /// Some that nobody counts here.
    Uncounted,
}

/// How the processes of a tree are found when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeEnd {
    /// They end with pid 1 of their namespace.
    WithNamespace,
    /// By whoever keeps them and by their group; nothing keeps them from leaving both.
    ByGroup,
}

impl HostWrites {
    /// Returns what can be claimed of them.
    fn seen(&self) -> DirectWrites {
        match self {
            Self::None => DirectWrites::None,
            Self::NotLimited => DirectWrites::Counted,
            Self::Uncounted => DirectWrites::Uncounted,
            Self::Counted(watch) => {
                watch.missed().map_or(DirectWrites::Counted, DirectWrites::Missed)
            }
        }
    }
}

impl RunReport {
    /// Returns the report of a run whose memory limit left no room even for its boundary.
    pub(crate) fn starved(posture: Posture) -> Self {
        let nothing = Output::default().finish();
        Self {
            outcome: Outcome::Limited { limit: LimitKind::Memory },
            usage: Usage::default(),
            stdout: nothing,
            stderr: nothing,
            posture,
            upper: None,
            operation: None,
        }
    }
}

impl Started<'_> {
    /// Watches until everyone is gone, and tells how it went; `posture` makes what was in force of
    /// what this very run saw, which is nothing where the program was never reached.
    pub(crate) fn finish(
        self,
        sink: &dyn Sink,
        cancel: &Cancel,
        posture: impl FnOnce(&RunSight<'_>) -> Posture,
    ) -> Result<RunReport, BoundaryError> {
        let Self { invocation, jail, outside, group, mut door, scratch, seen, .. } = self;
        let limits = &invocation.limits;
        let mut watch = LimitWatch {
            limits: limits.clone(),
            group,
            root: jail.pid(),
            scratch,
            writes: self.writes,
            tree: self.tree,
            seen: SeenUsage::default(),
        };
        let Outside { input, stdout, stderr } = outside;
        let observed = supervise(Supervision {
            jail,
            input,
            stdout,
            stderr,
            limits,
            sink,
            cancel,
            watcher: &mut watch,
            door: &mut door,
        })?;
        drop(self.resident);
        // Everyone is gone: supervising ends with that.
        drop(self.run);
        if let Some(mounts) = self.mounts {
            close_later(mounts);
        }
        let is_ended = self.tree == TreeEnd::WithNamespace || watch.group.end_everyone();
        let sight = RunSight {
            seen: observed.seen.map(|program| program.and(seen)),
            limits,
            group: &watch.group,
            scratch: watch.scratch.as_ref(),
            direct: watch.writes.seen(),
            is_ended,
        };
        let posture = posture(&sight);
        let totals = door.close(sink);
        let SeenUsage { cpu_ms, memory_bytes } = watch.seen;
        let group = &watch.group;
        // The kernel's sum for a tree that was killed lacks whoever nobody waited for, so of all
        // counts the highest is right.
        let reaped = Some(observed.ended.cpu_us);
        let cpu_us = reaped.max(group.cpu_us()).max(cpu_ms.map(|ms| ms * 1000));
        let largest = Some(observed.ended.largest_process_bytes).max(memory_bytes);
        // Where programs can go around the proxy, its counts are not what they sent.
        let carries_all = posture.enforces("network");
        let peak_memory_bytes = group.peak_memory_bytes().or(largest);
        Ok(RunReport {
            outcome: observed.outcome,
            usage: Usage {
                wall_us: u64::try_from(observed.wall.as_micros()).ok(),
                cpu_us,
                peak_memory_bytes,
                stdout_bytes: Some(observed.stdout.seen()),
                stderr_bytes: Some(observed.stderr.seen()),
                net_in_bytes: carries_all.then_some(totals.bytes_in),
                net_out_bytes: carries_all.then_some(totals.bytes_out),
            },
            stdout: observed.stdout.finish(),
            stderr: observed.stderr.finish(),
            posture,
            upper: None,
            operation: None,
        })
    }
}
