//! `warrant mcp`, driven by the official MCP SDK.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::machine::Machine;
use crate::root;

/// Returns a folder of clients; they are installed by `cargo xtask install`.
pub(crate) fn clients(name: &str) -> PathBuf {
    let folder = root().join("crates/e2e/clients").join(name);
    let installed = folder.join("node_modules").is_dir() || name == "model-server";
    assert!(installed, "{} is not installed; run: cargo xtask install", folder.display());
    folder
}

/// Has the SDK make these calls, one after the other.
#[track_caller]
pub(crate) fn drive(machine: &Machine, calls: &Value) -> Value {
    drive_by(NEWEST, machine, calls)
}

/// Has an SDK make these calls, by the name it is installed under.
#[track_caller]
fn drive_by(sdk: &str, machine: &Machine, calls: &Value) -> Value {
    let mut child = Command::new("node")
        .arg("drive.mjs")
        .arg("stdio")
        .arg(env!("CARGO_BIN_EXE_warrant"))
        .args(["mcp", "--workspace"])
        .arg(machine.work(""))
        .current_dir(clients("mcp"))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("WARRANT_HOME", machine.home())
        .env("MCP_SDK", sdk)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(calls.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        panic!("{}\n{}", text(&output.stdout), text(&output.stderr))
    })
}

/// The names under which the SDK is installed: as it is now, and as it was a year ago.
pub(crate) const NEWEST: &str = "@modelcontextprotocol/sdk";
pub(crate) const A_YEAR_OLD: &str = "sdk-a-year-old";

fn results(report: &Value) -> Vec<&Value> {
    report["results"].as_array().unwrap().iter().map(|one| &one["result"]).collect()
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}"))
}

