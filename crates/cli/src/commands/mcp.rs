//! `warrant mcp`: the governed shell and files for agents that speak MCP, on standard input and
//! output; and its entry in their settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use anyhow::Context as _;
use serde_json::{Value, json};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;
use warrant_govern::mcp::serve_stdio;
use warrant_govern::{Away, Workbench, WorkbenchOptions, agent_principal};

use super::settings::{self, Change, Format};
use crate::args::{Install, Mcp, McpCommand};
use crate::exit::{Exit, Misuse};

/// Serves one client, or installs the server.
pub(crate) fn run(home: Option<&Path>, arguments: &Mcp) -> anyhow::Result<Exit> {
    if let Some(McpCommand::Install { agent, how }) = &arguments.command {
        return install(home, agent, how);
    }
    let options = WorkbenchOptions {
        home: home.map(Path::to_owned),
        workspace: arguments.workspace.clone(),
        provider: arguments.provider.clone(),
        away: Away::plain(),
        principal: agent_principal("mcp"),
    };
    let bench = Arc::new(Workbench::open(options)?);
    settings::refuse_own_program(bench.workspace()).map_err(Misuse::of)?;
    heed_stops(&bench)?;
    serve_stdio(bench)?;
    Ok(Exit::Success)
}

/// Looks, when `warrant cancel` of another process says so, which run is to be stopped.
fn heed_stops(bench: &Arc<Workbench>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGUSR1]).context("signals cannot be watched")?;
    let bench = Arc::clone(bench);
    let heed = move || {
        for _ in signals.forever() {
            // Without a policy that loads nothing runs, so there is nothing to stop.
            if let Ok(desk) = bench.desk() {
                desk.heed_stops();
            }
        }
    };
    thread::Builder::new().name("stops".to_owned()).spawn(heed).context("no thread")?;
    Ok(())
}

fn install(home: Option<&Path>, agent: &str, how: &Install) -> anyhow::Result<Exit> {
    let warrant = settings::this_program()?;
    let mut args = settings::home_arguments(home)?;
    args.push("mcp".to_owned());
    let change = match agent {
        "codex" => Change::plan(&codex_file(how)?, Format::Toml, |before| {
            settings::with_toml_table(before, "mcp_servers.warrant", &toml_lines(&warrant, &args))
        })?,
        _ => Change::plan(&json_file(agent, how)?, Format::Json, |before| {
            let server = json!({"command": warrant, "args": args});
            settings::with_json(before, &["mcpServers", "warrant"], |_| Ok(server))
        })?,
    };
    let next = match agent {
        "claude" if how.project => "Claude Code asks before it uses a project's server",
        _ => {
            "start the agent again; its tools are exec, read_file, write_file, list_files, diff, \
              undo, request_approval, receipt"
        }
    };
    settings::carry_out(&change, how, next)
}

fn json_file(agent: &str, how: &Install) -> anyhow::Result<PathBuf> {
    Ok(match (agent, how.project) {
        ("claude", true) => PathBuf::from(".mcp.json"),
        ("claude", false) => match settings::named_directory("CLAUDE_CONFIG_DIR") {
            Some(directory) => directory.join(".claude.json"),
            None => settings::home_directory()?.join(".claude.json"),
        },
        (_, true) => PathBuf::from(".cursor/mcp.json"),
        (_, false) => settings::home_directory()?.join(".cursor/mcp.json"),
    })
}

/// Returns a file of Codex's settings directory.
pub(crate) fn codex_directory(how: &Install) -> anyhow::Result<PathBuf> {
    if how.project {
        return Ok(PathBuf::from(".codex"));
    }
    Ok(match settings::named_directory("CODEX_HOME") {
        Some(directory) => directory,
        None => settings::home_directory()?.join(".codex"),
    })
}

fn codex_file(how: &Install) -> anyhow::Result<PathBuf> {
    codex_directory(how).map(|directory| directory.join("config.toml")).context("no settings")
}

/// A JSON string without control characters is a TOML string, and a list of them a TOML list.
fn toml_lines(warrant: &str, args: &[String]) -> Vec<String> {
    vec![format!("command = {}", Value::from(warrant)), format!("args = {}", json!(args))]
}
