//! Keys of a home that were replaced: their public halves, until when they counted, and the signed
//! succession where the old key was there to sign one. They stay, because what they signed stays.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use warrant_protocol::succession::{Succession, SuccessionRole};
use warrant_protocol::{PublicKey, Timestamp};

use crate::files;
use crate::home::{Check, HomeError};

const VERSION: &str = "warrant.retired-key.v1";

/// A key that was replaced.
#[derive(Debug, Clone)]
pub(crate) struct RetiredKey {
    pub(crate) role: SuccessionRole,
    pub(crate) key: PublicKey,
    pub(crate) retired_at: Timestamp,
    pub(crate) succession: Option<Succession>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RetiredKeyFile {
    version: String,
    role: SuccessionRole,
    public_key_pem: String,
    retired_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    succession: Option<Succession>,
}

impl RetiredKey {
    /// Returns the text that is stored.
    pub(crate) fn to_text(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec_pretty(&RetiredKeyFile {
            version: VERSION.to_owned(),
            role: self.role,
            public_key_pem: self.key.pem().to_owned(),
            retired_at: self.retired_at,
            succession: self.succession.clone(),
        })
    }

    /// Returns where it is stored in the home at `root`.
    pub(crate) fn file(&self, root: &Path) -> PathBuf {
        let id = self.key.id().as_str().replace(':', "-");
        root.join("keys/retired").join(format!("{}-{id}.json", self.role.as_str()))
    }

    /// Stores it.
    pub(crate) fn write(&self, root: &Path) -> io::Result<()> {
        files::create_private_dir(&root.join("keys/retired"))?;
        files::write_private(&self.file(root), &self.to_text()?)
    }
}

/// Returns every key of the home at `root` that was replaced.
pub(crate) fn retired_keys(root: &Path, check: Check) -> Result<Vec<RetiredKey>, HomeError> {
    let directory = root.join("keys/retired");
    let at = |path: &Path, cause| HomeError::File { path: path.to_owned(), cause };
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(at(&directory, cause)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|cause| at(&directory, cause))?.path();
        if path.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        check(&path).map_err(|cause| at(&path, cause))?;
        let text = fs::read(&path).map_err(|cause| at(&path, cause))?;
        let stored: RetiredKeyFile =
            serde_json::from_slice(&text).map_err(|_| HomeError::Settings(path.clone()))?;
        if stored.version != VERSION {
            return Err(HomeError::Settings(path));
        }
        let key = PublicKey::from_pem(&stored.public_key_pem)
            .map_err(|cause| HomeError::Key { path: path.clone(), cause })?;
        let RetiredKeyFile { role, retired_at, succession, .. } = stored;
        found.push(RetiredKey { role, key, retired_at, succession });
    }
    found.sort_by_key(|retired| retired.retired_at);
    Ok(found)
}
