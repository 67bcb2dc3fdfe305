//! A started program, watched to the end of its whole tree and told about: where every tier that
//! starts a real program ends its runs.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use warrant_jail::{Confinement, Jail};
use warrant_protocol::{LimitKind, Outcome, Posture, Usage};

use crate::cgroup::Group;
use crate::door::Door;
use crate::namespace::NamespaceIdentity;
use crate::neighbors::Resident;
use crate::pipes::Outside;
use crate::sight::RunSight;
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
        let Self { invocation, jail, outside, group, mut door, scratch, seen, resident, run } =
            self;
        let limits = &invocation.limits;
        let root = jail.pid();
        let mut watch =
            LimitWatch { limits: limits.clone(), group, root, scratch, seen: SeenUsage::default() };
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
        drop(resident);
        // Everyone is gone: supervising ends with that.
        drop(run);
        let sight = RunSight {
            seen: observed.seen.map(|program| program.and(seen)),
            limits,
            group: &watch.group,
            scratch: watch.scratch.as_ref(),
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
        let peak_memory_bytes = group.peak_memory_bytes().or(largest);
        Ok(RunReport {
            outcome: observed.outcome,
            usage: Usage {
                wall_us: u64::try_from(observed.wall.as_micros()).ok(),
                cpu_us,
                peak_memory_bytes,
                stdout_bytes: Some(observed.stdout.seen()),
                stderr_bytes: Some(observed.stderr.seen()),
                net_in_bytes: Some(totals.bytes_in),
                net_out_bytes: Some(totals.bytes_out),
            },
            stdout: observed.stdout.finish(),
            stderr: observed.stderr.finish(),
            posture,
            upper: None,
            operation: None,
        })
    }
}
