//! Tries the three-way merge a person may want to make, without making it.

use crate::git::ScratchRepo;
use crate::object::Oid;
use crate::{GitError, TreePath};

/// What merging the branch into HEAD would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergePreview {
    /// HEAD has not moved: the branch can simply be followed.
    FastForward,
    /// Both sides changed, nowhere in the same place.
    Clean,
    /// Both sides changed the same places.
    Conflicts(Vec<Conflict>),
}

/// A file that both sides changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Which.
    pub path: TreePath,
    /// The file with git's conflict markers, at most 64 KiB; empty when there is no such file.
    pub text: Vec<u8>,
}

/// Tries the merge in a scratch repository.
pub(super) fn preview(
    repo: &ScratchRepo,
    base: Oid,
    head: Oid,
    commit: Oid,
) -> Result<MergePreview, GitError> {
    if base == head {
        return Ok(MergePreview::FastForward);
    }
    let (is_clean, answer) = repo
        .git("merge-tree")
        .args(["--write-tree", "-z", "--name-only", "--no-messages"])
        .args([&format!("--merge-base={}", base.to_hex()), &head.to_hex(), &commit.to_hex()])
        .question()?;
    if is_clean {
        return Ok(MergePreview::Clean);
    }
    let malformed = || GitError::Answer { command: "merge-tree" };
    let mut fields = answer.split(|byte| *byte == 0).filter(|field| !field.is_empty());
    let tree = fields.next().and_then(|field| std::str::from_utf8(field).ok());
    let tree = tree.and_then(Oid::from_hex).ok_or_else(malformed)?;
    let mut conflicts = Vec::new();
    for name in fields {
        let path = TreePath::new(name).map_err(|_| malformed())?;
        let text = merged_text(repo, tree, &path)?;
        conflicts.push(Conflict { path, text });
    }
    Ok(MergePreview::Conflicts(conflicts))
}

fn merged_text(repo: &ScratchRepo, tree: Oid, path: &TreePath) -> Result<Vec<u8>, GitError> {
    const MAX_BYTES: usize = 64 * 1024;
    let row = repo.git("ls-tree").args(["-z", "--full-tree", &tree.to_hex(), "--"]);
    let row = row.args([path.as_path()]).output()?;
    let text = String::from_utf8_lossy(&row);
    let Some(oid) = text.split([' ', '\t']).nth(2).and_then(Oid::from_hex) else {
        return Ok(Vec::new());
    };
    let mut content = repo.git("cat-file").args(["blob", &oid.to_hex()]).output()?;
    content.truncate(MAX_BYTES);
    Ok(content)
}
