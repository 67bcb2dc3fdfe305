//! From what a boundary should hold, and what this very run saw of it, to what is claimed.
//!
//! A claim names the facts that must have been seen. One that was looked for in vain makes the
//! component absent, whatever was claimed; one that nobody could look for is only reported.

use std::os::fd::OwnedFd;

use rustix::fs::fstatvfs;
use warrant_jail::{Confinement, Fact};
use warrant_protocol::{Component, Enforcement, Evidence, LimitKind, Limits};

use crate::cgroup::Group;

/// What one run saw of its own boundary.
pub(crate) struct RunSight<'a> {
    /// What pid 1 and the program's process saw, if the program was reached.
    pub(crate) seen: Option<Confinement>,
    /// The limits it ran under.
    pub(crate) limits: &'a Limits,
    /// The groups that held it.
    pub(crate) group: &'a Group,
    /// The filesystem that holds its writes.
    pub(crate) scratch: Option<&'a OwnedFd>,
}

/// What a boundary should hold.
pub(crate) struct Claim {
    pub(crate) enforcement: Enforcement,
    pub(crate) source: &'static str,
    pub(crate) detail: Option<String>,
    /// What a run must have seen of it.
    pub(crate) needs: &'static [Fact],
}

impl Claim {
    pub(crate) const fn new(enforcement: Enforcement, source: &'static str) -> Self {
        Self { enforcement, source, detail: None, needs: &[] }
    }

    pub(crate) fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    pub(crate) fn needs(self, needs: &'static [Fact]) -> Self {
        Self { needs, ..self }
    }

    /// Returns what is claimed of a run.
    pub(crate) fn seen_by(self, sight: &RunSight<'_>) -> Component {
        let missing: Vec<String> = match sight.seen {
            None => return self.reported("the program was not reached"),
            Some(seen) => {
                let missing = self.needs.iter().filter(|fact| !seen.saw(**fact));
                missing.map(|fact| format!("{fact:?}")).collect()
            }
        };
        if missing.is_empty() || self.enforcement == Enforcement::Absent {
            return self.with(Evidence::Measured);
        }
        let detail = Some(format!("looked for in vain in this run: {}", missing.join(", ")));
        Self { enforcement: Enforcement::Absent, detail, ..self }.with(Evidence::Measured)
    }

    /// Returns what is claimed of a limit of a run.
    pub(crate) fn limit_seen_by(self, kind: LimitKind, sight: &RunSight<'_>) -> Component {
        let Some(limit) = sight.limits.of(kind) else {
            return self.reported("no such limit in this run");
        };
        let claim = match kind {
            LimitKind::Memory if sight.group.kind_of(kind).is_none() => Self {
                enforcement: self.enforcement.min_sampled(),
                source: "process tree",
                ..self.detail("sampled every 40 ms; the whole tree is ended; no group in this run")
            },
            LimitKind::Disk | LimitKind::Inodes => self.within_scratch((kind, limit), sight),
            _ => self,
        };
        claim.seen_by(sight)
    }

    /// Looks how much the filesystem of the run's writes can hold.
    fn within_scratch(self, (kind, limit): (LimitKind, u64), sight: &RunSight<'_>) -> Self {
        /// What a filesystem rounds a limit up by.
        const ROUNDED: u64 = 1 << 20;
        let Some(found) = sight.scratch.and_then(|scratch| fstatvfs(scratch).ok()) else {
            return self;
        };
        let holds = match kind {
            LimitKind::Disk => found.f_blocks.saturating_mul(found.f_frsize),
            _ => found.f_files,
        };
        if holds <= limit.saturating_add(ROUNDED) {
            return self;
        }
        let detail = format!("the scratch filesystem holds {holds}, the limit is {limit}");
        Self { enforcement: Enforcement::Absent, ..self.detail(detail) }
    }

    /// Returns what is claimed where nobody looked in this run.
    pub(crate) fn reported(self, why: &str) -> Component {
        self.adding(why).with(Evidence::Reported)
    }

    /// Returns the same claim with more to say about it.
    pub(crate) fn adding(self, more: &str) -> Self {
        let detail = match &self.detail {
            Some(detail) => format!("{detail}; {more}"),
            None => more.to_owned(),
        };
        self.detail(detail)
    }

    /// Returns what is claimed, known in this way.
    pub(crate) fn with(self, evidence: Evidence) -> Component {
        let Self { enforcement, source, detail, .. } = self;
        Component { enforcement, evidence, source: source.to_owned(), detail }
    }
}

/// Less than before, where the kernel does not hold something in this run.
trait MinSampled {
    fn min_sampled(self) -> Self;
}

impl MinSampled for Enforcement {
    fn min_sampled(self) -> Self {
        match self {
            Self::Enforced => Self::Observed,
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: [Fact; 2] = [Fact::Seccomp, Fact::NetworkNamespace];

    fn check(seen: Option<Confinement>, expected: (Enforcement, Evidence)) {
        let limits = Limits::danger_unlimited();
        let group = Group::default();
        let sight = RunSight { seen, limits: &limits, group: &group, scratch: None };
        let claim = Claim::new(Enforcement::Enforced, "test").needs(&FACTS);
        let component = claim.seen_by(&sight);
        assert_eq!((component.enforcement, component.evidence), expected, "{component:?}");
    }

    #[test]
    fn a_claim_that_was_looked_for_in_vain_is_absent() {
        let all = FACTS.iter().fold(Confinement::nothing(), |seen, fact| seen.with(*fact));
        check(Some(all), (Enforcement::Enforced, Evidence::Measured));
        for fact in FACTS {
            check(Some(all.without(fact)), (Enforcement::Absent, Evidence::Measured));
        }
        check(None, (Enforcement::Enforced, Evidence::Reported));
    }
}
