//! Applies the dirty diff to the base tree, in a scratch repository and never to files.
//!
//! SECURITY: the diff is the requester's. Git applies it to an index of ours, so no path of it is
//! opened; the resulting names go through the same judgment as every other name before a write.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::MaterializeError;
use crate::git::ScratchRepo;
use crate::object::Oid;
use crate::pack::Pack;
use crate::raw::{BaseFile, parse_raw};
use crate::{GitError, TreePath};

/// What the dirty diff makes of the base.
#[derive(Debug)]
pub(super) struct Dirty {
    pub(super) repo: ScratchRepo,
    /// Files it adds or changes, and those it deletes.
    pub(super) changes: Vec<(TreePath, Option<BaseFile>)>,
}

/// Applies `diff` to the tree of `base_ref`.
pub(super) fn apply(
    pack: &Pack,
    base_ref: Oid,
    diff: File,
    scratch: &Path,
) -> Result<Dirty, MaterializeError> {
    let repo = ScratchRepo::create(scratch).map_err(MaterializeError::Scratch)?;
    install_pack(pack, &repo.path().join("objects/pack")).map_err(MaterializeError::Scratch)?;
    let base = base_ref.to_hex();
    // A shallow bundle lacks parents; without this git would look for them.
    fs::write(repo.path().join("shallow"), format!("{base}\n"))
        .map_err(MaterializeError::Scratch)?;
    repo.git("read-tree").args([&base]).output().map_err(MaterializeError::Dirty)?;
    repo.git("apply")
        .args(["--cached", "--binary", "--whitespace=nowarn", "-"])
        .stdin_file(diff)
        .output()
        .map_err(MaterializeError::Dirty)?;
    let raw = repo
        .git("diff-index")
        .args(["--cached", "--raw", "-z", "--no-renames", "--no-abbrev", &base])
        .output()
        .map_err(MaterializeError::Dirty)?;
    let changes = parse_raw(&raw)
        .ok_or(MaterializeError::Dirty(GitError::Answer { command: "diff-index" }))?;
    Ok(Dirty { repo, changes })
}

/// Puts the pack and its index into an object store of ours.
pub(crate) fn install_pack(pack: &Pack, directory: &Path) -> std::io::Result<()> {
    let path = |end: &str| -> PathBuf { directory.join(format!("pack-{}.{end}", pack.name())) };
    pack.copy_to(&File::create(path("pack"))?)?;
    pack.write_idx(&mut File::create(path("idx"))?)
}
