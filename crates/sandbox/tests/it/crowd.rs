//! Many at once and many in a row: everyone ends as they should, and nothing is left behind.

use std::fs;
use std::io::{self, BufRead};
use std::time::Duration;

use warrant_protocol::{LimitKind, Limits, Outcome};
use warrant_sandbox::{Backend, Cancel, Namespace};

use crate::bench::{Memory, shell, workspace};

/// Returns how many groups a supervisor with this pid has, beside where we are ourselves.
fn groups_of(pid: u32) -> usize {
    let prefix = format!("warrant-{pid}-");
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let places = own.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap(), parts.next().unwrap());
        let mounts = controllers.split(',').map(|name| format!("/sys/fs/cgroup/{name}{path}"));
        mounts.chain([format!("/sys/fs/cgroup{path}")]).collect::<Vec<_>>()
    });
    let entries = places.filter_map(|path| fs::read_dir(path).ok()).flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
}

fn groups() -> usize {
    groups_of(std::process::id())
}

#[test]
fn a_dead_supervisors_group_is_removed_by_the_next_start() {
    let workspace = workspace();
    let mark = format!("88{}", std::process::id());
    let mut supervisor = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "supervisor::run_for_ever", "--ignored", "--nocapture"])
        .env("SUPERVISED_TIER", "namespace")
        .env("SUPERVISED_MARK", &mark)
        .env("SUPERVISED_WORKSPACE", workspace.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // It says so when its program runs, which is when the group exists, if one can be made.
    let mut said = io::BufReader::new(supervisor.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("supervised") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "the supervisor said nothing");
    }
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    for _ in 0..200 {
        // Every new supervisor sweeps; the dead one's processes may take a moment to go.
        let memory = Limits { memory_bytes: Some(64 << 20), ..Limits::danger_unlimited() };
        let backend = Namespace::new();
        let mut invocation = shell(workspace.path(), "true");
        invocation.limits = memory;
        let plan = backend.prepare(invocation).unwrap();
        backend.run(&plan, &Memory::default(), &Cancel::new().unwrap()).unwrap();
        if groups_of(supervisor.id()) == 0 {
            return;
        }
    }
    panic!("the dead supervisor's group is still there");
}

#[test]
fn two_hundred_at_once_finish_with_their_limits_held() {
    let workspace = workspace();
    let backend = Namespace::new();
    let limited = |index: u32| {
        let mut invocation = shell(workspace.path(), "echo $0; sleep 0.1; echo x > file");
        invocation.limits = Limits {
            wall_ms: Some(60_000),
            memory_bytes: Some(64 << 20),
            disk_bytes: Some(4 << 20),
            processes: Some(16),
            ..Limits::danger_unlimited()
        };
        // Every tenth one floods and must be stopped by its own limit.
        if index.is_multiple_of(10) {
            invocation = shell(workspace.path(), "while :; do echo flood; done");
            invocation.limits = Limits {
                wall_ms: Some(60_000),
                output_bytes: Some(5000),
                ..Limits::danger_unlimited()
            };
        }
        invocation
    };
    std::thread::scope(|scope| {
        for index in 0..200_u32 {
            let plan = backend.prepare(limited(index)).unwrap();
            let backend = &backend;
            scope.spawn(move || {
                let report = backend.run(&plan, &Memory::default(), &Cancel::new().unwrap());
                let outcome = report.unwrap().outcome;
                let expected = if index.is_multiple_of(10) {
                    Outcome::Limited { limit: LimitKind::Output }
                } else {
                    Outcome::Exited { code: 0 }
                };
                assert_eq!(outcome, expected, "run {index}");
            });
        }
    });
    assert_eq!(fs::read_dir(workspace.path()).unwrap().count(), 0);
}

#[test]
fn many_in_a_row_leave_no_mount_group_or_directory() {
    let workspace = workspace();
    let backend = Namespace::new();
    let mut invocation = shell(workspace.path(), "echo x > file");
    invocation.limits.memory_bytes = Some(64 << 20);
    let plan = backend.prepare(invocation).unwrap();
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    let before = mounts();
    for _ in 0..150 {
        let report = backend.run(&plan, &Memory::default(), &Cancel::new().unwrap()).unwrap();
        assert_eq!(report.outcome, Outcome::Exited { code: 0 });
    }
    assert_eq!(mounts(), before);
    assert_eq!(fs::read_dir(workspace.path()).unwrap().count(), 0);
    // Other tests of this process have groups too, each for as long as its run lasts.
    for _ in 0..600 {
        if groups() == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{} groups are left", groups());
}
