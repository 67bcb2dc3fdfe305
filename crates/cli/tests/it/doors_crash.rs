//! A plane with open doors as a process: killed while sandboxes live, the next start leaves nothing
//! of them; and the boundary it has, examined through the HELM door.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::machine::Machine;
use crate::mcp::clients;
use crate::{stderr, warrant};

/// How long the kernel may take to end the jails of a dead plane, and a client to begin.
const PATIENCE: Duration = Duration::from_secs(60);

/// A plane that does not outlive its test.
struct Plane(Child);

impl Drop for Plane {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(machine: &Machine, address: &str) -> (Plane, String) {
    let mut child = warrant()
        .args(["plane", "start", "--doors", "--listen", address, "--json"])
        .env("WARRANT_HOME", machine.home())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let hello: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
    (Plane(child), hello["url"].as_str().unwrap().to_owned())
}

fn processes_with(word: &str) -> Vec<PathBuf> {
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    all.filter(|path| {
        let cmdline = fs::read(path.join("cmdline")).unwrap_or_default();
        cmdline.windows(word.len()).any(|window| window == word.as_bytes())
    })
    .collect()
}

/// Returns what is left of the control groups of one process.
fn groups_of(pid: u32) -> Vec<PathBuf> {
    fn search(directory: &Path, prefix: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(prefix) {
                    found.push(entry.path());
                }
                search(&entry.path(), prefix, found);
            }
        }
    }
    let mut found = Vec::new();
    search(Path::new("/sys/fs/cgroup"), &format!("warrant-{pid}-"), &mut found);
    found
}

#[track_caller]
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_killed_plane_leaves_nothing_of_living_sandboxes() {
    let machine = Machine::new();
    let issued = machine.json(&["doors", "issue", "sdk", "--json"]);
    let token = issued["token"].as_str().unwrap();
    let (mut plane, url) = start(&machine, "127.0.0.1:0");
    // No other test naps for that long.
    let nap = format!("{}.25", 10_000 + std::process::id());
    let mut client = Command::new("timeout")
        .args(["180", "node", "e2b-crash.mjs", &nap])
        .current_dir(clients("doors"))
        .env("E2B_API_URL", &url)
        .env("E2B_SANDBOX_URL", &url)
        .env("E2B_API_KEY", token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(client.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let made: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
    assert_eq!(made["sandboxes"].as_array().map(Vec::len), Some(2), "{line}");
    // Two in each background command, one in the terminal: bash and the client name it, too.
    let naps = || {
        let is_nap = |path: &PathBuf| {
            fs::read(path.join("cmdline")).is_ok_and(|line| line.starts_with(b"sleep\0"))
        };
        processes_with(&nap).iter().filter(|path| is_nap(path)).count()
    };
    wait_for("the commands begin", || naps() == 5);
    let pid = plane.0.id();
    assert!(!groups_of(pid).is_empty(), "the commands have control groups");
    plane.0.kill().unwrap();
    plane.0.wait().unwrap();
    wait_for("every process of the sandboxes ends", || naps() == 0);

    let (mut second, again) = start(&machine, url.trim_start_matches("http://"));
    assert_eq!(again, url);
    client.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let mut rest = String::new();
    said.read_line(&mut rest).unwrap();
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success() && rest == "ok\n", "{rest}{}", stderr(&output));
    check_disk(&machine, pid);
    check_receipts(&machine);
    let pid = rustix::process::Pid::from_child(&second.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(second.0.wait().unwrap().success());
}

#[track_caller]
fn check_disk(machine: &Machine, pid: u32) {
    let directories = |name: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(machine.home().join("data").join(name)).unwrap();
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    };
    assert_eq!(directories("live"), Vec::<PathBuf>::new());
    assert_eq!(directories("sessions"), Vec::<PathBuf>::new());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(machine.home().to_str().unwrap()), "{mounts}");
    assert_eq!(groups_of(pid), Vec::<PathBuf>::new());
}

/// Two lives and three commands were cut off: each has one receipt that says so, and verifies.
#[track_caller]
fn check_receipts(machine: &Machine) {
    let runs = machine.json(&["runs", "--json", "--limit", "1000"]);
    let runs = runs["runs"].as_array().unwrap();
    let lost: Vec<&str> = runs
        .iter()
        .filter(|run| run["state"] == "lost")
        .map(|run| run["prompt"].as_str().unwrap())
        .collect();
    let lives = lost.iter().filter(|prompt| prompt.starts_with("sandbox create")).count();
    assert_eq!((lives, lost.len()), (2, 5), "{lost:?}");
    for run in runs {
        assert_eq!(run["hasReceipt"], true, "{run}");
        let id = run["runId"].as_str().unwrap();
        let verified = machine.run(&["verify", id]);
        assert_eq!(verified.status.code(), Some(0), "{id}: {}", stderr(&verified));
    }
}

