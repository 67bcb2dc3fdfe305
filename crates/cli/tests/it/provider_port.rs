//! The provider port, driven as an external runtime drives it: it decides, this machine runs.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::machine::Machine;
use crate::warrant;

/// A policy owner with its provider at the other end of a pipe.
struct Owner {
    machine: Machine,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    next: u64,
}

impl Owner {
    fn new() -> Self {
        Self::on(Machine::new(), &[])
    }

    fn on(machine: Machine, arguments: &[&str]) -> Self {
        let mut child = warrant()
            .args(["sandbox", "provider-port"])
            .args(arguments)
            .env("WARRANT_HOME", machine.home())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { machine, child, input, output, next: 1 }
    }

    fn workspace(&self) -> PathBuf {
        fs::canonicalize(self.machine.work("")).unwrap()
    }

    /// Returns a request of a plain shell script, with everything as a runtime sends it.
    fn request(&self, script: &str) -> Value {
        let workspace = self.workspace();
        json!({
            "kind": "runtime.sandboxPlane.provider.runRequest",
            "action": {
                "actionId": "call-1",
                "runtimeId": "runtime-1",
                "sessionId": "session-1",
                "toolId": "shell.run",
                "ownerRuntime": "praxis",
                "intentLabel": "shell command",
                "metadata": {},
            },
            "command": {"argv": ["sh", "-c", script], "cwd": workspace, "env": {}, "stdin": null},
            "policy": {
                "profile": "standard",
                "sandboxId": "sandbox.linuxBubblewrap",
                "sandboxMode": "isolated",
                "network": "deny",
                "process": {"spawn": true},
                "resources": {"timeoutMs": 30_000, "maxOutputBytes": 4096},
            },
            "filesystem": {
                "workspaceRoot": workspace,
                "read": [workspace],
                "write": [workspace],
                "readonlyRoot": true,
                "protectSecrets": true,
            },
            "policyGrants": [],
            "fallback": {"mode": "none"},
            "metadata": {},
        })
    }

    fn write(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(line.as_bytes()).unwrap();
        input.write_all(b"\n").unwrap();
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn send(&mut self, call: &str, request: &Value) -> u64 {
        let id = self.next;
        self.next += 1;
        self.write(&json!({"id": id, "call": call, "request": request}).to_string());
        id
    }

    #[track_caller]
    fn call(&mut self, call: &str, request: &Value) -> Value {
        let id = self.send(call, request);
        let answer = self.read();
        assert_eq!(answer["id"], id, "{answer}");
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].clone()
    }

    /// The loop of a policy owner: prepare, close gaps by `decide`, run.
    fn run_with(
        &mut self,
        mut request: Value,
        decide: impl Fn(&Value, &mut Value) -> bool,
    ) -> Result<Value, Value> {
        for _ in 0..4 {
            let prepared = self.call("prepareRun", &request);
            match prepared.get("environmentGap") {
                Some(gap) => {
                    if !decide(gap, &mut request) {
                        return Err(prepared);
                    }
                }
                None if prepared["ok"] == true => return Ok(self.call("run", &request)),
                None => return Err(prepared),
            }
        }
        panic!("the gaps never end")
    }

    /// Ends the input and waits for the end of the port.
    fn end(mut self) -> (Vec<Value>, std::process::ExitStatus) {
        drop(self.input.take());
        let mut rest = Vec::new();
        for line in self.output.lines() {
            rest.push(serde_json::from_str(&line.unwrap()).unwrap());
        }
        (rest, self.child.wait().unwrap())
    }

    #[track_caller]
    fn verified(&self, result: &Value) {
        let run = result["metadata"]["runId"].as_str().unwrap();
        let verified = self.machine.run(&["verify", run]);
        assert!(verified.status.success(), "{}", crate::stderr(&verified));
        assert_eq!(result["metadata"]["receiptHash"].as_str().unwrap().len(), 64);
    }
}

