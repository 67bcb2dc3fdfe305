//! The namespace tier: the strongest local one, rootless and as root, with no helper program.
//!
//! [`Namespace`] lowers an invocation to a [`warrant_jail::Spec`], launches the jail and watches
//! it to the end of its whole tree. The steps of the jail itself are in `warrant-jail`.

mod identity;
mod kept;
mod layout;
mod lower;
mod masks;
mod memory;
mod posture;
mod prepared;
mod resolve;
mod scratch;
mod sockets;
mod worker;

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{Mode, OFlags, openat};
use warrant_egress::Options;
use warrant_jail::seccomp::{Allowances, Filter, Profile, SharedMemory, UnixSockets};
use warrant_jail::{
    Capabilities, Exec, Going, Groups, Handed, LandlockRules, Program, Resource, Rlimit, Scratch,
    Spec, Starting, Stdio, Usher, Walls, landlock_abi, launch,
};
use warrant_protocol::{Isolation, Limits, Outcome, Posture, error_chain};

use crate::cgroup::{Cgroups, Counts};
use crate::door::{self, Door};
use crate::growth::GrowthWatch;
use crate::namespace::identity::{Identities, RunIdentity};
use crate::namespace::layout::System;
use crate::namespace::lower::{Lowered, PROXY_PORT, WrittenRoots, lower};
pub(crate) use crate::namespace::memory::Memory;
use crate::namespace::posture::{Host, Tried};
use crate::namespace::prepared::Prepared;
use crate::neighbors::{Arrival, tcp_ports};
use crate::pipes::{Outside, Pipes, at, boundary, refused};
use crate::started::{HostWrites, Started, TreeEnd};
use crate::{
    Backend, BoundaryError, Cancel, Command, Files, Gate, Invocation, Network, NetworkDecision,
    Plan, Refusal, RunReport, Sink, Stdin, Stream, WorkspaceAccess, WriteTarget,
};

pub(crate) use identity::RunIdentity as NamespaceIdentity;
pub(crate) use kept::{Kept, Order, Starter};
pub(crate) use lower::{add_proxy, c_path, plain_environment, program};
pub use masks::veiled;
pub(crate) use posture::provider_version;
pub use worker::{Worker, seal_worker, worker_control};

/// Linux namespaces, Landlock, seccomp and limits around a real program.
#[derive(Debug)]
pub struct Namespace {
    identities: Identities,
    filters: Filters,
    prepared: Prepared,
    landlock: Option<u32>,
    cgroups: OnceLock<Cgroups>,
    posture: OnceLock<Posture>,
    memory: Option<Memory>,
    egress: Options,
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

/// How long after the supervisor's own deadline pid 1 ends the run by itself.
const DEADLINE_GRACE_MS: u64 = 250;
/// The newest version of Landlock this code knows rights and scopes of.
pub(crate) const NEWEST_LANDLOCK: u32 = 6;
/// What a probe takes for its workspace.
const PROBE_DIRECTORY: &str = "/usr/lib";

impl Namespace {
    /// Returns the tier. Nothing is tried yet.
    #[must_use]
    pub fn new() -> Self {
        Self::with_egress(Options::bounded())
    }

    /// Returns the tier with other bounds or another resolver for its egress proxy.
    #[must_use]
    pub fn with_egress(egress: Options) -> Self {
        Self {
            identities: Identities::new(),
            filters: Filters::default(),
            prepared: Prepared::default(),
            landlock: landlock_abi().map(|abi| abi.min(NEWEST_LANDLOCK)),
            cgroups: OnceLock::new(),
            posture: OnceLock::new(),
            memory: None,
            egress,
        }
    }

    /// Remembers in a file, which only its owner may write, that a whole jail was tried and held;
    /// for the next few minutes [`Backend::probe`] believes it under the very same circumstances.
    ///
    /// [`Backend::probe_afresh`] never does.
    #[must_use]
    pub fn remembering(self, path: PathBuf) -> Self {
        Self { memory: Some(Memory::new(path)), ..self }
    }

    /// Returns the posture; `unix_sockets` are those that a run was to have.
    fn posture_after(&self, tried: &Tried<'_>, unix_sockets: Option<UnixSockets>) -> Posture {
        let host = Host {
            cgroups: self.cgroups(),
            landlock: self.landlock,
            kernel_uid: self.identities.shared_kernel_uid(),
            egress: true,
            unix_sockets,
        };
        posture::posture(&host, tried)
    }

