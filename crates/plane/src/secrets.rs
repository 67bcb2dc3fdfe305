//! The secrets of this home: one sealed file, opened only to change it or to release a value.
//!
//! Values never leave this module except through [`Secrets::release`]. The master key comes from
//! the environment, or from the file `master.key`, which is made when the first secret is set.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use warrant_protocol::{SecretName, Timestamp};
use zeroize::{Zeroize, Zeroizing};

use crate::files::{self, FileLock};
use crate::random;
use crate::sealed::{LastKey, MasterKey, SealError, SealedBlob};

/// The longest value that is kept; longer ones belong into a file of the workspace's owner.
pub const MAX_VALUE_BYTES: usize = 16 * 1024;

/// The sealed secrets of one home.
#[derive(Debug, Clone)]
pub struct Secrets {
    file: PathBuf,
    key_file: PathBuf,
    /// The master key from the environment, which goes before the file.
    key: Option<MasterKey>,
    /// The file is opened to look for values in a request, and again to release them.
    last: LastKey,
}

/// What may be known of a secret: everything but its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretEntry {
    /// Its name.
    pub name: SecretName,
    /// When it was set.
    pub updated_at: Timestamp,
}

/// A secret on its way to one run.
#[derive(Clone)]
pub struct ReleasedSecret {
    /// Its name.
    pub name: SecretName,
    /// Its value.
    pub value: Zeroizing<String>,
}

/// Why secrets could not be read or changed.
#[derive(Debug, Error)]
pub enum SecretsError {
    /// The file system refused.
    #[error("cannot use the secrets file")]
    File(#[from] io::Error),
    /// The seal does not open.
    #[error("cannot open the secrets file")]
    Seal(#[from] SealError),
    /// It opened, but holds something else.
    #[error("the secrets file does not hold secrets")]
    Content,
    /// The value is empty or too long.
    #[error("the value of {name} must have 1 to {MAX_VALUE_BYTES} bytes of text")]
    Value {
        /// Which secret.
        name: SecretName,
    },
    /// Nobody set it.
    #[error("no secret is called {name}")]
    Missing {
        /// Which secret.
        name: SecretName,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredSecret {
    value: String,
    updated_at: Timestamp,
}

impl Drop for StoredSecret {
    fn drop(&mut self) {
        self.value.zeroize();
    }
}

type Stored = BTreeMap<SecretName, StoredSecret>;

impl Secrets {
    /// Returns the secrets of a home; `key` is the master key of the environment, if it has one.
    #[must_use]
    pub fn of(home: &Path, key: Option<MasterKey>) -> Self {
        let (file, key_file) = (home.join("secrets.enc"), home.join("master.key"));
        Self { file, key_file, key, last: LastKey::default() }
    }

    /// Sets a secret, new or again.
    ///
    /// # Errors
    /// [`SecretsError`] when the value is not acceptable or the file cannot be used.
    pub fn set(&self, name: &SecretName, value: &str, now: Timestamp) -> Result<(), SecretsError> {
        if value.is_empty() || value.len() > MAX_VALUE_BYTES || value.contains('\0') {
            return Err(SecretsError::Value { name: name.clone() });
        }
        self.change(|stored| {
            let secret = StoredSecret { value: value.to_owned(), updated_at: now };
            stored.insert(name.clone(), secret);
            Ok(())
        })
    }

    /// Removes a secret.
    ///
    /// # Errors
    /// [`SecretsError::Missing`] when there is none of that name.
    pub fn remove(&self, name: &SecretName) -> Result<(), SecretsError> {
        self.change(|stored| match stored.remove(name) {
            Some(_) => Ok(()),
            None => Err(SecretsError::Missing { name: name.clone() }),
        })
    }

    /// Returns the names, in order, without the values.
    ///
    /// # Errors
    /// [`SecretsError`] when the file does not open.
    pub fn list(&self) -> Result<Vec<SecretEntry>, SecretsError> {
        let stored = self.read()?;
        let entry = |(name, secret): (&SecretName, &StoredSecret)| SecretEntry {
            name: name.clone(),
            updated_at: secret.updated_at,
        };
        Ok(stored.iter().map(entry).collect())
    }

    /// Returns the values of `names`, in that order. All of them, or none.
    ///
    /// # Errors
    /// [`SecretsError::Missing`] when one was never set.
    pub fn release(&self, names: &[SecretName]) -> Result<Vec<ReleasedSecret>, SecretsError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let stored = self.read()?;
        let value = |name: &SecretName| match stored.get(name) {
            Some(secret) => {
                Ok(ReleasedSecret { name: name.clone(), value: secret.value.clone().into() })
            }
            None => Err(SecretsError::Missing { name: name.clone() }),
        };
        names.iter().map(value).collect()
    }

    /// Returns the values of those of `names` that were set.
    ///
    /// # Errors
    /// [`SecretsError`] when the file does not open.
    pub fn known(&self, names: &[SecretName]) -> Result<Vec<ReleasedSecret>, SecretsError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let stored = self.read()?;
        let value = |name: &SecretName| {
            let value = stored.get(name)?.value.clone().into();
            Some(ReleasedSecret { name: name.clone(), value })
        };
        Ok(names.iter().filter_map(value).collect())
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Stored) -> Result<(), SecretsError>,
    ) -> Result<(), SecretsError> {
        let _lock = FileLock::wait(&self.file.with_extension("lock"))?;
        let mut stored = self.read()?;
        change(&mut stored)?;
        let text = Zeroizing::new(serde_json::to_vec(&stored).map_err(|_| SecretsError::Content)?);
        let sealed = SealedBlob::seal(&self.make_key()?, &text, random::bytes()?)?;
        let content = serde_json::to_vec(&sealed).map_err(|_| SecretsError::Content)?;
        Ok(files::write_private(&self.file, &content)?)
    }

    fn read(&self) -> Result<Stored, SecretsError> {
        let Some(content) = files::read_if_present(&self.file)? else {
            return Ok(Stored::new());
        };
        let sealed: SealedBlob =
            serde_json::from_slice(&content).map_err(|_| SecretsError::Content)?;
        let text = sealed.open_again(&self.make_key()?, &self.last)?;
        serde_json::from_slice(&text).map_err(|_| SecretsError::Content)
    }

    /// Returns the master key: of the environment, of the file, or a new one in that file.
    fn make_key(&self) -> Result<MasterKey, SecretsError> {
        if let Some(key) = &self.key {
            return Ok(key.clone());
        }
        if files::read_if_present(&self.key_file)?.is_none() {
            let fresh = Zeroizing::new(format!("{}{}\n", random::hex()?, random::hex()?));
            files::create_private(&self.key_file, fresh.as_bytes())?;
        }
        files::check_private(&self.key_file)?;
        let text = files::read_if_present(&self.key_file)?.map(Zeroizing::new).unwrap_or_default();
        let text = std::str::from_utf8(&text).map_err(|_| SecretsError::Content)?;
        Ok(MasterKey::from_text(text)?)
    }
}
