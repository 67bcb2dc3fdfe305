//! The command line: every command, its words and its help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

mod agents;
mod continuing;
mod doors;
mod exec;
mod fleet;
mod reading;
mod serving;
mod setup;

pub(crate) use agents::{Hook, HookEvent, Install, Mcp, McpCommand, Shell};
pub(crate) use continuing::Continue;
pub(crate) use doors::Doors;
pub(crate) use exec::{Exec, Sandbox};
pub(crate) use fleet::{Cancel, Login, PlaneArguments, Run, Runner, RunnerStart, Watch};
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
    #[arg(long, global = true, value_name = "DIR")]
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
    Watch(Watch),
    /// Stop a run
    Cancel(Cancel),
    /// Keep a plane's address and your token, readable by you alone
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
    Bundle(Bundle),
    /// Print what a run's program said, secrets removed
    Log(Log),
    /// Print what a run changed, as a diff
    Diff(Log),
    /// Apply what a run changed to the workspace, never over your own work
    Pull(Pull),
    /// Put back the last change that a run left in the workspace
    Undo(Undo),
    /// Print every event since a time, one JSON object per line
    Export(Export),
    /// List the runs that wait for someone's approval
    Approvals {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Approve a waiting run: sign its exact request, once
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