    /// Builds a jail around an empty directory and runs the smallest program in it.
    fn try_out(&self, limits: Limits) -> Result<Posture, String> {
        let run = || -> Result<RunReport, String> {
            let invocation = probe_invocation(limits);
            let plan = self.prepare(invocation).map_err(|error| error_chain(&error))?;
            let cancel = Cancel::new().map_err(|error| error_chain(&error))?;
            self.run(&plan, &Discard, &cancel).map_err(|error| error_chain(&error))
        };
        match run()? {
            RunReport { outcome: Outcome::Exited { code: 0 }, posture, .. } => Ok(posture),
            report => Err(format!("a probe ended with {:?}", report.outcome)),
        }
    }

    /// Returns what a program may have of what the filter decides by what else holds it.
    fn allowances(&self, limits: &Limits, unix_sockets: UnixSockets) -> Allowances {
        let is_counted = self.cgroups().kind_of("memory").is_some();
        let shared_memory = match limits.memory_bytes {
            Some(_) if !is_counted => SharedMemory::Small,
            _ => SharedMemory::Counted,
        };
        Allowances { unix_sockets, shared_memory }
    }

    fn cgroups(&self) -> &Cgroups {
        self.cgroups.get_or_init(Cgroups::detect)
    }

    fn lower(&self, invocation: &Invocation) -> Result<Lowered, Refusal> {
        lower(invocation, self.identities.inside(), System::Programs)
    }
}

impl Backend for Namespace {
    fn isolation(&self) -> Isolation {
        Isolation::Namespace
    }

    fn probe(&self) -> Posture {
        let remembered =
            || self.memory.as_ref().is_some_and(|memory| memory.recalls(self.landlock));
        let posture = self.posture.get_or_init(|| match remembered() {
            true => self.posture_after(&Tried::Remembered, None),
            false => self.probe_afresh(),
        });
        posture.clone()
    }

    fn probe_afresh(&self) -> Posture {
        // Where a limit cannot be had, the walls are tried without any.
        let few = Limits { wall_ms: Some(5000), ..Limits::danger_unlimited() };
        let tried = self.try_out(probe_limits()).or_else(|_| self.try_out(few));
        if let Some(memory) = &self.memory {
            match tried {
                Ok(_) => memory.keep(self.landlock),
                Err(_) => memory.forget(),
            }
        }
        tried.unwrap_or_else(|step| self.posture_after(&Tried::Failed(step), None))
    }

    /// No filesystem of the run's own bounds what goes to directories of the host.
    fn narrowed(&self, posture: Posture, target: WriteTarget) -> Posture {
        match target {
            WriteTarget::OwnLayer => posture,
            WriteTarget::HostDirectories => posture::writing_directly(posture),
        }
    }

    fn prepare(&self, invocation: Invocation) -> Result<Plan, Refusal> {
        let lowered = self.lower(&invocation)?;
        let artifact = lowered.artifact(&invocation, &self.identities);
        self.prepared.keep(&invocation, lowered);
        Ok(Plan { isolation: Isolation::Namespace, invocation, artifact })
    }

    fn run(
        &self,
        plan: &Plan,
        sink: &dyn Sink,
        cancel: &Cancel,
    ) -> Result<RunReport, BoundaryError> {
        self.run_gated(plan, &mut || true, (sink, cancel))
    }

    fn run_gated(
        &self,
        plan: &Plan,
        gate: Gate<'_>,
        (sink, cancel): (&dyn Sink, &Cancel),
    ) -> Result<RunReport, BoundaryError> {
        let invocation = &plan.invocation;
        let lowered = match self.prepared.take(invocation) {
            Some(lowered) => lowered,
            None => self.lower(invocation).map_err(refused)?,
        };
        let job = Job {
            exec: Exec::Paths(lowered.candidates.clone()),
            descriptors: Vec::new(),
            invocation,
            lowered,
            writes: Writes::BoundByJail,
            growth: Growth::Watched,
            run: self.take_identity()?,
        };
        let mut is_shut = false;
        let mut gate = || {
            is_shut = !gate();
            !is_shut
        };
        let run = self.run_job(job, &mut gate, (sink, cancel));
        if let (Err(_), false, Some(memory)) = (&run, is_shut, &self.memory) {
            // What was remembered does not hold any more; whoever comes next must try.
            memory.forget();
        }
        run
    }
}

/// One jail to run: an invocation lowered, and what is executed in it.
pub(crate) struct Job<'a> {
    exec: Exec,
    descriptors: Vec<OwnedFd>,
    invocation: &'a Invocation,
    lowered: Lowered,
    writes: Writes,
    growth: Growth,
    /// Who runs; kept until the whole tree is gone.
    run: Arc<RunIdentity>,
}

