//! The guard: the backend is tried, and what it holds is compared with what the contract demands.
//!
//! Less is denied; there is no weaker fallback. A request can only add demands: each tier has a
//! baseline that always counts, and every limit of the contract must hold.

use std::collections::{BTreeMap, BTreeSet};

use warrant_protocol::event::FailureClass;
use warrant_protocol::{
    ContractBody, Enforcement, Event, Evidence, Isolation, LimitKind, Limits, Outcome, Posture,
};
use warrant_sandbox::Backend;

use crate::halt::Halt;
use crate::journal::Journal;
use crate::provider_remedy;

/// The versions of one provider that are known to be good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionPins {
    /// The tier they speak of.
    pub isolation: Isolation,
    /// The versions, as the posture spells them.
    pub versions: Vec<String>,
}

/// How old the trial may be that a posture is known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trial {
    /// As old as the backend thinks right: the run's own boundary is built from the same hard
    /// steps, and nothing is handed over before.
    Recent,
    /// Of this very moment: secrets are released after it and before the run's own boundary.
    Fresh,
}

impl Trial {
    /// Returns what a contract calls for.
    pub(crate) const fn of(contract: &ContractBody) -> Self {
        if contract.secrets.is_empty() { Self::Recent } else { Self::Fresh }
    }

    /// Returns what a backend holds by such a trial.
    pub(crate) fn posture(self, backend: &dyn Backend) -> Posture {
        match self {
            Self::Recent => backend.probe(),
            Self::Fresh => backend.probe_afresh(),
        }
    }
}

/// Our own request is no evidence.
const WEAKEST_EVIDENCE: Evidence = Evidence::Reported;

/// Returns the backend of the contract's tier: exactly one, or nothing runs.
pub(crate) fn choose_backend<'a>(
    backends: &[&'a dyn Backend],
    isolation: Isolation,
) -> Result<&'a dyn Backend, Halt> {
    let mut fitting = backends.iter().filter(|backend| backend.isolation() == isolation);
    match (fitting.next(), fitting.next()) {
        (Some(backend), None) => Ok(*backend),
        _ => Err(Halt::new(
            Outcome::PostureRefused,
            FailureClass::CapabilityMismatch,
            format!("SANDBOX_PROVIDER_UNAVAILABLE: this runner has no {isolation} backend"),
        )),
    }
}

/// Records what a backend holds, and refuses if that is not enough.
pub(crate) fn check_posture(
    journal: &mut Journal<'_>,
    posture: Posture,
    demands: &Demands,
    pins: &[VersionPins],
) -> Result<Posture, Halt> {
    let checked = Event::PreflightChecked {
        limits_enforced: demands.limits_held(&posture),
        limits_observed: demands.limits_sampled(&posture),
        evidence_accepted: demands.evidence(&posture),
        posture: posture.clone(),
    };
    journal.record(&checked)?;
    let mut lacking = demands.lacking(&posture);
    let pinned = pins.iter().find(|pins| pins.isolation == posture.isolation);
    if pinned.is_some_and(|pins| !pins.versions.contains(&posture.provider_version)) {
        lacking.push("provider.version".to_owned());
    }
    if posture.isolation != demands.isolation {
        lacking.push("isolation".to_owned());
    }
    if lacking.is_empty() {
        return Ok(posture);
    }
    let message = refusal_message(&posture, &lacking);
    journal.record(&Event::PostureRefused { lacking })?;
    Err(Halt::new(Outcome::PostureRefused, FailureClass::AttestationFailed, message))
}

/// Returns what is lacking, and what would help where a limit is only sampled.
fn refusal_message(posture: &Posture, lacking: &[String]) -> String {
    let mut message = format!("the {} boundary lacks {}", posture.isolation, lacking.join(", "));
    message.push_str(&provider_remedy::explained(posture, lacking));
    let is_of_disk = |name: &str| matches!(name, "limits.disk" | "limits.inodes");
    let sampled = lacking.iter().map(String::as_str).filter(|name| posture.observes(name));
    let (disk, other): (Vec<&str>, Vec<&str>) = sampled.partition(|name| is_of_disk(name));
    if !other.is_empty() {
        message.push_str(&format!(
            "; {} only sampled here: give this user a cgroup (`warrant doctor` names the \
             command), or demand it no more",
            other.join(", ")
        ));
    }
    if !disk.is_empty() {
        message.push_str(&format!(
            "; {} only counted from time to time where directories of this machine are written \
             directly: use an overlay (`--mode overlay`, no `--write`), or demand it no more",
            disk.join(", ")
        ));
    }
    message
}

/// Refuses a run whose own plan leaves less of a checked posture than is demanded.
pub(crate) fn check_narrowed(
    journal: &mut Journal<'_>,
    posture: Posture,
    demands: &Demands,
) -> Result<Posture, Halt> {
    let lacking = demands.lacking(&posture);
    if lacking.is_empty() {
        return Ok(posture);
    }
    let message = refusal_message(&posture, &lacking);
    journal.record(&Event::PostureRefused { lacking })?;
    Err(Halt::new(Outcome::PostureRefused, FailureClass::AttestationFailed, message))
}

/// What must hold for one contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Demands {
    isolation: Isolation,
    components: Vec<String>,
    /// Those of them that may be sampled: limits that nobody demands to be enforced.
    sampled: BTreeSet<String>,
    /// The weakest evidence that counts, where it is not the usual.
    evidence: BTreeMap<String, Evidence>,
    limits: Limits,
}

