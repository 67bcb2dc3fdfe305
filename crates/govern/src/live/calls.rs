//! Calls that start no program: on files, and changes of a sandbox that policy must allow.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use serde_json::{Value, json};
use warrant_plane::doors::{FileAnswer, FileCall, FileFault, WorkshopError, inside};
use warrant_plane::{Judgment, Note, Submission};
use warrant_protocol::observation::OperationGuard;
use warrant_protocol::{Decision, Isolation, Outcome, Posture, RunId};
use warrant_runner::run::Ended;
use warrant_sandbox::{
    Backend, BoundaryError, Cancel, Invocation, Operation, Plan, Refusal, RunReport, Sink, Stdin,
    Stream,
};

use super::asks::{self, Wish};
use super::backend::no_posture;
use super::files::{self, Ground};
use super::life::report;
use super::sandbox::{Living, Unwatched, limits_of, plain_wish, words};
use super::{Shared, disk, lookout};
use crate::ask::Ask;
use crate::desk::{DeskError, Hands, Permit};

/// Does a call on the files of a sandbox, as one governed run.
pub(super) fn file(
    shared: &Shared,
    living: &Living,
    call: FileCall,
) -> Result<(FileAnswer, RunId), WorkshopError> {
    living.check_open()?;
    if matches!(call, FileCall::Watch { .. }) {
        living.check_lookouts()?;
    }
    living.count_file_call();
    let (argv, note) = told(&call, &living.wanted.home)?;
    let place = living.place(shared);
    let limits = limits_of(&living.wanted, living.longest_ms);
    let ask = asks::ask(&place, &Wish { note, limits, ..plain_wish(&argv) })?;
    let run = permitted(shared.desk.permit(&ask))?;
    let ground = Ground { directory: &living.directory, home: &living.wanted.home };
    let work = Work {
        isolation: shared.backend.isolation(),
        name: operation_name(&call),
        guards: &|plan| guards(&call, plan),
        slot: Mutex::new(None),
        act: &|plan| match &call {
            FileCall::Watch { path, recursive, entries } => {
                let wish = lookout::Wish { path, recursive: *recursive, entries: *entries };
                let facts = (&shared.lookouts, living.next_lookout(), &run);
                lookout::open(&ground, &wish, facts).map(FileAnswer::Lookout)
            }
            _ => act(&ground, &call, plan),
        },
    };
    let ended = perform(shared, (&run, &ask), &work)?;
    match work.slot.into_inner() {
        Ok(Some(Ok(answer))) => {
            if let FileAnswer::Lookout(lookout) = &answer {
                living.keep_lookout(lookout)?;
            }
            Ok((answer, run))
        }
        Ok(Some(Err((fault, message)))) => Err(WorkshopError::File { fault, message, run }),
        _ => Err(WorkshopError::Refused { run, message: ended.message }),
    }
}

/// Has a change judged and leaves its receipt; nothing else happens.
pub(super) fn note(shared: &Shared, ask: &Ask) -> Result<RunId, WorkshopError> {
    if let Some(note) = allowed_note(shared, ask)? {
        let kept = shared.desk.plane().keep(note);
        return kept.map_err(WorkshopError::of_error);
    }
    let run = permitted(shared.desk.permit(ask))?;
    noted(shared, (&run, ask))?;
    Ok(run)
}

/// Writes down a change that policy allows at once, to be kept; nothing when it does not.
pub(super) fn allowed_note(shared: &Shared, ask: &Ask) -> Result<Option<Note>, WorkshopError> {
    let judgment = shared.desk.judge(ask).map_err(WorkshopError::of_error)?;
    match judgment.summary.decision {
        Decision::Allow => write_down(shared, ask, judgment),
        Decision::Ask | Decision::Deny => Ok(None),
    }
}

/// Writes down that a call was judged so, to be kept; nothing when people are to be asked.
pub(super) fn write_down(
    shared: &Shared,
    ask: &Ask,
    judgment: Judgment,
) -> Result<Option<Note>, WorkshopError> {
    let submission = Submission {
        request: ask.request.clone(),
        principal: ask.principal.clone(),
        idempotency_key: None,
        approval_wait_ms: 1,
    };
    let note = shared.desk.plane().note(submission, judgment);
    note.map_err(WorkshopError::of_error)
}

/// Leaves the receipt of something permitted; nothing else happens.
pub(super) fn noted(shared: &Shared, (run, ask): (&RunId, &Ask)) -> Result<(), WorkshopError> {
    let isolation = shared.backend.isolation();
    let entries = FileAnswer::Entries(Vec::new());
    let work = Work {
        isolation,
        name: "sandbox.change",
        guards: &|_| Vec::new(),
        slot: Mutex::new(None),
        act: &|_| Ok(entries.clone()),
    };
    let ended = perform(shared, (run, ask), &work)?;
    match ended.outcome.is_success() {
        true => Ok(()),
        false => Err(WorkshopError::Refused { run: run.clone(), message: ended.message }),
    }
}

