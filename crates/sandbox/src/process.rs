//! The process tier, for hosts where nothing else works: a scrubbed child in its own session.
//!
//! It holds no files and no network back, and says so in its posture. What it does hold: the
//! environment is built from empty, no descriptor is inherited, limits are set, new privileges
//! are forbidden, and the whole tree is ended through a keeper that orphans return to (and a
//! cgroup, where one can be made). The egress proxy is offered through variables; a program that
//! ignores them goes straight to the network.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::OnceLock;

use serde_json::{Value, json};
use warrant_egress::{Listeners, Options, Pass};
use warrant_jail::{
    Capabilities, Exec, Fact, Going, Groups, Program, Resource, Rlimit, Tether, Walls, tether,
};
use warrant_protocol::{Enforcement, Isolation, LimitKind, Limits, Posture};

use crate::cgroup::{Cgroups, Counts, Kind};
use crate::door::{self, Door};
use crate::invocation::shown;
use crate::namespace::{add_proxy, c_path, plain_environment, program, provider_version};
use crate::pipes::{Outside, Pipes, at, boundary, refused};
use crate::sight::{Claim, HeldBy, RunSight};
use crate::started::{HostWrites, Started, TreeEnd};
use crate::{
    Backend, BoundaryError, Cancel, EnvVar, Gate, Invocation, Network, Plan, Refusal, RunReport,
    Sink, WorkspaceAccess,
};

/// A scrubbed child process; holds no files and no network back.
#[derive(Debug)]
pub struct Process {
    cgroups: OnceLock<Cgroups>,
    egress: Options,
}

impl Default for Process {
    fn default() -> Self {
        Self::new()
    }
}

const DEADLINE_GRACE_MS: u64 = 250;
/// The proxy as a plan shows it: port and password are chosen when the program starts.
const SHOWN_PROXY: &str = "127.0.0.1";

impl Process {
    /// Returns the tier. Nothing is tried yet.
    #[must_use]
    pub fn new() -> Self {
        Self::with_egress(Options::bounded())
    }

    /// Returns the tier with other bounds or another resolver for its egress proxy.
    #[must_use]
    pub fn with_egress(egress: Options) -> Self {
        Self { cgroups: OnceLock::new(), egress }
    }

    fn cgroups(&self) -> &Cgroups {
        self.cgroups.get_or_init(Cgroups::detect)
    }
}

impl Backend for Process {
    fn isolation(&self) -> Isolation {
        Isolation::Process
    }

    fn probe(&self) -> Posture {
        posture(self.cgroups(), None)
    }

    fn prepare(&self, invocation: Invocation) -> Result<Plan, Refusal> {
        check(&invocation)?;
        let artifact = artifact(&invocation);
        Ok(Plan { isolation: Isolation::Process, invocation, artifact })
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
        check(invocation).map_err(refused)?;
        let listening = at("listening for the egress proxy");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(&listening)?;
        let port = listener.local_addr().map_err(&listening)?.port();
        let rules = door::rules(&invocation.network).map_err(refused)?;
        let listeners = Listeners { explicit: Some(listener), ..Listeners::default() };
        let pass = pass().map_err(&listening)?;
        let proxy = format!("{}@127.0.0.1:{port}", pass.user_info());
        // SECURITY: every user of the machine can connect to this listener.
        let egress = Options { pass: Some(pass), ..self.egress.clone() };
        let door = Door::new(listeners, rules, egress).map_err(&listening)?;
        let pipes = Pipes::new(invocation).map_err(at("making pipes"))?;
        let grouping = at("making a cgroup");
        let group = self.cgroups().create(&invocation.limits, Counts::Processes);
        let group = group.map_err(&grouping)?;
        let groups = group.handles().map_err(&grouping)?;
        let tethered = Tether { groups, ..tethered(invocation, &proxy, pipes.inside)? };
        let starting = tether(tethered).map_err(boundary)?;
        if !gate() {
            return Err(BoundaryError::shut());
        }
        let (jail, handed) = starting.go().and_then(Going::built).map_err(boundary)?;
        let outside = Outside::new(pipes.outside, None, invocation)?;
        let started = Started {
            invocation,
            jail,
            outside,
            group,
            door,
            scratch: None,
            seen: handed.seen,
            resident: None,
            run: None,
            writes: HostWrites::Uncounted,
            tree: TreeEnd::ByGroup,
            mounts: None,
        };
        started.finish(sink, cancel, |sight| posture(self.cgroups(), Some(sight)))
    }
}

