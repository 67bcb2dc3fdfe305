//! Arguments of `warrant sandbox continue`.

use std::path::PathBuf;

use clap::Args;

pub(super) const CONTINUE_HELP: &str = "\
The files are those of the workspace with the run's changes on top; they are put down as a
checkpoint in an envelope, and the new run's contract names that envelope by its digest.
Without ARGV the same program starts again. The new run is judged like any other; its changes
are its own diff, to be pulled after those of the run it continues.
Its exit code is the exit code; see warrant sandbox exec --help for ours.

Example:
  warrant sandbox continue run_… --note 'the tests still fail' -- npm test";

#[derive(Debug, Args)]
pub(crate) struct TakeUp {
    /// The run that ended
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// The workspace it ran in [default: the current directory]
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) workspace: PathBuf,
    /// The task, for people and agents [default: the run's]
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// A message for people, kept in the checkpoint
    #[arg(long, value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// A note for whoever goes on, kept in the checkpoint
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// What was said, as a file [default: what the run's program said]
    #[arg(long, value_name = "FILE")]
    pub(crate) transcript: Option<PathBuf>,
    /// What the tools did, as a tool journal in JSON
    #[arg(long = "tool-journal", value_name = "FILE")]
    pub(crate) tool_journal: Option<PathBuf>,
    /// Which tier [default: the run's]
    #[arg(long, value_name = "P")]
    pub(crate) provider: Option<String>,
    /// Wait for an approval instead of ending with 4
    #[arg(long)]
    pub(crate) wait: bool,
    /// Put the work down in an envelope and print its digest; nothing runs
    #[arg(long = "only-envelope")]
    pub(crate) only_envelope: bool,
    /// Print one JSON object on stdout instead of the program's output
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the bundle of the new run here
    #[arg(long, value_name = "BUNDLE")]
    pub(crate) out: Option<PathBuf>,
    /// The program and its arguments, when it is another one
    #[arg(value_name = "ARGV", last = true, allow_hyphen_values = true)]
    pub(crate) argv: Vec<String>,
}
