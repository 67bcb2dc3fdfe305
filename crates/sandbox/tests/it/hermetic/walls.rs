//! The second wall: what holds the worker if the interpreter does not.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;

use rustix::fs::{Mode, OFlags, openat};
use warrant_protocol::{Isolation, LimitKind, Outcome};
use warrant_sandbox::hermetic::Hermetic;
use warrant_sandbox::{Backend, Command, Invocation, Shell, WorkspaceAccess};

use super::kit::{Bench, pool, run};

#[test]
fn the_worker_is_jailed_and_the_jail_was_tried_from_inside() {
    let posture = Hermetic::new(pool()).probe();
    assert_eq!(posture.isolation, Isolation::Hermetic);
    let demanded = [
        "files.read",
        "files.write",
        "files.masks",
        "network",
        "network.names",
        "processes.namespace",
        "processes.kill",
        "syscalls",
        "privileges",
        "ipc",
        "environment",
    ];
    assert_eq!(posture.lacking(demanded), Vec::<&str>::new(), "{posture:?}");
    for kind in LimitKind::ALL {
        assert!(posture.enforces(&format!("limits.{}", kind.as_str())), "{kind:?}");
    }
}

#[test]
fn a_warm_worker_has_a_wall_less_and_says_so() {
    let posture = Hermetic::warm(pool()).probe();
    assert!(posture.enforces("syscalls"), "{posture:?}");
    assert_eq!(posture.lacking(["processes.namespace", "ipc"]), ["processes.namespace", "ipc"]);
    let mut bench = Bench::new();
    bench.invocation.files.access = WorkspaceAccess::Overlay;
    let refusal = Hermetic::warm(pool()).prepare(bench.invocation).unwrap_err();
    assert_eq!(refusal.code, "SANDBOX_PROVIDER_UNAVAILABLE");
}

#[test]
fn a_warm_worker_runs_the_same_script_to_the_same_end() {
    let bench = Bench::new();
    bench.put("a", "1\n");
    let script = "cat a; echo 2 > b; ln -s a l; cat l; mkdir -p d/e; ls; exit 3";
    let command = Command::Shell { shell: Shell::Bash, script: script.into() };
    let invocation = Invocation { command, ..bench.invocation.clone() };
    let ran = run(&Hermetic::warm(pool()), invocation);
    assert_eq!(ran.stdout, "1\n1\na\nb\nd\nl\n", "{}", ran.stderr);
    assert_eq!(ran.report.outcome, Outcome::Exited { code: 3 });
    assert_eq!(fs::read_to_string(bench.path("b")).unwrap(), "2\n");
}

#[test]
fn an_overlay_takes_the_writes_and_the_workspace_stays_as_it_was() {
    let mut bench = Bench::new();
    bench.put("keep", "old\n");
    bench.put("gone", "x");
    bench.put("dir/file", "y");
    bench.invocation.files.access = WorkspaceAccess::Overlay;
    let ran = bench.run("echo new > keep; echo more > added; rm gone; rm -r dir; cat keep; ls");
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("new\nadded\nkeep\n", ""));
    assert_eq!(fs::read_to_string(bench.path("keep")).unwrap(), "old\n");
    assert!(bench.path("gone").exists() && bench.path("dir/file").exists());
    assert!(!bench.path("added").exists());
    let upper = ran.report.upper.unwrap();
    let read = |name: &str| {
        let fd = openat(&upper, name, OFlags::RDONLY, Mode::empty()).unwrap();
        let mut text = String::new();
        fs::File::from(fd).read_to_string(&mut text).unwrap();
        text
    };
    assert_eq!(read("keep"), "new\n");
    assert_eq!(read("added"), "more\n");
    let whiteout = openat(&upper, "gone", OFlags::PATH, Mode::empty()).unwrap();
    assert!(fs::File::from(whiteout).metadata().unwrap().file_type().is_char_device());
}

#[test]
fn a_read_only_workspace_is_read_only_for_the_kernel_too() {
    let mut bench = Bench::new();
    bench.put("a", "old");
    bench.invocation.files.access = WorkspaceAccess::ReadOnly;
    let ran = bench.run("echo new > a; echo $?; cat a");
    assert_eq!(ran.stdout, "1\nold");
}
