//! What the namespace tier enforces: in a trial here and now, and in one run.
//!
//! Every wall of a jail is a hard step of building it: if one cannot be had, the launch fails. What
//! a run's own jail saw of itself is looked at besides; see [`crate::sight`]. What depends on the
//! host (cgroups, Landlock, ids) is named in the details.

use std::collections::BTreeMap;

use warrant_jail::Fact;
use warrant_jail::seccomp::UnixSockets;
use warrant_protocol::{Component, Enforcement, Evidence, Isolation, LimitKind, Posture};

use crate::cgroup::Cgroups;
use crate::sight::{Claim, DirectWrites, HeldBy, RunSight};

/// What is known about this host before anything is tried.
pub(crate) struct Host<'a> {
    pub(crate) cgroups: &'a Cgroups,
    pub(crate) landlock: Option<u32>,
    /// Who a run is outside, where that is not another one for each.
    pub(crate) kernel_uid: Option<u32>,
    pub(crate) egress: bool,
    /// Which Unix sockets a run was to have; nothing where none was asked for.
    pub(crate) unix_sockets: Option<UnixSockets>,
}

/// How what is claimed is known.
pub(crate) enum Tried<'a> {
    /// By one run, which looked at itself.
    Run(&'a RunSight<'a>),
    /// By an earlier trial, under the very same circumstances.
    Remembered,
    /// Building a jail succeeded, and the limit on memory left no room for more.
    Starved,
    /// Building failed at this step.
    Failed(String),
}

/// Returns the posture.
pub(crate) fn posture(host: &Host<'_>, tried: &Tried<'_>) -> Posture {
    let mut components = BTreeMap::new();
    for (name, claim) in claims(host, tried) {
        components.insert(name.to_owned(), judged(claim, tried, Claim::seen_by));
    }
    for kind in LimitKind::ALL {
        let claim = limit(host.cgroups, kind);
        let by_run = |claim: Claim, sight: &RunSight<'_>| claim.limit_seen_by(kind, sight);
        components.insert(format!("limits.{}", kind.as_str()), judged(claim, tried, by_run));
    }
    Posture {
        isolation: Isolation::Namespace,
        provider_version: provider_version(),
        components: components.into(),
    }
}

fn judged(
    claim: Claim,
    tried: &Tried<'_>,
    by_run: impl FnOnce(Claim, &RunSight<'_>) -> Component,
) -> Component {
    match tried {
        Tried::Run(sight) => by_run(claim, sight),
        // Of a trial it speaks, and the trial looked; a receipt has what its own run saw.
        Tried::Remembered => claim.adding("by a trial a few minutes ago").with(Evidence::Measured),
        Tried::Starved => claim.reported("the memory limit left no room for the program"),
        Tried::Failed(step) => Claim { enforcement: Enforcement::Absent, ..claim }
            .detail(step.clone())
            .with(Evidence::Measured),
    }
}

/// What the second wall around files is; in a run, only what took its rules there.
fn second_wall(host: &Host<'_>, tried: &Tried<'_>) -> String {
    let is_seen = match tried {
        Tried::Run(sight) => sight.seen.is_none_or(|seen| seen.saw(Fact::Landlock)),
        Tried::Remembered | Tried::Starved | Tried::Failed(_) => true,
    };
    match host.landlock {
        None => "mounts alone; no landlock in this kernel".to_owned(),
        Some(_) if !is_seen => "mounts alone; no landlock around this program".to_owned(),
        Some(abi) => format!("mounts and landlock abi {abi}"),
    }
}

/// Which Unix sockets there are; one that was to be had and is not says why.
fn sockets(host: &Host<'_>, tried: &Tried<'_>) -> &'static str {
    let are_shown = match tried {
        Tried::Run(sight) => sight.seen.is_none_or(|seen| seen.saw(Fact::ShownThroughOverlays)),
        Tried::Remembered | Tried::Starved | Tried::Failed(_) => true,
    };
    match host.unix_sockets {
        None => "a session keyring of its own",
        Some(UnixSockets::Inside) if are_shown => {
            "a session keyring of its own; unix sockets among programs inside"
        }
        Some(UnixSockets::Inside) => {
            "a session keyring of its own; only connected pairs of unix sockets, because a \
             directory of the host could not be shown through an overlay"
        }
        Some(UnixSockets::PairsOnly) => {
            "a session keyring of its own; only connected pairs of unix sockets, because a \
             directory of the host is written directly or has other filesystems below it"
        }
    }
}

