//! Attacks on what everyone on the machine shares: time, memory, processes, space, and the end.

use std::process::{Command, Stdio};
use std::time::Duration;

use warrant_protocol::{Isolation, LimitKind, Limits, Outcome};

use crate::attacks::scene::{Played, Scene, Verdict, next_number, succeeded};

crate::attacks::attacks!("resources":
    fork_bomb_is_bounded Always,
    memory_is_bounded Always,
    memory_in_files_without_a_name_is_bounded Always,
    memory_in_segments_without_a_process_is_bounded Always,
    memory_shared_by_processes_that_ended_is_bounded Always,
    memory_of_the_kernel_in_semaphores_is_bounded Always,
    disk_is_bounded Always,
    inodes_are_bounded Always,
    output_flood_is_stopped Always,
    cpu_spin_is_stopped Always,
    sleeping_for_ever_is_stopped Always,
    daemon_that_double_forks_is_ended Always,
    stopped_processes_are_ended Always,
    killed_supervisor_leaves_nobody_alive Always,
    terminated_supervisor_leaves_nobody_alive Always,
);

fn with_limits(scene: &Scene, script: &str, limits: Limits) -> Played {
    let mut invocation = scene.script(script);
    invocation.limits = Limits { wall_ms: limits.wall_ms.or(Some(4000)), ..limits };
    scene.play_invocation(invocation)
}

const NONE: Limits = Limits::danger_unlimited();

fn fork_bomb_is_bounded(scene: &Scene) -> Verdict {
    let script = "perl -e 'for (1..150) { $p = fork; if (defined $p && !$p) { sleep 3; exit } $n++ if defined $p } print qq($n\\n)'";
    let played = with_limits(scene, script, Limits { processes: Some(30), ..NONE });
    let made = played.memory.stdout().trim().parse::<u32>().unwrap_or(0);
    Verdict::broken_if(made > 32, format!("{made} processes were made"))
}

fn memory_is_bounded(scene: &Scene) -> Verdict {
    let script = "perl -e '$| = 1; $x = q(a) x 150000000; print q(BROKEN)'";
    with_limits(scene, script, Limits { memory_bytes: Some(64 << 20), ..NONE }).by_own_word()
}

/// Lets a Python program play that has 64 MiB and says BROKEN when it had 200.
fn with_little_memory(scene: &Scene, interpreter: &str, program: &str) -> Verdict {
    std::fs::write(scene.workspace().join("hoard"), program).unwrap();
    let limits = Limits { memory_bytes: Some(64 << 20), wall_ms: Some(20_000), ..NONE };
    with_limits(scene, &format!("{interpreter} hoard"), limits).by_own_word()
}

fn memory_in_files_without_a_name_is_bounded(scene: &Scene) -> Verdict {
    let program = "import os, time\nfd = os.memfd_create('x')\nfor i in range(200): os.write(fd, b'a' * (1 << 20))\n\
        time.sleep(0.3)\nprint('BROKEN')\n";
    with_little_memory(scene, "/usr/bin/python3", program)
}

fn memory_in_segments_without_a_process_is_bounded(scene: &Scene) -> Verdict {
    let program = "my $i = shmget(0, 200 << 20, 01600) // exit; my $b = 'a' x (1 << 20);\n\
        for (0..199) { shmwrite($i, $b, $_ << 20, 1 << 20) or exit } select(undef, undef, undef, 0.3);\n\
        shmctl($i, 0, 0); print \"BROKEN\\n\";";
    with_little_memory(scene, "perl", program)
}

/// Pages that an ended process touched belong to nobody's resident size.
fn memory_shared_by_processes_that_ended_is_bounded(scene: &Scene) -> Verdict {
    let program = "import mmap, os, time\nm = mmap.mmap(-1, 200 << 20)\nfor i in range(20):\n\
        \x20 pid = os.fork()\n\x20 if pid == 0:\n\x20   m[i * (10 << 20):(i + 1) * (10 << 20)] = b'a' * (10 << 20)\n\x20   os._exit(0)\n\
        \x20 os.waitpid(pid, 0)\ntime.sleep(0.5)\nprint('BROKEN')\n";
    with_little_memory(scene, "/usr/bin/python3", program)
}

/// A set of 32 000 semaphores is 2 MB of the kernel's own memory, and no process's.
fn memory_of_the_kernel_in_semaphores_is_bounded(scene: &Scene) -> Verdict {
    let program = "my @s; for (1..100) { my $i = semget(0, 32000, 01600); last unless defined $i; push @s, $i }\n\
        select(undef, undef, undef, 0.3); semctl($_, 0, 0, 0) for @s; print \"BROKEN\\n\" if @s == 100;";
    with_little_memory(scene, "perl", program)
}

fn disk_is_bounded(scene: &Scene) -> Verdict {
    let script = "head -c 20000000 /dev/zero > big && echo BROKEN";
    with_limits(scene, script, Limits { disk_bytes: Some(4 << 20), ..NONE }).by_own_word()
}

