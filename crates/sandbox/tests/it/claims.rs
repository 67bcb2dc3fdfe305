//! What a report claims of a limit or a boundary is what this very run saw of it.

use std::fs;
use std::path::Path;
use std::process::Command;

use warrant_protocol::{Component, Enforcement, Evidence, LimitKind, Limits, Outcome};
use warrant_sandbox::{Backend, Namespace, Process, RunReport, WorkspaceAccess};

use crate::attacks::scene::{Scene, Verdict, hold};
use crate::bench::{run, shell, workspace};

const NONE: Limits = Limits::danger_unlimited();
const DISK: [&str; 2] = ["limits.disk", "limits.inodes"];

fn component<'a>(report: &'a RunReport, name: &str) -> &'a Component {
    &report.posture.components[name]
}

#[track_caller]
fn claims(report: &RunReport, name: &str, enforcement: Enforcement, evidence: Evidence) {
    let found = component(report, name);
    assert_eq!((found.enforcement, found.evidence), (enforcement, evidence), "{name}: {found:?}");
}

/// The scratch filesystem bounds what goes there, and nothing bounds the host's own directory.
fn disk_of_direct_writes(scene: &Scene) -> Verdict {
    let limits = Limits { disk_bytes: Some(8 << 20), inodes: Some(5000), ..NONE };
    let limits = Limits { wall_ms: Some(60_000), ..limits };
    for access in [WorkspaceAccess::Overlay, WorkspaceAccess::ReadOnly, WorkspaceAccess::Direct] {
        let mut invocation = scene.script("true");
        invocation.limits = limits.clone();
        invocation.files.access = access;
        let report = scene.play_invocation(invocation).report;
        let held = match access {
            WorkspaceAccess::Direct => Enforcement::Observed,
            WorkspaceAccess::Overlay | WorkspaceAccess::ReadOnly => Enforcement::Enforced,
        };
        for name in DISK {
            claims(&report, name, held, Evidence::Measured);
        }
    }
    let mut invocation = scene.script("true");
    invocation.limits = limits;
    invocation.files.write_roots.push(scene.outside());
    let report = scene.play_invocation(invocation).report;
    for name in DISK {
        claims(&report, name, Enforcement::Observed, Evidence::Measured);
    }
    Verdict::Held
}

#[test]
fn a_disk_limit_is_not_enforced_for_directories_that_are_written_directly() {
    let path = concat!(
        module_path!(),
        "::a_disk_limit_is_not_enforced_for_directories_that_are_written_directly"
    );
    hold(path, disk_of_direct_writes);
}

/// Writes far more than the limit and would go on for long.
fn disk_filled_directly(scene: &Scene) -> Verdict {
    for (limits, script, limit) in [
        (
            Limits { disk_bytes: Some(8 << 20), ..NONE },
            "head -c 60000000 /dev/zero > big; sleep 60",
            LimitKind::Disk,
        ),
        (
            Limits { inodes: Some(100), ..NONE },
            "i=0; while [ $i -lt 400 ]; do : > f$i; i=$((i+1)); done; sleep 60",
            LimitKind::Inodes,
        ),
    ] {
        let mut invocation = scene.script(script);
        invocation.limits = Limits { wall_ms: Some(50_000), ..limits };
        invocation.files.access = WorkspaceAccess::Direct;
        let report = scene.play_invocation(invocation).report;
        assert_eq!(report.outcome, Outcome::Limited { limit });
    }
    Verdict::Held
}

#[test]
fn a_disk_that_is_filled_directly_is_noticed_and_the_run_ended() {
    let path =
        concat!(module_path!(), "::a_disk_that_is_filled_directly_is_noticed_and_the_run_ended");
    hold(path, disk_filled_directly);
}

#[test]
fn what_cannot_be_counted_is_not_claimed() {
    let workspace = workspace();
    let mut deep = workspace.path().to_owned();
    (0..250).for_each(|_| deep.push("d"));
    fs::create_dir_all(deep).unwrap();
    // Long enough for one count.
    let mut invocation = shell(workspace.path(), "sleep 1");
    invocation.files.access = WorkspaceAccess::Direct;
    invocation.limits.disk_bytes = Some(8 << 20);
    let report = run(&Namespace::new(), invocation).0.unwrap();
    claims(&report, "limits.disk", Enforcement::Absent, Evidence::Measured);
}

