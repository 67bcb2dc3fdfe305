//! What a remote provider does not prove, and the command by which a person accepts that.
//!
//! Nothing is accepted here: the text ends in a refusal, and whoever reads it decides.

use std::collections::{BTreeMap, BTreeSet};

use warrant_protocol::{Component, Enforcement, Evidence, Isolation, Posture};

use crate::guard::{Demands, baseline};

/// A component that a provider does not prove as policy wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnprovenComponent {
    /// Which one.
    pub name: String,
    /// What is known of it.
    pub known: String,
    /// What a person would do so that it counts; nothing where it does not hold at all.
    pub remedy: Option<ProviderRemedy>,
}

/// What a person can do about a component that a provider does not prove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderRemedy {
    /// Accept weaker evidence for it.
    Accept(Evidence),
    /// Pin the version that the provider reports.
    Pin(String),
}

impl UnprovenComponent {
    /// Returns the command of the remedy.
    #[must_use]
    pub fn command(&self, isolation: Isolation) -> Option<String> {
        let name = &self.name;
        Some(match self.remedy.as_ref()? {
            ProviderRemedy::Accept(Evidence::Unavailable) => {
                format!("warrant provider accept {isolation} {name} --evidence unavailable")
            }
            ProviderRemedy::Accept(_) => format!("warrant provider accept {isolation} {name}"),
            ProviderRemedy::Pin(version) => format!("warrant provider pin {isolation} {version}"),
        })
    }
}

/// Returns what a provider's posture lacks for a plain run, when `evidence` is the weakest that
/// counts by component.
#[must_use]
pub fn unproven_for_tier(
    posture: &Posture,
    evidence: &BTreeMap<String, Evidence>,
) -> Vec<UnprovenComponent> {
    let baseline = baseline(posture.isolation).iter().map(|name| (*name).to_owned());
    let components: BTreeSet<String> = baseline.chain(evidence.keys().cloned()).collect();
    let demands = Demands::plain(posture.isolation, components, evidence.clone());
    unproven(posture, &demands.lacking(posture))
}

/// Returns what is known of the components that a posture lacks.
pub(crate) fn unproven(posture: &Posture, lacking: &[String]) -> Vec<UnprovenComponent> {
    let one = |name: &String| {
        let component = posture.components.get(name);
        let known = component.map_or_else(|| "nothing is known of it".to_owned(), known);
        let remedy = component.and_then(|component| remedy(posture, name, component));
        UnprovenComponent { name: name.clone(), known, remedy }
    };
    lacking.iter().map(one).collect()
}

/// Returns the sentence with which a refusal goes on: what each component lacks, and the commands.
pub(crate) fn explained(posture: &Posture, lacking: &[String]) -> String {
    if !posture.isolation.is_remote() {
        return String::new();
    }
    let mut text = String::new();
    for one in unproven(posture, lacking) {
        text.push_str(&format!("; {}: {}", one.name, one.known));
        if let Some(command) = one.command(posture.isolation) {
            text.push_str(&format!(" (to accept that: {command})"));
        }
    }
    text
}

fn known(component: &Component) -> String {
    let evidence = match component.evidence {
        Evidence::Measured => "measured",
        Evidence::Reported => "reported by the provider",
        Evidence::Requested => "only requested",
        Evidence::Unavailable => "unknown",
    };
    match &component.detail {
        Some(detail) => format!("{detail}, {evidence}"),
        None => evidence.to_owned(),
    }
}

fn remedy(posture: &Posture, name: &str, component: &Component) -> Option<ProviderRemedy> {
    match component.enforcement {
        Enforcement::Enforced | Enforcement::Observed => {
            Some(ProviderRemedy::Accept(component.evidence))
        }
        Enforcement::Unknown => Some(ProviderRemedy::Accept(Evidence::Unavailable)),
        Enforcement::Absent if name == "provider_version" => {
            Some(ProviderRemedy::Pin(posture.provider_version.clone()))
        }
        Enforcement::Absent => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posture(components: &[(&str, Enforcement, Evidence)]) -> Posture {
        let component = |(name, enforcement, evidence): &(&str, Enforcement, Evidence)| {
            let component = Component {
                enforcement: *enforcement,
                evidence: *evidence,
                source: "a test".to_owned(),
                detail: Some("as told".to_owned()),
            };
            ((*name).to_owned(), component)
        };
        let components: BTreeMap<String, Component> = components.iter().map(component).collect();
        Posture {
            isolation: Isolation::E2b,
            provider_version: "0.7.0".to_owned(),
            components: components.into(),
        }
    }

    #[test]
    fn every_component_that_can_be_accepted_names_its_command() {
        let posture = posture(&[
            ("image_digest", Enforcement::Enforced, Evidence::Requested),
            ("syscalls", Enforcement::Unknown, Evidence::Unavailable),
            ("provider_version", Enforcement::Absent, Evidence::Reported),
            ("network", Enforcement::Absent, Evidence::Measured),
        ]);
        let lacking: Vec<String> = posture.components.keys().cloned().collect();
        let commands: BTreeMap<String, Option<String>> = unproven(&posture, &lacking)
            .into_iter()
            .map(|one| (one.name.clone(), one.command(Isolation::E2b)))
            .collect();
        let command = |name: &str| commands[name].clone();
        assert_eq!(command("image_digest").unwrap(), "warrant provider accept e2b image_digest");
        assert_eq!(
            command("syscalls").unwrap(),
            "warrant provider accept e2b syscalls --evidence unavailable"
        );
        assert_eq!(command("provider_version").unwrap(), "warrant provider pin e2b 0.7.0");
        assert_eq!(command("network"), None, "what does not hold cannot be accepted");
        assert!(explained(&posture, &lacking).contains("warrant provider pin e2b 0.7.0"));
    }
}