fn facts(result: &Value) -> &Value {
    &result["structuredContent"]
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn an_agent_works_in_the_workspace_and_sees_its_own_changes() {
    let machine = Machine::new();
    let report = drive(
        &machine,
        &json!([
            {"tool": "exec", "arguments": {"command": "cat a.txt; echo b >> a.txt; mkdir d; exit 3"}},
            {"tool": "read_file", "arguments": {"path": "a.txt"}},
            {"tool": "write_file", "arguments": {"path": "d/new/f.txt", "content": "it's\n\u{fc}\n"}},
            {"tool": "list_files", "arguments": {"depth": 5}},
            {"tool": "exec", "arguments": {"argv": ["cat", "d/new/f.txt"]}},
            {"tool": "diff"},
            {"tool": "undo"},
            {"tool": "undo"},
            {"tool": "undo"},
            {"tool": "list_files"},
            {"tool": "receipt"},
        ]),
    );
    let names: Vec<&str> = report["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    let expected = [
        "exec",
        "read_file",
        "write_file",
        "list_files",
        "diff",
        "undo",
        "request_approval",
        "receipt",
    ];
    assert_eq!(names, expected);
    assert!(report["instructions"].as_str().unwrap().contains("receipt"));
    let results = results(&report);
    let [exec, file, written, list, again, diff, undo, undo_two, undo_three, list_two, receipt] =
        results[..]
    else {
        panic!("{report}")
    };
    assert_eq!(facts(exec)["stdout"], "a\n", "{exec}");
    assert_eq!(facts(exec)["exitCode"], 3, "a failing program is a result");
    assert_eq!(exec["isError"], false);
    assert_eq!(text(file), "a\nb\n", "what a failing program wrote is there");
    assert_eq!(written["isError"], false, "{written}");
    assert!(text(list).contains("d/new/f.txt (8 bytes)\n"), "{}", text(list));
    assert_eq!(facts(again)["stdout"], "it's\n\u{fc}\n");
    assert_eq!(facts(diff)["diff"], "", "the last run wrote nothing");
    assert_eq!(facts(undo)["status"], "undone", "{undo}");
    assert_eq!(facts(undo_two)["status"], "undone", "{undo_two}");
    assert_eq!(undo_three["isError"], true, "{undo_three}");
    assert_eq!(text(list_two), "a.txt (2 bytes)\n");
    assert_eq!(facts(receipt)["verified"], true, "{receipt}");
    assert_eq!(read(&machine.work("a.txt")), "a\n");
    for result in [exec, file, written, list, again] {
        let run = facts(result)["runId"].as_str().unwrap();
        assert_eq!(machine.run(&["verify", run]).status.code(), Some(0), "{run}");
    }
}

#[test]
fn an_older_mcp_sdk_works_too() {
    let machine = Machine::new();
    let naps = format!("{}", 6_000 + std::process::id());
    let report = drive_by(
        A_YEAR_OLD,
        &machine,
        &json!([
            {"tool": "exec", "arguments": {"command": "cat a.txt; echo b >> a.txt; exit 3"}},
            {"tool": "write_file", "arguments": {"path": "d/f.txt", "content": "it's\n"}},
            {"tool": "read_file", "arguments": {"path": "d/f.txt"}},
            {"tool": "list_files", "arguments": {"depth": 2}},
            {"tool": "exec", "arguments": {"command": format!("echo up; sleep {naps}")},
             "cancelOnProgress": true},
            {"tool": "exec", "arguments": {"command": "curl x", "allow_hosts": ["example.com"]}},
            {"tool": "request_approval", "arguments": {"command": "sudo id"}},
            {"tool": "undo"},
            {"tool": "receipt", "arguments": {"run": "run_0"}},
        ]),
    );
    let results = results(&report);
    assert_eq!(report["tools"].as_array().unwrap().len(), 8, "{report}");
    assert_eq!(facts(results[0])["exitCode"], 3, "{report}");
    assert_eq!(facts(results[2])["content"], "it's\n");
    assert!(text(results[3]).contains("d/f.txt"), "{report}");
    assert!(report["results"][4]["error"].is_object(), "{report}");
    assert!(!report["results"][4]["progress"].as_array().unwrap().is_empty(), "{report}");
    assert_eq!(facts(results[5])["status"], "denied");
    assert_eq!(facts(results[6])["status"], "awaiting-approval");
    assert_eq!(facts(results[7])["status"], "undone", "{report}");
    assert_eq!(facts(results[8])["status"], "not-found");
    assert_eq!(read(&machine.work("a.txt")), "a\nb\n");
    assert!(!machine.work("d/f.txt").exists());
}

#[test]
fn a_denial_says_what_is_allowed_and_how_to_ask_and_approval_runs_it_once() {
    let machine = Machine::new();
    let script = "touch ran; sudo id";
    let denied = json!({"command": "curl x", "allow_hosts": ["example.com"]});
    let report = drive(
        &machine,
        &json!([
            {"tool": "exec", "arguments": denied},
            {"tool": "exec", "arguments": {"command": script}},
            {"tool": "request_approval", "arguments": {"command": script}},
            {"tool": "request_approval", "arguments": {"command": "ls"}},
            {"tool": "receipt"},
            {"tool": "exec", "arguments": {"command": "cat /srv/elsewhere"}},
            {"tool": "request_approval", "arguments": {"command": "cat /srv/elsewhere"}},
        ]),
    );
    let results = results(&report);
    for beyond in [results[5], results[6]] {
        assert_eq!(beyond["isError"], true, "{beyond}");
        for words in ["/srv/elsewhere", "what is allowed: ", "No approval can change this"] {
            assert!(text(beyond).contains(words), "{beyond}");
        }
    }
    let denied = results[0];
    assert_eq!(denied["isError"], true);
    assert_eq!(facts(denied)["status"], "denied", "{denied}");
    assert!(
        text(denied).contains("example.com") && text(denied).contains("hosts: none"),
        "{denied}"
    );
    let waiting = results[1];
    assert_eq!(facts(waiting)["status"], "awaiting-approval", "{waiting}");
    let run = facts(waiting)["runId"].as_str().unwrap();
    assert!(text(waiting).contains(&format!("warrant approve {run}")), "{waiting}");
    assert_eq!(facts(results[2])["runId"], run, "asking again is the same question");
    assert_eq!(facts(results[3])["status"], "allowed");
    assert!(!machine.work("ran").exists());
    assert_eq!(machine.run(&["approve", run]).status.code(), Some(0), "the person may approve it");
    let other = format!("{script} -u");
    let report = drive(
        &machine,
        &json!([
            {"tool": "exec", "arguments": {"command": other}},
            {"tool": "exec", "arguments": {"command": script}},
            {"tool": "exec", "arguments": {"command": script}},
        ]),
    );
    let results = self::results(&report);
    assert_eq!(facts(results[0])["status"], "awaiting-approval", "another command has no approval");
    assert_eq!(facts(results[1])["runId"], run, "{}", results[1]);
    assert!(machine.work("ran").exists(), "the approved command ran");
    assert_eq!(facts(results[2])["status"], "awaiting-approval", "and ran once: {}", results[2]);
}

#[test]
fn a_cancelled_call_ends_the_whole_tree_with_a_receipt() {
    let machine = Machine::new();
    let naps = format!("{}", 7_000 + std::process::id());
    let script = format!("touch half; echo begun; sleep {naps} & sleep {naps}");
    let report = drive(
        &machine,
        &json!([
            {"tool": "exec", "arguments": {"command": script}, "cancelOnProgress": true},
            {"tool": "exec", "arguments": {"command": "echo next"}},
        ]),
    );
    let first = &report["results"][0];
    assert!(first["error"].is_object(), "{first}");
    let told = first["progress"][0]["message"].as_str().unwrap();
    assert!(told.starts_with("running") || told.starts_with("waiting"), "{told}");
    assert_eq!(facts(results(&report)[1])["stdout"], "next\n");
    assert!(!machine.work("half").exists(), "a stopped program leaves nothing");
    let is_alive = std::fs::read_dir("/proc").unwrap().any(|entry| {
        let cmdline = std::fs::read(entry.unwrap().path().join("cmdline")).unwrap_or_default();
        cmdline.split(|byte| *byte == 0).any(|word| word == naps.as_bytes())
    });
    assert!(!is_alive);
    let runs = machine.json(&["runs", "--json"]);
    let cancelled: Vec<&Value> =
        runs["runs"].as_array().unwrap().iter().filter(|run| run["state"] == "cancelled").collect();
    assert_eq!(cancelled.len(), 1, "{runs}");
    let run = cancelled[0]["runId"].as_str().unwrap();
    assert_eq!(machine.run(&["verify", run]).status.code(), Some(0));
}

#[test]
fn output_is_bounded_and_wrong_arguments_are_told() {
    let machine = Machine::new();
    std::fs::write(machine.work("bytes"), [0_u8, 255, 1]).unwrap();
    let flood = "i=0; while [ $i -lt 20000 ]; do echo 0123456789; i=$((i+1)); done; echo end";
    let report = drive(
        &machine,
        &json!([
            {"tool": "exec", "arguments": {"command": flood, "max_output_bytes": 1000}},
            {"tool": "read_file", "arguments": {"path": "bytes"}},
            {"tool": "read_file", "arguments": {"path": "a.txt", "offset": 1, "max_bytes": 1}},
            {"tool": "read_file", "arguments": {"path": "missing"}},
            {"tool": "read_file", "arguments": {"path": "/etc/hostname"}},
            {"tool": "write_file", "arguments": {"path": "../x", "content": ""}},
            {"tool": "exec", "arguments": {"command": "true", "image": "x"}},
            {"tool": "exec", "arguments": {"command": "sleep 9", "timeout_ms": 200}},
            {"tool": "shell", "arguments": {}},
        ]),
    );
    let results = results(&report);
    let flood = facts(results[0]);
    assert!(flood["stdout"].as_str().unwrap().len() < 1200);
    assert!(flood["stdout"].as_str().unwrap().ends_with("end\n"), "the end is kept");
    assert_eq!(flood["stdoutMissingBytes"], 20_000 * 11 + 4 - 1000);
    assert_eq!(facts(results[1])["encoding"], "base64");
    assert_eq!(facts(results[1])["content"], "AP8B");
    assert_eq!(facts(results[2])["content"], "\n", "{}", results[2]);
    for (index, word) in [(3, "missing"), (4, "`path`"), (5, "`path`"), (6, "`image`")] {
        assert_eq!(results[index]["isError"], true, "{}", results[index]);
        assert!(text(results[index]).contains(word), "{}", text(results[index]));
    }
    assert_eq!(results[7]["isError"], true, "{}", results[7]);
    assert!(text(results[7]).contains("time"), "{}", text(results[7]));
    assert_eq!(report["results"][8]["error"]["code"], -32602, "{report}");
}

#[test]
fn a_host_that_was_blocked_is_told_to_the_model() {
    let machine = Machine::new();
    let calls = ["getent hosts far.example; true", "true"];
    let calls = calls.map(|command| json!({"tool": "exec", "arguments": {"command": command}}));
    let report = drive(&machine, &json!(calls));
    let results = results(&report);
    assert_eq!(facts(results[0])["blockedHosts"], json!(["far.example"]), "{}", results[0]);
    let told = text(results[0]);
    assert!(told.contains("blocked hosts") && told.contains("`allow_hosts`"), "{told}");
    assert!(!text(results[1]).contains("blocked"), "{}", results[1]);
}

#[test]
fn files_that_run_later_are_held_back_and_secrets_stay_masked() {
    let machine = Machine::new();
    std::fs::create_dir_all(machine.work(".git/hooks")).unwrap();
    std::fs::write(machine.work(".env"), "TOKEN=hunter2\n").unwrap();
    let report = drive(
        &machine,
        &json!([
            {"tool": "write_file", "arguments": {"path": ".git/hooks/pre-commit", "content": "#!/bin/sh\nid\n"}},
            {"tool": "write_file", "arguments": {"path": ".claude/settings.json", "content": "{}"}},
            {"tool": "exec", "arguments": {"command": "mkdir .husky; echo x > .husky/pre-push; echo y > ok"}},
            {"tool": "read_file", "arguments": {"path": ".env"}},
            {"tool": "exec", "arguments": {"command": "cat .env; grep -r hunter . || true"}},
        ]),
    );
    let results = results(&report);
    for held in &results[..2] {
        assert_eq!(held["isError"], true, "{held}");
        assert!(text(held).contains("a person must make this change"), "{}", text(held));
    }
    assert!(text(results[2]).contains(".husky/pre-push"), "{}", text(results[2]));
    assert!(!machine.work(".git/hooks/pre-commit").exists());
    assert!(!machine.work(".claude/settings.json").exists());
    assert!(!machine.work(".husky/pre-push").exists());
    assert_eq!(read(&machine.work("ok")), "y\n");
    for result in &results[3..] {
        assert!(!result.to_string().contains("hunter2"), "{result}");
    }
}

/// A server and its client, which says one thing after the other.
struct Talk {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    said: u32,
}

impl Talk {
    fn begin(machine: &Machine) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_warrant"))
            .args(["mcp", "--workspace"])
            .arg(machine.work(""))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("WARRANT_HOME", machine.home())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut talk = Self { child, stdin, stdout, said: 0 };
        let client = json!({"protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"}});
        talk.ask("initialize", &client);
        talk.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        talk
    }

    fn say(&mut self, message: &Value) {
        self.stdin.as_mut().unwrap().write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.said += 1;
        let id = self.said;
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap_or_else(|_| panic!("{line}"))["result"].take()
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// Goes away, and returns whether the server ended well.
    fn end(mut self) -> bool {
        self.stdin = None;
        self.child.wait().unwrap().success()
    }
}