impl Demands {
    /// Returns what a contract demands, with the limits its invocation will have.
    pub(crate) fn of(contract: &ContractBody, limits: &Limits) -> Self {
        let isolation = contract.isolation_or_default();
        let mut components: Vec<String> =
            baseline(isolation).iter().map(|name| (*name).to_owned()).collect();
        let has_masks = contract.masks.as_ref().is_some_and(|masks| !masks.is_empty());
        let masks = has_masks.then(|| "files.masks".to_owned());
        let asked = contract.required_posture.iter().flatten().cloned();
        let limited = LimitKind::ALL.into_iter().filter(|kind| limits.of(*kind).is_some());
        let limited = limited.map(|kind| format!("limits.{}", kind.as_str()));
        for name in asked.chain(masks) {
            if !components.contains(&name) {
                components.push(name);
            }
        }
        let sampled: BTreeSet<String> = limited.filter(|name| !components.contains(name)).collect();
        components.extend(sampled.iter().cloned());
        let evidence = contract.required_evidence.clone().unwrap_or_default();
        Self { isolation, components, sampled, evidence, limits: limits.clone() }
    }

    /// Returns demands without limits: these components, with the weakest evidence that counts.
    pub(crate) fn plain(
        isolation: Isolation,
        components: BTreeSet<String>,
        evidence: BTreeMap<String, Evidence>,
    ) -> Self {
        Self {
            isolation,
            components: components.into_iter().collect(),
            sampled: BTreeSet::new(),
            evidence,
            limits: Limits::danger_unlimited(),
        }
    }

    /// Returns the demanded components that do not hold, or of which only our wish is known.
    pub(crate) fn lacking(&self, posture: &Posture) -> Vec<String> {
        self.lacking_up_to(posture, Evidence::Measured)
    }

    /// As [`Demands::lacking`], for a run that was stopped: it may never have reached its program,
    /// and then nobody could look at its boundary from inside.
    pub(crate) fn lacking_when_stopped(&self, posture: &Posture) -> Vec<String> {
        self.lacking_up_to(posture, Evidence::Reported)
    }

    fn lacking_up_to(&self, posture: &Posture, most: Evidence) -> Vec<String> {
        let holds = |name: &&String| {
            let weakest = self.evidence.get(*name).copied().unwrap_or(WEAKEST_EVIDENCE).min(most);
            posture.components.get(*name).is_some_and(|component| match component.enforcement {
                Enforcement::Enforced => component.evidence >= weakest,
                Enforcement::Observed => {
                    self.sampled.contains(*name) && component.evidence >= weakest
                }
                // Only who accepts this very unknown by name may go without knowing.
                Enforcement::Unknown => weakest == Evidence::Unavailable,
                Enforcement::Absent => false,
            })
        };
        self.components.iter().filter(|name| !holds(name)).cloned().collect()
    }

    fn evidence(&self, posture: &Posture) -> BTreeMap<String, Evidence> {
        let known = |name: &String| {
            let component = posture.components.get(name)?;
            Some((name.clone(), component.evidence))
        };
        self.components.iter().filter_map(known).collect()
    }

    /// Returns those of the limits that the boundary really holds.
    pub(crate) fn limits_held(&self, posture: &Posture) -> Limits {
        self.limits_where(|name| posture.enforces(name))
    }

    /// Returns those of the limits that are only looked at from time to time, if there are any.
    pub(crate) fn limits_sampled(&self, posture: &Posture) -> Option<Limits> {
        let sampled = self.limits_where(|name| posture.observes(name));
        (sampled != Limits::danger_unlimited()).then_some(sampled)
    }

    fn limits_where(&self, holds: impl Fn(&str) -> bool) -> Limits {
        let held = |kind: LimitKind| {
            let name = format!("limits.{}", kind.as_str());
            self.limits.of(kind).filter(|_| holds(&name))
        };
        Limits {
            wall_ms: held(LimitKind::Wall),
            cpu_ms: held(LimitKind::Cpu),
            memory_bytes: held(LimitKind::Memory),
            processes: held(LimitKind::Processes),
            open_files: held(LimitKind::OpenFiles),
            file_bytes: held(LimitKind::FileSize),
            disk_bytes: held(LimitKind::Disk),
            inodes: held(LimitKind::Inodes),
            output_bytes: held(LimitKind::Output),
        }
    }
}

/// What a tier must always hold; a tier that holds less is not that tier.
pub(crate) const fn baseline(isolation: Isolation) -> &'static [&'static str] {
    match isolation {
        Isolation::Namespace => &[
            "files.read",
            "files.write",
            "network",
            "processes.namespace",
            "processes.kill",
            "syscalls",
            "privileges",
            "environment",
        ],
        Isolation::Hermetic => &["files.read", "files.write", "network", "environment"],
        Isolation::Process => &["environment"],
        Isolation::Mock => &[],
        Isolation::Opensandbox | Isolation::E2b | Isolation::Daytona | Isolation::VercelSandbox => {
            &[
                "provider_version",
                "image_digest",
                "egress_policy",
                "mounts",
                "files.read",
                "files.write",
                "network",
                "environment",
            ]
        }
    }
}
