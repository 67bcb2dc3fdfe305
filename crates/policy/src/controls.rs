//! The `controls` of a policy document: what the reference's document does not know.
//!
//! Read as strictly as the rest: an unknown key, a relative root or an impossible level is
//! refused, because a rule that is not understood permits. Every member is optional; what an
//! absent member means is said beside it, and it is never more than the reference allows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;
use warrant_protocol::request::{Disclosure, EgressRule, WorkspaceMode};
use warrant_protocol::wire::DisconnectRule;
use warrant_protocol::{Evidence, Isolation, LimitKind, Limits, Timestamp, VersionRange};

use crate::paths;

/// The highest level an approval can have.
pub const MAX_LEVEL: u8 = 3;

/// What policy says beyond the reference's document.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Controls {
    /// Tiers and what they must hold. Absent: any tier, nothing demanded.
    pub isolation: Option<IsolationControls>,
    /// Limits. Absent: none but the budget's.
    pub limits: Option<LimitControls>,
    /// Files of the machine. Absent: no further files, no direct writes to the workspace.
    pub files: Option<FileControls>,
    /// Destinations with ports. Absent: no port but 80 and 443.
    pub network: Option<NetworkControls>,
    /// The environment. Absent: nothing is inherited from the runner.
    pub environment: Option<EnvironmentControls>,
    /// Images. Absent: a request cannot choose one.
    pub images: Option<ImageControls>,
    /// The weakest evidence a request may accept, by component. Absent: none weaker.
    pub evidence: Option<BTreeMap<String, Evidence>>,
    /// What people accepted of remote providers, by provider. Absent: nothing.
    pub providers: Option<BTreeMap<Isolation, ProviderControls>>,
    /// What may be told outside. Absent: as requested, recorded only.
    pub disclosure: Option<DisclosureControls>,
    /// What happens to names that are executed later by themselves. Absent: all are held.
    pub gate: Option<GateControls>,
    /// Who approves what. Absent: nobody but the document's own consent rules.
    pub approvals: Option<Vec<ApprovalRule>>,
    /// What a runner does with a started run while its plane does not answer: `"stop"`, or
    /// `{"max": "10m"}`. Absent: it goes on for ten minutes.
    pub disconnect: Option<DisconnectControls>,
}

/// What a runner does with a started run while its plane does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct DisconnectControls(pub DisconnectRule);

/// The longest time for disconnection: a day.
const LONGEST_DISCONNECT_S: u64 = 86_400;

impl TryFrom<Value> for DisconnectControls {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let wrong = || {
            format!(
                "disconnect is {value}; write \"stop\", or {{\"max\": \"10m\"}} with seconds (s), \
                 minutes (m) or hours (h), at most 24h"
            )
        };
        let rule = match &value {
            Value::String(word) if word == "stop" => DisconnectRule::Stop,
            Value::Object(members) if members.len() == 1 => {
                let max = members.get("max").and_then(Value::as_str).ok_or_else(wrong)?;
                DisconnectRule::ContinueFor(duration(max).ok_or_else(wrong)?)
            }
            _ => return Err(wrong()),
        };
        Ok(Self(rule))
    }
}

/// Reads a time like `90s`, `10m` or `2h`.
fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    let is_plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let total = number.parse::<u64>().ok().filter(|_| is_plain)?.checked_mul(seconds)?;
    (1..=LONGEST_DISCONNECT_S).contains(&total).then(|| Duration::from_secs(total))
}

/// What people accepted of one remote provider, each with who and when.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProviderControls {
    /// Components that it cannot prove, with the weakest evidence that counts for them.
    #[serde(default)]
    pub accepted: BTreeMap<String, AcceptedComponent>,
    /// The versions that count. None: those that ship with the program.
    #[serde(default)]
    pub versions: Vec<PinnedVersion>,
}

/// A component of a provider that a person accepts with weaker evidence.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AcceptedComponent {
    /// The weakest evidence that counts.
    pub evidence: Evidence,
    /// Who accepted it.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// Versions of a provider that a person confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PinnedVersion {
    /// Which ones.
    pub version: VersionRange,
    /// Who confirmed them.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// Tiers and what they must hold.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IsolationControls {
    /// The tiers a run may use; for each the components that must hold, with the weakest
    /// evidence that counts.
    pub tiers: BTreeMap<Isolation, BTreeMap<String, Evidence>>,
}

