//! MCP over streamable HTTP on a running plane, driven by the official SDK and by hand.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::machine::Machine;
use crate::mcp::{A_YEAR_OLD, NEWEST, clients};
use crate::{stderr, warrant};

/// A plane with its doors open.
pub(crate) struct Plane {
    pub(crate) machine: Machine,
    child: Child,
    pub(crate) url: String,
}

impl Plane {
    pub(crate) fn start() -> Self {
        Self::listening(&["127.0.0.1:0"])
    }

    fn listening(on: &[&str]) -> Self {
        let machine = Machine::new();
        let mut child = warrant()
            .args(["plane", "start", "--doors", "--json", "--listen"])
            .args(on)
            .env("WARRANT_HOME", machine.home())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let hello: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        let url = hello["url"].as_str().unwrap().to_owned();
        Self { machine, child, url }
    }

    pub(crate) fn token(&self, name: &str, workspace: &Path) -> String {
        let workspace = workspace.to_str().unwrap();
        let arguments =
            ["doors", "issue", name, "--scope", "mcp", "--workspace", workspace, "--json"];
        self.machine.json(&arguments)["token"].as_str().unwrap().to_owned()
    }

    /// Has the SDK make these calls, one after the other.
    #[track_caller]
    fn drive(&self, token: &str, calls: &Value) -> Value {
        self.drive_by(NEWEST, token, calls)
    }

    /// Has an SDK make these calls, by the name it is installed under.
    #[track_caller]
    fn drive_by(&self, sdk: &str, token: &str, calls: &Value) -> Value {
        let mut child = Command::new("node")
            .env("MCP_SDK", sdk)
            .args(["drive.mjs", "http", &format!("{}/mcp", self.url), token])
            .current_dir(clients("mcp"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(calls.to_string().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)))
    }

    /// Sends one message by hand and returns status, head and body.
    fn send(&self, method: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let host = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).unwrap();
        let mut head = format!("{method} /mcp HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str(&format!("host: {host}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let length = body.len();
        write!(
            stream,
            "{head}content-type: application/json\r\n\
             accept: application/json, text/event-stream\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, text }
    }

    /// Opens the stream of a conversation, and returns when it is there.
    fn listen(&self, bearer: &str, session: &str) -> TcpStream {
        let host = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).unwrap();
        write!(
            stream,
            "GET /mcp HTTP/1.1\r\nhost: {host}\r\nauthorization: {bearer}\r\n\
             mcp-session-id: {session}\r\naccept: text/event-stream\r\n\r\n"
        )
        .unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains(" 200 "), "{line}");
        stream
    }

    fn begin(&self, token: &str, headers: &[(&str, &str)]) -> Answer {
        let bearer = format!("Bearer {token}");
        let headers = [&[("authorization", bearer.as_str())], headers].concat();
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "by-hand", "version": "1"}}});
        self.send("POST", &headers, &hello.to_string())
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Answer {
    status: u16,
    text: String,
}

impl Answer {
    fn session(&self) -> &str {
        let line = self.text.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        line.unwrap_or_else(|| panic!("{}", self.text))
    }
}

fn facts(report: &Value, index: usize) -> &Value {
    &report["results"][index]["result"]["structuredContent"]
}

