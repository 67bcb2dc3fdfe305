//! Where providers are and what they are opened with: the official variables, their aliases, and
//! what the operator's configuration adds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;
use warrant_protocol::{Isolation, VersionRange};

/// What the operator says about one provider, in the home's `providers.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProviderConfig {
    /// Where its control API is; the variable counts before it.
    #[serde(default)]
    pub api_url: Option<String>,
    /// Where its sandboxes are, for providers that have two places.
    #[serde(default)]
    pub sandbox_url: Option<String>,
    /// A file with nothing but the key; the variable counts before it.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The image or template when a run names none.
    #[serde(default)]
    pub image: Option<String>,
    /// Versions that count besides the others: single ones, beginnings or ranges.
    #[serde(default)]
    pub versions: Vec<VersionRange>,
    /// A destination `host:port` that must not be reachable from inside and that would answer.
    #[serde(default)]
    pub canary: Option<String>,
}

/// Whatever all sessions of a machine share.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The environment the variables are looked up in.
    pub environment: BTreeMap<String, String>,
    /// The operator's configuration, by provider.
    pub config: BTreeMap<String, ProviderConfig>,
    /// The versions that people pinned, by provider; without any those count that ship with the
    /// program.
    pub pinned: BTreeMap<Isolation, Vec<VersionRange>>,
    /// The name of the home, by which its orphans are found again.
    pub home: String,
    /// A directory of ours for records of sessions and for what comes back.
    pub scratch: PathBuf,
    /// Sixteen random bytes.
    pub random: fn() -> std::io::Result<[u8; 16]>,
}

impl Surroundings {
    /// Where the records of a provider's sessions lie.
    pub(crate) fn records(&self, isolation: Isolation) -> PathBuf {
        self.scratch.join("remote").join(isolation.as_str())
    }
}

/// Why a provider cannot be used, before anything was asked of it.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NotConfigured {
    /// No key.
    #[error("{isolation}: no key: set {variable}, or keyFile in providers.json of the home")]
    NoKey {
        /// The provider.
        isolation: Isolation,
        /// The variable that is missing.
        variable: &'static str,
    },
    /// A key that cannot be a header.
    #[error("{isolation}: the key holds characters that no key has")]
    BadKey {
        /// The provider.
        isolation: Isolation,
    },
    /// A place that is none.
    #[error("{isolation}: {variable} is no http or https address: {value}")]
    BadAddress {
        /// The provider.
        isolation: Isolation,
        /// The variable or member.
        variable: &'static str,
        /// What it holds.
        value: String,
    },
    /// A tier that is no provider.
    #[error("{0} is no remote provider")]
    NotRemote(Isolation),
}

/// What one provider's client needs.
#[derive(Clone)]
pub(crate) struct Account {
    pub(crate) isolation: Isolation,
    /// Without a slash at its end.
    pub(crate) api: String,
    pub(crate) sandboxes: Option<String>,
    pub(crate) key: String,
    pub(crate) config: ProviderConfig,
    pub(crate) pinned: Vec<VersionRange>,
    pub(crate) environment: BTreeMap<String, String>,
    /// How long one whole answer may take.
    pub(crate) patience: Duration,
    /// How long a sandbox lives at least if nobody renews its lease.
    pub(crate) lease: Duration,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("api", &self.api).finish_non_exhaustive()
    }
}

/// How long one whole answer may take when nobody says.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a sandbox lives without renewal when nobody says: long enough for a provider that
/// fails for a minute, short enough that what nobody can delete is soon gone.
const LEASE: Duration = Duration::from_secs(90);
/// A lease is never shorter or longer than this, whatever is said.
const LEASES: (u64, u64) = (5, 3600);

