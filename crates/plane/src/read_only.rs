//! A home that is only read: a copy on a mount nobody can write, on a full disk, or somebody
//! else's home.
//!
//! Nothing is signed, sealed or set up here, so no private key is opened. What is read is what its
//! owner wrote; whoever wants to rely on it names keys of their own.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::geteuid;
use thiserror::Error;
use warrant_protocol::{PublicKey, RunnerId};

use crate::archive::Records;
use crate::files::check_closed;
use crate::home::{HomeError, read_public, runner_of};
use crate::store::{Store, StoreError};

/// A home that is only read.
#[derive(Debug)]
pub struct ReadOnlyHome {
    root: PathBuf,
    store: Store,
    plane: PublicKey,
    runner: PublicKey,
    runner_id: RunnerId,
}

/// Why a home cannot be read.
#[derive(Debug, Error)]
pub enum ReadOnlyError {
    /// Its files cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// Its store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ReadOnlyHome {
    /// Returns whether there is a home at `root` that we can or should only read.
    #[must_use]
    pub fn is_meant(root: &Path) -> bool {
        let cannot_write = |name: &str| access(root.join(name), Access::WRITE_OK).is_err();
        Self::is_at(root)
            && (is_foreign(root) || cannot_write("data") || cannot_write("data/plane.db"))
    }

    /// Returns whether there is a home at `root` with something to read.
    #[must_use]
    pub fn is_at(root: &Path) -> bool {
        root.join("home.json").is_file() && root.join("data/plane.db").is_file()
    }

    /// Opens the home at `root`.
    ///
    /// # Errors
    /// [`ReadOnlyError`] when it cannot be read, or when more people than its owner could have
    /// written its keys.
    pub fn open(root: &Path) -> Result<Self, ReadOnlyError> {
        let at = |path: &Path| {
            let file = |cause| HomeError::File { path: path.to_owned(), cause };
            check_closed(path).map_err(file)
        };
        at(root)?;
        at(&root.join("keys"))?;
        let key = |name: &str| {
            let path = root.join("keys").join(name);
            let missing = || HomeError::File {
                path: path.clone(),
                cause: std::io::ErrorKind::NotFound.into(),
            };
            read_public(&path, check_closed)?.ok_or_else(missing)
        };
        Ok(Self {
            plane: key("plane.pub.pem")?,
            runner: key("runner.pub.pem")?,
            runner_id: runner_of(root)?,
            store: Store::open_reading(&root.join("data"))?,
            root: root.to_owned(),
        })
    }

    /// Returns what can be read back.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records {
            store: &self.store,
            root: &self.root,
            plane: &self.plane,
            runner: &self.runner,
            runner_id: &self.runner_id,
            check: check_closed,
        }
    }

    /// Returns whether it is the home of somebody else.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        is_foreign(&self.root)
    }
}

/// Whether a home belongs neither to us nor to root.
fn is_foreign(root: &Path) -> bool {
    let owner = fs::metadata(root).map(|root| root.uid());
    owner.is_ok_and(|owner| owner != geteuid().as_raw() && owner != 0)
}
