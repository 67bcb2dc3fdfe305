//! Start to exit of `true`: this tier with everything on, a bare clone into the same namespaces, and
//! the peers that install here (bubblewrap; srt and the Codex sandbox from npm), interleaved in one
//! run so that load falls on all of them alike.
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

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
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
            places: Vec::new(),
            masks: vec![".env".to_owned(), "*.pem".to_owned()],
        },
        network: Network::Allow(vec!["example.com".to_owned()]),
        image: None,
        neighbors: None,
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
    let mut peers = peers();
    for round in 0..rounds {
        bare.push(timed(|| warrant_jail::bare_clone().unwrap()));
        ours.push(timed(|| run(&backend, &plan)));
        light.push(timed(|| run(&backend, &unlimited)));
        theirs.push(timed(|| {
            assert!(bubblewrap(workspace.path()).status().unwrap().success());
        }));
        // They take a hundred times longer, so they come by less often.
        for peer in peers.iter_mut().filter(|_| round.is_multiple_of(20)) {
            let mut command = peer.command(workspace.path());
            peer.times.push(timed(|| assert!(command.status().unwrap().success())));
        }
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
        for peer in &peers {
            let (name, peer) = (peer.name, median(peer.times.clone()));
            println!("    {name}: {peer:?} p50; ours = {:.3} x", ratio(peer));
        }
    }
}

/// A peer from npm.
struct Peer {
    name: &'static str,
    program: PathBuf,
    arguments: &'static [&'static str],
    times: Vec<Duration>,
}

impl Peer {
    fn command(&self, workspace: &Path) -> Process {
        let mut command = Process::new(&self.program);
        command.args(self.arguments).current_dir(workspace).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

/// Installs the peers once below `target` and returns those that start here.
fn peers() -> Vec<Peer> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers");
    let modules = place.join("node_modules");
    if !modules.join(".bin/srt").exists() {
        fs::create_dir_all(&place).unwrap();
        let mut npm = Process::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--silent", "--prefix"]).arg(&place);
        npm.args(["@anthropic-ai/sandbox-runtime", "@openai/codex"]);
        if !npm.status().is_ok_and(|status| status.success()) {
            println!("srt and Codex cannot be installed here");
        }
    }
    // The program itself rather than its launcher in node, so that node's start is not counted.
    let codex = "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex";
    let all = [
        Peer {
            name: "srt",
            program: modules.join(".bin/srt"),
            arguments: &["true"],
            times: vec![],
        },
        Peer {
            name: "codex sandbox",
            program: modules.join(codex),
            arguments: &["sandbox", "--", "true"],
            times: vec![],
        },
    ];
    let starts = |peer: &Peer| {
        let works = peer.command(&place).status().is_ok_and(|status| status.success());
        if !works {
            println!("{} does not start here", peer.name);
        }
        works
    };
    all.into_iter().filter(starts).collect()
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
        Self {
            descriptors: count("/proc/self/fd"),
            mounts: fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count(),
            cgroups: own_groups(),
            children: fs::read_to_string(children).unwrap_or_default().split(' ').count(),
            memory_kb: memory.trim().trim_end_matches(" kB").parse().unwrap(),
        }
    }
}

/// Counts groups of this process below its own place in every hierarchy, where they are made.
fn own_groups() -> usize {
    let prefix = format!("warrant-{}-", std::process::id());
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let mut places = BTreeSet::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap(), parts.next().unwrap());
        for hierarchy in controllers.split(',').chain(["unified", ""]) {
            let place = Path::new("/sys/fs/cgroup").join(hierarchy).join(&path[1..]);
            places.extend(fs::canonicalize(place));
        }
    }
    let entries = places.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
}
