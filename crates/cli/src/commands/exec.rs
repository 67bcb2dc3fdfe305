//! `warrant sandbox exec`: request, decision, contract, run, receipt, in this process.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use warrant_govern::keep::{self, Kept};
use warrant_govern::{Ask, Desk, DeskError, Hands, Permit, backends, variables};
use warrant_protocol::port::PlaneError;
use warrant_protocol::{Isolation, RunId};
use warrant_runner::run::{Ended, Observer};
use warrant_sandbox::{Backend, Stdin, Stream};
use warrant_workspace::{ChangeId, Step};

use crate::args::Exec;
use crate::exit::{Exit, Misuse};
use crate::progress::Meter;
use crate::ui;

mod plan;
pub(crate) mod report;
pub(crate) mod request;
mod terminal;

use report::Report;
use request::Wish;

use super::provider::first_use;

/// What an exec leaves behind for whoever looks back at it.
#[derive(Default)]
pub(crate) struct Trace {
    /// The run it became, once there is one.
    pub(crate) run: Option<RunId>,
    /// What it changed in the workspace.
    pub(crate) change: Option<ChangeId>,
    ended: Option<Ended>,
}

/// What an exec holds until its end.
struct Held {
    desk: Desk,
    wish: Wish,
    backends: Vec<Arc<dyn Backend>>,
}

/// Runs one program under a contract. Where that fails, it is told that the exit code is ours.
pub(crate) fn run(home: Option<&Path>, arguments: &Exec) -> anyhow::Result<Exit> {
    let mut trace = Trace::default();
    let (exit, held) = run_or_tell(home, arguments, &mut trace);
    if let Some(Held { desk, wish, backends }) = held {
        desk.leave();
        // The process ends here; the kernel takes what it held apart faster.
        std::mem::forget((wish, backends));
    }
    std::mem::forget(trace);
    Ok(exit)
}

/// Does the same in a process that goes on: nothing of it stays open.
pub(crate) fn run_in_session(home: Option<&Path>, arguments: &Exec) -> (Exit, Trace) {
    let mut trace = Trace::default();
    let (exit, _held) = run_or_tell(home, arguments, &mut trace);
    (exit, trace)
}

fn run_or_tell(home: Option<&Path>, arguments: &Exec, trace: &mut Trace) -> (Exit, Option<Held>) {
    try_run(home, arguments, trace).unwrap_or_else(|error| {
        ui::error(&error);
        (report::failed(&error, Exit::of_error(&error), arguments.json), None)
    })
}

fn try_run(
    home: Option<&Path>,
    arguments: &Exec,
    trace: &mut Trace,
) -> anyhow::Result<(Exit, Option<Held>)> {
    // What only looks leaves nothing behind, not even a home.
    let passing = if arguments.dry_run { passing_home(home)? } else { None };
    let home = passing.as_ref().map_or(home, |directory| Some(directory.path()));
    let remote = super::providers::remote_named(arguments.provider.as_deref(), home)?;
    let exit = try_once(home, (arguments, remote), trace)?;
    if let (Some(isolation), (Exit::PostureTooWeak, Some(held))) = (remote, &exit)
        && let Some(run) = &trace.run
        && first_use::is_accepted(&held.desk, (run, isolation), arguments)?
    {
        // The policy is another one now, in the name of the person who said so.
        *trace = Trace::default();
        return try_once(home, (arguments, remote), trace);
    }
    Ok(exit)
}

fn try_once(
    home: Option<&Path>,
    (arguments, remote): (&Exec, Option<Isolation>),
    trace: &mut Trace,
) -> anyhow::Result<(Exit, Option<Held>)> {
    let (desk, backends) = match remote {
        Some(isolation) => {
            let desk = Desk::open(home)?;
            let remote: Arc<dyn Backend> = super::providers::open(isolation, &desk)?;
            (desk, vec![remote])
        }
        None => Desk::open_beside(home, |data| {
            let all = backends::local_at(data);
            // Whichever it will be remembers what it found.
            let _ = backends::choose(&all, arguments.provider.as_deref()).map(|it| it.probe());
            all
        })?,
    };
    super::policy::note_fault(&desk);
    let backend = super::providers::choose(&backends, arguments.provider.as_deref())?;
    let wish = Wish::read(arguments, &desk, backend.isolation()).map_err(Misuse::of)?;
    check_ends(arguments).map_err(Misuse::of)?;
    if arguments.dry_run {
        return Ok((plan::print(&desk, &wish, backend, arguments.json)?, None));
    }
    let exit = carry_out(&desk, &wish, backend, (arguments, trace))?;
    Ok((exit, Some(Held { desk, wish, backends })))
}