/// Returns a directory outside every place that a run has by itself, which everybody may read.
fn outside() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/var").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn grant(request: &mut Value, gap: &Value, path: &Path) {
    let grants = request["policyGrants"].as_array_mut().unwrap();
    grants.push(json!({
        "reason": gap["reason"],
        "path": path,
        "access": gap["required"],
        "grantedBy": "owner",
    }));
}

#[test]
fn a_command_is_prepared_and_run_with_a_receipt() {
    let mut owner = Owner::new();
    let mut request = owner.request("cat; echo \"$NAME $GONE.\"; echo no >&2; exit 3");
    request["command"]["env"] = json!({"NAME": "value", "GONE": null});
    request["command"]["stdin"] = json!("read\n");
    let prepared = owner.call("prepareRun", &request);
    assert_eq!(prepared["kind"], "runtime.sandboxPlane.provider.prepareRunResult");
    assert_eq!(
        (&prepared["ok"], &prepared["providerFamily"]),
        (&json!(true), &json!("linux-bubblewrap"))
    );
    let artifact = &prepared["backendArtifacts"][0];
    assert_eq!(
        (&artifact["backend"], &artifact["format"]),
        (&json!("linux-bubblewrap"), &json!("warrant.plan.v1"))
    );
    assert!(
        artifact["data"]["mounts"].is_array() && artifact["arguments"].is_array(),
        "{artifact}"
    );
    let lowering = &prepared["filesystemLowering"];
    assert_eq!(
        lowering["declaredRoots"][0],
        json!({"path": owner.workspace(), "access": "write", "source": "declared"})
    );
    let scratch = json!({"path": "/tmp", "access": "scratch", "source": "backend-runtime"});
    assert!(lowering["runtimeRoots"].as_array().unwrap().contains(&scratch), "{lowering}");
    assert_eq!((&lowering["policyGrants"], &lowering["warnings"]), (&json!([]), &json!([])));
    assert_eq!(prepared["metadata"]["providerId"], "warrant");
    let ran = owner.call("run", &request);
    assert_eq!(ran["kind"], "runtime.sandboxPlane.provider.runResult");
    let told = (&ran["ok"], &ran["exitCode"], &ran["timedOut"]);
    assert_eq!(told, (&json!(true), &json!(3), &json!(false)), "{ran}");
    assert_eq!((&ran["stdout"], &ran["stderr"]), (&json!("read\nvalue .\n"), &json!("no\n")));
    assert!(ran.get("denial").is_none() && ran.get("environmentGap").is_none(), "{ran}");
    owner.verified(&ran);
    let (rest, status) = owner.end();
    assert!(rest.is_empty() && status.success(), "{rest:?} {status}");
}

#[test]
fn preparing_stores_nothing() {
    let mut owner = Owner::new();
    let request = owner.request("echo hi");
    owner.call("prepareRun", &request);
    let runs = owner.machine.run(&["runs", "--json"]);
    let runs: Value = serde_json::from_slice(&runs.stdout).unwrap();
    assert_eq!(runs["runs"], json!([]));
}

