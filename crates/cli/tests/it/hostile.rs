//! The memory of a plane, compat APIs and MCP included, while strangers or the holder of one token
//! send the worst bodies they can. The limit is the one that operators are promised.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::machine::Machine;
use crate::warrant;

/// What a plane may take at most, in KiB.
const MOST_KIB: u64 = 300_000;

/// How long one call may take.
const BOUND: Duration = Duration::from_secs(120);

struct ServedPlane {
    machine: Machine,
    child: Child,
    address: String,
    admin: String,
}

impl Drop for ServedPlane {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ServedPlane {
    fn start() -> Self {
        let machine = Machine::new();
        let mut child = warrant()
            .args(["plane", "start", "--doors", "--listen", "127.0.0.1:0", "--json"])
            .env("WARRANT_HOME", machine.home())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let hello: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        let address = hello["url"].as_str().unwrap().trim_start_matches("http://").to_owned();
        let config = std::fs::read(machine.home().join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let admin = config["adminToken"].as_str().unwrap().to_owned();
        Self { machine, child, address, admin }
    }

    /// Returns the most memory that the plane had so far, in KiB.
    fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Sends a body as far as the plane takes it and returns the status.
    fn send(&self, line: &str, header: &str, body: &[u8]) -> u16 {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream.set_write_timeout(Some(BOUND)).unwrap();
        let head = format!(
            "{line} HTTP/1.1\r\nhost: {}\r\n{header}content-type: application/json\r\n\
             accept: application/json, text/event-stream\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    /// Sends bodies at once, each with what comes before it.
    fn send_all(&self, calls: &[(&str, &str, &[u8])]) -> Vec<u16> {
        std::thread::scope(|scope| {
            let sending: Vec<_> = calls
                .iter()
                .map(|(line, header, body)| scope.spawn(|| self.send(line, header, body)))
                .collect();
            sending.into_iter().map(|sent| sent.join().unwrap()).collect()
        })
    }

    fn check(&self, what: &str) {
        assert_eq!(self.send("GET /v1/ready", "", b""), 200, "{what}: it still works");
        let peak = self.peak();
        assert!(peak < MOST_KIB, "{what}: the plane had {peak} KiB");
    }
}

fn arrays(start: &str, bytes: usize) -> Vec<u8> {
    let mut body = start.as_bytes().to_vec();
    while body.len() < bytes {
        body.extend_from_slice(b"[],");
    }
    body
}

#[test]
fn bodies_of_strangers_leave_the_memory_of_the_plane_flat() {
    let plane = ServedPlane::start();
    let before = plane.peak();
    let body = arrays("{\"events\":[", 20 << 20);
    let guess = "authorization: Bearer a-guess\r\n";
    let key = "x-api-key: a-guess\r\n";
    let lines = [
        ("POST /v1/runs/run_a/events", ""),
        ("POST /v1/runs/run_a/complete", ""),
        ("POST /v1/claims", ""),
        ("POST /v1/runners/enroll", ""),
        ("POST /v1/runs", guess),
        ("POST /ui/session", "x-warrant-page: 1\r\n"),
        ("POST /mcp", guess),
        ("POST /sandboxes", key),
    ];
    let calls: Vec<_> =
        lines.iter().cycle().take(64).map(|(line, header)| (*line, *header, &*body)).collect();
    let statuses = plane.send_all(&calls);
    // A sender that was still writing may not have heard its refusal.
    assert!(statuses.iter().all(|status| matches!(status, 0 | 400..500 | 503)), "{statuses:?}");
    plane.check("64 bodies without a token");
    let grown = plane.peak() - before;
    assert!(grown < 64 << 10, "the plane grew by {grown} KiB");
}

#[test]
fn bodies_of_one_token_s_holder_stay_within_the_plane_s_memory() {
    let plane = ServedPlane::start();
    let mcp = plane.machine.json(&[
        "doors",
        "issue",
        "mallory",
        "--scope",
        "mcp",
        "--workspace",
        plane.machine.work("").to_str().unwrap(),
        "--json",
    ]);
    let mcp = format!("authorization: Bearer {}\r\n", mcp["token"].as_str().unwrap());
    let e2b = plane.machine.json(&["doors", "issue", "eve", "--json"]);
    let e2b = format!("x-api-key: {}\r\n", e2b["token"].as_str().unwrap());
    let admin = format!("authorization: Bearer {}\r\n", plane.admin);
    let dense = arrays("{\"request\":[", 20 << 20);
    // As many values as are taken, and as many bytes.
    let mut full = arrays("{\"request\":[", 3 * 290_000);
    full.extend_from_slice(format!("\"{}\"]}}", "x".repeat(20 << 20)).as_bytes());
    let text = json!({"request": "x".repeat(20 << 20)}).to_string().into_bytes();
    let message = arrays("{\"jsonrpc\":\"2.0\",\"params\":[", 4_000_000);
    let file = vec![b'x'; 60 << 20];
    let mut calls: Vec<(&str, &str, &[u8])> = Vec::new();
    for _ in 0..6 {
        calls.push(("POST /v1/runs", &admin, &dense));
        calls.push(("POST /v1/runs", &admin, &full));
        calls.push(("POST /v1/runs", &admin, &text));
        calls.push(("PUT /v1/policy", &admin, &dense));
        calls.push(("POST /mcp", &mcp, &message));
        calls.push(("POST /sandboxes", &e2b, &dense));
        calls.push(("POST /sandboxes", &e2b, &file));
    }
    let statuses = plane.send_all(&calls);
    assert!(statuses.iter().all(|status| matches!(status, 0 | 400..500 | 503)), "{statuses:?}");
    plane.check("bodies of one token's holder");
}
