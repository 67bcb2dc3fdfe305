//! Strict preflight: a posture against what is demanded of it, with a minimum of evidence.
//!
//! Pure: the posture comes from the backend's probe, the demands from a contract or a tier.

use warrant_protocol::{Enforcement, Evidence, Posture};
use warrant_sandbox::components;

/// What a boundary must hold before anyone may rely on it, whoever makes it.
pub const STRICT: [&str; 8] = [
    "files.read",
    "files.write",
    "files.masks",
    "network",
    "processes.kill",
    "environment",
    "limits.wall",
    "limits.output",
];

/// What is demanded of a posture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demands {
    /// The components that must hold.
    pub components: Vec<String>,
    /// The least evidence that is accepted for each.
    pub evidence: Evidence,
    /// The versions of the provider that are known to be good.
    pub versions: Vec<String>,
}

/// One thing that is not as demanded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degraded {
    /// The component, or `provider.version`.
    pub component: String,
    /// What was found instead.
    pub found: String,
}

/// Returns the names of all components every posture tells of.
pub fn vocabulary() -> impl Iterator<Item = String> {
    components()
}

/// Returns everything that is not as demanded; nothing means that the program may run.
#[must_use]
pub fn preflight(demands: &Demands, posture: &Posture) -> Vec<Degraded> {
    let components = demands.components.iter().filter_map(|name| {
        let found = match posture.components.get(name) {
            None => "not told".to_owned(),
            Some(fact) => match fact.enforcement {
                Enforcement::Observed => with_detail("only sampled", fact.detail.as_deref()),
                Enforcement::Absent => with_detail("absent", fact.detail.as_deref()),
                Enforcement::Unknown => with_detail("unknown", fact.detail.as_deref()),
                Enforcement::Enforced if fact.evidence < demands.evidence => {
                    format!("known only as {:?}", fact.evidence).to_lowercase()
                }
                Enforcement::Enforced => return None,
            },
        };
        Some(Degraded { component: name.clone(), found })
    });
    let version = &posture.provider_version;
    let is_known = demands.versions.contains(version);
    let version = (!is_known).then(|| Degraded {
        component: "provider.version".to_owned(),
        found: format!("`{version}`"),
    });
    components.chain(version).collect()
}

/// Returns degradations as people read them.
#[must_use]
pub fn describe(degraded: &[Degraded]) -> String {
    let each = degraded.iter().map(|one| format!("{} ({})", one.component, one.found));
    each.collect::<Vec<_>>().join(", ")
}

fn with_detail(word: &str, detail: Option<&str>) -> String {
    detail.map_or_else(|| word.to_owned(), |detail| format!("{word}: {detail}"))
}
