//! A run that is under way is stopped by `warrant cancel` of another process, and nobody else is.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::machine::Machine;
use crate::{stderr, stdout, warrant};

/// A `sandbox exec` whose program runs until it is stopped.
struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn start(machine: &Machine) -> Self {
        let mut child = warrant()
            .args(["sandbox", "exec", "--", "sh", "-c", "echo started; exec sleep 1000"])
            .env("WARRANT_HOME", machine.home())
            .current_dir(machine.work(""))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "started\n");
        Self { child, stdout }
    }

    /// Waits for its end and returns its code.
    fn end(mut self) -> Option<i32> {
        drop(self.stdout);
        self.child.wait().unwrap().code()
    }
}

/// Returns the only run, and its state.
fn only_run(machine: &Machine) -> (String, String) {
    let runs = machine.json(&["runs", "--json"]);
    let runs = runs["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 1, "{runs:?}");
    let text = |name: &str| runs[0][name].as_str().unwrap().to_owned();
    (text("runId"), text("state"))
}

#[track_caller]
fn is_cancelled_and_verified(machine: &Machine, run: &str) {
    let verified = machine.run(&["verify", run, "--json"]);
    assert!(verified.status.success(), "{}{}", stdout(&verified), stderr(&verified));
    let runs = machine.json(&["runs", "--json"]);
    let runs = runs["runs"].as_array().unwrap();
    let found = runs.iter().find(|one| one["runId"] == run).unwrap();
    assert_eq!(found["state"], "cancelled", "{found}");
}

#[test]
fn cancel_stops_the_run_of_another_process() {
    let machine = Machine::new();
    let running = Running::start(&machine);
    let (run, state) = only_run(&machine);
    assert_eq!(state, "running");
    let cancelled = machine.json(&["cancel", &run, "--json"]);
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    assert_eq!(running.end(), Some(130));
    is_cancelled_and_verified(&machine, &run);
    let again = machine.run(&["cancel", &run]);
    assert_eq!(again.status.code(), Some(1), "{}", stderr(&again));
}

#[test]
fn cancel_stops_one_call_of_an_agent_and_its_server_goes_on() {
    let machine = Machine::new();
    assert!(machine.run(&["init"]).status.success());
    let mut server = machine.serve_mcp();
    let mut stdin = server.stdin.take().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut say = |message: Value| writeln!(stdin, "{message}").unwrap();
    let mut hear = |id: u64| loop {
        let line = lines.next().unwrap().unwrap();
        let message: Value = serde_json::from_str(&line).unwrap();
        if message["id"] == id {
            return message;
        }
    };
    let client = json!({"protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}});
    say(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}));
    hear(1);
    say(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let call = |id: u64, script: &str| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": "exec", "arguments": {"command": script}}})
    };
    say(call(2, "exec sleep 1000"));
    let run = loop {
        let runs = machine.json(&["runs", "--json"]);
        let first = &runs["runs"][0];
        if first["state"] == "running" {
            break first["runId"].as_str().unwrap().to_owned();
        }
    };
    let cancelled = machine.json(&["cancel", &run, "--json"]);
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    let answer = hear(2);
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    is_cancelled_and_verified(&machine, &run);
    say(call(3, "echo still here"));
    let answer = hear(3);
    assert!(answer.to_string().contains("still here"), "{answer}");
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn cancel_signals_no_stranger_that_holds_the_lock_of_a_run() {
    let machine = Machine::new();
    let mut running = Running::start(&machine);
    let (run, _) = only_run(&machine);
    let mut signs = std::fs::read_dir(machine.home().join("data/alive")).unwrap();
    let sign = signs.next().unwrap().unwrap().path();
    // The sign stays, and the lock is free for somebody else.
    running.child.kill().unwrap();
    assert_eq!(running.end(), None);
    let mut stranger = Command::new("flock")
        .arg("--no-fork")
        .arg(&sign)
        .args(["sh", "-c", "echo held; exec sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(stranger.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    let refused = machine.run(&["cancel", &run]);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("takes no word from outside"), "{}", stderr(&refused));
    assert!(stranger.try_wait().unwrap().is_none(), "the stranger was killed");
    let (_, state) = only_run(&machine);
    assert_eq!(state, "running");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}
