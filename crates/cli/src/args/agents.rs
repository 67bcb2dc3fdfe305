//! Arguments of the doors for agents on this machine: `warrant mcp`, `warrant hook`,
//! `warrant shell`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const MCP_HELP: &str = "\
Every call of a tool is one governed run in the workspace: judged by policy, inside the sandbox,
with a signed receipt. What programs write is in the workspace afterwards; `undo` takes it back.

Examples:
  warrant mcp install claude          # show the change, ask, write it
  warrant mcp install codex --yes
  warrant mcp --workspace ~/project   # what the agent starts";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = MCP_HELP)]
pub(crate) struct Mcp {
    #[command(subcommand)]
    pub(crate) command: Option<McpCommand>,
    /// The workspace [default: the current directory]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub(crate) workspace: PathBuf,
    /// Which tier [default: the strongest one that a probe confirms here]
    #[arg(long, value_name = "P")]
    pub(crate) provider: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// Write our server into an agent's settings, after showing the change
    Install {
        /// claude, codex or cursor
        #[arg(value_name = "AGENT", value_parser = ["claude", "codex", "cursor"])]
        agent: String,
        #[command(flatten)]
        how: Install,
    },
}

/// How settings of an agent are changed. It is part of several commands, so it names no group.
#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct Install {
    /// Change the settings of the project in the current directory instead of yours
    #[arg(long)]
    pub(crate) project: bool,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    /// Show the change and do nothing
    #[arg(long = "dry-run", conflicts_with = "yes")]
    pub(crate) dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const HOOK_HELP: &str = "\
An agent calls its hook before every tool call. A shell command that policy allows is answered with
the same command inside the sandbox (warrant sandbox exec …); what policy denies does not happen,
and the agent is told why; file tools reach the workspace alone; tools that are not known are
refused. Whatever goes wrong is a denial.

Examples:
  warrant hook install claude-code
  warrant hook install codex --dry-run
  warrant hook claude-code < event.json";

#[derive(Debug, Subcommand)]
#[command(after_help = HOOK_HELP)]
pub(crate) enum Hook {
    /// Answer one PreToolUse event of Claude Code: JSON in, JSON out
    ClaudeCode(HookEvent),
    /// Answer one PreToolUse event of Codex: JSON in, JSON out
    Codex(HookEvent),
    /// Write our hook into an agent's settings, after showing the change
    Install {
        /// claude-code or codex
        #[arg(value_name = "AGENT", value_parser = ["claude-code", "codex"])]
        agent: String,
        /// A tool of the agent that passes unjudged, outside the boundary (can be repeated)
        #[arg(long = "unjudged", value_name = "TOOL")]
        unjudged: Vec<String>,
        #[command(flatten)]
        how: Install,
    },
}

#[derive(Debug, Args)]
pub(crate) struct HookEvent {
    /// The workspace [default: the agent's project, else where it stands]
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Which tier [default: the strongest one that a probe confirms here]
    #[arg(long, value_name = "P")]
    pub(crate) provider: Option<String>,
    /// A tool of the agent that passes unjudged, outside the boundary (can be repeated)
    #[arg(long = "unjudged", value_name = "TOOL")]
    pub(crate) unjudged: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Every line is one governed run: judged, inside the sandbox, with a receipt. Writes to the workspace
stay, also when a line fails; `undo` takes the last one back. Variables and functions do not outlive
their line; `cd` does.

Own words: cd DIR, undo, diff, receipt, policy, help, exit.")]
pub(crate) struct Shell {
    /// The workspace [default: the current directory]
    #[arg(long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub(crate) workspace: PathBuf,
    /// Which tier [default: the strongest one that a probe confirms here]
    #[arg(long, value_name = "P")]
    pub(crate) provider: Option<String>,
    /// A host that every line may reach, where policy allows it (can be repeated)
    #[arg(long = "allow-host", value_name = "H")]
    pub(crate) allow_hosts: Vec<String>,
    /// Print one JSON object for each line instead of the program's output
    #[arg(long)]
    pub(crate) json: bool,
}
