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

/// Returns an agent's program with nothing of this machine in its environment. It is stopped when
/// it takes too long.
fn agent(machine: &Machine, program: &str) -> Command {
    let mut command = Command::new("timeout");
    command
        .arg("100")
        .arg(clients("agents").join("node_modules/.bin").join(program))
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
    let machine = Machine::new();
    let turns = script(
        |command| json!({"tool": "Bash", "input": {"command": command, "description": "x"}}),
        |command| json!({"tool": "mcp__warrant__exec", "input": {"command": command}}),
    );
    let model = Model::start(&machine, &turns);
    install(&machine, &["hook", "install", "claude-code"]);
    install(&machine, &["mcp", "install", "claude"]);
    let output = agent(&machine, "claude")
        .args(["-p", "do it", "--output-format", "json"])
        .env("ANTHROPIC_BASE_URL", &model.url)
        .env("ANTHROPIC_API_KEY", "sk-none")
        .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
        .env("DISABLE_AUTOUPDATER", "1")
        .output()
        .unwrap();
    check_both_ways(&machine, &model, &output);
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
    let output = agent(&machine, "codex")
        .args(["exec", "--skip-git-repo-check", "--json", "--dangerously-bypass-hook-trust"])
        .args(["--sandbox", "danger-full-access", "do it"])
        .env("OPENAI_API_KEY", "sk-none")
        .output()
        .unwrap();
    check_both_ways(&machine, &model, &output);
}

fn write_codex_settings(codex: &Path, url: &str) {
    let settings = format!(
        "model = \"scripted\"\nmodel_provider = \"scripted\"\n\n[model_providers.scripted]\n\
         name = \"scripted\"\nbase_url = \"{url}/v1\"\nwire_api = \"responses\"\n\
         env_key = \"OPENAI_API_KEY\"\n"
    );
    std::fs::write(codex.join("config.toml"), settings).unwrap();
}
