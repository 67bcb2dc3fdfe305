//! Tracked files: which there are, which match a deny pattern, which changed ones stay at home.

use std::io::Read as _;

use super::{CaptureError, CaptureOptions, History, Job, Seen};
use crate::discover::Repository;
use crate::git::ScratchRepo;
use crate::object::Oid;
use crate::root::Root;
use crate::{FileMode, GitError, TreePath};

/// One object of the commit's tree.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) path: TreePath,
    pub(super) oid: Oid,
    /// `None` for a directory.
    pub(super) mode: Option<FileMode>,
}

/// Everything in the commit's tree.
#[derive(Debug)]
pub(super) struct Listing(pub(super) Vec<Listed>);

impl Listing {
    /// Returns the files a deny pattern matches.
    pub(super) fn denied(
        &self,
        options: &CaptureOptions<'_>,
    ) -> Result<Vec<TreePath>, CaptureError> {
        let mut denied = Vec::new();
        for listed in self.0.iter().filter(|listed| listed.mode.is_some()) {
            if options.is_denied(&listed.path)? {
                denied.push(listed.path.clone());
            }
        }
        Ok(denied)
    }

    pub(super) fn submodules(&self) -> Vec<TreePath> {
        let is_submodule = |listed: &&Listed| listed.mode == Some(FileMode::Submodule);
        self.0.iter().filter(is_submodule).map(|listed| listed.path.clone()).collect()
    }
}

/// Lists the tree of a commit.
pub(super) fn list(repo: &ScratchRepo, commit: Oid) -> Result<Listing, CaptureError> {
    let answer =
        repo.git("ls-tree").args(["-r", "-t", "-z", "--full-tree", &commit.to_hex()]).output()?;
    let rows = answer.split(|byte| *byte == 0).filter(|row| !row.is_empty()).map(parse);
    let rows: Option<Vec<Listed>> = rows.collect();
    Ok(Listing(rows.ok_or(GitError::Answer { command: "ls-tree" })?))
}

fn parse(row: &[u8]) -> Option<Listed> {
    let tab = row.iter().position(|byte| *byte == b'\t')?;
    let head = std::str::from_utf8(row.get(..tab)?).ok()?;
    let path = TreePath::new(row.get(tab + 1..)?).ok()?;
    let mut words = head.split(' ');
    let mode = match words.next()? {
        "040000" => None,
        "100644" | "100664" => Some(FileMode::Regular),
        "100755" => Some(FileMode::Executable),
        "120000" => Some(FileMode::Symlink),
        "160000" => Some(FileMode::Submodule),
        _ => return None,
    };
    Some(Listed { path, oid: Oid::from_hex(words.nth(1)?)?, mode })
}

/// Changed tracked files that stay at home.
#[derive(Debug)]
pub(super) struct HeldBack {
    pub(super) paths: Vec<TreePath>,
    pub(super) warnings: Vec<String>,
}

/// Finds changed tracked files that must not be in the dirty diff.
///
/// Those a deny pattern matches (unless the whole history travels anyway), and those a filter
/// stands before: the filter is never run, and without it the file's clear text would travel
/// where the repository has it encrypted, or the content where it has a pointer.
pub(super) fn held_back_changes(job: &Job<'_>, seen: &Seen) -> Result<HeldBack, CaptureError> {
    const MAX_EXCLUDED: usize = 2000;
    let Job { repository, repo, options, .. } = job;
    let history = options.history;
    let mut held = HeldBack { paths: Vec::new(), warnings: Vec::new() };
    if seen.suspects.as_ref().is_some_and(Vec::is_empty) {
        return Ok(held);
    }
    let has_filters = mentions_filters(repo, repository, &seen.root)?;
    if history == History::Full && !has_filters {
        return Ok(held);
    }
    let answer = repo
        .git("diff")
        .args([
            "--name-only",
            "-z",
            "--no-renames",
            "--no-ext-diff",
            "--ignore-submodules=all",
            "HEAD",
            "--",
        ])
        .args(seen.pathspecs())
        .output()?;
    let names = answer.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut changed = Vec::new();
    for name in names {
        let path = TreePath::new(name).map_err(|_| GitError::Answer { command: "diff" })?;
        if history.leaves_denied() && options.is_denied(&path)? {
            held.paths.push(path);
        } else {
            changed.push(path);
        }
    }
    if has_filters && !changed.is_empty() {
        for path in filtered(repo, repository, &changed)? {
            held.warnings
                .push(format!("{path} changed but stays at home: a git filter stands before it"));
            held.paths.push(path);
        }
    }
    if held.paths.len() > MAX_EXCLUDED {
        return Err(CaptureError::TooManyDenied(held.paths.len()));
    }
    Ok(held)
}

/// Returns whether any attributes of the workspace speak of filters at all.
fn mentions_filters(
    repo: &ScratchRepo,
    repository: &Repository,
    root: &Root,
) -> Result<bool, CaptureError> {
    let answer = repo
        .git("ls-files")
        .args(["-z", "-c", "-o", "--", ":(top,glob)**/.gitattributes"])
        .output()?;
    let own =
        std::fs::read(repository.common_directory.join("info/attributes")).unwrap_or_default();
    let mut texts = vec![own];
    for name in answer.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let Ok(path) = TreePath::new(name) else { continue };
        // An attributes file that is a link or gone is not read by git either.
        let Ok((file, _)) = root.file(&path) else { continue };
        let mut text = Vec::new();
        let read = file.take(1 << 20).read_to_end(&mut text);
        read.map_err(|source| CaptureError::Read { path: path.to_string(), source })?;
        texts.push(text);
    }
    let mentions = |text: &Vec<u8>| text.windows(7).any(|window| window == b"filter=");
    Ok(texts.iter().any(mentions))
}

/// Asks git which of these paths have a filter; the question runs none.
fn filtered(
    repo: &ScratchRepo,
    repository: &Repository,
    paths: &[TreePath],
) -> Result<Vec<TreePath>, CaptureError> {
    // The attributes that undo all others must not answer here.
    let asked = ScratchRepo::create(repo.path())
        .and_then(|asked| {
            let own = repository.common_directory.join("info/attributes");
            let text = std::fs::read(own).unwrap_or_default();
            std::fs::write(asked.path().join("info/attributes"), text)?;
            super::copy_if_there(&repo.path().join("index"), &asked.path().join("index"))?;
            Ok(asked.borrowing_objects(&repository.objects()).with_work_tree(&repository.top))
        })
        .map_err(CaptureError::Store)?;
    let input: Vec<u8> = paths.iter().flat_map(|path| [path.as_bytes(), b"\0"].concat()).collect();
    let answer = asked.git("check-attr").args(["-z", "--stdin", "filter"]).output_with(input)?;
    let mut fields = answer.split(|byte| *byte == 0);
    let mut filtered = Vec::new();
    while let (Some(path), Some(_), Some(value)) = (fields.next(), fields.next(), fields.next()) {
        if !matches!(value, b"unspecified" | b"unset") {
            let path =
                TreePath::new(path).map_err(|_| GitError::Answer { command: "check-attr" })?;
            filtered.push(path);
        }
    }
    Ok(filtered)
}
