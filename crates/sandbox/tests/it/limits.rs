//! Every limit is its own outcome, and holds for the whole tree.

use warrant_protocol::{LimitKind, Limits, Outcome};
use warrant_sandbox::{Backend, Cancel, Namespace, Process, WorkspaceAccess};

use crate::bench::{Memory, run, shell, workspace};

const NONE: Limits = Limits::danger_unlimited();

#[track_caller]
fn check_on(backend: &dyn Backend, script: &str, limits: Limits, expected: LimitKind) -> Memory {
    let workspace = workspace();
    let mut invocation = shell(workspace.path(), script);
    if backend.isolation() == warrant_protocol::Isolation::Process {
        invocation.files.access = WorkspaceAccess::Direct;
    }
    invocation.limits = Limits { wall_ms: limits.wall_ms.or(Some(90_000)), ..limits };
    let (report, memory) = run(backend, invocation);
    let outcome = report.unwrap().outcome;
    let told = format!("{script}: {} {}", memory.stdout().len(), memory.stderr());
    assert_eq!(outcome, Outcome::Limited { limit: expected }, "{told}");
    memory
}

#[track_caller]
fn check(script: &str, limits: Limits, expected: LimitKind) -> Memory {
    check_on(&Namespace::new(), script, limits, expected)
}

#[test]
fn wall_time_ends_a_sleeper_and_its_daemons() {
    let limits = Limits { wall_ms: Some(300), ..NONE };
    check("setsid sleep 1000 & sleep 1000", limits, LimitKind::Wall);
}

#[test]
fn cpu_time_is_counted_over_the_whole_tree() {
    let spin = "for i in 1 2 3; do (while :; do :; done) & done; wait";
    check(spin, Limits { cpu_ms: Some(400), ..NONE }, LimitKind::Cpu);
}

#[test]
fn memory_is_bounded_for_the_tree() {
    let eat = "perl -e '$x = \"a\" x 400000000; sleep 100'";
    check(eat, Limits { memory_bytes: Some(64 << 20), ..NONE }, LimitKind::Memory);
}

#[test]
fn memory_too_small_for_the_boundary_itself_is_the_memory_limit() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for bytes in [1 << 12, 1 << 16, 1 << 18, 1 << 19, 1 << 20] {
        let workspace = workspace();
        let mut invocation = shell(workspace.path(), "exec sleep 0");
        invocation.limits = Limits { wall_ms: Some(90_000), memory_bytes: Some(bytes), ..NONE };
        let (report, _) = run(&Namespace::new(), invocation);
        let outcome = report.unwrap().outcome;
        let fits = outcome == Outcome::Exited { code: 0 } && bytes >= 1 << 18;
        let struck = outcome == Outcome::Limited { limit: LimitKind::Memory };
        assert!(fits || struck, "{bytes}: {outcome:?}");
    }
}

#[test]
fn fork_bomb_meets_the_process_limit() {
    let bomb = "perl -e 'while (1) { $p = fork; select(undef, undef, undef, 0.01) if !defined $p; \
                if (defined $p && !$p) { sleep 100; exit } }'";
    check(bomb, Limits { processes: Some(40), ..NONE }, LimitKind::Processes);
}

#[test]
fn a_program_within_its_process_limit_is_left_alone() {
    let workspace = workspace();
    let mut invocation =
        shell(workspace.path(), "for i in 1 2 3 4 5; do sleep 0.1 & done; wait; echo done");
    invocation.limits.processes = Some(8);
    let (report, memory) = run(&Namespace::new(), invocation);
    assert_eq!(report.unwrap().outcome, Outcome::Exited { code: 0 });
    assert_eq!(memory.stdout(), "done\n");
}

#[test]
fn file_size_ends_the_writer() {
    let limits = Limits { file_bytes: Some(1 << 20), ..NONE };
    check("exec head -c 3000000 /dev/zero > big", limits.clone(), LimitKind::FileSize);
    check("head -c 3000000 /dev/zero > big; exit $?", limits, LimitKind::FileSize);
}

#[test]
fn an_exit_code_that_looks_like_a_limit_is_the_programs_own() {
    let limits = Limits { file_bytes: Some(1 << 20), cpu_ms: Some(60_000), ..NONE };
    for backend in [&Namespace::new() as &dyn Backend, &Process::new()] {
        for code in [152, 153] {
            let workspace = workspace();
            let mut invocation = shell(workspace.path(), &format!("echo x > small; exit {code}"));
            invocation.files.access = WorkspaceAccess::Direct;
            invocation.limits = limits.clone();
            let (report, _) = run(backend, invocation);
            assert_eq!(report.unwrap().outcome, Outcome::Exited { code });
        }
    }
}