/// Who says to Landlock where the program may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writes {
    /// The jail, before the program starts.
    BoundByJail,
    /// The program itself, a worker of ours, as soon as it is handed its workspace. Until then
    /// nothing around it can be written.
    BoundByWorker,
}

/// Who counts what is written to directories of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    /// We do, from outside.
    Watched,
    /// The program itself, a worker of ours, which makes every write.
    CountedByWorker,
}

/// What came of launching a jail.
enum Begun<'a> {
    Running(Started<'a>),
    /// The memory limit left no room even for the jail.
    Starved(RunReport),
}

impl Namespace {
    fn take_identity(&self) -> Result<Arc<RunIdentity>, BoundaryError> {
        self.identities.take().map(Arc::new).map_err(at("taking a kernel id of its own"))
    }

    fn run_job(
        &self,
        job: Job<'_>,
        gate: Gate<'_>,
        (sink, cancel): (&dyn Sink, &Cancel),
    ) -> Result<RunReport, BoundaryError> {
        let invocation = job.invocation;
        // A worker closes itself off from all sockets.
        let is_program = job.growth == Growth::Watched;
        let sockets = is_program.then_some(job.lowered.unix_sockets);
        match self.start(job, gate)? {
            Begun::Starved(report) => Ok(report),
            Begun::Running(started) => {
                let upper = upper(invocation.files.access, started.scratch.as_ref());
                let upper = upper.map_err(at("opening the upper layer"))?;
                let report = started.finish(sink, cancel, |sight| {
                    self.posture_after(&Tried::Run(sight), sockets)
                })?;
                Ok(RunReport { upper, ..report })
            }
        }
    }

    /// Launches a jail; what runs in it runs once the gate opens, and nobody watches it yet.
    fn start<'a>(&self, job: Job<'a>, gate: Gate<'_>) -> Result<Begun<'a>, BoundaryError> {
        let invocation = job.invocation;
        let run = Arc::clone(&job.run);
        let rules = door::rules(&invocation.network).map_err(refused)?;
        let listener_specs = job.lowered.listeners.clone();
        let neighbors = invocation.neighbors.as_ref();
        let expected = neighbors.map(|all| all.expected(&listener_specs)).unwrap_or_default();
        let meeting = at("meeting the neighbors");
        let usher = neighbors.map(|_| Usher::pair()).transpose();
        let (usher, theirs) = usher.map_err(|errno| meeting(errno.into()))?.unzip();
        let pipes = Pipes::new(invocation).map_err(at("making pipes"))?;
        let grouping = at("making a cgroup");
        let group = self.cgroups().create(&invocation.limits, Counts::Nothing);
        let group = group.map_err(&grouping)?;
        let groups = group.handles().map_err(&grouping)?;
        let (growth, roots) = (job.growth, job.lowered.written_directly());
        let mut spec = self.spec(job, pipes.inside, groups)?;
        spec.listeners.extend(expected.listeners());
        spec.usher = theirs;
        let starting = launch(spec);
        let writes = host_writes(growth, roots, &invocation.limits);
        // Pid 1 builds while whoever holds the gate makes up their mind.
        if !gate() {
            return Err(BoundaryError::shut());
        }
        let (jail, handed) = match starting.and_then(Starting::go).and_then(Going::built) {
            Ok(built) => built,
            // The jail itself is in the group, and its limit may be too small even for that.
            Err(error) if group.starved(error.errno) => {
                return Ok(Begun::Starved(RunReport::starved(
                    self.posture_after(&Tried::Starved, None),
                )));
            }
            Err(error) => return Err(boundary(error)),
        };
        let Handed { scratch, mounts, terminal, mut listeners, seen } = handed;
        let doors = listeners.split_off(listener_specs.len().min(listeners.len()));
        let arrival = usher.map(|usher| Arrival {
            pid: jail.pid(),
            usher,
            taken: tcp_ports(&listener_specs),
            doors: (expected, doors),
        });
        let resident = neighbors.zip(arrival).map(|(all, arrival)| all.enter(arrival)).transpose();
        let resident = resident.map_err(&meeting)?;
        let (listeners, witnesses) = door::sort(&listener_specs, listeners, PROXY_PORT);
        let door = Door::new(listeners, rules, self.egress.clone())
            .map_err(at("preparing the egress proxy"))?
            .watched_by(witnesses);
        let outside = Outside::new(pipes.outside, terminal, invocation)?;
        Ok(Begun::Running(Started {
            invocation,
            jail,
            outside,
            group,
            door,
            scratch,
            seen,
            resident,
            run: Some(run),
            writes,
            tree: TreeEnd::WithNamespace,
            mounts,
        }))
    }
}

