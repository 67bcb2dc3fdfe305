//! The hermetic tier beside just-bash from npm, in one run: `cargo bench --bench hermetic`.
//!
//! Needs node and npm with a registry to install from. Both sides see the same files and must
//! say the same. Ours counts the start of a jailed worker into every figure; just-bash's figures,
//! but for the cold start, leave out the start of node.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a benchmark"
)]

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use warrant_protocol::Limits;
use warrant_sandbox::hermetic::{Hermetic, Pool, WorkerProgram, worker_main};
use warrant_sandbox::{
    Backend, Cancel, Command, Files, Invocation, Network, NetworkDecision, Shell, Sink, Stdin,
    Stream, WorkspaceAccess,
};

/// The version whose figures are compared.
const JUST_BASH: &str = "just-bash@3.4.2";

const DRIVER: &str = r#"
import { Bash, ReadWriteFs } from "just-bash";
const [root, script] = process.argv.slice(2);
const huge = Number.MAX_SAFE_INTEGER;
const names = ["maxCallDepth", "maxCommandCount", "maxLoopIterations", "maxAwkIterations",
  "maxSedIterations", "maxJqIterations", "maxOutputSize", "maxStringLength", "maxWorkUnits",
  "maxTraversalEntries", "maxTraversalWork", "maxLiveBytes", "maxInputBytes",
  "maxFileSystemBytes", "maxExecutionTimeMs", "maxQueryElements", "maxArrayElements"];
const limits = Object.fromEntries(names.map((name) => [name, huge]));
const bash = new Bash({ fs: new ReadWriteFs({ root, maxFileReadSize: huge }), cwd: "/", executionLimits: limits });
const started = process.hrtime.bigint();
const result = await bash.exec(script);
const ms = Number(process.hrtime.bigint() - started) / 1e6;
process.stdout.write(result.stdout);
process.stderr.write(result.stderr + "\n" + ms);
process.exitCode = result.exitCode;
"#;

const WORK: [(&str, &str); 7] = [
    ("loop of a million", "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done; echo $i"),
    ("grep over 50 MB", "grep -c needle big.txt"),
    ("sed over 50 MB", "sed -n 's/needle/thread/p' big.txt | wc -l"),
    ("awk over 50 MB", "awk '{s+=$2} END {print s}' big.txt"),
    ("find over 10 000 files", "find tree -type f | wc -l"),
    ("jq over 10 MB", "jq 'map(.n) | add' big.json"),
    ("sort over 5 MB", "sort small.txt | tail -n 1"),
];

fn main() -> ExitCode {
    if let Some(code) = worker_main() {
        return code;
    }
    let args: Vec<String> = std::env::args().collect();
    if let [_, word, root, script] = args.as_slice()
        && word == "once"
    {
        let backend = Hermetic::new(Pool::new(WorkerProgram::this(), 0));
        let (_, stdout) = ours(&backend, Path::new(root), script);
        io::stdout().write_all(stdout.as_bytes()).unwrap();
        return ExitCode::SUCCESS;
    }
    let workspace = TempDir::new().unwrap();
    let root = workspace.path().canonicalize().unwrap();
    fill(&root);
    let peer = TempDir::new().unwrap();
    let Some(driver) = install(peer.path()) else {
        println!("{JUST_BASH} cannot be installed here; nothing to compare with");
        return ExitCode::FAILURE;
    };
    compare(&root, &driver);
    ExitCode::SUCCESS
}

fn compare(root: &Path, driver: &Path) {
    println!("{:<24} {:>12} {:>12} {:>8}", "", "ours ms", "just-bash ms", "ratio");
    let line = |name: &str, ours: Duration, theirs: Duration| {
        let (ours, theirs) = (ours.as_secs_f64() * 1e3, theirs.as_secs_f64() * 1e3);
        println!("{name:<24} {ours:>12.2} {theirs:>12.1} {:>7.1}x", theirs / ours);
    };
    let this = std::env::current_exe().unwrap();
    let cold = || {
        let started = Instant::now();
        let status = Process::new(&this).arg("once").arg(root).arg("echo hi").output().unwrap();
        assert_eq!(status.stdout, b"hi\n");
        started.elapsed()
    };
    let peer_cold = || {
        let started = Instant::now();
        theirs(driver, root, "echo hi");
        started.elapsed()
    };
    line("echo, start to exit", median(10, cold), median(5, peer_cold));
    let jailed = Hermetic::new(Pool::new(WorkerProgram::this(), 0));
    jailed.probe();
    line(
        "echo, fresh jail",
        median(100, || ours(&jailed, root, "echo hi").0),
        median(5, || theirs(driver, root, "echo hi").0),
    );
    let warm = Hermetic::warm(Pool::new(WorkerProgram::this(), 1));
    warm.probe();
    let warm_echo = || {
        warm.refill().unwrap();
        ours(&warm, root, "echo hi").0
    };
    line(
        "echo, warm worker",
        median(100, warm_echo),
        median(5, || theirs(driver, root, "echo hi").0),
    );
    for (name, script) in WORK {
        let (our_time, our_text) = ours(&jailed, root, script);
        let (their_time, their_text) = theirs(driver, root, script);
        line(name, our_time, their_time);
        if our_text.trim() != their_text.trim() {
            println!("  they differ: {:?} and {:?}", our_text.trim(), their_text.trim());
        }
    }
}

