//! The `warrant` binary: arguments in, text and exit code out. It holds no logic that a library
//! could hold. Start at [`args`] for the commands.

use std::process::ExitCode;

use clap::Parser as _;

mod args;
mod commands;
mod exit;
mod ui;

fn main() -> ExitCode {
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(refusal) => return usage(&refusal),
    };
    match commands::run(cli.command) {
        Ok(exit) => exit.into(),
        Err(error) => {
            ui::error(&error);
            exit::Exit::Failure.into()
        }
    }
}

fn usage(refusal: &clap::Error) -> ExitCode {
    let text = refusal.render().to_string();
    if refusal.use_stderr() {
        ui::note(text.trim_end());
        exit::Exit::Usage.into()
    } else {
        ui::data(&text);
        exit::Exit::Success.into()
    }
}