#[test]
fn a_policy_put_in_force_meanwhile_judges_the_next_call() {
    let machine = Machine::new();
    let mut talk = Talk::begin(&machine);
    let call = || json!({"command": "echo hi"});
    assert_eq!(facts(&talk.call("exec", call()))["stdout"], "hi\n");
    assert_eq!(machine.run(&["policy", "set", "strict"]).status.code(), Some(0));
    let denied = talk.call("exec", call());
    assert_ne!(facts(&denied)["status"], "completed", "{denied}");
    std::fs::write(machine.home().join("policy/document.json"), "{").unwrap();
    let broken = talk.call("exec", call());
    assert_ne!(facts(&broken)["status"], "completed", "the stricter one stays: {broken}");
    assert!(talk.end(), "the end of the client is the end of the server");
}

#[test]
fn an_agent_cannot_undo_what_a_person_did_to_the_same_files() {
    let machine = Machine::new();
    let mut talk = Talk::begin(&machine);
    talk.call("exec", json!({"command": "echo agent > a.txt"}));
    let person =
        machine.exec(&["--mode", "workspace-rollback", "--", "sh", "-c", "echo person > a.txt"]);
    assert_eq!(person.status.code(), Some(0), "{}", crate::stderr(&person));
    for force in [false, true] {
        let undone = talk.call("undo", json!({"force": force}));
        assert_eq!(undone["isError"], true, "{undone}");
        assert_eq!(read(&machine.work("a.txt")), "person\n");
    }
    assert_eq!(machine.run(&["undo"]).status.code(), Some(0), "the person takes it back");
    assert_eq!(read(&machine.work("a.txt")), "agent\n");
    assert_eq!(facts(&talk.call("undo", json!({})))["status"], "undone");
    assert_eq!(read(&machine.work("a.txt")), "a\n");
    assert!(talk.end());
}

