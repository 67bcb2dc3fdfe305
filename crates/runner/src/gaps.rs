//! The gaps of a command: what it needs and was not given, decided before it runs, on the chain.
//!
//! Only tiers that start real programs on this machine are looked at; in an interpreting tier
//! every path is inside the workspace, and a remote machine has none of ours.

use std::path::{Path, PathBuf};

use warrant_protocol::event::{FailureClass, GapDecision as Decided};
use warrant_protocol::request::{ActorKind, ActorRef, FileGrants, PathAccess, PathGap};
use warrant_protocol::{ContractBody, Event, Isolation, Outcome};
use warrant_sandbox::Invocation;
use warrant_sandbox::lowering::{
    Access, Approval, Asked, GapDecision, GapEvent, Grant, Ground, Lowered, Lowering, PolicyView,
    Root, Stopped, UnknownPaths, needs as lowering_needs, prepare_with_gaps,
    survey as lowering_survey,
};

use crate::halt::Halt;
use crate::journal::Journal;

/// What the local tiers bring by themselves.
const READABLE: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/gnu/store",
    "/etc",
    "/proc",
];
const WRITABLE: &[&str] = &["/tmp", "/dev"];

/// Closes the gaps of an invocation, as far as its contract lets, and records every one.
pub(crate) fn close_gaps(
    journal: &mut Journal<'_>,
    contract: &ContractBody,
    invocation: Invocation,
) -> Result<Invocation, Halt> {
    let isolation = contract.isolation_or_default();
    if !is_looked_at(isolation) {
        return Ok(invocation);
    }
    let approver = contract.approved_by.iter().flatten().next();
    let approval = approver.map(|actor| approval(actor.label(), contract.files.as_ref()));
    let (events, result) = match lower(invocation, isolation, approval.as_ref()) {
        Ok(lowered) => (lowered.events, Ok(lowered.invocation)),
        Err(stopped) => (stopped.events, Err(stopped.asked)),
    };
    for (number, event) in (1..).zip(&events) {
        record(journal, contract, &format!("gap-{number}"), event)?;
    }
    result.map_err(|asked| {
        let message = match asked {
            Asked::Person { message } => message,
            Asked::Nobody(refusal) => refusal.message,
        };
        let message = format!("SANDBOX_DENIED: {message}");
        Halt::new(Outcome::GapDenied, FailureClass::PolicyDenied, message)
    })
}

/// Returns the approval of exactly the paths that a request names as gaps.
pub(crate) fn approval(by: String, files: Option<&FileGrants>) -> Approval {
    let gaps = files.and_then(|files| files.gaps.as_ref()).into_iter().flatten();
    let root = |gap: &PathGap| Root {
        path: PathBuf::from(&gap.path),
        access: match gap.access {
            PathAccess::Read => Access::Read,
            PathAccess::Write => Access::ReadWrite,
        },
    };
    Approval { by, roots: gaps.map(root).collect() }
}

/// Returns the paths that people would have to approve for an invocation to run here; nothing
/// when no approval would help or none is needed. Only what exists can be given.
pub(crate) fn needs(invocation: &Invocation, isolation: Isolation) -> Option<Vec<PathGap>> {
    let roots = on_ground(isolation, |ground| lowering_needs(invocation, ground))?;
    let gap = |root: &Root| {
        let path = root.path.to_str().filter(|_| root.path.exists())?;
        let access = match root.access {
            Access::Read => PathAccess::Read,
            Access::Write | Access::ReadWrite => PathAccess::Write,
        };
        Some(PathGap { path: path.to_owned(), access })
    };
    roots.iter().map(gap).collect()
}

/// Whether a tier starts real programs on this machine.
pub(crate) const fn is_looked_at(isolation: Isolation) -> bool {
    matches!(isolation, Isolation::Namespace | Isolation::Process)
}

/// Lowers an invocation on this machine.
pub(crate) fn lower(
    invocation: Invocation,
    isolation: Isolation,
    approval: Option<&Approval>,
) -> Result<Lowered, Stopped> {
    let view = PolicyView { approval, has_approver: false };
    on_ground(isolation, |ground| prepare_with_gaps(invocation, ground, view))
}

/// Returns what an invocation is thought to do here, gaps or not.
pub(crate) fn survey(invocation: &Invocation, isolation: Isolation) -> Lowering {
    on_ground(isolation, |ground| lowering_survey(invocation, ground))
}

/// Returns what the local tiers bring by themselves.
pub(crate) fn runtime_roots() -> Vec<Root> {
    let root = |path: &&str, access: Access| Root { path: PathBuf::from(path), access };
    let readable = READABLE.iter().map(|path| root(path, Access::Read));
    let writable = WRITABLE.iter().map(|path| root(path, Access::ReadWrite));
    readable.chain(writable).collect()
}

/// Looks at something on the ground of this machine.
fn on_ground<T>(isolation: Isolation, look: impl FnOnce(&Ground<'_>) -> T) -> T {
    let runtime = runtime_roots();
    let unknown_paths = match isolation {
        // Whatever the shell makes of it, only what was given exists inside.
        Isolation::Namespace => UnknownPaths::Warn,
        _ => UnknownPaths::Gap,
    };
    look(&Ground { runtime: &runtime, real_path: &real_path, unknown_paths })
}

/// Returns the real path of the deepest part that exists, with the rest behind it.
fn real_path(path: &Path) -> Option<PathBuf> {
    let mut rest: Vec<&std::ffi::OsStr> = Vec::new();
    for ancestor in path.ancestors() {
        if let Ok(real) = std::fs::canonicalize(ancestor) {
            return Some(rest.iter().rev().fold(real, |path, name| path.join(name)));
        }
        rest.push(ancestor.file_name()?);
    }
    None
}

fn record(
    journal: &mut Journal<'_>,
    contract: &ContractBody,
    name: &str,
    event: &GapEvent,
) -> Result<(), Halt> {
    let found = Event::GapFound {
        gap: name.to_owned(),
        kind: event.gap.reason.as_str().to_owned(),
        detail: event.gap.path.clone(),
    };
    journal.record(&found)?;
    let (decision, reason, grant) = match &event.decision {
        GapDecision::Grant(grant) => (Decided::Granted, "granted", Some(grant)),
        GapDecision::Rewrite { grant, .. } => (Decided::Rewritten, "rewritten", Some(grant)),
        GapDecision::Ask { message } => (Decided::Denied, message.as_str(), None),
        GapDecision::Deny(refusal) => (Decided::Denied, refusal.message.as_str(), None),
    };
    let reason = reason.to_owned();
    journal.record(&Event::GapDecided { gap: name.to_owned(), decision, reason })?;
    match grant {
        Some(grant) => record_grant(journal, contract, grant),
        None => Ok(()),
    }
}

fn record_grant(
    journal: &mut Journal<'_>,
    contract: &ContractBody,
    grant: &Grant,
) -> Result<(), Halt> {
    let approvers = contract.approved_by.iter().flatten();
    let by = approvers.into_iter().find(|actor| actor.label() == grant.granted_by).cloned();
    let by = by.or_else(|| {
        let id = grant.granted_by.clone();
        Some(ActorRef { kind: ActorKind::Service, id })
    });
    let added = Event::GrantAdded {
        kind: grant.root.access.as_str().to_owned(),
        value: grant.root.path.display().to_string(),
        by,
    };
    Ok(journal.record(&added)?)
}