impl Namespace {
    fn spec(&self, job: Job<'_>, stdio: Stdio, groups: Groups) -> Result<Spec, BoundaryError> {
        let Job { exec, descriptors, invocation, lowered, writes, run, growth: _ } = job;
        let run = &*run;
        let lowered = &lowered;
        let limits = &invocation.limits;
        let texts = at("describing the program");
        let environment = lowered
            .env
            .iter()
            .map(|variable| CString::new(format!("{}={}", variable.name, variable.value.reveal())));
        let environment =
            environment.collect::<Result<_, _>>().map_err(|error| texts(error.into()))?;
        let overlay_mode =
            (invocation.files.access == WorkspaceAccess::Overlay).then_some(lowered.workspace.mode);
        Ok(Spec {
            identity: run.identity(),
            hostname: c"sandbox".to_owned(),
            scratch: Scratch {
                image: image(run, limits),
                bytes: limits.disk_bytes,
                inodes: limits.inodes,
                overlay_mode,
            },
            entries: lowered.entries()?,
            mounts: lowered.mounts(run)?,
            listeners: lowered.listeners.clone(),
            program: Program {
                exec,
                argv: lowered.argv.clone(),
                env: environment,
                cwd: c_path(&lowered.cwd).map_err(at("describing the program"))?,
                stdio,
                descriptors,
            },
            walls: Walls {
                rlimits: self.rlimits(limits),
                landlock: match writes {
                    Writes::BoundByJail => {
                        self.landlock_rules(lowered).map_err(at("describing the program"))?
                    }
                    Writes::BoundByWorker => None,
                },
                seccomp: Some(self.filters.of(self.allowances(limits, lowered.unix_sockets))),
                seccomp_without_overlays: (lowered.unix_sockets == UnixSockets::Inside)
                    .then(|| self.filters.of(self.allowances(limits, UnixSockets::PairsOnly))),
                capabilities: Capabilities::Dropped,
            },
            deadline_ms: limits.wall_ms.map(|ms| ms.saturating_add(DEADLINE_GRACE_MS)),
            groups,
            watch_processes: limits.processes.is_some(),
            usher: None,
        })
    }

    /// Returns the kernel's own limits. Where no group counts memory, one process alone cannot
    /// have much more than the limit between two looks at the tree.
    fn rlimits(&self, limits: &Limits) -> Vec<Rlimit> {
        let mut all = rlimits(limits);
        if let (Some(bytes), None) = (limits.memory_bytes, self.cgroups().kind_of("memory")) {
            // Stacks of threads count with all they could become, so there is room.
            all.push(Rlimit { resource: Resource::Data, value: bytes.saturating_mul(2) });
        }
        all
    }

    fn landlock_rules(&self, lowered: &Lowered) -> io::Result<Option<LandlockRules>> {
        let Some(abi) = self.landlock else { return Ok(None) };
        let writable = lowered.layout.writable.iter().map(|path| c_path(path));
        let writable = writable.collect::<io::Result<_>>()?;
        Ok(Some(LandlockRules { abi, writable, devices: vec![c"/dev".to_owned()] }))
    }
}