#[test]
fn a_gap_is_told_and_closed_by_the_owner_s_grant() {
    let (mut owner, outside) = (Owner::new(), outside());
    let file = outside.path().join("told");
    fs::write(&file, "told\n").unwrap();
    let request = owner.request(&format!("cat {}", file.display()));
    let prepared = owner.call("prepareRun", &request);
    let gap = &prepared["environmentGap"];
    assert_eq!(prepared["ok"], false);
    assert_eq!(gap["reason"], "path-outside-declared-roots");
    assert_eq!((&gap["path"], &gap["required"]), (&json!(file), &json!(["read"])));
    assert!(gap["publicSafeMessage"].as_str().unwrap().contains("told"), "{gap}");
    let effect = &prepared["filesystemLowering"]["effects"][0];
    assert_eq!((&effect["command"], &effect["access"]), (&json!("cat"), &json!("read")));
    assert_eq!((&effect["path"], &effect["confidence"]), (&json!(file), &json!("high")));
    // Without the grant it does not run either, and leaves evidence.
    let ran = owner.call("run", &request);
    assert_eq!((&ran["ok"], &ran["environmentGap"]), (&json!(false), gap), "{ran}");
    assert_eq!(ran["denial"]["code"], "SANDBOX_DENIED");
    owner.verified(&ran);
    let ran = owner.run_with(request, |gap, request| {
        grant(request, gap, Path::new(gap["path"].as_str().unwrap()));
        true
    });
    let ran = ran.unwrap();
    assert_eq!((&ran["ok"], &ran["stdout"]), (&json!(true), &json!("told\n")), "{ran}");
    let lowering = &ran["filesystemLowering"];
    assert_eq!(lowering["policyGrants"][0]["grantedBy"], "owner");
    let root = json!({"path": file, "access": "read", "source": "policy-grant"});
    assert!(lowering["declaredRoots"].as_array().unwrap().contains(&root), "{lowering}");
    owner.verified(&ran);
}

#[test]
fn a_dynamic_path_is_rewritten_by_the_owner() {
    let (mut owner, home) = (Owner::new(), outside());
    fs::write(home.path().join("notes"), "mine\n").unwrap();
    let mut request = owner.request("cat ~/notes");
    request["command"]["env"] = json!({"HOME": home.path()});
    let path = home.path().join("notes");
    let ran = owner.run_with(request, |gap, request| {
        assert_eq!(gap["reason"], "shell-dynamic-path-unresolved");
        request["command"]["argv"][2] = json!(format!("cat {}", path.display()));
        grant(request, gap, &path);
        true
    });
    assert_eq!(ran.unwrap()["stdout"], "mine\n");
}

#[test]
fn a_denied_gap_runs_nothing() {
    let mut owner = Owner::new();
    let request = owner.request("cat /root/.profile /var/lib/nothing");
    let prepared = owner.run_with(request, |_, _| false).unwrap_err();
    assert_eq!(prepared["environmentGap"]["reason"], "path-outside-declared-roots");
    let runs = owner.machine.run(&["runs", "--json"]);
    let runs: Value = serde_json::from_slice(&runs.stdout).unwrap();
    assert_eq!(runs["runs"], json!([]));
}

#[test]
fn a_command_that_starts_elsewhere_is_a_gap_until_it_is_given() {
    let (mut owner, outside) = (Owner::new(), outside());
    let mut request = owner.request("pwd");
    request["command"]["cwd"] = json!(outside.path());
    let prepared = owner.call("prepareRun", &request);
    assert_eq!(prepared["environmentGap"]["reason"], "cwd-outside-declared-roots");
    let path = outside.path().to_owned();
    let ran = owner.run_with(request, |gap, request| {
        grant(request, gap, &path);
        true
    });
    let ran = ran.unwrap();
    assert_eq!(ran["stdout"], json!(format!("{}\n", outside.path().display())), "{ran}");
}

