//! How a gap is decided, and the loop that goes on until none is left.
//!
//! | gap | decision |
//! |---|---|
//! | cwd inside a write root | grant write, by policy |
//! | cwd inside a read root | grant read, by policy |
//! | cwd elsewhere | deny |
//! | path outside roots, that very path approved | grant what is required, by the approver |
//! | path outside roots, not approved | ask if policy has an approver, else deny |
//! | dynamic path below the command's own home, approved | rewrite, and grant |
//! | dynamic path otherwise | deny |

use std::path::{Path, PathBuf};

use warrant_script::{Access, rewrite_home};

use super::effects::{dialect_of, home_of};
use super::paths::{Reach, fold};
use super::{Gap, GapReason, Grant, Ground, Lowering, Root, declared, lower};
use crate::{Command, Invocation, Refusal};

/// More gaps than this are not closed for one command.
const MAX_GAPS: usize = 16;

/// An approval that was accepted for this action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// Who gave it.
    pub by: String,
    /// Exactly these paths, and no more than this access, are approved.
    pub roots: Vec<Root>,
}

impl Approval {
    /// Whether it is about this very path and at least this access, and no link leads elsewhere.
    fn covers(&self, wanted: &Root, ground: &Ground<'_>) -> bool {
        let is_enough = |given: Access| given == wanted.access || given == Access::ReadWrite;
        let is_named =
            self.roots.iter().any(|root| root.path == wanted.path && is_enough(root.access));
        // SECURITY: a link that was put there after the approval leads to what nobody approved.
        is_named && (ground.real_path)(&wanted.path).is_some_and(|real| real == wanted.path)
    }
}

/// What the loop needs to know of policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyView<'a> {
    /// The accepted approval the action carries.
    pub approval: Option<&'a Approval>,
    /// Whether policy names someone who could approve a path.
    pub has_approver: bool,
}

/// How a gap was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GapDecision {
    /// It is given.
    Grant(Grant),
    /// The command is changed to say what it means, and that is given.
    Rewrite {
        /// The command now.
        command: Command,
        /// What is given.
        grant: Grant,
    },
    /// A person must say so first.
    Ask {
        /// What they are asked, safe to show.
        message: String,
    },
    /// No.
    Deny(Refusal),
}

/// One gap and how it was decided, for the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GapEvent {
    /// The gap.
    pub gap: Gap,
    /// The decision.
    pub decision: GapDecision,
}

/// A command that has what it needs.
#[derive(Debug, Clone)]
pub struct Lowered {
    /// The invocation, with grants added and the command as rewritten.
    pub invocation: Invocation,
    /// The report.
    pub lowering: Lowering,
    /// Every gap on the way.
    pub events: Vec<GapEvent>,
}

/// A command that stopped at a gap.
#[derive(Debug, Clone)]
pub struct Stopped {
    /// What happens now.
    pub asked: Asked,
    /// Every gap on the way, the last one is where it stopped.
    pub events: Vec<GapEvent>,
}

/// What happens to a command that stopped at a gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// A person is asked.
    Person {
        /// What they are asked, safe to show.
        message: String,
    },
    /// Nobody: it is denied.
    Nobody(Refusal),
}

/// Lowers an invocation and closes its gaps, as far as policy lets.
///
/// # Errors
/// [`Stopped`] at the first gap that is not closed, or when there are too many.
pub fn prepare_with_gaps(
    invocation: Invocation,
    ground: &Ground<'_>,
    view: PolicyView<'_>,
) -> Result<Lowered, Stopped> {
    let mut invocation = invocation;
    let mut grants: Vec<Grant> = Vec::new();
    let mut events = Vec::new();
    for _ in 0..=MAX_GAPS {
        let gap = match lower(&invocation, &grants, ground) {
            Ok(lowering) => {
                for grant in &grants {
                    add(&mut invocation, grant);
                }
                return Ok(Lowered { invocation, lowering, events });
            }
            Err(gap) => gap,
        };
        let decision = decide_gap(&gap, &invocation, ground, view);
        events.push(GapEvent { gap, decision: decision.clone() });
        match decision {
            GapDecision::Grant(grant) => grants.push(grant),
            GapDecision::Rewrite { command, grant } => {
                invocation.command = command;
                grants.push(grant);
            }
            GapDecision::Ask { message } => {
                return Err(Stopped { asked: Asked::Person { message }, events });
            }
            GapDecision::Deny(refusal) => {
                return Err(Stopped { asked: Asked::Nobody(refusal), events });
            }
        }
    }
    let refusal = denied(format!("the command needs more than {MAX_GAPS} further paths"));
    Err(Stopped { asked: Asked::Nobody(refusal), events })
}

/// Decides one gap by the table above.
#[must_use]
pub fn decide_gap(
    gap: &Gap,
    invocation: &Invocation,
    ground: &Ground<'_>,
    view: PolicyView<'_>,
) -> GapDecision {
    match gap.reason {
        GapReason::CwdOutsideDeclaredRoots => decide_cwd(gap, invocation, ground),
        GapReason::PathOutsideDeclaredRoots => {
            let wanted = grant(gap, PathBuf::from(&gap.path), "");
            match view.approval.filter(|approval| approval.covers(&wanted.root, ground)) {
                Some(Approval { by, .. }) => {
                    GapDecision::Grant(Grant { granted_by: by.clone(), ..wanted })
                }
                None if view.has_approver => GapDecision::Ask { message: gap.message.clone() },
                None => GapDecision::Deny(denied(gap.message.clone())),
            }
        }
        GapReason::ShellDynamicPathUnresolved => {
            let rewritten = view.approval.and_then(|approval| {
                let (command, grant) = rewrite(gap, invocation, approval)?;
                let is_covered = approval.covers(&grant.root, ground);
                is_covered.then_some(GapDecision::Rewrite { command, grant })
            });
            rewritten.unwrap_or_else(|| GapDecision::Deny(denied(gap.message.clone())))
        }
    }
}