fn claims(host: &Host<'_>, tried: &Tried<'_>) -> Vec<(&'static str, Claim)> {
    use Enforcement::{Absent, Enforced};
    const ROOT: &[Fact] = &[Fact::MountNamespace, Fact::OwnRoot];
    const NETWORK: &[Fact] = &[Fact::NetworkNamespace];
    const PROCESSES: &[Fact] = &[Fact::ProcessNamespace];
    const PRIVILEGES: &[Fact] = &[Fact::UserNamespace, Fact::NoNewPrivileges, Fact::NoCapabilities];
    let ids = match host.kernel_uid {
        Some(uid) => format!("no capabilities, no new privileges, kernel uid {uid}"),
        None => "no capabilities, no new privileges, a kernel uid for each run".to_owned(),
    };
    let names = if host.egress { Enforced } else { Absent };
    let mounts = || Claim::new(Enforced, "mount namespace").needs(ROOT);
    let processes = || Claim::new(Enforced, "pid namespace").needs(PROCESSES);
    vec![
        ("files.read", mounts().detail("only declared roots exist")),
        ("files.write", mounts().detail(second_wall(host, tried))),
        ("files.masks", mounts()),
        (
            "network",
            Claim::new(Enforced, "network namespace").detail("loopback only").needs(NETWORK),
        ),
        ("network.names", Claim::new(names, "egress proxy").needs(NETWORK)),
        ("processes.namespace", processes()),
        ("processes.kill", processes().detail("ends with pid 1")),
        ("syscalls", Claim::new(Enforced, "seccomp").needs(&[Fact::Seccomp])),
        ("privileges", Claim::new(Enforced, "user namespace").detail(ids).needs(PRIVILEGES)),
        (
            "ipc",
            Claim::new(Enforced, "ipc namespace")
                .detail(sockets(host, tried))
                .needs(&[Fact::IpcNamespace]),
        ),
        ("environment", Claim::new(Enforced, "execve").detail("built from empty")),
    ]
}

/// What holds a limit. CPU time is counted exactly by a cgroup, but nothing stops at it: it is
/// looked at, as memory is without a cgroup.
fn limit(cgroups: &Cgroups, kind: LimitKind) -> Claim {
    use Enforcement::{Enforced, Observed};
    match kind {
        LimitKind::Wall => {
            Claim::new(Enforced, "supervisor and pid 1").detail("whole tree is ended")
        }
        LimitKind::Cpu => Claim::new(Observed, "cgroup or process tree")
            .detail("sampled at least every 40 ms; the whole tree is ended")
            .needs(&[Fact::LimitCpu]),
        LimitKind::Memory => match cgroups.kind_of("memory") {
            Some(kind) => Claim::new(Enforced, "cgroup").detail(kind.as_str()).by(HeldBy::Group),
            None => Claim::new(Observed, "process tree").detail(
                "sampled every 40 ms; the whole tree is ended; RLIMIT_DATA per process is twice \
                 the limit",
            ),
        },
        LimitKind::Processes => Claim::new(Enforced, "rlimits")
            .detail("RLIMIT_NPROC of the jail's own user; looked at every 10 ms")
            .needs(&[Fact::LimitProcesses]),
        LimitKind::OpenFiles => {
            Claim::new(Enforced, "rlimits").detail("per process").needs(&[Fact::LimitOpenFiles])
        }
        LimitKind::FileSize => {
            Claim::new(Enforced, "rlimits").detail("per process").needs(&[Fact::LimitFileSize])
        }
        LimitKind::Disk | LimitKind::Inodes => Claim::new(Enforced, "scratch filesystem")
            .detail("size of the scratch filesystem")
            .by(HeldBy::Scratch),
        LimitKind::Output => {
            Claim::new(Enforced, "supervisor").detail("stdout and stderr together")
        }
    }
}

