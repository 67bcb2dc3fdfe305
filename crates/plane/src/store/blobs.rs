//! Blobs by digest: small ones inside the row, large ones as files that are durable before they
//! are named.
//!
//! A writer hashes while it writes and never holds more than [`INLINE_BYTES`] in memory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Cursor, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension as _, params};
use sha2::Digest as _;
use warrant_protocol::{Digest, Timestamp};

use super::{Durability, Store, StoreError};
use crate::{files, random};

/// Blobs up to this size live in the database row and ride its commit.
pub const INLINE_BYTES: usize = 16 * 1024;

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
    /// From the row.
    Inline(Cursor<Vec<u8>>),
    /// From its file.
    File(File),
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
        Ok(match found {
            None => None,
            Some((size, Some(bytes))) => Some((size, BlobReader::Inline(Cursor::new(bytes)))),
            Some((size, None)) => {
                Some((size, BlobReader::File(File::open(file_of(&self.blobs, digest))?)))
            }
        })
    }
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

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Inline(cursor) => cursor.read(buffer),
            Self::File(file) => file.read(buffer),
        }
    }
}
