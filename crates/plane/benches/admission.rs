//! What others notice of slow and hostile clients, and how fast an export is. The plane is a
//! process of its own, on disk with full sync.
//!
//! ```text
//! admission [SECONDS]      p50 and p99 of submissions and renewals: quiet, beside 40 slow readers
//!                          and 40 slow writers, beside strangers and the holder of one token who
//!                          send hostile bodies; the plane's peak memory; the export
//! ```
//!
//! Hostile clients run as processes of the lowest priority: they would have machines of their own,
//! and what they cost themselves is not what the plane costs others.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a measurement"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use warrant_plane::home::{Home, fresh_key};
use warrant_plane::http::settings::{Limits, Settings};
use warrant_plane::http::{
    BLOCKING_THREADS, PlaneService, ServeOptions, keep_house, router, serve,
};
use warrant_protocol::{Chain, ChainedEvent, Contract, Digest, Event, Timestamp};

/// Clients whose latencies are measured.
const CLIENTS: usize = 2;

/// What a slow client sends or takes each second.
const SLOW_BYTES: usize = 100_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(place) = arguments.iter().position(|argument| argument == "serve") {
        return serve_at(Path::new(&arguments[place + 1]));
    }
    if let Some(place) = arguments.iter().position(|argument| argument == "attack") {
        let token = arguments.get(place + 2).map(String::as_str);
        return attack(&arguments[place + 1], token);
    }
    let seconds = arguments.iter().find_map(|text| text.parse().ok()).unwrap_or(8);
    let plane = Plane::start();
    let quiet = plane.measure("quiet", seconds);
    let slow = plane.slow_clients();
    plane.measure("beside 40 slow readers and 40 slow writers", seconds).beside(&quiet);
    slow.end();
    let strangers = plane.hostile(None);
    plane.measure("beside hostile bodies of 64 strangers", seconds).beside(&quiet);
    drop(strangers);
    let holder = plane.hostile(Some(&plane.mallory));
    plane.measure("beside 64 hostile bodies of one token's holder", seconds).beside(&quiet);
    drop(holder);
    println!("peak memory of the plane: {} MB", plane.peak_kib() / 1000);
    plane.export();
}

/// Serves a plane until nobody holds its stdin any more.
fn serve_at(directory: &Path) {
    let home = Home::open_at(directory.join("home"), None).unwrap();
    std::fs::create_dir(directory.join("home/policy")).unwrap();
    let policy = json!({
        "version": "warrant.policy.v1",
        "runners": {"allowPools": ["default"]}, "agents": {"allow": ["command"]},
        "dataClasses": [], "network": {"defaultDeny": true, "allowHosts": []},
        "secrets": {"releasable": []}, "budget": {"maxSpendUsd": 25, "maxDurationMin": 60},
        "consent": [], "retention": {"receiptsDays": 365, "artifactsDays": 90},
    });
    std::fs::write(directory.join("home/policy/document.json"), policy.to_string()).unwrap();
    let mut settings = Settings::fresh().unwrap();
    let auth_failures_per_minute = u32::MAX;
    settings.limits = Some(Limits { auth_failures_per_minute, ..Limits::default() });
    let tokens = json!({"admin": settings.admin_token, "enroll": settings.enroll_token});
    let service = Arc::new(PlaneService::open(home, settings).unwrap());
    let (stop, shutdown) = watch::channel(false);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .unwrap();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.send_replace(true);
    });
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        println!("{}", json!({"address": address, "tokens": tokens}));
        tokio::spawn(keep_house(Arc::clone(&service)));
        let options = ServeOptions { tls: None, admission: service.admission(), shutdown };
        serve(listener, router(service), options).await.unwrap();
    });
}

/// Sends hostile bodies over 64 connections at a time, until it is killed.
fn attack(address: &str, token: Option<&str>) {
    let mut body = b"{\"request\":[".to_vec();
    while body.len() < 20 << 20 {
        body.extend_from_slice(b"[],");
    }
    let lines = ["POST /v1/runs", "POST /v1/runs/run_a/complete", "POST /v1/claims"];
    let send = |number: usize| {
        let head = head(lines[number % lines.len()], token, body.len());
        let Ok(mut stream) = TcpStream::connect(address) else { return };
        if stream.write_all(head.as_bytes()).is_err() {
            return;
        }
        for piece in body.chunks(256 << 10) {
            if stream.write_all(piece).is_err() {
                break;
            }
        }
        let _ = stream.read(&mut [0; 1024]);
    };
    std::thread::scope(|scope| {
        for number in 0..64 {
            scope.spawn(move || {
                loop {
                    send(number);
                }
            });
        }
    });
}

struct Plane {
    child: Child,
    directory: tempfile::TempDir,
    address: String,
    admin: String,
    mallory: String,
    runner: String,
}

/// Clients in a process of their own, which ends with this.
struct Attackers(Child);