#[test]
fn an_agent_works_over_http_as_on_stdio() {
    let plane = Plane::start();
    let token = plane.token("ide", &plane.machine.work(""));
    let naps = format!("{}", 8_000 + std::process::id());
    let report = plane.drive(
        &token,
        &json!([
            {"tool": "exec", "arguments": {"command": "cat a.txt; echo b >> a.txt; exit 3"}},
            {"tool": "exec", "arguments": {"command": "curl x", "allow_hosts": ["example.com"]}},
            {"tool": "write_file", "arguments": {"path": "d/f.txt", "content": "it's\n"}},
            {"tool": "read_file", "arguments": {"path": "d/f.txt"}},
            {"tool": "exec", "arguments": {"command": format!("touch half; sleep {naps}")},
             "cancelOnProgress": true},
            {"tool": "list_files", "arguments": {"depth": 3}},
            {"tool": "exec", "arguments":
                {"command": "yes | head -c 100000", "max_output_bytes": 1000}},
            {"tool": "exec", "arguments": {"command": "touch ran; sudo id"}},
            {"tool": "undo"},
            {"tool": "receipt"},
        ]),
    );
    assert_eq!(report["tools"].as_array().unwrap().len(), 8, "{report}");
    assert_eq!(facts(&report, 0)["stdout"], "a\n", "{report}");
    assert_eq!(facts(&report, 0)["exitCode"], 3);
    assert_eq!(facts(&report, 1)["status"], "denied");
    assert_eq!(facts(&report, 3)["content"], "it's\n");
    let cancelled = &report["results"][4];
    assert!(cancelled["error"].is_object(), "{cancelled}");
    assert!(!cancelled["progress"].as_array().unwrap().is_empty(), "{cancelled}");
    let listed = report["results"][5]["result"]["content"][0]["text"].as_str().unwrap();
    assert!(listed.contains("d/f.txt") && !listed.contains("half"), "{listed}");
    assert!(facts(&report, 6)["stdout"].as_str().unwrap().len() < 1200);
    assert_eq!(facts(&report, 6)["stdoutMissingBytes"], 99_000);
    assert_eq!(facts(&report, 7)["status"], "awaiting-approval");
    assert!(!plane.machine.work("ran").exists());
    assert_eq!(facts(&report, 8)["status"], "undone", "{report}");
    assert!(!plane.machine.work("d/f.txt").exists());
    assert_eq!(facts(&report, 9)["verified"], Value::Null, "what waits has no receipt: {report}");
    assert!(!is_running(&naps));
    for index in [0, 1, 2, 3, 6] {
        let run = facts(&report, index)["runId"].as_str().unwrap();
        assert_eq!(plane.machine.run(&["verify", run]).status.code(), Some(0), "{run}");
    }
    let runs = plane.machine.json(&["runs", "--json"]);
    let ends: Vec<&Value> =
        runs["runs"].as_array().unwrap().iter().map(|run| &run["state"]).collect();
    assert_eq!(ends.iter().filter(|state| **state == "cancelled").count(), 1, "{runs}");
}

#[test]
fn an_older_mcp_sdk_works_over_http_too() {
    let plane = Plane::start();
    let token = plane.token("ide", &plane.machine.work(""));
    let calls = json!([
        {"tool": "exec", "arguments": {"command": "echo b >> a.txt; exit 3"}},
        {"tool": "read_file", "arguments": {"path": "a.txt"}},
        {"tool": "exec", "arguments": {"command": "sleep 8999"}, "cancelOnProgress": true},
        {"tool": "exec", "arguments": {"command": "curl x", "allow_hosts": ["example.com"]}},
        {"tool": "undo"},
    ]);
    let report = plane.drive_by(A_YEAR_OLD, &token, &calls);
    assert_eq!(facts(&report, 0)["exitCode"], 3, "{report}");
    assert_eq!(facts(&report, 1)["content"], "a\nb\n");
    assert!(report["results"][2]["error"].is_object(), "{report}");
    assert!(!report["results"][2]["progress"].as_array().unwrap().is_empty(), "{report}");
    assert_eq!(facts(&report, 3)["status"], "denied");
    assert_eq!(facts(&report, 4)["status"], "undone", "{report}");
    let refused = plane.drive_by(A_YEAR_OLD, "wrong", &json!([]));
    assert!(refused["refused"].is_object(), "{refused}");
}

