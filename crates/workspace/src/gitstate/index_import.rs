//! The index on its way to the host: taken over, rebuilt from the commit, or left as it is.

use std::collections::HashMap;

use super::head_files::{HeadPair, RunSide};
use super::index::{self, IndexEntry};
use super::object_links::ExpectedKind;
use super::plan::{GitRefusal, Planner};
use super::view::SmallFile;
use super::{GitContent, RefUpdate};
use crate::object::{ObjectKind, Oid, TreeEntry, parse_tree};
use crate::{FileMode, TreePath};

/// More files than this are not written to an index.
const MOST_ENTRIES: usize = 2_000_000;

/// What becomes of the index.
pub(super) struct ReadIndex {
    /// The new one, if it differs.
    entries: Option<Vec<IndexEntry>>,
    /// Whether somebody else staged something meanwhile that would be lost.
    is_conflict: bool,
}

impl ReadIndex {
    pub(super) const fn is_changed(&self) -> bool {
        self.entries.is_some()
    }

    pub(super) const fn is_conflict(&self) -> bool {
        self.is_conflict
    }
}

/// Reads the index that the run left.
pub(super) fn read(
    planner: &mut Planner<'_>,
    head: &HeadPair,
    updates: &[RefUpdate],
) -> Result<ReadIndex, GitRefusal> {
    let path = planner.layout.git.join(b"index");
    if !planner.views.is_touched(&path) {
        return Ok(ReadIndex { entries: None, is_conflict: false });
    }
    let host = planner.views.before(&path, index::MOST_BYTES)?.content();
    let host = host.and_then(|bytes| index::parse(&bytes).ok()).unwrap_or_default();
    let entries = match checked(planner, &path, &host)? {
        Ok(entries) => entries,
        Err(why) => {
            planner.plan.notes.push(format!("the index was made anew from the commit: {why}"));
            rebuilt(planner, head, updates)?
        }
    };
    if index::names_same(&entries, &host) {
        return Ok(ReadIndex { entries: None, is_conflict: false });
    }
    let is_conflict = planner.views.is_changed_since(&path)?
        && would_lose(planner, (&host, &entries), head, updates)?;
    Ok(ReadIndex { entries: Some(entries), is_conflict })
}

/// Adds the index.
pub(super) fn row(planner: &mut Planner<'_>, read: ReadIndex) -> Result<(), GitRefusal> {
    let path = planner.layout.git.join(b"index");
    match read.entries {
        Some(_) if read.is_conflict => {
            let why = "files were staged here meanwhile; run `git add` again";
            planner.plan.notes.push(format!("{path} is not taken over: {why}"));
            Ok(())
        }
        Some(entries) => planner.push_row(path, GitContent::Bytes(index::to_bytes(&entries))),
        None => Ok(()),
    }
}

/// Adds the index of the commit that HEAD is at afterwards.
pub(super) fn commit_row(
    planner: &mut Planner<'_>,
    head: &HeadPair,
    updates: &[RefUpdate],
) -> Result<(), GitRefusal> {
    let path = planner.layout.git.join(b"index");
    let host = planner.views.before(&path, index::MOST_BYTES)?.content();
    let host = host.and_then(|bytes| index::parse(&bytes).ok()).unwrap_or_default();
    let mut entries = rebuilt(planner, head, updates)?;
    index::distrust(&mut entries, &host);
    if index::names_same(&entries, &host) {
        return Ok(());
    }
    planner.push_row(path, GitContent::Bytes(index::to_bytes(&entries)))
}

/// Parses and checks the index; what is wrong with it is the inner error.
fn checked(
    planner: &mut Planner<'_>,
    path: &TreePath,
    host: &[IndexEntry],
) -> Result<Result<Vec<IndexEntry>, String>, GitRefusal> {
    let bytes = match planner.views.after(path, index::MOST_BYTES)? {
        SmallFile::Content(bytes) => bytes,
        SmallFile::Absent => return Ok(Err("it is not there".to_owned())),
        SmallFile::NoFile => return Ok(Err("it is not a file".to_owned())),
    };
    let mut entries = match index::parse(&bytes) {
        Ok(entries) => entries,
        Err(index::InvalidIndex(why)) => return Ok(Err(why.to_owned())),
    };
    let added = index::added(&entries, host);
    if index::has_file_as_directory(&entries, &added) {
        return Ok(Err("a path is a file and a directory".to_owned()));
    }
    for entry in added.iter().filter(|entry| entry.mode != FileMode::Submodule) {
        let wanted = planner.objects.want(entry.oid, ExpectedKind::Blob);
        if entry.names_content()
            && let Err(problem) = wanted
        {
            return Ok(Err(format!("{}: {problem}", entry.path)));
        }
    }
    index::distrust(&mut entries, host);
    Ok(Ok(entries))
}

