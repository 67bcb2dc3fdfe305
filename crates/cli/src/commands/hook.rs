//! `warrant hook`: one tool call of an agent in, one verdict out. Whatever goes wrong is a denial.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser as _;
use serde_json::{Value, json};
use warrant_govern::hook::{Agent, Judges, ToolCall, Verdict, command_line, decide};
use warrant_govern::{
    Ask, Desk, agent_principal, backends, find_program, plain_request, script_shell,
};
use warrant_protocol::ExecutionSpec;
use warrant_sandbox::Backend;

use super::exec::request::Wish;
use super::mcp::codex_directory;
use super::settings::{self, Change, Format};
use crate::args::{Cli, Command, Hook, HookEvent, Install, Sandbox};
use crate::exit::Exit;
use crate::ui;

/// How large an event may be: agents send whole files.
const MOST_BYTES: u64 = 64 * 1024 * 1024;

/// The longest word that Linux hands to a program.
const MOST_LINE_BYTES: usize = 128 * 1024;

/// How long a verdict may take. Agents let a call pass when their hook does not answer in time, so
/// ours says no long before that.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long the agents wait, in seconds, as written into their settings.
const AGENT_PATIENCE_S: u32 = 60;

/// Answers one event, or installs the hook.
pub(crate) fn run(home: Option<&Path>, command: Hook) -> anyhow::Result<Exit> {
    match command {
        Hook::ClaudeCode(arguments) => Ok(answer(home, Agent::ClaudeCode, &arguments)),
        Hook::Codex(arguments) => Ok(answer(home, Agent::Codex, &arguments)),
        Hook::Install { agent, unjudged, how } => install(home, &agent, (&unjudged, &how)),
    }
}

fn answer(home: Option<&Path>, agent: Agent, arguments: &HookEvent) -> Exit {
    std::thread::spawn(move || {
        std::thread::sleep(PATIENCE);
        refuse(agent, "no verdict in time");
        // Code 2 stops the call in both agents, whatever they made of the text.
        std::process::exit(2);
    });
    match verdict(home, agent, arguments) {
        Ok(verdict) => ui::json(&verdict.answer(agent)),
        Err(error) => refuse(agent, &format!("{error:#}")),
    }
    Exit::Success
}

fn refuse(agent: Agent, problem: &str) {
    let reason = format!("Warrant could not judge this call, so it does not happen: {problem}");
    ui::json(&Verdict::Deny { reason }.answer(agent));
}

fn verdict(home: Option<&Path>, agent: Agent, arguments: &HookEvent) -> anyhow::Result<Verdict> {
    let mut bytes = Vec::new();
    std::io::stdin().take(MOST_BYTES + 1).read_to_end(&mut bytes).context("no event")?;
    if bytes.len() as u64 > MOST_BYTES {
        bail!("the event is larger than {MOST_BYTES} bytes");
    }
    let call = ToolCall::read(&bytes)?;
    let workspace = workspace(agent, arguments, &call.cwd)?;
    settings::refuse_own_program(&workspace)?;
    std::env::set_current_dir(&call.cwd)
        .with_context(|| format!("{} cannot be entered", call.cwd.display()))?;
    let all = backends::local();
    let backend = super::providers::choose(&all, arguments.provider.as_deref())?;
    let desk = Desk::open(home)?;
    let rewriting = Rewriting { home, agent, arguments, workspace: &workspace };
    let judges = Judges {
        desk: &desk,
        workspace: &workspace,
        unjudged: &arguments.unjudged,
        in_sandbox: &|script| rewriting.rewrite(script, &desk, backend).map_err(Into::into),
        ask: &|argv| plain_ask(argv, &desk, backend, (agent, &workspace)),
    };
    Ok(decide(&judges, &call)?)
}