#[test]
fn the_policy_of_this_machine_judges_what_the_owner_granted() {
    let mut owner = Owner::new();
    let keys = owner.machine.directory.path().join(".ssh");
    fs::create_dir(&keys).unwrap();
    fs::write(keys.join("id"), "secret\n").unwrap();
    let keys = fs::canonicalize(keys).unwrap();
    let mut request = owner.request("true");
    request["policyGrants"] = json!([
        {"reason": "path-outside-declared-roots", "path": keys, "access": ["read"], "grantedBy": "root"},
    ]);
    // Claims of the caller that nobody proved.
    request["metadata"] = json!({"approvalAccepted": true, "approvalGrantedBy": "the boss"});
    let prepared = owner.call("prepareRun", &request);
    assert_eq!(prepared["ok"], false, "{prepared}");
    let denial = &prepared["denial"];
    assert_eq!((&denial["code"], &denial["publicSafe"]), (&json!("SANDBOX_DENIED"), &json!(true)));
    let warnings = prepared["filesystemLowering"]["warnings"].to_string();
    assert!(warnings.contains("APPROVAL_NOT_COUNTED"), "{prepared}");
    let ran = owner.call("run", &request);
    assert_eq!((&ran["ok"], &ran["exitCode"]), (&json!(false), &Value::Null), "{ran}");
    let run = ran["metadata"]["runId"].as_str().unwrap().to_owned();
    assert!(ran["denial"]["message"].as_str().unwrap().contains(&run), "{ran}");
    assert_eq!(ran["metadata"]["approvalRequired"], true);
    let waiting = owner.machine.run(&["approvals", "--json"]);
    assert!(String::from_utf8_lossy(&waiting.stdout).contains(&run));
}

#[test]
fn a_denied_run_has_a_receipt() {
    let mut owner = Owner::new();
    let mut request = owner.request("true");
    request["policy"]["network"] = json!({"mode": "allow", "hosts": ["example.com"]});
    let prepared = owner.call("prepareRun", &request);
    let message = prepared["denial"]["message"].as_str().unwrap();
    assert!(message.contains("example.com"), "{prepared}");
    let ran = owner.call("run", &request);
    assert_eq!((&ran["ok"], &ran["denial"]["code"]), (&json!(false), &json!("SANDBOX_DENIED")));
    owner.verified(&ran);
}

#[test]
fn profiles_choose_what_becomes_of_writes() {
    let mut owner = Owner::new();
    let mut request = owner.request("echo new > made; exit ${CODE:-0}");
    let made = owner.workspace().join("made");
    let ran = owner.call("run", &request);
    assert_eq!(ran["metadata"]["workspace"]["writes"], "diff", "{ran}");
    assert!(!made.exists());
    request["policy"]["sandboxMode"] = Value::Null;
    assert_eq!(owner.call("run", &request)["metadata"]["workspace"]["writes"], "diff");
    request["policy"]["profile"] = json!("yolo");
    request["command"]["env"] = json!({"CODE": "1"});
    let ran = owner.call("run", &request);
    assert_eq!(ran["metadata"]["workspace"]["writes"], "rolled-back", "{ran}");
    assert!(!made.exists());
    request["command"]["env"] = json!({});
    let ran = owner.call("run", &request);
    assert_eq!(
        ran["metadata"]["workspace"],
        json!({"writes": "kept", "paths": ["made"], "heldBack": [], "conflicts": []})
    );
    assert_eq!(fs::read_to_string(&made).unwrap(), "new\n");
    request["policy"]["sandboxMode"] = json!("none");
    for call in ["prepareRun", "run"] {
        let denied = owner.call(call, &request);
        assert_eq!(
            (&denied["ok"], &denied["denial"]["code"]),
            (&json!(false), &json!("SANDBOX_DENIED"))
        );
    }
    request["policy"]["sandboxMode"] = json!("workspace-rollback");
    request["filesystem"]["write"] = json!([]);
    let ran = owner.call("run", &request);
    let told = ran["stderr"].as_str().unwrap();
    assert!(told.contains("Read-only"), "what is not declared writable is not: {ran}");
}