/// Returns what a posture comes to for a run that writes directories of the host directly.
pub(crate) fn writing_directly(mut posture: Posture) -> Posture {
    for kind in [LimitKind::Disk, LimitKind::Inodes] {
        let name = format!("limits.{}", kind.as_str());
        if let Some(found) = posture.components.get(&name)
            && found.enforcement == Enforcement::Enforced
        {
            let claim = Claim::new(Enforcement::Enforced, "").written(DirectWrites::Counted);
            let component = claim.with(found.evidence);
            posture.components.insert(name, component);
        }
    }
    posture
}

/// Returns the kernel's release and our own version.
pub(crate) fn provider_version() -> String {
    let uname = rustix::system::uname();
    format!("linux {} warrant {}", uname.release().to_string_lossy(), env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use warrant_jail::Confinement;
    use warrant_protocol::Limits;

    use super::*;
    use crate::cgroup::Group;

    const FACTS: [Fact; 12] = [
        Fact::UserNamespace,
        Fact::MountNamespace,
        Fact::ProcessNamespace,
        Fact::NetworkNamespace,
        Fact::IpcNamespace,
        Fact::OwnRoot,
        Fact::NoNewPrivileges,
        Fact::NoCapabilities,
        Fact::Seccomp,
        Fact::LimitOpenFiles,
        Fact::LimitFileSize,
        Fact::LimitProcesses,
    ];

    fn enforced_with(seen: Confinement) -> Vec<String> {
        let limits = Limits {
            open_files: Some(64),
            file_bytes: Some(1 << 20),
            processes: Some(8),
            ..Limits::danger_unlimited()
        };
        let group = Group::default();
        let sight = RunSight {
            seen: Some(seen),
            limits: &limits,
            group: &group,
            scratch: None,
            direct: DirectWrites::None,
            is_ended: true,
        };
        let cgroups = Cgroups::default();
        let host = Host {
            cgroups: &cgroups,
            landlock: None,
            kernel_uid: Some(1),
            egress: true,
            unix_sockets: None,
        };
        let posture = posture(&host, &Tried::Run(&sight));
        let enforced = posture.components.iter();
        enforced
            .filter(|(_, one)| one.enforcement == Enforcement::Enforced)
            .map(|(name, _)| name.clone())
            .collect()
    }

    #[test]
    fn a_claim_of_more_than_the_run_saw_is_caught_for_every_fact() {
        let all = FACTS.iter().fold(Confinement::nothing(), |seen, fact| seen.with(*fact));
        let whole = enforced_with(all);
        for (fact, taken) in [
            (Fact::MountNamespace, &["files.masks", "files.read", "files.write"][..]),
            (Fact::OwnRoot, &["files.masks", "files.read", "files.write"]),
            (Fact::NetworkNamespace, &["network", "network.names"]),
            (Fact::ProcessNamespace, &["processes.kill", "processes.namespace"]),
            (Fact::Seccomp, &["syscalls"]),
            (Fact::UserNamespace, &["privileges"]),
            (Fact::NoNewPrivileges, &["privileges"]),
            (Fact::NoCapabilities, &["privileges"]),
            (Fact::IpcNamespace, &["ipc"]),
            (Fact::LimitOpenFiles, &["limits.open-files"]),
            (Fact::LimitFileSize, &["limits.file-size"]),
            (Fact::LimitProcesses, &["limits.processes"]),
        ] {
            let left = enforced_with(all.without(fact));
            let missing: Vec<&str> =
                whole.iter().filter(|name| !left.contains(name)).map(String::as_str).collect();
            assert_eq!(missing, taken, "{fact:?}");
        }
    }
}
