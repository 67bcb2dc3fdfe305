//! Tokens of the doors: a file of digests in the home, never the tokens themselves.
//!
//! ```text
//! doors.json  {"version":"warrant.doors.v1","tokens":[{"name":"ci","hash":"sha256:…","createdAt":"…"}]}
//! ```

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thiserror::Error;
use warrant_plane::doors::Keeper;
use warrant_plane::random;
use warrant_protocol::Digest;
use warrant_protocol::request::{ActorKind, ActorRef};

const VERSION: &str = "warrant.doors.v1";
/// Tokens look like E2B's own, which some of its clients insist on.
const PREFIX: &str = "e2b_";

/// The tokens of one home. The file is read at every use, so a revoked token is gone at once.
#[derive(Debug, Clone)]
pub struct TokenFile {
    path: PathBuf,
}

/// Why tokens cannot be used.
#[derive(Debug, Error)]
pub enum TokenFileError {
    /// The file system refused.
    #[error("cannot use {path}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// The file is damaged.
    #[error("{0} is damaged")]
    Damaged(PathBuf),
    /// Not a name a token can have.
    #[error("a token's name has 1 to 64 of a-z A-Z 0-9 . _ -")]
    Name,
    /// The name is taken.
    #[error("there is a token named {0} already; revoke it first")]
    Taken(String),
}

impl TokenFile {
    /// Returns the tokens of the home at `root`.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        Self { path: root.join("doors.json") }
    }

    /// Makes a token and returns it; only its digest is kept.
    ///
    /// # Errors
    /// [`TokenFileError`] when the name cannot be used or nothing could be kept.
    pub fn issue(&self, name: &str) -> Result<String, TokenFileError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(is_allowed) {
            return Err(TokenFileError::Name);
        }
        let mut tokens = self.read()?;
        if tokens.iter().any(|token| token.get("name").and_then(Value::as_str) == Some(name)) {
            return Err(TokenFileError::Taken(name.to_owned()));
        }
        let bytes = random::bytes::<20>().map_err(|cause| self.file(cause))?;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let token = format!("{PREFIX}{hex}");
        let created = random::now().map_err(|cause| self.file(cause))?;
        tokens.push(json!({
            "name": name,
            "hash": Digest::of(token.as_bytes()).to_string(),
            "createdAt": created.to_string(),
        }));
        self.write(&tokens)?;
        Ok(token)
    }

    /// Revokes a token. Returns whether there was one of that name.
    ///
    /// # Errors
    /// [`TokenFileError`] when nothing could be kept.
    pub fn revoke(&self, name: &str) -> Result<bool, TokenFileError> {
        let mut tokens = self.read()?;
        let before = tokens.len();
        tokens.retain(|token| token.get("name").and_then(Value::as_str) != Some(name));
        let is_gone = tokens.len() < before;
        if is_gone {
            self.write(&tokens)?;
        }
        Ok(is_gone)
    }

    /// Returns the names of the tokens, with when they were made.
    ///
    /// # Errors
    /// [`TokenFileError`] when the file cannot be read.
    pub fn names(&self) -> Result<Vec<(String, String)>, TokenFileError> {
        let text = |token: &Value, name: &str| {
            token.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let tokens = self.read()?;
        Ok(tokens.iter().map(|token| (text(token, "name"), text(token, "createdAt"))).collect())
    }

    fn read(&self) -> Result<Vec<Value>, TokenFileError> {
        let content = match fs::read(&self.path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(cause) => return Err(self.file(cause)),
        };
        let damaged = || TokenFileError::Damaged(self.path.clone());
        let value: Value = serde_json::from_slice(&content).map_err(|_| damaged())?;
        if value.get("version").and_then(Value::as_str) != Some(VERSION) {
            return Err(damaged());
        }
        value.get("tokens").and_then(Value::as_array).cloned().ok_or_else(damaged)
    }

    fn write(&self, tokens: &[Value]) -> Result<(), TokenFileError> {
        let fresh = self.path.with_extension("new");
        let content = json!({ "version": VERSION, "tokens": tokens }).to_string();
        let written = (|| {
            let options = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&fresh);
            let mut file = options?;
            file.write_all(content.as_bytes())?;
            file.sync_all()?;
            fs::rename(&fresh, &self.path)
        })();
        written.map_err(|cause| self.file(cause))
    }

    fn file(&self, cause: io::Error) -> TokenFileError {
        TokenFileError::File { path: self.path.clone(), cause }
    }
}

impl Keeper for TokenFile {
    /// A file that cannot be read admits nobody.
    fn admit(&self, token: &str) -> Option<ActorRef> {
        let hash = Digest::of(token.as_bytes()).to_string();
        let tokens = self.read().ok()?;
        let mut found = tokens.iter();
        let found = found.find(|token| {
            token.get("hash").and_then(Value::as_str).is_some_and(|known| is_same(known, &hash))
        });
        let name = found?.get("name").and_then(Value::as_str)?;
        Some(ActorRef { kind: ActorKind::Service, id: format!("door-{name}") })
    }
}

/// Compares texts in a time that does not tell where they differ.
pub(super) fn is_same(known: &str, given: &str) -> bool {
    let (known, given) = (Digest::of(known.as_bytes()), Digest::of(given.as_bytes()));
    known == given
}
