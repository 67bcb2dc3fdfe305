//! Wrong uses, each answered with exit code 2 and the word that is wrong; nothing is left of them.

use std::fs;

use serde_json::Value;

use crate::machine::Machine;
use crate::stderr;

/// What a person types, and what the answer must name.
const WRONG: &[(&[&str], &str)] = &[
    (&["nosuch"], "nosuch"),
    (&["init", "--preset", "nope"], "--preset"),
    (&["sandbox", "exec"], "ARGV"),
    (&["sandbox", "exec", "--provider", "nope", "--", "true"], "nope"),
    (&["sandbox", "exec", "--provider", "e2b", "--", "true"], "E2B_API_KEY"),
    (&["sandbox", "exec", "--timeout", "5x", "--", "true"], "--timeout"),
    (&["sandbox", "exec", "--allow-host", "http://x/y", "--", "true"], "--allow-host"),
    (&["sandbox", "exec", "--allow-host", "a:99999", "--", "true"], "--allow-host"),
    (&["sandbox", "exec", "--secret", "bad name", "--", "true"], "--secret"),
    (&["sandbox", "exec", "--secret-file", "X=", "--", "true"], "--secret-file"),
    (&["sandbox", "exec", "--secret", "T", "--env", "T=x", "--", "true"], "--env T"),
    (&["sandbox", "exec", "--secret-file", "T=V", "--env", "V=x", "--", "true"], "--env V"),
    (&["sandbox", "exec", "--read", "/nonexistent", "--", "true"], "--read"),
    (&["sandbox", "exec", "--write", "/nonexistent", "--", "true"], "--write"),
    (&["sandbox", "exec", "--env", "FOO", "--", "true"], "--env"),
    (&["sandbox", "exec", "--env", "=x", "--", "true"], "--env"),
    (&["sandbox", "exec", "--mode", "weird", "--", "true"], "--mode"),
    (&["sandbox", "exec", "--on-failure", "weird", "--", "true"], "--on-failure"),
    (&["sandbox", "exec", "--workspace", "/nonexistent", "--", "true"], "/nonexistent"),
    (&["sandbox", "exec", "--workspace", "/", "--", "true"], "--workspace"),
    (&["sandbox", "exec", "--image", "x", "--", "true"], "--image"),
    (&["sandbox", "exec", "--accept-evidence", "x", "--", "true"], "--accept-evidence"),
    (&["sandbox", "exec", "--agent", "Bad Name", "--", "true"], "--agent"),
    (&["sandbox", "exec", "--out", "/nonexistent/b", "--", "true"], "--out"),
    (&["sandbox", "exec", "--tty", "--", "true"], "--tty"),
    (&["sandbox", "exec", "--dry-rum", "--", "true"], "--dry-rum"),
    (&["sandbox", "probe", "--provider", "nope"], "nope"),
    (&["sandbox", "reap", "--provider", "namespace"], "--provider"),
    (&["sandbox", "conform", "--provider", "mock", "--tier", "golden"], "golden"),
    (&["runs", "--limit", "0"], "--limit"),
    (&["runs", "--before", "xyz"], "--before"),
    (&["receipt", "run_nope"], "run_nope"),
    (&["verify", "/nonexistent"], "/nonexistent"),
    (&["bundle", "nope"], "nope"),
    (&["log", "nope"], "nope"),
    (&["diff", "nope"], "nope"),
    (&["pull", "nope"], "nope"),
    (&["approve", "nope"], "nope"),
    (&["deny", "nope"], "nope"),
    (&["cancel", "nope"], "nope"),
    (&["watch", "nope"], "nope"),
    (&["continue", "run_nope"], "run_nope"),
    (&["undo", "--workspace", "/nonexistent"], "--workspace"),
    (&["export", "--since", "yesterday"], "--since"),
    (&["secret", "set", "bad name"], "NAME"),
    (&["secret", "set", "GOOD", "--from-file", "/nonexistent"], "--from-file"),
    (&["secret", "set", "GOOD"], "GOOD"),
    (&["secret", "rm", "bad name"], "NAME"),
    (&["policy", "set", "nope"], "nope"),
    (&["policy", "check", "nope"], "nope"),
    (&["policy", "test", "nope"], "nope"),
    (&["policy", "diff", "nope"], "nope"),
    (&["policy", "explain"], "ARGV"),
    (&["keys", "show", "/nonexistent"], "KEYFILE"),
    (&["keys", "id", "/etc/passwd"], "KEYFILE"),
    (&["keys", "approver", "bob", "/nonexistent"], "KEYFILE"),
    (&["doors", "issue", "x", "--scope", "weird"], "--scope"),
    (&["runners"], "--plane"),
    (&["--plane", "notaurl", "runs"], "notaurl"),
    (&["run", "--isolation", "nope", "x"], "nope"),
    (&["runner", "start", "--concurrency", "0"], "--concurrency"),
    (&["plane", "start", "--listen", "nope"], "--listen"),
    (&["plane", "start", "--tls-cert", "/nonexistent"], "--tls-key"),
    (&["plane", "start", "--log", "weird"], "--log"),
    (&["dev", "--listen", "0.0.0.0:0"], "--listen"),
    (&["dev", "--concurrency", "0"], "--concurrency"),
    (&["shell", "--workspace", "/nonexistent"], "/nonexistent"),
    (&["mcp", "--workspace", "/nonexistent"], "/nonexistent"),
    (&["completions", "weird"], "weird"),
];

