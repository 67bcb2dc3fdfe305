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
    /// What it could write besides.
    pub(crate) direct: DirectWrites,
    /// Whether everyone whom the supervisor could find is gone.
    pub(crate) is_ended: bool,
}

/// Directories of the host that a run writes directly, and who counts what goes there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DirectWrites {
    /// There are none.
    None,
    /// All of them were counted, again and again.
    Counted,
    /// Not everything in them could be counted.
    Missed(&'static str),
    /// Nobody here counts them.
    Uncounted,
}

/// What holds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldBy {
    /// The supervisor, or what the process saw of its own limits.
    Process,
    /// A control group of this run.
    Group,
    /// The size of the filesystem that the run writes.
    Scratch,
}

/// What a boundary should hold.
pub(crate) struct Claim {
    pub(crate) enforcement: Enforcement,
    pub(crate) source: &'static str,
    pub(crate) detail: Option<String>,
    /// What a run must have seen of it.
    pub(crate) needs: &'static [Fact],
    pub(crate) by: HeldBy,
}

impl Claim {
    pub(crate) const fn new(enforcement: Enforcement, source: &'static str) -> Self {
        Self { enforcement, source, detail: None, needs: &[], by: HeldBy::Process }
    }

    pub(crate) fn detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    pub(crate) fn needs(self, needs: &'static [Fact]) -> Self {
        Self { needs, ..self }
    }

    pub(crate) fn by(self, by: HeldBy) -> Self {
        Self { by, ..self }
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
        let detail = format!("looked for in vain in this run: {}", missing.join(", "));
        self.absent(detail).with(Evidence::Measured)
    }

    /// Returns what is claimed of a limit of a run.
    pub(crate) fn limit_seen_by(self, kind: LimitKind, sight: &RunSight<'_>) -> Component {
        let claim = match self.by {
            HeldBy::Scratch => self.written(sight.direct),
            HeldBy::Process | HeldBy::Group => self,
        };
        let Some(limit) = sight.limits.of(kind) else {
            return claim.reported("no such limit in this run");
        };
        let claim = match claim.by {
            HeldBy::Group => claim.within_group((kind, limit), sight),
            HeldBy::Scratch => claim.within_scratch((kind, limit), sight),
            HeldBy::Process => claim,
        };
        claim.seen_by(sight)
    }

    /// Takes into account what is written beside the scratch filesystem.
    pub(crate) fn written(self, direct: DirectWrites) -> Self {
        const DIRECT: &str = "directories written directly";
        match direct {
            DirectWrites::None => self,
            DirectWrites::Counted => Self {
                enforcement: self.enforcement.at_most_observed(),
                source: DIRECT,
                ..self.detail(
                    "what is added to them is counted again and again, every half second at the \
                     most; the whole tree is ended",
                )
            },
            DirectWrites::Missed(why) => {
                Self { source: DIRECT, ..self.absent(format!("{why}, so not all was counted")) }
            }
            DirectWrites::Uncounted => {
                Self { source: DIRECT, ..self.absent("nobody counts what is added to them") }
            }
        }
    }

    /// Looks what the run's own group is limited to.
    fn within_group(self, (kind, limit): (LimitKind, u64), sight: &RunSight<'_>) -> Self {
        /// What the kernel rounds a limit to, and our own process in the group.
        const ROUNDED: u64 = 64 << 10;
        if sight.group.kind_of(kind).is_none() {
            let is_sampled = kind == LimitKind::Memory;
            return match is_sampled {
                true => Self {
                    enforcement: self.enforcement.at_most_observed(),
                    source: "process tree",
                    ..self.detail(
                        "sampled every 40 ms; the whole tree is ended; no group in this run",
                    )
                },
                false => self.absent("no group in this run"),
            };
        }
        match sight.group.limit_of(kind) {
            Some(found) if found <= limit.saturating_add(ROUNDED) => self,
            Some(found) => {
                self.absent(format!("the group of this run holds {found}, the limit is {limit}"))
            }
            None => {
                self.absent(format!("the group of this run has no limit; {limit} was asked for"))
            }
        }
    }

    /// Looks how much the filesystem of the run's writes can hold.
    fn within_scratch(self, (kind, limit): (LimitKind, u64), sight: &RunSight<'_>) -> Self {
        /// What a filesystem rounds a limit up by.
        const ROUNDED: u64 = 1 << 20;
        let Some(scratch) = sight.scratch else {
            return self.absent("this run has no scratch filesystem");
        };
        let Ok(found) = fstatvfs(scratch) else {
            return self.absent("the scratch filesystem could not be looked at");
        };
        let holds = match kind {
            LimitKind::Disk => found.f_blocks.saturating_mul(found.f_frsize),
            _ => found.f_files,
        };
        if holds <= limit.saturating_add(ROUNDED) {
            return self;
        }
        self.absent(format!("the scratch filesystem holds {holds}, the limit is {limit}"))
    }

    fn absent(self, detail: impl Into<String>) -> Self {
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
trait AtMostObserved {
    fn at_most_observed(self) -> Self;
}

impl AtMostObserved for Enforcement {
    fn at_most_observed(self) -> Self {
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
        let direct = DirectWrites::None;
        let limits = &limits;
        let sight = RunSight { seen, limits, group: &group, scratch: None, direct, is_ended: true };
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

    /// A limit that is claimed though what should hold it is not there in this run.
    #[test]
    fn a_limit_whose_holder_is_missing_in_this_run_is_not_claimed() {
        use Enforcement::{Absent, Observed};
        let limits = Limits {
            memory_bytes: Some(1),
            processes: Some(1),
            disk_bytes: Some(1),
            inodes: Some(1),
            ..Limits::danger_unlimited()
        };
        let group = Group::default();
        let memory = tempfile::tempdir().unwrap();
        let whole_disk: OwnedFd = std::fs::File::open(memory.path()).unwrap().into();
        let claimed = |kind, by, (scratch, direct)| {
            let seen = Some(Confinement::nothing());
            let (limits, group) = (&limits, &group);
            let sight = RunSight { seen, limits, group, scratch, direct, is_ended: true };
            let claim = Claim::new(Enforcement::Enforced, "test").by(by);
            claim.limit_seen_by(kind, &sight).enforcement
        };
        let none = (None, DirectWrites::None);
        assert_eq!(claimed(LimitKind::Memory, HeldBy::Group, none), Observed);
        assert_eq!(claimed(LimitKind::Processes, HeldBy::Group, none), Absent);
        for kind in [LimitKind::Disk, LimitKind::Inodes] {
            assert_eq!(claimed(kind, HeldBy::Scratch, none), Absent, "no scratch");
            let too_large = (Some(&whole_disk), DirectWrites::None);
            assert_eq!(claimed(kind, HeldBy::Scratch, too_large), Absent, "a whole disk");
            for direct in [DirectWrites::Missed("x"), DirectWrites::Uncounted] {
                assert_eq!(claimed(kind, HeldBy::Scratch, (None, direct)), Absent, "{direct:?}");
            }
        }
    }
}
