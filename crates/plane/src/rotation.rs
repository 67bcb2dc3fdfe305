//! Replacing a key of a home: the old key signs that the new one takes over.
//!
//! ```text
//! NAME.next.key.pem, NAME.next.json ─► NAME.next.pub.pem (from here on it is decided)
//!   ─► NAME.key.pem replaced ─► keys/retired/…json ─► NAME.pub.pem replaced
//! ```
//!
//! A crash before the decision changes nothing; after it, whoever opens the home next finishes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use warrant_protocol::signed::InvalidSigned;
use warrant_protocol::succession::{SuccessionRole, sign_succession};
use warrant_protocol::{KeyId, PublicKey, SigningKey, Timestamp};
use zeroize::Zeroizing;

use crate::files;
use crate::home::{Home, HomeError, fresh_key};
use crate::liveness;
use crate::random;
use crate::retired::RetiredKey;
use crate::sealed::{MasterKey, SealError, SealedBlob};
use crate::serving::{ServingError, ServingLock};
use crate::store::{Store, StoreError};

/// A key that was replaced.
#[derive(Debug, Clone)]
pub struct Rotated {
    /// The key until now.
    pub old: KeyId,
    /// The key from now on.
    pub new: PublicKey,
    /// When.
    pub retired_at: Timestamp,
}

/// Why a key was not replaced. Then the old one still counts.
#[derive(Debug, Error)]
pub enum RotateError {
    /// The home is served.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// The home cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Runs have not ended: their contracts are signed by the old key, and their receipts must be
    /// countersigned by the same.
    #[error(
        "{0} runs have not ended, and a run ends under the key it began with: wait for them \
         (`warrant runs`) or end them with `warrant cancel RUN`"
    )]
    RunsUnderWay(usize),
    /// Other processes have the old key in memory.
    #[error("{0} other processes use this home (exec, shell, mcp): end them first")]
    InUse(usize),
    /// Nothing could be signed.
    #[error("the succession cannot be signed")]
    Sign(#[from] InvalidSigned),
    /// The new key cannot be sealed.
    #[error("the new key cannot be sealed")]
    Seal(#[from] SealError),
    /// A file cannot be written.
    #[error("cannot use {path}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
}

/// Replaces the key of the home at `root` that is for `role`.
///
/// # Errors
/// [`RotateError`].
pub fn rotate(
    root: &Path,
    master: Option<MasterKey>,
    role: SuccessionRole,
) -> Result<Rotated, RotateError> {
    let home = Home::open_at(root.to_owned(), master)?;
    let _serving = ServingLock::take(root)?;
    let others = liveness::count_living(&root.join("data/alive"))
        .map_err(|cause| RotateError::File { path: root.join("data/alive"), cause })?;
    if others > 0 {
        return Err(RotateError::InUse(others));
    }
    let live = Store::open(&home.data())?.live()?.len();
    if live > 0 {
        return Err(RotateError::RunsUnderWay(live));
    }
    let old = match role {
        SuccessionRole::Plane => home.plane_key(),
        SuccessionRole::Runner => home.runner_key(),
    };
    let at = |cause| RotateError::File { path: root.join("keys"), cause };
    let new = fresh_key().map_err(at)?;
    let retired_at = random::now().map_err(at)?;
    let succession = sign_succession(role, (old, &new), retired_at)?;
    let key = old.public().clone();
    let record = RetiredKey { role, key, retired_at, succession: Some(succession) };
    let next = PendingKey::of(root, role.as_str());
    next.prepare((&new, home.master_key()), &record)?;
    finish_rotation(root, role.as_str()).map_err(at)?;
    Ok(Rotated { old: old.public().id().clone(), new: new.public().clone(), retired_at })
}

/// Where the parts of a rotation are.
struct PendingKey {
    keys: PathBuf,
    name: String,
}

impl PendingKey {
    fn of(root: &Path, name: &str) -> Self {
        Self { keys: root.join("keys"), name: name.to_owned() }
    }

    fn part(&self, ending: &str) -> PathBuf {
        self.keys.join(format!("{}.{ending}", self.name))
    }

    /// Writes every part, the one that decides last.
    fn prepare(
        &self,
        (new, master): (&SigningKey, Option<&MasterKey>),
        record: &RetiredKey,
    ) -> Result<(), RotateError> {
        let write = |path: PathBuf, content: &[u8]| {
            files::write_private(&path, content)
                .map_err(|cause| RotateError::File { path: path.clone(), cause })
        };
        let at = |cause| RotateError::File { path: self.keys.clone(), cause };
        let pem = Zeroizing::new(new.to_secret_pem());
        match master.filter(|_| !self.part("key.pem").exists()) {
            None => write(self.part("next.key.pem"), pem.as_bytes())?,
            Some(master) => {
                let randomness = random::bytes().map_err(at)?;
                let sealed = SealedBlob::seal(master, pem.as_bytes(), randomness)?;
                let text = serde_json::to_vec(&sealed).map_err(io::Error::from).map_err(at)?;
                write(self.part("next.key.enc"), &text)?;
            }
        }
        let text = record.to_text().map_err(io::Error::from).map_err(at)?;
        write(self.part("next.json"), &text)?;
        write(self.part("next.pub.pem"), new.public().pem().as_bytes())
    }
}

/// Finishes a rotation that was decided, if there is one.
///
/// # Errors
/// The system's error when a file cannot be moved.
pub(crate) fn finish_rotation(root: &Path, name: &str) -> io::Result<()> {
    let next = PendingKey::of(root, name);
    let decided = next.part("next.pub.pem");
    if !decided.exists() {
        return Ok(());
    }
    for ending in ["key.pem", "key.enc"] {
        rename_if_present(&next.part(&format!("next.{ending}")), &next.part(ending))?;
    }
    files::create_private_dir(&root.join("keys/retired"))?;
    let old = fs::read_to_string(next.part("pub.pem"))?;
    let id = KeyId::of_pem(&old).as_str().replace(':', "-");
    let record = root.join("keys/retired").join(format!("{name}-{id}.json"));
    rename_if_present(&next.part("next.json"), &record)?;
    files::sync_parent(&record)?;
    fs::rename(&decided, next.part("pub.pem"))?;
    files::sync_parent(&decided)
}

fn rename_if_present(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
