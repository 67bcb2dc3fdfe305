//! The workspace manifest: what of a checkout travels, by digest, and what was left out.

use serde::{Deserialize, Serialize};

use crate::canonical::hash_canonical;
use crate::json::{self, InvalidJson};
use crate::{Digest, RelPath};

/// The version text of manifests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManifestVersion {
    /// The one there is.
    #[serde(rename = "warrant.manifest.v1")]
    V1,
}

/// An untracked file that travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UntrackedFile {
    /// Where it belongs.
    pub path: RelPath,
    /// The digest of its bytes.
    pub hash: Digest,
    /// How many bytes.
    pub bytes: u64,
}

/// What of a checkout travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceManifest {
    /// The version.
    pub version: ManifestVersion,
    /// The commit it starts from.
    pub base_ref: String,
    /// The digest of the git bundle.
    pub bundle_hash: Digest,
    /// The digest of the diff of uncommitted changes, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_diff_hash: Option<Digest>,
    /// Untracked files that travel.
    pub untracked_files: Vec<UntrackedFile>,
    /// The patterns that were held back.
    pub denied_patterns: Vec<String>,
    /// The paths that were held back by them.
    pub denied_paths: Vec<RelPath>,
}

impl WorkspaceManifest {
    /// Returns the manifest's digest.
    ///
    /// # Errors
    /// [`InvalidJson`] when it has no JSON form.
    pub fn hash(&self) -> Result<Digest, InvalidJson> {
        Ok(hash_canonical(&json::to_value(self)?))
    }
}
