//! Tokens of the doors: a file of digests in the home, never the tokens themselves.
//!
//! ```text
//! doors.json  {"version":"warrant.doors.v1","tokens":[
//!               {"name":"ci","hash":"sha256:…","createdAt":"…"},
//!               {"name":"ide","hash":"sha256:…","createdAt":"…","mcpWorkspace":"/home/a/project"}]}
//! ```
//!
//! A token has one scope: the doors of sandboxes, or MCP in one workspace. It opens nothing else.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use thiserror::Error;
use warrant_plane::doors::Keeper;
use warrant_plane::random;
use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::{Digest, Timestamp};

const VERSION: &str = "warrant.doors.v1";
/// Where a token of MCP works; a token without it opens the doors of sandboxes.
const MCP_WORKSPACE: &str = "mcpWorkspace";
/// Tokens look like E2B's own, which some of its clients insist on.
const PREFIX: &str = "e2b_";

/// The tokens of one home. The file is looked at at every use and read again when it is another
/// one, so a revoked token is gone at once.
#[derive(Debug, Clone)]
pub struct TokenFile {
    path: PathBuf,
    /// What it held when it was read last. Copies share it.
    seen: Arc<Mutex<Option<Seen>>>,
}

#[derive(Debug, Clone)]
struct Seen {
    stamp: Stamp,
    tokens: Arc<Vec<Value>>,
}

/// What tells a changed file from an unchanged one: device, number, time of change, size.
type Stamp = (u64, u64, (i64, i64), u64);

/// What a token opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The doors of sandboxes: E2B, Daytona, OpenSandbox, HELM.
    Sandboxes,
    /// MCP over HTTP, in this workspace and no other.
    Mcp(PathBuf),
}

/// A token as it is kept: everything but the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created_at: String,
    /// What it opens.
    pub scope: Scope,
}

