//! What becomes of a run's writes: kept as a diff, brought into the workspace, or dropped.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Access, CWD, Mode as FileMode, OFlags, ResolveFlags, access, fstat, openat2};
use serde_json::{Value, json};
use thiserror::Error;
use warrant_protocol::{Digest, RunId, Timestamp};
use warrant_runner::run::Ended;
use warrant_workspace::{
    ChangeId, Detour, ExportError, ExportOptions, GateLists, GatePolicy, Gated, GitPlan, Journal,
    JournalError, NotExported, Recovered, RefUpdate, RefValue, TreeLimits, TreePath, apply_export,
    plan_export,
};

use crate::desk::Desk;

/// How many changes of a workspace can be undone, one after the other; an agent makes thousands.
pub const KEPT_CHANGES: usize = 100;

/// How often it is planned what is kept, while somebody changes the same files.
const TRIES: usize = 3;

/// Where writes to the workspace go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Into a layer of the run, kept as a diff.
    Isolated,
    /// Into the workspace when the program succeeds; dropped, or kept all the same, when it fails.
    Rollback {
        /// Whether a failing program's writes are kept.
        keeps_failure: bool,
    },
}

/// What became of a run's writes.
#[derive(Debug)]
pub enum Kept {
    /// There were none.
    Nothing,
    /// They are in the run's diff and nowhere else.
    AsDiff(Digest),
    /// They were dropped; the workspace is as it was.
    RolledBack,
    /// They are in the workspace; undo puts them back.
    Exported {
        /// Every path that changed.
        paths: Vec<TreePath>,
        /// What undo takes back.
        change: ChangeId,
        /// What the gate named, with its verdicts.
        gated: Vec<Gated>,
        /// What somebody else changed since the run began, and is as they left it.
        conflicts: Vec<TreePath>,
        /// What cannot be brought home whatever policy says: pipes, devices, files too large or
        /// closed to everyone.
        left_out: Vec<NotExported>,
        /// What became of its git state.
        git: KeptGit,
    },
}

/// What became of a run's git state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptGit {
    /// Every reference that the run changed, HEAD included.
    pub refs: Vec<RefUpdate>,
    /// Branches for what met somebody else's work.
    pub detours: Vec<Detour>,
    /// What else is worth knowing, for people.
    pub notes: Vec<String>,
}

impl KeptGit {
    fn of(plan: &GitPlan) -> Self {
        let GitPlan { refs, detours, notes, .. } = plan;
        Self { refs: refs.clone(), detours: detours.clone(), notes: notes.clone() }
    }

    /// Returns the same as facts.
    #[must_use]
    pub fn facts(&self) -> Value {
        let value = |value: &Option<RefValue>| value.as_ref().map(ToString::to_string);
        let refs: Vec<Value> = self
            .refs
            .iter()
            .map(|update| json!({"ref": update.name, "old": value(&update.old), "new": value(&update.new)}))
            .collect();
        let branches: Vec<Value> = self
            .detours
            .iter()
            .map(|detour| {
                let Detour { branch, commit, instead_of } = detour;
                json!({"branch": branch, "commit": commit, "insteadOf": instead_of})
            })
            .collect();
        json!({"refs": refs, "branches": branches, "notes": self.notes})
    }

    /// Returns what became of it, line by line, for people.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let detoured = |update: &&RefUpdate| {
            !self.detours.iter().any(|detour| detour.instead_of == update.name)
        };
        let refs = self.refs.iter().filter(detoured).map(|update| {
            let short = |value: &RefValue| match value {
                RefValue::Object(oid) => oid.to_hex().chars().take(12).collect(),
                RefValue::Symbolic(name) => name.to_string(),
            };
            match (&update.old, &update.new) {
                (Some(old), Some(new)) => {
                    format!("git: {} moved from {} to {}", update.name, short(old), short(new))
                }
                (None, Some(new)) => format!("git: {} made at {}", update.name, short(new)),
                (Some(old), None) => format!("git: {} removed, was {}", update.name, short(old)),
                (None, None) => format!("git: {}", update.name),
            }
        });
        let detours = self.detours.iter().map(|detour| {
            let Detour { branch, instead_of, .. } = detour;
            format!(
                "git: {instead_of} was changed here meanwhile, so the run's commit is on branch \
                 {branch}; merge it with: git merge {branch}"
            )
        });
        let notes = self.notes.iter().map(|note| format!("git: {note}"));
        detours.chain(refs).chain(notes).collect()
    }
}

