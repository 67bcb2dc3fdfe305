//! A jailed worker that waits for its work: the jail stands first, the workspace comes later.
//!
//! The jail of a kept worker is the one of any worker, but empty: no workspace, nothing that can
//! be written. When a run comes, [`Namespace::show`] makes its workspace ready as a jail would
//! show it, as a directory without a way up, and the worker gets that as a descriptor. The limits
//! of the run are put on the jail's control group before the worker hears of the run. A worker
//! serves one run.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use warrant_jail::{Exec, Scratch, Shown, View};
use warrant_protocol::Limits;

use crate::namespace::identity::RunIdentity;
use crate::namespace::layout::MountKind;
use crate::namespace::lower::Lowered;
use crate::namespace::posture::Tried;
use crate::namespace::worker::{invocation, linked_libraries, show_libraries};
use crate::namespace::{Begun, Growth, Job, Namespace, PROBE_DIRECTORY, Writes, c_path, image};
use crate::pipes::{at, boundary};
use crate::started::Started;
use crate::{BoundaryError, Cancel, Files, Invocation, RunReport, Sink, WorkspaceAccess};

/// More than any machine has: groups are made for these, and limits set when the run comes.
const ALL_BYTES: u64 = 1 << 60;
const ALL_MS: u64 = 1 << 40;
/// What a waiting worker could write, if there were a place to write to.
const OWN_DISK_BYTES: u64 = 16 << 20;

/// A worker that waits in its jail. Dropping it ends the jail.
#[derive(Debug)]
pub(crate) struct Kept {
    orders: Sender<Order>,
    reports: Receiver<Result<RunReport, BoundaryError>>,
    stop: Cancel,
    /// Who the worker is; its workspace is shown to that identity.
    run: Arc<RunIdentity>,
}

/// What a kept worker is started with.
#[derive(Debug)]
pub(crate) struct Starter {
    /// The program.
    pub(crate) executable: OwnedFd,
    /// Its arguments, without its own name.
    pub(crate) args: Vec<String>,
    /// A descriptor it finds as number 3: its end of a socket pair.
    pub(crate) control: OwnedFd,
}

/// What the jail of a kept worker is to hold from now on.
#[derive(Debug)]
pub(crate) struct Order {
    /// The limits of the run.
    pub(crate) limits: Limits,
    /// The filesystem whose fullness is a limit.
    pub(crate) scratch: OwnedFd,
}

impl Kept {
    /// Returns who the worker is.
    pub(crate) fn identity(&self) -> &RunIdentity {
        &self.run
    }

    /// Puts the limits of a run on the jail and begins to watch it. `None` if it is gone.
    pub(crate) fn begin(&self, order: Order) -> Option<()> {
        self.orders.send(order).ok()
    }

    /// Waits until the jail is gone, ending it after `patience`, and tells what it saw.
    pub(crate) fn end(self, patience: Duration) -> Result<RunReport, BoundaryError> {
        let Self { orders, reports, stop, run: _ } = self;
        // Without an order the jail ends at once.
        drop(orders);
        let left = reports.recv_timeout(patience);
        let report = left.or_else(|_| {
            stop.cancel();
            reports.recv()
        });
        let lost = |_| std::io::Error::other("the jail's thread is gone");
        report.map_err(lost).map_err(at("watching the worker"))?
    }
}

impl Namespace {
    /// Starts a worker in an empty jail, where it waits.
    pub(crate) fn keep(
        self: &Arc<Self>,
        starter: Starter,
        words: Arc<dyn Sink>,
    ) -> std::io::Result<Kept> {
        let (orders, incoming) = channel();
        let (outgoing, reports) = channel();
        let stop = Cancel::new()?;
        let run = Arc::new(self.identities.take()?);
        let kept = Kept { orders, reports, stop: stop.clone(), run: Arc::clone(&run) };
        let namespace = Arc::clone(self);
        // The kernel ends a jail with the thread that made it, so the jail has one of its own.
        let body = move || {
            let report = namespace.hold((starter, run), &incoming, (&*words, &stop));
            if let Some(report) = report.transpose() {
                // Nobody may be there any more to hear it.
                let _ = outgoing.send(report);
            }
        };
        thread::Builder::new().name("jail".to_owned()).spawn(body)?;
        Ok(kept)
    }

