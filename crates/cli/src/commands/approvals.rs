//! `warrant approvals|approve|deny`, and waiting for someone else to do it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use serde_json::{Value, json};
use warrant_plane::approvals::Approved;
use warrant_plane::{Judgment, Stopped, random};
use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::{RunId, RunState, Signed, Signer, SigningKey};

use crate::args::{Approve, Cancel, Deny};
use crate::commands::exec::report::Report;
use crate::exit::Exit;
use crate::ui;
use warrant_govern::{Desk, principal, principal_of};

/// Opens a home to answer what waits there, and returns who answers.
///
/// Root may answer in somebody else's home; it is opened with its owner's rights, so that nothing
/// in it leads root anywhere.
fn open(home: Option<&Path>) -> anyhow::Result<(Desk, ActorRef)> {
    let root = warrant_govern::environment(home)?.locate()?;
    let owner = fs::symlink_metadata(&root).ok().filter(|home| home.uid() != 0);
    let mut caller = principal();
    if let (Some(home), true) = (owner, geteuid().is_root()) {
        // SECURITY: whoever became root by sudo is still the one who may have asked.
        let person = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
        caller = person.map_or(caller, principal_of);
        set_thread_groups(&[])?;
        set_thread_gid(Gid::from_raw(home.gid()))?;
        set_thread_uid(Uid::from_raw(home.uid()))?;
    }
    Ok((Desk::open(home)?, caller))
}

/// `warrant approvals`.
pub(crate) fn list(home: Option<&Path>, as_json: bool) -> anyhow::Result<Exit> {
    let (desk, _) = open(home)?;
    let waiting = desk.plane().waiting()?;
    if as_json {
        let rows: Vec<Value> = waiting
            .iter()
            .map(|w| {
                json!({
                    "runId": w.run,
                    "request": w.request,
                    "requirements": w.judgment.requirements,
                    "approvedBy": w.approved_by,
                    "deadline": w.deadline,
                })
            })
            .collect();
        ui::json(&json!({"approvals": rows}));
        return Ok(Exit::Success);
    }
    if waiting.is_empty() {
        ui::note("nothing waits for approval");
    }
    for w in &waiting {
        let task = ui::printable(&w.request.prompt);
        ui::data(&format!("{}  {}\n", w.run, task));
        ui::data(&format!("  asked by {}, until {}\n", w.request.requested_by.label(), w.deadline));
        ui::data(&format!("  for {}\n", names(&w.judgment)));
    }
    Ok(Exit::Success)
}

/// Returns what people are asked for, in a line.
pub(crate) fn names(judgment: &Judgment) -> String {
    let names: Vec<&str> = judgment.requirements.iter().map(|r| r.name.as_str()).collect();
    names.join(", ")
}

/// `warrant approve`.
pub(crate) fn approve(home: Option<&Path>, arguments: &Approve) -> anyhow::Result<Exit> {
    let key = arguments.key.as_deref().map(read_key).transpose()?;
    let (desk, caller) = open(home)?;
    let run = desk.run_named(&arguments.run)?;
    let actor = match arguments.name.as_deref().or(arguments.key.as_deref().and_then(key_name)) {
        Some(name) => ActorRef { kind: ActorKind::Human, id: name.to_owned() },
        None => caller,
    };
    let approved = match &key {
        Some(key) => {
            let statement = desk.plane().statement(&run, &actor)?;
            let approval = Signed::seal(&statement, Signer::Approver, key)?;
            desk.plane().approve(&run, &approval)?
        }
        None => desk.plane().approve_authenticated(&run, &actor)?,
    };
    let missing = match approved {
        Approved::Issued => Vec::new(),
        Approved::Missing(missing) => missing,
    };
    if arguments.json {
        let word = if missing.is_empty() { "approved" } else { "counted" };
        ui::json(&json!({"runId": run, "status": word, "missing": missing}));
    } else if missing.is_empty() {
        ui::note(&format!("approved {run} as {}", actor.label()));
    } else {
        ui::note(&format!("counted; {run} still needs: {}", missing.join(", ")));
    }
    Ok(Exit::Success)
}

fn read_key(file: &Path) -> anyhow::Result<SigningKey> {
    let pem =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    SigningKey::from_pem(&pem).with_context(|| format!("{} is no private key", file.display()))
}

/// Returns whose key a file is by its name: `alice` of `alice.key.pem`.
fn key_name(file: &Path) -> Option<&str> {
    let name = file.file_name()?.to_str()?;
    name.split('.').next().filter(|name| !name.is_empty())
}

/// `warrant deny`.
pub(crate) fn deny(home: Option<&Path>, arguments: &Deny) -> anyhow::Result<Exit> {
    let (desk, caller) = open(home)?;
    let run = desk.run_named(&arguments.run)?;
    let reason = arguments.reason.as_deref().unwrap_or("no reason given");
    desk.plane().refuse(&run, &caller, reason)?;
    if arguments.json {
        ui::json(&json!({"runId": run, "status": "denied"}));
    } else {
        ui::note(&format!("refused {run}"));
    }
    Ok(Exit::Success)
}

/// `warrant cancel`: ends what nobody has started; a running one is stopped where it runs.
pub(crate) fn cancel(desk: &Desk, arguments: &Cancel) -> anyhow::Result<Exit> {
    let run = desk.run_named(&arguments.run)?;
    let has_ended = match desk.plane().stop_here(&run, &principal())? {
        Stopped::Ended => true,
        Stopped::Asked => has_stopped(desk, &run)?,
    };
    match (arguments.json, has_ended) {
        (true, true) => ui::json(&json!({"runId": run, "status": "cancelled"})),
        (true, false) => ui::json(&json!({"runId": run, "status": "stopping"})),
        (false, true) => ui::note(&format!("cancelled {run}")),
        (false, false) => ui::note(&format!("asked {run} to stop; it has not ended yet")),
    }
    Ok(Exit::Success)
}

/// Waits a moment for a run that was asked to stop.
fn has_stopped(desk: &Desk, run: &RunId) -> anyhow::Result<bool> {
    for _ in 0..150 {
        let state = desk.plane().store().run(run)?.state;
        if !matches!(state, RunState::Running | RunState::Stopping) {
            return Ok(true);
        }
        // Its process may have been killed meanwhile; then it is sealed here.
        desk.plane().seal_lost()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(false)
}

/// Waits until a run is approved; the report of its end when it was refused or expired.
pub(crate) fn wait(desk: &Desk, run: &RunId) -> anyhow::Result<Option<Report>> {
    ui::note(&format!("warrant: waiting for approval · approve it with: warrant approve {run}"));
    loop {
        let row = desk.plane().store().run(run)?;
        match row.state {
            RunState::AwaitingApproval => {}
            RunState::Queued => return Ok(None),
            RunState::Expired => {
                return Ok(Some(Report::refused(run, "approval did not come in time")));
            }
            RunState::Denied => return Ok(Some(Report::refused(run, "approval was refused"))),
            RunState::Cancelled => {
                return Ok(Some(Report::refused(run, "cancelled before it was approved")));
            }
            // An approval counts once, for whoever gives the command again first.
            _ => return Ok(Some(Report::refused(run, "its approval was used by another process"))),
        }
        if row.deadline.is_some_and(|deadline| random::now().is_ok_and(|now| now > deadline)) {
            desk.plane().seal_lost()?;
        }
        // Another process writes the approval; the store has no way to call us.
        std::thread::sleep(Duration::from_millis(200));
    }
}