/// Why writes could not be kept; the workspace is as it was.
#[derive(Debug, Error)]
pub enum KeepError {
    /// It is not where it was.
    #[error("{0} is not the directory any more in which the run began")]
    Moved(PathBuf),
    /// The workspace cannot be opened.
    #[error("the workspace cannot be opened")]
    Open(#[from] io::Error),
    /// The writes cannot be brought home.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The record for undo cannot be used.
    #[error("the record for undo cannot be used")]
    Journal(#[from] JournalError),
}

/// Makes sure, before anything runs, that a workspace can be written where that is what the mode
/// is for. What lies deeper is not looked at; what cannot be written there is taken back whole.
///
/// # Errors
/// What the system said.
pub fn check(workspace: &Path, mode: Mode) -> io::Result<()> {
    match mode {
        Mode::Isolated => Ok(()),
        Mode::Rollback { .. } => Ok(access(workspace, Access::WRITE_OK | Access::EXEC_OK)?),
    }
}

/// The workspace as it was found before a run. What is kept goes into this very directory.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    directory: OwnedFd,
}

impl Place {
    /// Finds it.
    ///
    /// # Errors
    /// What the system said.
    pub fn find(workspace: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(workspace)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let directory = openat2(CWD, &path, flags, FileMode::empty(), how)?;
        Ok(Self { path, directory })
    }

    /// Whether it is still where it was.
    fn is_there(&self) -> io::Result<bool> {
        let (now, then) = (fs::symlink_metadata(&self.path)?, fstat(&self.directory)?);
        Ok((now.dev(), now.ino()) == (then.st_dev, then.st_ino))
    }
}

/// Decides and does what the mode says.
///
/// # Errors
/// [`KeepError`] when the writes could not be kept.
pub fn after(desk: &Desk, place: &Place, mode: Mode, ended: &Ended) -> Result<Kept, KeepError> {
    let Some(upper) = &ended.upper else { return Ok(Kept::Nothing) };
    let keeps = match mode {
        Mode::Isolated => {
            let diff = ended.receipt.body().workspace_out.diff_hash;
            return Ok(diff.map_or(Kept::Nothing, Kept::AsDiff));
        }
        Mode::Rollback { keeps_failure } => keeps_failure || ended.outcome.is_success(),
    };
    if !keeps {
        return Ok(Kept::RolledBack);
    }
    // SECURITY: a run in a directory above may have put a link here meanwhile, which would lead
    // what this one wrote to anywhere.
    if !place.is_there()? {
        return Err(KeepError::Moved(place.path.clone()));
    }
    // Planned under the lock, so that what another run keeps at the same moment is a conflict of
    // its paths and not of the whole.
    let (journal, _) = open_journal(desk, &place.path)?;
    let options = ExportOptions {
        policy: &gate(desk),
        released: &[],
        started_at: Some(just_after(ended.began)),
        limits: TreeLimits::generous(),
        branch: &branch_of(&ended.run),
    };
    let (lower, upper) = (place.directory.as_fd(), upper.as_fd());
    let mut tries = TRIES;
    let (plan, exported) = loop {
        let plan = plan_export(lower, upper, &options)?;
        let told = ExportSummary {
            gated: plan.gated.clone(),
            conflicts: plan.conflicts.clone(),
            left_out: plan.not_exported.clone(),
            git: KeptGit::of(&plan.git),
        };
        match apply_export(plan, lower, upper, &journal) {
            // A person's hand in between: planned again, it is a conflict as any other.
            Err(ExportError::Conflict(_)) if tries > 1 => tries -= 1,
            exported => break (told, exported?),
        }
    };
    // SECURITY: what a program wrote into the workspace may be a secret it had, and is kept there
    // alone. Where that fails the change is made all the same.
    let _ = journal.tidy(KEPT_CHANGES);
    let ExportSummary { gated, conflicts, mut left_out, git } = plan;
    left_out.extend(exported.left_out);
    let (paths, change) = (exported.paths, exported.change);
    Ok(Kept::Exported { paths, change, gated, conflicts, left_out, git })
}

/// What a plan says of everything that is not simply kept.
struct ExportSummary {
    gated: Vec<Gated>,
    conflicts: Vec<TreePath>,
    left_out: Vec<NotExported>,
    git: KeptGit,
}

/// Returns the branch that takes a run's commits where somebody else's are in the way.
fn branch_of(run: &RunId) -> String {
    let id = run.as_str();
    let short: String = id.strip_prefix("run_").unwrap_or(id).chars().take(12).collect();
    format!("warrant/{short}")
}

/// Times are told in whole milliseconds; what the run before this one wrote just now is older
/// than the next.
fn just_after(began: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(began.unix_ms() + 1)
}

/// Returns what the policy in force says of names that run by themselves later: its own lists,
/// and what we advise for the rest.
#[must_use]
pub fn gate(desk: &Desk) -> GatePolicy {
    let controls = desk.policy().and_then(|policy| policy.controls().gate.as_ref());
    controls.map_or_else(GatePolicy::advised, |gate| {
        GatePolicy::with_lists(GateLists {
            flag: gate.flag.clone(),
            hold: gate.hold.clone(),
            refuse: gate.refuse.clone(),
        })
    })
}

/// Opens the journal of a workspace, below the home and never inside the workspace.
///
/// # Errors
/// [`JournalError`] when it cannot be used.
pub fn open_journal(desk: &Desk, workspace: &Path) -> Result<(Journal, Recovered), JournalError> {
    let name = Digest::of(workspace.as_os_str().as_encoded_bytes()).to_hex();
    let directory = desk.plane().home().data().join("undo").join(name);
    Journal::open(&directory, workspace)
}
