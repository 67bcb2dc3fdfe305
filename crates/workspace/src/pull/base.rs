//! Finds the commit a run started from.

use super::PullError;
use crate::capture::snapshot_commit;
use crate::discover::Repository;
use crate::git::ScratchRepo;
use crate::object::{ObjectKind, Oid, object_name};

/// How far back a commit is looked for whose files travelled without its history.
const MAX_COMMITS: &str = "--max-count=20000";

/// Returns the person's commit that `wanted` is, or stands for.
///
/// A run whose files travelled without their history names a commit of our making; it has the
/// same files as one of the person's, and names that one, so it is found by making it again.
pub(super) fn find(
    repository: &Repository,
    repo: &ScratchRepo,
    wanted: Oid,
) -> Result<Option<Oid>, PullError> {
    let known = repo.git("cat-file").args(["-e", &format!("{}^{{commit}}", wanted.to_hex())]);
    if known.output().is_ok() {
        return Ok(Some(wanted));
    }
    let listed = repo
        .git("rev-list")
        .args([MAX_COMMITS, "--no-commit-header", "--format=%H %T", &repository.head.to_hex()])
        .output();
    // A repository that lacks history of its own cannot be listed; then there is nothing to find.
    let Ok(listed) = listed else { return Ok(None) };
    let text = String::from_utf8_lossy(&listed);
    let mut commits = text.lines().filter_map(|line| {
        let (commit, tree) = line.split_once(' ')?;
        Some((Oid::from_hex(commit)?, Oid::from_hex(tree)?))
    });
    let stands_for = |(commit, tree): &(Oid, Oid)| {
        object_name(ObjectKind::Commit, snapshot_commit(*tree, *commit).as_bytes()) == wanted
    };
    Ok(commits.find(stands_for).map(|(commit, _)| commit))
}
