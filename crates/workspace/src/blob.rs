//! Blobs: where captured bytes go and where they come from, hashed on the way.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use warrant_protocol::Digest;

/// The size of every copying buffer; memory stays bounded whatever the file's size.
pub(crate) const BUFFER_BYTES: usize = 128 * 1024;

/// A blob that was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBlob {
    /// SHA-256 of its bytes.
    pub digest: Digest,
    /// How many bytes.
    pub bytes: u64,
}

/// Takes blobs.
pub trait BlobSink: Sync {
    /// Stores everything `source` yields and returns what was stored.
    ///
    /// # Errors
    /// When reading or storing fails; then nothing is stored.
    fn put(&self, source: &mut dyn Read) -> io::Result<StoredBlob>;
}

/// Gives blobs.
pub trait BlobSource: Sync {
    /// Opens the blob with this digest; the caller checks what it reads.
    ///
    /// # Errors
    /// When there is no such blob, or it cannot be read.
    fn open(&self, digest: &Digest) -> io::Result<Box<dyn Read + Send + '_>>;
}

/// Keeps blobs as files named by their digest in one directory.
#[derive(Debug)]
pub struct BlobDirectory {
    path: PathBuf,
}

impl BlobDirectory {
    /// Opens a directory of blobs, making it if it is not there.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        fs::create_dir_all(&path)?;
        Ok(Self { path })
    }

    /// Returns where the blob with this digest lies, or would lie.
    #[must_use]
    pub fn path_of(&self, digest: &Digest) -> PathBuf {
        self.path.join(digest.to_hex())
    }
}

impl BlobSink for BlobDirectory {
    fn put(&self, source: &mut dyn Read) -> io::Result<StoredBlob> {
        let mut file = tempfile::NamedTempFile::new_in(&self.path)?;
        let stored = copy_hashed(source, &mut file)?;
        file.persist(self.path_of(&stored.digest))?;
        Ok(stored)
    }
}

impl BlobSource for BlobDirectory {
    fn open(&self, digest: &Digest) -> io::Result<Box<dyn Read + Send + '_>> {
        Ok(Box::new(File::open(self.path_of(digest))?))
    }
}

/// Copies everything and returns the digest and size of what was copied.
pub(crate) fn copy_hashed(
    source: &mut (impl Read + ?Sized),
    sink: &mut (impl Write + ?Sized),
) -> io::Result<StoredBlob> {
    let mut hash = Sha256::new();
    let mut bytes = 0;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = read_some(source, &mut buffer)?;
        let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { break };
        hash.update(chunk);
        sink.write_all(chunk)?;
        bytes += count as u64;
    }
    Ok(StoredBlob { digest: Digest::from_bytes(hash.finalize().into()), bytes })
}

/// Reads once, trying again when a signal came in between.
pub(crate) fn read_some(source: &mut (impl Read + ?Sized), buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match source.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Returns an empty directory of ours in `parent`, readable by nobody else.
pub(crate) fn scratch_directory(parent: &Path) -> io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("warrant-").tempdir_in(parent)
}