    /// Builds the jail, waits for an order, and watches the worker to its end.
    fn hold(
        &self,
        (starter, run): (Starter, Arc<RunIdentity>),
        orders: &Receiver<Order>,
        (words, stop): (&dyn Sink, &Cancel),
    ) -> Result<Option<RunReport>, BoundaryError> {
        let libraries = linked_libraries().map_err(at("finding the worker's libraries"))?;
        let Starter { executable, args, control } = starter;
        let waiting = invocation((args, Vec::new()), nothing(), unlimited(), &libraries);
        let mut lowered = self.lower_worker(&waiting)?;
        empty(&mut lowered);
        show_libraries(&mut lowered, libraries);
        let job = Job {
            exec: Exec::Descriptor(executable),
            descriptors: vec![control],
            invocation: &waiting,
            lowered,
            writes: Writes::BoundByWorker,
            growth: Growth::CountedByWorker,
            run,
        };
        let mut started = match self.start(job, &mut || true)? {
            Begun::Starved(report) => return Ok(Some(report)),
            Begun::Running(started) => started,
        };
        let Ok(Order { limits, scratch }) = orders.recv() else { return Ok(None) };
        if let Some(bytes) = limits.memory_bytes {
            started.group.limit_memory(bytes).map_err(at("limiting the worker"))?;
        }
        let running = Invocation { limits, ..waiting.clone() };
        let started = Started { invocation: &running, scratch: Some(scratch), ..started };
        started.finish(words, stop, |sight| self.posture_after(&Tried::Run(sight), None)).map(Some)
    }

    /// Makes the workspace of `files` ready, as a jail with these limits would show it to `run`.
    pub(crate) fn show(
        &self,
        run: &RunIdentity,
        files: Files,
        limits: &Limits,
    ) -> Result<Shown, BoundaryError> {
        let access = files.access;
        let invocation = invocation((Vec::new(), Vec::new()), files, limits.clone(), &[]);
        let mut lowered = self.lower_worker(&invocation)?;
        let workspace = &lowered.workspace.path;
        lowered.layout.mounts.retain(|mount| mount.target.starts_with(workspace));
        let shown = c_path(lowered.cwd.strip_prefix("/").unwrap_or(&lowered.cwd));
        let view = View {
            identity: run.identity(),
            scratch: Scratch {
                image: image(run, limits),
                bytes: limits.disk_bytes,
                inodes: limits.inodes,
                overlay_mode: (access == WorkspaceAccess::Overlay)
                    .then_some(lowered.workspace.mode),
            },
            entries: lowered.entries()?,
            mounts: lowered.mounts(run)?,
            shown: shown.map_err(at("describing the workspace"))?,
        };
        warrant_jail::show(view).map_err(boundary)
    }
}

/// Takes everything out of a worker's root that a run would bring.
fn empty(lowered: &mut Lowered) {
    let is_own = |kind: &MountKind| match kind {
        MountKind::System | MountKind::Library(_) => true,
        MountKind::Granted(_)
        | MountKind::Writable(_)
        | MountKind::Overlay(_)
        | MountKind::Device
        | MountKind::Private
        | MountKind::Proc
        | MountKind::Terminals
        | MountKind::VeiledFile
        | MountKind::VeiledDirectory => false,
    };
    lowered.layout.mounts.retain(|mount| is_own(&mount.kind));
    lowered.masks.mounts.clear();
    lowered.layout.writable.clear();
    lowered.cwd = PathBuf::from("/");
}

fn unlimited() -> Limits {
    Limits {
        memory_bytes: Some(ALL_BYTES),
        cpu_ms: Some(ALL_MS),
        disk_bytes: Some(OWN_DISK_BYTES),
        ..Limits::danger_unlimited()
    }
}

/// Files that are there on every machine, of which nothing is shown.
fn nothing() -> Files {
    Files {
        workspace: PathBuf::from(PROBE_DIRECTORY),
        access: WorkspaceAccess::ReadOnly,
        read_roots: Vec::new(),
        write_roots: Vec::new(),
        places: Vec::new(),
        masks: Vec::new(),
    }
}
