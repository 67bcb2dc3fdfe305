//! What is kept of runs, to be read: of this machine's own home, or of one that is only read.

use std::path::Path;

use thiserror::Error;
use warrant_plane::Records;
use warrant_plane::read_only::{ReadOnlyError, ReadOnlyHome};
use warrant_plane::store::StoreError;
use warrant_protocol::RunId;

use crate::desk::{Desk, DeskError, environment};

/// The records of a home.
pub enum Archive {
    /// Of a home that we write, too.
    Own(Box<Desk>),
    /// Of one that is only read.
    ReadOnly(Box<ReadOnlyHome>),
    /// Of one that we would write, if it could be written.
    Unwritable {
        /// The home.
        home: Box<ReadOnlyHome>,
        /// Why it cannot.
        cause: Box<DeskError>,
    },
}

/// Why an archive cannot be opened.
#[derive(Debug, Error)]
pub enum ArchiveOpenError {
    /// The home cannot be used.
    #[error(transparent)]
    Desk(#[from] DeskError),
    /// It cannot be read.
    #[error(transparent)]
    ReadOnly(#[from] ReadOnlyError),
}

impl Archive {
    /// Opens the archive of a home, without writing where that cannot be done.
    ///
    /// # Errors
    /// [`ArchiveOpenError`] when the home cannot be read.
    pub fn open(home: Option<&Path>) -> Result<Self, ArchiveOpenError> {
        let root = environment(home)?.locate().map_err(DeskError::from)?;
        if ReadOnlyHome::is_meant(&root) {
            return Ok(Self::ReadOnly(Box::new(ReadOnlyHome::open(&root)?)));
        }
        match Desk::open(home) {
            Ok(desk) => Ok(Self::Own(Box::new(desk))),
            Err(error) if error.is_of_writing() && ReadOnlyHome::is_at(&root) => {
                let home = Box::new(ReadOnlyHome::open(&root)?);
                Ok(Self::Unwritable { home, cause: Box::new(error) })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns why a home of ours is only read, when that is so.
    #[must_use]
    pub const fn unwritable(&self) -> Option<&DeskError> {
        match self {
            Self::Own(_) | Self::ReadOnly(_) => None,
            Self::Unwritable { cause, .. } => Some(cause),
        }
    }

    /// Returns what can be read back.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        match self {
            Self::Own(desk) => desk.plane().records(),
            Self::ReadOnly(home) | Self::Unwritable { home, .. } => home.records(),
        }
    }

    /// Returns whether it is of somebody else.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        match self {
            Self::Own(_) => false,
            Self::ReadOnly(home) | Self::Unwritable { home, .. } => home.is_foreign(),
        }
    }
}

/// Returns the run with this id.
///
/// # Errors
/// [`DeskError::NoRun`] when there is none.
pub fn run_named(records: Records<'_>, text: &str) -> Result<RunId, DeskError> {
    let missing = || DeskError::NoRun(text.to_owned());
    // What is no id names no run.
    let Ok(id) = text.parse::<RunId>() else { return Err(missing()) };
    match records.store().run(&id) {
        Ok(_) => Ok(id),
        Err(StoreError::UnknownRun(_)) => Err(missing()),
        Err(error) => Err(error.into()),
    }
}
