//! The process tier, for hosts where nothing else works: a scrubbed child in its own session.
//!
//! It holds no files and no network back, and says so in its posture. What it does hold: the
//! environment is built from empty, no descriptor is inherited, limits are set, new privileges
//! are forbidden, and the whole tree is ended through a keeper that orphans return to (and a
//! cgroup, where one can be made). The egress proxy is offered through variables; a program that
//! ignores them goes straight to the network.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::OnceLock;

use serde_json::{Value, json};
use warrant_egress::{Listeners, Options};
use warrant_jail::{Capabilities, Exec, Program, Resource, Rlimit, Tether, Walls, tether};
use warrant_protocol::{
    Component, Enforcement, Evidence, Isolation, LimitKind, Limits, Posture, Usage,
};

use crate::cgroup::Cgroups;
use crate::door::{self, Door};
use crate::namespace::{c_path, environment, program, provider_version};
use crate::pipes::{Outside, Pipes, at, boundary, refused};
use crate::supervise::{Supervision, supervise};
use crate::watch::LimitWatch;
use crate::{
    Backend, BoundaryError, Cancel, EnvValue, EnvVar, Invocation, Network, Plan, Refusal,
    RunReport, Sink, WorkspaceAccess,
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

impl Process {
    /// Returns the tier. Nothing is tried yet.
    #[must_use]
    pub fn new() -> Self {
        Self { cgroups: OnceLock::new(), egress: Options::bounded() }
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
        posture(self.cgroups())
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
        let invocation = &plan.invocation;
        check(invocation).map_err(refused)?;
        let listening = at("listening for the egress proxy");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(&listening)?;
        let port = listener.local_addr().map_err(&listening)?.port();
        let rules = door::rules(&invocation.network).map_err(refused)?;
        let listeners = Listeners { explicit: Some(listener), ..Listeners::default() };
        let mut door = Door::new(listeners, rules, self.egress.clone()).map_err(&listening)?;
        let pipes = Pipes::new(invocation).map_err(at("making pipes"))?;
        let tethered = tethered(invocation, port, pipes.inside)?;
        let starting = tether(tethered).map_err(boundary)?;
        let cgroups = self.cgroups();
        let mut group = cgroups.create(&invocation.limits).map_err(at("making a cgroup"))?;
        // Nothing else counts processes here, so these cannot wait.
        cgroups.extend(&mut group, &invocation.limits).map_err(at("making a cgroup"))?;
        group.add(starting.pid()).map_err(at("entering the cgroup"))?;
        let (jail, _) = starting.release().map_err(boundary)?;
        let Outside { input, stdout, stderr } = Outside::new(pipes.outside, None, invocation)?;
        let mut watch = LimitWatch {
            limits: invocation.limits.clone(),
            cgroups,
            group,
            is_extended: true,
            root: jail.pid(),
            scratch: None,
        };
        let observed = supervise(Supervision {
            jail,
            input,
            stdout,
            stderr,
            limits: &invocation.limits,
            sink,
            cancel,
            watcher: &mut watch,
            door: &mut door,
        })?;
        let totals = door.close(sink);
        Ok(RunReport {
            outcome: observed.outcome,
            usage: Usage {
                wall_us: u64::try_from(observed.wall.as_micros()).ok(),
                cpu_us: Some(observed.ended.cpu_us),
                peak_memory_bytes: Some(observed.ended.largest_process_bytes),
                net_in_bytes: Some(totals.bytes_in),
                net_out_bytes: Some(totals.bytes_out),
                stdout_bytes: Some(observed.stdout.seen()),
                stderr_bytes: Some(observed.stderr.seen()),
            },
            stdout: observed.stdout.finish(),
            stderr: observed.stderr.finish(),
            posture: self.probe(),
            upper: None,
        })
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
    if invocation.tty.is_some() {
        return refuse("the process tier has no terminal: ask for the namespace tier");
    }
    program(&invocation.command, &environment(invocation, 0)).map(drop)?;
    door::rules(&invocation.network).map(drop)
}

fn artifact(invocation: &Invocation) -> Value {
    let env = environment(invocation, 0);
    let env = env.iter().map(|variable| match &variable.value {
        EnvValue::Plain(value) => json!({ "name": variable.name, "value": value }),
        EnvValue::Secret { name, .. } => json!({ "name": variable.name, "secret": name }),
    });
    json!({
        "provider": "process",
        "cwd": invocation.cwd,
        "environment": env.collect::<Vec<_>>(),
        "limits": invocation.limits,
        "network": match &invocation.network {
            Network::Allow(rules) => json!({ "allow": rules, "enforced": false }),
            Network::DangerEverything => json!("everything"),
        },
        "notEnforced": ["files.read", "files.write", "files.masks", "network"],
    })
}

fn tethered(
    invocation: &Invocation,
    proxy_port: u16,
    stdio: warrant_jail::Stdio,
) -> Result<Tether, BoundaryError> {
    let describing = at("describing the program");
    let env = environment(invocation, proxy_port);
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
            capabilities: Capabilities::Kept,
        },
        deadline_ms: limits.wall_ms.map(|ms| ms.saturating_add(DEADLINE_GRACE_MS)),
    })
}

