//! Finds the git directory that belongs to a workspace and lies outside of it: that of a linked
//! worktree, or of a submodule.
//!
//! Only looks: nothing is started, no link is followed, and `.git` is not believed.
//!
//! SECURITY: whoever writes into a workspace can write its `.git`, and would lead us to any
//! directory of the person. So `.git` only says where to look; what counts is the other end, which
//! must be a git directory that names this very workspace.

use std::fs::File;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};

/// Longer files of these names are none that git wrote.
const LONGEST: u64 = 64 << 10;

/// Returns the git directory outside of `workspace`, a path without links, that has its history.
#[must_use]
pub fn outer_git(workspace: &Path) -> Option<PathBuf> {
    let link = workspace.join(".git");
    let text = read(&link)?;
    let directory = resolved(workspace, text.strip_prefix("gitdir: ")?)?;
    let found = of_worktree(&directory, &link).or_else(|| of_submodule(&directory, workspace))?;
    // What lies inside is readable there, and a workspace in its own git directory is no worktree.
    let is_outside = !found.starts_with(workspace) && !workspace.starts_with(&found);
    (is_outside && is_git_directory(&found)).then_some(found)
}

/// Returns what a worktree's own directory shares with the others, if it is the one of `link`.
fn of_worktree(directory: &Path, link: &Path) -> Option<PathBuf> {
    let back = resolved(directory, &read(&directory.join("gitdir"))?)?;
    let common = resolved(directory, &read(&directory.join("commondir"))?)?;
    // SECURITY: else `commondir` of a forged directory would lead anywhere.
    let is_shared = directory.parent() == Some(common.join("worktrees").as_path());
    (back == link && is_shared).then_some(common)
}

/// Returns a submodule's directory, if its files are those of `workspace`.
fn of_submodule(directory: &Path, workspace: &Path) -> Option<PathBuf> {
    let config = read(&directory.join("config"))?;
    let files = resolved(directory, core_worktree(&config)?)?;
    let is_whole = std::fs::symlink_metadata(directory.join("commondir")).is_err();
    (files == workspace && is_whole).then(|| directory.to_owned())
}

/// Returns `core.worktree` as git writes it; any other spelling says nothing.
fn core_worktree(config: &str) -> Option<&str> {
    let mut is_core = false;
    let mut found = None;
    for line in config.lines().map(str::trim) {
        if line.starts_with('[') {
            is_core = line.eq_ignore_ascii_case("[core]");
        } else if is_core
            && let Some((key, value)) = line.split_once('=')
            && key.trim().eq_ignore_ascii_case("worktree")
        {
            found = Some(value.trim());
        }
    }
    found.filter(|value| !value.is_empty() && !value.contains(['"', '\\', '#', ';']))
}

fn is_git_directory(path: &Path) -> bool {
    let is = |name: &str, wanted| {
        opened(&path.join(name), OFlags::PATH).is_some_and(|(_, kind)| kind == wanted)
    };
    is("HEAD", FileType::RegularFile)
        && is("objects", FileType::Directory)
        && is("refs", FileType::Directory)
}

/// Opens a path of which no part is a link.
fn opened(path: &Path, flags: OFlags) -> Option<(File, FileType)> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = openat2(CWD, path, flags, Mode::empty(), how).ok()?;
    let kind = FileType::from_raw_mode(fstat(&file).ok()?.st_mode);
    Some((File::from(file), kind))
}

/// Returns the text of a small file.
fn read(path: &Path) -> Option<String> {
    let (file, kind) = opened(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
    if kind != FileType::RegularFile {
        return None;
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the path that a line of such a file names, seen from `base`, by its words alone.
fn resolved(base: &Path, line: &str) -> Option<PathBuf> {
    let line = line.strip_suffix('\n').unwrap_or(line);
    if line.is_empty() || line.contains(['\n', '\0']) {
        return None;
    }
    let mut path = PathBuf::new();
    for part in base.join(line).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            Component::RootDir | Component::Normal(_) | Component::Prefix(_) => path.push(part),
        }
    }
    path.is_absolute().then_some(path)
}
