//! Finds the git directories that a run touched: the workspace's own, those of its submodules and
//! of its linked worktrees, also where the run made them.
//!
//! SECURITY: a git directory that a run made is never copied. It gets a config of ours, and the
//! file that leads to it is written by us, after both ends were seen to name each other.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use super::plan::GitLayout;
use super::view::Views;
use crate::TreePath;
use crate::overlay::Scanned;
use crate::root::Node;

const MOST_BYTES: u64 = 64 << 10;

/// A git directory that a run touched.
pub(super) struct FoundRepository<'a> {
    pub(super) layout: GitLayout,
    pub(super) rows: Vec<&'a Scanned>,
    /// What the run touched of the directory that a linked worktree shares.
    pub(super) shared: Vec<&'a Scanned>,
    /// What is written anew where the run made the directory.
    pub(super) created: Option<CreatedFiles>,
}

/// The files of a git directory that the run made, as we write them.
#[derive(Debug, Default)]
pub(super) struct CreatedFiles(pub(super) Vec<(TreePath, Vec<u8>)>);

/// Everything that was found.
#[derive(Default)]
pub(super) struct FoundRepositories<'a> {
    pub(super) repositories: Vec<FoundRepository<'a>>,
    /// Git directories that are not taken over.
    pub(super) left_out: BTreeSet<TreePath>,
}

/// Sorts everything below the workspace's `.git` by the git directory it belongs to.
pub(super) fn find<'a>(
    views: &Views<'_>,
    rows: &'a [Scanned],
) -> io::Result<Option<FoundRepositories<'a>>> {
    let top = TreePath::segment(b".git");
    let is_new = match views.lower.node(&top)? {
        Node::Directory(_) => false,
        Node::Absent => true,
        Node::File(_) | Node::Link(_) | Node::Special(_) => return Ok(None),
    };
    let mut groups: BTreeMap<TreePath, Vec<&Scanned>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.path != top && row.path.is_within(&top)) {
        groups.entry(owner_of(views, &top, &row.path)?).or_default().push(row);
    }
    if groups.is_empty() || is_new && !is_whole(views, &top)? {
        return Ok(None);
    }
    let mut found = FoundRepositories::default();
    let of_top = groups.get(&top).cloned().unwrap_or_default();
    for (git, rows) in groups {
        let created = if git == top {
            is_new.then(|| CreatedFiles(vec![(top.join(b"config"), config(None))])).map(Some)
        } else if views.lower.node(&git.join(b"HEAD"))? == Node::Absent {
            created(views, &top, &git)?.map(Some)
        } else {
            Some(None)
        };
        let created = match created {
            Some(created) => created,
            None if git == top => None,
            None => {
                found.left_out.insert(git);
                continue;
            }
        };
        let is_worktree = git.is_within(&top.join(b"worktrees"));
        let common = if is_worktree { top.clone() } else { git.clone() };
        let layout = GitLayout { git, common };
        let shared = if is_worktree { of_top.clone() } else { Vec::new() };
        found.repositories.push(FoundRepository { layout, rows, shared, created });
    }
    Ok(Some(found))
}

/// Returns whether the run left a whole repository here.
fn is_whole(views: &Views<'_>, git: &TreePath) -> io::Result<bool> {
    let head = views.after(&git.join(b"HEAD"), MOST_BYTES)?.content();
    let config = views.after(&git.join(b"config"), MOST_BYTES)?.content();
    Ok(head.is_some() && config.is_some())
}

/// Returns the git directory that a path below `.git` belongs to.
fn owner_of(views: &Views<'_>, top: &TreePath, path: &TreePath) -> io::Result<TreePath> {
    let worktrees = top.join(b"worktrees");
    if path.is_within(&worktrees) && *path != worktrees {
        let name = path.segments().nth(worktrees.depth()).unwrap_or_default();
        return Ok(worktrees.join(name));
    }
    let modules = top.join(b"modules");
    if !path.is_within(&modules) || *path == modules {
        return Ok(top.clone());
    }
    // The name of a submodule may hold slashes, and submodules have submodules.
    let mut found = None;
    let above = std::iter::successors(path.parent(), TreePath::parent);
    for directory in above.take_while(|above| above.depth() > modules.depth()) {
        let has = |name: &[u8]| views.after(&directory.join(name), MOST_BYTES);
        if has(b"HEAD")?.content().is_some() && has(b"config")?.content().is_some() {
            found = Some(directory);
            break;
        }
    }
    let first = path.segments().nth(modules.depth()).unwrap_or_default();
    Ok(found.unwrap_or_else(|| modules.join(first)))
}