#[test]
fn holders_of_two_mcp_tokens_see_nothing_of_each_other() {
    let plane = Plane::start();
    let other = plane.machine.directory.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let (one, two) = (plane.token("one", &plane.machine.work("")), plane.token("two", &other));
    let report = plane.drive(&one, &json!([{"tool": "exec", "arguments": {"command": "echo 1"}}]));
    let run = facts(&report, 0)["runId"].as_str().unwrap();
    let path = plane.machine.work("a.txt");
    let report = plane.drive(
        &two,
        &json!([
            {"tool": "receipt", "arguments": {"run": run}},
            {"tool": "diff", "arguments": {"run": run}},
            {"tool": "read_file", "arguments": {"path": path}},
            {"tool": "undo"},
            {"tool": "exec", "arguments": {"argv": ["cat", path]}},
        ]),
    );
    for index in 0..4 {
        assert_eq!(report["results"][index]["result"]["isError"], true, "{report}");
    }
    assert_ne!(facts(&report, 4)["exitCode"], 0, "{report}");
    let session = plane.begin(&one, &[]);
    assert_eq!(session.status, 200, "{}", session.text);
    let bearer = format!("Bearer {two}");
    let stolen = [("authorization", bearer.as_str()), ("mcp-session-id", session.session())];
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    assert_eq!(plane.send("POST", &stolen, &list).status, 404);
    // Closing what is not there says nothing, and closes nothing.
    plane.send("DELETE", &stolen, "");
    let bearer = format!("Bearer {one}");
    let own = [("authorization", bearer.as_str()), ("mcp-session-id", session.session())];
    assert_eq!(plane.send("POST", &own, &list).status, 200, "the conversation was closed");
    let nested = plane.machine.work("d");
    std::fs::create_dir(&nested).unwrap();
    let nested = nested.to_str().unwrap();
    for workspace in [nested, "/", plane.machine.home().to_str().unwrap(), "/none"] {
        let issue = ["doors", "issue", "three", "--scope", "mcp", "--workspace", workspace];
        let refused = plane.machine.run(&issue);
        assert_eq!(refused.status.code(), Some(2), "{workspace}: {}", stderr(&refused));
    }
}

#[test]
fn only_a_good_token_of_mcp_opens_mcp_and_it_opens_nothing_else() {
    let plane = Plane::start();
    let token = plane.token("ide", &plane.machine.work(""));
    let issued = plane.machine.json(&["doors", "issue", "sdk", "--json"]);
    let sandboxes = issued["token"].as_str().unwrap();
    for wrong in ["nobody", sandboxes, ""] {
        let refused = &plane.drive(wrong, &json!([]))["refused"];
        assert_eq!(refused["code"], 401, "{wrong}: {refused}");
    }
    let mut create = TcpStream::connect(plane.url.trim_start_matches("http://")).unwrap();
    write!(
        create,
        "POST /sandboxes HTTP/1.1\r\nhost: localhost\r\nx-api-key: {token}\r\n\
         connection: close\r\ncontent-length: 2\r\n\r\n{{}}"
    )
    .unwrap();
    let mut answer = String::new();
    create.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    let list = plane.machine.json(&["doors", "list", "--json"]);
    assert_eq!(list["tokens"][0]["scope"], "mcp", "{list}");
    assert_eq!(list["tokens"][1]["scope"], "sandboxes", "{list}");
    assert_eq!(plane.begin(&token, &[]).status, 200);
    assert!(plane.machine.run(&["doors", "revoke", "ide"]).status.success());
    assert_eq!(plane.begin(&token, &[]).status, 401, "a revoked token opens nothing");
}

#[test]
fn a_web_page_cannot_reach_mcp_by_rebinding_or_from_its_origin() {
    let plane = Plane::start();
    let token = plane.token("ide", &plane.machine.work(""));
    assert_eq!(plane.begin(&token, &[("host", "evil.example:80")]).status, 403);
    assert_eq!(plane.begin(&token, &[("origin", "http://evil.example")]).status, 403);
    assert_eq!(plane.begin(&token, &[("origin", "null")]).status, 403);
    assert_eq!(plane.begin(&token, &[("host", "localhost")]).status, 200);
    for origin in ["https://localhost:1", "http://localhost.evil.example", "http://localhost:1@x"] {
        assert_eq!(plane.begin(&token, &[("origin", origin)]).status, 403, "{origin}");
    }
}

#[test]
fn a_local_origin_reaches_mcp_on_a_loopback_listener_and_needs_its_token() {
    let plane = Plane::start();
    let token = plane.token("ide", &plane.machine.work(""));
    let port = plane.url.rsplit(':').next().unwrap();
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        let origin = format!("http://{host}:{port}");
        let headers = [("host", origin.trim_start_matches("http://")), ("origin", &origin)];
        let answer = plane.begin(&token, &headers);
        assert_eq!(answer.status, 200, "{origin}: {}", answer.text);
        assert!(!answer.text.to_ascii_lowercase().contains("access-control-allow"), "{origin}");
        assert_eq!(plane.begin("nobody", &headers).status, 401, "{origin}");
    }
    let everywhere = Plane::listening(&["0.0.0.0:0", "--insecure-plaintext"]);
    let token = everywhere.token("ide", &everywhere.machine.work(""));
    let origin = [("host", "localhost"), ("origin", "http://localhost:1")];
    assert_eq!(everywhere.begin(&token, &origin).status, 403, "others reach that listener");
}