impl Drop for Attackers {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Clients that go on until they are told to end.
struct Clients {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    fn of(count: usize, client: impl Fn(usize, &AtomicBool) + Send + Sync + 'static) -> Self {
        let (is_over, client) = (Arc::new(AtomicBool::new(false)), Arc::new(client));
        let threads = (0..count).map(|number| {
            let (is_over, client) = (Arc::clone(&is_over), Arc::clone(&client));
            std::thread::spawn(move || client(number, &is_over))
        });
        Self { threads: threads.collect(), is_over }
    }

    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// Latencies in microseconds, sorted.
struct Measured {
    submits: Vec<u64>,
    renews: Vec<u64>,
}

impl Measured {
    fn beside(&self, quiet: &Self) {
        let ratio = |all: &[u64], quiet: &[u64]| at(all, 99) as f64 / at(quiet, 99).max(1) as f64;
        let submits = ratio(&self.submits, &quiet.submits);
        let renews = ratio(&self.renews, &quiet.renews);
        println!("    p99 against quiet: submit {submits:.1} x, renew {renews:.1} x");
    }
}

fn at(sorted: &[u64], percent: usize) -> u64 {
    sorted.get(sorted.len() * percent / 100).or(sorted.last()).copied().unwrap_or(0)
}

impl Plane {
    fn start() -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("serve")
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let hello: Value = serde_json::from_str(&line).unwrap();
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        let (address, admin) = (word(&hello["address"]), word(&hello["tokens"]["admin"]));
        let call = |path: &str, body: Value| {
            post(&address, path, Some(&admin), body.to_string().as_bytes()).1
        };
        let mallory = call("/v1/principals", json!({"name": "mallory", "role": "requester"}));
        let mallory = word(&mallory["token"]);
        let key = fresh_key().unwrap();
        let enroll = &hello["tokens"]["enroll"];
        let enroll =
            json!({"enrollToken": enroll, "publicKeyPem": key.public().pem(), "pool": "default"});
        let runner = word(&call("/v1/runners/enroll", enroll)["runnerToken"]);
        Self { child, directory, address, admin, mallory, runner }
    }

