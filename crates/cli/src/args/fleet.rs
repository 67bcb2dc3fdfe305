//! Arguments of the commands that speak with a plane somewhere else.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::logs::LogArguments;

/// Which plane a command speaks of.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlaneArguments {
    /// The plane to speak with [default: the one logged in to, else this machine]
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "WARRANT_PLANE",
        help_heading = "Everywhere"
    )]
    pub(crate) plane: Option<String>,
    /// A certificate to trust for TLS instead of the machine's, as a PEM file
    #[arg(long, global = true, value_name = "FILE", help_heading = "Everywhere")]
    pub(crate) plane_ca: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Runner {
    /// Take runs from a plane and work on them until told to stop
    #[command(after_help = RUNNER_HELP)]
    Start(RunnerStart),
}

const RUNNER_HELP: &str = "\
The runner only ever calls out; nothing needs to reach it.
At its first start it enrolls with the token (--enroll-token-file, WARRANT_ENROLL_TOKEN) and pins the plane's key: the one in --plane-key,
else the one the plane says then, which the first line on stderr tells. Later starts need no token.

SIGTERM or Ctrl-C drains: no more claims, what runs may finish until --drain, then it is
cancelled with receipts. Receipts that the plane does not take are kept and told at the next start.

Exit codes: 0 drained, 1 sent away or failed, 2 usage.

Example:
  warrant runner start --plane https://plane.example:7172 --pool default \\
    --enroll-token-file enroll.token --concurrency 4";

#[derive(Debug, Args)]
pub(crate) struct RunnerStart {
    /// The pool to work for
    #[arg(long, value_name = "P", default_value = "default")]
    pub(crate) pool: String,
    /// A file with the token that lets this runner in, at its first start only [default: the
    /// variable WARRANT_ENROLL_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(crate) enroll_token_file: Option<PathBuf>,
    /// Deprecated: other users can read it in the list of processes; use --enroll-token-file
    #[arg(
        long,
        value_name = "T",
        allow_hyphen_values = true,
        conflicts_with = "enroll_token_file"
    )]
    pub(crate) enroll_token: Option<String>,
    /// How many runs at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) concurrency: u16,
    /// Where identity, outbox and workspaces lie
    #[arg(long, value_name = "DIR", default_value = ".warrant-runner")]
    pub(crate) data_dir: PathBuf,
    /// The plane's public key, as a PEM file
    #[arg(long, value_name = "FILE")]
    pub(crate) plane_key: Option<PathBuf>,
    /// A tier to offer [default: all that hold here] (can be repeated)
    #[arg(long = "provider", value_name = "P")]
    pub(crate) providers: Vec<String>,
    /// An agent to accept [default: any] (can be repeated)
    #[arg(long = "agent", value_name = "KIND")]
    pub(crate) agents: Vec<String>,
    /// A variable of this environment that contracts may inherit (can be repeated)
    #[arg(long = "inherit", value_name = "NAME")]
    pub(crate) inherit: Vec<String>,
    /// How long runs may go on after the drain began: 30s, 5m
    #[arg(long, value_name = "D", default_value = "30s", value_parser = super::super::duration::parse)]
    pub(crate) drain: u64,
    /// How long to wait before asking a plane again that does not wait itself
    #[arg(long, value_name = "D", default_value = "1s", value_parser = super::super::duration::parse)]
    pub(crate) poll: u64,
    /// How long the plane may be unreachable at the first start
    #[arg(long, value_name = "D", default_value = "60s", value_parser = super::super::duration::parse)]
    pub(crate) enroll_wait: u64,
    #[command(flatten)]
    pub(crate) logging: LogArguments,
    /// Print one JSON object at the end
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) const RUN_HELP: &str = "\
With a plane, the repository is captured and uploaded and the run is watched to its end; what it
changed comes home with `warrant pull`. Without one, the same runs here, as sandbox exec does.

Agents: command (the task is a shell script), claude-code, codex, cursor, pi, mock.

What the program prints goes to stdout, all of it; what happens to the run goes to stderr, and its
last line says which run it was, how it ended and whose the exit code is. With --json stdout has one
object per event and a last one with status, exitCode, exitCodeIs and output.

Exit codes: the program's own, or warrant's: 1 failed or lost, 2 usage, 3 denied, 4 waiting for
approval (with --no-watch), 5 approval refused, 7 boundary too weak, 8 more is needed than was given,
9 over a limit, 124 out of time, 130 cancelled. A program may exit with the same number: the last line
on stderr says \"exit code 3 is the program's\" or \"is warrant's own\", and exitCodeIs of --json is
\"program\" or \"warrant\".

Example:
  warrant run --plane https://plane.example:7172 --agent claude-code \\
    --allow-host api.anthropic.com --secret ANTHROPIC_API_KEY 'fix the failing test'";

/// What a plane is told of a run, by whichever command starts it.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub(crate) struct Told {
    /// A secret to release to it by name (can be repeated)
    #[arg(long = "secret", value_name = "NAME")]
    pub(crate) secrets: Vec<String>,
    /// A host it may reach (can be repeated)
    #[arg(long = "allow-host", value_name = "H")]
    pub(crate) allow_hosts: Vec<String>,
    /// A pattern of untracked files that may travel (can be repeated)
    #[arg(long = "allow-untracked", value_name = "G")]
    pub(crate) allow_untracked: Vec<String>,
    /// A variable of its environment (can be repeated)
    #[arg(long = "env", value_name = "K=V")]
    pub(crate) env: Vec<String>,
    /// How long it may take: 500ms, 30s, 5m, 1h
    #[arg(long, value_name = "D", value_parser = super::super::duration::parse)]
    pub(crate) timeout: Option<u64>,
    /// Say what would be sent and what policy says; nothing is sent or stored
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the run's id and end, without waiting for it
    #[arg(long)]
    pub(crate) no_watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Which agent
    #[arg(long, value_name = "K", default_value = "command")]
    pub(crate) agent: String,
    /// Which pool of runners
    #[arg(long, value_name = "P", default_value = "default")]
    pub(crate) pool: String,
    #[command(flatten)]
    pub(crate) told: Told,
    /// The repository or folder
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) repo: PathBuf,
    /// Which tier
    #[arg(long, value_name = "T", default_value = "namespace")]
    pub(crate) isolation: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The task
    #[arg(value_name = "TASK", required = true, trailing_var_arg = true)]
    pub(crate) task: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// The run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Print one JSON object per event, and one with the end, instead of the program's output
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `cancel --help` says below its arguments.
pub(super) const CANCEL_HELP: &str = "\
What waits ends at once. What runs is stopped, with a receipt: in another process of yours on this
machine (sandbox exec, shell, mcp), or at a plane's runner.

Exit codes: 0 it is over or was asked to stop, 1 it was over before or cannot be reached, 2 usage.";

#[derive(Debug, Args)]
pub(crate) struct Cancel {
    /// The run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Login {
    /// Read the token from this file [default: $WARRANT_TOKEN, else standard input]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// The plane's public key, as a PEM file; runs of the plane are verified against it
    #[arg(long, value_name = "FILE")]
    pub(crate) plane_key: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