#[test]
fn a_text_is_read_in_pieces_and_names_cannot_forge_lines() {
    let machine = Machine::new();
    let text = "\u{20ac}uro ".repeat(40);
    std::fs::write(machine.work("text"), &text).unwrap();
    let mut talk = Talk::begin(&machine);
    let (mut whole, mut offset) = (String::new(), json!(0));
    while !offset.is_null() {
        let read =
            talk.call("read_file", json!({"path": "text", "offset": offset, "max_bytes": 50}));
        assert_eq!(facts(&read)["encoding"], "utf-8", "{read}");
        whole.push_str(facts(&read)["content"].as_str().unwrap());
        offset = facts(&read)["nextOffset"].clone();
    }
    assert_eq!(whole, text);
    let forged = "x (1 bytes)\n.env";
    std::fs::write(machine.work(forged), "").unwrap();
    std::fs::write(machine.work("\u{1b}[2J\u{202e}"), "").unwrap();
    let list = talk.call("list_files", json!({}));
    assert_eq!(self::text(&list).lines().count(), 4, "{}", self::text(&list));
    assert!(!self::text(&list).contains(['\u{1b}', '\u{202e}']), "{}", self::text(&list));
    let pipe = talk.call("exec", json!({"command": "mkfifo pipe; echo y > kept"}));
    assert!(self::text(&pipe).contains("not kept, because it is no file: pipe"), "{pipe}");
    assert!(machine.work("kept").exists() && !machine.work("pipe").exists());
    assert!(talk.end());
}

