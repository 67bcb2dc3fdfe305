//! The command line: every command, its words and its help.

use clap::{Parser, Subcommand};

mod reading;
mod setup;

pub(crate) use reading::Verify;
pub(crate) use setup::Keys;

/// Runs what agents want to run, with permission, inside a boundary, and proves it
#[derive(Debug, Parser)]
#[command(name = "warrant", version, disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Tell the story of a run on one screen
    ///
    /// What moved, why, who approved, what saw it, how to reproduce or revoke it.
    #[command(after_help = reading::VERIFY_HELP)]
    Receipt(Verify),
    /// Verify a run or a bundle file offline against keys you trust
    #[command(after_help = reading::VERIFY_HELP)]
    Verify(Verify),
    /// Make and inspect signing keys
    #[command(subcommand)]
    Keys(Keys),
    /// Print a completion script for a shell
    Completions {
        /// The shell that will read it
        shell: clap_complete::Shell,
    },
}
