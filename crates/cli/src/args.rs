//! The command line: every command, its words and its help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

mod agents;
mod continuing;
mod doors;
mod exec;
mod fleet;
mod keeping;
mod provider;
mod reading;
mod serving;
mod setup;

pub(crate) use agents::{Hook, HookEvent, Install, Mcp, McpCommand, Shell};
pub(crate) use continuing::Continue;
pub(crate) use doors::Doors;
pub(crate) use exec::{Exec, Sandbox};
pub(crate) use fleet::{Cancel, Login, PlaneArguments, Run, Runner, RunnerStart, Watch};
pub(crate) use keeping::{Backup, Fsck, PassphraseSource, Restore};
pub(crate) use provider::Provider;
pub(crate) use reading::{Bundle, Export, Log, Pull, Runs, Undo, Verify};
pub(crate) use serving::{Dev, Plane, PlaneStart};
pub(crate) use setup::{Approve, Deny, Init, Keys, Policy, Secret};

/// Runs what agents want to run, with permission, inside a boundary, and proves it
#[derive(Debug, Parser)]
#[command(
    name = "warrant",
    version,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "First governed run:\n  warrant sandbox exec -- echo hello"
)]
pub(crate) struct Cli {
    /// Home directory with keys, policy and store [default: $WARRANT_HOME, else by XDG]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Everywhere")]
    pub(crate) home: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) plane: PlaneArguments,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The words of `warrant sandbox exec` alone.
#[derive(Debug, Parser)]
struct ExecAlone {
    #[arg(long)]
    home: Option<PathBuf>,
    #[command(flatten)]
    plane: PlaneArguments,
    #[command(flatten)]
    exec: Exec,
}

impl Cli {
    /// Reads the command line.
    ///
    /// # Errors
    /// What to tell the person: a mistake, or the help they asked for.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let words: Vec<OsString> = std::env::args_os().collect();
        // The shortest of all commands does not wait for the words of all others; whatever is not
        // plainly right is read, and told, with all of them.
        if let [name, first, second, rest @ ..] = words.as_slice()
            && first == "sandbox"
            && second == "exec"
            && let Ok(ExecAlone { home, plane, exec }) =
                ExecAlone::try_parse_from(std::iter::once(name).chain(rest))
        {
            let command = Command::Sandbox(Sandbox::Exec(Box::new(exec)));
            return Ok(Self { home, plane, command });
        }
        Self::try_parse_from(words)
    }
}

