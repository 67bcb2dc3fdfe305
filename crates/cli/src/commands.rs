//! The commands, one file each.

use std::path::Path;

use clap::CommandFactory as _;

use crate::args::{Cli, Command, Sandbox};
use crate::exit::Exit;
use crate::plane_client::PlaneClient;
use crate::ui;
use warrant_govern::Desk;
use warrant_govern::archive::Archive;

mod approvals;
mod conform;
mod continuing;
mod dev;
mod doors;
mod ending;
mod exec;
mod hook;
mod keeping;
mod keys;
mod mcp;
pub(crate) mod plane;
mod policy;
mod provider;
mod provider_port;
mod providers;
mod pulling;
mod reading;
mod remote;
mod runner;
mod secret;
mod settings;
mod shell;
mod story;
mod verify;

/// Tells that an exec ended with a code of ours.
pub(crate) use exec::report::failed as told_as_ours;

/// Runs one command.
pub(crate) fn run(cli: Cli) -> anyhow::Result<Exit> {
    let home = cli.home.as_deref();
    let desk = || Desk::open(home);
    let archive = || open_archive(home);
    let plane = || PlaneClient::find(home, &cli.plane);
    let needed = || PlaneClient::needed(home, &cli.plane);
    match cli.command {
        Command::Sandbox(command) => sandbox(home, command),
        Command::Mcp(arguments) => mcp::run(home, &arguments),
        Command::Hook(command) => hook::run(home, command),
        Command::Shell(arguments) => shell::run(home, &arguments),
        Command::Run(arguments) => match plane()? {
            Some(plane) => remote::run::run(&plane, &arguments),
            None => remote::run::here(home, &arguments),
        },
        Command::Continue(arguments) => match plane()? {
            Some(plane) => remote::continuing::run(&plane, &arguments),
            None => continuing::run(home, &arguments),
        },
        Command::Watch(arguments) => match plane()? {
            Some(plane) => remote::watch::watch(&plane, &arguments),
            None => reading::watch(&desk()?, &arguments),
        },
        Command::Cancel(arguments) => match plane()? {
            Some(plane) => remote::cancel(&plane, &arguments),
            None => approvals::cancel(&desk()?, &arguments),
        },
        Command::Login(arguments) => remote::login(home, &cli.plane, &arguments),
        Command::Runners { json } => remote::runners(&needed()?, json),
        Command::Runs(arguments) => match plane()? {
            Some(plane) => remote::runs(&plane, &arguments),
            None => reading::runs(archive()?.records(), &arguments),
        },
        Command::Receipt(arguments) => verify::receipt(home, &plane, &arguments),
        Command::Verify(arguments) => verify::verify(home, &plane, &arguments),
        Command::Bundle(arguments) => match plane()? {
            Some(plane) => remote::bundle(&plane, &arguments),
            None => reading::bundle(archive()?.records(), &arguments),
        },
        Command::Log(arguments) => match plane()? {
            Some(plane) => remote::artifact(&plane, &arguments, "log"),
            None => reading::log(archive()?.records(), &arguments),
        },
        Command::Diff(arguments) => match plane()? {
            Some(plane) => remote::artifact(&plane, &arguments, "diff"),
            None => reading::diff(archive()?.records(), &arguments),
        },
        Command::Pull(arguments) => match plane()? {
            Some(plane) => remote::pull(home, &plane, &arguments),
            None => pulling::pull(&desk()?, &arguments),
        },
        Command::Undo(arguments) => pulling::undo(&desk()?, &arguments),
        Command::Export(arguments) => match plane()? {
            Some(plane) => remote::export(&plane, &arguments),
            None => reading::export(archive()?.records(), &arguments),
        },
        Command::Approvals { json } => match plane()? {
            Some(plane) => remote::approvals(&plane, json),
            None => approvals::list(home, json),
        },
        Command::Approve(arguments) => match plane()? {
            Some(plane) => remote::approve(&plane, &arguments),
            None => approvals::approve(home, &arguments),
        },
        Command::Deny(arguments) => match plane()? {
            Some(plane) => remote::deny(&plane, &arguments),
            None => approvals::deny(home, &arguments),
        },
        Command::Secret(command) => secret::run(&desk()?, command),
        Command::Doors(command) => doors::run(&desk()?, command),
        Command::Policy(command) => policy::run(&desk()?, command),
        Command::Provider(command) => provider::run(home, command),
        Command::Dev(arguments) => dev::run(home, &arguments),
        Command::Plane(command) => plane::run(home, &command),
        Command::Runner(command) => runner::run(&cli.plane, command),
        Command::Init(arguments) => policy::init(home, &arguments),
        Command::Keys(command) => keys::run(home, command),
        Command::Backup(arguments) => keeping::backup(home, &arguments),
        Command::Restore(arguments) => keeping::put_back(home, &arguments),
        Command::Fsck(arguments) => keeping::check(home, &arguments),
        Command::Doctor { json } => providers::doctor(json),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "warrant", &mut script);
            ui::data(&String::from_utf8_lossy(&script));
            Ok(Exit::Success)
        }
    }
}

/// Opens what is kept of runs, to be read, and says when that is all that can be done.
fn open_archive(home: Option<&Path>) -> anyhow::Result<Archive> {
    let archive = Archive::open(home)?;
    if let Some(cause) = archive.unwritable() {
        ui::note(&format!("this home cannot be written now and is read as it is: {cause}"));
    }
    Ok(archive)
}

fn sandbox(home: Option<&Path>, command: Sandbox) -> anyhow::Result<Exit> {
    match command {
        Sandbox::Exec(arguments) => exec::run(home, &arguments),
        Sandbox::Probe { provider, json } => providers::probe(home, provider.as_deref(), json),
        Sandbox::Providers { json } => providers::list(home, json),
        Sandbox::Reap { provider, json } => providers::reap(home, provider.as_deref(), json),
        Sandbox::Continue(arguments) => continuing::run(home, &arguments),
        Sandbox::ProviderPort { provider, logging } => provider_port::run(home, provider, &logging),
        Sandbox::Conform { provider, tier, json, report } => {
            let report = report.as_deref();
            conform::run(home, &conform::Wanted { provider: &provider, tier: &tier, json, report })
        }
    }
}
