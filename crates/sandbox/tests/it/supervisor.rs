//! A supervisor to be killed: started by the attack suite as a process of its own.

use std::io::{self, Write};
use std::path::PathBuf;

use warrant_sandbox::{
    Backend, Cancel, Namespace, NetworkDecision, Process, Sink, Stream, WorkspaceAccess,
};

use crate::attacks::Leaky;
use crate::bench::shell;

/// Passes on what the program says.
struct Printed;

impl Sink for Printed {
    fn output(&self, _: Stream, bytes: &[u8]) -> io::Result<()> {
        io::stdout().write_all(bytes)
    }

    fn network(&self, _: NetworkDecision) {}
}

/// Not a test by itself; see the attacks on the supervisor.
#[test]
#[ignore = "started by the attack suite"]
fn run_for_ever() {
    let Ok(mark) = std::env::var("SUPERVISED_MARK") else { return };
    let workspace = PathBuf::from(std::env::var_os("SUPERVISED_WORKSPACE").unwrap());
    let script = format!("setsid sleep {mark} & echo supervised; sleep {mark}; true");
    let mut invocation = shell(&workspace, &script);
    invocation.limits.wall_ms = Some(60_000);
    invocation.limits.memory_bytes = Some(256 << 20);
    if std::env::var_os("SUPERVISED_DISK").is_some() {
        invocation.limits.disk_bytes = Some(512 << 20);
    }
    let tier = std::env::var("SUPERVISED_TIER").unwrap_or_default();
    let backend: Box<dyn Backend> = match tier.as_str() {
        "namespace" => Box::new(Namespace::new()),
        "process" => Box::new(Process::new()),
        _ => Box::new(Leaky),
    };
    if tier != "namespace" {
        invocation.files.access = WorkspaceAccess::Direct;
    }
    let plan = backend.prepare(invocation).unwrap();
    let _ = backend.run(&plan, &Printed, &Cancel::new().unwrap());
}

/// Not a test by itself; a supervisor that holds a secret in its arguments, environment and memory
/// and runs one script of the attack suite.
#[test]
#[ignore = "started by the attack suite"]
fn run_with_a_secret() {
    let Ok(script) = std::env::var("SUPERVISED_SCRIPT") else { return };
    let secret = std::env::var("SUPERVISED_SECRET").unwrap();
    let held = std::hint::black_box(vec![secret; 64]);
    let workspace = PathBuf::from(std::env::var_os("SUPERVISED_WORKSPACE").unwrap());
    let mut invocation = shell(&workspace, &script);
    invocation.limits.processes = Some(64);
    let backend: Box<dyn Backend> = match std::env::var("SUPERVISED_TIER").as_deref() {
        Ok("namespace") => Box::new(Namespace::new()),
        _ => Box::new(Leaky),
    };
    let plan = backend.prepare(invocation).unwrap();
    let _ = backend.run(&plan, &Printed, &Cancel::new().unwrap());
    assert_eq!(std::hint::black_box(held).len(), 64);
}
