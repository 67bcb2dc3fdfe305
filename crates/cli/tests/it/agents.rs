//! The real Claude Code and Codex, unmodified, with a scripted model: governed by our hook and our
//! MCP server without noticing.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

use crate::machine::Machine;
use crate::mcp::clients;
use crate::{stderr, stdout, warrant};

/// A model that says what its script says, until it is dropped.
struct Model {
    process: Child,
    url: String,
    log: PathBuf,
}

impl Model {
    fn start(machine: &Machine, script: &Value) -> Self {
        let (file, log) = (machine.home().join("script.json"), machine.home().join("model.jsonl"));
        std::fs::create_dir_all(machine.home()).unwrap();
        std::fs::write(&file, script.to_string()).unwrap();
        let mut process = Command::new("node")
            .arg(clients("model-server").join("server.mjs"))
            .arg("--script")
            .arg(&file)
            .arg("--log")
            .arg(&log)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Self { process, url, log }
    }

    /// Returns every request the model was sent, as one text.
    fn heard(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Where the agents are installed: as they are now, and as they were a year ago.
const NEWEST: &str = "agents";
const A_YEAR_OLD: &str = "agents-a-year-old";

/// Returns an agent's program with nothing of this machine in its environment. It is stopped when
/// it takes too long.
fn agent(machine: &Machine, age: &str, program: &str) -> Command {
    let mut command = Command::new("timeout");
    command
        .arg("100")
        .arg(clients(age).join("node_modules/.bin").join(program))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", agent_home(machine))
        .current_dir(machine.work(""))
        .stdin(Stdio::null());
    command
}

/// The agents' own files live beside the home, where no sandbox sees them.
fn agent_home(machine: &Machine) -> PathBuf {
    let home = machine.home().join("agent");
    std::fs::create_dir_all(&home).unwrap();
    home
}

fn install(machine: &Machine, words: &[&str]) {
    let output = warrant()
        .args(words)
        .arg("--yes")
        .env("WARRANT_HOME", machine.home())
        .env("HOME", agent_home(machine))
        .current_dir(machine.work(""))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// What both agents are led to do: a command that is allowed and one that is not, through the
/// agent's own shell and through our server.
fn check_both_ways(machine: &Machine, model: &Model, output: &Output) {
    let said = format!("{}\n{}\n{}", stdout(output), stderr(output), model.heard());
    assert_eq!(output.status.code(), Some(0), "{said}");
    let read = |name: &str| std::fs::read_to_string(machine.work(name)).unwrap_or_default();
    assert_eq!(read("by-hook"), "governed\n", "{said}");
    assert_eq!(read("by-mcp"), "governed\n", "{said}");
    assert!(!machine.work("denied-hook").exists() && !machine.work("denied-mcp").exists());
    let heard = model.heard();
    assert!(heard.contains("seen by hook"), "the model sees the output: {said}");
    assert!(heard.contains("seen by mcp"), "{said}");
    assert!(heard.contains("the script is not understood completely"), "{said}");
    let runs = machine.json(&["runs", "--json"]);
    let all = runs["runs"].as_array().unwrap();
    let count = |state: &str| all.iter().filter(|run| run["state"] == state).count();
    assert_eq!((count("completed"), count("denied"), all.len()), (2, 1, 4), "{runs}");
    for run in all.iter().filter(|run| run["hasReceipt"] == true) {
        let verified = machine.run(&["verify", run["runId"].as_str().unwrap()]);
        assert_eq!(verified.status.code(), Some(0), "{}", stdout(&verified));
    }
}

/// Turns of the model: `shell` and `mcp` make a call of the agent's shell and of our exec.
fn script(shell: impl Fn(&str) -> Value, mcp: impl Fn(&str) -> Value) -> Value {
    json!([
        shell("echo governed > by-hook; echo 'seen by' hook"),
        shell("touch denied-hook; sudo id"),
        mcp("echo governed > by-mcp; echo 'seen by' mcp"),
        mcp("touch denied-mcp; if true; then"),
        {"text": "finished"},
    ])
}

#[test]
fn claude_code_is_governed_by_hook_and_by_mcp() {
    check_claude_code(NEWEST);
}

#[test]
fn an_older_claude_code_is_governed_by_hook_and_by_mcp() {
    check_claude_code(A_YEAR_OLD);
}

#[track_caller]
fn check_claude_code(age: &str) {
    let machine = Machine::new();
    let turns = script(
        |command| json!({"tool": "Bash", "input": {"command": command, "description": "x"}}),
        |command| json!({"tool": "mcp__warrant__exec", "input": {"command": command}}),
    );
    let model = Model::start(&machine, &turns);
    install(&machine, &["hook", "install", "claude-code"]);
    install(&machine, &["mcp", "install", "claude"]);
    let output = claude_code(&machine, age, &model).output().unwrap();
    check_both_ways(&machine, &model, &output);
}

fn claude_code(machine: &Machine, age: &str, model: &Model) -> Command {
    let mut command = agent(machine, age, "claude");
    command
        .args(["-p", "do it", "--output-format", "json"])
        .env("ANTHROPIC_BASE_URL", &model.url)
        .env("ANTHROPIC_API_KEY", "sk-none")
        .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
        .env("DISABLE_AUTOUPDATER", "1");
    command
}

#[test]
fn claude_code_cannot_be_led_out_of_the_workspace_by_how_a_path_is_written() {
    for age in [NEWEST, A_YEAR_OLD] {
        let machine = Machine::new();
        let secret = agent_home(&machine).join("secret.txt");
        std::fs::write(&secret, "not for the model\n").unwrap();
        std::os::unix::fs::symlink(agent_home(&machine), machine.work("\u{e9}")).unwrap();
        let path = secret.to_str().unwrap();
        let decomposed = machine.work("e\u{301}/secret.txt");
        let paths = ["~/secret.txt", &format!(" {path}"), &format!("\u{feff}{path}")];
        let read = |path: &str| json!({"tool": "Read", "input": {"file_path": path}});
        let mut turns: Vec<Value> = paths.iter().map(|path| read(path)).collect();
        turns.push(read(decomposed.to_str().unwrap()));
        turns.push(json!({"tool": "Write", "input": {"file_path": "~/planted", "content": "x"}}));
        turns.push(json!({"tool": "Glob", "input": {"pattern": "*", "path": "~"}}));
        turns.push(json!({"text": "finished"}));
        let model = Model::start(&machine, &json!(turns));
        install(&machine, &["hook", "install", "claude-code"]);
        let output = claude_code(&machine, age, &model).output().unwrap();
        let said = format!("{}\n{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(0), "{said}");
        let heard = model.heard();
        assert!(heard.contains("Warrant refuses a call") || heard.contains("outside"), "{heard}");
        assert!(!heard.contains("not for the model"), "{age} {heard}");
        assert!(!agent_home(&machine).join("planted").exists(), "{age}");
    }
}

#[test]
fn claude_code_cannot_run_commands_of_a_skill_past_the_hook() {
    let skill = json!({"tool": "Skill", "input": {"skill": "deploy"}});
    let command = json!({"tool": "SlashCommand", "input": {"command": "/ship"}});
    for (age, turns) in [(NEWEST, vec![skill.clone()]), (A_YEAR_OLD, vec![command, skill])] {
        let machine = Machine::new();
        let planted = machine.home().join("planted");
        let (skills, commands) = (".claude/skills/deploy", ".claude/commands");
        let text = format!(
            "---\nname: deploy\ndescription: deploys\nallowed-tools: Bash\n---\n!`touch {}`\n",
            planted.display()
        );
        for (folder, name) in [(skills, "SKILL.md"), (commands, "ship.md")] {
            std::fs::create_dir_all(machine.work(folder)).unwrap();
            std::fs::write(machine.work(folder).join(name), &text).unwrap();
        }
        let expected = turns.len();
        let turns = [turns, vec![json!({"text": "finished"})]].concat();
        let model = Model::start(&machine, &json!(turns));
        install(&machine, &["hook", "install", "claude-code"]);
        let mut claude = claude_code(&machine, age, &model);
        let output = claude.args(["--allowedTools", "Bash,Skill,SlashCommand"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let heard = model.heard();
        let refusals = heard.matches("commands that no hook is asked about").count();
        assert!(refusals >= expected, "{age}: {heard}");
        assert!(!planted.exists(), "{age}: {heard}");
    }
}

#[test]
fn codex_is_governed_by_hook_and_by_mcp() {
    let machine = Machine::new();
    let turns = script(
        |command| json!({"tool": "exec_command", "input": {"cmd": command}}),
        |command| json!({"tool": "exec", "namespace": "mcp__warrant", "input": {"command": command}}),
    );
    let model = Model::start(&machine, &turns);
    let codex = agent_home(&machine).join(".codex");
    std::fs::create_dir_all(&codex).unwrap();
    write_codex_settings(&codex, &model.url);
    install(&machine, &["hook", "install", "codex"]);
    install(&machine, &["mcp", "install", "codex"]);
    let output = agent(&machine, NEWEST, "codex")
        .args(["exec", "--skip-git-repo-check", "--json", "--dangerously-bypass-hook-trust"])
        .args(["--sandbox", "danger-full-access", "do it"])
        .env("OPENAI_API_KEY", "sk-none")
        .output()
        .unwrap();
    check_both_ways(&machine, &model, &output);
}

#[test]
fn codex_cannot_choose_the_workspace_by_where_a_command_runs_nor_the_shell() {
    let machine = Machine::new();
    let other = machine.directory.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let elsewhere = json!({"cmd": "echo x > planted", "workdir": other});
    let shell = machine.work("bash");
    std::fs::write(&shell, format!("#!/bin/sh\ntouch {}/planted\n", other.display())).unwrap();
    let runs = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&shell, runs).unwrap();
    let turns = json!([
        {"tool": "exec_command", "input": elsewhere},
        {"tool": "exec_command", "input": {"cmd": "echo x > there", "shell": shell}},
        {"tool": "exec_command", "input": {"cmd": "echo x > here"}},
        {"text": "finished"},
    ]);
    let model = Model::start(&machine, &turns);
    let codex = agent_home(&machine).join(".codex");
    std::fs::create_dir_all(&codex).unwrap();
    write_codex_settings(&codex, &model.url);
    install(&machine, &["hook", "install", "codex"]);
    let output = agent(&machine, NEWEST, "codex")
        .args(["exec", "--skip-git-repo-check", "--json", "--dangerously-bypass-hook-trust"])
        .args(["--sandbox", "danger-full-access", "do it"])
        .env("OPENAI_API_KEY", "sk-none")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!other.join("planted").exists(), "{}", model.heard());
    assert!(model.heard().contains("lies outside the project"), "{}", model.heard());
    assert!(machine.work("here").exists(), "{}", model.heard());
}

/// Codex had no hooks a year ago, so the agent's own shell is not ours to govern there.
#[test]
fn an_older_codex_is_governed_by_mcp() {
    let machine = Machine::new();
    let exec = |command: &str| json!({"tool": "mcp__warrant__exec", "input": {"command": command}});
    let turns = json!([
        exec("echo governed > by-mcp; echo 'seen by' mcp"),
        exec("touch denied-mcp; if true; then"),
        {"tool": "list_mcp_resources", "input": {}},
        {"text": "finished"},
    ]);
    let model = Model::start(&machine, &turns);
    let codex = agent_home(&machine).join(".codex");
    std::fs::create_dir_all(&codex).unwrap();
    write_codex_settings(&codex, &model.url);
    install(&machine, &["mcp", "install", "codex"]);
    let output = agent(&machine, A_YEAR_OLD, "codex")
        .args(["exec", "--skip-git-repo-check", "--json", "--sandbox", "danger-full-access"])
        .arg("do it")
        .env("OPENAI_API_KEY", "sk-none")
        .output()
        .unwrap();
    let said = format!("{}\n{}\n{}", stdout(&output), stderr(&output), model.heard());
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(std::fs::read_to_string(machine.work("by-mcp")).unwrap_or_default(), "governed\n");
    assert!(!machine.work("denied-mcp").exists());
    assert!(model.heard().contains("seen by mcp"), "{said}");
    assert!(model.heard().contains("the script is not understood completely"), "{said}");
    assert_eq!(machine.json(&["runs", "--json"])["runs"].as_array().unwrap().len(), 2, "{said}");
}

fn write_codex_settings(codex: &Path, url: &str) {
    let settings = format!(
        "model = \"scripted\"\nmodel_provider = \"scripted\"\n\n[model_providers.scripted]\n\
         name = \"scripted\"\nbase_url = \"{url}/v1\"\nwire_api = \"responses\"\n\
         env_key = \"OPENAI_API_KEY\"\n"
    );
    std::fs::write(codex.join("config.toml"), settings).unwrap();
}
