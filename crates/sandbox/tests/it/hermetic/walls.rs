//! The second wall: what holds the worker if the interpreter does not.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;

use rustix::fs::{Mode, OFlags, openat};
use warrant_protocol::{Isolation, LimitKind, Limits, Outcome};
use warrant_sandbox::hermetic::Hermetic;
use warrant_sandbox::{Backend, Command, Invocation, Shell, WorkspaceAccess};

use super::kit::{Bench, pool, run, waiting};

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
        let name = format!("limits.{}", kind.as_str());
        // CPU time is counted, and memory held by a cgroup where there is one.
        let is_sampled = matches!(kind, LimitKind::Cpu | LimitKind::Memory);
        let holds = posture.enforces(&name) || is_sampled && posture.observes(&name);
        assert!(holds, "{kind:?}");
    }
}

#[test]
fn a_warm_worker_is_held_by_the_same_walls_as_a_cold_one() {
    let (cold, warm) = (Hermetic::new(pool()).probe(), Hermetic::warm(waiting(1)).probe());
    assert!(cold.enforces("processes.namespace"), "{cold:?}");
    assert_eq!(cold, warm);
}

#[test]
fn a_waiting_worker_is_jailed_before_any_run_comes() {
    let backend = Hermetic::warm(waiting(1));
    backend.refill().unwrap();
    assert_eq!(backend.ready(), 1);
    let own = fs::read_link("/proc/self/ns/mnt").unwrap();
    let workers = kept_workers();
    assert!(!workers.is_empty(), "no worker waits");
    for pid in workers {
        // Another test's worker may leave while it is looked at.
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let says = |wanted: &str| status.lines().any(|line| line == wanted);
        assert!(says("Seccomp:\t2") && says("NoNewPrivs:\t1"), "{status}");
        assert!(says("CapEff:\t0000000000000000") && says("CapBnd:\t0000000000000000"), "{status}");
        for space in ["mnt", "net", "pid", "user", "ipc"] {
            let Ok(theirs) = fs::read_link(format!("/proc/{pid}/ns/{space}")) else { continue };
            assert_ne!(theirs, fs::read_link(format!("/proc/self/ns/{space}")).unwrap(), "{space}");
            assert_ne!(theirs, own);
        }
        let Ok(root) = fs::read_dir(format!("/proc/{pid}/root")) else { continue };
        let names: Vec<_> = root.flatten().map(|entry| entry.file_name()).collect();
        for host in ["etc", "home", "root", "proc", "bin", "var"] {
            assert!(!names.iter().any(|name| name == host), "{host} is among {names:?}");
        }
        let workspace = fs::read_dir(format!("/proc/{pid}/root/usr/lib"));
        let entries = workspace.map_or(0, |entries| entries.flatten().count());
        assert!(entries <= 1, "a directory of the host is shown: {entries} entries");
    }
}

fn descendants(pid: u32) -> Vec<u32> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|word| word.parse().ok()) {
            all.push(child);
            all.extend(descendants(child));
        }
    }
    all
}

#[test]
fn a_warm_worker_that_was_taken_over_has_no_way_up_from_its_workspace() {
    // What the probe does from inside a worker, with this very workspace handed to it.
    let bench = Bench::new();
    let backend = Hermetic::warm(waiting(0));
    assert!(backend.probe().enforces("files.read"));
    for access in [WorkspaceAccess::ReadOnly, WorkspaceAccess::Direct, WorkspaceAccess::Overlay] {
        let mut invocation = bench.invocation.clone();
        invocation.files.access = access;
        let script = "cd ..; cd ../..; pwd; ls; cat ../outside/secret /../outside/secret";
        let command = Command::Shell { shell: Shell::Bash, script: script.into() };
        let ran = run(&backend, Invocation { command, ..invocation });
        assert_eq!(ran.stdout, "/\n", "{access:?}: {}", ran.stderr);
    }
    bench.check_outside_is_untouched();
}

#[test]
fn a_warm_worker_writes_to_its_overlay_only() {
    let mut bench = Bench::new();
    bench.put("keep", "old\n");
    bench.put(".env", "KEY=1\n");
    bench.invocation.files.access = WorkspaceAccess::Overlay;
    bench.invocation.files.masks = vec![".env".into()];
    bench.invocation.limits.memory_bytes = Some(512 << 20);
    bench.invocation.limits.disk_bytes = Some(8 << 20);
    let backend = Hermetic::warm(waiting(1));
    backend.refill().unwrap();
    let script = "echo new > keep; mkdir d; echo x > d/f; mv d e; cat keep .env; ls";
    let command = Command::Shell { shell: Shell::Bash, script: script.into() };
    let ran = run(&backend, Invocation { command, ..bench.invocation.clone() });
    assert_eq!(ran.stdout, "new\ne\nkeep\n", "{}", ran.stderr);
    assert_eq!(fs::read_to_string(bench.path("keep")).unwrap(), "old\n");
    let upper = ran.report.upper.unwrap();
    let fd = openat(&upper, "e/f", OFlags::RDONLY, Mode::empty()).unwrap();
    let mut text = String::new();
    fs::File::from(fd).read_to_string(&mut text).unwrap();
    assert_eq!(text, "x\n");
    let usage = ran.report.usage;
    assert!(usage.peak_memory_bytes.is_some() && usage.cpu_us.is_some(), "{usage:?}");
}

#[test]
fn a_worker_serves_one_run_and_is_gone() {
    let bench = Bench::new();
    let backend = Hermetic::warm(waiting(1));
    backend.refill().unwrap();
    let before = kept_workers();
    let command = Command::Shell { shell: Shell::Bash, script: "X=left; echo x > f".into() };
    run(&backend, Invocation { command, ..bench.invocation.clone() });
    let command = Command::Shell { shell: Shell::Bash, script: "echo \"[$X]\"; ls".into() };
    let other = Bench::new();
    let ran = run(&backend, Invocation { command, ..other.invocation.clone() });
    assert_eq!(ran.stdout, "[]\n", "nothing of the first run is there for the second");
    backend.refill().unwrap();
    let after = kept_workers();
    assert!(before.iter().any(|pid| !after.contains(pid)), "the first worker is still there");
    drop(backend);
}

fn kept_workers() -> Vec<u32> {
    let is_kept = |pid: &u32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(b"kept\0"))
    };
    descendants(std::process::id()).into_iter().filter(is_kept).collect()
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

#[test]
fn cpu_time_of_a_script_killed_by_a_limit_is_not_lost() {
    for limits in [
        Limits { cpu_ms: Some(400), wall_ms: Some(60_000), ..Limits::danger_unlimited() },
        Limits { wall_ms: Some(700), ..Limits::danger_unlimited() },
    ] {
        let mut bench = Bench::new();
        bench.invocation.limits = limits.clone();
        let ran = bench.run("while :; do x=1; done");
        assert!(matches!(ran.report.outcome, Outcome::Limited { .. }), "{:?}", ran.report.outcome);
        let least = limits.cpu_ms.unwrap_or(100) * 1000 - 10_000;
        assert!(ran.report.usage.cpu_us >= Some(least), "{:?}", ran.report.usage);
    }
}
