//! `warrant sandbox exec`: request, decision, contract, run, receipt, in this process.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;
use warrant_plane::judge::judge;
use warrant_plane::reception::APPROVAL_WAIT_MS;
use warrant_plane::{Reception, Submission, random};
use warrant_protocol::{RunId, RunState};
use warrant_runner::run::{Ended, Observer, RunnerIdentity, Surroundings, governed_run};
use warrant_sandbox::{Backend, Cancel, Stdin, Stream};

use crate::args::Exec;
use crate::exit::{Exit, Misuse};
use crate::local::{Local, principal};

pub(crate) mod keep;
mod plan;
pub(crate) mod report;
pub(crate) mod request;
mod terminal;

use report::Report;
use request::Wish;

/// Runs one program under a contract.
pub(crate) fn run(home: Option<&Path>, arguments: &Exec) -> anyhow::Result<Exit> {
    let backends = super::providers::local();
    let backend = super::providers::choose(&backends, arguments.provider.as_deref())?;
    let local = Local::open(home)?;
    let wish = Wish::read(arguments, &local, backend.isolation()).map_err(Misuse::of)?;
    if arguments.dry_run {
        return plan::print(&local, &wish, backend, arguments.json);
    }
    let run = match permitted(&local, &wish, arguments)? {
        Ok(run) => run,
        Err(report) => return report.print(&local, arguments),
    };
    let ended = walk(&local, &wish, backend, (&run, arguments))?;
    let kept = keep::after(&local, &wish, &ended, arguments)?;
    Report::ended(&ended, backend.isolation(), kept).print(&local, arguments)
}

/// Returns the run that may start, or how it ended before it could.
fn permitted(
    local: &Local,
    wish: &Wish,
    arguments: &Exec,
) -> anyhow::Result<Result<RunId, Report>> {
    if let Some(run) = approved_twin(local, wish)? {
        return Ok(Ok(run));
    }
    let submission = Submission {
        request: wish.request.clone(),
        principal: principal(),
        idempotency_key: None,
        approval_wait_ms: APPROVAL_WAIT_MS,
    };
    let around = wish.around(random::now()?.unix_ms());
    let policy = local.policy.as_ref();
    let reception = local.plane.submit(submission, |request| judge(policy, request, around))?;
    let waiting = match reception {
        Reception::Queued { run } => return Ok(Ok(run)),
        Reception::Denied { run, judgment, .. } => return Ok(Err(Report::denied(&run, &judgment))),
        Reception::AwaitingApproval { run, .. } | Reception::Repeated { run } => run,
    };
    if arguments.wait {
        return Ok(match super::approvals::wait(local, &waiting)? {
            Some(refused) => Err(refused),
            None => Ok(waiting),
        });
    }
    let all = local.plane.waiting()?;
    let found = all.into_iter().find(|other| other.run == waiting);
    let found = found.with_context(|| format!("{waiting} does not wait any more; try again"))?;
    Ok(Err(Report::waiting(&waiting, &found.judgment, found.deadline)))
}

/// The same request, approved since it was made: it starts now, and only once.
fn approved_twin(local: &Local, wish: &Wish) -> anyhow::Result<Option<RunId>> {
    let hash = wish.request.hash()?;
    for live in local.plane.store().live()? {
        if live.state != RunState::Queued {
            continue;
        }
        let row = local.plane.store().run(&live.id)?;
        let contract: Value = serde_json::from_str(row.contract.as_deref().unwrap_or("null"))?;
        if row.request_hash == hash && contract.get("approvedBy").is_some() {
            return Ok(Some(live.id));
        }
    }
    Ok(None)
}

fn walk(
    local: &Local,
    wish: &Wish,
    backend: &dyn Backend,
    (run, arguments): (&RunId, &Exec),
) -> anyhow::Result<Ended> {
    let lease = local.plane.lease(run).context("the run cannot be leased")?;
    let home = local.plane.home();
    let identity = RunnerIdentity {
        id: home.runner_id().clone(),
        key: home.runner_key().clone(),
        pool: home.pool().clone(),
    };
    let environment: BTreeMap<String, String> = std::env::vars().collect();
    let cancel = Cancel::new().context("no descriptor for cancellation")?;
    terminal::cancel_on_signals(&cancel)?;
    let tty = terminal::size(arguments.tty)?;
    let _raw = terminal::Raw::enter(tty.is_some())?;
    let observer = Live { is_quiet: arguments.json };
    let began = random::now()?;
    let surroundings = Surroundings {
        plane: &local.plane,
        plane_key: home.plane_key().public(),
        identity: &identity,
        backends: &[backend],
        pins: &[],
        workspace: &wish.workspace,
        scratch: &home.sessions(),
        environment: &environment,
        stdin: &stdin(),
        tty,
        cancel: &cancel,
        observer: &observer,
        clock: &|| random::now().unwrap_or(began),
    };
    Ok(governed_run(&surroundings, lease)?)
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
}

impl Observer for Live {
    /// An error means that nobody reads any more, as after `| head`: the program is stopped.
    fn output(&self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        match stream {
            _ if self.is_quiet => Ok(()),
            Stream::Stdout => write(&mut io::stdout().lock(), bytes),
            Stream::Stderr => write(&mut io::stderr().lock(), bytes),
        }
    }
}

fn write(stream: &mut impl io::Write, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)?;
    stream.flush()
}