#[test]
fn a_signal_that_a_program_raises_itself_is_no_limit_on_cpu() {
    for backend in [&Namespace::new() as &dyn Backend, &Process::new()] {
        let workspace = workspace();
        let mut invocation = shell(workspace.path(), "kill -XCPU $$");
        invocation.files.access = WorkspaceAccess::Direct;
        invocation.limits = Limits { cpu_ms: Some(60_000), ..NONE };
        let (report, _) = run(backend, invocation);
        assert_eq!(report.unwrap().outcome, Outcome::Signaled { signal: 24 });
    }
}

#[test]
fn open_files_all_in_use_are_noticed() {
    let hoard = "perl -e 'while (open(my $f, q(<), q(/dev/null))) { push @f, $f } sleep 100'";
    check(hoard, Limits { open_files: Some(64), ..NONE }, LimitKind::OpenFiles);
}

#[test]
fn disk_of_workspace_and_tmp_together_is_bounded() {
    let limits = Limits { disk_bytes: Some(4 << 20), ..NONE };
    let script = "head -c 2500000 /dev/zero > a; head -c 2500000 /dev/zero > /tmp/b; sleep 100";
    check(script, limits, LimitKind::Disk);
}

#[test]
fn inodes_of_the_overlay_are_bounded() {
    let limits = Limits { inodes: Some(50), ..NONE };
    check(
        "i=0; while [ $i -lt 200 ]; do : > f$i; i=$((i+1)); done; sleep 100",
        limits,
        LimitKind::Inodes,
    );
}

#[test]
fn output_is_kept_up_to_the_limit_and_then_stopped() {
    let limits = Limits { output_bytes: Some(10_000), ..NONE };
    let memory = check("while :; do echo flood; done", limits, LimitKind::Output);
    assert_eq!(memory.stdout().len(), 10_000);
    assert!(memory.stdout().starts_with("flood\nflood\n"));
}

#[test]
fn nothing_of_the_tree_goes_on_when_output_meets_its_limit() {
    let flood = || {
        let workspace = workspace();
        let mut invocation = shell(workspace.path(), "yes | head -c 50000000; touch went-on");
        invocation.files.access = WorkspaceAccess::Direct;
        let limits = Limits { wall_ms: Some(90_000), output_bytes: Some(1_000_000), ..NONE };
        invocation.limits = limits;
        let (report, _) = run(&Namespace::new(), invocation);
        let expected = Outcome::Limited { limit: LimitKind::Output };
        assert_eq!(report.unwrap().outcome, expected);
        workspace.path().join("went-on").exists()
    };
    // Where several are busy, the kill comes later than whatever else happens at once.
    let went_on = std::thread::scope(|scope| {
        let many = || (0..15).filter(|_| flood()).count();
        let all: Vec<_> = (0..8).map(|_| scope.spawn(many)).collect();
        all.into_iter().map(|each| each.join().unwrap()).sum::<usize>()
    });
    assert_eq!(went_on, 0, "shells went on");
}

#[test]
fn process_tier_has_the_same_outcomes_for_time_and_output() {
    let process = Process::new();
    let wall = Limits { wall_ms: Some(300), ..NONE };
    check_on(&process, "setsid sleep 1000 & sleep 1000", wall, LimitKind::Wall);
    let output = Limits { output_bytes: Some(1000), ..NONE };
    check_on(&process, "while :; do echo flood; done", output, LimitKind::Output);
    let cpu = Limits { cpu_ms: Some(300), ..NONE };
    check_on(&process, "while :; do :; done", cpu, LimitKind::Cpu);
}

/// Files with blocks of a disk in front of them and no name, which is what images of ours are.
fn images() -> usize {
    let devices = std::fs::read_dir("/sys/block").unwrap().flatten();
    let backing = devices
        .filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok());
    backing.filter(|file| file.starts_with("/var/tmp/#")).count()
}

