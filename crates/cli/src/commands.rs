//! The commands, one file each.

use std::path::Path;

use clap::CommandFactory as _;

use crate::args::{Cli, Command, Sandbox};
use crate::exit::Exit;
use crate::local::Local;
use crate::ui;

mod approvals;
mod conform;
mod exec;
mod keys;
mod policy;
mod providers;
mod pulling;
mod reading;
mod secret;
mod story;
mod verify;

/// Runs one command.
pub(crate) fn run(cli: Cli) -> anyhow::Result<Exit> {
    let home = cli.home.as_deref();
    let local = || Local::open(home);
    match cli.command {
        Command::Sandbox(command) => sandbox(home, command),
        Command::Runs(arguments) => reading::runs(&local()?, &arguments),
        Command::Receipt(arguments) => verify::receipt(home, &arguments),
        Command::Verify(arguments) => verify::verify(home, &arguments),
        Command::Bundle(arguments) => reading::bundle(&local()?, &arguments),
        Command::Log(arguments) => reading::log(&local()?, &arguments),
        Command::Diff(arguments) => reading::diff(&local()?, &arguments),
        Command::Pull(arguments) => pulling::pull(&local()?, &arguments),
        Command::Undo(arguments) => pulling::undo(&local()?, &arguments),
        Command::Export(arguments) => reading::export(&local()?, &arguments),
        Command::Approvals { json } => approvals::list(&local()?, json),
        Command::Approve(arguments) => approvals::approve(&local()?, &arguments),
        Command::Deny(arguments) => approvals::deny(&local()?, &arguments),
        Command::Secret(command) => secret::run(&local()?, command),
        Command::Policy(command) => policy::run(&local()?, command),
        Command::Init(arguments) => policy::init(home, &arguments),
        Command::Keys(command) => keys::run(home, command),
        Command::Doctor { json } => providers::doctor(json),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "warrant", &mut script);
            ui::data(&String::from_utf8_lossy(&script));
            Ok(Exit::Success)
        }
    }
}

fn sandbox(home: Option<&Path>, command: Sandbox) -> anyhow::Result<Exit> {
    match command {
        Sandbox::Exec(arguments) => exec::run(home, &arguments),
        Sandbox::Probe { provider, json } => providers::probe(provider.as_deref(), json),
        Sandbox::Providers { json } => providers::list(json),
        Sandbox::Conform { provider, tier, json, report } => {
            let report = report.as_deref();
            conform::run(home, &conform::Wanted { provider: &provider, tier: &tier, json, report })
        }
    }
}
