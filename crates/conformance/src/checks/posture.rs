//! What a backend says it holds: told completely, denied when degraded, and enough to rely on.

use warrant_protocol::{Component, Enforcement, Evidence, Posture};

use super::Check;
use crate::evidence::{self, Facts};
use crate::lab::{Broken, Finding, Lab, Passed, ensure};
use crate::preflight::{Demands, STRICT, describe, preflight, vocabulary};
use crate::tier::Level;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "preflight.report",
        level: Level::L1,
        name: "the probe tells of every component, with evidence and its source",
        run: report,
    },
    Check {
        id: "preflight.denies-degraded",
        level: Level::L2,
        name: "strict preflight and the verifier deny each single degraded component",
        run: denies_degraded,
    },
    Check {
        id: "preflight.strict-holds",
        level: Level::L2,
        name: "the boundary holds what anyone must be able to rely on",
        run: strict_holds,
    },
    Check {
        id: "preflight.run-agrees",
        level: Level::L2,
        name: "what is told to have held during a run is what the probe tells",
        run: run_agrees,
    },
];

fn report(lab: &Lab<'_>) -> Finding {
    let posture = lab.open()?.probe();
    ensure(!posture.provider_version.is_empty(), || "it tells no version".to_owned())?;
    let missing: Vec<_> =
        vocabulary().filter(|name| !posture.components.contains_key(name)).collect();
    ensure(missing.is_empty(), || format!("it tells nothing about {}", missing.join(", ")))?;
    for (name, fact) in posture.components.iter() {
        let is_sourced = !fact.source.is_empty();
        let is_known = fact.evidence != Evidence::Unavailable;
        ensure(is_sourced && (is_known || fact.enforcement == Enforcement::Unknown), || {
            format!("{name} is told without evidence or source: {fact:?}")
        })?;
    }
    Ok(Passed::Held)
}

/// Every way in which one component can be less than it was.
fn degradations(fact: &Component) -> [Option<Component>; 5] {
    let with = |enforcement, evidence| Some(Component { enforcement, evidence, ..fact.clone() });
    [
        None,
        with(Enforcement::Absent, fact.evidence),
        with(Enforcement::Unknown, fact.evidence),
        with(Enforcement::Enforced, Evidence::Requested),
        with(Enforcement::Enforced, Evidence::Unavailable),
    ]
}

fn denies_degraded(lab: &Lab<'_>) -> Finding {
    let ran = lab.run(":")?;
    let posture = lab.open()?.probe();
    let demands = demands_of(&posture);
    ensure(!demands.components.is_empty(), || "it holds nothing that could degrade".to_owned())?;
    let denied = preflight(&demands, &posture);
    ensure(denied.is_empty(), || format!("denied as it is: {}", describe(&denied)))?;
    for name in &demands.components {
        let Some(fact) = posture.components.get(name) else { continue };
        for degraded in degradations(fact) {
            let mut weaker = posture.clone();
            match degraded {
                None => drop(weaker.components.remove(name)),
                Some(fact) => drop(weaker.components.insert(name.clone(), fact)),
            }
            let denied: Vec<_> =
                preflight(&demands, &weaker).into_iter().map(|one| one.component).collect();
            ensure(denied == [name.clone()], || {
                format!("with {name} degraded, what is denied is {denied:?}")
            })?;
            if !weaker.enforces(name) {
                verifier_denies(lab, &Facts::of(&ran)?, (name, weaker))?;
            }
        }
    }
    let mut other = posture.clone();
    other.provider_version.push_str("-other");
    let denied = preflight(&demands, &other);
    ensure(denied.len() == 1, || "another version of the provider is not denied".to_owned())?;
    Ok(Passed::HeldAs(format!("{} components, one at a time", demands.components.len())))
}

/// A receipt of a run below what its contract demands must not verify.
fn verifier_denies(
    lab: &Lab<'_>,
    facts: &Facts,
    (name, weaker): (&str, Posture),
) -> Result<(), Broken> {
    let facts = Facts { required: vec![name.to_owned()], posture: weaker, ..facts.clone() };
    let subject = lab.subject;
    let sealed = evidence::Evidence::seal(&facts, &subject.keys, (subject.clock)())?;
    ensure(sealed.verify(&subject.keys).is_err(), || {
        format!("a receipt verifies though {name}, which its contract demands, did not hold")
    })
}

/// Returns demands for everything a posture holds with good evidence.
fn demands_of(posture: &Posture) -> Demands {
    let held = posture.components.iter().filter(|(_, fact)| {
        fact.enforcement == Enforcement::Enforced && fact.evidence >= Evidence::Reported
    });
    Demands {
        components: held.map(|(name, _)| name.clone()).collect(),
        evidence: Evidence::Reported,
        versions: vec![posture.provider_version.clone()],
    }
}

fn strict_holds(lab: &Lab<'_>) -> Finding {
    let posture = lab.open()?.probe();
    let demands = Demands {
        components: STRICT.map(str::to_owned).to_vec(),
        evidence: Evidence::Reported,
        versions: vec![posture.provider_version.clone()],
    };
    let denied = preflight(&demands, &posture);
    ensure(denied.is_empty(), || format!("it does not hold {}", describe(&denied)))?;
    Ok(Passed::Held)
}

fn run_agrees(lab: &Lab<'_>) -> Finding {
    let backend = lab.open()?;
    let invocation = lab.script(":");
    let probed = backend.narrowed(backend.probe(), invocation.files.write_target());
    let ran = lab.run_invocation(invocation)?;
    for name in vocabulary() {
        let (before, during) = (probed.enforces(&name), ran.report.posture.enforces(&name));
        ensure(before == during, || {
            format!("{name}: the probe says enforced is {before}, the report {during}")
        })?;
    }
    Ok(Passed::Held)
}
