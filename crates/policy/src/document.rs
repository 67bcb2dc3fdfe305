//! The first layer: the policy document against everything a request can set.
//!
//! The reference's six checks come first, in its order and its words; ours follow. All reasons
//! are told at once.

use warrant_protocol::policy::{ConsentTrigger, PolicyBody};
use warrant_protocol::request::{EgressRule, PathAccess, WorkspaceMode};
use warrant_protocol::{Evidence, Isolation, LimitKind, canonicalize};

use crate::controls::Controls;
use crate::facts::{ExecutionFacts, Facts};
use crate::paths;
use crate::reason::{Reason, ReasonCode};

/// A consent rule that applies to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Consent {
    /// Its place in the document.
    pub(crate) index: usize,
    /// What must be agreed to: `any-run`, `secret-release:A,B`, `agent-kind:K`.
    pub(crate) requirement: String,
    /// Who may agree.
    pub(crate) approvers: Vec<String>,
}

/// Variables that lead around the egress proxy.
const PROXY_VARIABLES: [&str; 8] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
];

/// Returns every reason of the document against the request.
pub(crate) fn denials(body: &PolicyBody, controls: &Controls, facts: &Facts) -> Vec<Reason> {
    let mut judge = Judge { body, controls, facts, reasons: Vec::new() };
    judge.reference();
    judge.execution();
    judge.network();
    judge.environment();
    judge.time();
    judge.limits();
    judge.isolation();
    judge.files();
    judge.data();
    judge.reasons
}

/// Returns the consent rules that apply, in the document's order.
pub(crate) fn consents(body: &PolicyBody, facts: &Facts) -> Vec<Consent> {
    let mut consents = Vec::new();
    for (index, rule) in body.consent.iter().enumerate() {
        let names: Vec<&str> = facts.secrets.iter().map(|name| name.as_str()).collect();
        let requirement = match rule.when {
            ConsentTrigger::AnyRun => Some("any-run".to_owned()),
            ConsentTrigger::SecretRelease if !names.is_empty() => {
                Some(format!("secret-release:{}", names.join(",")))
            }
            ConsentTrigger::AgentKind if rule.r#match.as_deref() == Some(&facts.agent_kind) => {
                Some(format!("agent-kind:{}", facts.agent_kind))
            }
            ConsentTrigger::SecretRelease | ConsentTrigger::AgentKind => None,
        };
        if let Some(requirement) = requirement {
            consents.push(Consent { index, requirement, approvers: rule.approvers.clone() });
        }
    }
    consents
}

struct Judge<'a> {
    body: &'a PolicyBody,
    controls: &'a Controls,
    facts: &'a Facts,
    reasons: Vec<Reason>,
}

