//! Blobs by digest: small ones inside the row, large ones as files that are durable before they
//! are named.
//!
//! A writer hashes while it writes and never holds more than [`INLINE_BYTES`] in memory. A reader
//! hashes while it reads: a small blob is checked before its first byte is handed out, a large one
//! before its last, so nobody gets a whole blob that is not what its digest says.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Cursor, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension as _, params};
use sha2::Digest as _;
use thiserror::Error;
use warrant_protocol::{Digest, Timestamp};

use super::{Durability, Store, StoreError};
use crate::{files, random};

/// Blobs up to this size live in the database row and ride its commit.
pub const INLINE_BYTES: usize = 16 * 1024;

/// Blobs up to this size are checked before their first byte is handed out.
const CHECKED_FIRST_BYTES: u64 = 256 * 1024;

/// A blob that is complete and waits to be recorded.
#[derive(Debug)]
pub struct NewBlob {
    /// Its address.
    pub digest: Digest,
    /// Its size.
    pub size: u64,
    /// Its bytes, when small; larger ones are a durable file already.
    pub(super) content: Option<Vec<u8>>,
    /// The file of a large one.
    path: Option<PathBuf>,
}

/// Takes the bytes of one blob.
#[derive(Debug)]
pub struct BlobWriter {
    dir: PathBuf,
    hasher: sha2::Sha256,
    size: u64,
    start: Vec<u8>,
    spill: Option<Spill>,
}

/// The file a blob grows in once it is too large for a row; removed unless it gets its name.
#[derive(Debug)]
struct Spill {
    path: PathBuf,
    file: File,
    is_named: bool,
}

/// Yields the bytes of one blob.
#[derive(Debug)]
pub enum BlobReader {
    /// Small, and checked already.
    Inline(Cursor<Vec<u8>>),
    /// From its file, checked before the last byte.
    File(CheckedFile),
}

/// A blob's file that is hashed while it is read. The read that would end it fails instead when
/// the bytes are not what the digest says.
#[derive(Debug)]
pub struct CheckedFile {
    file: File,
    hasher: sha2::Sha256,
    digest: Digest,
    left: u64,
}

/// The bytes of a stored blob are not what its digest says.
#[derive(Debug, Error)]
#[error("blob {digest} is damaged: {detail}; see `warrant fsck`")]
pub struct DamagedBlob {
    /// Which blob.
    pub digest: Digest,
    /// What is wrong.
    pub detail: &'static str,
}

impl Store {
    /// Returns a writer for a new blob; it is part of the store once it was recorded.
    #[must_use]
    pub fn blob_writer(&self) -> BlobWriter {
        BlobWriter {
            dir: self.blobs.clone(),
            hasher: sha2::Sha256::new(),
            size: 0,
            start: Vec::new(),
            spill: None,
        }
    }

    /// Records blobs by themselves. Completing a run records its own.
    ///
    /// # Errors
    /// [`StoreError`] when nothing could be kept.
    pub fn record_blobs(&self, blobs: Vec<NewBlob>, now: Timestamp) -> Result<(), StoreError> {
        self.write(Durability::Now, move |connection| insert_all(connection, &blobs, now))
    }

    /// Returns whether the store has a blob.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be read.
    pub fn has_blob(&self, digest: &Digest) -> Result<bool, StoreError> {
        self.read(|connection| {
            let mut statement =
                connection.prepare_cached("SELECT 1 FROM blobs WHERE digest = ?")?;
            Ok(statement.exists([digest.as_bytes()])?)
        })
    }

    /// Returns a reader of a blob, if the store has it.
    ///
    /// # Errors
    /// [`StoreError`] when its bytes cannot be read.
    pub fn blob(&self, digest: &Digest) -> Result<Option<BlobReader>, StoreError> {
        Ok(self.sized_blob(digest)?.map(|(_, reader)| reader))
    }