/// Begins to count what a run adds to directories of the host, where a limit asks for it.
fn host_writes(growth: Growth, roots: WrittenRoots, limits: &Limits) -> HostWrites {
    let is_limited = limits.disk_bytes.or(limits.inodes).is_some();
    match (growth, roots) {
        (Growth::CountedByWorker, _) | (_, WrittenRoots::None) => HostWrites::None,
        (Growth::Watched, WrittenRoots::OfSandbox) => HostWrites::Uncounted,
        (Growth::Watched, WrittenRoots::OfHost(_)) if !is_limited => HostWrites::NotLimited,
        (Growth::Watched, WrittenRoots::OfHost(roots)) => {
            // Without a thread nobody counts, and the posture says so.
            GrowthWatch::start(roots).map_or(HostWrites::Uncounted, HostWrites::Counted)
        }
    }
}

/// Returns a filesystem on disk where memory could not hold what the limits let a run write.
fn image(run: &RunIdentity, limits: &Limits) -> Option<OwnedFd> {
    let wants = run.is_privileged() && scratch::wants_disk(limits);
    // Without one the run is not less bounded: memory holds less, and its limit strikes first.
    wants.then(|| scratch::on_disk(limits, run.identity()).ok()).flatten()
}

/// System call filters, each made once.
#[derive(Debug, Default)]
struct Filters {
    made: Mutex<Vec<(Allowances, Filter)>>,
}

impl Filters {
    fn of(&self, allowances: Allowances) -> Filter {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, filter)) = made.iter().find(|(known, _)| *known == allowances) {
            return filter.clone();
        }
        let filter = Filter::new(Profile::Program(allowances));
        made.push((allowances, filter.clone()));
        filter
    }
}

/// Returns a limit on CPU time in the kernel's unit.
pub(crate) fn cpu_seconds(ms: u64) -> u64 {
    // The kernel counts in nanoseconds, and a limit that overflows there kills at once.
    const MOST: u64 = 1 << 32;
    ms.div_ceil(1000).clamp(1, MOST)
}

/// Returns the kernel's own limits, which hold for each process by itself.
pub(crate) fn rlimits(limits: &Limits) -> Vec<Rlimit> {
    let mut rlimits = vec![Rlimit { resource: Resource::Core, value: 0 }];
    let mut add = |resource, value: Option<u64>| {
        if let Some(value) = value {
            rlimits.push(Rlimit { resource, value });
        }
    };
    add(Resource::OpenFiles, limits.open_files);
    add(Resource::FileSize, limits.file_bytes);
    add(Resource::Cpu, limits.cpu_ms.map(cpu_seconds));
    add(Resource::Processes, limits.processes.map(|processes| processes.saturating_add(2)));
    rlimits
}

/// Opens the upper layer of an overlay, which is in the scratch filesystem.
pub(crate) fn upper(
    access: WorkspaceAccess,
    scratch: Option<&OwnedFd>,
) -> io::Result<Option<OwnedFd>> {
    match (access, scratch) {
        (WorkspaceAccess::Overlay, Some(scratch)) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok(Some(openat(scratch, "upper", flags, Mode::empty())?))
        }
        _ => Ok(None),
    }
}

/// A little of everything, so that a trial sees every limit in force.
const fn probe_limits() -> Limits {
    Limits {
        wall_ms: Some(5000),
        cpu_ms: Some(5000),
        memory_bytes: Some(256 << 20),
        processes: Some(64),
        open_files: Some(256),
        file_bytes: Some(16 << 20),
        disk_bytes: Some(16 << 20),
        inodes: Some(4096),
        output_bytes: Some(64 << 10),
    }
}

fn probe_invocation(limits: Limits) -> Invocation {
    Invocation {
        command: Command::Argv { program: "true".to_owned(), args: Vec::new() },
        cwd: PathBuf::from("/"),
        env: Vec::new(),
        stdin: Stdin::Empty,
        tty: None,
        files: Files {
            // Any small directory does; the overlay keeps it untouched.
            workspace: PathBuf::from(PROBE_DIRECTORY),
            access: WorkspaceAccess::Overlay,
            read_roots: Vec::new(),
            write_roots: Vec::new(),
            places: Vec::new(),
            masks: Vec::new(),
        },
        network: Network::Allow(Vec::new()),
        limits,
        image: None,
        neighbors: None,
    }
}

/// A sink nobody reads.
struct Discard;

impl Sink for Discard {
    fn output(&self, _: Stream, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn network(&self, _: NetworkDecision) {}
}
