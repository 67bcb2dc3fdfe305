//! `warrant hook`: events of the agents in, verdicts in their words out.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::machine::Machine;
use crate::{stderr, stdout, warrant};

/// Writes an event to a hook and returns the whole answer.
fn ask(machine: &Machine, agent: &str, event: &str, arguments: &[&str]) -> Output {
    let mut child = warrant()
        .args(["hook", agent])
        .args(arguments)
        .env("WARRANT_HOME", machine.home())
        .env("CLAUDE_PROJECT_DIR", machine.work(""))
        .current_dir(machine.work(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A hook that refuses its arguments may be gone before it reads.
    let _ = child.stdin.take().unwrap().write_all(event.as_bytes());
    child.wait_with_output().unwrap()
}

/// Returns what a hook says of a tool call.
#[track_caller]
pub(crate) fn verdict(machine: &Machine, agent: &str, tool: &str, input: Value) -> Value {
    let event = json!({
        "session_id": "s", "turn_id": "t", "transcript_path": null, "cwd": machine.work(""),
        "hook_event_name": "PreToolUse", "model": "m", "permission_mode": "default",
        "tool_name": tool, "tool_input": input, "tool_use_id": "u",
    });
    let output = ask(machine, agent, &event.to_string(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stdout(&output)))
}

fn specific(answer: &Value) -> &Value {
    assert_eq!(answer["hookSpecificOutput"]["hookEventName"], "PreToolUse", "{answer}");
    &answer["hookSpecificOutput"]
}

/// Runs a rewritten command as an agent would, through a shell in the workspace.
fn as_the_agent(machine: &Machine, command: &str, shell: &str) -> Output {
    Command::new(shell)
        .args(["-c", command])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir(machine.work(""))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn an_allowed_command_is_the_same_command_in_the_sandbox() {
    let machine = Machine::new();
    let script = "printf '%s\\n' \"it's\" '$HOME' > out.txt; cat out.txt; [[ -e a.txt ]] && exit 4";
    for agent in ["claude-code", "codex"] {
        let input = json!({"command": script, "description": "x"});
        let answer = verdict(&machine, agent, "Bash", input);
        let told = specific(&answer);
        assert_eq!(told["permissionDecision"], "allow", "{answer}");
        assert_eq!(told["updatedInput"]["description"], "x", "the rest of the input stays");
        let command = told["updatedInput"]["command"].as_str().unwrap();
        assert!(command.contains("sandbox exec") && command.contains(agent), "{command}");
        for shell in ["sh", "bash"] {
            let ran = as_the_agent(&machine, command, shell);
            assert_eq!(stdout(&ran), "it's\n$HOME\n", "{}", stderr(&ran));
            assert_eq!(ran.status.code(), Some(4), "{}", stderr(&ran));
            assert!(stderr(&ran).contains("warrant: namespace"), "{}", stderr(&ran));
        }
        let kept = std::fs::read_to_string(machine.work("out.txt")).unwrap();
        assert_eq!(kept, "it's\n$HOME\n", "the agent finds what it wrote");
    }
    let runs = machine.json(&["runs", "--json"]);
    let asked: Vec<&str> = runs["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["requestedBy"].as_str().unwrap().split('/').next().unwrap())
        .collect();
    assert_eq!(
        asked,
        ["service:codex", "service:codex", "service:claude-code", "service:claude-code"]
    );
}

#[test]
fn a_denied_command_does_not_happen_and_leaves_a_receipt() {
    let machine = Machine::new();
    // Without a policy everything is denied.
    assert_eq!(machine.run(&["runs"]).status.code(), Some(0));
    std::fs::remove_dir_all(machine.home().join("policy")).unwrap();
    for agent in ["claude-code", "codex"] {
        let answer = verdict(&machine, agent, "Bash", json!({"command": "ls"}));
        let told = specific(&answer);
        assert_eq!(told["permissionDecision"], "deny", "{answer}");
        assert!(told.get("updatedInput").is_none());
        let reason = told["permissionDecisionReason"].as_str().unwrap();
        let mut words = reason.split_whitespace().map(|word| word.trim_end_matches('.'));
        let run = words.find(|word| word.starts_with("run_")).expect(reason);
        assert_eq!(machine.run(&["verify", run]).status.code(), Some(0), "{reason}");
    }
}

#[test]
fn what_needs_approval_is_asked_and_runs_once_when_approved() {
    let machine = Machine::new();
    let input = || json!({"command": "touch ran; sudo id"});
    let codex = verdict(&machine, "codex", "Bash", input());
    assert_eq!(specific(&codex)["permissionDecision"], "deny", "Codex cannot ask: {codex}");
    let answer = verdict(&machine, "claude-code", "Bash", input());
    let told = specific(&answer);
    assert_eq!(told["permissionDecision"], "ask", "{answer}");
    let reason = told["permissionDecisionReason"].as_str().unwrap();
    let mut words = reason.split_whitespace().map(|word| word.trim_end_matches('.'));
    let run = words.find(|word| word.starts_with("run_")).expect(reason);
    let command = told["updatedInput"]["command"].as_str().unwrap();
    let early = as_the_agent(&machine, command, "sh");
    assert_eq!(early.status.code(), Some(4), "a click in the agent is no approval");
    assert!(!machine.work("ran").exists());
    assert_eq!(machine.run(&["approve", run]).status.code(), Some(0));
    let answer = verdict(&machine, "claude-code", "Bash", input());
    assert_eq!(specific(&answer)["permissionDecision"], "allow", "{answer}");
    as_the_agent(&machine, command, "sh");
    assert!(machine.work("ran").exists(), "the approved command ran");
    let again = as_the_agent(&machine, command, "sh");
    assert_eq!(again.status.code(), Some(4), "and only once: {}", stderr(&again));
}

#[test]
fn file_tools_reach_the_workspace_alone() {
    let machine = Machine::new();
    let outside = machine.home().join("keys");
    std::os::unix::fs::symlink("/etc", machine.work("link")).unwrap();
    let work = |name: &str| machine.work(name).to_str().unwrap().to_owned();
    let rows = [
        ("Write", json!({"file_path": work("new/b.txt"), "content": "x"}), "allow"),
        (
            "Edit",
            json!({"file_path": work("a.txt"), "old_string": "a", "new_string": "b"}),
            "allow",
        ),
        ("Read", json!({"file_path": work("a.txt")}), "allow"),
        ("Read", json!({"file_path": "/etc/passwd"}), "deny"),
        ("Read", json!({"file_path": work("link/passwd")}), "deny"),
        // The agent stands somewhere else than the hook.
        ("Read", json!({"file_path": "/proc/self/cwd/a.txt"}), "deny"),
        ("Read", json!({"file_path": work(".env")}), "deny"),
        ("Write", json!({"file_path": outside, "content": "x"}), "deny"),
        ("Write", json!({"file_path": work("../x"), "content": "x"}), "deny"),
        ("Write", json!({"file_path": work("link/x"), "content": "x"}), "deny"),
        ("Write", json!({"file_path": work(".git/hooks/pre-commit"), "content": "x"}), "deny"),
        ("Write", json!({"file_path": work(".claude/settings.json"), "content": "{}"}), "deny"),
        ("Write", json!({"content": "x"}), "deny"),
        ("WebFetch", json!({"url": "http://example.com"}), "deny"),
        ("mcp__other__exec", json!({"command": "id"}), "deny"),
        ("SomethingNew", json!({}), "deny"),
        ("mcp__warrant__exec", json!({"command": "id"}), "allow"),
    ];
    for (tool, input, expected) in rows {
        let answer = verdict(&machine, "claude-code", tool, input.clone());
        assert_eq!(specific(&answer)["permissionDecision"], expected, "{tool} {input} {answer}");
    }
    let patch = |path: &str| json!({"command": format!("*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch")});
    assert_eq!(verdict(&machine, "codex", "apply_patch", patch("b.txt")), json!({}));
    let away = verdict(&machine, "codex", "apply_patch", patch("../b.txt"));
    assert_eq!(specific(&away)["permissionDecision"], "deny", "{away}");
    assert_eq!(verdict(&machine, "claude-code", "TodoWrite", json!({"todos": []})), json!({}));
}

#[test]
fn an_approval_of_a_file_tool_is_for_that_call_once_and_for_no_other_content() {
    let machine = Machine::new();
    assert_eq!(machine.run(&["init"]).status.code(), Some(0));
    let rules = machine.home().join("policy/rules.cedar");
    let asks = "@id(\"tee-asks\")\n@reason(\"writing asks\")\n\
                forbid (principal, action == Action::\"exec\", resource)\n\
                when { context.cmd.programs.contains(\"tee\") }\n\
                unless { context has approval && context.approval.level >= 1 };\n";
    let all = format!("{}\n{asks}", std::fs::read_to_string(&rules).unwrap());
    std::fs::write(&rules, all).unwrap();
    std::fs::write(machine.home().join("policy/tests.jsonl"), "").unwrap();
    let write = |content: &str| {
        let input = json!({"file_path": machine.work("b.txt"), "content": content});
        verdict(&machine, "claude-code", "Write", input)
    };
    let asked = write("good");
    let reason = specific(&asked)["permissionDecisionReason"].as_str().unwrap().to_owned();
    let mut words = reason.split_whitespace().map(|word| word.trim_end_matches('.'));
    let run = words.find(|word| word.starts_with("run_")).expect(&reason);
    assert_eq!(machine.run(&["approve", run]).status.code(), Some(0), "{reason}");
    let denied = |answer: &Value| answer["hookSpecificOutput"]["permissionDecision"] == "deny";
    assert!(denied(&write("evil")), "nobody approved this content");
    assert_eq!(write("good"), json!({}));
    assert!(denied(&write("good")), "it was approved once");
    let away = json!({"file_path": "/etc/passwd", "content": "x"});
    let outside = verdict(&machine, "claude-code", "Write", away);
    assert!(denied(&outside), "{outside}");
    let reason = specific(&outside)["permissionDecisionReason"].as_str().unwrap();
    assert!(!reason.contains("warrant approve"), "people are not asked in vain: {reason}");
}

/// Writes an event that stands elsewhere than the agent does.
fn verdict_at(machine: &Machine, agent: &str, cwd: &Path, command: &str) -> Value {
    let event = json!({
        "cwd": cwd, "hook_event_name": "PreToolUse", "tool_name": "Bash",
        "tool_input": {"command": command},
    });
    let output = ask(machine, agent, &event.to_string(), &[]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stdout(&output)))
}

#[test]
fn a_model_cannot_choose_the_workspace_by_where_its_command_runs() {
    let machine = Machine::new();
    let other = machine.directory.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::create_dir(machine.work("sub")).unwrap();
    std::os::unix::fs::symlink(&other, machine.work("link")).unwrap();
    for agent in ["claude-code", "codex"] {
        for place in [&other, &machine.work("link"), &machine.work(".."), Path::new("/")] {
            let answer = verdict_at(&machine, agent, place, "echo x > planted");
            let told = specific(&answer);
            assert_eq!(told["permissionDecision"], "deny", "{agent} {}", place.display());
            let reason = told["permissionDecisionReason"].as_str().unwrap();
            assert!(reason.contains("outside the project"), "{reason}");
        }
        let below = verdict_at(&machine, agent, &machine.work("sub"), "pwd");
        assert_eq!(specific(&below)["permissionDecision"], "allow", "{agent} {below}");
        let command = specific(&below)["updatedInput"]["command"].as_str().unwrap();
        assert!(command.contains(&format!("--workspace {}", real(&machine.work("")))), "{command}");
    }
}

fn real(path: &Path) -> String {
    std::fs::canonicalize(path).unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_path_that_the_agent_would_read_otherwise_cannot_leave_the_workspace() {
    let machine = Machine::new();
    std::os::unix::fs::symlink("/etc", machine.work("\u{e9}")).unwrap();
    std::os::unix::fs::symlink("/etc", machine.work(" blank")).unwrap();
    let decomposed = machine.work("e\u{301}/passwd").to_str().unwrap().to_owned();
    let paths =
        ["~/.ssh/id_rsa", "~", " /etc/passwd", "\u{feff}/etc/passwd", "/etc/passwd ", &decomposed];
    for path in paths {
        for (tool, member) in [
            ("Read", "file_path"),
            ("Write", "file_path"),
            ("MultiEdit", "file_path"),
            ("NotebookEdit", "notebook_path"),
            ("Glob", "path"),
        ] {
            let answer = verdict(&machine, "claude-code", tool, json!({member: path}));
            assert_eq!(specific(&answer)["permissionDecision"], "deny", "{tool} {path:?} {answer}");
        }
    }
    for pattern in ["/etc/*", "../*", "~/*", "{..,a}/*"] {
        let answer = verdict(&machine, "claude-code", "Glob", json!({"pattern": pattern}));
        assert_eq!(specific(&answer)["permissionDecision"], "deny", "{pattern} {answer}");
    }
    let answer = verdict(&machine, "claude-code", "Glob", json!({"pattern": "**/*.txt"}));
    assert_eq!(specific(&answer)["permissionDecision"], "allow", "{answer}");
    let patch = json!({"command": "*** Begin Patch\n*** Add File:  blank/x\n+x\n*** End Patch"});
    let answer = verdict(&machine, "codex", "apply_patch", patch);
    assert_eq!(specific(&answer)["permissionDecision"], "deny", "{answer}");
    for (path, expected) in [("a.txt", json!({})), ("/etc/x.png", Value::Null)] {
        let answer = verdict(&machine, "codex", "view_image", json!({"path": path}));
        match expected.is_null() {
            true => assert_eq!(specific(&answer)["permissionDecision"], "deny", "{answer}"),
            false => assert_eq!(answer, expected),
        }
    }
}

#[test]
fn whatever_goes_wrong_is_a_denial() {
    let machine = Machine::new();
    machine.run(&["sandbox", "exec", "--", "true"]);
    let good = json!({
        "cwd": machine.work(""), "hook_event_name": "PreToolUse", "tool_name": "Bash",
        "tool_input": {"command": "true"},
    });
    let denies = |event: &str, arguments: &[&str]| {
        for agent in ["claude-code", "codex"] {
            let output = ask(&machine, agent, event, arguments);
            let answer: Value = serde_json::from_slice(&output.stdout)
                .unwrap_or_else(|_| panic!("{event}: {}{}", stdout(&output), stderr(&output)));
            assert_eq!(specific(&answer)["permissionDecision"], "deny", "{event}");
            assert!(!specific(&answer)["permissionDecisionReason"].as_str().unwrap().is_empty());
        }
    };
    for event in ["", "{", "[]", "{}", "null"] {
        denies(event, &[]);
    }
    for (member, value) in [
        ("tool_input", json!({"command": format!("echo {}", "'x'".repeat(20_000))})),
        ("tool_input", json!({"command": "echo \u{0}"})),
        ("hook_event_name", json!("PostToolUse")),
        ("tool_name", json!(null)),
        ("tool_input", json!([])),
        ("cwd", json!("/nowhere/at/all")),
        ("cwd", json!("relative")),
    ] {
        let mut event = good.clone();
        event[member] = value;
        denies(&event.to_string(), &[]);
    }
    denies(&good.to_string(), &["--provider", "nothing"]);
    denies(&good.to_string(), &["--workspace", "/nowhere/at/all"]);
    denies(&good.to_string(), &["--workspace", "/"]);
    // A broken file leaves the last good policy in force; without any policy nothing is allowed.
    std::fs::write(machine.home().join("policy/document.json"), "{").unwrap();
    let output = ask(&machine, "claude-code", &good.to_string(), &[]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(specific(&answer)["permissionDecision"], "allow", "{answer}");
    std::fs::remove_dir_all(machine.home().join("policy")).unwrap();
    denies(&good.to_string(), &[]);
}

#[test]
fn an_agent_cannot_replace_the_program_that_judges_it() {
    let machine = Machine::new();
    let folder = Path::new(env!("CARGO_BIN_EXE_warrant")).parent().unwrap();
    let event = json!({
        "cwd": folder, "hook_event_name": "PreToolUse", "tool_name": "Bash",
        "tool_input": {"command": "cp evil warrant"},
    });
    let workspace = ["--workspace", folder.to_str().unwrap()];
    let output = ask(&machine, "codex", &event.to_string(), &workspace);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(specific(&answer)["permissionDecision"], "deny", "{answer}");
    assert!(answer.to_string().contains("could replace it"), "{answer}");
    let served = machine.run(&["mcp", "--workspace", folder.to_str().unwrap()]);
    assert_eq!(served.status.code(), Some(2), "{}", stderr(&served));
    assert!(stderr(&served).contains("could replace it"), "{}", stderr(&served));
    let issue = ["doors", "issue", "one", "--scope", "mcp", "--workspace"];
    let issued = machine.run(&[&issue[..], &[folder.to_str().unwrap()]].concat());
    assert_eq!(issued.status.code(), Some(2), "{}", stderr(&issued));
    assert!(stderr(&issued).contains("could be replaced"), "{}", stderr(&issued));
}

/// Installs something below a home of its own, without a person to ask.
fn install(machine: &Machine, words: &[&str]) -> Output {
    warrant()
        .args(words)
        .env("WARRANT_HOME", machine.home())
        .env("HOME", machine.work(""))
        .current_dir(machine.work(""))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn settings_are_changed_after_showing_and_never_destroyed() {
    let machine = Machine::new();
    let rows = [
        (vec!["hook", "install", "claude-code"], ".claude/settings.json"),
        (vec!["hook", "install", "codex"], ".codex/hooks.json"),
        (vec!["mcp", "install", "claude"], ".claude.json"),
        (vec!["mcp", "install", "codex"], ".codex/config.toml"),
        (vec!["mcp", "install", "cursor"], ".cursor/mcp.json"),
    ];
    for (words, file) in rows {
        let path = machine.work(file);
        let with = |flag: &'static str| [words.clone(), vec![flag]].concat();
        let shown = install(&machine, &with("--dry-run"));
        assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
        assert!(stderr(&shown).contains("warrant"), "{}", stderr(&shown));
        assert!(!path.exists(), "a dry run writes nothing");
        assert_eq!(install(&machine, &words).status.code(), Some(2), "nobody was asked");
        assert!(!path.exists());
        let written = install(&machine, &with("--yes"));
        assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));
        let once = std::fs::read_to_string(&path).unwrap();
        assert!(once.contains(env!("CARGO_BIN_EXE_warrant")), "{once}");
        install(&machine, &with("--yes"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), once, "twice is the same as once");
        let broken: &[&str] = match file.ends_with("toml") {
            true => &["x = '''\n", "x = '''a\nb'''\n", "model = \"a\n", "[a\n", "a = 1\na = 2\n"],
            false => &["{ // mine\n}"],
        };
        for broken in broken {
            std::fs::write(&path, broken).unwrap();
            let refused = install(&machine, &with("--yes"));
            assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), *broken, "left as it is");
        }
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::write(machine.work(".claude.json"), "{\"mcpServers\": {\"a\": {}}, \"x\": 1}")
        .unwrap();
    install(&machine, &["mcp", "install", "claude", "--yes"]);
    let settings = json_file(&machine.work(".claude.json"));
    assert_eq!((&settings["x"], &settings["mcpServers"]["a"]), (&json!(1), &json!({})));
    assert_eq!(settings["mcpServers"]["warrant"]["command"], env!("CARGO_BIN_EXE_warrant"));
}

#[test]
fn settings_keep_every_other_letter_links_and_owners_and_what_nobody_may_write() {
    let machine = Machine::new();
    let hook = ["hook", "install", "claude-code", "--yes"];
    let path = machine.work(".claude/settings.json");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let before = "{\n\t\"z\": 12345678901234567890123,\n\t\"a\": {\"b\":[1 ,2]}\n}";
    let real = machine.work("dotfiles.json");
    std::fs::write(&real, before).unwrap();
    std::os::unix::fs::symlink(&real, &path).unwrap();
    let written = install(&machine, &hook);
    assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));
    assert!(path.is_symlink(), "the link stays");
    let after = std::fs::read_to_string(&real).unwrap();
    assert!(after.starts_with(before.strip_suffix("\n}").unwrap()), "{after}");
    assert!(!stderr(&written).contains("1234567890"), "only the change is shown");
    assert!(install(&machine, &hook).status.success());
    assert_eq!(std::fs::read_to_string(&real).unwrap(), after, "twice is the same as once");

    std::fs::write(&real, before).unwrap();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o444);
    std::fs::set_permissions(&real, closed).unwrap();
    let refused = install(&machine, &hook);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("is read-only"), "{}", stderr(&refused));
    assert_eq!(std::fs::read_to_string(&real).unwrap(), before);

    std::fs::remove_file(&real).unwrap();
    let refused = install(&machine, &hook);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(path.is_symlink() && !real.exists(), "a link that leads nowhere is left alone");
}

#[test]
fn without_a_home_only_a_projects_settings_are_changed() {
    let machine = Machine::new();
    for (words, file) in [
        (["hook", "install", "claude-code"], ".claude/settings.json"),
        (["hook", "install", "codex"], ".codex/hooks.json"),
        (["mcp", "install", "claude"], ".mcp.json"),
        (["mcp", "install", "codex"], ".codex/config.toml"),
        (["mcp", "install", "cursor"], ".cursor/mcp.json"),
    ] {
        let run = |more: &[&str]| {
            let mut command = warrant();
            command.args(words).args(more).env("WARRANT_HOME", machine.home());
            command.env_remove("HOME").env_remove("CLAUDE_CONFIG_DIR").env_remove("CODEX_HOME");
            command.current_dir(machine.work("")).stdin(Stdio::null()).output().unwrap()
        };
        let refused = run(&["--yes"]);
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("HOME is not set"), "{}", stderr(&refused));
        let written = run(&["--project", "--yes"]);
        assert_eq!(written.status.code(), Some(0), "{}", stderr(&written));
        assert!(machine.work(file).exists(), "{file}");
    }
}