/// Asks a door; returns the status, the head and the body. Fails when nobody answers.
fn ask_door(
    (url, token): (&str, &str),
    (method, path): (&str, &str),
    body: &str,
) -> std::io::Result<(u16, String, Value)> {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://"))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         authorization: Bearer {token}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let cut = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(cut)?;
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Ok((status, head.to_owned(), serde_json::from_str(body).map_err(|_| cut())?))
}

#[test]
fn decisions_that_a_killed_plane_answered_are_kept() {
    let machine = Machine::new();
    let issued = machine.json(&["doors", "issue", "sdk", "--json"]);
    let token = issued["token"].as_str().unwrap();
    let (mut plane, url) = start(&machine, "127.0.0.1:0");
    let door = (url.as_str(), token);
    let (_, _, made) = ask_door(door, ("POST", "/sandbox"), "{}").unwrap();
    let id = made["sandboxId"].as_str().unwrap();
    let intent = format!(
        r#"{{\"type\":\"sandbox_exec_intent\",\"sandbox_id\":\"{id}\",\"command\":[\"echo\",\"hi\"]}}"#
    );
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{intent}"}}]}}"#);
    let header = |head: &str, name: &str| -> String {
        let is_it = |line: &&str| line.to_ascii_lowercase().starts_with(name);
        let line = head.lines().find(is_it).unwrap_or_else(|| panic!("{name}: {head}"));
        line[name.len() + 1..].trim().to_owned()
    };
    // Several ask until nobody answers; the plane is killed in the middle of that.
    let answered = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Ok((200, head, _)) =
                    ask_door(door, ("POST", "/v1/chat/completions"), &body)
                {
                    let names =
                        ["x-helm-lamport-clock", "x-helm-receipt-id", "x-helm-proofgraph-node"];
                    answered.lock().unwrap().push(names.map(|name| header(&head, name)));
                }
            });
        }
        wait_for("decisions are answered", || answered.lock().unwrap().len() >= 40);
        plane.0.kill().unwrap();
        plane.0.wait().unwrap();
    });
    let mut answered = answered.into_inner().unwrap();
    answered.sort_by_key(|[clock, ..]| clock.parse::<u64>().unwrap());
    let (_second, again) = start(&machine, "127.0.0.1:0");
    let path = format!("/api/v1/proofgraph/sessions/{id}/receipts?limit=1000");
    let (status, _, kept) = ask_door((&again, token), ("GET", &path), "").unwrap();
    assert_eq!(status, 200, "{kept}");
    let kept = kept.as_array().unwrap_or_else(|| panic!("{kept}"));
    for [clock, run, node] in &answered {
        let clock: u64 = clock.parse().unwrap();
        let record = kept.iter().find(|record| record["lamport_clock"] == clock);
        let record = record.unwrap_or_else(|| panic!("{clock} of {} is gone", answered.len()));
        assert_eq!(
            (record["receipt_id"].as_str(), record["blob_hash"].as_str()),
            (Some(run.as_str()), Some(node.as_str()))
        );
    }
    for (place, record) in (1_u64..).zip(kept) {
        assert_eq!(record["lamport_clock"], place);
        let before = kept.get(usize::try_from(place).unwrap().wrapping_sub(2));
        let before = before.map_or(&Value::Null, |before| &before["blob_hash"]);
        assert_eq!(record["prev_hash"].as_str().unwrap(), before.as_str().unwrap_or_default());
    }
    let last = &answered.last().unwrap()[1];
    let verified = machine.run(&["verify", last]);
    assert_eq!(verified.status.code(), Some(0), "{}", stderr(&verified));
}

#[test]
fn the_helm_door_examines_its_boundary_for_real() {
    let machine = Machine::new();
    let issued = machine.json(&["doors", "issue", "sdk", "--json"]);
    let token = issued["token"].as_str().unwrap();
    let (_plane, url) = start(&machine, "127.0.0.1:0");
    let ask = |method: &str, path: &str, body: &str| -> (u16, Value) {
        let (status, _, body) = ask_door((&url, token), (method, path), body).unwrap();
        (status, body)
    };
    let (status, report) = ask("POST", "/api/v1/conformance/run", r#"{"level":"L1"}"#);
    assert_eq!(status, 200, "{report}");
    assert_eq!(report["verdict"], "PASS", "{report}");
    assert!(report["gates"].as_u64().unwrap() >= 5, "{report}");
    let path = format!("/api/v1/conformance/reports/{}", report["report_id"].as_str().unwrap());
    assert_eq!(ask("GET", &path, ""), (200, report));
    assert_eq!(ask("POST", "/api/v1/conformance/run", r#"{"level":"L9"}"#).0, 400);
    assert_eq!(ask("GET", "/api/v1/conformance/reports/none", "").0, 404);
}
