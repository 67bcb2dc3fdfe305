//! The home directory: where keys, store, policy and secrets of this user live.
//!
//! ```text
//! home.json          which runner this is; written last, so its presence means "set up"
//! policy.json …      written by whoever sets the policy
//! keys/              plane.pub.pem, plane.key.pem or plane.key.enc, runner.pub.pem, runner.key.pem
//! keys/approvers/    <name>.pub.pem of everyone whose approval counts here
//! master.key         made with the first secret, unless the environment brings one
//! secrets.enc
//! data/plane.db      the store; data/blobs/ its large blobs
//! data/alive/        one locked file for each process that runs something now
//! data/sessions/     one directory for each run that is running
//! ```
//!
//! Directories are 0700, files 0600. Two processes that set up at the same time agree on one set
//! of keys.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use warrant_protocol::keys::InvalidKey;
use warrant_protocol::{PoolName, PublicKey, RunnerId, SigningKey};
use zeroize::Zeroizing;

use crate::files::{self, FileLock};
use crate::random;
use crate::request_context::keep_cause;
use crate::rotation::finish_rotation;
use crate::sealed::{MasterKey, SealError, SealedBlob};

/// What of the environment says where home is.
#[derive(Debug, Clone, Default)]
pub struct HomeEnvironment {
    /// `WARRANT_HOME`.
    pub warrant_home: Option<OsString>,
    /// `XDG_DATA_HOME`.
    pub xdg_data_home: Option<OsString>,
    /// `HOME`.
    pub home: Option<OsString>,
    /// `WARRANT_MASTER_KEY`.
    pub master_key: Option<String>,
}

/// A home that is set up, with its keys.
#[derive(Debug)]
pub struct Home {
    root: PathBuf,
    master: Option<MasterKey>,
    plane_key: SigningKey,
    runner_key: SigningKey,
    settings: Settings,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Settings {
    version: String,
    runner_id: RunnerId,
    pool: PoolName,
}

/// The directories of the store.
const DATA: [&str; 4] = ["data", "data/alive", "data/sessions", "data/blobs"];

const SETTINGS_VERSION: &str = "warrant.home.v1";

/// Why a home cannot be used.
#[derive(Debug, Error)]
pub enum HomeError {
    /// The environment names no place.
    #[error("no home directory: set WARRANT_HOME, XDG_DATA_HOME or HOME to an absolute path")]
    Nowhere,
    /// The file system refused.
    #[error("cannot use {path}")]
    File {
        /// Which file or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// A key file holds no key.
    #[error("{path} holds no key")]
    Key {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        cause: InvalidKey,
    },
    /// A sealed key does not open.
    #[error("cannot open the sealed key {path}")]
    Seal {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        cause: SealError,
    },
    /// A key is sealed and the environment brings nothing that opens it.
    #[error("{0} is sealed: set WARRANT_MASTER_KEY or WARRANT_MASTER_KEY_FROM")]
    NoMasterKey(PathBuf),
    /// The settings are damaged.
    #[error("{0} is damaged")]
    Settings(PathBuf),
    /// Not a name an approver can have.
    #[error("an approver's name has 1 to 64 of a-z A-Z 0-9 . _ @ -")]
    ApproverName,
    /// Another key has that name.
    #[error("another key is registered for the approver {0}")]
    ApproverTaken(String),
}

impl HomeError {
    /// Returns whether it failed because nothing can be written where it lies.
    #[must_use]
    pub fn is_of_writing(&self) -> bool {
        matches!(self, Self::File { cause, .. } if files::is_of_writing(cause))
    }
}

impl HomeEnvironment {
    /// Returns what the environment of this process says.
    #[must_use]
    pub fn of_process() -> Self {
        Self {
            warrant_home: std::env::var_os("WARRANT_HOME"),
            xdg_data_home: std::env::var_os("XDG_DATA_HOME"),
            home: std::env::var_os("HOME"),
            master_key: std::env::var("WARRANT_MASTER_KEY").ok(),
        }
    }