/// Returns the paths that an approval would have to name for this command to be lowered, in the
/// order in which it needs them. Nothing when no approval closes all its gaps, or when it has none
/// that wants one.
#[must_use]
pub fn needs(invocation: &Invocation, ground: &Ground<'_>) -> Option<Vec<Root>> {
    let mut approval = Approval { by: String::new(), roots: Vec::new() };
    for _ in 0..=MAX_GAPS {
        let view = PolicyView { approval: Some(&approval), has_approver: false };
        let stopped = match prepare_with_gaps(invocation.clone(), ground, view) {
            Ok(_) => return (!approval.roots.is_empty()).then_some(approval.roots),
            Err(stopped) => stopped,
        };
        let gap = &stopped.events.last()?.gap;
        let wanted = match gap.reason {
            GapReason::CwdOutsideDeclaredRoots => return None,
            GapReason::PathOutsideDeclaredRoots => grant(gap, PathBuf::from(&gap.path), ""),
            GapReason::ShellDynamicPathUnresolved => rewrite(gap, invocation, &approval)?.1,
        };
        if approval.roots.contains(&wanted.root) {
            return None;
        }
        approval.roots.push(wanted.root);
    }
    None
}

fn decide_cwd(gap: &Gap, invocation: &Invocation, ground: &Ground<'_>) -> GapDecision {
    let roots = declared(invocation);
    let lowering = Lowering {
        declared: roots,
        runtime: Vec::new(),
        granted: Vec::new(),
        effects: Vec::new(),
        warnings: Vec::new(),
    };
    let reach = Reach::new(&lowering, ground.real_path);
    let path = invocation.cwd.clone();
    let access = [Access::ReadWrite, Access::Read].into_iter().find(|a| reach.allows(&path, *a));
    match access {
        Some(Access::Read) => {
            let gap = Gap { required: Some(Access::Read), ..gap.clone() };
            GapDecision::Grant(grant(&gap, path, "policy"))
        }
        Some(Access::Write | Access::ReadWrite) => {
            let gap = Gap { required: Some(Access::Write), ..gap.clone() };
            GapDecision::Grant(grant(&gap, path, "policy"))
        }
        None => GapDecision::Deny(denied(gap.message.clone())),
    }
}

/// Returns the command with its home path written out, when that is possible.
fn rewrite(gap: &Gap, invocation: &Invocation, approval: &Approval) -> Option<(Command, Grant)> {
    let home = home_of(invocation)?;
    let literal = match &invocation.command {
        Command::Shell { shell, script } => {
            let script = rewrite_home(script, dialect_of(*shell), &gap.path, home).ok()?;
            Command::Shell { shell: *shell, script }
        }
        Command::Argv { program, args } => {
            let [flag, script] = args.as_slice() else { return None };
            let unwrapped =
                warrant_script::unwrap(&[program.clone(), flag.clone(), script.clone()]);
            let warrant_script::Inner::Script { dialect, .. } = unwrapped.inner else {
                return None;
            };
            let script = rewrite_home(script, dialect, &gap.path, home).ok()?;
            Command::Argv { program: program.clone(), args: vec![flag.clone(), script] }
        }
    };
    let rest = rest_below_home(&gap.path)?;
    let path = fold(Path::new(&format!("{}{rest}", home.trim_end_matches('/'))));
    Some((literal, grant(gap, path, &approval.by)))
}

/// Returns what follows the home directory in a token, as the shell would read it.
fn rest_below_home(token: &str) -> Option<String> {
    // The token is one word; asked as a command's operand, the parse says what it names.
    let script = format!("cat {token}");
    let analysis = warrant_script::analyze(&script, warrant_script::Dialect::Sh).ok()?;
    match analysis.effects.as_slice() {
        [effect] => match &effect.target {
            warrant_script::Target::Home { rest } => Some(rest.clone()),
            warrant_script::Target::Path(_)
            | warrant_script::Target::Pattern(_)
            | warrant_script::Target::Dynamic => None,
        },
        _ => None,
    }
}

/// Adds a grant to what the backend will be asked for.
fn add(invocation: &mut Invocation, grant: &Grant) {
    let Root { path, access } = &grant.root;
    let roots = match access {
        Access::Read => &mut invocation.files.read_roots,
        Access::Write | Access::ReadWrite => &mut invocation.files.write_roots,
    };
    if !roots.contains(path) {
        roots.push(path.clone());
    }
}

/// Returns a grant of what is required, and of reading when nothing is said.
fn grant(gap: &Gap, path: PathBuf, by: &str) -> Grant {
    let access = match gap.required {
        None | Some(Access::Read) => Access::Read,
        Some(Access::Write | Access::ReadWrite) => Access::ReadWrite,
    };
    Grant { reason: gap.reason, root: Root { path, access }, granted_by: by.to_owned() }
}

fn denied(message: String) -> Refusal {
    Refusal { code: "SANDBOX_DENIED", message }
}