/// The workspace that the person named, or the project that the agent was started in.
// SECURITY: the event says where one call is to run, and in Codex the model chooses that. It must
// not choose the workspace with it, so the project comes from what the agent gave the hook itself.
fn workspace(agent: Agent, arguments: &HookEvent, cwd: &Path) -> anyhow::Result<PathBuf> {
    let project = match (&arguments.workspace, agent) {
        (Some(named), _) => Some(named.clone()),
        (None, Agent::ClaudeCode) => settings::named_directory("CLAUDE_PROJECT_DIR"),
        (None, Agent::Codex) => None,
    };
    let project = match project {
        Some(project) => project,
        None => std::env::current_dir().context("no current directory")?,
    };
    let project = std::fs::canonicalize(project).context("the workspace does not exist")?;
    if project.parent().is_none() {
        bail!("/ is no workspace; start the agent in a project");
    }
    let cwd = std::fs::canonicalize(cwd)
        .with_context(|| format!("{} cannot be entered", cwd.display()))?;
    if arguments.workspace.is_none() && !cwd.starts_with(&project) {
        bail!("{} lies outside the project {}", cwd.display(), project.display());
    }
    Ok(project)
}

/// What a command line of ours is made from.
struct Rewriting<'a> {
    home: Option<&'a Path>,
    agent: Agent,
    arguments: &'a HookEvent,
    workspace: &'a Path,
}

impl Rewriting<'_> {
    /// Returns the command line, and the ask that this very command line will make: it is read
    /// back from its own words.
    fn rewrite(
        &self,
        script: &str,
        desk: &Desk,
        backend: &dyn Backend,
    ) -> anyhow::Result<(String, Ask)> {
        let workspace = self.workspace.to_str().context("the workspace's path is not UTF-8")?;
        let mut words = vec![settings::this_program()?];
        words.extend(settings::home_arguments(self.home)?);
        let fixed = ["sandbox", "exec", "--agent", self.agent.as_str(), "--workspace", workspace];
        words.extend(fixed.map(str::to_owned));
        if let Some(provider) = &self.arguments.provider {
            words.extend(["--provider".to_owned(), provider.clone()]);
        }
        let mode = ["--mode", "workspace-rollback", "--on-failure", "keep", "--"];
        words.extend(mode.map(str::to_owned));
        words.extend([script_shell().as_str(), "-c", script].map(str::to_owned));
        let cli = Cli::try_parse_from(&words).context("our own words do not read back")?;
        let Command::Sandbox(Sandbox::Exec(exec)) = cli.command else {
            bail!("our own words do not read back");
        };
        let line = command_line(words.iter().map(String::as_str));
        // The agent hands the whole line to a shell as one word.
        if line.len() >= MOST_LINE_BYTES {
            bail!("it is too long for a command line: put it into a file, and run that");
        }
        let wish = Wish::read(&exec, desk, backend.isolation())?;
        Ok((line, wish.ask))
    }
}

/// The ask of a file tool, as a program that would do the same.
fn plain_ask(
    argv: &[&str],
    desk: &Desk,
    backend: &dyn Backend,
    (agent, workspace): (Agent, &Path),
) -> Ask {
    let (program, args) = argv.split_first().map_or(("", argv), |(program, args)| (*program, args));
    let execution = ExecutionSpec::Argv {
        command: program.to_owned(),
        args: args.iter().map(|word| (*word).to_owned()).collect(),
        cwd: None,
        timeout_ms: None,
        env: None,
        log: None,
    };
    let principal = agent_principal(agent.as_str());
    let who = (&principal, desk.plane().home().pool());
    let request = plain_request(who, workspace, execution, backend.isolation());
    Ask {
        request,
        workspace: workspace.to_owned(),
        program: find_program(program),
        image: None,
        settled_env: BTreeSet::new(),
        principal,
    }
}