#[test]
fn a_flood_of_calls_is_refused_and_not_kept_waiting() {
    let machine = Machine::new();
    let mut talk = Talk::begin(&machine);
    let params = json!({"name": "request_approval",
        "arguments": {"command": "sudo id", "wait_ms": 60_000}});
    for id in 100..180 {
        talk.say(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}));
    }
    for _ in 0..16 {
        let mut line = String::new();
        talk.stdout.read_line(&mut line).unwrap();
        assert!(line.contains("too many calls at once"), "{line}");
    }
    talk.end();
}

#[test]
fn the_largest_answers_fit_a_message_that_clients_take() {
    let machine = Machine::new();
    std::fs::write(machine.work("big"), "0123456789\n".repeat(100_000)).unwrap();
    for number in 0..12_000 {
        std::fs::write(machine.work(&format!("some-file-{number}")), "").unwrap();
    }
    let mut talk = Talk::begin(&machine);
    let most = 192 * 1024;
    let flood = json!({"command": "cat big; cat big >&2", "max_output_bytes": most});
    for (tool, arguments) in [
        ("exec", flood),
        ("read_file", json!({"path": "big", "max_bytes": most})),
        ("list_files", json!({})),
    ] {
        let answer = talk.call(tool, arguments);
        assert_eq!(answer["isError"], false, "{tool}");
        assert!(answer.to_string().len() < 1024 * 1024, "{tool} {}", answer.to_string().len());
    }
    assert!(talk.end());
}

