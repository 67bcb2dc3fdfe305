//! Untracked files: which there are, which may travel, and in which form.

use std::io;

use warrant_protocol::RelPath;
use warrant_protocol::manifest::UntrackedFile;

use super::{CaptureError, CaptureOptions};
use crate::change::Diff;
use crate::git::ScratchRepo;
use crate::patch::Patcher;
use crate::path::quoted;
use crate::progress::{Phase, Step, never_stop};
use crate::root::{Node, Root};
use crate::{BlobSink, FileMode, GitError, TreePath};

/// What became of the untracked files.
#[derive(Debug)]
pub(super) struct Sorted {
    pub(super) files: Vec<UntrackedFile>,
    pub(super) denied: Vec<TreePath>,
    pub(super) warnings: Vec<String>,
}

/// Lists untracked files that are not ignored, refusing an unfinished merge.
pub(super) fn list(repo: &ScratchRepo) -> Result<Vec<Vec<u8>>, CaptureError> {
    let answer = repo
        .git("ls-files")
        .args(["-z", "-t", "--others", "--unmerged", "--exclude-standard"])
        .output()?;
    let mut names = Vec::new();
    for row in answer.split(|byte| *byte == 0).filter(|row| !row.is_empty()) {
        match row {
            [b'?', b' ', name @ ..] => names.push(name.to_vec()),
            [b'M', b' ', rest @ ..] => {
                let name = rest.rsplit(|byte| *byte == b'\t').next().unwrap_or_default();
                let path =
                    TreePath::new(name).map_err(|_| GitError::Answer { command: "ls-files" })?;
                return Err(CaptureError::Unmerged(path));
            }
            _ => return Err(GitError::Answer { command: "ls-files" }.into()),
        }
    }
    Ok(names)
}

/// Takes untracked names one by one and captures those that may travel.
pub(super) struct Sorter<'a> {
    root: &'a Root,
    sink: &'a dyn BlobSink,
    options: &'a CaptureOptions<'a>,
    patcher: Patcher,
    sorted: Sorted,
    done: u64,
}

impl<'a> Sorter<'a> {
    pub(super) fn new(
        root: &'a Root,
        sink: &'a dyn BlobSink,
        options: &'a CaptureOptions<'a>,
    ) -> Self {
        let patcher = Patcher::new(options.scratch);
        let sorted = Sorted { files: Vec::new(), denied: Vec::new(), warnings: Vec::new() };
        Self { root, sink, options, patcher, sorted, done: 0 }
    }

    /// Returns what became of the names, and the diff that carries what the manifest cannot.
    pub(super) fn finish(self) -> Result<(Sorted, Option<Diff>), CaptureError> {
        let (_, extra) = self.patcher.finish(&never_stop)?;
        Ok((self.sorted, extra))
    }

    /// Decides one name.
    pub(super) fn sort(&mut self, name: &[u8]) -> Result<(), CaptureError> {
        self.done += 1;
        (self.options.progress)(Step { phase: Phase::Reading, done: self.done, total: None });
        if name.ends_with(b"/") {
            let name = quoted(name);
            self.sorted
                .warnings
                .push(format!("{name} is a repository of its own and stays at home"));
            return Ok(());
        }
        let path = TreePath::new(name).map_err(|_| GitError::Answer { command: "ls-files" })?;
        if self.options.is_denied(&path)? {
            self.sorted.denied.push(path);
        } else if self.options.is_allowed(&path)? {
            self.take(path)?;
        }
        Ok(())
    }

    /// Captures one file in the form that keeps all of it.
    fn take(&mut self, path: TreePath) -> Result<(), CaptureError> {
        let shown = path.to_string();
        let failed = |source: io::Error| CaptureError::Read { path: shown.clone(), source };
        if path.git_part().is_some() {
            self.sorted.warnings.push(format!("{path} names a git directory and stays at home"));
            return Ok(());
        }
        let text = std::str::from_utf8(path.as_bytes()).ok();
        let rel_path = text.and_then(|text| text.parse::<RelPath>().ok());
        match (self.root.node(&path).map_err(failed)?, rel_path) {
            // SECURITY: a link is captured as a link; what it points to is not read.
            (Node::Link(_), _) => {
                let target = self.root.link(&path).map_err(failed)?;
                let bytes = target.len() as u64;
                let new = self.patcher.store(FileMode::Symlink, &mut target.as_slice(), bytes);
                self.patcher.add(path, None, Some(new.map_err(CaptureError::Store)?));
            }
            (Node::File(facts), Some(rel_path)) if facts.permissions & 0o100 == 0 => {
                let (mut file, _) = self.root.file(&path).map_err(failed)?;
                let stored = self.sink.put(&mut file).map_err(CaptureError::Store)?;
                let (hash, bytes) = (stored.digest, stored.bytes);
                self.sorted.files.push(UntrackedFile { path: rel_path, hash, bytes });
            }
            (Node::File(_), _) => {
                let (mut file, facts) = self.root.file(&path).map_err(failed)?;
                let mode = FileMode::of_permissions(facts.permissions);
                let new = self.patcher.store(mode, &mut file, facts.bytes).map_err(failed)?;
                self.patcher.add(path, None, Some(new));
            }
            (Node::Absent | Node::Directory(_) | Node::Special(_), _) => {
                self.sorted.warnings.push(format!("{path} is no file and stays at home"));
            }
        }
        Ok(())
    }
}
