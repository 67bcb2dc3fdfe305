//! Every check, in the order in which they are run.

mod claims;
mod exec;
mod faults;
mod files;
mod flood;
mod hostile;
mod lifecycle;
mod limits;
mod network;
mod posture;
mod receipt;
mod replay;
mod stop;
mod surroundings;

use crate::lab::{Finding, Lab};
use crate::tier::{Level, Tier};

/// One thing that is tried on a subject.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Its name for programs: `group.thing`.
    pub id: &'static str,
    /// How hard it tries.
    pub level: Level,
    /// What it is about, for people.
    pub name: &'static str,
    pub(crate) run: fn(&Lab<'_>) -> Finding,
}

/// Returns every check.
pub fn all() -> impl Iterator<Item = &'static Check> {
    [
        lifecycle::CHECKS,
        exec::CHECKS,
        surroundings::CHECKS,
        posture::CHECKS,
        receipt::CHECKS,
        stop::CHECKS,
        limits::CHECKS,
        files::CHECKS,
        network::CHECKS,
        claims::CHECKS,
        flood::CHECKS,
        replay::CHECKS,
        hostile::CHECKS,
        faults::CHECKS,
    ]
    .into_iter()
    .flatten()
}

/// Returns the checks that a tier requires, the easiest level first.
pub fn required_by(tier: Tier) -> impl Iterator<Item = &'static Check> {
    let levels = [Level::L1, Level::L2, Level::L3].into_iter();
    let required = levels.filter(move |level| *level <= tier.level());
    required.flat_map(|level| all().filter(move |check| check.level == level))
}

/// The check that tries each component which a posture can claim.
const TRIED_BY: [(&str, &str); 20] = [
    ("files.read", "claims.files-read"),
    ("files.write", "claims.files-write"),
    ("files.masks", "files.masks"),
    ("network", "network.deny-all"),
    ("network.names", "claims.network-names"),
    ("processes.namespace", "claims.processes-namespace"),
    ("processes.kill", "stop.exit-kills-tree"),
    ("syscalls", "claims.syscalls"),
    ("privileges", "claims.privileges"),
    ("ipc", "claims.ipc"),
    ("environment", "claims.environment"),
    ("limits.wall", "stop.deadline"),
    ("limits.cpu", "limits.cpu"),
    ("limits.memory", "limits.memory"),
    ("limits.processes", "limits.processes"),
    ("limits.open-files", "limits.open-files"),
    ("limits.file-size", "limits.file-size"),
    ("limits.disk", "limits.disk"),
    ("limits.inodes", "limits.inodes"),
    ("limits.output", "limits.output"),
];

/// Returns the check that tries a component, so that nothing can be claimed which nobody tries.
pub fn tried_by(component: &str) -> Option<&'static Check> {
    let row = TRIED_BY.iter().find(|(name, _)| *name == component);
    row.and_then(|(_, id)| find(id))
}

/// Returns the check of this id.
#[must_use]
pub fn find(id: &str) -> Option<&'static Check> {
    all().find(|check| check.id == id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_component_has_a_check_that_tries_it() {
        for name in crate::preflight::vocabulary() {
            assert!(tried_by(&name).is_some(), "nobody tries {name}");
        }
        assert_eq!(crate::preflight::vocabulary().count(), TRIED_BY.len());
    }

    #[test]
    fn ids_are_unique_and_every_level_has_checks() {
        let ids: BTreeSet<_> = all().map(|check| check.id).collect();
        assert_eq!(ids.len(), all().count());
        for level in [Level::L1, Level::L2, Level::L3] {
            assert!(all().any(|check| check.level == level));
        }
        assert!(ids.iter().all(|id| find(id).is_some_and(|check| check.id == *id)));
    }
}
