//! Makes a commit of a change and a branch that points to it.

use std::io;

use super::{Change, PullError, PullOptions};
use crate::GitError;
use crate::discover::Repository;
use crate::git::{GitCall, ScratchRepo};
use crate::object::Oid;

/// Makes the commit, on top of what the run committed, and a new branch; one that exists is never
/// moved.
pub(super) fn make(
    repository: &Repository,
    change: &Change,
    options: &PullOptions<'_>,
    head: Option<Oid>,
) -> Result<(String, Oid), PullError> {
    let commit = match head {
        Some(head) if tree_of(change, head)? == change.tree => head,
        Some(head) => commit(change, head, options)?,
        None => commit(change, change.base, options)?,
    };
    transfer(repository, change, commit, options)?;
    let id = options.run_id.strip_prefix("run_").unwrap_or(options.run_id);
    let short: String = id.chars().take(12).collect();
    let name = format!("{}{short}", options.branch_prefix);
    for number in 1..100 {
        let name = if number == 1 { name.clone() } else { format!("{name}-{number}") };
        match point(repository, &name, commit, options)? {
            Pointed::Here => return Ok((name, commit)),
            Pointed::Elsewhere => {}
        }
    }
    Err(PullError::Branches(name))
}

enum Pointed {
    Here,
    Elsewhere,
}

/// Creates the branch, or finds that it exists.
fn point(
    repository: &Repository,
    name: &str,
    commit: Oid,
    options: &PullOptions<'_>,
) -> Result<Pointed, PullError> {
    let reference = format!("refs/heads/{name}");
    let call = |command| GitCall::in_foreign(command, &repository.git_directory);
    call("check-ref-format").args([&reference]).output()?;
    let (exists, found) = call("rev-parse").args(["--verify", "--quiet", &reference]).question()?;
    if exists {
        let found = String::from_utf8_lossy(&found);
        let is_ours = Oid::from_hex(found.trim_end()) == Some(commit);
        return Ok(if is_ours { Pointed::Here } else { Pointed::Elsewhere });
    }
    // The null name as old value makes git refuse if somebody was faster.
    with_author(call("update-ref"), options)
        .args(["-m", "warrant pull", &reference, &commit.to_hex(), &Oid::NULL.to_hex()])
        .output()?;
    Ok(Pointed::Here)
}

fn tree_of(change: &Change, commit: Oid) -> Result<Oid, PullError> {
    let tree = format!("{}^{{tree}}", commit.to_hex());
    let answer = change.repo.git("rev-parse").args(["--verify", "--quiet", &tree]).output()?;
    let text = String::from_utf8_lossy(&answer);
    Ok(Oid::from_hex(text.trim_end()).ok_or(GitError::Answer { command: "rev-parse" })?)
}

/// Makes one commit of what the branch adds to its parent.
fn commit(change: &Change, parent: Oid, options: &PullOptions<'_>) -> Result<Oid, PullError> {
    let message = format!("warrant run {}", options.run_id);
    let (tree, base) = (change.tree.to_hex(), parent.to_hex());
    let answer = with_author(change.repo.git("commit-tree"), options)
        .args(["-p", &base, "-m", &message, &tree])
        .output()?;
    let text = String::from_utf8_lossy(&answer);
    Ok(Oid::from_hex(text.trim_end()).ok_or(GitError::Answer { command: "commit-tree" })?)
}

/// Copies the new objects into the person's repository.
fn transfer(
    repository: &Repository,
    change: &Change,
    commit: Oid,
    options: &PullOptions<'_>,
) -> Result<(), PullError> {
    let pack = tempfile::tempfile_in(options.scratch).map_err(PullError::Scratch)?;
    let input = format!("{}\n^{}\n", commit.to_hex(), change.base.to_hex());
    let call = change.repo.git("pack-objects").args(["-q", "--revs", "--stdout"]);
    let mut sink = pack.try_clone().map_err(PullError::Scratch)?;
    call.stream(input.into_bytes(), |stdout| io::copy(stdout, &mut sink))?;
    let mut pack = pack;
    io::Seek::rewind(&mut pack).map_err(PullError::Scratch)?;
    ScratchRepo::create(options.scratch)
        .map_err(PullError::Scratch)?
        .borrowing_objects(&repository.objects())
        .git("unpack-objects")
        .args(["-q", "--strict"])
        .stdin_file(pack)
        .output()?;
    Ok(())
}

fn with_author(call: GitCall, options: &PullOptions<'_>) -> GitCall {
    let since = options.at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let date = format!("@{} +0000", since.as_secs());
    call.env("GIT_AUTHOR_NAME", "warrant")
        .env("GIT_AUTHOR_EMAIL", "warrant@localhost")
        .env("GIT_AUTHOR_DATE", &date)
        .env("GIT_COMMITTER_NAME", "warrant")
        .env("GIT_COMMITTER_EMAIL", "warrant@localhost")
        .env("GIT_COMMITTER_DATE", &date)
}
