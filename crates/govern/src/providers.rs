//! The remote providers of a home: where they are, with which key, and what is kept about them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use warrant_plane::{Home, HomeEnvironment, random};
use warrant_protocol::Isolation;
use warrant_sandbox::Remote;
use warrant_sandbox::remote::{NotConfigured, ProviderConfig, Surroundings};

use crate::desk::variables;

/// The providers there are.
pub const REMOTE: [Isolation; 3] = [Isolation::Opensandbox, Isolation::E2b, Isolation::Daytona];

/// Why a provider cannot be used.
#[derive(Debug, Error)]
pub enum NoProvider {
    /// A key is missing, or an address makes no sense.
    #[error(transparent)]
    NotConfigured(#[from] NotConfigured),
    /// The configuration cannot be read.
    #[error("{path}: {why}")]
    Config {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is no home to look in.
    #[error("there is no home to look for providers.json in")]
    NoHome,
}

/// Checks that a provider can be used, before a home is made or anything is asked.
///
/// # Errors
/// [`NoProvider`] naming what is missing.
pub fn check(isolation: Isolation, home: Option<&Path>) -> Result<(), NoProvider> {
    let root = match home {
        Some(home) => home.to_owned(),
        None => HomeEnvironment::of_process().locate().map_err(|_| NoProvider::NoHome)?,
    };
    let around = surroundings(&root, "nobody", &root)?;
    Remote::open(isolation, around).map(drop).map_err(NoProvider::from)
}

/// Returns the backend of a provider for a home.
///
/// # Errors
/// [`NoProvider`] naming what is missing.
pub fn open(isolation: Isolation, home: &Home) -> Result<Arc<Remote>, NoProvider> {
    Ok(Arc::new(Remote::open(isolation, around(home)?)?))
}

/// Returns the backend of a provider for a home, with address and key from these variables.
///
/// # Errors
/// [`NoProvider`] naming what is missing.
pub fn open_with(
    isolation: Isolation,
    home: &Home,
    environment: BTreeMap<String, String>,
) -> Result<Arc<Remote>, NoProvider> {
    let around = Surroundings { environment, ..around(home)? };
    Ok(Arc::new(Remote::open(isolation, around)?))
}

/// Returns what every client of a provider needs of a home.
///
/// # Errors
/// [`NoProvider`] when the configuration cannot be read.
pub fn around(home: &Home) -> Result<Surroundings, NoProvider> {
    let name = home.runner_id().to_string();
    surroundings(home.root(), &name, &home.data().join("providers"))
}

fn surroundings(root: &Path, home: &str, scratch: &Path) -> Result<Surroundings, NoProvider> {
    Ok(Surroundings {
        environment: variables(),
        config: config(&root.join("providers.json"))?,
        home: home.to_owned(),
        scratch: scratch.to_owned(),
        random: random::bytes,
    })
}

/// Reads what the operator says about providers; a member nobody knows is an error.
fn config(path: &Path) -> Result<BTreeMap<String, ProviderConfig>, NoProvider> {
    let fail = |why: String| NoProvider::Config { path: path.to_owned(), why };
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(fail(error.to_string())),
    };
    let config: BTreeMap<String, ProviderConfig> =
        serde_json::from_str(&text).map_err(|error| fail(error.to_string()))?;
    let is_known = |name: &String| REMOTE.iter().any(|known| known.as_str() == name);
    match config.keys().find(|name| !is_known(name)) {
        Some(unknown) => Err(fail(format!("`{unknown}` is no provider"))),
        None => Ok(config),
    }
}