fn inodes_are_bounded(scene: &Scene) -> Verdict {
    let script = "i=0; while [ $i -lt 300 ]; do : > f$i || exit 1; i=$((i+1)); done; echo BROKEN";
    with_limits(scene, script, Limits { inodes: Some(50), ..NONE }).by_own_word()
}

fn output_flood_is_stopped(scene: &Scene) -> Verdict {
    let played = with_limits(
        scene,
        "exec head -c 3000000 /dev/zero",
        Limits { output_bytes: Some(1 << 16), ..NONE },
    );
    Verdict::broken_if(played.memory.stdout().len() > 1 << 16, "more was kept than the limit")
}

fn cpu_spin_is_stopped(scene: &Scene) -> Verdict {
    let played = with_limits(
        scene,
        "while :; do :; done",
        Limits { cpu_ms: Some(200), wall_ms: Some(90_000), ..NONE },
    );
    Verdict::broken_if(
        played.report.outcome != Outcome::Limited { limit: LimitKind::Cpu },
        "it spun on",
    )
}

fn sleeping_for_ever_is_stopped(scene: &Scene) -> Verdict {
    let played = with_limits(
        scene,
        "trap '' TERM INT HUP; sleep 3; sleep 3",
        Limits { wall_ms: Some(300), ..NONE },
    );
    Verdict::broken_if(
        played.report.outcome != Outcome::Limited { limit: LimitKind::Wall },
        "it slept on",
    )
}

/// Returns how many processes of the host have this text in their command line.
fn alive(mark: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let named = entries.filter(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(mark)
    });
    named.count()
}

/// Ends what an attack left on a tier that does not.
fn clean_up(mark: &str) {
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let pid = entry.file_name().to_string_lossy().parse::<i32>().ok();
        if let (true, Some(pid)) = (String::from_utf8_lossy(&line).contains(mark), pid)
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Returns a number of seconds that no other sleeper has.
fn mark() -> String {
    format!("77{}", next_number())
}

fn daemon_that_double_forks_is_ended(scene: &Scene) -> Verdict {
    let mark = mark();
    let script =
        format!("(setsid sh -c 'setsid sleep {mark} </dev/null >/dev/null 2>&1 &' &) ; sleep 0.2");
    with_limits(scene, &script, NONE);
    let left = alive(&mark);
    clean_up(&mark);
    Verdict::broken_if(left > 0, format!("{left} daemons are alive"))
}

fn stopped_processes_are_ended(scene: &Scene) -> Verdict {
    let mark = mark();
    let script =
        format!("(setsid sleep {mark} >/dev/null 2>&1 & sleep 0.2; kill -STOP $!); kill -STOP $$");
    with_limits(scene, &script, Limits { wall_ms: Some(700), ..NONE });
    let left = alive(&mark);
    clean_up(&mark);
    Verdict::broken_if(left > 0, format!("{left} stopped processes are alive"))
}

/// Starts a supervisor of its own (this test binary) and ends it with `signal`.
fn supervisor_ended_by(scene: &Scene, signal: &str, mark: &str) -> Verdict {
    let tier = match scene.backend.isolation() {
        Isolation::Namespace => "namespace",
        _ if scene.backend.probe().enforces("environment") => "process",
        _ => "leaky",
    };
    let mut supervisor = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "supervisor::run_for_ever", "--ignored", "--nocapture"])
        .env("SUPERVISED_TIER", tier)
        .env("SUPERVISED_MARK", mark)
        .env("SUPERVISED_WORKSPACE", scene.workspace())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = |wanted: &dyn Fn() -> bool| {
        for _ in 0..500 {
            if wanted() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    };
    // Two: the shell with the mark in its script has become or started the sleeper.
    let started = until(&|| alive(mark) >= 2);
    let pid = supervisor.id().to_string();
    Command::new("kill").args([signal, &pid]).status().unwrap();
    supervisor.wait().unwrap();
    let all_gone = until_quickly(&|| alive(mark) == 0);
    clean_up(mark);
    assert!(started, "the supervised program did not start");
    Verdict::broken_if(!all_gone, "processes outlived their supervisor")
}

fn until_quickly(wanted: &dyn Fn() -> bool) -> bool {
    for _ in 0..100 {
        if wanted() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

fn killed_supervisor_leaves_nobody_alive(scene: &Scene) -> Verdict {
    supervisor_ended_by(scene, "-KILL", &mark())
}

fn terminated_supervisor_leaves_nobody_alive(scene: &Scene) -> Verdict {
    supervisor_ended_by(scene, "-TERM", &mark())
}

#[test]
fn succeeded_means_exit_zero() {
    let backend = warrant_sandbox::Namespace::new();
    let scene = Scene::new(&backend);
    assert!(succeeded(&scene.play("true")));
    assert!(!succeeded(&scene.play("false")));
}