#[test]
fn what_is_not_available_here_is_never_replaced() {
    let mut owner = Owner::new();
    let mut request = owner.request("true");
    for family in ["windows-sandbox", "macos-containerization", "remote-worker", "host-observed"] {
        request["metadata"] = json!({"providerFamily": family});
        let denied = owner.call("prepareRun", &request);
        assert_eq!(denied["denial"]["code"], "SANDBOX_PROVIDER_UNAVAILABLE", "{denied}");
    }
    request["metadata"] = json!({"providerFamily": "linux-bubblewrap"});
    assert_eq!(owner.call("prepareRun", &request)["ok"], true);
    request["policy"]["process"] = json!({"spawn": false});
    let denied = owner.call("prepareRun", &request);
    assert!(denied["denial"]["message"].as_str().unwrap().contains("hermetic"), "{denied}");
    let mut hermetic = Owner::on(Machine::new(), &["--provider", "hermetic"]);
    let mut request = hermetic.request("echo inside");
    request["policy"]["process"] = json!({"spawn": false});
    let ran = hermetic.call("run", &request);
    assert_eq!(
        (&ran["stdout"], &ran["providerFamily"]),
        (&json!("inside\n"), &json!("external")),
        "{ran}"
    );
}

#[test]
fn time_and_output_are_bounded() {
    let mut owner = Owner::new();
    let mut request = owner.request("echo begun; sleep 600");
    request["policy"]["resources"] = json!({"timeoutMs": 300});
    let ran = owner.call("run", &request);
    assert_eq!((&ran["timedOut"], &ran["exitCode"]), (&json!(true), &json!(124)), "{ran}");
    assert_eq!(ran["stdout"], "begun\n");
    let mut request = owner.request("printf 0123456789");
    request["policy"]["resources"] = json!({"maxOutputBytes": 4});
    let ran = owner.call("run", &request);
    assert_eq!(
        (&ran["stdout"], &ran["metadata"]["stdoutMissingBytes"]),
        (&json!("0123"), &json!(6))
    );
}

#[test]
fn several_calls_are_under_way_at_once() {
    let mut owner = Owner::new();
    // The first ends only when somebody stops it.
    let first = owner.request("sleep 600");
    let first = owner.send("run", &first);
    let latest = |owner: &Owner| owner.machine.json(&["runs", "--json"])["runs"][0].clone();
    until("it never runs", || latest(&owner)["state"] == "running");
    let run = latest(&owner)["runId"].as_str().unwrap().to_owned();
    let second = owner.request("echo second");
    let second = owner.send("run", &second);
    let answer = owner.read();
    assert_eq!((&answer["id"], &answer["result"]["stdout"]), (&json!(second), &json!("second\n")));
    assert!(owner.machine.run(&["cancel", &run]).status.success());
    let answer = owner.read();
    assert_eq!(
        (&answer["id"], &answer["result"]["ok"]),
        (&json!(first), &json!(false)),
        "{answer}"
    );
    assert_eq!(answer["result"]["metadata"]["runId"], json!(run));
    owner.verified(&answer["result"]);
}

#[test]
fn the_end_of_input_stops_what_runs_with_its_receipt() {
    let mut owner = Owner::new();
    let request = owner.request("sleep 600");
    let id = owner.send("run", &request);
    until("it never runs", || {
        owner.machine.json(&["runs", "--json"])["runs"][0]["state"] == "running"
    });
    let (rest, status) = owner.end();
    assert!(status.success(), "{status}");
    assert_eq!((rest.len(), &rest[0]["id"]), (1, &json!(id)), "{rest:?}");
    let result = &rest[0]["result"];
    assert_eq!(
        (&result["ok"], &result["denial"]["code"]),
        (&json!(false), &json!("SANDBOX_RUN_FAILED"))
    );
    assert_eq!(result["metadata"]["outcome"]["kind"], "cancelled", "{result}");
}