/// Returns a pass nobody can guess.
fn pass() -> io::Result<Pass> {
    let mut bytes = [0; 16];
    let count = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if count == bytes.len() {
        Ok(Pass::from_random(bytes))
    } else {
        Err(io::Error::from(io::ErrorKind::UnexpectedEof))
    }
}

/// Refuses what this tier cannot even pretend to do.
fn check(invocation: &Invocation) -> Result<(), Refusal> {
    let refuse =
        |message: &str| Err(Refusal { code: "SANDBOX_DENIED", message: message.to_owned() });
    if invocation.files.access != WorkspaceAccess::Direct {
        return refuse(
            "the process tier cannot hold writes back from the workspace: ask for direct access, \
             or for a stronger tier",
        );
    }
    invocation.refuse_secret_files("process")?;
    if !invocation.files.places.is_empty() {
        return refuse("the process tier shows every root at its own path");
    }
    if invocation.tty.is_some() {
        return refuse("the process tier has no terminal: ask for the namespace tier");
    }
    program(&invocation.command, &proxied(invocation, SHOWN_PROXY)).map(drop)?;
    door::rules(&invocation.network).map(drop)
}

fn artifact(invocation: &Invocation) -> Value {
    let env = proxied(invocation, SHOWN_PROXY);
    let env = env.iter().map(|variable| variable.value.shown(&variable.name));
    json!({
        "provider": "process",
        "cwd": shown(&invocation.cwd),
        "environment": env.collect::<Vec<_>>(),
        "limits": invocation.limits,
        "network": match &invocation.network {
            Network::Allow(rules) => json!({ "allow": rules, "enforced": false }),
            Network::DangerEverything => json!("everything"),
        },
        "notEnforced": ["files.read", "files.write", "files.masks", "network"],
    })
}

/// Returns the environment, with the proxy in it whatever the rules are: it is what records an
/// attempt in this tier, of a contract that allows nothing and to loopback, too.
fn proxied(invocation: &Invocation, proxy: &str) -> Vec<EnvVar> {
    let mut env = plain_environment(invocation);
    add_proxy(&mut env, proxy, "");
    env
}

fn tethered(
    invocation: &Invocation,
    proxy: &str,
    stdio: warrant_jail::Stdio,
) -> Result<Tether, BoundaryError> {
    let describing = at("describing the program");
    let env = proxied(invocation, proxy);
    let (argv, candidates) = program(&invocation.command, &env).map_err(refused)?;
    let text =
        |variable: &EnvVar| CString::new(format!("{}={}", variable.name, variable.value.reveal()));
    let env = env.iter().map(text).collect::<Result<_, _>>();
    let limits = &invocation.limits;
    Ok(Tether {
        program: Program {
            exec: Exec::Paths(candidates),
            argv,
            env: env.map_err(|error| describing(error.into()))?,
            cwd: c_path(&invocation.cwd).map_err(&describing)?,
            stdio,
            descriptors: Vec::new(),
        },
        walls: Walls {
            rlimits: rlimits(limits),
            landlock: None,
            seccomp: None,
            seccomp_without_overlays: None,
            capabilities: Capabilities::Kept,
        },
        deadline_ms: limits.wall_ms.map(|ms| ms.saturating_add(DEADLINE_GRACE_MS)),
        groups: Groups::default(),
    })
}

/// Returns the kernel's own limits. Processes are counted per user there, not per tree, so that
/// one is left to the cgroup and the watch.
fn rlimits(limits: &Limits) -> Vec<Rlimit> {
    let all = crate::namespace::rlimits(limits);
    all.into_iter().filter(|limit| limit.resource != Resource::Processes).collect()
}

/// Returns what is in force in one run, or, without one, what would be.
fn posture(cgroups: &Cgroups, sight: Option<&RunSight<'_>>) -> Posture {
    let mut components = BTreeMap::new();
    for (name, claim) in claims(cgroups, sight) {
        let component = match sight {
            Some(sight) => claim.seen_by(sight),
            None => claim.reported("nothing is tried before a run"),
        };
        components.insert(name.to_owned(), component);
    }
    for kind in LimitKind::ALL {
        let claim = limit(cgroups, kind);
        let component = match sight {
            Some(sight) => claim.limit_seen_by(kind, sight),
            None => claim.reported("nothing is tried before a run"),
        };
        components.insert(format!("limits.{}", kind.as_str()), component);
    }
    Posture {
        isolation: Isolation::Process,
        provider_version: provider_version(),
        components: components.into(),
    }
}