fn median(times: usize, mut measure: impl FnMut() -> Duration) -> Duration {
    let mut all: Vec<Duration> = (0..times).map(|_| measure()).collect();
    all.sort_unstable();
    all[times / 2]
}

#[derive(Default)]
struct Heard(Mutex<Vec<u8>>);

impl Sink for Heard {
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if stream == Stream::Stdout {
            self.0.lock().unwrap().extend_from_slice(bytes);
        }
        Ok(())
    }

    fn network(&self, _decision: NetworkDecision) {}
}

fn ours(backend: &Hermetic, root: &Path, script: &str) -> (Duration, String) {
    let invocation = Invocation {
        command: Command::Shell { shell: Shell::Bash, script: script.into() },
        cwd: root.to_owned(),
        env: Vec::new(),
        stdin: Stdin::Empty,
        tty: None,
        files: Files {
            workspace: root.to_owned(),
            access: WorkspaceAccess::Direct,
            read_roots: Vec::new(),
            write_roots: Vec::new(),
            places: Vec::new(),
            masks: Vec::new(),
        },
        network: Network::Allow(Vec::new()),
        limits: Limits { wall_ms: Some(600_000), ..Limits::danger_unlimited() },
        image: None,
        neighbors: None,
    };
    let plan = backend.prepare(invocation).unwrap();
    let heard = Heard::default();
    let started = Instant::now();
    let report = backend.run(&plan, &heard, &Cancel::new().unwrap()).unwrap();
    let took = started.elapsed();
    let mut text = String::from_utf8(heard.0.into_inner().unwrap()).unwrap();
    if !report.outcome.is_success() {
        write!(text, " ({:?})", report.outcome).unwrap();
    }
    (took, text)
}

fn theirs(driver: &Path, root: &Path, script: &str) -> (Duration, String) {
    let output = Process::new("node").arg(driver).arg(root).arg(script).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let ms: f64 = stderr.lines().last().and_then(|line| line.parse().ok()).unwrap_or(f64::NAN);
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        write!(text, " ({}: {})", output.status, stderr.lines().next().unwrap_or("")).unwrap();
    }
    (Duration::from_secs_f64(if ms.is_nan() { 0.0 } else { ms / 1e3 }), text)
}

fn install(directory: &Path) -> Option<PathBuf> {
    let installed = Process::new("npm")
        .args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"])
        .arg(directory)
        .arg(JUST_BASH)
        .output()
        .ok()?;
    let driver = directory.join("driver.mjs");
    fs::write(&driver, DRIVER).ok()?;
    installed.status.success().then_some(driver)
}

fn fill(root: &Path) {
    let mut text = String::with_capacity(52 << 20);
    let mut number = 1_u32;
    while text.len() < 50 << 20 {
        // A fixed sequence, so that every run sees the same bytes.
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let word = if number.is_multiple_of(97) { "needle" } else { "haystack" };
        writeln!(text, "line {} {word} {number:08x} some more words to read", number % 1000)
            .unwrap();
    }
    fs::write(root.join("big.txt"), &text).unwrap();
    let cut = text.get(..5 << 20).and_then(|part| part.rfind('\n')).unwrap_or(0);
    fs::write(root.join("small.txt"), &text[..=cut]).unwrap();
    let mut json = String::from("[");
    let mut count = 0_u32;
    while json.len() < 10 << 20 {
        let comma = if count == 0 { "" } else { "," };
        write!(json, "{comma}{{\"n\":{count},\"s\":\"value {count}\",\"l\":[1,2,3]}}").unwrap();
        count += 1;
    }
    json.push(']');
    fs::write(root.join("big.json"), json).unwrap();
    for directory in 0..100 {
        let directory = root.join(format!("tree/d{directory}"));
        fs::create_dir_all(&directory).unwrap();
        for file in 0..100 {
            fs::write(directory.join(format!("f{file}")), "x").unwrap();
        }
    }
}