    /// Returns where home is.
    ///
    /// # Errors
    /// [`HomeError::Nowhere`] when no variable names an absolute path.
    pub fn locate(&self) -> Result<PathBuf, HomeError> {
        let absolute = |value: &Option<OsString>| {
            value.as_ref().map(PathBuf::from).filter(|path| path.is_absolute())
        };
        if self.warrant_home.is_some() {
            return absolute(&self.warrant_home).ok_or(HomeError::Nowhere);
        }
        absolute(&self.xdg_data_home)
            .or_else(|| absolute(&self.home).map(|home| home.join(".local/share")))
            .map(|data| data.join("warrant"))
            .ok_or(HomeError::Nowhere)
    }
}

impl Home {
    /// Opens the home the environment names, and sets it up on first use.
    ///
    /// # Errors
    /// [`HomeError`] when it cannot be used or others could change it.
    pub fn open(environment: &HomeEnvironment) -> Result<Self, HomeError> {
        Self::open_prepared(environment, &|_| Ok(()))
    }

    /// Opens the home the environment names. On first use `prepare` puts into it what must be
    /// there before anybody else finds it set up.
    ///
    /// # Errors
    /// [`HomeError`] when it cannot be used or others could change it.
    pub fn open_prepared(
        environment: &HomeEnvironment,
        prepare: &dyn Fn(&Path) -> io::Result<()>,
    ) -> Result<Self, HomeError> {
        let root = environment.locate()?;
        let master = match environment.master_key.as_deref().map(MasterKey::from_text) {
            None => None,
            Some(Ok(key)) => Some(key),
            Some(Err(cause)) => {
                return Err(HomeError::Seal { path: "WARRANT_MASTER_KEY".into(), cause });
            }
        };
        Self::find(root, master, prepare)
    }

    /// Opens the home at `root`; a master key seals the private keys on first use.
    ///
    /// # Errors
    /// [`HomeError`] when it cannot be used or others could change it.
    pub fn open_at(root: PathBuf, master: Option<MasterKey>) -> Result<Self, HomeError> {
        Self::find(root, master, &|_| Ok(()))
    }

    fn find(
        root: PathBuf,
        master: Option<MasterKey>,
        prepare: &dyn Fn(&Path) -> io::Result<()>,
    ) -> Result<Self, HomeError> {
        let settings_file = root.join("home.json");
        let settings = match read(&settings_file)? {
            Some(content) => content,
            None => set_up(&root, master.as_ref(), prepare)?,
        };
        at(&root, files::check_private(&root))?;
        at(&root.join("keys"), files::check_private(&root.join("keys")))?;
        // Whoever removed the store starts with an empty one.
        make_directories(&root, &DATA)?;
        let settings: Settings = serde_json::from_slice(&settings)
            .map_err(|error| keep_cause(&error, HomeError::Settings(settings_file.clone())))?;
        if settings.version != SETTINGS_VERSION {
            return Err(HomeError::Settings(settings_file));
        }
        for name in ["plane", "runner"] {
            at(&root.join("keys"), finish_rotation(&root, name))?;
        }
        let plane_key = read_key(&root.join("keys"), "plane", master.as_ref())?;
        let runner_key = read_key(&root.join("keys"), "runner", master.as_ref())?;
        Ok(Self { root, master, plane_key, runner_key, settings })
    }

    /// Returns the directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the directory of the store.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// Returns the directory below which each running run has its own.
    #[must_use]
    pub fn sessions(&self) -> PathBuf {
        self.root.join("data/sessions")
    }

    /// Returns the key that signs contracts and countersigns receipts.
    #[must_use]
    pub const fn plane_key(&self) -> &SigningKey {
        &self.plane_key
    }

    /// Returns the key of the runner in this process.
    #[must_use]
    pub const fn runner_key(&self) -> &SigningKey {
        &self.runner_key
    }

    /// Returns the id of the runner in this process.
    #[must_use]
    pub const fn runner_id(&self) -> &RunnerId {
        &self.settings.runner_id
    }

    /// Returns the pool of the runner in this process.
    #[must_use]
    pub const fn pool(&self) -> &PoolName {
        &self.settings.pool
    }