/// Returns the kernel's own limits. Processes are counted per user there, not per tree, so that
/// one is left to the cgroup and the watch.
fn rlimits(limits: &Limits) -> Vec<Rlimit> {
    let all = crate::namespace::rlimits(limits);
    all.into_iter().filter(|limit| limit.resource != Resource::Processes).collect()
}

fn posture(cgroups: &Cgroups) -> Posture {
    use Enforcement::{Absent, Enforced};
    let mut components = BTreeMap::new();
    let mut add = |name: &str, enforcement, source: &str, detail: &str| {
        let component = Component {
            enforcement,
            evidence: Evidence::Measured,
            source: source.to_owned(),
            detail: Some(detail.to_owned()),
        };
        components.insert(name.to_owned(), component);
    };
    add("files.read", Absent, "none", "reads whatever the user can read");
    add("files.write", Absent, "none", "writes wherever the user can write");
    add("files.masks", Absent, "none", "secrets in the workspace are not hidden");
    add("network", Absent, "none", "the proxy is offered, nobody is forced through it");
    add("network.names", Absent, "none", "only programs that use the proxy are judged");
    add("processes.namespace", Absent, "none", "sees and may signal the user's processes");
    let held = if cgroups.kind_of("pids").is_some() { Enforced } else { Absent };
    add(
        "processes.kill",
        held,
        "keeper and cgroup",
        "without a cgroup a tree can flee by killing its keeper",
    );
    add("syscalls", Absent, "none", "no filter");
    add("privileges", Absent, "prctl", "no new ones, but all of the user's own");
    add("ipc", Absent, "keyctl", "only the session keyring is new");
    add("environment", Enforced, "execve", "built from empty");
    for kind in LimitKind::ALL {
        let by_cgroup = |controller| match cgroups.kind_of(controller) {
            Some(kind) => (Enforced, "cgroup", kind.as_str()),
            None => (Absent, "process tree", "looked at every 40 ms; can be outrun"),
        };
        let (enforcement, source, detail) = match kind {
            LimitKind::Wall => (Enforced, "supervisor and keeper", "whole tree is ended"),
            LimitKind::Output => (Enforced, "supervisor", "stdout and stderr together"),
            LimitKind::OpenFiles | LimitKind::FileSize => (Enforced, "rlimits", "per process"),
            LimitKind::Cpu => by_cgroup("cpu"),
            LimitKind::Memory => by_cgroup("memory"),
            LimitKind::Processes => by_cgroup("pids"),
            LimitKind::Disk | LimitKind::Inodes => (Absent, "none", "writes go anywhere"),
        };
        add(&format!("limits.{}", kind.as_str()), enforcement, source, detail);
    }
    Posture { isolation: Isolation::Process, provider_version: provider_version(), components }
}
