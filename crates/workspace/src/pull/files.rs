//! Applies a diff to the files as they are, where no commit of the repository is its base.
//!
//! So it is with a run that started in a folder without git, or from uncommitted work. Every file
//! the diff changes must be exactly the one it was made from; nothing is merged or guessed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;

use super::{Change, PullError, PullOptions, gate, index_line, place::walk_error, written_tree};
use crate::git::{GitCall, ScratchRepo};
use crate::object::Oid;
use crate::raw::BaseFile;
use crate::root::{Node, Root};
use crate::{FileMode, GitError, TreePath};

/// Applies `diff` to copies of the files it names.
pub(super) fn apply_to_files(
    root: &Root,
    diff: &File,
    options: &PullOptions<'_>,
) -> Result<Change, PullError> {
    let repo = ScratchRepo::create(options.scratch).map_err(PullError::Scratch)?;
    let now = copies(&repo, root, &names(&repo, diff)?)?;
    let lines: Vec<u8> =
        now.iter().flat_map(|(path, file)| index_line(path, Some(*file))).collect();
    if !lines.is_empty() {
        repo.git("update-index").args(["-z", "--index-info"]).output_with(lines)?;
    }
    let base = written_tree(&repo)?;
    let before = sides(&repo, diff, Side::Before)?;
    for (path, file) in &now {
        match before.get(path) {
            Some(oid) if *oid == file.oid => {}
            // The diff makes this file, or was made from another one.
            _ => return Err(PullError::InTheWay(path.clone())),
        }
    }
    apply(&repo, diff, &["--cached"])?.output().map_err(PullError::Diff)?;
    let (files, gated) = gate(&repo, &base.to_hex(), options)?;
    let tree = written_tree(&repo)?;
    Ok(Change { repo, base, tree, files, gated })
}

/// Returns whether the files are already what the diff makes of them.
pub(super) fn is_applied(root: &Root, diff: &File, scratch: &Path) -> Result<bool, PullError> {
    let repo = ScratchRepo::create(scratch).map_err(PullError::Scratch)?;
    let now = copies(&repo, root, &names(&repo, diff)?)?;
    let after = match sides(&repo, diff, Side::After) {
        Err(PullError::Stale(_)) => return Ok(false),
        after => after?,
    };
    let now: BTreeMap<TreePath, Oid> =
        now.into_iter().map(|(path, file)| (path, file.oid)).collect();
    Ok(now == after)
}

/// A side of a diff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Before,
    After,
}

fn apply(repo: &ScratchRepo, diff: &File, args: &[&str]) -> Result<GitCall, PullError> {
    let mut diff = diff.try_clone().map_err(PullError::Scratch)?;
    std::io::Seek::rewind(&mut diff).map_err(PullError::Scratch)?;
    let call = repo.git("apply").args(["--binary", "--whitespace=nowarn"]);
    Ok(call.args(args).args(["-"]).stdin_file(diff))
}

/// Returns every name the diff speaks of, on either side.
fn names(repo: &ScratchRepo, diff: &File) -> Result<BTreeSet<TreePath>, PullError> {
    let mut names = BTreeSet::new();
    for side in [&["--numstat", "-z"][..], &["--numstat", "-z", "-R"]] {
        let answer = apply(repo, diff, side)?.output().map_err(PullError::Diff)?;
        for row in answer.split(|byte| *byte == 0).filter(|row| !row.is_empty()) {
            let name = row.splitn(3, |byte| *byte == b'\t').nth(2).unwrap_or_default();
            let path = TreePath::new(name);
            let path = path.map_err(|_| PullError::Diff(GitError::Answer { command: "apply" }))?;
            if path.git_part().is_some() {
                return Err(PullError::Path(path));
            }
            names.insert(path);
        }
    }
    Ok(names)
}

/// Stores what lies at each name now.
fn copies(
    repo: &ScratchRepo,
    root: &Root,
    names: &BTreeSet<TreePath>,
) -> Result<BTreeMap<TreePath, BaseFile>, PullError> {
    let mut now = BTreeMap::new();
    for path in names {
        let file = match root.node(path).map_err(walk_error(path))? {
            Node::Absent | Node::Directory(_) => continue,
            Node::Special(_) => return Err(PullError::InTheWay(path.clone())),
            Node::Link(_) => {
                let target = root.link(path).map_err(walk_error(path))?;
                let bytes = target.len() as u64;
                let blob = repo.loose().write_blob(&mut target.as_slice(), bytes);
                let oid = blob.map_err(walk_error(path))?.oid;
                BaseFile { mode: FileMode::Symlink, oid }
            }
            Node::File(_) => {
                let (mut file, facts) = root.file(path).map_err(walk_error(path))?;
                let blob = repo.loose().write_blob(&mut file, facts.bytes);
                let oid = blob.map_err(walk_error(path))?.oid;
                BaseFile { mode: FileMode::of_permissions(facts.permissions), oid }
            }
        };
        now.insert(path.clone(), file);
    }
    Ok(now)
}

/// Returns what the diff says each file is on one side; git finds it among the copies or not at all.
fn sides(
    repo: &ScratchRepo,
    diff: &File,
    side: Side,
) -> Result<BTreeMap<TreePath, Oid>, PullError> {
    let malformed = || PullError::Git(GitError::Answer { command: "ls-files" });
    let index = repo.path().join("before");
    let argument = format!("--build-fake-ancestor={}", index.display());
    let reverse: &[&str] = if side == Side::After { &["-R"] } else { &[] };
    let call = apply(repo, diff, &[&[argument.as_str()], reverse].concat())?;
    call.output().map_err(PullError::Stale)?;
    let call = repo.git("ls-files").env("GIT_INDEX_FILE", &index.to_string_lossy());
    let answer = call.args(["-s", "-z"]).output()?;
    let mut before = BTreeMap::new();
    for row in answer.split(|byte| *byte == 0).filter(|row| !row.is_empty()) {
        let tab = row.iter().position(|byte| *byte == b'\t').ok_or_else(malformed)?;
        let (head, name) = row.split_at_checked(tab).ok_or_else(malformed)?;
        let oid = std::str::from_utf8(head).ok().and_then(|head| head.split(' ').nth(1));
        let oid = oid.and_then(Oid::from_hex).ok_or_else(malformed)?;
        let path = TreePath::new(name.get(1..).unwrap_or_default()).map_err(|_| malformed())?;
        before.insert(path, oid);
    }
    Ok(before)
}