/// Limits.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LimitControls {
    /// What a run gets when it does not say.
    pub default: Limits,
    /// What a run gets at most.
    pub ceiling: Limits,
}

/// Files of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileControls {
    /// Directories below which a run may ask to read.
    pub read_roots: Vec<String>,
    /// Directories below which a run may ask to write.
    pub write_roots: Vec<String>,
    /// How the workspace may be used.
    pub modes: Vec<WorkspaceMode>,
    /// Globs of files that are always masked.
    pub masks: Vec<String>,
    /// Who is asked about a path that a command names and was not given. Absent: nobody, and the
    /// command is denied.
    pub gaps: Option<GapControls>,
}

/// Who is asked about a path that a command names and was not given.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GapControls {
    /// The level an approval must have; `approvals` says who can give it.
    pub level: u8,
    /// Directories below which people may be asked about reading.
    pub read_roots: Vec<String>,
    /// Directories below which people may be asked about writing.
    pub write_roots: Vec<String>,
}

/// Destinations with ports.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkControls {
    /// What may be reached beside the document's hosts on 80 and 443.
    pub destinations: Vec<EgressRule>,
}

/// The environment.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvironmentControls {
    /// Names that may be taken over from the runner.
    pub inherit: BTreeSet<String>,
}

/// Images.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageControls {
    /// The images, exactly as a request spells them; `*` means any of a
    /// remote provider.
    pub allow: BTreeSet<String>,
}

/// What may be told outside.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DisclosureControls {
    /// The levels a request may choose.
    pub allow: Vec<Disclosure>,
}

/// Globs of names at the gate where changes leave the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GateControls {
    /// Let through and pointed out.
    pub flag: Vec<String>,
    /// Kept back until a person says so.
    pub hold: Vec<String>,
    /// Never let through.
    pub refuse: Vec<String>,
}

/// Who approves what.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalRule {
    /// The level this rule is about.
    pub level: u8,
    /// Names of people or groups; `*` is every approver.
    pub approvers: Vec<String>,
    /// How many different people it takes.
    pub quorum: u32,
    /// How long an approval is good for.
    pub expires_min: u32,
}

/// Why `controls` are refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InvalidControls {
    /// A member is missing, unknown or of the wrong kind.
    #[error("controls: {0}")]
    Members(String),
    /// A root that is not an absolute path in its plain spelling.
    #[error("controls.files: root `{0}` must be an absolute path without `.`, `..` or `//`")]
    Root(String),
    /// Something accepted of a tier that is no provider, or by nobody.
    #[error("controls.providers.{isolation}: {message}")]
    Provider {
        /// Of which tier.
        isolation: Isolation,
        /// What is wrong with it.
        message: String,
    },
    /// A level that no approval can have.
    #[error("controls.files.gaps: levels are 1, 2 and 3, not {0}")]
    GapLevel(u8),
    /// A default that is beyond its ceiling.
    #[error("controls.limits: the default of {} is beyond its ceiling", .0.as_str())]
    Limit(LimitKind),
    /// A rule about approvals that can never be satisfied.
    #[error("controls.approvals[{index}]: {message}")]
    Approval {
        /// Which rule.
        index: usize,
        /// What is wrong with it.
        message: &'static str,
    },
}

