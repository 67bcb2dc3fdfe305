//! Start to exit of `true`: this tier with everything on, bubblewrap, and a bare clone into the
//! same namespaces, interleaved in one run so that load falls on all of them alike.
//!
//! `cargo bench -p warrant-e2e --bench start -- [rounds]`; with `soak N` it runs N jails in a row
//! and looks for leaks, with `crowd N` N at once.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a benchmark talks to a person"
)]

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use warrant_protocol::{Limits, Outcome};
use warrant_sandbox::{
    Backend, Cancel, Command, Files, Invocation, Namespace, Network, NetworkDecision, Plan, Sink,
    Stdin, Stream, WorkspaceAccess,
};

struct Discard;

impl Sink for Discard {
    fn output(&self, _: Stream, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn network(&self, _: NetworkDecision) {}
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let number = |at: usize, otherwise: usize| {
        args.get(at).and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    match args.first().map(String::as_str) {
        Some("soak") => soak(number(1, 10_000)),
        Some("crowd") => crowd(number(1, 200)),
        _ => compare(number(0, 200)),
    }
}

fn invocation(workspace: &Path) -> Invocation {
    Invocation {
        command: Command::Argv { program: "true".to_owned(), args: Vec::new() },
        cwd: workspace.to_owned(),
        env: Vec::new(),
        stdin: Stdin::Empty,
        tty: None,
        files: Files {
            workspace: workspace.to_owned(),
            access: WorkspaceAccess::Overlay,
            read_roots: Vec::new(),
            write_roots: Vec::new(),
            masks: vec![".env".to_owned(), "*.pem".to_owned()],
        },
        network: Network::Allow(vec!["example.com".to_owned()]),
        limits: Limits {
            wall_ms: Some(10_000),
            cpu_ms: Some(10_000),
            memory_bytes: Some(512 << 20),
            processes: Some(64),
            open_files: Some(1024),
            file_bytes: Some(1 << 30),
            disk_bytes: Some(256 << 20),
            inodes: Some(100_000),
            output_bytes: Some(1 << 20),
        },
    }
}

fn run(backend: &Namespace, plan: &Plan) {
    let report = backend.run(plan, &Discard, &Cancel::new().unwrap()).unwrap();
    assert_eq!(report.outcome, Outcome::Exited { code: 0 });
}

fn timed(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}

fn bubblewrap(workspace: &Path) -> Process {
    let mut bwrap = Process::new("bwrap");
    bwrap.args(["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"]);
    bwrap.args(["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"]);
    bwrap.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind"]);
    bwrap.args([workspace, workspace]);
    bwrap.args(["--unshare-all", "--die-with-parent", "--new-session", "true"]);
    bwrap.stdin(Stdio::null());
    bwrap
}

fn compare(rounds: usize) {
    let workspace = tempfile::tempdir().unwrap();
    let backend = Namespace::new();
    let plan = backend.prepare(invocation(workspace.path())).unwrap();
    let mut unlimited = invocation(workspace.path());
    unlimited.limits = Limits { wall_ms: Some(10_000), ..Limits::danger_unlimited() };
    let unlimited = backend.prepare(unlimited).unwrap();
    run(&backend, &plan);
    let (mut bare, mut ours, mut light, mut theirs) = (vec![], vec![], vec![], vec![]);
    for _ in 0..rounds {
        bare.push(timed(|| warrant_jail::bare_clone().unwrap()));
        ours.push(timed(|| run(&backend, &plan)));
        light.push(timed(|| run(&backend, &unlimited)));
        theirs.push(timed(|| {
            assert!(bubblewrap(workspace.path()).status().unwrap().success());
        }));
    }
    let bare = median(bare);
    let theirs = median(theirs);
    println!("bare clone into the same namespaces: {bare:?} p50");
    println!("bubblewrap: {theirs:?} p50");
    for (name, times) in [("everything on", ours), ("no cgroup limits", light)] {
        let p50 = median(times);
        let ratio = |other: Duration| p50.as_secs_f64() / other.as_secs_f64();
        println!(
            "namespace, {name}: {p50:?} p50 = {:.2} x bubblewrap = {:.2} x bare",
            ratio(theirs),
            ratio(bare)
        );
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn soak(runs: usize) {
    let workspace = tempfile::tempdir().unwrap();
    let backend = Namespace::new();
    let plan = backend.prepare(invocation(workspace.path())).unwrap();
    for _ in 0..100 {
        run(&backend, &plan);
    }
    let before = Leaks::count();
    let started = Instant::now();
    for _ in 0..runs {
        run(&backend, &plan);
    }
    let after = Leaks::count();
    println!("{runs} runs in {:?}\nbefore {before:?}\nafter  {after:?}", started.elapsed());
    assert_eq!(before.descriptors, after.descriptors);
    assert_eq!(before.mounts, after.mounts);
    assert_eq!(before.cgroups, after.cgroups);
    assert_eq!(before.children, after.children);
    assert!(after.memory_kb < before.memory_kb + 4096, "memory grew");
}

fn crowd(runs: usize) {
    let workspace = tempfile::tempdir().unwrap();
    let backend = Namespace::new();
    let plan = backend.prepare(invocation(workspace.path())).unwrap();
    run(&backend, &plan);
    let before = Leaks::count();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..runs {
            scope.spawn(|| run(&backend, &plan));
        }
    });
    let after = Leaks::count();
    println!("{runs} at once in {:?}\nbefore {before:?}\nafter  {after:?}", started.elapsed());
    assert_eq!((before.descriptors, before.cgroups), (after.descriptors, after.cgroups));
}

#[derive(Debug)]
struct Leaks {
    descriptors: usize,
    mounts: usize,
    cgroups: usize,
    children: usize,
    memory_kb: u64,
}

impl Leaks {
    fn count() -> Self {
        let count = |path: &str| fs::read_dir(path).map_or(0, Iterator::count);
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let children = format!("/proc/self/task/{}/children", std::process::id());
        let ours = |path: &str| {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.filter(|e| e.file_name().to_string_lossy().starts_with("warrant-")).count()
        };
        Self {
            descriptors: count("/proc/self/fd"),
            mounts: fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count(),
            cgroups: ours("/sys/fs/cgroup/pids") + ours("/sys/fs/cgroup"),
            children: fs::read_to_string(children).unwrap_or_default().split(' ').count(),
            memory_kb: memory.trim().trim_end_matches(" kB").parse().unwrap(),
        }
    }
}
