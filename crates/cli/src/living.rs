//! Says which plane of a home is alive, so that commands on the same home need no token for it.
//!
//! A plane that serves holds a lock on `plane.live` of its home, which names its address. Whoever
//! can read the home's `config.json` is its owner; the file only says whether that owner means this
//! very plane and whether it is still there.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use warrant_plane::http::settings::Settings;
use warrant_protocol::PublicKey;

const FILE: &str = "plane.live";

/// A plane that says it is alive until this is dropped.
#[derive(Debug)]
pub(crate) struct Living {
    path: PathBuf,
    _file: File,
}

impl Living {
    /// Says so. A second plane of one home, or a home that cannot be written, says nothing: then
    /// people bring their tokens.
    pub(crate) fn announce(home: &Path, url: &str) -> Option<Self> {
        let path = home.join(FILE);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        file.set_len(0).and_then(|()| file.rewind()).ok()?;
        file.write_all(url.as_bytes()).ok()?;
        Some(Self { path, _file: file })
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        // A file that stays is locked by nobody, so it says nothing.
        let _ = fs::remove_file(&self.path);
    }
}

/// What a home knows of its own plane.
pub(crate) struct Own {
    /// The token of its admin.
    pub(crate) token: String,
    /// The plane's key.
    pub(crate) key: Option<PublicKey>,
}

/// Returns what `home` knows of the plane at `url`, when that is its own and alive.
///
/// SECURITY: nobody else listens at that address as long as the plane that holds the lock lives, so
/// the token goes to no stranger.
pub(crate) fn own_plane(home: &Path, url: &str) -> Option<Own> {
    let mut file = File::open(home.join(FILE)).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => {}
        _ => return None,
    }
    let mut served = String::new();
    file.read_to_string(&mut served).ok()?;
    if served.trim_end_matches('/') != url.trim_end_matches('/') {
        return None;
    }
    let token = Settings::find(home).ok()??.admin_token;
    let pem = fs::read_to_string(home.join("keys/plane.pub.pem")).ok();
    Some(Own { token, key: pem.and_then(|pem| PublicKey::from_pem(&pem).ok()) })
}
