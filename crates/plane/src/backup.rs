//! Backups: a whole home in one file, taken while it is in use, and put back into an empty one.
//!
//! ```text
//! backup.json          what this is: version, time, schema, key of the plane
//! home.json  keys/…  policy/…       public keys only
//! private.sealed.json  private keys, tokens and secrets, sealed under a passphrase; only if asked for
//! blobs/DIGEST         every large blob, checked while it is copied
//! plane.db             one moment of the database
//! end.json             a digest over everything before
//! ```
//!
//! It is a tar file; memory does not grow with the size of the home. The database is copied first
//! and written last: a blob that retention removes in between is taken out of the copy too.

mod archive;
mod restore;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use warrant_protocol::{Digest, Timestamp};
use zeroize::Zeroizing;

use crate::files;
use crate::random;
use crate::sealed::{MasterKey, SealError, SealedBlob};
use crate::store::{DatabaseCopy, StoreError};
use archive::ArchiveWriter;

pub use restore::{RestoreError, RestoreOptions, RestoredHome, restore};

/// The text of the member `version`.
const VERSION: &str = "warrant.backup.v1";

const MANIFEST: &str = "backup.json";
const PRIVATE: &str = "private.sealed.json";
const DATABASE: &str = "plane.db";
const BLOBS: &str = "blobs/";

/// Files of a home that anybody may read, and directories of such files.
const PUBLIC: [&str; 6] =
    ["home.json", "policy.json", "policy", "keys", "keys/approvers", "keys/retired"];

/// Files of a home that only its owner may read.
const SECRET: [&str; 9] = [
    "config.json",
    "master.key",
    "secrets.enc",
    "doors.json",
    "keys/plane.key.pem",
    "keys/plane.key.enc",
    "keys/runner.key.pem",
    "keys/runner.key.enc",
    "keys/approver.key.pem",
];

/// What the first entry of a backup says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupManifest {
    version: String,
    /// When it was taken.
    pub created_at: Timestamp,
    /// The schema of its database.
    pub schema: u32,
    /// Whether private keys, tokens and secrets are in it.
    pub has_private: bool,
}

/// What a backup holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackedUp {
    /// Large blobs.
    pub blobs: u64,
    /// Bytes of the database.
    pub database_bytes: u64,
    /// Bytes of the whole file.
    pub bytes: u64,
}

/// Why there is no backup.
#[derive(Debug, Error)]
pub enum BackupError {
    /// There is no home to back up.
    #[error("{0} is no home of warrant")]
    NoHome(PathBuf),
    /// The file exists.
    #[error("{0} exists; choose another name or remove it first")]
    Exists(PathBuf),
    /// A file cannot be read or written.
    #[error("cannot use {path}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// A blob is not what it should be; a backup without it would be none.
    #[error("blob {digest} cannot be copied; `warrant fsck` lists everything that is damaged")]
    Blob {
        /// Which blob.
        digest: Digest,
        /// What is wrong.
        #[source]
        cause: io::Error,
    },
    /// The database cannot be copied.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The private part cannot be sealed.
    #[error("the private keys cannot be sealed")]
    Seal(#[from] SealError),
}

/// Writes a backup of the home at `root` to the new file `out`. With a passphrase it holds the
/// private part too. `progress` hears how many of how many blobs are done.
///
/// # Errors
/// [`BackupError`]; then there is no file `out`.
pub fn back_up(
    root: &Path,
    (out, passphrase): (&Path, Option<&MasterKey>),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BackedUp, BackupError> {
    let data = root.join("data");
    if !root.join("home.json").is_file() || !data.join("plane.db").is_file() {
        return Err(BackupError::NoHome(root.to_owned()));
    }
    if out.exists() {
        return Err(BackupError::Exists(out.to_owned()));
    }
    let at = |cause| BackupError::File { path: out.to_owned(), cause };
    let temporary = Temporary::beside(out).map_err(at)?;
    let copied = Temporary::beside(out).map_err(at)?;
    let copy = DatabaseCopy::take(&data, &copied.path)?;
    let file = OpenOptions::new().write(true).truncate(true).open(&temporary.path).map_err(at)?;
    let mut archive = ArchiveWriter::new(BufWriter::with_capacity(1 << 20, file));
    let manifest = BackupManifest {
        version: VERSION.to_owned(),
        created_at: random::now().map_err(at)?,
        schema: copy.schema()?,
        has_private: passphrase.is_some(),
    };
    let manifest = serde_json::to_vec_pretty(&manifest).map_err(io::Error::from).map_err(at)?;
    archive.add_bytes(MANIFEST, &manifest).map_err(at)?;
    add_public(&mut archive, root)?;
    if let Some(passphrase) = passphrase {
        let sealed = sealed_private(root, passphrase)?;
        archive.add_bytes(PRIVATE, &sealed).map_err(at)?;
    }
    let blobs = add_blobs(&mut archive, (&data, &copy), progress)?;
    copy.close()?;
    let database_bytes = add_file(&mut archive, DATABASE, &copied.path)?;
    let file = archive.finish().and_then(|out| Ok(out.into_inner()?)).map_err(at)?;
    file.sync_all().map_err(at)?;
    let bytes = file.metadata().map_err(at)?.len();
    fs::hard_link(&temporary.path, out).map_err(at)?;
    files::sync_parent(out).map_err(at)?;
    Ok(BackedUp { blobs, database_bytes, bytes })
}

/// A file of mode 0600 that is removed when dropped.
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn beside(path: &Path) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.tmp", random::hex()?));
        let path = PathBuf::from(name);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { path })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // A leftover is only space, and its name says what it is.
        let _ = fs::remove_file(&self.path);
    }
}

