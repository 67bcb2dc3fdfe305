//! What a provider's sandbox holds, component by component, with how much of that we know.
//!
//! `measured`: tried from inside or kept on this side. `reported`: read back from the provider.
//! `requested`: only our own request says so. What nobody tells is unknown, which policy treats
//! as a no unless it accepts that very unknown by name.

use std::collections::BTreeMap;

use warrant_protocol::{
    Component, Enforcement, Evidence, Isolation, LimitKind, Limits, Outcome, Posture,
};

use super::adapter::{Observed, Spec, Told};
use super::inside::Look;
use crate::{Network, REMOTE_COMPONENTS, components};

/// Everything a posture is made of.
#[derive(Debug, Clone)]
pub(crate) struct Findings<'a> {
    pub(crate) isolation: Isolation,
    pub(crate) spec: &'a Spec,
    pub(crate) observed: &'a Observed,
    /// The look around inside, if there was one.
    pub(crate) look: Option<&'a Look>,
    /// Why the version does not count, if it does not.
    pub(crate) version_refusal: Option<String>,
    /// The limits of the run.
    pub(crate) limits: &'a Limits,
    /// How far it has come.
    pub(crate) stage: RemoteStage,
}

/// How far a run at a provider has come, for what this side does itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemoteStage {
    /// The sandbox was looked at; nothing was sent.
    Ready,
    /// The workspace was sent.
    Sent,
}

/// How a sandbox ended, as far as anyone saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxEnd {
    /// Its provider answered that it is deleted.
    Deleted,
    /// It could not be deleted.
    Left,
}

type Fact = (Enforcement, Evidence, String, Option<String>);

/// Returns the posture.
pub(crate) fn posture(findings: &Findings<'_>) -> Posture {
    use Enforcement::{Enforced, Unknown};
    use Evidence::{Reported, Requested, Unavailable};
    let observed = findings.observed;
    let ours = |detail: &str| -> Fact { done_here(findings, detail) };
    let untold =
        || -> Fact { (Unknown, Unavailable, "the provider does not tell".to_owned(), None) };
    let mut components = BTreeMap::new();
    let mut add = |name: &str, (enforcement, evidence, source, detail): Fact| {
        let component = Component { enforcement, evidence, source, detail };
        components.insert(name.to_owned(), component);
    };
    add("provider_version", version(findings));
    add("image_digest", image(findings));
    add("egress_policy", egress_policy(findings));
    add("network", network(findings));
    let (by_rules, evidence, source, _) = egress_policy(findings);
    add("network.names", (by_rules, evidence, source, None));
    add("mounts", mounts(findings));
    add("files.read", ours("only the staged workspace leaves this machine"));
    add("files.write", ours("changes come back as data and are checked"));
    add("files.masks", ours("masked files are sent empty"));
    add("environment", environment(findings));
    let killed = Some("the sandbox is to be deleted at the end".to_owned());
    add("processes.kill", (Enforced, Requested, DELETION.to_owned(), killed));
    for name in ["processes.namespace", "syscalls", "privileges", "ipc"] {
        add(name, untold());
    }
    if let Told::Is(class) = &observed.class {
        let fact = (Unknown, Reported, observed.source.clone(), Some(class.clone()));
        add("processes.namespace", fact);
    }
    for kind in LimitKind::ALL {
        add(&format!("limits.{}", kind.as_str()), limit(findings, kind));
    }
    let provider_version = match &observed.version {
        Told::Is(version) => version.clone(),
        Told::Nothing => "unknown".to_owned(),
    };
    Posture { isolation: findings.isolation, provider_version, components: components.into() }
}

const DELETION: &str = "DELETE of the sandbox";

/// Returns a posture with what the end of its sandbox showed.
pub(crate) fn after_end(mut posture: Posture, end: SandboxEnd, outcome: &Outcome) -> Posture {
    use Enforcement::{Absent, Enforced, Observed};
    let mut set = |name: &str, enforcement, detail: &str| {
        let component = Component {
            enforcement,
            evidence: Evidence::Reported,
            source: DELETION.to_owned(),
            detail: Some(detail.to_owned()),
        };
        posture.components.insert(name.to_owned(), component);
    };
    match end {
        SandboxEnd::Deleted => {
            set("processes.kill", Enforced, "the provider answered that the sandbox is deleted");
        }
        SandboxEnd::Left => {
            const LEFT: &str =
                "the sandbox could not be deleted; its provider ends it with its lease";
            set("processes.kill", Absent, LEFT);
            if !matches!(outcome, Outcome::Exited { .. } | Outcome::Signaled { .. }) {
                set("limits.wall", Observed, LEFT);
                set("limits.output", Observed, LEFT);
            }
        }
    }
    posture
}

/// Returns a posture whose sandbox could not be read again after the program: what was seen before
/// may have been changed meanwhile.
pub(crate) fn not_read_again(mut posture: Posture) -> Posture {
    for name in ["provider_version", "image_digest", "egress_policy", "network", "mounts"] {
        if let Some(component) = posture.components.get(name) {
            let before = component.detail.as_deref().map(|detail| format!("{detail}; "));
            let component = Component {
                evidence: component.evidence.min(Evidence::Reported),
                detail: Some(format!(
                    "{}not read again after the program",
                    before.unwrap_or_default()
                )),
                ..component.clone()
            };
            posture.components.insert(name.to_owned(), component);
        }
    }
    posture
}

