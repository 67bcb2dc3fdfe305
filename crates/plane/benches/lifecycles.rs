//! Whole lifecycles over HTTP on disk with full sync: submit, claim, start, complete, with the
//! load generator in the same process. Also dispatch (submission to a runner holding the
//! contract), pages of many runs, and resident memory.
//!
//! ```text
//! lifecycles [SECONDS]      all of it, the load for so many seconds
//! lifecycles pages          pages of 100 000 runs, by whatever a list is narrowed by
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::too_many_arguments,
    missing_docs,
    reason = "a measurement"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use warrant_plane::home::{Home, fresh_key};
use warrant_plane::http::settings::Settings;
use warrant_plane::http::{PlaneService, ServeOptions, keep_house, router, serve};
use warrant_plane::random;
use warrant_protocol::{
    Chain, ChainedEvent, Contract, Digest, Event, Sealer, Signed, Signer, SigningKey, fold,
};

const CLIENTS: usize = 32;

struct Http {
    stream: BufReader<TcpStream>,
}

impl Http {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    fn call(&mut self, method: &str, path: &str, token: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        serde_json::from_slice(&self.send(method, path, token, &body)).unwrap()
    }

    /// Sends a request and returns the body of the answer, which must be a good one.
    fn send(&mut self, method: &str, path: &str, token: &str, body: &str) -> Vec<u8> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        let mut length = 0;
        let mut status = String::new();
        self.stream.read_line(&mut status).unwrap();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            }
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).unwrap();
        assert!(
            status.contains(" 200 "),
            "{method} {path}: {status}{}",
            String::from_utf8_lossy(&answer)
        );
        answer
    }
}

fn request(script: &str) -> Value {
    json!({"request": {
        "requestedBy": {"kind": "human", "id": "x"},
        "agentKind": "command", "prompt": script, "pool": "default", "secretNames": [],
        "workspace": {
            "version": "warrant.manifest.v1",
            "baseRef": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
            "bundleHash": Digest::of(b""),
            "untrackedFiles": [], "deniedPatterns": [], "deniedPaths": [],
        },
        "network": {"defaultDeny": true, "allowHosts": []},
        "budget": {}, "disclosure": "redacted",
    }})
}

struct Runner {
    http: Http,
    key: SigningKey,
    id: String,
    token: String,
}

impl Runner {
    fn enroll(address: SocketAddr, enroll: &str) -> Self {
        let mut http = Http::connect(address);
        let key = fresh_key().unwrap();
        let body =
            json!({"enrollToken": enroll, "publicKeyPem": key.public().pem(), "pool": "default"});
        let answer = http.call("POST", "/v1/runners/enroll", "", &body);
        let text = |name: &str| answer[name].as_str().unwrap().to_owned();
        Self { http, key, id: text("runnerId"), token: text("runnerToken") }
    }

    fn claim(&mut self, wait_ms: u64) -> Value {
        let body = json!({
            "runnerToken": self.token, "pool": "default", "leases": true, "waitMs": wait_ms,
        });
        self.http.call("POST", "/v1/claims", "", &body)
    }

