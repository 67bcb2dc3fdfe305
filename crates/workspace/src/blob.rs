//! Blobs: where captured bytes go and where they come from, hashed on the way.

use std::fs::{self, File};
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
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

/// Copies a file into an empty one and returns the digest and size of what was copied. Holes stay
/// holes, so a file that is nearly all holes takes no room.
pub(crate) fn copy_sparse(source: &mut File, sink: &mut File) -> io::Result<StoredBlob> {
    let length = source.metadata()?.len();
    let mut hash = Sha256::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut at = 0;
    while at < length {
        let data = next_data(source, at, length)?;
        hash_zeros(&mut hash, data.start - at);
        source.seek(SeekFrom::Start(data.start))?;
        sink.seek(SeekFrom::Start(data.start))?;
        at = data.start;
        while at < data.end {
            let most = usize::try_from(data.end - at).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
            let count = read_some(source, buffer.get_mut(..most).unwrap_or_default())?;
            let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else {
                let changed = "the file changed while it was read";
                return Err(io::Error::new(io::ErrorKind::InvalidData, changed));
            };
            hash.update(chunk);
            sink.write_all(chunk)?;
            at += count as u64;
        }
    }
    sink.set_len(length)?;
    Ok(StoredBlob { digest: Digest::from_bytes(hash.finalize().into()), bytes: length })
}

/// As [`copy_sparse`], of a file of ours whose digest is known.
pub(crate) fn copy_data(source: &mut File, mut sink: &File) -> io::Result<()> {
    let length = source.metadata()?.len();
    let mut at = 0;
    while at < length {
        let data = next_data(source, at, length)?;
        source.seek(SeekFrom::Start(data.start))?;
        sink.seek(SeekFrom::Start(data.start))?;
        io::copy(&mut Read::by_ref(source).take(data.end - data.start), &mut sink)?;
        at = data.end;
    }
    sink.set_len(length)
}

fn hash_zeros(hash: &mut Sha256, mut count: u64) {
    const ZEROS: &[u8] = &[0; 64 * 1024];
    while count > 0 {
        let piece = usize::try_from(count).unwrap_or(ZEROS.len()).min(ZEROS.len());
        hash.update(ZEROS.get(..piece).unwrap_or_default());
        count -= piece as u64;
    }
}

/// Returns the next stretch of data at or after `at`; an empty one at the end when there is only
/// a hole.
fn next_data(file: &File, at: u64, length: u64) -> io::Result<Range<u64>> {
    let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(data) => data.min(length),
        Err(Errno::NXIO) => length,
        // A file system that knows no holes.
        Err(Errno::INVAL) => at,
        Err(errno) => return Err(errno.into()),
    };
    let end = match rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start)) {
        Ok(hole) => hole.min(length),
        Err(Errno::NXIO | Errno::INVAL) => length,
        Err(errno) => return Err(errno.into()),
    };
    // A file cut short meanwhile must not keep the caller here for ever.
    let end = if end > start { end } else { length };
    Ok(start..end)
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
    fn a_sparse_copy_has_the_same_bytes_and_the_same_holes() {
        use std::os::unix::fs::{FileExt as _, MetadataExt as _};
        let directory = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let mut options = File::options();
            options.read(true).write(true).create_new(true);
            options.open(directory.path().join(name)).unwrap()
        };
        for (name, pieces, length) in [
            ("empty", &[][..], 0),
            ("hole", &[], 32 << 20),
            ("middle", &[(8 << 20, 5000)], 32 << 20),
            ("ends", &[(0, 10), ((32 << 20) - 7, 7)], 32 << 20),
            ("full", &[(0, 300_000)], 300_000),
        ] {
            let mut source = open(name);
            for (at, count) in pieces {
                source.write_all_at(&vec![b'x'; *count], *at).unwrap();
            }
            source.set_len(length).unwrap();
            let mut copy = open(&format!("{name}.copy"));
            let stored = copy_sparse(&mut source, &mut copy).unwrap();
            let bytes = fs::read(directory.path().join(name)).unwrap();
            assert!(fs::read(directory.path().join(format!("{name}.copy"))).unwrap() == bytes);
            assert_eq!(stored.digest, Digest::of(&bytes), "{name}");
            assert_eq!(stored.bytes, length, "{name}");
            let blocks = |file: &File| file.metadata().unwrap().blocks();
            assert!(blocks(&copy) <= blocks(&source) + 64, "{name} has grown");
        }
    }

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
