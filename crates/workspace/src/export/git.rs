//! Turns what is taken over of a repository into rows of the journal.

use std::fs::File;
use std::io;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::ExportError;
use crate::blob::Spool;
use crate::gitstate::{GitContent, GitRow, open_loose};
use crate::journal::{ContentStore, JournalError, PathState, Row};
use crate::object::Oid;
use crate::root::{Node, Root};
use crate::{TreePath, WalkError};

/// Where the rows come from and where their contents go.
pub(crate) struct GitRows<'a> {
    pub(crate) lower: &'a Root,
    pub(crate) upper: &'a Root,
    pub(crate) store: &'a mut ContentStore,
}

/// The permissions and owner that new files of a git directory get.
#[derive(Clone, Copy)]
struct GitMode {
    file: u32,
    directory: u32,
    owner: (u32, u32),
}

impl GitRows<'_> {
    /// Stores what is there and what it becomes.
    pub(crate) fn rows(&mut self, planned: Vec<GitRow>) -> Result<Vec<Row>, ExportError> {
        let mut rows = Vec::with_capacity(planned.len());
        let Some(first) = planned.first() else { return Ok(rows) };
        let mode = self.mode_below(&first.path)?;
        for row in planned {
            let path = row.path;
            let failed = at(&path);
            // SECURITY: compare and swap; whoever changed it since it was planned keeps it.
            let now = self.lower.node(&path).map_err(failed)?;
            if !super::is_same(now, row.before) {
                return Err(ExportError::Conflict(path));
            }
            let before = self.store.keep(self.lower, &path).map_err(at(&path))?;
            let after = self.state(&path, (row.after, &before), mode)?;
            rows.push(Row { path, before, after });
        }
        Ok(rows)
    }

    /// Stores new objects; one that is there already is left out.
    pub(crate) fn objects(&mut self, planned: Vec<GitRow>) -> Result<Vec<Row>, ExportError> {
        let mut missing = Vec::with_capacity(planned.len());
        for row in planned {
            if self.lower.node(&row.path).map_err(at(&row.path))? == Node::Absent {
                missing.push(row);
            }
        }
        self.rows(missing)
    }

    fn state(
        &mut self,
        path: &TreePath,
        (after, before): (GitContent, &PathState),
        mode: GitMode,
    ) -> Result<PathState, ExportError> {
        let (content, digest, permissions) = match after {
            GitContent::Absent => return Ok(PathState::Absent),
            GitContent::Directory => {
                let (mtime, owner) = (now(), mode.owner);
                return Ok(PathState::Directory { mode: mode.directory, mtime, owner });
            }
            GitContent::Bytes(bytes) => {
                let (content, digest) = self.store.put(&mut bytes.as_slice()).map_err(at(path))?;
                (content, digest, if is_object(path) { 0o444 } else { mode.file })
            }
            GitContent::LooseObject(oid) => {
                let mut file = self.recompressed(path, oid)?;
                let (content, digest) = self.store.put(&mut file).map_err(at(path))?;
                (content, digest, 0o444)
            }
            GitContent::Pack { from, digest: checked } => {
                let (mut file, _) = self.upper.file(&from).map_err(at(&from))?;
                let (content, digest) = self.store.put(&mut file).map_err(at(&from))?;
                if digest != checked {
                    return Err(ExportError::Conflict(from));
                }
                (content, digest, 0o444)
            }
        };
        // Git compares the time of its index with those of files it remembers; a later one would
        // make it believe more of them.
        let mtime = match before {
            PathState::File { mtime, .. } if path.name() == b"index" => *mtime,
            _ => now(),
        };
        let (mode, owner, content) = (permissions, mode.owner, Some(content));
        Ok(PathState::File { mode, mtime, owner, digest, content })
    }

    /// Reads an object of the layer once more, makes sure of its name, and compresses it anew.
    fn recompressed(&self, path: &TreePath, oid: Oid) -> Result<File, ExportError> {
        let (file, _) = self.upper.file(path).map_err(at(path))?;
        let mut object = open_loose(file).map_err(at(path))?;
        let spool = Spool::new(self.store.path()).map_err(at(path))?;
        let mut sink = ZlibEncoder::new(spool, Compression::fast());
        let header = format!("{} {}\0", object.kind.as_str(), object.bytes);
        sink.write_all(header.as_bytes()).map_err(at(path))?;
        let name = object.copy_to(&mut sink).map_err(at(path))?;
        if name != oid {
            return Err(ExportError::Conflict(path.clone()));
        }
        sink.finish().and_then(Spool::into_file).map_err(at(path))
    }

    /// Returns what files of the git directory that `path` is in look like.
    fn mode_below(&self, path: &TreePath) -> Result<GitMode, ExportError> {
        let git = path.git_part().unwrap_or_else(|| path.clone());
        let directory = self.lower.node(&git).map_err(at(&git))?;
        let head = self.lower.node(&git.join(b"HEAD")).map_err(at(&git))?;
        let file = match head {
            Node::File(facts) => facts.permissions & 0o666 | 0o600,
            _ => 0o644,
        };
        Ok(match directory {
            Node::Directory(facts) => GitMode {
                file,
                directory: facts.permissions & 0o777 | 0o700,
                owner: (facts.uid, facts.gid),
            },
            _ => {
                let owner = super::root_owner(self.lower).map_err(ExportError::Open)?;
                GitMode { file, directory: 0o755, owner }
            }
        })
    }
}

fn is_object(path: &TreePath) -> bool {
    path.segments().any(|segment| segment == b"objects")
}

fn at(path: &TreePath) -> impl FnOnce(io::Error) -> ExportError + use<> {
    let path = path.clone();
    move |error| ExportError::Journal(JournalError::Walk(WalkError::at(Some(&path))(error)))
}

fn now() -> (i64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(since.as_secs()).unwrap_or(0), since.subsec_nanos())
}
