//! Changes to a workspace that are made whole or not at all, and can be undone.
//!
//! ```text
//! (no status) ── contents stored ──► applying ── every path driven ──► applied
//!      │ crash: dropped               │  │ crash: driven again            │ undo
//!      ▼                              │  └──────────────► applied         ▼
//!    gone ◄── nothing was touched ────┤                undone ◄──────── undoing
//!                                     │                   ▲  crash: driven again
//!                                     └── refused ──► undoing ──► gone
//! ```
//!
//! A change that the system refuses on the way is taken back at once: nobody finds it made later.
//!
//! A snapshot has its own line: `taken ── restoring ──► gone`, or `taken ──► applied` when the
//! change it stood before is kept.
//!
//! Before the first path is touched, the old and the new state of every path is on the disk, in a
//! directory outside the workspace. Driving a path to a state gives the same result however often
//! it is done, so after a crash the next call simply does it again.

mod drive;
mod snapshot;
mod state;
mod store;
mod undo;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::gitstate::{LOCKS, release_stale};
use crate::root::Root;
use crate::{TreePath, WalkError};

pub(crate) use drive::{drive, obstacle};
pub use snapshot::{Restored, Snapshot};
pub(crate) use state::{PathState, Row, Side, escaped};
pub(crate) use store::ContentStore;
pub use undo::{Changed, UndoError, Undone};

/// Why a change could not be made, finished or undone.
#[derive(Debug, Error)]
pub enum JournalError {
    /// The journal's own directory failed.
    #[error("the journal in {path} failed")]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A path of the workspace could not be read.
    #[error(transparent)]
    Walk(#[from] WalkError),
    /// Something nobody knew of is in a directory that must make room; nothing was changed.
    #[error("{0} holds something that would be lost; nothing was changed")]
    InTheWay(TreePath),
    /// A path could not be changed, and everything is as it was.
    #[error("{path} could not be changed; everything is as it was")]
    Refused {
        /// Which.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// A path could not be changed, and what was begun could not be ended; the next call tries
    /// again.
    #[error("{path} could not be changed; what was begun is unfinished and will be taken up again")]
    Drive {
        /// Which.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// A record on the disk is not one of ours.
    #[error("the journal record {0} cannot be read")]
    Record(PathBuf),
}

/// Where a change stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Applying,
    Applied,
    Undoing,
    Undone,
    Taken,
    Restoring,
}

impl Status {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Applying => "applying",
            Self::Applied => "applied",
            Self::Undoing => "undoing",
            Self::Undone => "undone",
            Self::Taken => "taken",
            Self::Restoring => "restoring",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let changes = [Self::Applying, Self::Applied, Self::Undoing, Self::Undone];
        let snapshots = [Self::Taken, Self::Restoring];
        changes.into_iter().chain(snapshots).find(|status| status.as_str() == text)
    }
}

/// The changes made to one workspace, in a directory of ours outside of it.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    /// Held as long as the journal is open, so that two changes never mix.
    _lock: File,
}

/// A change of one journal, which no other change of it is ever called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeId(u64);

/// What [`Journal::open`] found to finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Changes whose start was lost; nothing of them had happened.
    pub dropped: usize,
    /// Changes that were finished.
    pub finished: usize,
    /// Undos that were finished.
    pub undone: usize,
    /// Restorations of snapshots that were finished.
    pub restored: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    version: u32,
    label: String,
    rows: Vec<Row>,
    /// Objects of git: made before everything else, and left where they are when it is undone,
    /// because somebody may have built on them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    objects: Vec<Row>,
}

impl Record {
    fn new(label: &str, rows: Vec<Row>) -> Self {
        Self { version: 1, label: label.to_owned(), rows, objects: Vec::new() }
    }
}

