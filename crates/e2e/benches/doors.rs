//! Figures of the doors: decisions through the HELM door, from create to the first output through
//! the E2B door, and the memory of a hundred living sandboxes.
//!
//! ```text
//! cargo bench --workspace --bench doors -- [decisions [STORED]] [first-output] [memory]
//! ```
//!
//! Everything is real: sockets, policy, jails, store. The client is in the same process, on the
//! same processors, so the figures are those of the whole machine.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "a benchmark"
)]

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::sync::watch;
use warrant_govern::Desk;
use warrant_govern::live::{Live, TokenFile};
use warrant_plane::doors::{Hall, in_front_of};
use warrant_sandbox::Namespace;

const CONNECTIONS: usize = 8;
const ROUND: u64 = 4_000;

/// A home with doors, served as the plane serves them.
struct House {
    _home: TempDir,
    live: Arc<Live>,
    address: SocketAddr,
    token: String,
    _stop: watch::Sender<bool>,
}

impl House {
    fn open() -> Self {
        let home = tempfile::tempdir().unwrap();
        let desk = Arc::new(Desk::open(Some(&home.path().join("home"))).unwrap());
        let live = Arc::new(Live::open(Arc::clone(&desk), Arc::new(Namespace::new())).unwrap());
        let tokens = TokenFile::of(desk.plane().home().root());
        let token = tokens.issue("bench").unwrap();
        let (workshop, keeper) = (Arc::clone(&live) as _, Arc::new(tokens));
        let hall = Hall { workshop, keeper, examiner: None };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(32)
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let routes = in_front_of(axum::Router::new(), &hall);
                let options = warrant_plane::http::ServeOptions {
                    tls: None,
                    admission: Arc::default(),
                    shutdown: stopped,
                };
                warrant_plane::http::serve(listener, routes, options).await.unwrap();
            });
        });
        Self { _home: home, live, address, token, _stop: stop }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { reader: BufReader::new(stream), token: self.token.clone() }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.live.close();
    }
}

/// One connection that is kept.
struct Client {
    reader: BufReader<TcpStream>,
    token: String,
}

impl Client {
    fn post(&mut self, path: &str, body: &str) -> (u16, String) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        self.reader.get_mut().write_all(head.as_bytes()).unwrap();
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).unwrap();
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some(rest) = line.strip_prefix("content-length:") {
                length = rest.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).unwrap();
        (status, String::from_utf8(body).unwrap())
    }
}

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wants = |name: &str| wanted.is_empty() || wanted.iter().any(|word| word == name);
    if wants("first-output") {
        first_output();
    }
    if wants("memory") {
        memory();
    }
    if wants("decisions") {
        let stored = wanted.iter().find_map(|word| word.parse().ok()).unwrap_or(100_000);
        decisions(stored);
    }
}

