//! What the namespace tier enforces here and now.
//!
//! Every wall of a jail is a hard step of building it: if one cannot be had, the launch fails. So
//! the probe builds a jail, runs one small program in it that looks at itself, and reports what
//! was seen. What depends on the host (cgroups, Landlock, ids) is named in the details.

use std::collections::BTreeMap;

use warrant_protocol::{Component, Enforcement, Evidence, Isolation, LimitKind, Posture};

use crate::cgroup::Cgroups;

/// What is known about this host before anything is tried.
pub(crate) struct Host<'a> {
    pub(crate) cgroups: &'a Cgroups,
    pub(crate) landlock: Option<u32>,
    /// The kernel uid of every run; absent means that each has one of its own.
    pub(crate) kernel_uid: Option<u32>,
    pub(crate) egress: bool,
}

/// How trying went.
pub(crate) enum Tried {
    /// A jail was built and a program ran in it.
    Held,
    /// Building failed at this step.
    Failed(String),
}

/// Returns the posture.
pub(crate) fn posture(host: &Host<'_>, tried: &Tried) -> Posture {
    let mut components = BTreeMap::new();
    let mut add = |name: &str, enforcement, source: &str, detail: Option<String>| {
        let (enforcement, evidence, detail) = match tried {
            Tried::Held => (enforcement, Evidence::Measured, detail),
            Tried::Failed(step) => (Absent, Evidence::Measured, Some(step.clone())),
        };
        let source = source.to_owned();
        components.insert(name.to_owned(), Component { enforcement, evidence, source, detail });
    };
    use Enforcement::{Absent, Enforced};
    let second_wall = host.landlock.map_or_else(
        || "mounts alone; no landlock in this kernel".to_owned(),
        |abi| format!("mounts and landlock abi {abi}"),
    );
    add("files.read", Enforced, "mount namespace", Some("only declared roots exist".into()));
    add("files.write", Enforced, "mount namespace", Some(second_wall));
    add("files.masks", Enforced, "mount namespace", None);
    let names = if host.egress { Enforced } else { Absent };
    add("network", Enforced, "network namespace", Some("loopback only".into()));
    add("network.names", names, "egress proxy", None);
    add("processes.namespace", Enforced, "pid namespace", None);
    add("processes.kill", Enforced, "pid namespace", Some("ends with pid 1".into()));
    add("syscalls", Enforced, "seccomp", None);
    let ids = match host.kernel_uid {
        Some(uid) => format!("no capabilities, no new privileges, kernel uid {uid}"),
        None => "no capabilities, no new privileges, a kernel uid for each run".to_owned(),
    };
    add("privileges", Enforced, "user namespace", Some(ids));
    add("ipc", Enforced, "ipc namespace", Some("and a session keyring of its own".into()));
    add("environment", Enforced, "execve", Some("built from empty".into()));
    for kind in LimitKind::ALL {
        let (enforcement, source, detail) = limit(host.cgroups, kind);
        add(&format!("limits.{}", kind.as_str()), enforcement, source, Some(detail));
    }
    Posture {
        isolation: Isolation::Namespace,
        provider_version: provider_version(),
        components: components.into(),
    }
}

fn limit(cgroups: &Cgroups, kind: LimitKind) -> (Enforcement, &'static str, String) {
    let enforced = |source, detail: &str| (Enforcement::Enforced, source, detail.to_owned());
    let by_cgroup = |controller, otherwise: &str| match cgroups.kind_of(controller) {
        Some(kind) => enforced("cgroup", kind.as_str()),
        None => enforced("rlimits and process tree", otherwise),
    };
    match kind {
        LimitKind::Wall => enforced("supervisor and pid 1", "whole tree is ended"),
        LimitKind::Cpu => by_cgroup("cpu", "tree is looked at every 40 ms"),
        LimitKind::Memory => by_cgroup(
            "memory",
            "tree is looked at every 40 ms; RLIMIT_DATA per process is twice the limit",
        ),
        LimitKind::Processes => {
            enforced("rlimits", "RLIMIT_NPROC of the jail's own user; looked at every 10 ms")
        }
        LimitKind::OpenFiles => enforced("rlimits", "per process"),
        LimitKind::FileSize => enforced("rlimits", "per process"),
        LimitKind::Disk | LimitKind::Inodes => enforced("tmpfs", "size of the scratch filesystem"),
        LimitKind::Output => enforced("supervisor", "stdout and stderr together"),
    }
}

/// Returns the kernel's release and our own version.
pub(crate) fn provider_version() -> String {
    let uname = rustix::system::uname();
    format!("linux {} warrant {}", uname.release().to_string_lossy(), env!("CARGO_PKG_VERSION"))
}