#[test]
fn what_is_malformed_is_told_by_its_field() {
    let mut owner = Owner::new();
    let good = owner.request("true");
    let changed = |pointer: &str, value: Value| {
        let mut request = good.clone();
        *request.pointer_mut(pointer).unwrap() = value;
        json!({"id": "x", "call": "run", "request": request}).to_string()
    };
    let lines = [
        ("{", "line: is not JSON", Value::Null),
        ("[1]", "line: is not a JSON object", Value::Null),
        ("{}", "id: has to be", Value::Null),
        (r#"{"id":[],"call":"run"}"#, "id: has to be", Value::Null),
        (r#"{"id":1,"call":"walk"}"#, "call: has to be prepareRun or run", json!(1)),
        (r#"{"id":1,"call":"run"}"#, "request: is missing", json!(1)),
        (r#"{"id":1,"call":"run","request":7}"#, "request: is a number", json!(1)),
        (&changed("/kind", json!("other")), "request.kind: is not", json!("x")),
        (&changed("/action/toolId", json!(7)), "request.action.toolId: is a number", json!("x")),
        (&changed("/command/argv", json!([])), "request.command.argv: needs", json!("x")),
        (
            &changed("/command/argv", json!(["a", 1])),
            "request.command.argv[1]: is a number",
            json!("x"),
        ),
        (
            &changed("/command/argv", json!(["a\0b"])),
            "request.command.argv[0]: contains",
            json!("x"),
        ),
        (
            &changed("/command/cwd", json!("here")),
            "request.command.cwd: is an absolute path",
            json!("x"),
        ),
        (
            &changed("/command/env", json!({"A=B": "1"})),
            "request.command.env.A=B: is no name",
            json!("x"),
        ),
        (&changed("/command/stdin", json!(1)), "request.command.stdin: is a number", json!("x")),
        (
            &changed("/policy/sandboxMode", json!("vm")),
            "request.policy.sandboxMode: is none",
            json!("x"),
        ),
        (
            &changed("/policy/network", json!("maybe")),
            "request.policy.network: is deny",
            json!("x"),
        ),
        (
            &changed("/policy/network", json!({"mode": "allow", "hosts": ["a b:x"]})),
            "request.policy.network.hosts[0]:",
            json!("x"),
        ),
        (
            &changed("/policy/process", json!({"fork": 1})),
            "request.policy.process.fork: is not known",
            json!("x"),
        ),
        (
            &changed("/policy/resources", json!({"timeoutMs": 0})),
            "request.policy.resources.timeoutMs: is a number; it has to be a whole number above 0",
            json!("x"),
        ),
        (
            &changed("/policy/resources", json!({"memory": 1})),
            "request.policy.resources.memory: is not known",
            json!("x"),
        ),
        (
            &changed("/filesystem/read", json!("all")),
            "request.filesystem.read: is a string",
            json!("x"),
        ),
        (
            &changed("/policyGrants", json!([{"reason": "r", "path": "x"}])),
            "request.policyGrants[0].path: is an absolute path",
            json!("x"),
        ),
        (
            &changed("/policyGrants", json!([{"reason": "r", "path": "/x", "access": ["all"]}])),
            "request.policyGrants[0].access[0]: is read or write",
            json!("x"),
        ),
        (
            &changed("/metadata", json!({"approvalAccepted": "yes"})),
            "request.metadata.approvalAccepted",
            json!("x"),
        ),
    ];
    for (line, expected, id) in lines {
        owner.write(line);
        let answer = owner.read();
        assert_eq!(
            (&answer["id"], &answer["error"]["code"]),
            (&id, &json!("INVALID_REQUEST")),
            "{line}"
        );
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(expected), "{line}: {message}");
    }
    let input = owner.input.as_mut().unwrap();
    input.write_all(b"\xff\xfe\x00\n\n  \n").unwrap();
    assert_eq!(owner.read()["error"]["code"], "INVALID_REQUEST");
    let deep = "[".repeat(100_000);
    owner.write(&deep);
    assert_eq!(owner.read()["error"]["code"], "INVALID_REQUEST");
    let long = format!("{{\"id\":\"{}\"}}", "x".repeat(17 << 20));
    owner.write(&long);
    let answer = owner.read();
    assert!(answer["error"]["message"].as_str().unwrap().contains("at most"), "{answer}");
    assert_eq!(owner.call("run", &good)["ok"], true);
    let (rest, status) = owner.end();
    assert!(rest.is_empty() && status.success(), "{rest:?}");
}