impl Account {
    /// Reads what a provider needs; a missing key is told before anything else.
    pub(crate) fn read(isolation: Isolation, around: &Surroundings) -> Result<Self, NotConfigured> {
        let config = around.config.get(isolation.as_str()).cloned().unwrap_or_default();
        let get =
            |name: &str| around.environment.get(name).filter(|value| !value.is_empty()).cloned();
        let (variable, keys): (&'static str, &[&str]) = match isolation {
            Isolation::E2b => ("E2B_API_KEY", &["E2B_API_KEY"]),
            Isolation::Daytona => ("DAYTONA_API_KEY", &["DAYTONA_API_KEY", "DAYTONA_JWT_TOKEN"]),
            Isolation::Opensandbox => {
                ("OPEN_SANDBOX_API_KEY", &["OPEN_SANDBOX_API_KEY", "OPENSANDBOX_API_KEY"])
            }
            other => return Err(NotConfigured::NotRemote(other)),
        };
        let from_file = || {
            let file = config.key_file.as_ref()?;
            std::fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
        };
        let key = keys.iter().find_map(|name| get(name)).or_else(from_file);
        let key = key.filter(|key| !key.is_empty());
        let key = key.ok_or(NotConfigured::NoKey { isolation, variable })?;
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(NotConfigured::BadKey { isolation });
        }
        let address = |variable: &'static str, value: String| {
            let is_address = value.starts_with("http://") || value.starts_with("https://");
            let is_plain = value.bytes().all(|byte| byte.is_ascii_graphic());
            if is_address && is_plain {
                Ok(value.trim_end_matches('/').to_owned())
            } else {
                Err(NotConfigured::BadAddress { isolation, variable, value })
            }
        };
        let (api, sandboxes) = match isolation {
            Isolation::E2b => {
                let domain = get("E2B_DOMAIN").unwrap_or_else(|| "e2b.app".to_owned());
                let api = get("E2B_API_URL").or_else(|| config.api_url.clone());
                let api = api.unwrap_or_else(|| format!("https://api.{domain}"));
                let own = get("E2B_SANDBOX_URL").or_else(|| config.sandbox_url.clone());
                let sandboxes = own.map(|own| address("E2B_SANDBOX_URL", own)).transpose()?;
                (address("E2B_API_URL", api)?, sandboxes)
            }
            Isolation::Daytona => {
                let api = get("DAYTONA_API_URL").or_else(|| config.api_url.clone());
                let api = api.unwrap_or_else(|| "https://app.daytona.io/api".to_owned());
                (address("DAYTONA_API_URL", api)?, None)
            }
            _ => {
                let domain = get("OPEN_SANDBOX_DOMAIN").or_else(|| get("OPENSANDBOX_DOMAIN"));
                let domain = domain.or_else(|| config.api_url.clone());
                let domain = domain.unwrap_or_else(|| "localhost:8080".to_owned());
                let protocol = get("OPEN_SANDBOX_PROTOCOL").unwrap_or_else(|| "http".to_owned());
                let is_whole = domain.starts_with("http://") || domain.starts_with("https://");
                let api = if is_whole { domain } else { format!("{protocol}://{domain}") };
                let api = address("OPEN_SANDBOX_DOMAIN", api)?;
                (api.trim_end_matches("/v1").trim_end_matches('/').to_owned(), None)
            }
        };
        let seconds = |name: &str| get(name).and_then(|text| text.parse::<u64>().ok());
        let patience = seconds("WARRANT_PROVIDER_TIMEOUT_S");
        let patience = patience.map_or(PATIENCE, Duration::from_secs).max(Duration::from_secs(1));
        let lease = seconds("WARRANT_PROVIDER_LEASE_S");
        let lease = lease.map_or(LEASE, |s| Duration::from_secs(s.clamp(LEASES.0, LEASES.1)));
        let environment = around.environment.clone();
        let pinned = around.pinned.get(&isolation).cloned().unwrap_or_default();
        Ok(Self { isolation, api, sandboxes, key, config, pinned, environment, patience, lease })
    }

    /// Returns a variable of the environment.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Versions that were tried and are known to keep what they say, by provider.
const KNOWN_GOOD: [(Isolation, &[&str]); 3] = [
    (Isolation::Opensandbox, &["1.1.1"]),
    (Isolation::E2b, &["0.6.13"]),
    (Isolation::Daytona, &["0.190.0", "0.214.3"]),
];

/// Returns the versions of a provider that count where nobody pinned any.
#[must_use]
pub fn shipped_versions(isolation: Isolation) -> &'static [&'static str] {
    let known = KNOWN_GOOD.iter().find(|(known, _)| *known == isolation);
    known.map_or(&[], |(_, versions)| versions)
}

impl Account {
    /// Returns why a version does not count, if it does not; a leading `v` does not matter.
    pub(crate) fn refuses(&self, version: &str) -> Option<String> {
        let plain = |text: &str| text.strip_prefix('v').unwrap_or(text).to_owned();
        let shipped = shipped_versions(self.isolation);
        let is_shipped = || shipped.iter().any(|known| *known == plain(version));
        let is_added = self.config.versions.iter().any(|range| range.matches(version));
        let is_pinned = match self.pinned.is_empty() {
            true => is_shipped(),
            false => self.pinned.iter().any(|range| range.matches(version)),
        };
        if is_added || is_pinned {
            return None;
        }
        let pinned: Vec<&str> = self.pinned.iter().map(VersionRange::as_str).collect();
        Some(match pinned.is_empty() {
            true => format!("version {version} is not one that was tried ({})", shipped.join(", ")),
            false => format!("version {version} is not pinned ({})", pinned.join(", ")),
        })
    }
}
