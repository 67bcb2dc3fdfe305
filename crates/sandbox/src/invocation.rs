//! What a backend is asked to run: argv, environment, files, network and limits. Nothing else.

use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use warrant_protocol::{Limits, SecretName};

use crate::neighbors::Neighborhood;
use crate::port::Refusal;

/// Returns a path as a plan has it. A name that is no text is told by its bytes: a program may have
/// made it, and a plan of it must exist all the same.
pub(crate) fn shown(path: &Path) -> String {
    let bytes = || path.as_os_str().as_bytes().escape_ascii().to_string();
    path.to_str().map_or_else(bytes, str::to_owned)
}

/// One program and everything it may have. Built by the runner from a contract.
#[derive(Debug, Clone)]
pub struct Invocation {
    /// What to start.
    pub command: Command,
    /// Absolute directory to start in, in host terms.
    pub cwd: PathBuf,
    /// The whole environment; nothing is inherited.
    pub env: Vec<EnvVar>,
    /// What the program reads.
    pub stdin: Stdin,
    /// A terminal of this size instead of pipes, if wanted.
    pub tty: Option<TtySize>,
    /// What of the host's files exists inside.
    pub files: Files,
    /// What the program may reach.
    pub network: Network,
    /// Limits for the whole process tree.
    pub limits: Limits,
    /// The image or template, for tiers that have one; the others refuse it.
    pub image: Option<String>,
    /// Commands beside it whose servers it reaches at loopback, and they its own. Only the
    /// namespace tier can do it; in the others it reaches none of them.
    pub neighbors: Option<Neighborhood>,
}

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A program with its arguments, found through the invocation's `PATH`.
    Argv {
        /// The program.
        program: String,
        /// Its arguments, without the program itself.
        args: Vec<String>,
    },
    /// A script for a shell.
    Shell {
        /// Which shell.
        shell: Shell,
        /// The script.
        script: String,
    },
}

/// The shells a contract can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shell {
    /// `sh`.
    Sh,
    /// `bash`.
    Bash,
}

/// One variable of the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: EnvValue,
}

/// A value of the environment; secrets never show in plans, errors or debug output.
#[derive(Clone, PartialEq, Eq)]
pub enum EnvValue {
    /// Anyone may see it.
    Plain(String),
    /// The value of a released secret.
    Secret {
        /// The secret's name.
        name: SecretName,
        /// Its value.
        value: String,
    },
    /// The path of a file, inside the session only, with the value of a released secret.
    SecretFile {
        /// The secret's name.
        name: SecretName,
        /// The path as the program sees it.
        path: String,
        /// What the file holds.
        value: String,
    },
}

/// Where files with secrets are inside a session.
const SECRET_FILES: &str = "/run/secrets";

impl EnvValue {
    /// Returns the path of a file with a secret that has no value yet.
    #[must_use]
    pub fn secret_file(name: SecretName) -> Self {
        let path = format!("{SECRET_FILES}/{name}");
        Self::SecretFile { name, path, value: String::new() }
    }

    /// Returns the value as the program will see it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        match self {
            Self::Plain(value) | Self::Secret { value, .. } => value,
            Self::SecretFile { path, .. } => path,
        }
    }

    /// Returns the value as plans show it.
    pub(crate) fn shown(&self, variable: &str) -> serde_json::Value {
        match self {
            Self::Plain(value) => json!({ "name": variable, "value": value }),
            Self::Secret { name, .. } => json!({ "name": variable, "secret": name }),
            Self::SecretFile { name, path, .. } => {
                json!({ "name": variable, "value": path, "secretFile": name })
            }
        }
    }
}

impl Invocation {
    /// Refuses secrets as files, for a tier without a place for them that ends with the session.
    pub(crate) fn refuse_secret_files(&self, tier: &str) -> Result<(), Refusal> {
        let is_file = |variable: &EnvVar| matches!(variable.value, EnvValue::SecretFile { .. });
        match self.env.iter().find(|variable| is_file(variable)) {
            None => Ok(()),
            Some(variable) => Err(Refusal {
                code: "SANDBOX_DENIED",
                message: format!(
                    "the {tier} tier has no private place for a file with a secret ({}): release \
                     it as a variable, or use the namespace tier",
                    variable.name
                ),
            }),
        }
    }
}

impl fmt::Debug for EnvValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(value) => fmt::Debug::fmt(value, f),
            Self::Secret { name, .. } => write!(f, "<secret {name}>"),
            Self::SecretFile { name, path, .. } => write!(f, "<secret {name} in {path}>"),
        }
    }
}

/// What the program reads on its standard input.
#[derive(Debug, Clone)]
pub enum Stdin {
    /// Nothing: end of file at once.
    Empty,
    /// These bytes, then end of file.
    Bytes(Vec<u8>),
    /// Whatever this descriptor yields; its other end may be closed at any time.
    Descriptor(Arc<OwnedFd>),
}

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TtySize {
    /// Columns.
    pub columns: u16,
    /// Rows.
    pub rows: u16,
}

/// What of the host's files exists inside. Everything not named here does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The workspace, an absolute path of the host; inside it has the same path (in the
    /// interpreting backends it is `/`).
    pub workspace: PathBuf,
    /// How the workspace may be used.
    pub access: WorkspaceAccess,
    /// Further directories and files that can be read, beyond what the backend itself needs.
    pub read_roots: Vec<PathBuf>,
    /// Further directories that can be written directly.
    pub write_roots: Vec<PathBuf>,
    /// Globs of secret files that exist inside but are empty and unreadable, at any depth,
    /// matched without regard to case. A pattern with a slash matches the path below the
    /// workspace, one without matches the file name.
    pub masks: Vec<String>,
    /// Where inside the workspace or a write root is shown, when that is not its own path. Only
    /// the namespace tier can do it; the others refuse.
    pub places: Vec<Place>,
}

impl Files {
    /// Returns where what a program writes is kept.
    #[must_use]
    pub fn write_target(&self) -> WriteTarget {
        match self.access == WorkspaceAccess::Direct || !self.write_roots.is_empty() {
            true => WriteTarget::HostDirectories,
            false => WriteTarget::OwnLayer,
        }
    }
}

/// Where what a program writes is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteTarget {
    /// In a layer of the run's own.
    OwnLayer,
    /// In directories of the host, the workspace among them.
    HostDirectories,
}

/// A root that is shown under another path inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The workspace or a write root, as the other members of [`Files`] name it.
    pub root: PathBuf,
    /// Its absolute path inside: `/tmp`, or a path that is no part of the system.
    pub inside: PathBuf,
}

/// How the workspace may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceAccess {
    /// Writes fail.
    ReadOnly,
    /// Writes go to an upper layer of this run; the workspace itself stays untouched.
    Overlay,
    /// Writes go straight to the workspace.
    Direct,
}

/// What the program may reach. There is no default; the empty list means nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// Only these, each `host`, `*.host`, either with `:port`, or a listed address.
    /// An empty list means nothing at all.
    Allow(Vec<String>),
    /// Every public destination. Only when policy truly says so.
    DangerEverything,
}