/// Returns the run that may start, or the refusal.
pub(super) fn permitted(permit: Result<Permit, DeskError>) -> Result<RunId, WorkshopError> {
    match permit {
        Ok(Permit::Granted(run)) => Ok(run),
        Ok(Permit::Denied { run, judgment, .. }) => {
            Err(WorkshopError::Denied { run, reasons: judgment.summary.reasons })
        }
        Ok(Permit::Waiting { run, judgment, .. }) => {
            Err(WorkshopError::Waiting { run, reasons: judgment.summary.reasons })
        }
        Err(error) => Err(WorkshopError::of_error(error)),
    }
}

/// Has what a wrapped command was meant to run judged as well as the form in which it came.
///
/// A wrapper that hides what policy would refuse or ask about is refused.
pub(super) fn judge_unwrapped(
    shared: &Shared,
    (raw, inner): (&Ask, &Ask),
    approval: Option<&RunId>,
) -> Result<(), WorkshopError> {
    let decide = |ask: &Ask| {
        let judgment = shared.desk.judge(ask).map_err(WorkshopError::of_error)?;
        Ok::<_, WorkshopError>((judgment.summary.decision, judgment.summary.reasons))
    };
    let (decision, reasons) = decide(inner)?;
    match (decision, decide(raw)?.0) {
        // People are asked about the form that came, which says the same.
        (Decision::Allow, _) | (Decision::Ask, Decision::Ask) => Ok(()),
        (Decision::Ask, _) if approval.is_some() => Ok(()),
        (Decision::Ask | Decision::Deny, _) => {
            // Judged once more, so that the refusal leaves its evidence.
            let run = match permitted(shared.desk.permit(inner)) {
                Ok(run) => run,
                Err(WorkshopError::Waiting { run, .. }) => run,
                Err(refusal) => return Err(refusal),
            };
            Err(WorkshopError::Denied { run, reasons })
        }
    }
}

fn perform(
    shared: &Shared,
    (run, ask): (&RunId, &Ask),
    work: &Work<'_>,
) -> Result<Ended, WorkshopError> {
    let cancel = Cancel::new().map_err(WorkshopError::of_error)?;
    let hands = Hands {
        backend: work,
        stdin: &Stdin::Empty,
        tty: None,
        cancel: &cancel,
        observer: &Unwatched,
        environment: &BTreeMap::new(),
    };
    shared.desk.perform(run, ask, &hands).map_err(WorkshopError::of_error)
}

/// Returns the command a call is judged as, and what the contract tells besides.
fn told(call: &FileCall, home: &str) -> Result<(Vec<String>, Option<String>), WorkshopError> {
    let at = |path: &String| {
        let inside = inside(home, path);
        inside.ok_or_else(|| WorkshopError::Invalid(format!("`{path}` is no path")))
    };
    Ok(match call {
        FileCall::Read { path } => (words(&["cat", "--", &at(path)?]), None),
        FileCall::Write { path, content, .. } => {
            let digest = warrant_protocol::Digest::of(content);
            let note = format!("{} bytes, {digest}", content.len());
            (words(&["tee", "--", &at(path)?]), Some(note))
        }
        FileCall::List { path, .. } => (words(&["ls", "-la", "--", &at(path)?]), None),
        FileCall::Stat { path } => (words(&["stat", "--", &at(path)?]), None),
        FileCall::MakeDirectory { path, .. } => (words(&["mkdir", "-p", "--", &at(path)?]), None),
        FileCall::Move { from, to } => (words(&["mv", "--", &at(from)?, &at(to)?]), None),
        FileCall::Remove { path, .. } => (words(&["rm", "-r", "--", &at(path)?]), None),
        FileCall::SetMode { path, mode } => {
            (words(&["chmod", &format!("{mode:o}"), "--", &at(path)?]), None)
        }
        // Whoever watches learns what listing again and again would tell.
        FileCall::Watch { path, recursive, .. } => {
            let flags = if *recursive { "-laR" } else { "-la" };
            (words(&["ls", flags, "--", &at(path)?]), Some("watched from now on".to_owned()))
        }
    })
}

type Acted = Result<FileAnswer, (FileFault, String)>;

/// Returns what a call is, as its receipt names it.
const fn operation_name(call: &FileCall) -> &'static str {
    match call {
        FileCall::Read { .. } => "file.read",
        FileCall::Write { .. } => "file.write",
        FileCall::List { .. } => "directory.list",
        FileCall::Stat { .. } => "file.stat",
        FileCall::MakeDirectory { .. } => "directory.make",
        FileCall::Move { .. } => "file.move",
        FileCall::Remove { .. } => "file.remove",
        FileCall::SetMode { .. } => "file.set-mode",
        FileCall::Watch { .. } => "directory.watch",
    }
}