#[test]
fn every_wrong_use_ends_with_two_and_names_what_is_wrong() {
    let machine = Machine::new();
    let run = |arguments: &[&str]| machine.run(arguments);
    for (arguments, named) in WRONG {
        let output = run(arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(named), "{arguments:?} does not name {named}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}: {output:?}");
    }
    let runs = machine.json(&["runs", "--json"]);
    assert_eq!(runs["runs"], Value::Array(Vec::new()), "a wrong use left a run");
}

#[test]
fn commands_that_change_something_say_it_as_json_when_asked() {
    let machine = Machine::new();
    let json = |arguments: &[&str]| machine.json(arguments);
    fs::write(machine.work("value"), "hunter2-value\n").unwrap();
    assert_eq!(json(&["policy", "set", "dev", "--json"])["inForce"], true);
    assert!(json(&["policy", "test", "--json"])["passed"].as_u64().unwrap() > 0);
    let kept = json(&["secret", "set", "TOKEN", "--from-file", "value", "--json"]);
    assert_eq!(kept["name"], "TOKEN");
    assert!(!kept.to_string().contains("hunter2"), "{kept}");
    assert_eq!(json(&["secret", "rm", "TOKEN", "--json"])["forgotten"], true);
    let key = json(&["keys", "new", "bob", "--json"]);
    assert_eq!(key["publicKeyFile"], "bob.pub.pem");
    let id = json(&["keys", "id", "bob.pub.pem", "--json"]);
    assert_eq!(id["keyId"], key["keyId"]);
    assert_eq!(json(&["keys", "show", "bob.key.pem", "--json"]), id, "never the private key");
    assert_eq!(json(&["keys", "approver", "bob", "bob.pub.pem", "--json"])["keyId"], key["keyId"]);
    let script = "echo said; echo new > file";
    let run = json(&["sandbox", "exec", "--json", "--", "sh", "-c", script]);
    let run = run["runId"].as_str().unwrap();
    let written = json(&["bundle", run, "--out", "b.json", "--json"]);
    assert_eq!(written["file"], "b.json");
    assert_eq!(json(&["bundle", run, "--json"])["receipt"]["runId"], run);
    let log = json(&["log", run, "--json"]);
    assert_eq!((log["text"].as_str(), log["kind"].as_str()), (Some("said\n"), Some("log")));
    assert!(json(&["diff", run, "--json"])["text"].as_str().unwrap().contains("+new"));
}

#[test]
fn columns_of_runs_stand_below_each_other_whatever_their_state() {
    let machine = Machine::new();
    let run = |arguments: &[&str]| machine.run(arguments);
    assert_eq!(run(&["sandbox", "exec", "--", "true"]).status.code(), Some(0));
    let asked = run(&["sandbox", "exec", "--write", "/opt", "--", "true"]);
    assert_eq!(asked.status.code(), Some(4), "{}", stderr(&asked));
    let listed = crate::stdout(&run(&["runs"]));
    assert!(listed.contains("awaiting"), "{listed}");
    let columns: Vec<usize> = listed.lines().map(|line| line.find("  20").unwrap()).collect();
    assert_eq!(columns.len(), 2);
    assert_eq!(columns[0], columns[1], "{listed}");
}