#[test]
fn a_limit_that_a_run_does_not_have_is_not_measured() {
    let workspace = workspace();
    for access in [WorkspaceAccess::Overlay, WorkspaceAccess::Direct] {
        let mut invocation = shell(workspace.path(), "true");
        invocation.files.access = access;
        let report = run(&Namespace::new(), invocation).0.unwrap();
        for kind in LimitKind::ALL {
            let name = format!("limits.{}", kind.as_str());
            let is_measured = component(&report, &name).evidence == Evidence::Measured;
            assert_eq!(is_measured, kind == LimitKind::Wall, "{name}");
        }
        let narrowed = Namespace::new();
        let posture = narrowed.narrowed(narrowed.probe(), report_target(access));
        for name in DISK {
            assert_eq!(posture.enforces(name), report.posture.enforces(name), "{name} {access:?}");
        }
    }
}

fn report_target(access: WorkspaceAccess) -> warrant_sandbox::WriteTarget {
    let mut invocation = shell(Path::new("/"), "true");
    invocation.files.access = access;
    invocation.files.write_target()
}

/// The program has the user of its keeper and of its group, and can leave both.
#[test]
fn a_tier_without_a_boundary_claims_no_limit_that_its_program_can_lift() {
    let workspace = workspace();
    let mut invocation = shell(workspace.path(), "true");
    invocation.files.access = WorkspaceAccess::Direct;
    invocation.limits = Limits {
        wall_ms: Some(60_000),
        memory_bytes: Some(256 << 20),
        processes: Some(64),
        ..NONE
    };
    let report = run(&Process::new(), invocation).0.unwrap();
    for name in ["processes.kill", "limits.memory", "limits.processes"] {
        assert!(!report.posture.enforces(name), "{name}: {:?}", component(&report, name));
    }
    assert_eq!(report.usage.net_out_bytes, None, "what went around the proxy is not counted");
}

/// Ends its keeper, which is its parent, and leaves a child behind.
#[test]
fn a_program_that_kills_its_keeper_leaves_nobody_in_its_group() {
    let workspace = workspace();
    let mark = format!("78{}", crate::attacks::scene::next_number());
    let script = format!("setsid sleep {mark} </dev/null >/dev/null 2>&1 & kill -9 $PPID; sleep 5");
    let mut invocation = shell(workspace.path(), &script);
    invocation.files.access = WorkspaceAccess::Direct;
    let backend = Process::new();
    let has_group = backend.probe().observes("processes.kill");
    let outcome = run(&backend, invocation).0.map(|report| report.outcome);
    let left = Command::new("pgrep").args(["-f", &format!("sleep {mark}")]).output().unwrap();
    let left = String::from_utf8(left.stdout).unwrap();
    for pid in left.split_whitespace() {
        Command::new("kill").args(["-9", pid]).status().unwrap();
    }
    assert_eq!(left.is_empty(), has_group, "{outcome:?} left {left:?}");
}

/// Mounts an overlay over an overlay: the kernel makes no third one of it.
struct Stacked {
    directory: tempfile::TempDir,
}

impl Stacked {
    fn new() -> Self {
        let directory = workspace();
        let path = directory.path();
        for name in ["a", "b", "one", "two"] {
            fs::create_dir(path.join(name)).unwrap();
        }
        fs::write(path.join("a/file"), "stacked").unwrap();
        let mount = |lower: &str, target: &str| {
            let layers =
                format!("lowerdir={}:{}", path.join(lower).display(), path.join("b").display());
            let mut mount = Command::new("mount");
            mount.args(["-t", "overlay", "overlay", "-o", &layers]).arg(path.join(target));
            assert!(mount.status().unwrap().success());
        };
        mount("a", "one");
        mount("one", "two");
        Self { directory }
    }
}

impl Drop for Stacked {
    fn drop(&mut self) {
        for name in ["two", "one"] {
            let _ = Command::new("umount").arg(self.directory.path().join(name)).status();
        }
    }
}

#[test]
fn an_overlay_that_could_not_be_made_is_in_the_posture() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let stacked = Stacked::new();
    let workspace = workspace();
    let root = stacked.directory.path().join("two");
    let script = format!(
        "cat {}/file; perl -MSocket -e 'socket(my $s, AF_UNIX, SOCK_STREAM, 0) and print q(BROKEN)'",
        root.display()
    );
    let mut invocation = shell(workspace.path(), &script);
    let plain = run(&Namespace::new(), invocation.clone()).0.unwrap();
    let detail = component(&plain, "ipc").detail.clone().unwrap();
    assert!(detail.contains("unix sockets among programs inside"), "{detail}");
    invocation.files.read_roots.push(root);
    let (report, memory) = run(&Namespace::new(), invocation);
    let report = report.unwrap();
    assert_eq!(memory.stdout(), "stacked", "{}", memory.stderr());
    let detail = component(&report, "ipc").detail.clone().unwrap();
    assert!(detail.contains("could not be shown through an overlay"), "{detail}");
}
