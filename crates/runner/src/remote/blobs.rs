//! Blobs of the plane, fetched once and kept for the next run of the same workspace.
//!
//! What is kept is hashed when it arrives and again by whoever reads it; the cache has a bound.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;
use warrant_protocol::Digest;
use warrant_workspace::BlobSource;

use super::Http;

/// The size of the copying buffer.
const BUFFER_BYTES: usize = 64 * 1024;

/// Blobs that were fetched before, the oldest of which go when there is no room.
#[derive(Debug)]
pub struct BlobCache {
    path: PathBuf,
    most_bytes: u64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: u64,
    order: VecDeque<(Digest, u64)>,
}

/// The blobs that one lease may read.
#[derive(Debug)]
pub struct LeaseBlobs<'a> {
    pub(super) http: &'a Http,
    pub(super) token: String,
    pub(super) cache: &'a BlobCache,
}

impl BlobCache {
    /// Opens an empty cache in a directory; what an earlier life left there is removed.
    ///
    /// # Errors
    /// What the system said.
    pub fn open(path: &Path, most_bytes: u64) -> io::Result<Self> {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir_all(path)?;
        Ok(Self { path: path.to_owned(), most_bytes, kept: Mutex::default() })
    }

    fn find(&self, digest: &Digest) -> Option<File> {
        File::open(self.path.join(digest.to_hex())).ok()
    }

    /// Keeps what a stream brings if it is what the digest says, and returns it.
    fn keep(&self, digest: &Digest, mut from: impl Read) -> io::Result<File> {
        let mut file = NamedTempFile::new_in(&self.path)?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut size = 0_u64;
        loop {
            let count = from.read(&mut buffer)?;
            let Some(piece) = buffer.get(..count).filter(|piece| !piece.is_empty()) else { break };
            hash.update(piece);
            file.write_all(piece)?;
            size += count as u64;
        }
        // SECURITY: the plane's store is not believed; only the contract's digest is.
        if Digest::from_bytes(hash.finalize().into()) != *digest {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the blob is another one"));
        }
        let opened = file.reopen()?;
        if size <= self.most_bytes {
            file.persist(self.path.join(digest.to_hex()))?;
            self.make_room(*digest, size);
        }
        Ok(opened)
    }

    fn make_room(&self, digest: Digest, size: u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.order.iter().any(|(known, _)| *known == digest) {
            kept.order.push_back((digest, size));
            kept.bytes += size;
        }
        while kept.bytes > self.most_bytes {
            let Some((oldest, size)) = kept.order.pop_front() else { break };
            kept.bytes = kept.bytes.saturating_sub(size);
            // Whoever has it open goes on reading it.
            let _ = fs::remove_file(self.path.join(oldest.to_hex()));
        }
    }
}

impl BlobSource for LeaseBlobs<'_> {
    fn open(&self, digest: &Digest) -> io::Result<Box<dyn Read + Send + '_>> {
        if let Some(file) = self.cache.find(digest) {
            return Ok(Box::new(file));
        }
        let stream = self.http.open_blob(digest, &self.token).map_err(io::Error::other)?;
        Ok(Box::new(self.cache.keep(digest, stream)?))
    }
}