/// Who holds a token of MCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpHolder {
    /// Who asks.
    pub principal: ActorRef,
    /// Where.
    pub workspace: PathBuf,
    /// The digest of the token; another token of the same name has another one.
    pub token: Digest,
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
    Damaged(PathBuf, #[source] Box<dyn std::error::Error + Send + Sync>),
    /// Not a name a token can have.
    #[error("a token's name has 1 to 64 of a-z A-Z 0-9 . _ -")]
    Name,
    /// The name is taken.
    #[error("there is a token named {0} already; revoke it first")]
    Taken(String),
    /// No directory to work in.
    #[error("no workspace at {path}")]
    NoWorkspace {
        /// Where.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// The directory holds more than one workspace should.
    #[error("{path} is no workspace for a token: {why}")]
    BadWorkspace {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl TokenFile {
    /// Returns the tokens of the home at `root`.
    #[must_use]
    pub fn of(root: &Path) -> Self {
        Self { path: root.join("doors.json"), seen: Arc::default() }
    }

    /// Makes a token of the doors of sandboxes and returns it; only its digest is kept.
    ///
    /// # Errors
    /// [`TokenFileError`] when the name cannot be used or nothing could be kept.
    pub fn issue(&self, name: &str) -> Result<String, TokenFileError> {
        self.keep(name, None)
    }

    /// Makes a token of MCP in one workspace and returns it; only its digest is kept.
    ///
    /// # Errors
    /// [`TokenFileError`] when the name or the workspace cannot be used or nothing could be kept.
    pub fn issue_mcp(&self, name: &str, workspace: &Path) -> Result<String, TokenFileError> {
        let missing = |cause| TokenFileError::NoWorkspace { path: workspace.to_owned(), cause };
        let workspace = fs::canonicalize(workspace).map_err(missing)?;
        self.check_workspace(&workspace)?;
        self.keep(name, Some(&workspace))
    }

    /// SECURITY: holders of two tokens see nothing of each other, and none sees the home's keys.
    fn check_workspace(&self, workspace: &Path) -> Result<(), TokenFileError> {
        let bad = |why: String| TokenFileError::BadWorkspace { path: workspace.to_owned(), why };
        if !workspace.is_dir() || workspace.parent().is_none() || workspace.to_str().is_none() {
            return Err(bad("it must be a directory below / with a name in UTF-8".to_owned()));
        }
        let overlaps = |other: &Path| workspace.starts_with(other) || other.starts_with(workspace);
        let home = self.path.parent().and_then(|home| fs::canonicalize(home).ok());
        if home.is_some_and(|home| overlaps(&home)) {
            return Err(bad("the home with its keys is in it or around it".to_owned()));
        }
        // SECURITY: whoever works there could put another program in the place of this one.
        let program = std::env::current_exe().map_err(|cause| self.file(cause))?;
        if program.starts_with(workspace) {
            return Err(bad("this very program is in it, and could be replaced there".to_owned()));
        }
        for row in self.rows()? {
            if let Scope::Mcp(other) = &row.scope
                && overlaps(other)
            {
                return Err(bad(format!("the token {} works in {}", row.name, other.display())));
            }
        }
        Ok(())
    }

    fn keep(&self, name: &str, workspace: Option<&Path>) -> Result<String, TokenFileError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(is_allowed) {
            return Err(TokenFileError::Name);
        }
        let mut tokens = self.read()?;
        if tokens.iter().any(|token| text(token, "name") == Some(name)) {
            return Err(TokenFileError::Taken(name.to_owned()));
        }
        let bytes = random::bytes::<20>().map_err(|cause| self.file(cause))?;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let token = format!("{PREFIX}{hex}");
        let created = random::now().map_err(|cause| self.file(cause))?;
        let mut row = json!({
            "name": name,
            "hash": Digest::of(token.as_bytes()).to_string(),
            "createdAt": created.to_string(),
        });
        if let (Some(workspace), Some(members)) = (workspace, row.as_object_mut()) {
            members.insert(MCP_WORKSPACE.to_owned(), json!(workspace.to_string_lossy()));
        }
        tokens.push(row);
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
        tokens.retain(|token| text(token, "name") != Some(name));
        let is_gone = tokens.len() < before;
        if is_gone {
            self.write(&tokens)?;
        }
        Ok(is_gone)
    }

    /// Returns every token as it is kept.
    ///
    /// # Errors
    /// [`TokenFileError`] when the file cannot be read.
    pub fn rows(&self) -> Result<Vec<TokenRow>, TokenFileError> {
        let row = |token: &Value| TokenRow {
            name: text(token, "name").unwrap_or_default().to_owned(),
            created_at: text(token, "createdAt").unwrap_or_default().to_owned(),
            scope: scope(token),
        };
        Ok(self.read()?.iter().map(row).collect())
    }

    /// Returns who holds a token of MCP, if it is good now.
    #[must_use]
    pub fn admit_mcp(&self, token: &str) -> Option<McpHolder> {
        let (principal, scope) = self.holder(token)?;
        let Scope::Mcp(workspace) = scope else { return None };
        Some(McpHolder { principal, workspace, token: Digest::of(token.as_bytes()) })
    }

    /// A file that cannot be read admits nobody.
    fn holder(&self, token: &str) -> Option<(ActorRef, Scope)> {
        let hash = Digest::of(token.as_bytes()).to_string();
        let tokens = self.current().ok()?;
        let is_it = |token: &&Value| text(token, "hash").is_some_and(|known| is_same(known, &hash));
        let found = tokens.iter().find(is_it)?;
        Some((holder_of(found)?, scope(found)))
    }

    /// Returns the tokens as they are now.
    fn current(&self) -> Result<Arc<Vec<Value>>, TokenFileError> {
        let stamp = fs::metadata(&self.path).ok().map(|metadata| stamp(&metadata));
        let seen = || self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen().as_ref().filter(|known| Some(known.stamp) == stamp) {
            return Ok(Arc::clone(&known.tokens));
        }
        let tokens = Arc::new(self.read()?);
        // SECURITY: a file that changed just now could change again within the same tick of the
        // file system's clock, and look the same.
        *seen() = stamp.filter(is_old).map(|stamp| Seen { stamp, tokens: Arc::clone(&tokens) });
        Ok(tokens)
    }

    fn read(&self) -> Result<Vec<Value>, TokenFileError> {
        let content = match fs::read(&self.path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(cause) => return Err(self.file(cause)),
        };
        let damaged = |cause| TokenFileError::Damaged(self.path.clone(), cause);
        let value: Value =
            serde_json::from_slice(&content).map_err(|error| damaged(error.into()))?;
        if value.get("version").and_then(Value::as_str) != Some(VERSION) {
            return Err(damaged(format!("its version is not {VERSION}").into()));
        }
        value
            .get("tokens")
            .and_then(Value::as_array)
            .cloned()
            .ok_or_else(|| damaged("it has no tokens".into()))
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
    fn admit(&self, token: &str) -> Option<ActorRef> {
        let (principal, scope) = self.holder(token)?;
        (scope == Scope::Sandboxes).then_some(principal)
    }

    fn knows(&self, holder: &ActorRef, at: Timestamp) -> bool {
        let is_it = |token: &Value| {
            let made = text(token, "createdAt").and_then(|made| made.parse::<Timestamp>().ok());
            scope(token) == Scope::Sandboxes
                && made.is_some_and(|made| made <= at)
                && holder_of(token).is_some_and(|known| known == *holder)
        };
        self.current().is_ok_and(|tokens| tokens.iter().any(is_it))
    }
}

/// Returns who holds a token.
fn holder_of(token: &Value) -> Option<ActorRef> {
    let id = format!("door-{}", text(token, "name")?);
    Some(ActorRef { kind: ActorKind::Service, id })
}

fn stamp(metadata: &fs::Metadata) -> Stamp {
    let changed = (metadata.ctime(), metadata.ctime_nsec());
    (metadata.dev(), metadata.ino(), changed, metadata.size())
}

/// Returns whether a file changed so long ago that a further change has another time.
fn is_old((_, _, (seconds, _), _): &Stamp) -> bool {
    let now = random::now().map_or(0, |now| now.unix_ms() / 1000);
    u64::try_from(*seconds).is_ok_and(|changed| changed + 1 < now)
}

fn text<'a>(token: &'a Value, name: &str) -> Option<&'a str> {
    token.get(name).and_then(Value::as_str)
}

fn scope(token: &Value) -> Scope {
    match token.get(MCP_WORKSPACE) {
        None => Scope::Sandboxes,
        Some(workspace) => Scope::Mcp(PathBuf::from(workspace.as_str().unwrap_or_default())),
    }
}

/// Compares texts in a time that does not tell where they differ.
pub(super) fn is_same(known: &str, given: &str) -> bool {
    let (known, given) = (Digest::of(known.as_bytes()), Digest::of(given.as_bytes()));
    known == given
}