/// Returns what is written for a git directory that the run made, if a work tree belongs to it.
fn created(views: &Views<'_>, top: &TreePath, git: &TreePath) -> io::Result<Option<CreatedFiles>> {
    let base = views.lower.path()?;
    let files = match git.is_within(&top.join(b"worktrees")) {
        true => {
            let Some(link) = text(views, &git.join(b"gitdir"))? else { return Ok(None) };
            inside(&base, &resolved(&base.join(git.as_path()), &link))
        }
        false => {
            let Some(config) = text(views, &git.join(b"config"))? else { return Ok(None) };
            let worktree = config
                .lines()
                .find_map(|line| line.trim().strip_prefix("worktree")?.trim().strip_prefix('='));
            let Some(worktree) = worktree else { return Ok(None) };
            let files = resolved(&base.join(git.as_path()), worktree.trim());
            inside(&base, &files).map(|files| files.join(b".git"))
        }
    };
    let Some(link) = files.filter(|link| link.git_part().as_ref() == Some(link)) else {
        return Ok(None);
    };
    // The other end must lead here.
    let Some(back) = text(views, &link)? else { return Ok(None) };
    let Some(target) = back.strip_prefix("gitdir: ") else { return Ok(None) };
    let files = link.parent();
    let at = files.as_ref().map_or_else(|| base.clone(), |files| base.join(files.as_path()));
    if inside(&base, &resolved(&at, target)).as_ref() != Some(git) {
        return Ok(None);
    }
    Ok(files.map(|files| created_files(&base, git, &files)))
}

fn created_files(base: &Path, git: &TreePath, files: &TreePath) -> CreatedFiles {
    let link = files.join(b".git");
    let line = |path: PathBuf| [path.as_os_str().as_bytes(), b"\n"].concat();
    let is_worktree = git.segments().nth(1) == Some(b"worktrees");
    if is_worktree {
        let there = [b"gitdir: ".as_slice(), &line(base.join(git.as_path()))].concat();
        return CreatedFiles(vec![
            (git.join(b"gitdir"), line(base.join(link.as_path()))),
            (git.join(b"commondir"), b"../..\n".to_vec()),
            (link, there),
        ]);
    }
    let up = |path: &TreePath| "../".repeat(path.depth());
    let to = |path: &TreePath| String::from_utf8_lossy(path.as_bytes()).into_owned();
    let worktree = format!("{}{}", up(git), to(files));
    let there = format!("gitdir: {}{}\n", up(files), to(git));
    CreatedFiles(vec![(git.join(b"config"), config(Some(&worktree))), (link, there.into_bytes())])
}

/// Returns a config that says nothing but where the files are.
fn config(worktree: Option<&str>) -> Vec<u8> {
    let mut text = String::from(
        "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\
         \tlogallrefupdates = true\n",
    );
    if let Some(worktree) = worktree {
        text.push_str(&format!("\tworktree = {worktree}\n"));
    }
    text.into_bytes()
}

fn text(views: &Views<'_>, path: &TreePath) -> io::Result<Option<String>> {
    let content = views.after(path, MOST_BYTES)?.content();
    let text = content.and_then(|content| String::from_utf8(content).ok());
    // SECURITY: what would have to be quoted in a config is not written to one.
    let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    Ok(text.filter(|text| text.chars().all(is_plain)))
}

/// Returns the path that a line names, seen from `base`, by its words alone.
fn resolved(base: &Path, line: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in base.join(line.trim_end_matches('\n')).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            Component::RootDir | Component::Normal(_) | Component::Prefix(_) => path.push(part),
        }
    }
    path
}

/// Returns a path of the workspace whose name needs no quotes in a config.
fn inside(base: &Path, path: &Path) -> Option<TreePath> {
    let below = path.strip_prefix(base).ok()?.as_os_str().as_bytes();
    let is_quoted = |byte: &u8| matches!(byte, b'"' | b'\\' | b'#' | b';' | b'\n' | b' ' | b'\t');
    TreePath::new(below).ok().filter(|_| !below.iter().any(is_quoted))
}
