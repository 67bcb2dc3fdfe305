//! What the hermetic tier enforces here and now, found by running a worker.

use std::collections::BTreeMap;

use warrant_protocol::{Component, Enforcement, Evidence, Isolation, LimitKind, Posture};

use super::launch::{Pool, Worker};

/// What the interpreter and the supervisor hold by themselves once a worker runs.
const HELD: [(&str, &str); 6] = [
    ("files.read", "descriptors beneath the workspace"),
    ("files.write", "descriptors beneath the workspace"),
    ("files.masks", "names and inodes, at every access"),
    ("network", "the interpreter has no sockets"),
    ("processes.kill", "one process, killed by id"),
    ("environment", "built from empty"),
];

/// Components that need a wall around the worker.
const WALLS: [&str; 3] = ["processes.namespace", "syscalls", "ipc"];

/// Returns the posture, measured with a worker.
pub(super) fn probe(pool: &Pool) -> Posture {
    let started = pool.take();
    let enforcement = match &started {
        Ok(_) => Enforcement::Enforced,
        Err(_) => Enforcement::Absent,
    };
    let component = |enforcement, detail: &str| Component {
        enforcement,
        evidence: Evidence::Measured,
        source: "worker".into(),
        detail: Some(detail.to_owned()),
    };
    let mut components = BTreeMap::new();
    for (name, detail) in HELD {
        components.insert(name.to_owned(), component(enforcement, detail));
    }
    for name in WALLS {
        let detail = "no wall around the worker";
        components.insert(name.to_owned(), component(Enforcement::Absent, detail));
    }
    let confined = started.as_ref().is_ok_and(has_no_new_privileges);
    let privileges = if confined { Enforcement::Enforced } else { Enforcement::Absent };
    components.insert("privileges".into(), component(privileges, "no new privileges"));
    for kind in LimitKind::ALL {
        let name = format!("limits.{}", kind.as_str());
        components.insert(name, component(enforcement, "watched from outside"));
    }
    Posture {
        isolation: Isolation::Hermetic,
        provider_version: format!("warrant {}", env!("CARGO_PKG_VERSION")),
        components,
    }
}

fn has_no_new_privileges(worker: &Worker) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", worker.pid()));
    status.is_ok_and(|status| status.lines().any(|line| line == "NoNewPrivs:\t1"))
}
