//! Putting a backup back: everything is read, checked and checked again as a home before the home
//! gets its name. What fails leaves nothing behind.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::Digest as _;
use thiserror::Error;
use warrant_protocol::Digest;
use warrant_protocol::succession::SuccessionRole;

use super::archive::{ArchiveReader, EntryHead, damaged, damaged_by};
use super::{BLOBS, BackupManifest, DATABASE, MANIFEST, PRIVATE, SECRET, VERSION, is_public_key};
use crate::files;
use crate::fsck::{FsckError, FsckProgress, FsckReport, fsck};
use crate::home::{HomeError, make_key, read_public};
use crate::random;
use crate::retired::RetiredKey;
use crate::sealed::{MasterKey, SealError, SealedBlob};
use crate::store::{Store, StoreError, keep_log};

/// The largest of the small entries.
const MOST_SMALL_BYTES: u64 = 64 << 20;

/// What to do with the private part of a backup.
#[derive(Debug, Clone, Copy)]
pub enum RestoreOptions<'a> {
    /// Open it with this passphrase, if there is one.
    Unseal(&'a MasterKey),
    /// Leave it out; the home gets fresh keys.
    LeaveOut,
}

/// A home that was put back.
#[derive(Debug, Clone)]
pub struct RestoredHome {
    /// What the backup says of itself.
    pub manifest: BackupManifest,
    /// Whether the home has keys of its own instead of those of the backup.
    pub has_fresh_keys: bool,
    /// What the check of the new home found: nothing wrong.
    pub report: FsckReport,
}

