//! What changed in a workspace, and the one diff that says it.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};

use warrant_protocol::Digest;

use crate::root::SpecialKind;
use crate::{FileMode, TreePath};

/// How a file changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was not there before.
    Added,
    /// Its content changed.
    Modified,
    /// It is gone; the content hash is [`Digest::DELETED`].
    Deleted,
    /// It is what another path was; that path is gone.
    Renamed {
        /// The path it had.
        from: TreePath,
    },
    /// Only whether it may be executed changed.
    ModeChanged,
    /// A file became a link or a link a file.
    Retyped,
}

/// One changed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub path: TreePath,
    /// How.
    pub kind: ChangeKind,
    /// What it is now, or was if deleted.
    pub mode: FileMode,
    /// SHA-256 of its content now; of the target, for a link.
    pub digest: Digest,
    /// How many bytes it has now.
    pub bytes: u64,
}

/// Why something in the workspace is not part of the diff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyUnread {
    /// It is no file, link or directory; it was not opened.
    Special(SpecialKind),
    /// It is larger than a file may be.
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// The program took the right to read it away, and whoever collects is not root.
    Forbidden,
    /// Its name means a git directory somewhere; git itself refuses such a diff.
    GitName,
    /// A directory nested deeper than is read; nothing below it was looked at.
    TooDeep,
    /// A large file that is nearly all holes.
    Sparse {
        /// Its size.
        bytes: u64,
    },
    /// The time for collecting was over, or somebody stopped it: this path and as many after it
    /// were not read.
    OutOfTime {
        /// How many more paths were not read.
        left: u64,
    },
}

/// Something that is there and was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Which.
    pub path: TreePath,
    /// Why not.
    pub why: WhyUnread,
}

/// What a collection found.
#[derive(Debug)]
pub struct Collected {
    /// Changed files, by path.
    pub changes: Vec<Change>,
    /// What was seen and not read, by path.
    pub unread: Vec<Unread>,
    /// The diff, unless nothing changed.
    pub diff: Option<Diff>,
}

/// A diff that `git apply --binary` takes, kept in a file nobody else can reach.
#[derive(Debug)]
pub struct Diff {
    file: File,
    /// SHA-256 of its bytes.
    pub digest: Digest,
    /// How many bytes it has.
    pub bytes: u64,
}

impl Diff {
    pub(crate) fn of(mut file: File) -> io::Result<Option<Self>> {
        file.seek(SeekFrom::Start(0))?;
        let stored = crate::blob::copy_hashed(&mut file, &mut io::sink())?;
        let diff = Self { file, digest: stored.digest, bytes: stored.bytes };
        Ok(Some(diff).filter(|diff| diff.bytes > 0))
    }

    /// Returns a reader of the diff from its start; one at a time.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn reader(&self) -> io::Result<impl Read + Send + use<>> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(BufReader::new(file))
    }

    /// Returns the diff held in memory.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn to_vec(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.reader()?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