impl Judge<'_> {
    fn deny(&mut self, message: String) {
        self.reasons.push(Reason::violation(message));
    }

    fn deny_as(&mut self, code: ReasonCode, message: String) {
        self.reasons.push(Reason { code, message });
    }

    /// The reference's checks, in its order and words.
    fn reference(&mut self) {
        let (body, facts) = (self.body, self.facts);
        if !body.agents.allow.contains(&facts.agent_kind) {
            self.deny(format!("agent kind \"{}\" is not allowed", facts.agent_kind));
        }
        let pool = &facts.pool;
        if !body.runners.allow_pools.contains(pool) {
            self.deny(format!("runner pool \"{pool}\" is not allowed"));
        }
        for name in &facts.secrets {
            match body.secrets.releasable.iter().find(|rule| rule.name == *name) {
                None => self.deny(format!("secret \"{name}\" is not releasable under policy")),
                Some(rule) if !rule.pools.contains(pool) => {
                    self.deny(format!("secret \"{name}\" is not releasable to pool \"{pool}\""));
                }
                Some(_) => {}
            }
        }
        if body.network.default_deny {
            for host in &facts.network.hosts {
                if !self.lists(host.as_str()) {
                    self.deny(format!("network host \"{host}\" is not in the policy allowlist"));
                }
            }
        }
        let ceiling = body.budget.max_spend_usd;
        if let Some(spend) = facts.max_spend_usd.filter(|spend| exceeds(*spend, ceiling)) {
            let (spend, ceiling) = (number(spend), number(ceiling));
            let message = format!("requested budget ${spend} exceeds policy ceiling ${ceiling}");
            self.deny_as(ReasonCode::BudgetExceeded, message);
        }
        let ceiling = body.budget.max_duration_min;
        if let Some(minutes) = facts.max_duration_min.filter(|asked| exceeds(*asked, ceiling)) {
            let (minutes, ceiling) = (number(minutes), number(ceiling));
            let message =
                format!("requested duration {minutes}m exceeds policy ceiling {ceiling}m");
            self.deny_as(ReasonCode::TimeLimit, message);
        }
    }

    /// Returns whether the allow list names a host, or `*.` a name above it.
    fn lists(&self, host: &str) -> bool {
        self.body.network.allow_hosts.iter().any(|listed| covers(listed.as_str(), host))
    }

    fn execution(&mut self) {
        let facts = self.facts;
        let started = match &facts.execution {
            ExecutionFacts::Shell | ExecutionFacts::Argv => "command",
            ExecutionFacts::Agent { agent } => agent.as_str(),
        };
        if started != facts.agent_kind {
            let kind = &facts.agent_kind;
            self.deny(format!("execution starts \"{started}\" but agent kind is \"{kind}\""));
        }
    }

    fn network(&mut self) {
        let facts = self.facts;
        if !self.body.network.default_deny {
            return;
        }
        if !facts.network.default_deny {
            self.deny("request turns off the default denial of the network".to_owned());
        }
        if !facts.env.egress_proxy {
            self.deny("request turns off the egress proxy".to_owned());
        }
        for name in facts.env.names.iter().chain(&facts.env.inherit) {
            if PROXY_VARIABLES.contains(&name.as_str()) {
                self.deny(format!(
                    "environment variable \"{name}\" would lead around the egress proxy"
                ));
            }
        }
        for rule in &facts.network.egress {
            if !self.permits(rule) {
                self.deny(format!("destination \"{rule}\" is not in the policy allowlist"));
            }
        }
    }

    fn permits(&self, wanted: &EgressRule) -> bool {
        let is_web = matches!(wanted.port, None | Some(80 | 443));
        let destinations = self.controls.network.iter().flat_map(|network| &network.destinations);
        let listed = |rule: &EgressRule| {
            let same_port = match (rule.port, wanted.port) {
                (None, None | Some(80 | 443)) => true,
                (rule, wanted) => rule == wanted,
            };
            same_port && covers(rule.host.as_str(), wanted.host.as_str())
        };
        (is_web && self.lists(wanted.host.as_str())) || destinations.into_iter().any(listed)
    }

    fn environment(&mut self) {
        let facts = self.facts;
        let allowed = self.controls.environment.as_ref().map(|environment| &environment.inherit);
        for name in &facts.env.inherit {
            if !allowed.is_some_and(|allowed| allowed.contains(name)) {
                self.deny(format!(
                    "environment variable \"{name}\" may not be inherited from the runner"
                ));
            }
        }
        // In the process tier a variable whose secret is not released is left out, as the
        // reference does it.
        let leaves_out = facts.isolation == Isolation::Process;
        for name in &facts.env.secrets {
            if !facts.secrets.contains(name) && !leaves_out {
                self.deny(format!(
                    "environment carries secret \"{name}\", which the request does not ask for"
                ));
            }
        }
    }

    fn time(&mut self) {
        let facts = self.facts;
        let ceiling = self.body.budget.max_duration_min;
        let ceiling = facts.max_duration_min.map_or(ceiling, |asked| asked.min(ceiling));
        let asked = [("timeout", facts.timeout_ms), ("wall limit", facts.limits.wall_ms)];
        for (what, asked) in asked {
            let Some(asked) = asked else { continue };
            #[expect(clippy::cast_precision_loss, reason = "beyond 2^53 ms it is over any ceiling")]
            let is_within = asked as f64 <= ceiling * 60_000.0;
            if !is_within {
                let ceiling = number(ceiling);
                let message =
                    format!("requested {what} {asked}ms exceeds the budget of {ceiling}m");
                self.deny_as(ReasonCode::TimeLimit, message);
            }
        }
    }

    fn limits(&mut self) {
        let Some(limits) = &self.controls.limits else { return };
        for kind in LimitKind::ALL {
            let asked = match kind {
                LimitKind::Output => self.facts.limits.of(kind).max(self.facts.log_max_bytes),
                LimitKind::Wall => self.facts.limits.of(kind).max(self.facts.timeout_ms),
                _ => self.facts.limits.of(kind),
            };
            let (Some(asked), Some(ceiling)) = (asked, limits.ceiling.of(kind)) else { continue };
            if asked > ceiling {
                let code = match kind {
                    LimitKind::Wall | LimitKind::Cpu => ReasonCode::TimeLimit,
                    LimitKind::Memory => ReasonCode::MemoryLimit,
                    _ => ReasonCode::BudgetExceeded,
                };
                let name = kind.as_str();
                self.deny_as(
                    code,
                    format!("requested {name} limit {asked} exceeds policy ceiling {ceiling}"),
                );
            }
        }
    }

    fn isolation(&mut self) {
        let facts = self.facts;
        let tier = facts.isolation;
        if self
            .controls
            .isolation
            .as_ref()
            .is_some_and(|controls| !controls.tiers.contains_key(&tier))
        {
            self.deny(format!("isolation \"{tier}\" is not allowed"));
        }
        if let Some(image) = &facts.image {
            let images = self.controls.images.as_ref();
            // Any image of a provider, but none where a tier has no images.
            let lists = |allowed: &String| allowed == image || (allowed == "*" && tier.is_remote());
            if !images.is_some_and(|images| images.allow.iter().any(lists)) {
                self.deny(format!("image \"{image}\" is not allowed"));
            }
        }
        for (component, accepted) in &facts.accepted_evidence {
            let accepted_by_policy = self.controls.evidence.as_ref();
            let weakest = accepted_by_policy.and_then(|evidence| {
                // What is said for one provider by name counts before what is said for all.
                evidence.get(&format!("{tier}:{component}")).or_else(|| evidence.get(component))
            });
            let weakest = weakest.copied().unwrap_or(Evidence::Measured);
            if *accepted < weakest {
                self.deny(format!(
                    "evidence \"{}\" is not enough for \"{component}\": policy wants \"{}\"",
                    evidence_name(*accepted),
                    evidence_name(weakest)
                ));
            }
        }
    }

    fn files(&mut self) {
        let facts = self.facts;
        let files = self.controls.files.as_ref();
        let roots = |write: bool| {
            let roots =
                files.map(|files| if write { &files.write_roots } else { &files.read_roots });
            roots.into_iter().flatten().collect::<Vec<_>>()
        };
        for (write, wanted) in [(false, &facts.files.read), (true, &facts.files.write)] {
            let allowed = roots(write);
            for root in wanted {
                if !allowed.iter().any(|allowed| paths::is_within(root, allowed)) {
                    let verb = if write { "writing" } else { "reading" };
                    self.deny(format!("{verb} below \"{root}\" is not allowed"));
                }
            }
        }
        self.gaps();
        let mode = facts.files.mode;
        let modes = files.map(|files| files.modes.as_slice());
        if !modes.unwrap_or(&[WorkspaceMode::ReadOnly, WorkspaceMode::Overlay]).contains(&mode) {
            self.deny(format!("workspace mode \"{}\" is not allowed", mode_name(mode)));
        }
        if let Some(masks) = &facts.files.masks {
            for mask in files.iter().flat_map(|files| &files.masks) {
                if !masks.contains(mask) {
                    self.deny(format!("mask \"{mask}\" is missing from the request"));
                }
            }
        }
    }

    /// A path that was not asked for is never simply allowed: it is below a root about which
    /// people may be asked, or it is denied.
    fn gaps(&mut self) {
        let controls = self.controls.files.as_ref().and_then(|files| files.gaps.as_ref());
        for gap in &self.facts.files.gaps {
            let roots = controls.map(|gaps| match gap.access {
                PathAccess::Read => &gaps.read_roots,
                PathAccess::Write => &gaps.write_roots,
            });
            let mut roots = roots.into_iter().flatten();
            if !roots.any(|root| paths::is_within(&gap.path, root)) {
                let verb = match gap.access {
                    PathAccess::Read => "reading",
                    PathAccess::Write => "writing",
                };
                self.deny(format!(
                    "{verb} \"{}\", which the command was not given, is not allowed",
                    gap.path
                ));
            }
        }
    }

    fn data(&mut self) {
        let facts = self.facts;
        for class in &facts.data_classes {
            match self.body.data_classes.iter().find(|rule| rule.data_class == *class) {
                None => self.deny(format!("data class \"{class}\" is not known to policy")),
                Some(rule) if !rule.allow_pools.contains(&facts.pool) => {
                    let pool = &facts.pool;
                    self.deny(format!("data class \"{class}\" may not go to pool \"{pool}\""));
                }
                Some(_) => {}
            }
        }
        let controls = self.controls.disclosure.as_ref();
        if controls.is_some_and(|controls| !controls.allow.contains(&facts.disclosure)) {
            self.deny(format!(
                "disclosure \"{}\" is not allowed",
                disclosure_name(facts.disclosure)
            ));
        }
    }
}