impl Journal {
    /// Opens the journal of a workspace and finishes what a crash left half done.
    ///
    /// Waits while another process has it open.
    ///
    /// # Errors
    /// [`JournalError`] when the directory or an unfinished change fails.
    pub fn open(directory: &Path, workspace: &Path) -> Result<(Self, Recovered), JournalError> {
        use std::os::unix::fs::DirBuilderExt as _;
        let failed = io_at(directory);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let lock = File::create(directory.join("lock")).map_err(io_at(directory))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|error| io_at(directory)(error.into()))?;
        let journal = Self { directory: directory.to_path_buf(), _lock: lock };
        let recovered = journal.recover(workspace)?;
        Ok((journal, recovered))
    }

    /// Makes a change: all rows are driven from their old to their new state, and kept for undo.
    pub(crate) fn apply(
        &self,
        root: &Root,
        label: &str,
        prepared: Prepared,
    ) -> Result<ChangeId, JournalError> {
        let Prepared { store, rows, objects } = prepared;
        let entry = store.path().to_path_buf();
        let change = change_at(&entry)?;
        if let Some(path) = obstacle(root, &rows, Side::After)? {
            // Without a status it is dropped by the next call, should this one not get there.
            fs::remove_dir_all(&entry).map_err(io_at(&entry))?;
            return Err(JournalError::InTheWay(path));
        }
        store.seal().map_err(io_at(&entry))?;
        let record = Record { objects, ..Record::new(label, rows) };
        write_record(&entry, &record)?;
        set_status(&entry, Status::Applying)?;
        let driven = drive(root, &entry, &record.objects, Side::After)
            .and_then(|()| drive(root, &entry, &record.rows, Side::After));
        match driven {
            Ok(()) => set_status(&entry, Status::Applied)?,
            Err(JournalError::Drive { path, source }) => {
                undo::take_back(root, &entry, &record.rows)?;
                return Err(JournalError::Refused { path, source });
            }
            Err(error) => return Err(error),
        }
        Ok(change)
    }

    /// Starts a change: a place for its contents.
    pub(crate) fn prepare(&self) -> Result<ContentStore, JournalError> {
        let next = self.entries()?.last().map_or(1, |(number, _)| number + 1);
        let path = self.directory.join(format!("{next:08}"));
        ContentStore::create(&path).map_err(io_at(&path))
    }

    /// Forgets changes older than the newest `kept`, and contents that nothing needs any more:
    /// what the last change made is in the workspace, and what was undone is nowhere.
    ///
    /// # Errors
    /// When one cannot be removed.
    pub fn tidy(&self, kept: usize) -> Result<(), JournalError> {
        let entries = self.entries()?;
        let old = entries.len().saturating_sub(kept);
        let last = entries.len().saturating_sub(1);
        for (place, (_, path)) in entries.iter().enumerate() {
            match status_of(path)? {
                Some(Status::Applied | Status::Undone) if place < old => {
                    // Without a status the rest is dropped by the next call.
                    remove_durably(&path.join("status"))?;
                    fs::remove_dir_all(path).map_err(io_at(path))?;
                }
                Some(Status::Applied) if place == last => drop_new_contents(path)?,
                Some(Status::Undone) => drop_contents(path)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn recover(&self, workspace: &Path) -> Result<Recovered, JournalError> {
        let mut recovered = Recovered::default();
        for (_, path) in self.entries()? {
            match status_of(&path)? {
                None => {
                    release_locks(workspace, &path)?;
                    fs::remove_dir_all(&path).map_err(io_at(&path))?;
                    recovered.dropped += 1;
                }
                Some(Status::Applying) => {
                    let root = Root::open(workspace).map_err(io_at(workspace))?;
                    let record = read_record(&path)?;
                    drive(&root, &path, &record.objects, Side::After)?;
                    drive(&root, &path, &record.rows, Side::After)?;
                    set_status(&path, Status::Applied)?;
                    recovered.finished += 1;
                }
                Some(Status::Undoing) => {
                    let root = Root::open(workspace).map_err(io_at(workspace))?;
                    drive(&root, &path, &read_record(&path)?.rows, Side::Before)?;
                    set_status(&path, Status::Undone)?;
                    recovered.undone += 1;
                }
                Some(Status::Restoring) => {
                    let root = Root::open(workspace).map_err(io_at(workspace))?;
                    snapshot::restore(&root, &path)?;
                    recovered.restored += 1;
                }
                Some(Status::Applied | Status::Undone | Status::Taken) => {}
            }
            release_locks(workspace, &path)?;
        }
        Ok(recovered)
    }

    /// Returns the changes there are, oldest first.
    fn entries(&self) -> Result<Vec<(u64, PathBuf)>, JournalError> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(io_at(&self.directory))? {
            let path = entry.map_err(io_at(&self.directory))?.path();
            if let Some(number) = number_at(&path) {
                entries.push((number, path));
            }
        }
        entries.sort();
        Ok(entries)
    }
}

/// Removes the locks of git that a crash left.
fn release_locks(workspace: &Path, entry: &Path) -> Result<(), JournalError> {
    if !entry.join(LOCKS).exists() {
        return Ok(());
    }
    let root = Root::open(workspace).map_err(io_at(workspace))?;
    release_stale(&root, entry).map_err(io_at(entry))
}

fn number_at(entry: &Path) -> Option<u64> {
    entry.file_name()?.to_str()?.parse().ok()
}

fn change_at(entry: &Path) -> Result<ChangeId, JournalError> {
    number_at(entry).map(ChangeId).ok_or_else(|| JournalError::Record(entry.to_path_buf()))
}

/// A change whose contents are stored and whose rows are known.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) store: ContentStore,
    pub(crate) rows: Vec<Row>,
    /// Objects of git, which undo leaves.
    pub(crate) objects: Vec<Row>,
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> JournalError + use<> {
    let path = path.to_path_buf();
    move |source| JournalError::Io { path, source }
}

const RECORD: &str = "record.json";

fn write_record(entry: &Path, record: &Record) -> Result<(), JournalError> {
    write_named(&entry.join(RECORD), record)
}

fn read_record(entry: &Path) -> Result<Record, JournalError> {
    read_named(&entry.join(RECORD))
}

fn write_named(path: &Path, record: &Record) -> Result<(), JournalError> {
    let bytes = serde_json::to_vec(record).map_err(|_| JournalError::Record(path.to_path_buf()))?;
    write_durably(path, &bytes)
}

fn read_named(path: &Path) -> Result<Record, JournalError> {
    let unknown = || JournalError::Record(path.to_path_buf());
    let bytes = fs::read(path).map_err(io_at(path))?;
    let record: Record = serde_json::from_slice(&bytes).map_err(|_| unknown())?;
    if record.version == 1 { Ok(record) } else { Err(unknown()) }
}

fn status_of(entry: &Path) -> Result<Option<Status>, JournalError> {
    match fs::read_to_string(entry.join("status")) {
        Ok(text) => match Status::parse(&text) {
            Some(status) => Ok(Some(status)),
            None => Err(JournalError::Record(entry.join("status"))),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(JournalError::Io { path: entry.to_path_buf(), source }),
    }
}

fn set_status(entry: &Path, status: Status) -> Result<(), JournalError> {
    write_durably(&entry.join("status"), status.as_str().as_bytes())
}

/// Removes the contents of a change that was made, but for those that undo puts back.
fn drop_new_contents(entry: &Path) -> Result<(), JournalError> {
    let record = read_record(entry)?;
    let rows = &record.rows;
    let number = |state: &PathState| match state {
        PathState::File { content, .. } => *content,
        _ => None,
    };
    let needed: HashSet<u64> = rows.iter().filter_map(|row| number(&row.before)).collect();
    // Git refreshes its index on its own; undo must know what it was to see what is new in it.
    let is_kept = |row: &&Row| !is_git_index(&row.path);
    let made =
        rows.iter().filter(is_kept).chain(&record.objects).filter_map(|row| number(&row.after));
    for unneeded in made.filter(|number| !needed.contains(number)) {
        remove_if_there(&store::content_path(entry, unneeded))?;
    }
    Ok(())
}

/// Returns whether a path is the index of a git directory.
pub(crate) fn is_git_index(path: &TreePath) -> bool {
    path.name() == b"index" && path.git_part().is_some()
}

/// Removes the contents of a change that was taken back.
fn drop_contents(entry: &Path) -> Result<(), JournalError> {
    let contents = entry.join("content");
    match fs::remove_dir_all(&contents) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_at(&contents)(error)),
        _ => Ok(()),
    }
}

fn remove_if_there(path: &Path) -> Result<(), JournalError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_at(path)(error)),
        _ => Ok(()),
    }
}

fn remove_durably(path: &Path) -> Result<(), JournalError> {
    remove_if_there(path)?;
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(io_at(path))
}

/// Replaces a file so that after a crash it is the old or the new one, never a part.
fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), JournalError> {
    let write = || -> io::Result<()> {
        let directory = path.parent().unwrap_or_else(|| Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(io_at(path))
}

/// Returns a path's name for an error.
pub(crate) fn drive_error(path: &TreePath) -> impl FnOnce(io::Error) -> JournalError + use<> {
    let path = path.to_string();
    move |source| JournalError::Drive { path, source }
}