/// Returns, of a command line that is an exec, whether it wants JSON.
pub(crate) fn is_exec() -> Option<bool> {
    let words: Vec<OsString> =
        std::env::args_os().skip(1).take_while(|word| word != "--").collect();
    let is_exec = words.windows(2).any(|pair| pair == ["sandbox", "exec"]);
    is_exec.then(|| words.iter().any(|word| word == "--json"))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run programs inside a governed sandbox, and look at what sandboxes hold here
    #[command(subcommand)]
    Sandbox(Sandbox),
    /// Give an agent a governed shell and files over MCP (standard input and output)
    Mcp(Mcp),
    /// Judge the tool calls of an agent that has a shell of its own
    #[command(subcommand)]
    Hook(Hook),
    /// Work in a governed session yourself: every line is judged, contained and recorded
    Shell(Shell),
    /// Have an agent work on a task, under contract, here or at a plane
    #[command(after_help = fleet::RUN_HELP)]
    Run(Box<Run>),
    /// Go on where a run ended, with its files and what was said, here or at a plane
    #[command(after_help = continuing::CONTINUE_HELP)]
    Continue(Box<Continue>),
    /// Watch a run as it happens
    #[command(after_help = "Exit codes: 0 it completed, 1 it ended otherwise, 2 usage.")]
    Watch(Watch),
    /// Stop a run
    #[command(after_help = fleet::CANCEL_HELP)]
    Cancel(Cancel),
    /// Keep a plane's address and your token, readable by you alone
    #[command(after_help = "Example:\n  warrant login --plane https://plane.example:7172 < token")]
    Login(Login),
    /// List the runners of a plane
    Runners {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List runs, newest first
    Runs(Runs),
    /// Tell the story of a run on one screen
    ///
    /// What moved, why, who approved, what saw it, how to reproduce or revoke it.
    #[command(after_help = reading::VERIFY_HELP)]
    Receipt(Verify),
    /// Verify a run or a bundle file offline against keys you trust
    #[command(after_help = reading::VERIFY_HELP)]
    Verify(Verify),
    /// Write a run's bundle: contract, receipt, chain and keys in one file
    #[command(
        after_help = "Example:\n  warrant bundle run_… --out run.bundle.json && warrant verify run.bundle.json --trust plane.pub.pem"
    )]
    Bundle(Bundle),
    /// Print what a run's program said, secrets removed
    Log(Log),
    /// Print what a run changed, as a diff
    Diff(Log),
    /// Apply what a run changed to the workspace, never over your own work
    #[command(
        after_help = "What does not apply becomes a branch; warrant undo takes it back.\n\nExample:\n  warrant pull run_…"
    )]
    Pull(Pull),
    /// Put back the last change that a run left in the workspace
    Undo(Undo),
    /// Print every event since a time, one JSON object per line
    #[command(
        after_help = "Example:\n  warrant export --since 2026-01-31T00:00:00.000Z >> events.jsonl"
    )]
    Export(Export),
    /// List the runs that wait for someone's approval
    Approvals {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Approve a waiting run: sign its exact request, once
    #[command(
        after_help = "Nobody approves what they asked for themselves. Another user of this machine does it with\nsudo, and signs as the one who called sudo; someone elsewhere does it with a key that was\nregistered here (warrant keys approver).\n\nExamples:\n  warrant approvals\n  warrant approve run_… --key alice.key.pem\n  sudo warrant --home ~alice/.local/share/warrant approve run_…"
    )]
    Approve(Approve),
    /// Refuse a waiting run
    Deny(Deny),
    /// Keep secrets and give them to runs by name
    #[command(subcommand)]
    Secret(Secret),
    /// Keep the tokens with which E2B, Daytona and OpenSandbox clients come in
    #[command(subcommand)]
    Doors(Doors),
    /// Look at, change and test the policy
    #[command(subcommand)]
    Policy(Policy),
    /// Look at remote providers, accept what they cannot prove, pin their versions, try them
    #[command(subcommand)]
    Provider(Provider),
    /// Be plane, runner and page in one process, for a laptop
    Dev(Dev),
    /// Serve this home's plane to clients and runners
    #[command(subcommand)]
    Plane(Plane),
    /// Work for a plane as a member of its fleet
    #[command(subcommand)]
    Runner(Runner),
    /// Set up the home directory by hand
    Init(Init),
    /// Make and inspect signing keys
    #[command(subcommand)]
    Keys(Keys),
    /// Write the whole home into one file, while it is in use
    Backup(Backup),
    /// Put a backup back into an empty home
    Restore(Restore),
    /// Check everything that the home stores: database, runs, receipts, bundles, blobs
    Fsck(Fsck),
    /// Say what this machine lacks for the strongest boundary, and the remedy
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell that will read it
        shell: clap_complete::Shell,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    /// Commands that print no JSON of ours, and why.
    const WITHOUT_JSON: [(&str, &str); 6] = [
        ("warrant mcp", "speaks JSON-RPC on standard output"),
        ("warrant sandbox provider-port", "speaks JSON lines on standard output"),
        ("warrant hook claude-code", "its answer is the agent's own JSON"),
        ("warrant hook codex", "its answer is the agent's own JSON"),
        ("warrant export", "prints JSON lines and nothing else; --json is taken as --jsonl"),
        ("warrant completions", "prints a script for a shell"),
    ];

    fn leaves(command: &clap::Command, path: &str, found: &mut Vec<(String, clap::Command)>) {
        // A command with a program of its own beside its subcommands is a leaf, too.
        if !command.is_subcommand_required_set() {
            found.push((path.to_owned(), command.clone()));
        }
        for below in command.get_subcommands() {
            leaves(below, &format!("{path} {}", below.get_name()), found);
        }
    }

    fn all() -> Vec<(String, clap::Command)> {
        let mut found = Vec::new();
        leaves(&Cli::command(), "warrant", &mut found);
        assert!(found.len() > 40, "{} commands", found.len());
        found
    }

    #[test]
    fn every_command_takes_json_or_says_why_not() {
        for (path, command) in all() {
            let takes = command.get_arguments().any(|argument| argument.get_long() == Some("json"));
            let is_excepted = WITHOUT_JSON.iter().any(|(name, _)| *name == path);
            assert_eq!(takes, !is_excepted, "{path}");
        }
    }

    #[test]
    fn every_command_and_argument_says_what_it_is() {
        for (path, command) in all() {
            assert!(command.get_about().is_some(), "{path} has no first line");
            for argument in command.get_arguments().filter(|one| !one.is_global_set()) {
                let says = argument.get_help().is_some();
                assert!(says, "{path} {} does not say what it is", argument.get_id());
            }
        }
    }
}