    fn peak_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    fn submit(&self) -> Value {
        json!({"request": {
            "requestedBy": {"kind": "human", "id": "x"},
            "agentKind": "command", "prompt": "true", "pool": "default", "secretNames": [],
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

    /// Submits a run and claims it; returns its id and claim token.
    fn claim(&self) -> Value {
        post(&self.address, "/v1/runs", Some(&self.admin), self.submit().to_string().as_bytes());
        let body = json!({"runnerToken": self.runner, "pool": "default", "leases": true});
        post(&self.address, "/v1/claims", Some(&self.runner), body.to_string().as_bytes()).1
    }

    fn measure(&self, what: &str, seconds: u64) -> Measured {
        let until = Instant::now() + Duration::from_secs(seconds);
        let results = std::thread::scope(|scope| {
            let clients: Vec<_> =
                (0..CLIENTS).map(|_| scope.spawn(|| self.measure_one(until))).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
        });
        let mut all = Measured { submits: Vec::new(), renews: Vec::new() };
        for (submits, renews) in results {
            all.submits.extend(submits);
            all.renews.extend(renews);
        }
        all.submits.sort_unstable();
        all.renews.sort_unstable();
        let ms = |sorted: &[u64], percent| at(sorted, percent) as f64 / 1000.0;
        println!(
            "{what}: {} pairs; submit p50 {:.2} ms, p99 {:.2} ms; renew p50 {:.2} ms, p99 {:.2} ms",
            all.renews.len(),
            ms(&all.submits, 50),
            ms(&all.submits, 99),
            ms(&all.renews, 50),
            ms(&all.renews, 99),
        );
        all
    }

    fn measure_one(&self, until: Instant) -> (Vec<u64>, Vec<u64>) {
        let held = self.claim();
        let renew = format!("/v1/runs/{}/renew", held["runId"].as_str().unwrap());
        let token = held["claimToken"].as_str().unwrap();
        let renewal = json!({ "claimToken": token }).to_string();
        let submission = self.submit().to_string();
        let (mut submits, mut renews) = (Vec::new(), Vec::new());
        let timed = |path: &str, token: &str, body: &str| {
            let began = Instant::now();
            let (status, answer) = post(&self.address, path, Some(token), body.as_bytes());
            assert_eq!(status, 200, "{path}: {answer}");
            began.elapsed().as_micros() as u64
        };
        while Instant::now() < until {
            submits.push(timed("/v1/runs", &self.admin, &submission));
            renews.push(timed(&renew, token, &renewal));
        }
        (submits, renews)
    }

    /// 40 clients that read a blob slowly, and 40 that write one.
    fn slow_clients(&self) -> Clients {
        let blob = vec![b'x'; 64 << 20];
        let (_, stored) = post(&self.address, "/v1/blobs", Some(&self.mallory), &blob);
        let path = format!("/v1/blobs/{}", stored["hash"].as_str().unwrap());
        let (address, token) = (self.address.clone(), self.mallory.clone());
        Clients::of(80, move |number, is_over| {
            let (line, length) = match number % 2 {
                0 => (format!("GET {path}"), 0),
                _ => ("POST /v1/blobs".to_owned(), 64 << 20),
            };
            let mut stream = open(&address, &line, Some(&token), length);
            let mut piece = vec![0; SLOW_BYTES / 10];
            while !is_over.load(Ordering::Relaxed) {
                match number % 2 {
                    0 => drop(stream.read(&mut piece)),
                    _ => drop(stream.write(&piece)),
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        })
    }

    /// 64 clients that send the worst bodies there are, one after the other.
    fn hostile(&self, token: Option<&str>) -> Attackers {
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(std::env::current_exe().unwrap());
        command.args(["attack", &self.address]).args(token);
        Attackers(command.stdin(Stdio::piped()).spawn().unwrap())
    }

    /// Exports 100 000 events, and reads them from SQLite.
    fn export(&self) {
        const EVENTS: usize = 100_000;
        let now = warrant_plane::random::now().unwrap();
        for _ in 0..EVENTS / 20_000 {
            let held = self.claim();
            let run = held["runId"].as_str().unwrap();
            let contract = Contract::from_value(held["contract"].clone()).unwrap();
            let mut chain = Chain::new(contract.hash());
            for event in held["events"].as_array().unwrap() {
                chain.push(ChainedEvent::from_value(event.clone()).unwrap()).unwrap();
            }
            for piece in 0..4 {
                let from = chain.events().len();
                for number in 0..5_000 {
                    let path = format!("src/{piece}/file-{number}.rs");
                    let at = Timestamp::from_unix_ms(now.unix_ms() + number).unwrap();
                    let content_hash = Digest::of(path.as_bytes());
                    chain.append(at, &Event::FileChanged { path, content_hash }).unwrap();
                }
                let events = &chain.events()[from..];
                let body = json!({"claimToken": held["claimToken"], "events": events}).to_string();
                let path = format!("/v1/runs/{run}/events");
                let token = held["claimToken"].as_str();
                let (status, answer) = post(&self.address, &path, token, body.as_bytes());
                assert_eq!(status, 200, "{answer}");
            }
        }
        let best = |work: &dyn Fn() -> usize| {
            (0..5)
                .map(|_| {
                    let began = Instant::now();
                    let count = work();
                    assert!(count >= EVENTS, "{count}");
                    began.elapsed()
                })
                .min()
                .unwrap()
        };
        let exported = best(&|| {
            let stream = open(&self.address, "GET /v1/export", Some(&self.admin), 0);
            let mut lines = 0;
            let mut reader = BufReader::with_capacity(1 << 20, stream);
            loop {
                let piece = reader.fill_buf().unwrap();
                lines += piece.iter().filter(|byte| **byte == b'\n').count();
                let (is_end, length) = (piece.ends_with(b"\r\n0\r\n\r\n"), piece.len());
                reader.consume(length);
                if is_end || length == 0 {
                    return lines;
                }
            }
        });
        let read = best(&|| self.read_twice());
        println!(
            "export of {EVENTS} events: {exported:.1?}; reading them from SQLite twice: {read:.1?}"
        );
    }

    fn read_twice(&self) -> usize {
        let path = self.directory.path().join("home/data/plane.db");
        let connection = rusqlite::Connection::open(path).unwrap();
        let mut count = 0;
        for _ in 0..2 {
            let mut statement = connection
                .prepare(
                    "SELECT events.seq, ts, hash, body, runs.id FROM events
                     JOIN runs ON runs.seq = events.run ORDER BY ts, events.run, events.seq",
                )
                .unwrap();
            let mut rows = statement.query([]).unwrap();
            let mut bytes = 0;
            count = 0;
            while let Some(row) = rows.next().unwrap() {
                let (body, run): (String, String) = (row.get(3).unwrap(), row.get(4).unwrap());
                bytes += body.len() + run.len();
                count += 1;
            }
            assert!(bytes > 0);
        }
        count
    }
}

fn open(address: &str, line: &str, token: Option<&str>, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(head(line, token, length).as_bytes()).unwrap();
    stream
}

fn head(line: &str, token: Option<&str>, length: usize) -> String {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    format!(
        "{line} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n{}\r\n",
        token.unwrap_or_default()
    )
}

fn post(address: &str, path: &str, token: Option<&str>, body: &[u8]) -> (u16, Value) {
    let mut stream = BufReader::new(open(address, &format!("POST {path}"), token, body.len()));
    stream.get_mut().write_all(body).unwrap();
    let (mut line, mut length) = (String::new(), 0);
    stream.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap().parse().unwrap();
    loop {
        line.clear();
        stream.read_line(&mut line).unwrap();
        let header = line.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).unwrap();
    (status, serde_json::from_slice(&answer).unwrap_or_default())
}
