//! What a client asks for: the run request and the small objects it is made of.
//!
//! Requests are read by [`RunRequest::from_value`], which tells every issue at once and strips
//! unknown members, so that what the plane judges is exactly what it will sign.

mod check;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use self::check::{check_actor, check_request};
use crate::authority::split_port;
use crate::canonical::hash_canonical;
use crate::execution::ExecutionSpec;
use crate::json::{self, InvalidJson};
use crate::manifest::WorkspaceManifest;
use crate::{
    CheckpointId, Digest, EgressHost, Evidence, Host, InvalidName, Isolation, Limits, PoolName,
    SecretName,
};

/// What sort of actor it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActorKind {
    /// A person.
    Human,
    /// A program with an account of its own.
    Service,
}

/// Someone who asks, approves or cancels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ActorRef {
    /// What sort of actor.
    pub kind: ActorKind,
    /// Their name: an address, a login.
    pub id: String,
}

impl ActorRef {
    /// Returns the actor as people read it: `human:alice`.
    #[must_use]
    pub fn label(&self) -> String {
        let kind = match self.kind {
            ActorKind::Human => "human",
            ActorKind::Service => "service",
        };
        format!("{kind}:{}", self.id)
    }
}

/// The program that does the work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSpec {
    /// Which one: `claude-code`, `codex`, `pi`, `mock`, `command`, or a name the policy knows.
    pub kind: String,
    /// Its version, when the requester cares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// What the run may reach, as the wire says it. There is no default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicy {
    /// Whether everything not listed is refused.
    pub default_deny: bool,
    /// What is listed.
    pub allow_hosts: Vec<Host>,
}

/// What the run may cost. A member that is absent means the policy's ceiling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetSpec {
    /// Money.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_spend_usd: Option<f64>,
    /// Time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_duration_min: Option<f64>,
}

/// A secret the contract releases: its name and what for, never its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretClaim {
    /// The secret's name.
    pub name: SecretName,
    /// What it is released for.
    pub scope: String,
}

/// How much about the run may be told outside. Recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disclosure {
    /// Nothing.
    None,
    /// That it happened.
    MetadataOnly,
    /// Its output without secrets.
    Redacted,
    /// What is needed to go on.
    MinimalContext,
    /// Everything.
    Full,
}

/// How much of earlier work a continuation brings along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContinuationTier {
    /// What was meant: transcript and notes.
    Semantic,
    /// The files too.
    Workspace,
}

/// Where a run goes on from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContinuationRef {
    /// The digest of the handoff envelope.
    pub envelope_hash: Digest,
    /// The checkpoint inside it.
    pub checkpoint_id: CheckpointId,
    /// How much it brings.
    pub tier: ContinuationTier,
}

/// How the workspace may be used by the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkspaceMode {
    /// Writes fail.
    ReadOnly,
    /// Writes land in a layer of their own.
    Overlay,
    /// Writes land in the workspace.
    Direct,
}

/// Further files of the machine the run may use; paths are absolute and of the runner's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileGrants {
    /// Roots that can be read.
    pub read: Vec<String>,
    /// Roots that can be written.
    pub write: Vec<String>,
    /// Paths that the command names and was not given. They are granted only to a request that
    /// somebody approved, and so they are part of what is approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps: Option<Vec<PathGap>>,
}

/// One path that a command needs and was not given. Ours.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathGap {
    /// The path: absolute, and the real one.
    pub path: String,
    /// What the command would do to it.
    pub access: PathAccess,
}

/// What may be done to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathAccess {
    /// Reading.
    Read,
    /// Writing, and reading what is there.
    Write,
}

impl PathAccess {
    /// Returns the name used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// One destination the run may reach, with its port. Ours; the reference knows only hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressRule {
    /// The host, or `*.host` for everything below it, or an IPv6 address.
    pub host: EgressHost,
    /// The port; absent means 80 and 443.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

impl FromStr for EgressRule {
    type Err = InvalidName;

    /// Reads `host` or `*.host`, either with `:port`; an IPv6 address with a port has brackets.
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let (host, port) = split_port(text.trim());
        let port = match port {
            None => None,
            Some(port) => match port.parse::<u16>() {
                Ok(port) if port > 0 => Some(port),
                _ => return Err(InvalidName::Host(text.to_owned())),
            },
        };
        Ok(Self { host: host.parse()?, port })
    }
}

impl fmt::Display for EgressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => write!(f, "{}", self.host),
            Some(port) if self.host.as_str().contains(':') => write!(f, "[{}]:{port}", self.host),
            Some(port) => write!(f, "{}:{port}", self.host),
        }
    }
}

impl EgressRule {
    /// Parts rules into hosts on the web's ports, which the reference knows, and all others.
    #[must_use]
    pub fn part(rules: Vec<Self>) -> (Vec<Host>, Option<Vec<Self>>) {
        let (mut hosts, mut ours) = (Vec::new(), Vec::new());
        for rule in rules {
            match rule.host.as_str().parse() {
                Ok(host) if rule.port.is_none() => hosts.push(host),
                _ => ours.push(rule),
            }
        }
        (hosts, (!ours.is_empty()).then_some(ours))
    }
}

/// A client's wish for a run, with every member checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunRequest {
    /// Who asks. The plane overwrites it with who was authenticated.
    pub requested_by: ActorRef,
    /// Which agent.
    pub agent_kind: String,
    /// Which version of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// The task.
    pub prompt: String,
    /// Where to run.
    pub pool: PoolName,
    /// Which secrets are wanted.
    pub secret_names: Vec<SecretName>,
    /// The workspace that travels.
    pub workspace: WorkspaceManifest,
    /// What it wants to reach.
    pub network: NetworkPolicy,
    /// What it may cost.
    pub budget: BudgetSpec,
    /// What may be told.
    pub disclosure: Disclosure,
    /// What to start; absent means by agent kind and prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionSpec>,
    /// Which tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Where it goes on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuation: Option<ContinuationRef>,
    /// Limits for the whole process tree. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Posture components that must hold. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_posture: Option<Vec<String>>,
    /// How the workspace may be used. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<WorkspaceMode>,
    /// Further files. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<FileGrants>,
    /// Destinations with ports. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<Vec<EgressRule>>,
    /// Globs of files that exist inside but cannot be read. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masks: Option<Vec<String>>,
    /// The image or template, for tiers that have one. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Weaker evidence than policy's usual that the requester is content with, by component. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accept_evidence: Option<BTreeMap<String, Evidence>>,
    /// Classes of the data that the run works on, as the requester knows them. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_classes: Option<Vec<String>>,
}

impl RunRequest {
    /// Returns the request as the JSON that is judged, approved and hashed.
    ///
    /// # Errors
    /// [`InvalidJson`] when a number is not finite.
    pub fn to_value(&self) -> Result<Value, InvalidJson> {
        json::to_value(self)
    }

    /// Returns the digest that approvals and the contract name.
    ///
    /// # Errors
    /// [`InvalidJson`] when a number is not finite.
    pub fn hash(&self) -> Result<Digest, InvalidJson> {
        Ok(hash_canonical(&self.to_value()?))
    }

    /// Returns what to start: as asked, or by agent kind and prompt.
    #[must_use]
    pub fn execution_or_default(&self) -> ExecutionSpec {
        self.execution.clone().unwrap_or_else(|| {
            ExecutionSpec::by_agent(&self.agent_kind, self.agent_version.as_deref(), &self.prompt)
        })
    }
}