/// Returns the index of the commit that HEAD is at after the run.
fn rebuilt(
    planner: &mut Planner<'_>,
    head: &HeadPair,
    updates: &[RefUpdate],
) -> Result<Vec<IndexEntry>, GitRefusal> {
    let commit = match head.after() {
        Some(value) => planner.object_at(value, updates, RunSide::After)?,
        None => None,
    };
    let Some(commit) = commit else { return Ok(Vec::new()) };
    let tree = tree_of(planner, commit)?;
    let mut entries = Vec::new();
    flatten(planner, tree, None, &mut entries)?;
    entries.sort_by(|a: &IndexEntry, b| a.path.cmp(&b.path));
    Ok(entries)
}

fn tree_of(planner: &mut Planner<'_>, commit: Oid) -> Result<Oid, GitRefusal> {
    let unreadable = || GitRefusal(format!("commit {} cannot be read", commit.to_hex()));
    match planner.objects.read(commit) {
        Ok((ObjectKind::Commit, content)) => {
            crate::object::parse_commit(&content).map(|(tree, _)| tree).ok_or_else(unreadable)
        }
        _ => Err(unreadable()),
    }
}

fn tree_entries(planner: &mut Planner<'_>, tree: Oid) -> Result<Vec<TreeEntry>, GitRefusal> {
    let unreadable = || GitRefusal(format!("tree {} cannot be read", tree.to_hex()));
    match planner.objects.read(tree) {
        Ok((ObjectKind::Tree, content)) => parse_tree(&content).map_err(|_| unreadable()),
        _ => Err(unreadable()),
    }
}

fn flatten(
    planner: &mut Planner<'_>,
    tree: Oid,
    at: Option<&TreePath>,
    entries: &mut Vec<IndexEntry>,
) -> Result<(), GitRefusal> {
    for entry in tree_entries(planner, tree)? {
        if entries.len() > MOST_ENTRIES {
            return Err(GitRefusal("the commit has too many files".to_owned()));
        }
        match entry {
            TreeEntry::Directory { name, oid } => {
                let path = crate::walk::child_of(at, &name);
                flatten(planner, oid, Some(&path), entries)?;
            }
            TreeEntry::File { name, mode, oid } => {
                let path = crate::walk::child_of(at, &name);
                entries.push(IndexEntry::of_file(path, mode, oid));
            }
        }
    }
    Ok(())
}

/// Returns whether the host's index holds something that neither the run's nor the commit has.
fn would_lose(
    planner: &mut Planner<'_>,
    (host, run): (&[IndexEntry], &[IndexEntry]),
    head: &HeadPair,
    updates: &[RefUpdate],
) -> Result<bool, GitRefusal> {
    let commit = match head.before() {
        Some(value) => planner.object_at(value, updates, RunSide::Before)?,
        None => None,
    };
    let tree = match commit {
        Some(commit) => Some(tree_of(planner, commit)?),
        None => None,
    };
    let mut known = HashMap::new();
    for entry in index::added(host, run) {
        let committed = committed(planner, tree, &entry.path, &mut known)?;
        if committed != Some((entry.mode, entry.oid)) {
            return Ok(true);
        }
    }
    // A file that was removed from the host's index meanwhile.
    for entry in index::added(run, host) {
        let is_gone = !host.iter().any(|other| other.path == entry.path);
        let committed = committed(planner, tree, &entry.path, &mut known)?;
        if is_gone && committed == Some((entry.mode, entry.oid)) {
            return Ok(true);
        }
    }
    Ok(false)
}

type Directories = HashMap<Option<TreePath>, Option<Vec<TreeEntry>>>;

/// Returns what the commit holds at a path.
fn committed(
    planner: &mut Planner<'_>,
    tree: Option<Oid>,
    path: &TreePath,
    known: &mut Directories,
) -> Result<Option<(FileMode, Oid)>, GitRefusal> {
    let Some(tree) = tree else { return Ok(None) };
    let parent = path.parent();
    load(planner, tree, parent.as_ref(), known)?;
    let entries = known.get(&parent).and_then(Option::as_ref);
    let found = entries.into_iter().flatten().find_map(|entry| match entry {
        TreeEntry::File { name, mode, oid } if name == path.name() => Some((*mode, *oid)),
        TreeEntry::File { .. } | TreeEntry::Directory { .. } => None,
    });
    Ok(found)
}

/// Reads the tree of a directory, and of those above it.
fn load(
    planner: &mut Planner<'_>,
    tree: Oid,
    at: Option<&TreePath>,
    known: &mut Directories,
) -> Result<(), GitRefusal> {
    if known.contains_key(&at.cloned()) {
        return Ok(());
    }
    let oid = match at {
        None => Some(tree),
        Some(path) => {
            let parent = path.parent();
            load(planner, tree, parent.as_ref(), known)?;
            let entries = known.get(&parent).and_then(Option::as_ref);
            entries.into_iter().flatten().find_map(|entry| match entry {
                TreeEntry::Directory { name, oid } if name == path.name() => Some(*oid),
                TreeEntry::Directory { .. } | TreeEntry::File { .. } => None,
            })
        }
    };
    let entries = match oid {
        Some(oid) => Some(tree_entries(planner, oid)?),
        None => None,
    };
    known.insert(at.cloned(), entries);
    Ok(())
}
