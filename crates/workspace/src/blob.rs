//! Blobs: where captured bytes go and where they come from, hashed on the way.

use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use sha2::{Digest as _, Sha256};
use warrant_protocol::Digest;

/// The size of every copying buffer; memory stays bounded whatever the file's size.
pub(crate) const BUFFER_BYTES: usize = 128 * 1024;

/// What is not larger waits in memory instead of in a scratch file.
pub(crate) const SMALL_BYTES: u64 = 1 << 20;

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

/// A file without a name, in memory as long as it is small: the file systems of busy machines take
/// longer to find a free inode than to write so little.
#[derive(Debug)]
pub(crate) struct Spool<'a> {
    file: File,
    bytes: u64,
    scratch: &'a Path,
}

impl<'a> Spool<'a> {
    /// Begins one; `scratch` is where it goes when it grows.
    pub(crate) fn new(scratch: &'a Path) -> io::Result<Self> {
        let file = File::from(memfd_create("warrant", MemfdFlags::CLOEXEC)?);
        Ok(Self { file, bytes: 0, scratch })
    }

    /// Returns what was written, to be read from its start.
    pub(crate) fn into_file(mut self) -> io::Result<File> {
        self.file.seek(SeekFrom::Start(0))?;
        Ok(self.file)
    }

    fn move_out(&mut self) -> io::Result<()> {
        let mut file = tempfile::tempfile_in(self.scratch)?;
        self.file.seek(SeekFrom::Start(0))?;
        io::copy(&mut self.file, &mut file)?;
        self.file = file;
        Ok(())
    }
}

impl Write for Spool<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let was_small = self.bytes <= SMALL_BYTES;
        if was_small && self.bytes + bytes.len() as u64 > SMALL_BYTES {
            self.move_out()?;
            self.bytes = SMALL_BYTES + 1;
        }
        let count = self.file.write(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_spool_yields_what_was_written_in_memory_and_on_disk() {
        let scratch = tempfile::tempdir().unwrap();
        for size in [0_usize, 1, 1 << 20, (1 << 20) + 1, 3 << 20] {
            let content: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            let mut spool = Spool::new(scratch.path()).unwrap();
            for chunk in content.chunks(100_000) {
                spool.write_all(chunk).unwrap();
            }
            let mut read = Vec::new();
            spool.into_file().unwrap().read_to_end(&mut read).unwrap();
            assert!(read == content, "{size}");
        }
    }
}