/// Returns a home that is gone afterwards, where none is set up yet.
fn passing_home(home: Option<&Path>) -> anyhow::Result<Option<tempfile::TempDir>> {
    let is_set_up = warrant_govern::environment(home)?.locate()?.join("home.json").exists();
    let alone = fs::Permissions::from_mode(0o700);
    let directory = || tempfile::Builder::new().permissions(alone).tempdir();
    Ok(if is_set_up { None } else { Some(directory()?) })
}

/// Makes sure, before anything is judged, that terminal and bundle can be had at all.
fn check_ends(arguments: &Exec) -> anyhow::Result<()> {
    terminal::size(arguments.tty)?;
    let Some(out) = &arguments.out else { return Ok(()) };
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    if out.is_dir() || !folder.is_dir() {
        bail!("--out {}: no file can be written there", out.display());
    }
    Ok(())
}

/// Has a wish judged, runs it if it may run, and tells how it ended.
pub(crate) fn carry_out(
    desk: &Desk,
    wish: &Wish,
    backend: &dyn Backend,
    (arguments, trace): (&Exec, &mut Trace),
) -> anyhow::Result<Exit> {
    let place = keep::Place::find(&wish.ask.workspace).context("the workspace is gone")?;
    let (run, ended) = loop {
        let bells = terminal::Bells::take()?;
        let run = match permitted(desk, &wish.ask, arguments)? {
            Ok(run) => run,
            Err(report) => {
                trace.run = Some(report.run().clone());
                return report.print(desk, arguments);
            }
        };
        trace.run = Some(run.clone());
        match perform(desk, &wish.ask, backend, (&run, bells, arguments)) {
            // Somebody gave the same command and took what was approved; this one asks again.
            Err(error) if is_taken(&error) => {}
            ended => break (run, ended?),
        }
    };
    let kept = keep::after(desk, &place, wish.mode, &ended)
        .with_context(|| format!("{run} ran, but its writes could not be kept"))?;
    trace.change = match &kept {
        Kept::Exported { change, .. } => Some(*change),
        Kept::Nothing | Kept::AsDiff(_) | Kept::RolledBack => None,
    };
    let report = Report::ended(&ended, backend.isolation(), (&kept, arguments));
    trace.ended = Some(ended);
    report.print(desk, arguments)
}

fn is_taken(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(DeskError::Lease(PlaneError::Fenced(_))))
}

/// Returns the run that may start, or how it ended before it could.
fn permitted(desk: &Desk, ask: &Ask, arguments: &Exec) -> anyhow::Result<Result<RunId, Report>> {
    match desk.permit(ask)? {
        Permit::Granted(run) => Ok(Ok(run)),
        Permit::Denied { run, judgment, .. } => Ok(Err(Report::denied(&run, &judgment))),
        Permit::Waiting { run, .. } if arguments.wait => {
            Ok(match super::approvals::wait(desk, &run)? {
                Some(refused) => Err(refused),
                None => Ok(run),
            })
        }
        Permit::Waiting { run, judgment, deadline } => {
            Ok(Err(Report::waiting(&run, &judgment, deadline)))
        }
    }
}

fn perform(
    desk: &Desk,
    ask: &Ask,
    backend: &dyn Backend,
    (run, bells, arguments): (&RunId, terminal::Bells, &Exec),
) -> anyhow::Result<Ended> {
    let environment = variables();
    let made = || -> anyhow::Result<_> {
        let (stops, tty) = (terminal::Stops::listen(bells)?, terminal::size(arguments.tty)?);
        Ok((stops, tty, terminal::Raw::enter(tty.is_some())?))
    };
    let (stops, tty, _raw) = made().inspect_err(|_| {
        // What was permitted and cannot be begun ends with a receipt, as far as that is possible.
        let _ = desk.plane().cancel(run, &ask.principal);
    })?;
    let observer = Live { is_quiet: arguments.json, meter: Meter::on_terminal() };
    let hands = Hands {
        backend,
        stdin: &if arguments.reads_nothing { Stdin::Empty } else { stdin() },
        tty,
        cancel: &stops.cancel,
        observer: &observer,
        environment: &environment,
    };
    Ok(desk.perform(run, ask, &hands)?)
}

/// Passes our own standard input on; the program may close it at any time.
fn stdin() -> Stdin {
    use std::os::fd::AsFd as _;
    match io::stdin().as_fd().try_clone_to_owned() {
        Ok(descriptor) => Stdin::Descriptor(descriptor.into()),
        Err(_) => Stdin::Empty,
    }
}

/// Passes the program's output through, live and untouched but for secrets.
struct Live {
    is_quiet: bool,
    meter: Meter,
}

impl Observer for Live {
    /// An error means that nobody reads any more, as after `| head`: the program is stopped.
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        match stream {
            _ if self.is_quiet => Ok(()),
            Stream::Stdout => ui::pass_stdout(bytes),
            Stream::Stderr => ui::pass_stderr(bytes),
        }
    }

    fn progress(&self, step: Option<Step>) {
        match step {
            Some(step) => self.meter.step(step),
            None => self.meter.rest(),
        }
    }
}
