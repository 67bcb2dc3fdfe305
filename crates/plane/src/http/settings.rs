//! `config.json` of a home: where the plane listens, its first tokens, and what it lets old
//! clients do. The file is the reference's, with members of ours; it is readable by its owner
//! alone, because it holds tokens.

use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{files, random};

/// The port of a plane unless somebody says otherwise.
pub const DEFAULT_PORT: u16 = 7172;

const FILE: &str = "config.json";
const VERSION: &str = "warrant.config.v2";

/// What `config.json` says.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    version: String,
    /// Where clients find the plane.
    pub plane_url: String,
    /// The port it listens on.
    pub port: u16,
    /// The address it listens on.
    pub host: String,
    /// The token of the principal `admin`.
    pub admin_token: String,
    /// The token of the principal `bootstrap-enroller`.
    pub enroll_token: String,
    /// Who asks, for clients of the reference; the plane itself never reads it.
    pub requested_by: String,
    /// What old clients may do. Ours.
    #[serde(default, skip_serializing_if = "Compat::is_strict")]
    pub compat: Compat,
    /// How much callers may ask for. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Whose identity tokens count for approvals. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idp: Option<IdpSettings>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<settings of the plane at {}>", self.plane_url)
    }
}

/// What old clients may do that ours need not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Compat {
    /// Read blobs without a token, as the reference's runner does.
    #[serde(default, alias = "open_blob_reads")]
    pub open_blob_reads: bool,
}

impl Compat {
    const fn is_strict(&self) -> bool {
        !self.open_blob_reads
    }
}

/// How much callers may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Limits {
    /// Requests per second of one principal.
    pub requests_per_second: u32,
    /// Requests of one principal at once.
    pub request_burst: u32,
    /// Wrong tokens from one address in a minute before it is told to back off.
    pub auth_failures_per_minute: u32,
    /// The largest blob.
    pub blob_bytes: u64,
    /// Connections at once.
    pub connections: u32,
    /// Connections of one address. Behind a proxy every client has the proxy's address, so this is
    /// half of all: what a whole fleet needs, and never enough to keep others out.
    pub connections_per_address: u32,
    /// Requests under way with one token: a quarter of all connections.
    pub connections_per_token: u32,
    /// How long a connection may be idle, and how long the head of a request may take.
    pub idle_seconds: u32,
    /// The minimum rate of a transfer in either direction. Twice that of the slowest links in use,
    /// and low enough that nobody who is merely slow is cut off.
    pub min_bytes_per_second: u32,
    /// How long a transfer may stand still.
    pub stall_seconds: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests_per_second: 2_000,
            request_burst: 4_000,
            auth_failures_per_minute: 20,
            blob_bytes: 4 * 1024 * 1024 * 1024,
            connections: 2_048,
            connections_per_address: 1_024,
            connections_per_token: 512,
            idle_seconds: 30,
            min_bytes_per_second: 16 * 1024,
            stall_seconds: 20,
        }
    }
}

impl Limits {
    /// Returns what is wrong with these limits, if anything: one of zero would let nobody in.
    #[must_use]
    pub fn problem(&self) -> Option<&'static str> {
        let all = [
            ("requestsPerSecond", u64::from(self.requests_per_second)),
            ("requestBurst", u64::from(self.request_burst)),
            ("authFailuresPerMinute", u64::from(self.auth_failures_per_minute)),
            ("blobBytes", self.blob_bytes),
            ("connections", u64::from(self.connections)),
            ("connectionsPerAddress", u64::from(self.connections_per_address)),
            ("connectionsPerToken", u64::from(self.connections_per_token)),
            ("idleSeconds", u64::from(self.idle_seconds)),
            ("minBytesPerSecond", u64::from(self.min_bytes_per_second)),
            ("stallSeconds", u64::from(self.stall_seconds)),
        ];
        all.into_iter().find(|(_, limit)| *limit == 0).map(|(name, _)| name)
    }
}

/// An identity provider whose keys are pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IdpSettings {
    /// Who must have issued a token.
    pub issuer: String,
    /// For whom it must be.
    pub audience: String,
    /// The provider's keys.
    pub jwks: serde_json::Value,
    /// Whether approvals count only with a token of the provider.
    #[serde(default)]
    pub required: bool,
}

/// Where the tokens of a home are, one in each file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFiles {
    /// The token of the principal `admin`.
    pub admin: PathBuf,
    /// The token that lets runners in.
    pub enroll: PathBuf,
}

