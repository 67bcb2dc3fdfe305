//! Posture: what a backend enforces here and now, component by component, and how we know.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Isolation;
use crate::shared::Shared;

/// Whether one component of a boundary holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcement {
    /// It was tried and it held: the kernel, or the only way through, refuses what is beyond.
    Enforced,
    /// Nothing refuses it; it is looked at from time to time, and the whole tree is ended when it
    /// is beyond. A fast program can be beyond it for a moment.
    Observed,
    /// It is not there.
    Absent,
    /// Nobody could tell; policy treats this as a no.
    Unknown,
}

/// How a posture fact is known, from strongest to weakest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// Nothing is known.
    Unavailable,
    /// Only our own request says so.
    Requested,
    /// The provider said so after creation.
    Reported,
    /// It was looked at in the enforcing kernel or daemon, for what this speaks of: this run in a
    /// receipt, the trial in a preflight.
    Measured,
}

/// One fact of a posture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Component {
    /// Whether it holds.
    pub enforcement: Enforcement,
    /// How that is known.
    pub evidence: Evidence,
    /// Where it was looked at: a path, a system call, an address. Never a secret.
    pub source: String,
    /// What was found, in words or as a value: `landlock abi 6`, `cgroup v1`, `uid 65534`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What a backend enforces here and now.
///
/// The names of components are shared by all backends so that a contract can demand them:
/// `files.read`, `files.write`, `files.masks`, `network`, `network.names`, `processes.namespace`,
/// `processes.kill`, `syscalls`, `privileges`, `ipc`, `environment`, and `limits.<kind>`
/// for each [`crate::LimitKind`]. A name that is missing counts as absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Posture {
    /// The tier this speaks of.
    pub isolation: Isolation,
    /// The version of what enforces: kernel release and our own version, or the provider's.
    pub provider_version: String,
    /// The facts by name.
    pub components: Shared<BTreeMap<String, Component>>,
}

impl Posture {
    /// Returns the demanded components that do not hold, in the order of the demand.
    pub fn lacking<'a>(&self, demanded: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
        demanded.into_iter().filter(|name| !self.enforces(name)).collect()
    }

    /// Returns whether one component is only looked at from time to time.
    #[must_use]
    pub fn observes(&self, name: &str) -> bool {
        self.components
            .get(name)
            .is_some_and(|component| component.enforcement == Enforcement::Observed)
    }

    /// Returns whether one component is enforced; observed, unknown and unnamed are not.
    #[must_use]
    pub fn enforces(&self, name: &str) -> bool {
        self.components
            .get(name)
            .is_some_and(|component| component.enforcement == Enforcement::Enforced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_unnamed_components_count_as_lacking() {
        let component = |enforcement| Component {
            enforcement,
            evidence: Evidence::Measured,
            source: "test".into(),
            detail: None,
        };
        let posture = Posture {
            isolation: Isolation::Process,
            provider_version: "1".into(),
            components: BTreeMap::from([
                ("a".into(), component(Enforcement::Enforced)),
                ("b".into(), component(Enforcement::Unknown)),
                ("c".into(), component(Enforcement::Absent)),
                ("e".into(), component(Enforcement::Observed)),
            ])
            .into(),
        };
        assert_eq!(posture.lacking(["a", "b", "c", "d", "e"]), ["b", "c", "d", "e"]);
        assert!(posture.observes("e") && !posture.observes("a") && !posture.observes("d"));
    }
}
