//! The git directory of a workspace that is a linked worktree or a submodule: readable inside
//! without being named, as the `.git` of any other workspace is.

use std::fs;
use std::path::{Path, PathBuf};

use warrant_plane::random;
use warrant_protocol::request::FileGrants;
use warrant_protocol::{Decision, Isolation};
use warrant_workspace::outer_git;

use crate::ask::Ask;
use crate::desk::{Desk, DeskError};

/// An ask, and what it goes without.
#[derive(Debug)]
pub struct WithGit {
    /// The ask.
    pub ask: Ask,
    /// The git directory that policy does not let it read.
    pub withheld: Option<PathBuf>,
}

impl Desk {
    /// Returns an ask that may read the git directory of its workspace, where that lies outside
    /// and names the workspace as its own. It is part of the request as any granted path, and
    /// policy judges it; where policy denies it or would ask for it, the ask goes without.
    ///
    /// # Errors
    /// [`DeskError::System`] without a clock.
    pub fn with_git(&self, ask: Ask) -> Result<WithGit, DeskError> {
        let without = |ask, withheld| Ok(WithGit { ask, withheld });
        let Some(git) = needed(&ask) else { return without(ask, None) };
        let Some(text) = git.to_str() else { return without(ask, Some(git)) };
        if self.is_own(&git) {
            return without(ask, Some(git));
        }
        let mut asking = ask.clone();
        let none = FileGrants { read: Vec::new(), write: Vec::new(), gaps: None };
        asking.request.files.get_or_insert(none).read.push(text.to_owned());
        let now = random::now()?.unix_ms();
        let plain = self.judged(&ask.request, ask.around(now));
        if plain.summary.decision == Decision::Deny {
            return without(ask, None);
        }
        let judged = self.judged(&asking.request, asking.around(now));
        let is_as_good = judged.summary.decision == plain.summary.decision
            && judged.requirements == plain.requirements;
        match is_as_good {
            true => without(asking, None),
            false => without(ask, Some(git)),
        }
    }

    /// SECURITY: no grant reaches keys and policy; one that would is refused with the whole run.
    fn is_own(&self, path: &Path) -> bool {
        let root = self.plane().home().root();
        let own = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
        own.starts_with(path) || path.starts_with(&own)
    }
}

/// Returns the git directory that an ask lacks.
fn needed(ask: &Ask) -> Option<PathBuf> {
    // The other tiers show the whole machine, or nothing of it.
    if ask.request.isolation != Some(Isolation::Namespace) {
        return None;
    }
    let git = outer_git(&ask.workspace)?;
    let granted = ask.request.files.iter().flat_map(|files| files.read.iter().chain(&files.write));
    let is_granted = granted.into_iter().any(|root| git.starts_with(root));
    (!is_granted).then_some(git)
}