/// Why the settings cannot be used.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// The file system refused, or others could change the file.
    #[error("cannot use {path}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// The file says something else.
    #[error("{path} is no configuration: {detail}")]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
}

impl Settings {
    /// Returns the settings of a home and whether they were made just now.
    ///
    /// # Errors
    /// [`SettingsError`] when they cannot be read or made.
    pub fn open(home: &Path) -> Result<(Self, bool), SettingsError> {
        let path = home.join(FILE);
        let at = |cause| SettingsError::File { path: path.clone(), cause };
        if let Some(settings) = Self::read(&path)? {
            return Ok((settings, false));
        }
        let fresh = Self::fresh().map_err(at)?;
        let text = serde_json::to_string_pretty(&fresh).map_err(|cause| {
            SettingsError::Content { path: path.clone(), detail: cause.to_string() }
        })?;
        files::create_private(&path, text.as_bytes()).map_err(at)?;
        // Another process may have been faster; then its tokens count.
        match Self::read(&path)? {
            Some(settings) => {
                let is_ours = settings.admin_token == fresh.admin_token;
                Ok((settings, is_ours))
            }
            None => Ok((fresh, true)),
        }
    }

    /// Returns the settings of a home, if it has any.
    ///
    /// # Errors
    /// [`SettingsError`] when they cannot be read.
    pub fn find(home: &Path) -> Result<Option<Self>, SettingsError> {
        Self::read(&home.join(FILE))
    }

    /// Writes each token into a file of its own that only its owner reads, for programs that take
    /// a token from a file, and returns where they are. Files that say the same stay as they are.
    ///
    /// # Errors
    /// [`SettingsError`] when a file cannot be written.
    pub fn write_token_files(&self, home: &Path) -> Result<TokenFiles, SettingsError> {
        let write = |name: &str, token: &str| {
            let path = home.join(name);
            let at = |cause| SettingsError::File { path: path.clone(), cause };
            let present = files::read_if_present(&path).map_err(at)?;
            if present.as_deref() != Some(token.as_bytes()) {
                files::write_private(&path, token.as_bytes()).map_err(at)?;
            }
            Ok(path)
        };
        Ok(TokenFiles {
            admin: write("admin.token", &self.admin_token)?,
            enroll: write("enroll.token", &self.enroll_token)?,
        })
    }

    /// Returns settings with fresh tokens.
    ///
    /// # Errors
    /// The system's error when it has no randomness.
    pub fn fresh() -> io::Result<Self> {
        Ok(Self {
            version: VERSION.to_owned(),
            plane_url: format!("http://127.0.0.1:{DEFAULT_PORT}"),
            port: DEFAULT_PORT,
            host: "127.0.0.1".to_owned(),
            admin_token: fresh_token()?,
            enroll_token: fresh_token()?,
            requested_by: "operator".to_owned(),
            compat: Compat::default(),
            limits: None,
            idp: None,
        })
    }

    fn read(path: &Path) -> Result<Option<Self>, SettingsError> {
        let at = |cause| SettingsError::File { path: path.to_owned(), cause };
        let Some(content) = files::read_if_present(path).map_err(at)? else { return Ok(None) };
        // SECURITY: whoever can write here could make themselves admin.
        files::check_private(path).map_err(at)?;
        let wrong = |detail: String| SettingsError::Content { path: path.to_owned(), detail };
        let settings: Self =
            serde_json::from_slice(&content).map_err(|cause| wrong(cause.to_string()))?;
        if settings.version != VERSION {
            return Err(wrong(format!("its version is not {VERSION}")));
        }
        if settings.admin_token.len() < 16 || settings.enroll_token.len() < 16 {
            return Err(wrong("tokens have at least 16 characters".to_owned()));
        }
        if let Some(name) = settings.limits.as_ref().and_then(Limits::problem) {
            return Err(wrong(format!("limits.{name} is at least 1")));
        }
        Ok(Some(settings))
    }
}

/// Returns a fresh token: 32 random bytes.
///
/// # Errors
/// The system's error when it has no randomness.
pub fn fresh_token() -> io::Result<String> {
    loop {
        let token = URL_SAFE_NO_PAD.encode(random::bytes::<32>()?);
        // One that begins like an option is taken for one on a command line.
        if !token.starts_with('-') {
            return Ok(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_begins_like_an_option() {
        for _ in 0..2_000 {
            let token = fresh_token().unwrap();
            assert!(token.len() == 43 && !token.starts_with('-'), "{token}");
        }
    }
}