/// What this side does itself with the files; before anything was sent nobody saw it done.
fn done_here(findings: &Findings<'_>, detail: &str) -> Fact {
    let source = "this machine".to_owned();
    match findings.stage {
        RemoteStage::Sent => {
            (Enforcement::Enforced, Evidence::Measured, source, Some(detail.to_owned()))
        }
        RemoteStage::Ready => {
            let detail = Some(format!("{detail}; nothing was sent yet"));
            (Enforcement::Enforced, Evidence::Reported, source, detail)
        }
    }
}

/// Whether variables that were not asked for are taken away: tried inside with one of our own.
fn environment(findings: &Findings<'_>) -> Fact {
    let inside = "variables tried inside".to_owned();
    match findings.look.and_then(|look| look.environment.as_ref()) {
        None => {
            let detail = Some("nobody could look at the variables inside".to_owned());
            (Enforcement::Unknown, Evidence::Unavailable, inside, detail)
        }
        Some(left) if left.is_empty() => {
            let detail = Some("every variable that was not asked for is taken away".to_owned());
            (Enforcement::Enforced, Evidence::Measured, inside, detail)
        }
        Some(left) => {
            let detail = Some(format!("these could not be taken away: {}", left.join(", ")));
            (Enforcement::Absent, Evidence::Measured, inside, detail)
        }
    }
}

fn version(findings: &Findings<'_>) -> Fact {
    let source = findings.observed.version_source.clone();
    match &findings.observed.version {
        Told::Nothing => (Enforcement::Unknown, Evidence::Unavailable, source, None),
        Told::Is(version) => match &findings.version_refusal {
            None => (Enforcement::Enforced, Evidence::Reported, source, Some(version.clone())),
            Some(refusal) => {
                (Enforcement::Absent, Evidence::Reported, source, Some(refusal.clone()))
            }
        },
    }
}

fn image(findings: &Findings<'_>) -> Fact {
    let Findings { observed, spec, .. } = findings;
    let asked = spec.image.as_str();
    let pinned = pinned_digest(asked);
    match (&observed.image_digest, pinned) {
        (Told::Is(found), Some(wanted)) if found != wanted => {
            let detail = format!("{found} runs, {wanted} was asked for");
            (Enforcement::Absent, Evidence::Reported, observed.source.clone(), Some(detail))
        }
        (Told::Is(found), _) => {
            let detail = Some(found.clone());
            (Enforcement::Enforced, Evidence::Reported, observed.source.clone(), detail)
        }
        (Told::Nothing, Some(wanted)) => {
            let detail = Some(wanted.to_owned());
            (Enforcement::Enforced, Evidence::Requested, "our own request".to_owned(), detail)
        }
        (Told::Nothing, None) => {
            let told = match &observed.image {
                Told::Is(image) => format!(", the provider reports `{image}`"),
                Told::Nothing => String::new(),
            };
            let detail = Some(format!("`{asked}` is a name whose digest is unknown{told}"));
            (Enforcement::Enforced, Evidence::Requested, "our own request".to_owned(), detail)
        }
    }
}

