//! The two files of the journal, written in turn: one is appended to while the entries of the
//! other are moved; then that one is written over from its beginning, as a new generation.
//!
//! Whoever keeps the journal holds a lock on the first file. Their space is there before it is
//! needed, so that an append changes nothing but content.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::entry::{self, KeptRecord};
use crate::store::StoreError;

/// A file is full from here on.
const FULL: u64 = 3 * 1024 * 1024;

/// What a file has space for: what is appended when it was nearly full should fit.
const SPACE: usize = 4 * 1024 * 1024;

/// The journal, open and ours.
pub(super) struct Pages {
    dir: PathBuf,
    /// The one that is written now.
    current: Page,
    other: Page,
    /// Where the next entry goes.
    offset: u64,
    generation: u64,
}

struct Page {
    file: File,
    /// The number of its last entry.
    last: u64,
}

/// A journal that somebody left.
pub(super) struct Left {
    dir: PathBuf,
    first: File,
    second: Option<File>,
}

fn names(dir: &Path) -> [PathBuf; 2] {
    [dir.join("records.0"), dir.join("records.1")]
}

impl Pages {
    /// Makes a journal; fails when there is one.
    pub(super) fn create(dir: &Path) -> io::Result<Self> {
        let [first, second] = names(dir);
        let mut options = File::options();
        options.write(true).mode(0o600);
        let held = options.clone().create_new(true).open(&first)?;
        flock(&held, FlockOperation::NonBlockingLockExclusive)?;
        if !is_named(&held, &first) {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        let beside = options.create(true).truncate(true).open(&second)?;
        let page = |file: File| {
            file.write_all_at(&vec![0; SPACE], 0)?;
            file.sync_all()?;
            Ok::<_, io::Error>(Page { file, last: 0 })
        };
        let (current, other) = (page(held)?, page(beside)?);
        File::open(dir)?.sync_all()?;
        Ok(Self { dir: dir.to_owned(), current, other, offset: 0, generation: 1 })
    }

    /// Returns the generation of the next entries.
    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Begins the other file anew when this one is full and nothing of the other is needed:
    /// `applied` is the last entry that the database has.
    pub(super) fn turn(&mut self, applied: u64) {
        if self.offset >= FULL && self.other.last <= applied {
            std::mem::swap(&mut self.current, &mut self.other);
            self.offset = 0;
            self.generation += 1;
        }
    }

    /// Appends entries, of which `last` is the last. On the disk when it returns.
    pub(super) fn append(&mut self, entries: &[u8], last: u64) -> io::Result<()> {
        self.current.file.write_all_at(entries, self.offset)?;
        self.current.file.sync_data()?;
        self.offset += entries.len() as u64;
        self.current.last = last;
        Ok(())
    }

    /// Removes it; everything in it is in the database.
    pub(super) fn remove(self) {
        remove(&self.dir);
    }

    /// Returns the journal that somebody left who is gone.
    pub(super) fn left(dir: &Path) -> io::Result<Option<Left>> {
        let [first, second] = names(dir);
        let open = |path: &Path| match File::options().read(true).write(true).open(path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let Some(file) = open(&first)? else { return Ok(None) };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            // Its keeper is alive, or somebody else is moving it.
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        if !is_named(&file, &first) {
            return Ok(None);
        }
        let second = open(&second)?;
        Ok(Some(Left { dir: dir.to_owned(), first: file, second }))
    }
}

impl Left {
    /// Returns every record in it, in order.
    pub(super) fn records(&self) -> Result<Vec<KeptRecord>, StoreError> {
        let mut files = Vec::new();
        for file in [Some(&self.first), self.second.as_ref()].into_iter().flatten() {
            let (mut file, mut bytes) = (file, Vec::new());
            file.read_to_end(&mut bytes)?;
            files.push(entries(&bytes)?);
        }
        files.sort_by_key(|(generation, _)| *generation);
        Ok(files.into_iter().flat_map(|(_, records)| records).collect())
    }

    /// Removes it; everything in it is in the database.
    pub(super) fn remove(self) {
        remove(&self.dir);
    }
}

/// Returns the generation that a file begins with and its records.
fn entries(bytes: &[u8]) -> Result<(u64, Vec<KeptRecord>), StoreError> {
    let (mut rest, mut records) = (bytes, Vec::new());
    let mut before: Option<(u64, u64)> = None;
    while let Some((found, behind)) = entry::next(rest) {
        let (generation, number) = (found.generation, found.number);
        // What an earlier generation left behind the end of this one.
        if before.is_some_and(|before| before != (generation, number.wrapping_sub(1))) {
            break;
        }
        before = Some((generation, number));
        // It is whole, so somebody may have been told of it: it must not be passed over.
        records.push(found.record().ok_or(StoreError::Malformed("journal"))?);
        rest = behind;
    }
    Ok((before.map_or(0, |(generation, _)| generation), records))
}

/// Removes both files; the one with the lock last, so that none is alone without it. A file that
/// stays holds nothing that the database does not have.
fn remove(dir: &Path) {
    let [first, second] = names(dir);
    let _ = fs::remove_file(second);
    let _ = fs::remove_file(first);
}

/// Returns whether a file is still the one of that name.
fn is_named(file: &File, path: &Path) -> bool {
    let same =
        |one: &Metadata, other: &Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(held), Ok(named)) => same(&held, &named),
        _ => false,
    }
}