fn install(
    home: Option<&Path>,
    agent: &str,
    (unjudged, how): (&[String], &Install),
) -> anyhow::Result<Exit> {
    let mut words = vec![settings::this_program()?];
    words.extend(settings::home_arguments(home)?);
    words.extend(["hook".to_owned(), agent.to_owned()]);
    words.extend(unjudged.iter().flat_map(|tool| ["--unjudged".to_owned(), tool.clone()]));
    // Both agents stop a call when the hook ends with 2, and let it pass after any other failure:
    // a program that is not there any more must not open the door.
    let line = format!("{} || exit 2", command_line(words.iter().map(String::as_str)));
    let file = match (agent, how.project) {
        ("codex", _) => codex_directory(how)?.join("hooks.json"),
        (_, true) => PathBuf::from(".claude/settings.json"),
        (_, false) => match settings::named_directory("CLAUDE_CONFIG_DIR") {
            Some(directory) => directory.join("settings.json"),
            None => settings::home_directory()?.join(".claude/settings.json"),
        },
    };
    let change = Change::plan(&file, Format::Json, |before| {
        let path = ["hooks", "PreToolUse"];
        settings::with_json(before, &path, |root| hooks_with(root, agent, &line))
    })?;
    let next = match agent {
        "codex" => {
            "trust it at the next start, and run codex with sandbox_mode = \"danger-full-access\": \
             the sandbox is Warrant's, and does not start inside of another"
        }
        _ => "start Claude Code again; its shell commands run in the sandbox now",
    };
    settings::carry_out(&change, how, next)
}

/// Returns the hooks before a tool call, with our entry in place of an older one of ours and
/// everybody else's as they are.
fn hooks_with(
    root: &serde_json::Map<String, Value>,
    agent: &str,
    line: &str,
) -> anyhow::Result<Value> {
    if root.get("disableAllHooks") == Some(&json!(true)) {
        bail!("its `disableAllHooks` is true, so no hook would be called");
    }
    let groups = root.get("hooks").and_then(|hooks| hooks.get("PreToolUse"));
    let mut groups = match groups {
        None => Vec::new(),
        Some(groups) => groups.as_array().context("its `PreToolUse` is no list")?.clone(),
    };
    let is_ours = |hook: &Value| {
        let command = hook.get("command").and_then(Value::as_str).unwrap_or_default();
        command == line || command.contains("warrant") && command.contains(&format!("hook {agent}"))
    };
    for group in &mut groups {
        if let Some(hooks) = group.get_mut("hooks").and_then(Value::as_array_mut) {
            hooks.retain(|hook| !is_ours(hook));
        }
    }
    let is_empty = |group: &Value| group.get("hooks") == Some(&json!([]));
    groups.retain(|group| !is_empty(group));
    let hook = json!({"type": "command", "command": line, "timeout": AGENT_PATIENCE_S});
    groups.push(json!({"matcher": "*", "hooks": [hook]}));
    Ok(Value::Array(groups))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_hook_replaces_itself_and_leaves_the_others() {
        let mut root = json!({
            "hooks": {
                "PreToolUse": [
                    {"matcher": "Bash", "hooks": [{"type": "command", "command": "log"}]},
                    {"matcher": "*", "hooks": [
                        {"type": "command", "command": "/old/warrant hook codex || exit 2"},
                    ]},
                ],
            },
        });
        for line in ["/new/warrant hook codex || exit 2", "/opt/w hook codex || exit 2"] {
            let once = hooks_with(root.as_object().unwrap(), "codex", line).unwrap();
            let groups = once.as_array().unwrap();
            assert_eq!(groups.len(), 2);
            assert_eq!(groups[0]["hooks"][0]["command"], "log");
            assert_eq!(groups[1]["hooks"][0]["command"], line);
            root["hooks"]["PreToolUse"] = once.clone();
            let twice = hooks_with(root.as_object().unwrap(), "codex", line).unwrap();
            assert_eq!(twice, once, "twice is the same as once");
        }
    }

    #[test]
    fn a_hook_that_would_not_be_called_is_not_installed() {
        let root = json!({"disableAllHooks": true});
        let refusal = hooks_with(root.as_object().unwrap(), "claude-code", "x").unwrap_err();
        assert!(refusal.to_string().contains("disableAllHooks"), "{refusal}");
    }
}