#[test]
fn conversations_and_messages_over_http_are_bounded() {
    let plane = Plane::start();
    let token = plane.token("ide", &plane.machine.work(""));
    let begun: Vec<Answer> = (0..16).map(|_| plane.begin(&token, &[])).collect();
    assert!(begun.iter().all(|answer| answer.status == 200));
    let bearer = format!("Bearer {token}");
    let streams: Vec<TcpStream> =
        begun.iter().map(|answer| plane.listen(&bearer, answer.session())).collect();
    assert_eq!(plane.begin(&token, &[]).status, 429, "all of them are in use");
    drop(streams);
    let first = [("authorization", bearer.as_str()), ("mcp-session-id", begun[0].session())];
    assert_eq!(plane.send("DELETE", &first, "").status, 204);
    assert_eq!(plane.begin(&token, &[]).status, 200, "the place of one that ended is free");
    let last = [("authorization", bearer.as_str()), ("mcp-session-id", begun[1].session())];
    let flood = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "write_file", "arguments": {"path": "x", "content": "x".repeat(5_000_000)}}});
    assert_eq!(plane.send("POST", &last, &flood.to_string()).status, 413);
    assert_eq!(plane.send("POST", &last, "{").status / 100, 4, "no JSON");
}

#[test]
fn clients_that_went_away_without_a_word_lock_nobody_out() {
    let plane = Plane::start();
    let token = plane.token("ide", &plane.machine.work(""));
    let bearer = format!("Bearer {token}");
    let first = plane.begin(&token, &[]);
    let held = plane.listen(&bearer, first.session());
    let second = plane.begin(&token, &[]);
    for _ in 0..40 {
        assert_eq!(plane.begin(&token, &[]).status, 200);
    }
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    let asked = |session: &str| {
        let headers = [("authorization", bearer.as_str()), ("mcp-session-id", session)];
        plane.send("POST", &headers, &list).status
    };
    assert_eq!(asked(first.session()), 200, "a conversation in use stays");
    assert_eq!(asked(second.session()), 404, "one that nobody used is over");
    drop(held);
}

#[test]
fn a_plane_that_is_told_to_stop_ends_calls_of_mcp_with_their_receipts() {
    let mut plane = Plane::start();
    let token = plane.token("ide", &plane.machine.work(""));
    let bearer = format!("Bearer {token}");
    let session = plane.begin(&token, &[]);
    let host = plane.url.trim_start_matches("http://").to_owned();
    let naps = format!("{}", 9_000 + std::process::id());
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "exec", "arguments": {"command": format!("echo up > up; sleep {naps}")}}});
    let call = call.to_string();
    let mut open = Vec::new();
    for (method, body) in [("GET", ""), ("POST", call.as_str())] {
        let mut stream = TcpStream::connect(&host).unwrap();
        write!(
            stream,
            "{method} /mcp HTTP/1.1\r\nhost: {host}\r\nauthorization: {bearer}\r\n\
             mcp-session-id: {}\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\ncontent-length: {}\r\n\r\n{body}",
            session.session(),
            body.len()
        )
        .unwrap();
        open.push(stream);
    }
    let began = Instant::now();
    while !is_running(&naps) {
        assert!(began.elapsed() < Duration::from_secs(60), "the call does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&plane.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(plane.child.wait().unwrap().success());
    assert!(!is_running(&naps));
    let runs = plane.machine.json(&["runs", "--json"]);
    let states: Vec<&str> =
        runs["runs"].as_array().unwrap().iter().map(|run| run["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["cancelled"], "{runs}");
    let run = runs["runs"][0]["runId"].as_str().unwrap();
    assert_eq!(plane.machine.run(&["verify", run]).status.code(), Some(0));
}

fn is_running(word: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        cmdline.split(|byte| *byte == 0).any(|part| part == word.as_bytes())
    })
}
