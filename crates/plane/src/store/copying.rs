//! One moment of a database that may be in use, copied into a file of its own.

use std::io;
use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};
use warrant_protocol::Digest;

use super::blobs::{BlobReader, DamagedBlob, open_checked};
use super::integrity::BlobFacts;
use super::steps::digest_column;
use super::{PATIENCE, StoreError, schema};

/// How many blobs are listed at once.
const BATCH: u32 = 256;

/// A copy of the database, and the database it was taken from.
pub struct DatabaseCopy {
    copy: Connection,
    original: Connection,
}

impl DatabaseCopy {
    /// Copies the database in `data` into the empty file `target`. Writers go on meanwhile.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be read or the copy not be written.
    pub fn take(data: &Path, target: &Path) -> Result<Self, StoreError> {
        let original = connect(&data.join("plane.db"))?;
        let found = schema::version(&original)?;
        if found > schema::VERSION {
            return Err(StoreError::Newer { found, known: schema::VERSION });
        }
        let Some(target_text) = target.to_str() else {
            let text = format!("{} is no text", target.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text).into());
        };
        original.execute("VACUUM INTO ?", [target_text])?;
        Ok(Self { copy: connect(target)?, original })
    }

    /// Returns the schema of the database.
    ///
    /// # Errors
    /// [`StoreError`] when the copy cannot be read.
    pub fn schema(&self) -> Result<u32, StoreError> {
        schema::version(&self.copy)
    }

    /// Returns how many blobs are files of their own.
    ///
    /// # Errors
    /// [`StoreError`] when the copy cannot be read.
    pub fn count_large_blobs(&self) -> Result<u64, StoreError> {
        let sql = "SELECT count(*) FROM blobs WHERE content IS NULL";
        Ok(self.copy.query_row(sql, [], |row| row.get(0))?)
    }

    /// Returns the first blobs after an address that are files of their own.
    ///
    /// # Errors
    /// [`StoreError`] when the copy cannot be read.
    pub fn large_blobs(&self, after: Option<&Digest>) -> Result<Vec<BlobFacts>, StoreError> {
        let mut statement = self.copy.prepare_cached(
            "SELECT digest, size FROM blobs WHERE digest > ? AND content IS NULL
             ORDER BY digest LIMIT ?",
        )?;
        let after: &[u8] = after.map_or(&[], |digest| digest.as_bytes());
        let rows = statement.query_map(params![after, BATCH], |row| {
            Ok(BlobFacts { digest: digest_column(row, 0)?, size: row.get(1)? })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Opens a blob of the database in `data`; none when retention has removed it since the copy.
    ///
    /// # Errors
    /// [`StoreError::File`] when it is there and damaged.
    pub fn open_blob(
        &self,
        data: &Path,
        blob: &BlobFacts,
    ) -> Result<Option<BlobReader>, StoreError> {
        match open_checked(&data.join("blobs"), blob.digest, blob.size) {
            Ok(reader) => Ok(Some(reader)),
            Err(error) if is_damage(&error) => {
                let present: Option<i64> = self
                    .original
                    .prepare_cached("SELECT 1 FROM blobs WHERE digest = ?")?
                    .query_row([blob.digest.as_bytes()], |row| row.get(0))
                    .optional()?;
                match present {
                    None => Ok(None),
                    Some(_) => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes a blob out of the copy.
    ///
    /// # Errors
    /// [`StoreError`] when the copy cannot be written.
    pub fn forget_blob(&self, digest: &Digest) -> Result<(), StoreError> {
        self.copy.execute("DELETE FROM blobs WHERE digest = ?", [digest.as_bytes()])?;
        Ok(())
    }

    /// Finishes the copy, so that its file is all there is of it.
    ///
    /// # Errors
    /// [`StoreError`] when the copy cannot be written.
    pub fn close(self) -> Result<(), StoreError> {
        self.copy.close().map_err(|(_, error)| error)?;
        Ok(())
    }
}

/// Has the database in `data`, which nobody uses, keep a log as every store does.
pub(crate) fn keep_log(data: &Path) -> Result<(), StoreError> {
    let connection = connect(&data.join("plane.db"))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(())
}

fn is_damage(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<DamagedBlob>())
}

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(connection)
}