/// Returns whether a listed host is the wanted one, or `*.` a name above it.
fn covers(listed: &str, wanted: &str) -> bool {
    let below = listed.strip_prefix('*').filter(|suffix| suffix.starts_with('.'));
    listed == wanted
        || below.is_some_and(|suffix| wanted.len() > suffix.len() && wanted.ends_with(suffix))
}

/// Returns whether a number is beyond a ceiling; what cannot be compared is.
fn exceeds(asked: f64, ceiling: f64) -> bool {
    let is_within = asked <= ceiling;
    !is_within
}

/// Returns a number as ECMAScript writes it.
fn number(number: f64) -> String {
    canonicalize(&serde_json::Value::from(number))
}

fn mode_name(mode: WorkspaceMode) -> &'static str {
    match mode {
        WorkspaceMode::ReadOnly => "read-only",
        WorkspaceMode::Overlay => "overlay",
        WorkspaceMode::Direct => "direct",
    }
}

fn evidence_name(evidence: Evidence) -> &'static str {
    match evidence {
        Evidence::Unavailable => "unavailable",
        Evidence::Requested => "requested",
        Evidence::Reported => "reported",
        Evidence::Measured => "measured",
    }
}

fn disclosure_name(disclosure: warrant_protocol::request::Disclosure) -> &'static str {
    use warrant_protocol::request::Disclosure;
    match disclosure {
        Disclosure::None => "none",
        Disclosure::MetadataOnly => "metadata-only",
        Disclosure::Redacted => "redacted",
        Disclosure::MinimalContext => "minimal-context",
        Disclosure::Full => "full",
    }
}
