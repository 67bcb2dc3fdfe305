//! Opening a store that is only read: of a copy, of a mount nobody can write, of somebody else.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use rustix::fs::{Access, access};

use super::commit::Writer;
use super::turns::Turns;
use super::{Core, Store, StoreError, schema};

impl Store {
    /// Opens the store in `dir` without writing anything.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`] when it can only be read by writing: its log was not copied whole.
    pub fn open_reading(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join("plane.db");
        let size = |name: &str| fs::metadata(dir.join(name)).map(|file| file.len());
        let has_log = size("plane.db-wal").is_ok_and(|bytes| bytes > 0);
        let has_index = size("plane.db-shm").is_ok();
        let unreadable = |cause| StoreError::Unreadable { path: path.clone(), cause };
        if has_log && !has_index && access(dir, Access::WRITE_OK).is_err() {
            return Err(unreadable(None));
        }
        // Without a log nothing is left to be read but the file itself, and no lock is needed that
        // could not be taken.
        let uri = uri(&path, if has_log { "mode=ro" } else { "mode=ro&immutable=1" });
        let connection = connect(&uri)?;
        let found = schema::version(&connection);
        let found = found.map_err(|error| match error {
            StoreError::Sql(cause) | StoreError::Full(cause) => unreadable(Some(cause)),
            other => other,
        })?;
        match (found, schema::VERSION) {
            (found, known) if found < known => return Err(StoreError::Older { found, known }),
            (found, known) if found > known => return Err(StoreError::Newer { found, known }),
            _ => {}
        }
        let core = Core {
            path,
            read_only: Some(uri),
            writer: Mutex::new(Writer { connection, syncs: None }),
            line: Turns::default(),
            riders: Mutex::default(),
            checkpointer: OnceLock::new(),
            journal: OnceLock::new(),
            readers: Mutex::new(Vec::new()),
        };
        Ok(Self { core: Arc::new(core), blobs: dir.join("blobs") })
    }
}

/// Opens one connection.
pub(super) fn connect(uri: &str) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(uri, flags)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    // Else a long sort is written into a file, where perhaps nothing can be.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(connection)
}

/// Returns a path as SQLite reads it in an address.
fn uri(path: &Path, options: &str) -> String {
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'_' | b'-' | b'~' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    format!("{uri}?{options}")
}
