//! The master key from the keyring of the operating system, through the system's own programs.
//!
//! `keyring:kernel` asks the kernel's keyrings by `keyctl` (gone when the machine restarts),
//! `keyring:secret-service` asks the desktop's keyring by `secret-tool`, `file:PATH` reads a file.
//! Programs are started by their full path, with nothing of our environment but what leads to
//! the session's bus; what they print is never shown.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use thiserror::Error;

/// What the key is called in a keyring.
pub const KEY_NAME: &str = "warrant-master";

/// Why a keyring did not give the key.
#[derive(Debug, Error)]
pub enum KeyringError {
    /// Nothing is called that.
    #[error(
        "WARRANT_MASTER_KEY_FROM is keyring:kernel, keyring:secret-service or file:PATH, not `{0}`"
    )]
    Unknown(String),
    /// The key in the environment cannot be used, and without it keys would lie open.
    #[error("WARRANT_MASTER_KEY is no text")]
    NoText,
    /// The program that asks it is not installed.
    #[error("{program} is not installed; install the Debian package {package}")]
    NoProgram {
        /// Which program.
        program: &'static str,
        /// What brings it.
        package: &'static str,
    },
    /// The program that asks it cannot be started.
    #[error("{program} cannot be started")]
    NotStarted {
        /// Which program.
        program: &'static str,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// The keyring has no such key, or does not give it.
    #[error("the keyring has no key called {KEY_NAME}; put it there with: {remedy}")]
    Missing {
        /// How to put it there.
        remedy: &'static str,
    },
    /// The file cannot be read.
    #[error("cannot read the master key from {path}")]
    File {
        /// Which file.
        path: String,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// It is no text.
    #[error("the master key is not text")]
    NotText(#[source] std::string::FromUtf8Error),
}

/// Returns the master key from where `source` says.
///
/// # Errors
/// [`KeyringError`]; there is no other source to fall back to.
pub fn master_key(source: &str) -> Result<String, KeyringError> {
    match source.split_once(':') {
        Some(("file", path)) => std::fs::read_to_string(path)
            .map_err(|cause| KeyringError::File { path: path.to_owned(), cause }),
        Some(("keyring", "kernel")) => from_kernel(),
        Some(("keyring", "secret-service")) => from_secret_service(),
        _ => Err(KeyringError::Unknown(source.to_owned())),
    }
}

fn from_kernel() -> Result<String, KeyringError> {
    const PROGRAM: (&str, &str) = ("/usr/bin/keyctl", "keyutils");
    const REMEDY: &str = "head -c 32 /dev/urandom | base64 | keyctl padd user warrant-master @u";
    let missing = || KeyringError::Missing { remedy: REMEDY };
    for keyring in ["@s", "@u"] {
        let found = ask(PROGRAM, &["search", keyring, "user", KEY_NAME])?;
        if !found.status.success() {
            continue;
        }
        let id = text(&found)?;
        let key = ask(PROGRAM, &["pipe", id.trim()])?;
        return if key.status.success() { text(&key) } else { Err(missing()) };
    }
    Err(missing())
}

fn from_secret_service() -> Result<String, KeyringError> {
    const PROGRAM: (&str, &str) = ("/usr/bin/secret-tool", "libsecret-tools");
    const REMEDY: &str = "secret-tool store --label=Warrant application warrant-master";
    let key = ask(PROGRAM, &["lookup", "application", KEY_NAME])?;
    let is_there = key.status.success() && !key.stdout.is_empty();
    if is_there { text(&key) } else { Err(KeyringError::Missing { remedy: REMEDY }) }
}

fn ask(
    (program, package): (&'static str, &'static str),
    arguments: &[&str],
) -> Result<Output, KeyringError> {
    let absent = KeyringError::NoProgram { program, package };
    if !Path::new(program).is_file() {
        return Err(absent);
    }
    let mut command = Command::new(program);
    command.args(arguments).env_clear().stdin(Stdio::null()).stderr(Stdio::null());
    for name in ["DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "HOME"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.output().map_err(|cause| KeyringError::NotStarted { program, cause })
}

fn text(output: &Output) -> Result<String, KeyringError> {
    String::from_utf8(output.stdout.clone()).map_err(KeyringError::NotText)
}