/// Returns what really holds while a call is done, as [`act`] and [`files::perform`] apply it.
fn guards(call: &FileCall, plan: &Plan) -> Vec<OperationGuard> {
    let mut guards = vec![OperationGuard::new(
        "files.beneath",
        "openat2 from the sandbox's directory: RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, \
         RESOLVE_NO_MAGICLINKS",
    )];
    let mut bound = |name: &str, most: Option<u64>| {
        guards.extend(most.map(|most| OperationGuard::new(name, format!("at most {most}"))));
    };
    match call {
        FileCall::Read { .. } => {
            bound("bounds.file-bytes", Some(files::MOST_BYTES));
            let masks = plan.invocation.files.masks.len();
            guards.push(OperationGuard::new("files.masks", format!("{masks} masks, by name")));
        }
        FileCall::Write { .. } => {
            let limits = &plan.invocation.limits;
            bound("bounds.file-bytes", limits.file_bytes);
            bound("bounds.disk-bytes", limits.disk_bytes);
            bound("bounds.inodes", limits.inodes);
        }
        FileCall::List { .. } => bound("bounds.entries", Some(files::MOST_ENTRIES as u64)),
        FileCall::Stat { .. }
        | FileCall::MakeDirectory { .. }
        | FileCall::Move { .. }
        | FileCall::Remove { .. }
        | FileCall::SetMode { .. }
        | FileCall::Watch { .. } => {}
    }
    guards
}

/// Does the call within the limits of its plan.
fn act(ground: &Ground<'_>, call: &FileCall, plan: &Plan) -> Acted {
    let limits = &plan.invocation.limits;
    if let FileCall::Write { path, content, .. } = call {
        let size = content.len() as u64;
        let too_large = |what: &str| Err((FileFault::TooLarge, format!("'{path}': {what}")));
        if limits.file_bytes.is_some_and(|most| size > most) {
            return too_large("larger than one file may be");
        }
        let mut usage = disk::usage(ground.directory);
        usage.bytes = usage.bytes.saturating_add(size);
        usage.files += 1;
        let bounds = disk::Bounds { bytes: limits.disk_bytes, files: limits.inodes };
        if usage.exceeds(&bounds) {
            return too_large("the sandbox holds no more");
        }
    }
    files::perform(ground, call, &plan.invocation.files.masks)
}

/// Work of ours as a backend: one closure, its answer in a slot, one line in the receipt.
struct Work<'a> {
    isolation: Isolation,
    /// What it is, for the receipt.
    name: &'static str,
    /// What holds while it is done.
    guards: &'a (dyn Fn(&Plan) -> Vec<OperationGuard> + Sync),
    slot: Mutex<Option<Acted>>,
    act: &'a (dyn Fn(&Plan) -> Acted + Sync),
}

impl Backend for Work<'_> {
    fn isolation(&self) -> Isolation {
        self.isolation
    }

    fn shows_host_paths(&self) -> bool {
        false
    }

    fn starts_program(&self) -> bool {
        false
    }

    fn probe(&self) -> Posture {
        no_posture(self.isolation)
    }

    fn prepare(&self, invocation: Invocation) -> Result<Plan, Refusal> {
        let artifact = json!({ "provider": "living sandbox", "mounts": [] });
        Ok(Plan { isolation: self.isolation, invocation, artifact })
    }

    fn run(&self, plan: &Plan, sink: &dyn Sink, _: &Cancel) -> Result<RunReport, BoundaryError> {
        let began = Instant::now();
        let acted = (self.act)(plan);
        let (succeeded, line) = match &acted {
            Ok(answer) => (true, answer_line(answer)),
            Err((_, message)) => (false, json!({ "error": message })),
        };
        if let Ok(mut slot) = self.slot.lock() {
            *slot = Some(acted);
        }
        let outcome = Outcome::Performed { succeeded };
        let line = line.to_string();
        let said = (Stream::Stdout, line.as_bytes());
        let guards = (self.guards)(plan);
        let operation = Operation { name: self.name, succeeded, guards };
        Ok(report((outcome, self.isolation, operation), began.elapsed(), sink, said))
    }
}

/// What a receipt binds of an answer: never the content, always its digest.
fn answer_line(answer: &FileAnswer) -> Value {
    match answer {
        FileAnswer::Content(content) => {
            let digest = warrant_protocol::Digest::of(content);
            json!({ "bytes": content.len(), "digest": digest.to_string() })
        }
        FileAnswer::Entry(entry) => json!({ "path": entry.path, "bytes": entry.size }),
        FileAnswer::Entries(entries) => json!({ "entries": entries.len() }),
        FileAnswer::Lookout(lookout) => json!({ "watch": lookout.id() }),
    }
}