#[test]
fn an_agent_cannot_read_in_its_receipt_that_it_guessed_a_secret() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    let mut set = crate::warrant()
        .args(["secret", "set", "TOKEN"])
        .env("WARRANT_HOME", machine.home())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    set.stdin.take().unwrap().write_all(b"s3cr3t-Value-9477").unwrap();
    assert!(set.wait().unwrap().success());
    let told = |guess: &str| {
        let arguments = json!({"argv": ["echo", guess], "secrets": ["TOKEN"]});
        let report = drive(
            &machine,
            &json!([{"tool": "exec", "arguments": arguments}, {"tool": "receipt"}]),
        );
        let results = results(&report);
        let run = facts(results[0])["runId"].as_str().unwrap().to_owned();
        assert_eq!(facts(results[0])["status"], "denied", "{report}");
        assert!(text(results[1]).contains("(verified)"), "{report}");
        let told = serde_json::to_string(&results).unwrap();
        told.replace(&run, "RUN").replace(guess, "GUESS")
    };
    assert_eq!(told("s3cr3t-Value-9477"), told("s3cr3t-Value-0000"));
}

#[test]
fn members_of_the_wrong_type_are_named_and_unknown_methods_are_not_found() {
    let machine = Machine::new();
    let mut child = machine.serve_mcp();
    let client = json!({"protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}});
    let rows = [
        ("tools/call", json!({"name": 7}), -32602, "`params.name` must be a text"),
        ("tools/call", json!({}), -32602, "`params.name` must be a text"),
        ("tools/call", json!([]), -32602, "`params` must be an object"),
        ("tools/call", json!("x"), -32602, "`params` must be an object"),
        ("tools/call", json!({"name": "exec", "arguments": [1]}), -32602, "`params.arguments`"),
        ("tools/call", json!({"name": "exec", "_meta": 1}), -32602, "`params._meta`"),
        ("tools/list", json!({"cursor": {}}), -32602, "`params.cursor` must be a text"),
        ("tools/call", json!({"name": "nothing"}), -32602, "`nothing`"),
        ("tools/destroy", json!({"name": 7}), -32601, "tools/destroy"),
        ("prompts/list", json!({}), -32601, "prompts/list"),
        ("resources/list", json!({}), -32601, "resources/list"),
        ("resources/templates/list", json!({}), -32601, "resources/templates/list"),
    ];
    let mut stdin = child.stdin.take().unwrap();
    let mut said = vec![json!({"id": 0, "method": "initialize", "params": client})];
    said.push(json!({"method": "notifications/initialized"}));
    for (index, (method, params, ..)) in rows.iter().enumerate() {
        said.push(json!({"id": index + 1, "method": method, "params": params}));
    }
    for mut message in said {
        message["jsonrpc"] = "2.0".into();
        writeln!(stdin, "{message}").unwrap();
    }
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut answers = std::collections::BTreeMap::new();
    for line in lines {
        let answer: Value = serde_json::from_str(&line.unwrap()).unwrap();
        answers.insert(answer["id"].as_u64().unwrap(), answer);
        if answers.len() == rows.len() + 1 {
            break;
        }
    }
    drop(stdin);
    child.wait().unwrap();
    for (index, (method, params, code, words)) in rows.iter().enumerate() {
        let error = &answers[&(index as u64 + 1)]["error"];
        assert_eq!(error["code"], *code, "{method} {params}: {error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{method} {params}: {error}");
    }
}

#[test]
fn commit_over_mcp_is_there_outside() {
    let machine = Machine::new();
    let work = machine.work("");
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(["-c", "user.name=n", "-c", "user.email=n@example.com"])
            .args(arguments)
            .current_dir(&work)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .unwrap();
        assert!(output.status.success(), "git {arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    git(&["init", "-q", "-b", "main"]);
    git(&["add", "."]);
    git(&["commit", "-qm", "first"]);
    let commit =
        "echo b >> a.txt && git -c user.name=n -c user.email=n@example.com commit -qam second";
    let calls = json!([{"tool": "exec", "arguments": {"command": commit}}]);
    let report = drive(&machine, &calls);
    let told = text(results(&report)[0]);
    assert!(told.contains("git: refs/heads/main moved from"), "{told}");
    assert_eq!(git(&["log", "--format=%s"]), "second\nfirst\n");
    assert_eq!(git(&["status", "--porcelain"]), "");
}