    /// Returns the master key of the environment, if it brings one.
    #[must_use]
    pub const fn master_key(&self) -> Option<&MasterKey> {
        self.master.as_ref()
    }

    /// Registers the key of someone whose approval counts here. The same key again is no change.
    ///
    /// # Errors
    /// [`HomeError`] when the name cannot be used or has another key.
    pub fn add_approver(&self, name: &str, key: &PublicKey) -> Result<(), HomeError> {
        let path = self.approver_file(name)?;
        at(&path, files::create_private_dir(&self.root.join("keys/approvers")))?;
        at(&path, files::create_private(&path, key.pem().as_bytes()))?;
        match self.approver(name)? {
            Some(registered) if registered.as_bytes() == key.as_bytes() => Ok(()),
            _ => Err(HomeError::ApproverTaken(name.to_owned())),
        }
    }

    /// Returns the key of an approver, if there is one of that name.
    ///
    /// # Errors
    /// [`HomeError`] when the name cannot be one or the file holds no key.
    pub fn approver(&self, name: &str) -> Result<Option<PublicKey>, HomeError> {
        read_public(&self.approver_file(name)?, files::check_private)
    }

    /// Returns the keys of everyone whose approval counts here.
    ///
    /// # Errors
    /// [`HomeError`] when a file cannot be read or holds no key.
    pub fn approvers(&self) -> Result<Vec<PublicKey>, HomeError> {
        Ok(self.named_approvers()?.into_iter().map(|(_, key)| key).collect())
    }

    /// Returns everyone whose approval counts here, with their keys.
    ///
    /// # Errors
    /// [`HomeError`] when a file cannot be read or holds no key.
    pub fn named_approvers(&self) -> Result<Vec<(String, PublicKey)>, HomeError> {
        approvers_of(&self.root, files::check_private)
    }

    fn approver_file(&self, name: &str) -> Result<PathBuf, HomeError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
        // SECURITY: the name becomes part of a path.
        let is_name = (1..=64).contains(&name.len())
            && name.bytes().all(is_allowed)
            && !name.starts_with('.');
        if !is_name {
            return Err(HomeError::ApproverName);
        }
        Ok(self.root.join("keys/approvers").join(format!("{name}.pub.pem")))
    }
}

/// Says whether a file or directory may be believed.
pub(crate) type Check = fn(&Path) -> io::Result<()>;

/// Returns everyone whose approval counts in a home, with their keys.
pub(crate) fn approvers_of(
    root: &Path,
    check: Check,
) -> Result<Vec<(String, PublicKey)>, HomeError> {
    let directory = root.join("keys/approvers");
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(HomeError::File { path: directory, cause }),
    };
    let mut keys = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|cause| HomeError::File { path: directory.clone(), cause })?;
        let file_name = entry.file_name();
        let name = file_name.to_str().and_then(|name| name.strip_suffix(".pub.pem"));
        let Some(name) = name else { continue };
        keys.extend(read_public(&entry.path(), check)?.map(|key| (name.to_owned(), key)));
    }
    Ok(keys)
}

/// Returns the public key in a file, if the file is there.
pub(crate) fn read_public(path: &Path, check: Check) -> Result<Option<PublicKey>, HomeError> {
    let Some(content) = read(path)? else { return Ok(None) };
    at(path, check(path))?;
    let key = PublicKey::from_pem(&String::from_utf8_lossy(&content));
    key.map(Some).map_err(|cause| HomeError::Key { path: path.to_owned(), cause })
}

/// Returns the id of a home's runner.
pub(crate) fn runner_of(root: &Path) -> Result<RunnerId, HomeError> {
    let file = root.join("home.json");
    let content = read(&file)?.unwrap_or_default();
    let settings: Settings = serde_json::from_slice(&content)
        .map_err(|error| keep_cause(&error, HomeError::Settings(file)))?;
    Ok(settings.runner_id)
}

/// Returns a fresh key.
///
/// # Errors
/// The system's error when it has no randomness.
pub fn fresh_key() -> io::Result<SigningKey> {
    let seed = Zeroizing::new(random::bytes::<32>()?);
    Ok(SigningKey::from_seed(&seed))
}

