//! One policy for every entry of a plane: HTTP, a compat API, MCP and the command line follow it
//! together, and keep the last good one together when its files are broken.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::machine::Machine;
use crate::{stderr, warrant};

/// A plane with every entry open, and somebody at each of them.
struct Entries {
    machine: Machine,
    plane: Option<Served>,
    sdk: String,
    agent: String,
    admin: String,
}

struct Served {
    child: Child,
    address: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Entries {
    fn open() -> Self {
        let machine = Machine::new();
        let workspace = machine.work("");
        let workspace = workspace.to_str().unwrap();
        let issue = |words: &[&str]| {
            let issued = machine.json(&[&["doors", "issue"][..], words, &["--json"]].concat());
            issued["token"].as_str().unwrap().to_owned()
        };
        let sdk = issue(&["sdk"]);
        let agent = issue(&["agent", "--scope", "mcp", "--workspace", workspace]);
        let mut entries = Self { machine, plane: None, sdk, agent, admin: String::new() };
        entries.restart();
        let config = fs::read(entries.machine.home().join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        entries.admin = config["adminToken"].as_str().unwrap().to_owned();
        entries
    }

    fn restart(&mut self) {
        self.plane = None;
        let log = fs::File::options();
        let log = log.clone().create(true).append(true).open(self.machine.work("../plane.log"));
        let mut child = warrant()
            .args(["plane", "start", "--doors", "--listen", "127.0.0.1:0", "--json"])
            .env("WARRANT_HOME", self.machine.home())
            .stdout(Stdio::piped())
            .stderr(log.unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let hello: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        let address = hello["url"].as_str().unwrap().trim_start_matches("http://").to_owned();
        self.plane = Some(Served { child, address });
    }

    /// Sends one request and returns status and text, head included.
    fn send(&self, line: &str, headers: &[(&str, &str)], body: &Value) -> (u16, String) {
        let address = &self.plane.as_ref().unwrap().address;
        let mut stream = TcpStream::connect(address).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut head = format!("{line} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
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
        (text.split(' ').nth(1).unwrap().parse().unwrap(), text)
    }

    fn as_admin(&self, line: &str) -> String {
        let bearer = format!("Bearer {}", self.admin);
        self.send(line, &[("authorization", &bearer)], &Value::Null).1
    }

    /// Asks HTTP whether `echo` may run.
    fn http_allows(&self) -> bool {
        let digest = "0".repeat(64);
        let request = json!({
            "requestedBy": {"kind": "human", "id": "somebody"}, "agentKind": "command",
            "prompt": "echo hi", "pool": "default", "secretNames": [],
            "workspace": {"version": "warrant.manifest.v1", "baseRef": "0".repeat(40),
                          "bundleHash": digest, "untrackedFiles": [], "deniedPaths": [],
                          "deniedPatterns": []},
            "network": {"defaultDeny": true, "allowHosts": []}, "budget": {},
            "disclosure": "minimal-context",
            "execution": {"kind": "argv", "command": "echo", "args": ["hi"]},
            "isolation": "namespace",
        });
        let bearer = format!("Bearer {}", self.admin);
        let body = json!({"request": request, "dryRun": true});
        let (status, text) = self.send("POST /v1/runs", &[("authorization", &bearer)], &body);
        assert!(matches!(status, 200 | 403), "{text}");
        status == 200
    }

    /// Makes a sandbox as an E2B client does.
    fn compat_allows(&self) -> bool {
        let body = json!({"templateID": "base", "timeout": 60});
        let (status, text) = self.send("POST /sandboxes", &[("x-api-key", &self.sdk)], &body);
        assert!(matches!(status, 201 | 403), "{text}");
        assert!(!text.contains(self.machine.home().to_str().unwrap()), "no path of ours: {text}");
        status == 201
    }

    /// Runs `echo` as an agent does over MCP.
    fn mcp_allows(&self) -> bool {
        let bearer = format!("Bearer {}", self.agent);
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "by-hand", "version": "1"}}});
        let (_, text) = self.send("POST /mcp", &[("authorization", &bearer)], &hello);
        let session = text.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        let session = session.unwrap_or_else(|| panic!("{text}")).to_owned();
        let headers = [("authorization", bearer.as_str()), ("mcp-session-id", session.as_str())];
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        self.send("POST /mcp", &headers, &ready);
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "exec", "arguments": {"command": "echo hi"}}});
        let (_, text) = self.send("POST /mcp", &headers, &call);
        assert!(!text.contains(self.machine.home().to_str().unwrap()), "no path of ours: {text}");
        text.contains("\"status\":\"completed\"")
    }

    /// Runs `echo` on the same home.
    fn command_line_allows(&self) -> bool {
        let done = self.machine.exec(&["--", "echo", "hi"]);
        assert!(matches!(done.status.code(), Some(0 | 3 | 4)), "{}", stderr(&done));
        done.status.code() == Some(0)
    }

    #[track_caller]
    fn all_say(&self, expected: bool, when: &str) {
        let said = [
            ("http", self.http_allows()),
            ("compat", self.compat_allows()),
            ("mcp", self.mcp_allows()),
            ("command line", self.command_line_allows()),
        ];
        assert!(said.iter().all(|(_, allows)| *allows == expected), "{when}: {said:?}");
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.machine.home().join("policy").join(file), text).unwrap();
    }
}

#[test]
fn every_entry_keeps_the_last_good_policy_and_follows_the_repaired_one() {
    let mut entries = Entries::open();
    let home = entries.machine.home();
    let [good, rules] = ["document.json", "rules.cedar"]
        .map(|name| fs::read_to_string(home.join("policy").join(name)).unwrap());
    entries.all_say(true, "at first");
    for (file, broken, place) in [
        ("document.json", "{broken", "document.json"),
        ("rules.cedar", "\n\npermit (principal", "rules.cedar: the rules do not parse: line 3"),
    ] {
        entries.write(file, broken);
        entries.all_say(true, file);
        let ready = entries.as_admin("GET /v1/ready");
        assert!(ready.contains("broken: the last good one is in force"), "{ready}");
        assert!(!ready.contains(home.to_str().unwrap()), "{ready}");
        assert!(entries.as_admin("GET /metrics").contains("warrant_policy_broken 1"));
        let told = entries.as_admin("GET /v1/policy");
        assert!(told.contains("\"fault\"") && told.contains(place), "{told}");
        let log = fs::read_to_string(entries.machine.work("../plane.log")).unwrap();
        assert!(log.contains(place), "{log}");
        let done = entries.machine.exec(&["--", "echo", "hi"]);
        assert!(stderr(&done).contains("stays in force"), "{}", stderr(&done));
        entries.restart();
        entries.all_say(true, "after a restart");
        entries.write("document.json", &good);
        entries.write("rules.cedar", &rules);
        assert!(entries.as_admin("GET /metrics").contains("warrant_policy_broken 0"));
    }
    entries.write(
        "rules.cedar",
        "@id(\"none\")\n@reason(\"nothing\")\nforbid (principal, action, resource);\n",
    );
    entries.write("tests.jsonl", "");
    entries.all_say(false, "a stricter one");
    entries.write("rules.cedar", "permit (");
    entries.all_say(false, "the stricter one is the last good one");
    entries.write("rules.cedar", &rules);
    entries.all_say(true, "repaired");
}
