//! Arguments of `warrant continue`.

use std::path::PathBuf;

use clap::Args;

use super::fleet::Told;

pub(super) const CONTINUE_HELP: &str = "\
Work is put down as a checkpoint in an envelope, and the new run's contract names that envelope by
its digest. The new run is judged like any other; its changes are its own.

Without a plane: RUN is a run of this machine. Its files are those of the workspace with the run's
changes on top; without ARGV the same program starts again, or the one of TASK.
With a plane and RUN: a run of the plane goes on there, from its own files with its changes.
With a plane and no RUN: the repository travels, and TASK is what the plane takes over.

Of a run, secrets and hosts that are not named stay as they were.
What was said is --transcript, else what the run's program said.
Exit codes: as of warrant sandbox exec, and warrant run.

Examples:
  warrant continue run_… --note 'the tests still fail' -- npm test
  warrant continue --plane https://plane.example:7172 run_… 'now fix the docs'
  warrant continue --plane https://plane.example:7172 --agent codex --transcript talk.md 'finish it'";

#[derive(Debug, Args)]
pub(crate) struct Continue {
    /// The run that ended (run_…), then the task, if it is another one
    #[arg(value_name = "RUN] [TASK")]
    pub(crate) words: Vec<String>,
    /// The workspace [default: the current directory]
    #[arg(
        long,
        visible_alias = "workspace",
        value_name = "DIR",
        default_value = ".",
        hide_default_value = true
    )]
    pub(crate) repo: PathBuf,
    /// The task, for people and agents [default: the run's]
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// A message for people, kept in the checkpoint
    #[arg(long, value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// A note for whoever goes on, kept in the checkpoint
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// Why it goes on, kept in the envelope
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// What was said, as a file [default: what the run's program said]
    #[arg(long, value_name = "FILE")]
    pub(crate) transcript: Option<PathBuf>,
    /// What the tools did, as a tool journal in JSON
    #[arg(long = "tool-journal", value_name = "FILE")]
    pub(crate) tool_journal: Option<PathBuf>,
    /// Which tier [default: the run's, else namespace]
    #[arg(long, visible_alias = "provider", value_name = "T")]
    pub(crate) isolation: Option<String>,
    /// Put the work down in an envelope and print its digest; nothing runs
    #[arg(long = "only-envelope")]
    pub(crate) only_envelope: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the bundle of the new run here
    #[arg(long, value_name = "BUNDLE")]
    pub(crate) out: Option<PathBuf>,
    /// On this machine: wait for an approval instead of ending with 4
    #[arg(long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) there: There,
    /// The program and its arguments, when it is another one
    #[arg(value_name = "ARGV", last = true, allow_hyphen_values = true)]
    pub(crate) argv: Vec<String>,
}

/// What only a plane is told.
#[derive(Debug, Args)]
#[group(skip)]
#[command(next_help_heading = "At a plane")]
pub(crate) struct There {
    /// Which agent [default: the run's, else command]
    #[arg(long, value_name = "K")]
    pub(crate) agent: Option<String>,
    /// Which pool of runners [default: the run's, else default]
    #[arg(long, value_name = "P")]
    pub(crate) pool: Option<String>,
    #[command(flatten)]
    pub(crate) told: Told,
}

impl There {
    /// Returns the first argument that only a plane understands.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let all = [
            ("--agent", self.agent.is_some()),
            ("--pool", self.pool.is_some()),
            ("--secret", !self.told.secrets.is_empty()),
            ("--allow-host", !self.told.allow_hosts.is_empty()),
            ("--allow-untracked", !self.told.allow_untracked.is_empty()),
            ("--env", !self.told.env.is_empty()),
            ("--timeout", self.told.timeout.is_some()),
            ("--dry-run", self.told.dry_run),
            ("--no-watch", self.told.no_watch),
        ];
        all.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }
}