/// Makes a fresh key that nothing seals.
pub(crate) fn make_key(keys: &Path, name: &str) -> Result<(), HomeError> {
    write_key(keys, name, None)
}

fn set_up(
    root: &Path,
    master: Option<&MasterKey>,
    prepare: &dyn Fn(&Path) -> io::Result<()>,
) -> Result<Vec<u8>, HomeError> {
    make_directories(root, &["", "keys"])?;
    make_directories(root, &DATA)?;
    let lock = root.join("home.lock");
    let _lock = at(&lock, FileLock::wait(&lock))?;
    let settings_file = root.join("home.json");
    if let Some(settings) = read(&settings_file)? {
        return Ok(settings);
    }
    write_key(&root.join("keys"), "plane", master)?;
    write_key(&root.join("keys"), "runner", master)?;
    at(root, prepare(root))?;
    let settings = Settings {
        version: SETTINGS_VERSION.to_owned(),
        runner_id: RunnerId::from_random(at(&settings_file, random::bytes())?),
        pool: "default"
            .parse()
            .map_err(|error| keep_cause(&error, HomeError::Settings(settings_file.clone())))?,
    };
    let content = serde_json::to_vec(&settings)
        .map_err(|error| keep_cause(&error, HomeError::Settings(settings_file.clone())))?;
    at(&settings_file, files::write_private(&settings_file, &content))?;
    Ok(content)
}

/// Makes those of our directories that are not there.
fn make_directories(root: &Path, names: &[&str]) -> Result<(), HomeError> {
    for dir in names.iter().map(|name| root.join(name)) {
        if !dir.is_dir() {
            at(&dir, files::create_private_dir(&dir))?;
        }
    }
    Ok(())
}

fn write_key(keys: &Path, name: &str, master: Option<&MasterKey>) -> Result<(), HomeError> {
    let public_file = keys.join(format!("{name}.pub.pem"));
    let key = at(&public_file, fresh_key())?;
    let pem = Zeroizing::new(key.to_secret_pem());
    let (file, content) = match master {
        None => (keys.join(format!("{name}.key.pem")), pem.as_bytes().to_vec()),
        Some(master) => {
            let file = keys.join(format!("{name}.key.enc"));
            let randomness = at(&file, random::bytes())?;
            let sealed = SealedBlob::seal(master, pem.as_bytes(), randomness)
                .map_err(|cause| HomeError::Seal { path: file.clone(), cause })?;
            let content = serde_json::to_vec(&sealed)
                .map_err(|error| keep_cause(&error, HomeError::Settings(file.clone())))?;
            (file, content)
        }
    };
    at(&file, files::write_private(&file, &content))?;
    at(&public_file, files::write_private(&public_file, key.public().pem().as_bytes()))
}

fn read_key(keys: &Path, name: &str, master: Option<&MasterKey>) -> Result<SigningKey, HomeError> {
    let plain = keys.join(format!("{name}.key.pem"));
    let (path, pem) = match read(&plain)? {
        Some(content) => (plain, Zeroizing::new(content)),
        None => {
            let path = keys.join(format!("{name}.key.enc"));
            let content = at(&path, std::fs::read(&path))?;
            let sealed: SealedBlob = serde_json::from_slice(&content)
                .map_err(|error| keep_cause(&error, HomeError::Settings(path.clone())))?;
            let opened = match master {
                Some(master) => sealed.open(master),
                None => return Err(HomeError::NoMasterKey(path)),
            };
            let pem = opened.map_err(|cause| HomeError::Seal { path: path.clone(), cause })?;
            (path, pem)
        }
    };
    at(&path, files::check_private(&path))?;
    let pem = std::str::from_utf8(&pem)
        .map_err(|error| keep_cause(&error, HomeError::Settings(path.clone())))?;
    SigningKey::from_pem(pem).map_err(|cause| HomeError::Key { path, cause })
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, HomeError> {
    at(path, files::read_if_present(path))
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, HomeError> {
    result.map_err(|cause| HomeError::File { path: path.to_owned(), cause })
}
