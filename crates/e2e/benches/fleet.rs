//! A plane and two runners as processes of their own on loopback, on disk with full sync: runs of
//! `true` per second in the process and the namespace tier, and the time from a submission to its
//! bundle when nothing else is to do.
//!
//! `cargo bench --workspace --bench fleet -- [runs]`; `WARRANT_BIN` names a binary that is there
//! already, else one is built.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "a benchmark"
)]

#[path = "shared/binary.rs"]
mod binary;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use binary::binary;
use serde_json::{Value, json};
use tempfile::TempDir;
use warrant_runner::remote::Http;
use warrant_workspace::{BlobDirectory, CaptureOptions, History, capture, quiet};

const SUBMITTERS: usize = 4;
const SINGLE: usize = 60;

fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|text| text.parse().ok()).collect();
    let runs = numbers.first().copied().unwrap_or(400);
    let fleet = Fleet::start();
    for isolation in ["process", "namespace"] {
        fleet.latency(isolation);
        fleet.throughput(isolation, runs);
    }
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Fleet {
    url: String,
    admin: String,
    workspace: Value,
    _processes: Vec<Process>,
    _place: TempDir,
}

impl Fleet {
    fn start() -> Self {
        let warrant = binary();
        // A real disk, not a temporary filesystem: the store is durable.
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let root = place.path();
        set_policy(&warrant, root);
        let mut plane = Command::new(&warrant)
            .arg("--home")
            .arg(root.join("home"))
            .args(["plane", "start", "--json", "--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(plane.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        let word = |name: &str| said[name].as_str().unwrap().to_owned();
        let token = |name: &str| fs::read_to_string(word(name)).unwrap();
        let (url, admin, enroll) = (word("url"), token("adminTokenFile"), word("enrollTokenFile"));
        let mut processes = vec![Process(plane)];
        for name in ["one", "two"] {
            let runner = Command::new(&warrant)
                .args(["runner", "start", "--plane", &url, "--enroll-token-file", &enroll])
                .args(["--concurrency", "4", "--data-dir"])
                .arg(root.join(name))
                .args(["--provider", "process", "--provider", "namespace"])
                .env("WARRANT_LOG", "error")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            processes.push(Process(runner));
        }
        let workspace = upload(root, &url, &admin);
        Self { url, admin, workspace, _processes: processes, _place: place }
    }

    fn submit(&self, http: &Http, isolation: &str) -> String {
        let request = json!({
            "requestedBy": {"kind": "human", "id": "somebody"},
            "agentKind": "command",
            "prompt": "true",
            "pool": "default",
            "secretNames": [],
            "network": {"defaultDeny": true, "allowHosts": []},
            "budget": {},
            "disclosure": "minimal-context",
            "execution": {"kind": "shell", "script": "true"},
            "isolation": isolation,
            "workspace": self.workspace,
        });
        let answer = http.post_as("/v1/runs", &self.admin, &json!({"request": request})).unwrap();
        answer["runId"].as_str().unwrap().to_owned()
    }

    /// Waits for the bundle and checks that the run went well.
    fn bundle(&self, http: &Http, run: &str, pause: Duration) {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            match http.get(&format!("/v1/runs/{run}/bundle"), Some(&self.admin)) {
                Ok(bundle) => {
                    assert_eq!(bundle["receipt"]["status"], "completed", "{bundle}");
                    return;
                }
                Err(error) => assert!(Instant::now() < until, "{run}: {error}"),
            }
            std::thread::sleep(pause);
        }
    }

    fn latency(&self, isolation: &str) {
        let http = Http::new(&self.url, None).unwrap();
        let mut times = Vec::new();
        for round in 0..SINGLE + 5 {
            let asked = Instant::now();
            let run = self.submit(&http, isolation);
            self.bundle(&http, &run, Duration::from_millis(1));
            if round >= 5 {
                times.push(asked.elapsed());
            }
        }
        times.sort_unstable();
        let (p50, p90) = (times[times.len() / 2], times[times.len() * 9 / 10]);
        println!("{isolation}: submission to bundle p50 {p50:?}, p90 {p90:?}");
    }

    fn throughput(&self, isolation: &str, runs: usize) {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..SUBMITTERS {
                scope.spawn(|| {
                    let http = Http::new(&self.url, None).unwrap();
                    let all: Vec<_> =
                        (0..runs / SUBMITTERS).map(|_| self.submit(&http, isolation)).collect();
                    for run in all {
                        self.bundle(&http, &run, Duration::from_millis(20));
                    }
                });
            }
        });
        let per_second = (runs / SUBMITTERS * SUBMITTERS) as f64 / began.elapsed().as_secs_f64();
        println!("{isolation}: {per_second:.0} runs/s over {runs} runs");
    }
}

fn set_policy(warrant: &Path, root: &Path) {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/policy.json");
    let vectors: Value = serde_json::from_slice(&fs::read(vectors).unwrap()).unwrap();
    let folder = root.join("policy");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("document.json"), vectors["defaultPolicy"].to_string()).unwrap();
    let status = Command::new(warrant)
        .arg("--home")
        .arg(root.join("home"))
        .args(["policy", "set", folder.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}

/// Makes a small repository and uploads what a run of it needs.
fn upload(root: &Path, url: &str, admin: &str) -> Value {
    let repo = root.join("repo");
    fs::create_dir(&repo).unwrap();
    fs::write(repo.join("README.md"), "# fleet\n").unwrap();
    for words in [&["init", "-q", "."][..], &["add", "-A"], &["commit", "-q", "-m", "one"]] {
        let mut git = Command::new("git");
        git.current_dir(&repo).args(["-c", "user.name=t", "-c", "user.email=t@localhost"]);
        assert!(git.args(words).status().unwrap().success());
    }
    let (blobs, scratch) = (root.join("blobs"), root.join("scratch"));
    fs::create_dir(&blobs).unwrap();
    fs::create_dir(&scratch).unwrap();
    let options = CaptureOptions {
        scratch: &scratch,
        allow_untracked: &[],
        deny_patterns: &[],
        history: History::Commit,
        progress: &quiet,
    };
    let captured = capture(&repo, &BlobDirectory::open(blobs.clone()).unwrap(), &options).unwrap();
    let http = Http::new(url, None).unwrap();
    for entry in fs::read_dir(&blobs).unwrap() {
        http.put_blob(&entry.unwrap().path(), admin).unwrap();
    }
    serde_json::to_value(captured.manifest).unwrap()
}