impl Controls {
    /// Returns controls that say nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            isolation: None,
            limits: None,
            files: None,
            network: None,
            environment: None,
            images: None,
            evidence: None,
            providers: None,
            disclosure: None,
            gate: None,
            approvals: None,
            disconnect: None,
        }
    }

    /// Returns what a runner does with a started run while its plane does not answer.
    #[must_use]
    pub fn disconnect_rule(&self) -> DisconnectRule {
        self.disconnect.map_or(DisconnectRule::DEFAULT, |controls| controls.0)
    }

    /// Reads the member of a policy document.
    ///
    /// # Errors
    /// [`InvalidControls`] naming what is wrong.
    pub fn from_value(value: &Value) -> Result<Self, InvalidControls> {
        let controls = Self::deserialize(value);
        let controls = controls.map_err(|cause| InvalidControls::Members(cause.to_string()))?;
        controls.check()?;
        Ok(controls)
    }

    fn check(&self) -> Result<(), InvalidControls> {
        let gaps = self.files.as_ref().and_then(|files| files.gaps.as_ref());
        if let Some(level) = gaps.map(|gaps| gaps.level)
            && !(1..=MAX_LEVEL).contains(&level)
        {
            return Err(InvalidControls::GapLevel(level));
        }
        let roots =
            self.files.iter().flat_map(|files| files.read_roots.iter().chain(&files.write_roots));
        let gaps = gaps.iter().flat_map(|gaps| gaps.read_roots.iter().chain(&gaps.write_roots));
        for root in roots.chain(gaps) {
            if !paths::is_plain(root) {
                return Err(InvalidControls::Root(root.clone()));
            }
        }
        self.providers.iter().flatten().try_for_each(|(isolation, controls)| {
            controls.fault(*isolation).map_or(Ok(()), |message| {
                Err(InvalidControls::Provider { isolation: *isolation, message })
            })
        })?;
        if let Some(limits) = &self.limits {
            for kind in LimitKind::ALL {
                let is_beyond = match (limits.default.of(kind), limits.ceiling.of(kind)) {
                    (Some(default), Some(ceiling)) => default > ceiling,
                    (None | Some(_), None) | (None, Some(_)) => false,
                };
                if is_beyond {
                    return Err(InvalidControls::Limit(kind));
                }
            }
        }
        self.approvals.iter().flatten().enumerate().try_for_each(|(index, rule)| {
            let message = rule.fault();
            message.map_or(Ok(()), |message| Err(InvalidControls::Approval { index, message }))
        })
    }

    /// Returns the weakest evidence that counts by component in a tier, with what people accepted
    /// of a provider.
    #[must_use]
    pub fn evidence_of(&self, isolation: Isolation) -> BTreeMap<String, Evidence> {
        let tiers = self.isolation.as_ref().map(|isolation| &isolation.tiers);
        let tier = tiers.and_then(|tiers| tiers.get(&isolation));
        let mut evidence = tier.cloned().unwrap_or_default();
        let accepted = self.provider(isolation).map(|provider| &provider.accepted);
        for (component, accepted) in accepted.into_iter().flatten() {
            let weakest = evidence.entry(component.clone()).or_insert(accepted.evidence);
            *weakest = accepted.evidence.min(*weakest);
        }
        evidence
    }

    /// Returns what people accepted of a provider.
    #[must_use]
    pub fn provider(&self, isolation: Isolation) -> Option<&ProviderControls> {
        self.providers.as_ref()?.get(&isolation)
    }

    /// Returns the rule about approvals of a level.
    #[must_use]
    pub fn approval(&self, level: u8) -> Option<&ApprovalRule> {
        self.approvals.iter().flatten().find(|rule| rule.level == level)
    }
}

impl ProviderControls {
    fn fault(&self, isolation: Isolation) -> Option<String> {
        if !isolation.is_remote() {
            return Some("it is no remote provider".to_owned());
        }
        if self.accepted.keys().any(|component| component.trim().is_empty()) {
            return Some("a component without a name is accepted".to_owned());
        }
        let mut accepted = self.accepted.iter();
        if let Some((component, _)) = accepted.find(|(_, each)| each.by.trim().is_empty()) {
            return Some(format!("accepted.{component}: `by` says nobody"));
        }
        let pinned = self.versions.iter().find(|each| each.by.trim().is_empty());
        pinned.map(|each| format!("version {}: `by` says nobody", each.version))
    }
}

impl ApprovalRule {
    fn fault(&self) -> Option<&'static str> {
        let named = self.approvers.iter().filter(|name| *name != "*").count();
        let takes_everyone = named < self.approvers.len();
        match self {
            Self { level, .. } if !(1..=MAX_LEVEL).contains(level) => Some("levels are 1, 2 and 3"),
            Self { approvers, .. } if approvers.is_empty() => Some("there are no approvers"),
            Self { quorum: 0, .. } => Some("a quorum of nobody is no approval"),
            Self { expires_min: 0, .. } => Some("it expires at once"),
            Self { approvers, .. } if approvers.iter().any(|name| name.trim().is_empty()) => {
                Some("an approver without a name")
            }
            _ if takes_everyone && named > 0 => Some("`*` beside names makes the names moot"),
            _ => None,
        }
    }
}