/// Why nothing was put back.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// There is something already.
    #[error("{0} is not empty: restore into a new directory with --home DIR")]
    NotEmpty(PathBuf),
    /// The backup cannot be read, or is damaged.
    #[error("cannot restore {path}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        cause: io::Error,
    },
    /// It was made by a newer version.
    #[error("the backup is a {0}, this program reads {VERSION}")]
    Version(String),
    /// Its private part is sealed and nothing opens it.
    #[error(
        "the backup holds sealed private keys: give --passphrase-file FILE, or --without-keys for \
         a home with fresh keys"
    )]
    Sealed,
    /// The private part does not open.
    #[error("the private part of the backup does not open")]
    Seal(#[from] SealError),
    /// The home cannot be made.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The new home cannot be checked.
    #[error(transparent)]
    Check(#[from] FsckError),
    /// What is in the backup was damaged when it was made.
    #[error("the backup holds a damaged home ({problems} problems; the first: {first})")]
    Unsound {
        /// How many.
        problems: u64,
        /// The first.
        first: String,
    },
}

/// A directory that is removed unless it became a home.
struct Staging {
    path: PathBuf,
    is_kept: bool,
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.is_kept {
            // What stays is only space, and its name says what it is.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Puts the backup `file` back as the home at `root`, which must be empty or absent.
///
/// # Errors
/// [`RestoreError`]; then `root` is as it was.
pub fn restore(
    file: &Path,
    (root, options): (&Path, Option<RestoreOptions<'_>>),
    progress: &mut dyn FnMut(FsckProgress),
) -> Result<RestoredHome, RestoreError> {
    check_empty(root)?;
    let at = |cause| RestoreError::File { path: file.to_owned(), cause };
    let mut name = root.as_os_str().to_owned();
    name.push(format!(".restore-{}", random::hex().map_err(at)?));
    let mut staging = Staging { path: PathBuf::from(name), is_kept: false };
    let to = staging.path.clone();
    for below in ["", "keys", "data", "data/alive", "data/sessions", "data/blobs"] {
        files::create_private_dir(&to.join(below)).map_err(at)?;
    }
    let input = BufReader::with_capacity(1 << 20, File::open(file).map_err(at)?);
    let mut archive = ArchiveReader::new(input);
    let manifest = read_manifest(&mut archive, file)?;
    if manifest.has_private && options.is_none() {
        return Err(RestoreError::Sealed);
    }
    let private = unpack(&mut archive, &to).map_err(at)?;
    let has_private = match (options, private) {
        (Some(RestoreOptions::Unseal(passphrase)), Some(sealed)) => {
            write_private_files(&to, &sealed.open(passphrase)?).map_err(at)?;
            true
        }
        _ => false,
    };
    if !has_private {
        renew_keys(&to, &manifest)?;
    }
    keep_log(&to.join("data"))?;
    drop(Store::open(&to.join("data"))?);
    let report = fsck(&to, progress)?;
    if let Some(first) = report.problems.first() {
        let first = format!("{} {}: {}", first.kind.as_str(), first.subject, first.detail);
        return Err(RestoreError::Unsound { problems: report.problem_count, first });
    }
    if root.exists() {
        fs::remove_dir(root).map_err(at)?;
    }
    fs::rename(&to, root).map_err(at)?;
    staging.is_kept = true;
    files::sync_parent(root).map_err(at)?;
    Ok(RestoredHome { manifest, has_fresh_keys: !has_private, report })
}

fn check_empty(root: &Path) -> Result<(), RestoreError> {
    let at = |cause| RestoreError::File { path: root.to_owned(), cause };
    match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(RestoreError::NotEmpty(root.to_owned()))
        }
        Err(error) => Err(at(error)),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(RestoreError::NotEmpty(root.to_owned())),
        },
    }
}

type Input = ArchiveReader<BufReader<File>>;

fn read_manifest(archive: &mut Input, file: &Path) -> Result<BackupManifest, RestoreError> {
    let at = |cause| RestoreError::File { path: file.to_owned(), cause };
    let head = archive.next().map_err(at)?.filter(|head| head.name == MANIFEST);
    let head = head.ok_or_else(|| at(damaged("it does not begin as one")))?;
    let text = archive.bytes(&head, MOST_SMALL_BYTES).map_err(at)?;
    let manifest: BackupManifest =
        serde_json::from_slice(&text).map_err(|error| at(error.into()))?;
    match manifest.version == VERSION {
        true => Ok(manifest),
        false => Err(RestoreError::Version(manifest.version)),
    }
}

/// Writes every entry below `to` and returns the private one, once the end matches.
fn unpack(archive: &mut Input, to: &Path) -> io::Result<Option<SealedBlob>> {
    let mut private = None;
    while let Some(head) = archive.next()? {
        if head.name == PRIVATE {
            let text = archive.bytes(&head, MOST_SMALL_BYTES)?;
            private = Some(serde_json::from_slice(&text)?);
        } else if head.name == DATABASE {
            write_entry(archive, &head, &to.join("data/plane.db"))?;
        } else if let Some(digest) = head.name.strip_prefix(BLOBS) {
            write_blob(archive, &head, (digest, to))?;
        } else {
            let path =
                public_path(&head.name).ok_or_else(|| damaged("an entry is not one of ours"))?;
            write_entry(archive, &head, &to.join(path))?;
        }
    }
    Ok(private)
}

/// Returns the path of a public file.
// SECURITY: a name becomes a path; only names that a backup of ours can have do.
fn public_path(name: &str) -> Option<&Path> {
    let path = Path::new(name);
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    let is_ours = name == "home.json"
        || name == "policy.json"
        || name.starts_with("policy/")
        || (name.starts_with("keys/") && is_public_key(name));
    (is_plain && is_ours).then_some(path)
}

fn write_entry(archive: &mut Input, head: &EntryHead, path: &Path) -> io::Result<()> {
    files::create_private_dir(path.parent().unwrap_or(path))?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    archive.copy(head, &mut file)?;
    file.sync_all()
}

fn write_blob(
    archive: &mut Input,
    head: &EntryHead,
    (digest, to): (&str, &Path),
) -> io::Result<()> {
    let digest: Digest =
        digest.parse().map_err(damaged_by("the name of a blob is not its digest"))?;
    let hex = digest.to_hex();
    let (shard, rest) = hex.split_at(2);
    let path = to.join("data/blobs").join(shard).join(rest);
    files::create_private_dir(path.parent().unwrap_or(to))?;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let mut out = Hashing { file, hasher: sha2::Sha256::new() };
    archive.copy(head, &mut out)?;
    out.file.sync_all()?;
    match Digest::from_bytes(out.hasher.finalize().into()) == digest {
        true => Ok(()),
        false => Err(damaged(&format!("blob {digest} holds other bytes"))),
    }
}

struct Hashing {
    file: File,
    hasher: sha2::Sha256,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hasher.update(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn write_private_files(to: &Path, text: &[u8]) -> io::Result<()> {
    let found: BTreeMap<String, String> = serde_json::from_slice(text)?;
    for (name, content) in found {
        if !SECRET.contains(&name.as_str()) {
            return Err(damaged("a private file is not one of ours"));
        }
        let content =
            STANDARD.decode(content).map_err(damaged_by("a private file is not base64"))?;
        files::write_private(&to.join(name), &content)?;
    }
    Ok(())
}

/// Gives the home keys of its own; those of the backup count for what they signed until then.
fn renew_keys(to: &Path, manifest: &BackupManifest) -> Result<(), RestoreError> {
    for role in [SuccessionRole::Plane, SuccessionRole::Runner] {
        let path = to.join("keys").join(format!("{}.pub.pem", role.as_str()));
        let at = |cause| RestoreError::File { path: path.clone(), cause };
        if let Some(key) = read_public(&path, files::check_private)? {
            let retired_at = manifest.created_at;
            let retired = RetiredKey { role, key, retired_at, succession: None };
            retired.write(to).map_err(at)?;
        }
        make_key(&to.join("keys"), role.as_str())?;
    }
    Ok(())
}
