//! What a run used is what the kernel counted, also for a run that was killed.

use warrant_protocol::{LimitKind, Limits, Outcome, Usage};
use warrant_sandbox::{Backend, Namespace, Process, WorkspaceAccess};

use crate::bench::{run, shell, workspace};

const NONE: Limits = Limits::danger_unlimited();
/// A tick of the clock by which `/proc` counts.
const TICK_US: u64 = 10_000;
/// Spins in two processes; each says from time to time how much CPU time it has used.
const SPIN: &str = "perl -e '$| = 1; $c = fork; $last = 0; \
                    while (1) { $x++ for 1 .. 20000; ($u, $s) = times; \
                    if ($u + $s - $last >= 0.05) { $last = $u + $s; print \"$$ $last\\n\" } }'";

#[track_caller]
fn spun(backend: &dyn Backend, limits: Limits, expected: LimitKind) {
    let workspace = workspace();
    let mut invocation = shell(workspace.path(), SPIN);
    invocation.files.access = WorkspaceAccess::Direct;
    invocation.limits = Limits { wall_ms: limits.wall_ms.or(Some(90_000)), ..limits };
    let (report, memory) = run(backend, invocation);
    let report = report.unwrap();
    assert_eq!(report.outcome, Outcome::Limited { limit: expected });
    counts_at_least(&memory.stdout(), &report.usage);
}

/// A run's CPU time is at least what its processes had used when they last said so.
#[track_caller]
fn counts_at_least(said: &str, usage: &Usage) {
    let mut last = std::collections::BTreeMap::new();
    for line in said.lines() {
        let Some((pid, seconds)) = line.split_once(' ') else { continue };
        last.insert(pid.to_owned(), seconds.parse::<f64>().unwrap());
    }
    assert_eq!(last.len(), 2, "{said}");
    let said_us = (last.values().sum::<f64>() * 1_000_000.0) as u64;
    let (cpu_us, wall_us) = (usage.cpu_us.unwrap(), usage.wall_us.unwrap());
    assert!(cpu_us + 2 * TICK_US >= said_us, "{cpu_us} counted, {said_us} said");
    let processors = std::thread::available_parallelism().unwrap().get() as u64;
    assert!(cpu_us <= wall_us * processors + 2 * TICK_US, "{cpu_us} in {wall_us}");
}

#[test]
fn cpu_time_of_a_run_killed_by_its_wall_limit_is_not_lost() {
    for backend in [&Namespace::new() as &dyn Backend, &Process::new()] {
        spun(backend, Limits { wall_ms: Some(700), ..NONE }, LimitKind::Wall);
    }
}

#[test]
fn cpu_time_of_a_run_killed_by_its_cpu_limit_is_not_lost() {
    for backend in [&Namespace::new() as &dyn Backend, &Process::new()] {
        spun(backend, Limits { cpu_ms: Some(600), ..NONE }, LimitKind::Cpu);
    }
}

#[test]
fn peak_memory_of_a_killed_run_is_not_that_of_the_supervisor() {
    let workspace = workspace();
    let script = "perl -e '$| = 1; $x = \"a\" x 150000000; print \"big\\n\"; sleep 100'";
    let mut invocation = shell(workspace.path(), script);
    invocation.limits = Limits { wall_ms: Some(2_000), ..NONE };
    let (report, memory) = run(&Namespace::new(), invocation);
    let report = report.unwrap();
    assert_eq!(report.outcome, Outcome::Limited { limit: LimitKind::Wall });
    assert_eq!(memory.stdout(), "big\n");
    assert!(report.usage.peak_memory_bytes >= Some(150_000_000), "{:?}", report.usage);
}

#[test]
fn cpu_time_of_processes_that_outlive_their_program_is_not_lost() {
    let workspace = workspace();
    let script = format!("{SPIN} & sleep 0.7; exit 0");
    let mut invocation = shell(workspace.path(), &script);
    invocation.files.access = WorkspaceAccess::Direct;
    invocation.limits = Limits { wall_ms: Some(90_000), ..NONE };
    let (report, memory) = run(&Namespace::new(), invocation);
    let report = report.unwrap();
    assert_eq!(report.outcome, Outcome::Exited { code: 0 });
    counts_at_least(&memory.stdout(), &report.usage);
}
