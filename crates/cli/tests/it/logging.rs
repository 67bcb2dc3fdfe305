//! The log of a plane as an operator reads it: one line per request of every entry, causes of what
//! failed inside, one setting for every long-running command.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::machine::Machine;
use crate::{stderr, warrant};

/// A plane with every entry open that logs everything as JSON.
struct Logged {
    machine: Machine,
    child: Child,
    address: String,
    sdk: String,
    admin: String,
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Logged {
    fn start() -> Self {
        let machine = Machine::new();
        let issued = machine.json(&["doors", "issue", "sdk", "--json"]);
        let sdk = issued["token"].as_str().unwrap().to_owned();
        let log = fs::File::create(machine.work("../plane.log")).unwrap();
        let mut child = warrant()
            .args(["plane", "start", "--doors", "--listen", "127.0.0.1:0", "--json"])
            .args(["--log", "debug", "--log-format", "json"])
            .env("WARRANT_HOME", machine.home())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let hello: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        let address = hello["url"].as_str().unwrap().trim_start_matches("http://").to_owned();
        let config = fs::read(machine.home().join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let admin = config["adminToken"].as_str().unwrap().to_owned();
        Self { machine, child, address, sdk, admin }
    }

    /// Sends a request and returns its status, its id, and everything that came back.
    fn send(&self, line: &str, header: (&str, &str), body: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let (name, value) = header;
        write!(
            stream,
            "{line} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{name}: {value}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let id = text.lines().find_map(|line| line.strip_prefix("x-request-id: "));
        let id = id.unwrap_or_else(|| panic!("no id: {text}")).to_owned();
        (text.split(' ').nth(1).unwrap().parse().unwrap(), id, text)
    }

    /// Returns the line of the log about a request.
    #[track_caller]
    fn line(&self, id: &str) -> Value {
        let path: PathBuf = self.machine.work("../plane.log");
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let mut of_it: Vec<Value> = lines.filter(|line| line["request.id"] == id).collect();
            if of_it.len() == 1 {
                return of_it.remove(0);
            }
            assert!(of_it.is_empty() && Instant::now() < until, "{id}: {of_it:?} in {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn every_request_of_every_entry_has_an_id_and_one_line_in_the_log() {
    let plane = Logged::start();
    let admin = format!("Bearer {}", plane.admin);
    let wrong = "Bearer not-a-token-of-anybody";
    for (line, header, (status, route, principal)) in [
        ("GET /v1/health", ("accept", "*/*"), (200, "/v1/health", "(none)")),
        ("GET /v1/runs", ("authorization", admin.as_str()), (200, "/v1/runs", "prn_")),
        ("GET /v1/runs/x?a=b", ("authorization", admin.as_str()), (404, "/v1/runs/{id}", "prn_")),
        ("GET /v1/runs", ("authorization", wrong), (401, "/v1/runs", "(none)")),
        ("GET /nowhere", ("accept", "*/*"), (404, "(none)", "(none)")),
        ("GET /sandboxes", ("x-api-key", plane.sdk.as_str()), (200, "/~e2b/sandboxes", "sdk")),
        ("POST /mcp", ("authorization", wrong), (401, "/mcp", "(none)")),
    ] {
        let (told, id, text) = plane.send(line, header, "");
        assert_eq!(told, status, "{line}: {text}");
        let logged = plane.line(&id);
        assert_eq!(
            (&logged["level"], &logged["status"]),
            (&"DEBUG".into(), &status.into()),
            "{logged}"
        );
        assert_eq!(logged["method"], line.split(' ').next().unwrap(), "{logged}");
        assert_eq!(logged["route"], route, "{logged}");
        assert!(logged["duration_ms"].is_u64(), "{logged}");
        assert!(logged["principal"].as_str().unwrap().contains(principal), "{logged}");
    }
    // What a refusal came from is in the log, more exactly than the client is told.
    let (status, id, _) = plane.send("POST /v1/runs", ("authorization", &admin), "{\"a\": nope}");
    assert_eq!(status, 400);
    let detail = plane.line(&id)["detail"].as_str().unwrap_or_default().to_owned();
    assert!(detail.contains("line 1 column"), "{detail}");
    // A client's own id is used.
    let (_, id, _) = plane.send("GET /v1/health", ("x-request-id", "client-7"), "");
    assert_eq!(id, "client-7");
    plane.line("client-7");
    let log = fs::read_to_string(plane.machine.work("../plane.log")).unwrap();
    for secret in [plane.admin.as_str(), plane.sdk.as_str(), "not-a-token", "a=b"] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

#[test]
fn what_fails_inside_is_logged_with_its_cause_and_not_told() {
    let plane = Logged::start();
    let admin = format!("Bearer {}", plane.admin);
    // Where directories were, files are: nothing can be made below them.
    let data = plane.machine.home().join("data");
    for name in ["live", "blobs"] {
        let _ = fs::remove_dir_all(data.join(name));
        fs::write(data.join(name), "").unwrap();
    }
    // Small blobs are rows of the store.
    let blob = "x".repeat(100_000);
    let wanted = r#"{"templateID":"base","timeout":60}"#;
    for (line, header, body) in [
        ("POST /sandboxes", ("x-api-key", plane.sdk.as_str()), wanted),
        ("POST /v1/blobs", ("authorization", admin.as_str()), blob.as_str()),
    ] {
        let (status, id, text) = plane.send(line, header, body);
        assert_eq!(status, 500, "{line}: {text}");
        let logged = plane.line(&id);
        assert_eq!(logged["level"], "ERROR", "{logged}");
        let cause = logged["error"].as_str().unwrap();
        assert!(cause.contains("Not a directory"), "{line}: {logged}");
        let home = plane.machine.home();
        assert!(!text.contains("Not a directory") && !text.contains(home.to_str().unwrap()));
    }
    let (_, _, metrics) = plane.send("GET /v1/metrics", ("authorization", &admin), "");
    assert!(metrics.contains("\"requests.5xx\":2"), "{metrics}");
}

#[test]
fn plane_runner_and_dev_take_one_log_setting() {
    let machine = Machine::new();
    let commands: [&[&str]; 3] = [
        &["plane", "start", "--listen", "127.0.0.1:0"],
        &["dev", "--listen", "127.0.0.1:0"],
        &["runner", "start", "--plane", "http://127.0.0.1:1"],
    ];
    for words in commands {
        for more in
            [&["--log", "warrant_plane=noisy"][..], &["--log", "loud"], &["--log-format", "xml"]]
        {
            let refused = machine.run(&[words, more].concat());
            let text = stderr(&refused);
            assert_eq!(refused.status.code(), Some(2), "{words:?} {more:?}: {text}");
            assert!(text.contains(more[1]), "{words:?}: {text}");
        }
        let mut command = machine.command(words);
        let refused = command.env("WARRANT_LOG_FORMAT", "xml").output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{words:?}: {}", stderr(&refused));
    }
}
