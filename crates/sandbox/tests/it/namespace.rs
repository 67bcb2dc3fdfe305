//! The namespace tier does its ordinary work: exit codes, streams, overlay.

use warrant_protocol::Outcome;
use warrant_sandbox::{Backend, Namespace};

use crate::bench::{run, shell, workspace};

#[track_caller]
fn check(script: &str, expected: Outcome) {
    let workspace = workspace();
    let (report, memory) = run(&Namespace::new(), shell(workspace.path(), script));
    let report = report.unwrap();
    assert_eq!(report.outcome, expected, "{script}: {} {}", memory.stdout(), memory.stderr());
}

#[test]
fn exit_codes_and_signals_are_faithful() {
    check("exit 0", Outcome::Exited { code: 0 });
    check("exit 1", Outcome::Exited { code: 1 });
    check("exit 7", Outcome::Exited { code: 7 });
    check("/nonexistent/program", Outcome::Exited { code: 127 });
    check("/etc/hosts", Outcome::Exited { code: 126 });
    check("exit 137", Outcome::Exited { code: 137 });
    check("kill -SEGV $$", Outcome::Signaled { signal: 11 });
    check("kill -KILL $$", Outcome::Signaled { signal: 9 });
}

#[test]
fn overlay_keeps_the_workspace_untouched() {
    let workspace = workspace();
    std::fs::write(workspace.path().join("kept"), "before").unwrap();
    let script = "cat kept; echo after > kept; echo new > fresh; cat kept; rm kept";
    let (report, memory) = run(&Namespace::new(), shell(workspace.path(), script));
    let report = report.unwrap();
    assert_eq!(report.outcome, Outcome::Exited { code: 0 });
    assert_eq!(memory.stdout(), "beforeafter\n");
    assert_eq!(std::fs::read_to_string(workspace.path().join("kept")).unwrap(), "before");
    assert!(!workspace.path().join("fresh").exists());
    assert!(report.upper.is_some());
}

#[test]
fn nothing_of_the_host_is_above_or_below_the_root() {
    let workspace = workspace();
    let script = "ls /..; ls -a /proc/self/root/..; cat /proc/self/mountinfo";
    let (_, memory) = run(&Namespace::new(), shell(workspace.path(), script));
    assert!(!memory.stdout().contains("/sys/fs/cgroup"), "{}", memory.stdout());
    assert!(!memory.stdout().contains("home"), "{}", memory.stdout());
}

#[test]
fn probe_finds_every_wall_by_building_them() {
    let posture = Namespace::new().probe();
    let demanded = [
        "files.read",
        "files.write",
        "files.masks",
        "network",
        "processes.namespace",
        "processes.kill",
        "syscalls",
        "privileges",
        "ipc",
        "environment",
        "limits.wall",
        "limits.output",
    ];
    assert_eq!(posture.lacking(demanded), Vec::<&str>::new(), "{posture:#?}");
}
