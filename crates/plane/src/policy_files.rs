//! The files of a policy in the home: read, checked elsewhere, replaced in one step.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, fstat, openat, renameat_with, stat};
use rustix::io::Errno;
use thiserror::Error;
use warrant_policy::preset::Preset;
use warrant_policy::snapshot::PolicyText;

const POLICY_FILES: [&str; 3] = ["document.json", "rules.cedar", "tests.jsonl"];

/// The files of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFiles {
    /// The policy document.
    pub document: String,
    /// The Cedar rules.
    pub rules: String,
    /// The examples that must hold.
    pub examples: String,
}

/// Why a policy cannot be read or written.
#[derive(Debug, Error)]
pub enum PolicyFilesError {
    /// Neither a preset nor a folder.
    #[error("`{0}` is no preset ({presets}) and no folder with {files}", presets = Preset::NAMES, files = POLICY_FILES.join(", "))]
    Unknown(String),
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// The policy could not be put in place; the old one stays.
    #[error("cannot write the policy below {path}")]
    Write {
        /// Which home.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
}

impl From<Preset> for PolicyFiles {
    fn from(preset: Preset) -> Self {
        let PolicyText { document, rules, examples } = preset.text();
        Self {
            document: document.to_owned(),
            rules: rules.to_owned(),
            examples: examples.to_owned(),
        }
    }
}

impl PolicyFiles {
    /// Returns the text that the policy room reads.
    #[must_use]
    pub fn text(&self) -> PolicyText<'_> {
        PolicyText { document: &self.document, rules: &self.rules, examples: &self.examples }
    }

    /// Reads a preset by name, or a folder.
    ///
    /// # Errors
    /// [`PolicyFilesError`] when it is neither.
    pub fn named(source: &str) -> Result<Self, PolicyFilesError> {
        if let Some(preset) = Preset::named(source) {
            return Ok(preset.into());
        }
        let folder = Path::new(source);
        if !folder.is_dir() {
            return Err(PolicyFilesError::Unknown(source.to_owned()));
        }
        Self::read(folder)
    }

    /// Reads a folder; rules and examples may be missing.
    ///
    /// # Errors
    /// [`PolicyFilesError::Read`] when a file cannot be read.
    pub fn read(folder: &Path) -> Result<Self, PolicyFilesError> {
        loop {
            let directory = open(CWD, folder, OFlags::PATH | OFlags::DIRECTORY);
            let directory = directory.map_err(|cause| {
                let path = folder.join("document.json");
                PolicyFilesError::Read { path, cause }
            })?;
            let files = Self::read_in(&directory, folder);
            // SECURITY: a policy put in force meanwhile is never mixed with the one before, nor
            // read while it is removed. The number of a directory that is open is no other's.
            if is_at(&directory, folder) {
                return files;
            }
        }
    }

    fn read_in(directory: &OwnedFd, folder: &Path) -> Result<Self, PolicyFilesError> {
        let read = |name: &str, missing: Option<&str>| {
            let text = open(directory.as_fd(), Path::new(name), OFlags::RDONLY)
                .and_then(|file| io::read_to_string(File::from(file)));
            match (text, missing) {
                (Ok(text), _) => Ok(text),
                (Err(error), Some(missing)) if error.kind() == io::ErrorKind::NotFound => {
                    Ok(missing.to_owned())
                }
                (Err(cause), _) => Err(PolicyFilesError::Read { path: folder.join(name), cause }),
            }
        };
        Ok(Self {
            document: read("document.json", None)?,
            rules: read("rules.cedar", Some(warrant_policy::snapshot::DOCUMENT_ONLY))?,
            examples: read("tests.jsonl", Some(""))?,
        })
    }
}

fn open(base: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat(base, path, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns whether a path leads to this directory.
fn is_at(directory: &OwnedFd, path: &Path) -> bool {
    let (opened, found) = (fstat(directory), stat(path));
    opened.ok().zip(found.ok()).is_some_and(|(opened, found)| {
        (opened.st_dev, opened.st_ino) == (found.st_dev, found.st_ino)
    })
}

/// Puts a policy in force. It was checked before; the old one is replaced in one step, and kept
/// beside it.
///
/// # Errors
/// [`PolicyFilesError::Write`] when the file system refused.
pub fn write_policy(home: &Path, files: &PolicyFiles) -> Result<(), PolicyFilesError> {
    let current = policy_folder(home);
    let written = (|| {
        // Readable by its owner alone, and under a name that nobody else writes.
        let alone = fs::Permissions::from_mode(0o700);
        let fresh =
            tempfile::Builder::new().prefix("policy.new.").permissions(alone).tempdir_in(home)?;
        let all = [
            ("document.json", &files.document),
            ("rules.cedar", &files.rules),
            ("tests.jsonl", &files.examples),
        ];
        for (name, text) in all {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            let mut file = options.open(fresh.path().join(name))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
        }
        let fresh = fresh.keep();
        File::open(&fresh)?.sync_all()?;
        put_in_force(&fresh, &current, &home.join("policy.old"))?;
        File::open(home)?.sync_all()
    })();
    written.map_err(|cause| PolicyFilesError::Write { path: home.to_owned(), cause })
}

/// Gives `fresh` the name of `current`, which is there at every moment, and is kept as `old`.
fn put_in_force(fresh: &Path, current: &Path, old: &Path) -> io::Result<()> {
    match renameat_with(CWD, fresh, CWD, current, RenameFlags::EXCHANGE) {
        Ok(()) => {
            let _ = fs::remove_dir_all(old);
            // Another one that is put in force now may be quicker; then theirs is kept.
            fs::rename(fresh, old).or_else(|_| fs::remove_dir_all(fresh))
        }
        Err(Errno::NOENT) => fs::rename(fresh, current),
        // A file system that cannot exchange: for a moment there is no policy, and nothing runs.
        Err(Errno::INVAL | Errno::NOSYS) => {
            let _ = fs::remove_dir_all(old);
            fs::rename(current, old)?;
            fs::rename(fresh, current)
        }
        Err(error) => {
            let _ = fs::remove_dir_all(fresh);
            Err(error.into())
        }
    }
}

/// Returns the folder of the policy in force.
#[must_use]
pub fn policy_folder(home: &Path) -> PathBuf {
    home.join("policy")
}