#[track_caller]
fn wait_for_no_image() {
    for _ in 0..600 {
        if images() == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{} images are left", images());
}

/// Root alone can mount an image; where no loop device exists, memory holds as before.
fn has_images() -> bool {
    rustix::process::geteuid().is_root() && std::path::Path::new("/dev/loop-control").exists()
}

#[test]
fn a_disk_limit_beyond_memory_is_given_on_disk_and_held() {
    if !has_images() {
        return;
    }
    let limits = Limits { memory_bytes: Some(64 << 20), disk_bytes: Some(200 << 20), ..NONE };
    let workspace = workspace();
    let script = "head -c 150000000 /dev/zero > big && rm big && head -c 90000000 /dev/zero > /tmp/x && wc -c < /tmp/x";
    let mut invocation = shell(workspace.path(), script);
    invocation.limits = Limits { wall_ms: Some(90_000), ..limits.clone() };
    let (report, memory) = run(&Namespace::new(), invocation);
    let report = report.unwrap();
    assert_eq!(report.outcome, Outcome::Exited { code: 0 }, "{}", memory.stderr());
    assert_eq!(memory.stdout(), "90000000\n");
    drop(report);
    let script = "head -c 150000000 /dev/zero > a; head -c 150000000 /dev/zero > /tmp/b; sleep 100";
    check(script, limits.clone(), LimitKind::Disk);
    let few = Limits { inodes: Some(200), ..limits };
    check("i=0; while :; do : > f$i; i=$((i+1)); done 2>/dev/null", few, LimitKind::Inodes);
    assert_eq!(std::fs::read_dir(workspace.path()).unwrap().count(), 0);
    wait_for_no_image();
}

#[test]
fn a_killed_supervisor_leaves_no_image_behind() {
    if !has_images() {
        return;
    }
    let workspace = workspace();
    let mut supervisor = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "supervisor::run_for_ever", "--ignored", "--nocapture"])
        .env("SUPERVISED_TIER", "namespace")
        .env("SUPERVISED_DISK", "1")
        .env("SUPERVISED_MARK", "1000")
        .env("SUPERVISED_WORKSPACE", workspace.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = std::io::BufReader::new(supervisor.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("supervised") {
        line.clear();
        assert_ne!(std::io::BufRead::read_line(&mut said, &mut line).unwrap(), 0);
    }
    assert_ne!(images(), 0);
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    wait_for_no_image();
}

/// Descriptors on their way through sockets are counted by user. One run sends so many that nobody
/// of its user could send another; a run beside it sends one.
#[test]
fn one_run_cannot_use_up_what_the_kernel_counts_by_user_for_another() {
    if !rustix::process::geteuid().is_root() {
        // LIMIT: an ordinary user has one kernel id to give.
        return;
    }
    const HOARD: &str = "import socket, time; a, b = socket.socketpair(); \
        socket.send_fds(a, [b'x'], [0] * 200); print('full', flush=True); time.sleep(100)";
    const SEND: &str = "import socket; a, b = socket.socketpair(); \
        socket.send_fds(a, [b'x'], [0]); print('sent')";
    let (workspace, backend) = (workspace(), Namespace::new());
    let limits = Limits { open_files: Some(64), wall_ms: Some(60_000), ..NONE };
    let run_python = |program: &str, memory: &Memory, cancel: &Cancel| {
        let mut invocation = shell(workspace.path(), &format!("/usr/bin/python3 -c \"{program}\""));
        invocation.limits = limits.clone();
        let plan = backend.prepare(invocation).unwrap();
        backend.run(&plan, memory, cancel).unwrap().outcome
    };
    let (hoarded, sent) = (Memory::default(), Memory::default());
    let stop = Cancel::new().unwrap();
    std::thread::scope(|scope| {
        let hoarder = scope.spawn(|| run_python(HOARD, &hoarded, &stop));
        while !hoarded.stdout().contains("full") && !hoarder.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let outcome = run_python(SEND, &sent, &Cancel::new().unwrap());
        stop.cancel();
        assert_eq!(hoarder.join().unwrap(), Outcome::Cancelled, "{}", hoarded.stderr());
        assert_eq!(outcome, Outcome::Exited { code: 0 }, "{}", sent.stderr());
    });
    assert_eq!(sent.stdout(), "sent\n");
}

/// As much as it says itself; without a cgroup, so that only what pid 1 waited for is known.
#[test]
fn cpu_time_of_those_a_program_leaves_behind_is_counted() {
    let workspace = workspace();
    let script = "perl -e '$s = times; while (times() - $s < 0.3) {} open(F, q(>), q(spun)); close F; while (1) {}' & \
                  until [ -e spun ]; do sleep 0.01; done; echo left";
    let (report, memory) = run(&Namespace::new(), shell(workspace.path(), script));
    assert_eq!(memory.stdout(), "left\n");
    let cpu_us = report.unwrap().usage.cpu_us.unwrap();
    assert!(cpu_us >= 300_000, "{cpu_us}");
}