type Archive = ArchiveWriter<BufWriter<File>>;

fn add_public(archive: &mut Archive, root: &Path) -> Result<(), BackupError> {
    for name in PUBLIC {
        let path = root.join(name);
        let at = |cause| BackupError::File { path: path.clone(), cause };
        let found = match fs::metadata(&path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(at(error)),
        };
        if found.is_file() {
            add_file(archive, name, &path)?;
            continue;
        }
        let entries = fs::read_dir(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let mut entries = entries.map_err(at)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let below = format!("{name}/{}", entry.file_name().to_string_lossy());
            // SECURITY: of keys only the public halves; everything else there is private.
            let is_public = !name.starts_with("keys") || is_public_key(&below);
            if entry.path().is_file() && is_public {
                add_file(archive, &below, &entry.path())?;
            }
        }
    }
    Ok(())
}

/// Whether a file below `keys` holds no private key.
fn is_public_key(name: &str) -> bool {
    name.ends_with(".pub.pem") || (name.starts_with("keys/retired/") && name.ends_with(".json"))
}

fn add_file(archive: &mut Archive, name: &str, path: &Path) -> Result<u64, BackupError> {
    let at = |cause| BackupError::File { path: path.to_owned(), cause };
    let mut file = File::open(path).map_err(at)?;
    let size = file.metadata().map_err(at)?.len();
    archive.add(name, size, &mut file).map_err(at)?;
    Ok(size)
}

/// Returns the private files of a home, sealed.
fn sealed_private(root: &Path, passphrase: &MasterKey) -> Result<Vec<u8>, BackupError> {
    let mut found = BTreeMap::new();
    for name in SECRET {
        let path = root.join(name);
        let at = |cause| BackupError::File { path: path.clone(), cause };
        let content = files::read_if_present(&path).map_err(at)?.map(Zeroizing::new);
        if let Some(content) = content {
            found.insert(name, STANDARD.encode(&*content));
        }
    }
    let at = |cause| BackupError::File { path: root.to_owned(), cause };
    let text = serde_json::to_vec(&found).map_err(io::Error::from).map_err(at)?;
    let text = Zeroizing::new(text);
    let sealed = SealedBlob::seal(passphrase, &text, random::bytes().map_err(at)?)?;
    serde_json::to_vec(&sealed).map_err(io::Error::from).map_err(at)
}

/// Adds every large blob that the copied database names.
fn add_blobs(
    archive: &mut Archive,
    (data, copy): (&Path, &DatabaseCopy),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, BackupError> {
    let total = copy.count_large_blobs()?;
    let (mut done, mut added, mut after) = (0, 0, None);
    loop {
        progress(done, total);
        let batch = copy.large_blobs(after.as_ref())?;
        let Some(last) = batch.last() else { return Ok(added) };
        after = Some(last.digest);
        for blob in &batch {
            done += 1;
            let failed = |cause| BackupError::Blob { digest: blob.digest, cause };
            match copy.open_blob(data, blob) {
                Ok(Some(reader)) => {
                    let name = format!("{BLOBS}{}", blob.digest);
                    archive.add(&name, blob.size, &mut reader.take(blob.size)).map_err(failed)?;
                    added += 1;
                }
                // Retention removed it after the copy was taken.
                Ok(None) => copy.forget_blob(&blob.digest)?,
                Err(StoreError::File(cause)) => return Err(failed(cause)),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
