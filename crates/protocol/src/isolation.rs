//! The tiers of isolation, as contracts and receipts spell them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A way of isolating a program.
///
/// There is no order between tiers here: what a tier holds on one machine is its [`crate::Posture`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// An interpreter over an in-memory filesystem: touches nothing, always the same output.
    Mock,
    /// A scrubbed child process; holds no files and no network back.
    Process,
    /// An interpreter in a jailed worker: no program can be started at all.
    Hermetic,
    /// Linux namespaces, Landlock, seccomp and cgroups around a real program.
    Namespace,
    /// A sandbox on an OpenSandbox server.
    Opensandbox,
    /// A sandbox at E2B.
    E2b,
    /// A sandbox at Daytona.
    Daytona,
    /// A microVM of the reference implementation; known, never offered here.
    VercelSandbox,
}

/// A tier nobody knows.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "unknown isolation `{0}`: expected mock, process, hermetic, namespace, opensandbox, e2b, daytona or vercel-sandbox"
)]
pub struct UnknownIsolation(pub String);

impl Isolation {
    /// Every tier, in the order of the declaration.
    pub const ALL: [Self; 8] = [
        Self::Mock,
        Self::Process,
        Self::Hermetic,
        Self::Namespace,
        Self::Opensandbox,
        Self::E2b,
        Self::Daytona,
        Self::VercelSandbox,
    ];

    /// Returns whether programs of this tier run on somebody else's machine.
    #[must_use]
    pub const fn is_remote(self) -> bool {
        matches!(self, Self::Opensandbox | Self::E2b | Self::Daytona | Self::VercelSandbox)
    }

    /// Returns whether there is a backend of ours that makes this tier.
    #[must_use]
    pub const fn is_offered(self) -> bool {
        match self {
            Self::Mock
            | Self::Process
            | Self::Hermetic
            | Self::Namespace
            | Self::Opensandbox
            | Self::E2b
            | Self::Daytona => true,
            Self::VercelSandbox => false,
        }
    }

    /// Returns the name used on the wire and on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mock => "mock",
            Self::Process => "process",
            Self::Hermetic => "hermetic",
            Self::Namespace => "namespace",
            Self::Opensandbox => "opensandbox",
            Self::E2b => "e2b",
            Self::Daytona => "daytona",
            Self::VercelSandbox => "vercel-sandbox",
        }
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Isolation {
    type Err = UnknownIsolation;

    fn from_str(text: &str) -> Result<Self, UnknownIsolation> {
        let found = Self::ALL.into_iter().find(|isolation| isolation.as_str() == text);
        found.ok_or_else(|| UnknownIsolation(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tier_parses_from_its_own_name_on_both_doors() {
        for isolation in Isolation::ALL {
            assert_eq!(isolation.as_str().parse(), Ok(isolation));
            let json = serde_json::to_string(&isolation).unwrap();
            assert_eq!(json, format!("\"{isolation}\""));
        }
        assert!("none".parse::<Isolation>().is_err());
    }
}
