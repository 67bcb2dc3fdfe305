//! The commands, one file each.

use clap::CommandFactory as _;

use crate::args::{Cli, Command};
use crate::exit::Exit;
use crate::ui;

mod keys;
mod story;
mod verify;

/// Runs one command.
pub(crate) fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Verify(arguments) => verify::verify(&arguments),
        Command::Receipt(arguments) => verify::receipt(&arguments),
        Command::Keys(command) => keys::run(command),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "warrant", &mut script);
            ui::data(&String::from_utf8_lossy(&script));
            Ok(Exit::Success)
        }
    }
}
