//! Terms: what a run that may happen gets, for the contract to say.

use std::collections::{BTreeMap, BTreeSet};

use warrant_protocol::policy::PolicyBody;
use warrant_protocol::{Evidence, Isolation, LimitKind, Limits};

use crate::controls::{Controls, GateControls};
use crate::facts::Facts;

/// What a run gets. Requests choose within policy; what they leave open, policy fills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Limits for the whole process tree.
    pub limits: Limits,
    /// Globs of files that are masked: the request's and policy's together.
    pub masks: BTreeSet<String>,
    /// Components that must hold, each with the weakest evidence that counts.
    pub posture: BTreeMap<String, Evidence>,
    /// The weakest evidence that counts, also for components that a tier demands by itself.
    pub evidence: BTreeMap<String, Evidence>,
    /// What happens at the gate; absent means everything suspicious is held.
    pub gate: Option<GateControls>,
}

impl Terms {
    /// Returns the terms of a request under a policy.
    pub(crate) fn of(body: &PolicyBody, controls: &Controls, facts: &Facts) -> Self {
        let masks = facts.files.masks.iter().flatten();
        let policy_masks = controls.files.iter().flat_map(|files| &files.masks);
        let posture = posture(controls, facts);
        let mut evidence = posture.clone();
        for (component, accepted) in accepted_of_provider(controls, facts) {
            let weakest = evidence.entry(component.clone()).or_insert(accepted);
            *weakest = accepted.min(*weakest);
        }
        evidence.extend(facts.accepted_evidence.clone());
        Self {
            limits: limits(body, controls, facts),
            masks: masks.chain(policy_masks).cloned().collect(),
            posture,
            evidence,
            gate: controls.gate.clone(),
        }
    }
}

fn posture(controls: &Controls, facts: &Facts) -> BTreeMap<String, Evidence> {
    let tiers = controls.isolation.as_ref().map(|isolation| &isolation.tiers);
    let mut posture =
        tiers.and_then(|tiers| tiers.get(&facts.isolation)).cloned().unwrap_or_default();
    for (component, accepted) in accepted_of_provider(controls, facts) {
        if let Some(evidence) = posture.get_mut(component) {
            *evidence = accepted.min(*evidence);
        }
    }
    for component in &facts.required_posture {
        posture.entry(component.clone()).or_insert(Evidence::Measured);
    }
    // The document refuses whatever is weaker than policy's own minimum.
    for (component, accepted) in &facts.accepted_evidence {
        if let Some(evidence) = posture.get_mut(component) {
            *evidence = *accepted;
        }
    }
    posture
}

/// Returns what people accepted of the provider that a request names, but for components that the
/// request demands by itself.
fn accepted_of_provider<'a>(
    controls: &'a Controls,
    facts: &'a Facts,
) -> impl Iterator<Item = (&'a String, Evidence)> {
    let accepted = controls.provider(facts.isolation).map(|provider| &provider.accepted);
    let accepted = accepted.into_iter().flatten();
    let is_open = |(component, _): &(&String, _)| !facts.required_posture.contains(*component);
    accepted.filter(is_open).map(|(component, accepted)| (component, accepted.evidence))
}

fn limits(body: &PolicyBody, controls: &Controls, facts: &Facts) -> Limits {
    let value = |kind: LimitKind| {
        if is_left_out(facts.isolation, kind) && facts.limits.of(kind).is_none() {
            return None;
        }
        let asked = match kind {
            LimitKind::Wall => smaller(facts.limits.wall_ms, facts.timeout_ms),
            LimitKind::Output => smaller(facts.limits.output_bytes, facts.log_max_bytes),
            _ => facts.limits.of(kind),
        };
        let controls = controls.limits.as_ref();
        let default = controls.and_then(|limits| limits.default.of(kind));
        let ceiling = controls.and_then(|limits| limits.ceiling.of(kind));
        let value = smaller(asked.or(default), ceiling);
        match kind {
            LimitKind::Wall => smaller(value, Some(duration_ms(body, facts))),
            _ => value,
        }
    };
    Limits {
        wall_ms: value(LimitKind::Wall),
        cpu_ms: value(LimitKind::Cpu),
        memory_bytes: value(LimitKind::Memory),
        processes: value(LimitKind::Processes),
        open_files: value(LimitKind::OpenFiles),
        file_bytes: value(LimitKind::FileSize),
        disk_bytes: value(LimitKind::Disk),
        inodes: value(LimitKind::Inodes),
        output_bytes: value(LimitKind::Output),
    }
}

/// Whether a tier has no way of holding a limit, so that demanding it unasked would refuse every
/// run: what lies in memory only is bounded by memory, and no provider takes limits on processes,
/// descriptors or files. A limit that the request itself names is demanded all the same.
const fn is_left_out(isolation: Isolation, kind: LimitKind) -> bool {
    use LimitKind::{Cpu, Disk, FileSize, Inodes, OpenFiles, Processes};
    match isolation {
        Isolation::Mock => matches!(kind, FileSize | Disk | Inodes),
        Isolation::Opensandbox | Isolation::E2b | Isolation::Daytona | Isolation::VercelSandbox => {
            matches!(kind, Cpu | Processes | OpenFiles | FileSize | Disk | Inodes)
        }
        Isolation::Process | Isolation::Hermetic | Isolation::Namespace => false,
    }
}

/// Returns the smaller of two limits; an absent one limits nothing.
fn smaller(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, and budgets are positive"
)]
fn duration_ms(body: &PolicyBody, facts: &Facts) -> u64 {
    let ceiling = body.budget.max_duration_min;
    let minutes = facts.max_duration_min.map_or(ceiling, |asked| asked.min(ceiling));
    (minutes * 60_000.0) as u64
}
