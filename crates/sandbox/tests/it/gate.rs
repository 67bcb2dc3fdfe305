//! The gate between a boundary and its program: nothing starts before it opens.

use std::path::Path;
use std::time::{Duration, Instant};

use warrant_protocol::Outcome;
use warrant_sandbox::{Backend, Cancel, Namespace, Plan, Process, WorkspaceAccess};

use crate::bench::{Memory, shell, workspace};

fn backends() -> [Box<dyn Backend>; 2] {
    [Box::new(Namespace::new()), Box::new(Process::new())]
}

/// Returns a plan whose program leaves a mark in the workspace.
fn marking(backend: &dyn Backend, workspace: &Path) -> Plan {
    let mut invocation = shell(workspace, "echo here > mark");
    invocation.files.access = WorkspaceAccess::Direct;
    backend.prepare(invocation).unwrap()
}

#[test]
fn a_program_behind_a_shut_gate_never_starts() {
    for backend in backends() {
        let workspace = workspace();
        let plan = marking(&*backend, workspace.path());
        let mut asked = 0;
        let mut gate = || {
            asked += 1;
            false
        };
        let hands = (&Memory::default() as &_, &Cancel::new().unwrap());
        assert!(backend.run_gated(&plan, &mut gate, hands).is_err());
        assert_eq!(asked, 1);
        // Whoever was in the boundary is gone, so nothing can come later either.
        assert!(!workspace.path().join("mark").exists(), "{:?}", backend.isolation());
    }
}

#[test]
fn a_program_waits_at_the_gate_however_long_that_takes() {
    for backend in backends() {
        let workspace = workspace();
        let plan = marking(&*backend, workspace.path());
        let mark = workspace.path().join("mark");
        // Longer by far than a boundary takes to be built.
        let mut gate = || {
            let opened = Instant::now();
            while opened.elapsed() < Duration::from_millis(300) {
                assert!(!mark.exists(), "{:?} did not wait", backend.isolation());
                std::thread::yield_now();
            }
            true
        };
        let hands = (&Memory::default() as &_, &Cancel::new().unwrap());
        let report = backend.run_gated(&plan, &mut gate, hands).unwrap();
        assert_eq!(report.outcome, Outcome::Exited { code: 0 });
        assert!(mark.exists());
    }
}