fn decisions(stored: u64) {
    let house = House::open();
    let (status, made) = house.client().post("/sandbox", "{}");
    assert_eq!(status, 200, "{made}");
    let id = made.split("\"sandboxId\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let before = round(&house, &id, Pace::Saturated);
    println!("decisions, {ROUND} on a new store: {before}");
    println!("decisions, by four clients, a new store: {}", round(&house, &id, Pace::Relaxed));
    println!("decisions, as they come, a new store: {}", round(&house, &id, Pace::Offered));
    let mut kept = 3 * ROUND;
    while kept + ROUND < stored {
        kept += ROUND;
        let each = round(&house, &id, Pace::Saturated);
        if kept.is_multiple_of(5 * ROUND) {
            println!("decisions, after {kept}: {each}");
        }
    }
    let after = round(&house, &id, Pace::Saturated);
    println!("decisions, {ROUND} after {kept} stored: {after}");
    println!("decisions, by four clients, after {kept}: {}", round(&house, &id, Pace::Relaxed));
    println!("decisions, as they come, after {kept}: {}", round(&house, &id, Pace::Offered));
}

/// How fast questions are asked.
#[derive(Clone, Copy, PartialEq)]
enum Pace {
    /// The next as soon as one is answered: what the house can do at most.
    Saturated,
    /// The same by half as many clients.
    Relaxed,
    /// A thousand a second, each at its own moment; late is counted from that moment.
    Offered,
}

/// Has a round of decisions made, over eight connections or four; returns the figures as a line.
fn round(house: &House, id: &str, pace: Pace) -> String {
    const OFFERED: Duration = Duration::from_millis(1);
    let (next, count) = (AtomicU64::new(0), ROUND);
    let began = Instant::now();
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let work = || {
            let (mut client, mut times) = (house.client(), Vec::new());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return times;
                }
                let content = format!(
                    r#"{{\"type\":\"sandbox_exec_intent\",\"provider\":\"daytona\",\"sandbox_id\":\"{id}\",\"command\":[\"echo\",\"hello\"]}}"#
                );
                let body = format!(
                    r#"{{"model":"helm-governance","messages":[{{"role":"user","content":"{content}"}}]}}"#
                );
                let asked = match pace {
                    Pace::Saturated | Pace::Relaxed => Instant::now(),
                    Pace::Offered => began + OFFERED * u32::try_from(number).unwrap(),
                };
                std::thread::sleep(asked.saturating_duration_since(Instant::now()));
                let (status, said) = client.post("/v1/chat/completions", &body);
                times.push(asked.elapsed());
                assert!(status == 200 && said.contains("tool_calls"), "{status} {said}");
            }
        };
        let clients = if pace == Pace::Relaxed { CONNECTIONS / 2 } else { CONNECTIONS };
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let per_second = count as f64 / began.elapsed().as_secs_f64();
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    format!("{per_second:.0}/s, p50 {:.2} ms, p99 {:.2} ms", at(0.5), at(0.99))
}

fn first_output() {
    let house = House::open();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/doors");
    let output = Command::new("node")
        .arg("e2b-first-output.mjs")
        .current_dir(folder)
        .env("E2B_API_URL", format!("http://{}", house.address))
        .env("E2B_SANDBOX_URL", format!("http://{}", house.address))
        .env("E2B_API_KEY", &house.token)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    println!("create to first output, official E2B SDK: {}", said.trim().trim_start_matches("ok "));
}

fn memory() {
    let house = House::open();
    let before = own_pss_kib();
    let ids: Vec<String> = (0..100)
        .map(|_| {
            let (status, made) = house.client().post("/sandbox", "{}");
            assert_eq!(status, 200, "{made}");
            made.split("\"sandboxId\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
        })
        .collect();
    println!("100 sandboxes alive: {} KiB, {before} KiB before", own_pss_kib());
    let clients: Vec<_> = ids
        .iter()
        .map(|id| {
            let content = format!(
                r#"{{\"type\":\"sandbox_exec_intent\",\"sandbox_id\":\"{id}\",\"command\":[\"sleep\",\"600\"]}}"#
            );
            let body = format!(r#"{{"messages":[{{"role":"user","content":"{content}"}}]}}"#);
            let mut client = house.client();
            assert_eq!(client.post("/v1/chat/completions", &body).0, 200);
            let path = format!("/sandbox/{id}/process/execute");
            let body = r#"{"command":"sleep 600"}"#;
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
                 content-length: {}\r\n\r\n{body}",
                house.token,
                body.len()
            );
            client.reader.get_mut().write_all(head.as_bytes()).unwrap();
            client
        })
        .collect();
    let began = Instant::now();
    while naps() < ids.len() && began.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("100 sandboxes with a command each ({} run): {} KiB", naps(), own_pss_kib());
    drop(clients);
}

/// Returns how many `sleep 600` this process has below it.
fn naps() -> usize {
    let is_nap = |pid: &&u32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x00600\x00")
    };
    family().iter().filter(is_nap).count()
}

/// Returns this process and everything below it.
fn family() -> Vec<u32> {
    let mut parents: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        if let Some(parent) = parent.and_then(|parent| parent.parse().ok()) {
            parents.entry(parent).or_default().push(pid);
        }
    }
    let mut family = vec![std::process::id()];
    let mut next = 0;
    while let Some(pid) = family.get(next) {
        let children = parents.get(pid).cloned().unwrap_or_default();
        family.extend(children);
        next += 1;
    }
    family
}

fn own_pss_kib() -> u64 {
    let pss = |pid: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find(|line| line.starts_with("Pss:"))?.to_owned();
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    family().iter().filter_map(pss).sum()
}