    fn finish(&mut self, mut leased: Value) {
        let contract = Contract::from_value(leased["contract"].take()).unwrap();
        let mut chain = Chain::new(contract.hash());
        let take = |chain: &mut Chain, events: Value| {
            let Value::Array(events) = events else { return };
            for event in events {
                chain.push(ChainedEvent::from_value(event).unwrap()).unwrap();
            }
        };
        take(&mut chain, leased["events"].take());
        let run = leased["runId"].as_str().unwrap();
        let token = leased["claimToken"].as_str().unwrap();
        let start = format!("/v1/runs/{run}/start");
        let mut started = self.http.call("POST", &start, token, &json!({"claimToken": token}));
        take(&mut chain, started["events"].take());
        chain.append(random::now().unwrap(), &Event::RunCompleted {}).unwrap();
        let last = serde_json::to_string(chain.events().last().unwrap()).unwrap();
        let sealer = Sealer::Runner {
            runner_id: self.id.parse().unwrap(),
            key_id: self.key.public().id().clone(),
        };
        let body = fold(&contract, &chain, &sealer).unwrap();
        let receipt = Signed::seal(&body, Signer::Runner, &self.key).unwrap();
        let complete = format!("/v1/runs/{run}/complete");
        let receipt = serde_json::to_string(&receipt).unwrap();
        let body = format!(r#"{{"claimToken":"{token}","events":[{last}],"receipt":{receipt}}}"#);
        self.http.send("POST", &complete, token, &body);
    }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn percentile(sorted: &[Duration], share: usize) -> Duration {
    sorted[(sorted.len() - 1) * share / 100]
}

/// Puts so many runs of different kinds into the store of a home.
fn fill(home: &std::path::Path, many: u32) {
    let connection = rusqlite::Connection::open(home.join("data/plane.db")).unwrap();
    connection
        .execute_batch(&format!(
            "WITH RECURSIVE number(n) AS
               (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {many})
             INSERT INTO runs (id, state, pool, agent_kind, requested_by, request_hash,
               policy_hash, created_at, updated_at)
             SELECT printf('run_%08d', n),
               CASE n % 20 WHEN 0 THEN 'failed' WHEN 1 THEN 'denied' WHEN 2 THEN 'lost'
                 ELSE 'completed' END,
               CASE WHEN n % 1000 = 3 THEN 'rare' ELSE 'default' END,
               CASE n % 2 WHEN 0 THEN 'command' ELSE 'codex' END,
               'human:' || (n % 7), zeroblob(32), zeroblob(32), n, n
             FROM number;
             INSERT INTO papers (run, prompt, judgment, request, contract)
             SELECT seq, 'task ' || seq, '{{\"requirements\":[]}}',
               '{{\"pad\":\"' || hex(zeroblob(300)) || '\"}}', hex(zeroblob(500))
             FROM runs;"
        ))
        .unwrap();
}

fn pages(address: SocketAddr, admin: &str) {
    let mut http = Http::connect(address);
    for query in [
        "",
        "cursor=50000",
        "state=completed",
        "status=failed",
        "pool=rare",
        "requester=human:3",
        "agent=codex",
        "pool=rare&agent=codex&requester=human:3",
        "pool=rare&agent=codex&state=completed",
        "pool=default&requester=human:3&state=lost",
        "pool=rare&agent=command&state=completed",
        "pool=rare&agent=codex&requester=human:3&state=completed",
        "pool=none&agent=codex&state=completed",
        "pool=default&agent=none&requester=human:3",
    ] {
        let mut count = 0;
        let mut times: Vec<Duration> = (0..31)
            .map(|_| {
                let began = Instant::now();
                let page =
                    http.call("GET", &format!("/v1/runs?limit=100&{query}"), admin, &Value::Null);
                count = page["runs"].as_array().unwrap().len();
                began.elapsed()
            })
            .collect();
        times.sort();
        let (p50, worst) = (percentile(&times, 50), percentile(&times, 100));
        println!("page of 100 000, {query:?}: {count} runs, p50 {p50:?}, worst {worst:?}");
    }
}

fn main() {
    let wants_pages = std::env::args().any(|word| word == "pages");
    let seconds = std::env::args().skip(1).find_map(|text| text.parse().ok()).unwrap_or(10);
    let dir = tempfile::Builder::new().prefix("plane-bench").tempdir_in(".").unwrap();
    let home = Home::open_at(dir.path().join("home"), None).unwrap();
    let folder = dir.path().join("home/policy");
    std::fs::create_dir(&folder).unwrap();
    let policy = json!({
        "version": "warrant.policy.v1",
        "runners": {"allowPools": ["default"]},
        "agents": {"allow": ["command"]},
        "dataClasses": [],
        "network": {"defaultDeny": true, "allowHosts": []},
        "secrets": {"releasable": []},
        "budget": {"maxSpendUsd": 25, "maxDurationMin": 60},
        "consent": [],
        "retention": {"receiptsDays": 365, "artifactsDays": 90},
    });
    std::fs::write(folder.join("document.json"), policy.to_string()).unwrap();
    let mut settings = Settings::fresh().unwrap();
    settings.limits =
        serde_json::from_value(json!({"requestsPerSecond": 1_000_000, "requestBurst": 1_000_000}))
            .unwrap();
    let (admin, enroll) = (settings.admin_token.clone(), settings.enroll_token.clone());
    let service = Arc::new(PlaneService::open(home, settings).unwrap());
    let (stop, stopped) = watch::channel(false);
    let (tell, told) = std::sync::mpsc::channel();
    let shared = Arc::clone(&service);
    let serving = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(32)
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            tokio::spawn(keep_house(Arc::clone(&shared)));
            let admission = shared.admission();
            let options = ServeOptions { tls: None, admission, shutdown: stopped };
            serve(listener, router(shared), options).await.unwrap();
        });
    });
    let address = told.recv().unwrap();
    if wants_pages {
        fill(&dir.path().join("home"), 100_000);
        pages(address, &admin);
    } else {
        println!("resident, idle: {} KiB", resident_kib());
        dispatch(address, &admin, &enroll);
        lifecycles(address, (&admin, &enroll), Duration::from_secs(seconds));
        println!("resident, after load: {} KiB", resident_kib());
    }
    service.drain();
    stop.send_replace(true);
    serving.join().unwrap();
}

/// From the submission to the runner that waits holding the contract.
fn dispatch(address: SocketAddr, admin: &str, enroll: &str) {
    let mut times = Vec::new();
    let mut runner = Runner::enroll(address, enroll);
    let mut http = Http::connect(address);
    for number in 0..200 {
        let (sender, receiver) = std::sync::mpsc::channel();
        let took = std::thread::scope(|scope| {
            let runner = &mut runner;
            let waiting = scope.spawn(move || {
                sender.send(()).unwrap();
                let leased = runner.claim(10_000);
                let held = Instant::now();
                runner.finish(leased);
                held
            });
            receiver.recv().unwrap();
            std::thread::sleep(Duration::from_millis(3));
            let began = Instant::now();
            http.call("POST", "/v1/runs", admin, &request(&format!("echo {number}")));
            waiting.join().unwrap().duration_since(began)
        });
        times.push(took);
    }
    times.sort();
    let (p50, p99) = (percentile(&times, 50), percentile(&times, 99));
    println!("submission to a runner holding the contract: p50 {p50:?}, p99 {p99:?}");
}

fn lifecycles(address: SocketAddr, (admin, enroll): (&str, &str), time: Duration) {
    let done = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let done = &done;
            scope.spawn(move || {
                let mut runner = Runner::enroll(address, enroll);
                let mut http = Http::connect(address);
                let body = request(&format!("echo {client}")).to_string();
                while began.elapsed() < time {
                    http.send("POST", "/v1/runs", admin, &body);
                    let leased = runner.claim(5_000);
                    if leased.get("empty").is_none() {
                        runner.finish(leased);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let (count, took) = (done.load(Ordering::Relaxed), began.elapsed());
    println!("lifecycles: {count} in {took:?}: {:.0}/s", count as f64 / took.as_secs_f64());
}