fn claims(cgroups: &Cgroups, sight: Option<&RunSight<'_>>) -> [(&'static str, Claim); 11] {
    use Enforcement::{Absent, Enforced};
    let absent = |detail: &str| Claim::new(Absent, "none").detail(detail);
    [
        ("files.read", absent("reads whatever the user can read")),
        ("files.write", absent("writes wherever the user can write")),
        ("files.masks", absent("secrets in the workspace are not hidden")),
        ("network", absent("the proxy is offered, nobody is forced through it")),
        ("network.names", absent("only programs that use the proxy are judged")),
        ("processes.namespace", absent("sees and may signal the user's processes")),
        ("processes.kill", ended_tree(cgroups, sight)),
        ("syscalls", absent("no filter")),
        (
            "privileges",
            Claim::new(Absent, "prctl").detail("no new ones, but all of the user's own"),
        ),
        ("ipc", Claim::new(Absent, "keyctl").detail("only the session keyring is new")),
        ("environment", Claim::new(Enforced, "execve").detail("built from empty")),
    ]
}

/// Whether the whole tree is ended. A program of the supervisor's own user can kill its keeper and
/// leave its group, so nothing enforces it.
fn ended_tree(cgroups: &Cgroups, sight: Option<&RunSight<'_>>) -> Claim {
    use Enforcement::{Absent, Observed};
    const SOURCE: &str = "keeper and cgroup";
    let has_group = match sight {
        Some(sight) => sight.group.kind_of(LimitKind::Processes).is_some(),
        None => cgroups.kind_of("pids").is_some(),
    };
    match (has_group, sight.is_none_or(|sight| sight.is_ended)) {
        (false, _) => Claim::new(Absent, SOURCE)
            .detail("without a cgroup a tree can flee by killing its keeper"),
        (true, true) => Claim::new(Observed, SOURCE)
            .detail("everyone in the group was ended; a program can leave it"),
        (true, false) => Claim::new(Absent, SOURCE).detail("not everyone in the group was ended"),
    }
}

/// What holds a limit. A group of the supervisor's own user holds nobody who wants to leave it, so
/// what it limits is sampled besides and not enforced.
fn limit(cgroups: &Cgroups, kind: LimitKind) -> Claim {
    use Enforcement::{Absent, Enforced, Observed};
    const SAMPLED: &str = "sampled at least every 40 ms; the whole tree is ended";
    let group = |kind: Kind| {
        let detail = format!("{}, which a program can leave; {SAMPLED}", kind.as_str());
        Claim::new(Observed, "cgroup and process tree").detail(detail).by(HeldBy::Group)
    };
    match kind {
        LimitKind::Wall => {
            Claim::new(Enforced, "supervisor and keeper").detail("whole tree is ended")
        }
        LimitKind::Output => {
            Claim::new(Enforced, "supervisor").detail("stdout and stderr together")
        }
        LimitKind::OpenFiles => {
            Claim::new(Enforced, "rlimits").detail("per process").needs(&[Fact::LimitOpenFiles])
        }
        LimitKind::FileSize => {
            Claim::new(Enforced, "rlimits").detail("per process").needs(&[Fact::LimitFileSize])
        }
        LimitKind::Cpu => {
            Claim::new(Observed, "cgroup or process tree").detail(SAMPLED).needs(&[Fact::LimitCpu])
        }
        LimitKind::Memory => match cgroups.kind_of("memory") {
            Some(kind) => group(kind),
            None => Claim::new(Observed, "process tree").detail(SAMPLED),
        },
        LimitKind::Processes => match cgroups.kind_of("pids") {
            Some(kind) => group(kind),
            None => Claim::new(Absent, "none").detail("nothing counts the processes of one tree"),
        },
        LimitKind::Disk | LimitKind::Inodes => {
            Claim::new(Absent, "none").detail("writes go anywhere")
        }
    }
}