/// Returns the digest an image reference pins.
pub(crate) fn pinned_digest(image: &str) -> Option<&str> {
    let digest = image.rsplit_once('@').map_or(image, |(_, digest)| digest);
    let hex = digest.strip_prefix("sha256:")?;
    (hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(digest)
}

fn egress_policy(findings: &Findings<'_>) -> Fact {
    let source = findings.observed.source.clone();
    match &findings.observed.egress {
        Told::Nothing => (
            Enforcement::Unknown,
            Evidence::Unavailable,
            source,
            Some("the rules cannot be read back".to_owned()),
        ),
        Told::Is(egress) if !egress.matches => {
            let detail = Some("other rules are applied than were asked for".to_owned());
            (Enforcement::Absent, Evidence::Reported, source, detail)
        }
        Told::Is(egress) => match &egress.weakness {
            Some(weakness) => {
                (Enforcement::Absent, Evidence::Reported, source, Some(weakness.clone()))
            }
            None => (Enforcement::Enforced, Evidence::Reported, source, egress.mechanism.clone()),
        },
    }
}

/// A denied destination that answered is open, whatever the provider reports.
fn network(findings: &Findings<'_>) -> Fact {
    let (enforcement, evidence, source, detail) = egress_policy(findings);
    if findings.spec.network == Network::DangerEverything {
        return (enforcement, evidence, source, detail);
    }
    let inside = "a connection tried from inside".to_owned();
    match findings.look.and_then(|look| look.canary_answered) {
        Some(true) => {
            let detail = Some("a denied destination answered".to_owned());
            (Enforcement::Absent, Evidence::Measured, inside, detail)
        }
        Some(false) if enforcement == Enforcement::Enforced => {
            let detail = Some("a denied destination did not answer".to_owned());
            (Enforcement::Enforced, Evidence::Measured, inside, detail)
        }
        // One destination that does not answer says nothing about rules nobody told.
        Some(false) | None => (enforcement, evidence, source, detail),
    }
}

fn mounts(findings: &Findings<'_>) -> Fact {
    let source = findings.observed.source.clone();
    let is_writable = findings.look.is_none_or(|look| look.is_writable);
    match &findings.observed.mounts {
        _ if !is_writable => {
            let detail = Some("the workspace cannot be written".to_owned());
            (Enforcement::Absent, Evidence::Measured, "a write inside".to_owned(), detail)
        }
        Told::Is(mounts) if mounts.as_array().is_some_and(Vec::is_empty) => {
            let detail = Some("nothing but the sandbox's own disk".to_owned());
            (Enforcement::Enforced, Evidence::Reported, source, detail)
        }
        Told::Is(_) => {
            let detail = Some("volumes are mounted that nobody asked for".to_owned());
            (Enforcement::Absent, Evidence::Reported, source, detail)
        }
        Told::Nothing => {
            let detail = Some("none were asked for".to_owned());
            (Enforcement::Enforced, Evidence::Requested, "our own request".to_owned(), detail)
        }
    }
}

fn limit(findings: &Findings<'_>, kind: LimitKind) -> Fact {
    let (enforcement, evidence, source, detail) = possible_limit(findings, kind);
    if findings.limits.of(kind).is_some() || enforcement != Enforcement::Enforced {
        return (enforcement, evidence, source, detail);
    }
    let before = detail.map(|detail| format!("{detail}; ")).unwrap_or_default();
    let detail = Some(format!("{before}no such limit in this run"));
    (enforcement, evidence.min(Evidence::Reported), source, detail)
}

fn possible_limit(findings: &Findings<'_>, kind: LimitKind) -> Fact {
    let ours = |detail: &str| {
        let source = "this machine".to_owned();
        (Enforcement::Enforced, Evidence::Measured, source, Some(detail.to_owned()))
    };
    match kind {
        LimitKind::Wall => ours("the sandbox is deleted when the time is up"),
        LimitKind::Output => ours("counted on this side"),
        LimitKind::Memory => memory(findings),
        LimitKind::Disk => disk(findings),
        LimitKind::Cpu
        | LimitKind::Processes
        | LimitKind::OpenFiles
        | LimitKind::FileSize
        | LimitKind::Inodes => {
            let detail = Some("the provider takes no such limit".to_owned());
            (Enforcement::Absent, Evidence::Requested, "its API".to_owned(), detail)
        }
    }
}

fn disk(findings: &Findings<'_>) -> Fact {
    let source = &findings.observed.source;
    match findings.observed.disk_bytes {
        Told::Is(bytes) => judged(bytes, findings.spec.disk_bytes, (Evidence::Reported, source)),
        Told::Nothing => (Enforcement::Unknown, Evidence::Unavailable, source.clone(), None),
    }
}

/// Judges an amount that was found; more than was asked for is no limit.
fn judged(bytes: u64, asked: Option<u64>, (evidence, source): (Evidence, &str)) -> Fact {
    let holds = asked.is_none_or(|most| bytes <= most);
    let enforcement = if holds { Enforcement::Enforced } else { Enforcement::Absent };
    let more = if holds { "" } else { ", which is more than was asked for" };
    (enforcement, evidence, source.to_owned(), Some(format!("{bytes} bytes{more}")))
}

/// What the kernel inside tells counts before what the provider tells; more than was asked for is
/// no limit.
fn memory(findings: &Findings<'_>) -> Fact {
    let Findings { observed, spec, look, .. } = findings;
    let most = spec.memory_bytes.unwrap_or(u64::MAX);
    let held = look.and_then(|look| look.memory_bytes);
    let machine = look.and_then(|look| look.machine_bytes).filter(|bytes| *bytes <= most);
    let measured = held.or(machine.filter(|_| spec.memory_bytes.is_some()));
    if let Some(bytes) = measured {
        return judged(bytes, spec.memory_bytes, (Evidence::Measured, "the kernel inside"));
    }
    match observed.memory_bytes {
        Told::Is(bytes) => judged(bytes, spec.memory_bytes, (Evidence::Reported, &observed.source)),
        Told::Nothing if spec.memory_bytes.is_some() && observed.asks_memory => {
            let source = "our own request".to_owned();
            (Enforcement::Enforced, Evidence::Requested, source, None)
        }
        Told::Nothing => {
            (Enforcement::Unknown, Evidence::Unavailable, observed.source.clone(), None)
        }
    }
}

/// The posture of a provider of which nothing could be found out.
pub(crate) fn unavailable(isolation: Isolation, why: &str) -> Posture {
    let names = REMOTE_COMPONENTS.into_iter().map(str::to_owned).chain(components());
    let component = Component {
        enforcement: Enforcement::Unknown,
        evidence: Evidence::Unavailable,
        source: "the provider".to_owned(),
        detail: Some(why.to_owned()),
    };
    Posture {
        isolation,
        provider_version: "unknown".to_owned(),
        components: names.map(|name| (name, component.clone())).collect(),
    }
}