    /// Returns the size and a reader of a blob, if the store has it.
    ///
    /// # Errors
    /// [`StoreError`] when its bytes cannot be read.
    pub fn sized_blob(&self, digest: &Digest) -> Result<Option<(u64, BlobReader)>, StoreError> {
        let found: Option<(u64, Option<Vec<u8>>)> = self.read(|connection| {
            let mut statement =
                connection.prepare_cached("SELECT size, content FROM blobs WHERE digest = ?")?;
            let row = statement
                .query_row([digest.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            Ok(row)
        })?;
        let Some((size, content)) = found else { return Ok(None) };
        let reader = match content {
            Some(bytes) if Digest::of(&bytes) == *digest => {
                Ok(BlobReader::Inline(Cursor::new(bytes)))
            }
            Some(_) => Err(damaged(*digest, "its row holds other bytes")),
            None => open_checked(&self.blobs, *digest, size),
        };
        Ok(Some((size, reader.inspect_err(|error| report(digest, error))?)))
    }
}

pub(super) fn open_checked(dir: &Path, digest: Digest, size: u64) -> io::Result<BlobReader> {
    let file = File::open(file_of(dir, &digest)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => damaged(digest, "its file is missing"),
        _ => error,
    })?;
    if file.metadata()?.len() != size {
        return Err(damaged(digest, "its file has another size"));
    }
    let mut checked = CheckedFile { file, hasher: sha2::Sha256::new(), digest, left: size };
    if size > CHECKED_FIRST_BYTES {
        return Ok(BlobReader::File(checked));
    }
    let mut bytes = Vec::new();
    checked.read_to_end(&mut bytes)?;
    Ok(BlobReader::Inline(Cursor::new(bytes)))
}

fn damaged(digest: Digest, detail: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, DamagedBlob { digest, detail })
}

fn report(digest: &Digest, error: &io::Error) {
    tracing::error!(blob = %digest, %error, "a stored blob cannot be read");
}

pub(super) fn insert_all(
    connection: &Connection,
    blobs: &[NewBlob],
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(
        "INSERT INTO blobs (digest, size, content, created_at) VALUES (?, ?, ?, ?)
         ON CONFLICT (digest) DO UPDATE SET created_at = max(created_at, excluded.created_at)",
    )?;
    for blob in blobs {
        // A sweep may have removed an older file of the same content in this moment.
        if let Some(path) = &blob.path {
            fs::metadata(path)?;
        }
        let digest = blob.digest.as_bytes();
        statement.execute(params![digest, blob.size, blob.content, now.unix_ms()])?;
    }
    Ok(())
}

pub(super) fn file_of(dir: &Path, digest: &Digest) -> PathBuf {
    let hex = digest.to_hex();
    let (shard, rest) = hex.split_at(2);
    dir.join(shard).join(rest)
}

impl BlobWriter {
    /// Returns the finished blob; a large one is durable from here on.
    ///
    /// # Errors
    /// The system's error when the file could not be made durable.
    pub fn finish(self) -> io::Result<NewBlob> {
        let Self { dir, hasher, size, start, spill } = self;
        let digest = Digest::from_bytes(hasher.finalize().into());
        let (content, path) = match spill {
            None => (Some(start), None),
            Some(mut spill) => {
                let path = file_of(&dir, &digest);
                files::create_private_dir(path.parent().unwrap_or(&dir))?;
                spill.file.sync_all()?;
                fs::rename(&spill.path, &path)?;
                spill.is_named = true;
                files::sync_parent(&path)?;
                files::sync_parent(path.parent().unwrap_or(&dir))?;
                (None, Some(path))
            }
        };
        Ok(NewBlob { digest, size, content, path })
    }
}

impl Write for BlobWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.spill {
            Some(spill) => spill.file.write_all(bytes)?,
            None if self.start.len() + bytes.len() <= INLINE_BYTES => {
                self.start.extend_from_slice(bytes);
            }
            None => {
                let mut spill = Spill::create(&self.dir)?;
                spill.file.write_all(&std::mem::take(&mut self.start))?;
                spill.file.write_all(bytes)?;
                self.spill = Some(spill);
            }
        }
        self.hasher.update(bytes);
        self.size += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Spill {
    fn create(dir: &Path) -> io::Result<Self> {
        let incoming = dir.join("incoming");
        files::create_private_dir(&incoming)?;
        let path = incoming.join(random::hex()?);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { path, file, is_named: false })
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        if !self.is_named {
            // A leftover is only space; the next start removes what is old.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Read for CheckedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let Some(wanted) = buffer.get_mut(..most) else { return Ok(0) };
        if wanted.is_empty() {
            return Ok(0);
        }
        let count = self.file.read(wanted)?;
        self.hasher.update(wanted.get(..count).unwrap_or_default());
        self.left = self.left.saturating_sub(count as u64);
        let found = match (count, self.left) {
            (0, _) => Err(damaged(self.digest, "its file ends early")),
            (_, 0) => {
                let hasher = std::mem::take(&mut self.hasher);
                let found = Digest::from_bytes(hasher.finalize().into());
                let is_same = found == self.digest;
                is_same
                    .then_some(())
                    .ok_or_else(|| damaged(self.digest, "its file holds other bytes"))
            }
            _ => Ok(()),
        };
        found.inspect_err(|error| report(&self.digest, error))?;
        Ok(count)
    }
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Inline(cursor) => cursor.read(buffer),
            Self::File(file) => file.read(buffer),
        }
    }
}
