//! The remote providers of a home: where they are, with which key, and what is kept about them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use warrant_plane::policy_holder::PolicyHolder;
use warrant_plane::{Home, HomeEnvironment, HomeError, random};
use warrant_protocol::{Evidence, Isolation, VersionRange};
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
    NoHome(#[source] HomeError),
}

/// Checks that a provider can be used, before a home is made or anything is asked.
///
/// # Errors
/// [`NoProvider`] naming what is missing.
pub fn check(isolation: Isolation, home: Option<&Path>) -> Result<(), NoProvider> {
    let root = match home {
        Some(home) => home.to_owned(),
        None => HomeEnvironment::of_process().locate().map_err(NoProvider::NoHome)?,
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
        pinned: pinned(root),
        home: home.to_owned(),
        scratch: scratch.to_owned(),
        random: random::bytes,
    })
}

/// Returns the versions that the policy in force pins. Without a policy nothing runs, whatever is
/// pinned.
fn pinned(root: &Path) -> BTreeMap<Isolation, Vec<VersionRange>> {
    let Some(policy) = PolicyHolder::of(root).look().policy else { return BTreeMap::new() };
    let versions = |isolation: &Isolation| {
        let pinned = policy.controls().provider(*isolation)?.versions.iter();
        Some((*isolation, pinned.map(|pinned| pinned.version.clone()).collect()))
    };
    REMOTE.iter().filter_map(versions).collect()
}

/// A component that a provider cannot prove, whatever it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unprovable {
    /// Which one.
    pub component: &'static str,
    /// What is missing, as a sentence about the provider.
    pub sentence: &'static str,
    /// What counts for it instead.
    pub evidence: Evidence,
}

/// Returns what a provider cannot prove of the components that every run demands.
#[must_use]
pub fn unprovable(isolation: Isolation) -> Vec<Unprovable> {
    let requested =
        |component, sentence| Unprovable { component, sentence, evidence: Evidence::Requested };
    let (name, mounts) = match isolation {
        Isolation::E2b => {
            ("E2B does not tell which image runs: it reports the template alone", None)
        }
        Isolation::Daytona => {
            ("Daytona does not tell which image runs: it reports the snapshot's name alone", None)
        }
        Isolation::Opensandbox => (
            "OpenSandbox does not tell which image runs: it reports a tag alone",
            Some("OpenSandbox does not tell which volumes are mounted"),
        ),
        _ => return Vec::new(),
    };
    let image = requested("image_digest", name);
    [Some(image), mounts.map(|mounts| requested("mounts", mounts))].into_iter().flatten().collect()
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
