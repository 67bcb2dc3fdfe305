//! The decision: both layers must allow, every reason is told, any error is a denial.
//!
//! An ask is a counterfactual. Rules see approvals as a fact; where the approvals held are not
//! enough, the rules are asked again as if there were one of level 1, 2, 3. The first level that
//! allows is what is asked for; where none does, the answer is no.

use std::collections::BTreeSet;

use warrant_protocol::DecisionSummary;

use crate::context;
use crate::controls::{ApprovalRule, Controls, MAX_LEVEL};
use crate::document;
use crate::facts::{Approval, Facts};
use crate::inspect::Explained;
use crate::questions::questions;
use crate::reason::{Reason, ReasonCode};
use crate::rules::{Answer, Question, Rule, Wanted};
use crate::snapshot::PolicySnapshot;
use crate::terms::Terms;

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It may run, on these terms.
    Allow {
        /// What it gets.
        terms: Box<Terms>,
        /// The rules that permit it.
        rules: Vec<Rule>,
    },
    /// People must say yes first.
    Ask(Ask),
    /// It may not run.
    Deny {
        /// Every reason.
        reasons: Vec<Reason>,
        /// The rules that decided.
        rules: Vec<Rule>,
    },
}

/// What people must say yes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The highest level among the requirements.
    pub level: u8,
    /// Everyone who may approve something.
    pub approvers: BTreeSet<String>,
    /// What must be agreed to; all of it.
    pub requirements: Vec<Requirement>,
    /// The rules that ask.
    pub rules: Vec<Rule>,
    /// What the run gets once everyone agreed.
    pub terms: Box<Terms>,
}

/// One thing people must agree to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// In the reference's words (`secret-release:A`), or `approval:level-2`.
    pub name: String,
    /// The level an approval must have.
    pub level: u8,
    /// Who may approve: names, groups, or `*` for every approver.
    pub approvers: Vec<String>,
    /// How many different people it takes.
    pub quorum: u32,
    /// How long an approval is good for, when policy says.
    pub expires_min: Option<u32>,
}

/// Decides about facts. Pure; the same facts and policy give the same answer for ever.
#[must_use]
pub fn decide(policy: &PolicySnapshot, facts: &Facts) -> Decision {
    let body = policy.document().body();
    let controls = policy.controls();
    let terms = Terms::of(body, controls, facts);
    let mut reasons = document::denials(body, controls, facts);
    let verdict = Questioner { policy, facts, terms: &terms }.verdict();
    reasons.extend(verdict.reasons);

    let mut requirements = open_consents(policy, facts);
    if let Some(level) = verdict.level {
        match controls.approval(level) {
            Some(rule) => requirements.push(Requirement::of_level(rule)),
            None => reasons.push(nobody_approves(level)),
        }
    }
    match open_gaps(controls, facts) {
        Ok(open) => requirements.extend(open),
        Err(reason) => reasons.push(reason),
    }
    if !reasons.is_empty() {
        return Decision::Deny { reasons, rules: verdict.rules };
    }
    if requirements.is_empty() {
        return Decision::Allow { terms: Box::new(terms), rules: verdict.rules };
    }
    Decision::Ask(Ask {
        level: requirements.iter().map(|requirement| requirement.level).max().unwrap_or(1),
        approvers: requirements.iter().flat_map(|r| r.approvers.iter().cloned()).collect(),
        requirements,
        rules: verdict.rules,
        terms: Box::new(terms),
    })
}

/// Decides where no policy could be loaded: no.
#[must_use]
pub fn decide_without_policy() -> Decision {
    let message = "there is no policy, so nothing is allowed".to_owned();
    let reason = Reason { code: ReasonCode::PolicyViolation, message };
    Decision::Deny { reasons: vec![reason], rules: Vec::new() }
}

/// Returns whether the approvals satisfy a requirement. The requester's own never count.
#[must_use]
pub fn is_satisfied(requirement: &Requirement, approvals: &[Approval], requester: &str) -> bool {
    let people: BTreeSet<&str> = approvals
        .iter()
        .filter(|approval| approval.by != requester && approval.level >= requirement.level)
        .filter(|approval| {
            requirement
                .approvers
                .iter()
                .any(|name| name == "*" || *name == approval.by || approval.groups.contains(name))
        })
        .map(|approval| approval.by.as_str())
        .collect();
    requirement.quorum > 0
        && people.len() >= usize::try_from(requirement.quorum).unwrap_or(usize::MAX)
}

/// Returns the consent rules that apply and are not satisfied yet.
fn open_consents(policy: &PolicySnapshot, facts: &Facts) -> Vec<Requirement> {
    let consents = document::consents(policy.document().body(), facts);
    let expires_min = policy.controls().approval(1).map(|rule| rule.expires_min);
    let requirements = consents.into_iter().map(|consent| Requirement {
        name: consent.requirement,
        level: 1,
        approvers: consent.approvers,
        quorum: 1,
        expires_min,
    });
    requirements.filter(|r| !is_satisfied(r, &facts.approvals, &facts.requester)).collect()
}

/// Returns what must be agreed to for paths that the command names and was not given; whether
/// people may be asked about them at all is the document's to say.
fn open_gaps(controls: &Controls, facts: &Facts) -> Result<Vec<Requirement>, Reason> {
    let level = controls.files.as_ref().and_then(|files| files.gaps.as_ref());
    let (Some(level), [_, ..]) = (level.map(|gaps| gaps.level), facts.files.gaps.as_slice()) else {
        return Ok(Vec::new());
    };
    let rule = controls.approval(level).ok_or_else(|| nobody_approves(level))?;
    let wanted = facts.files.gaps.iter().map(|gap| Requirement {
        name: format!("path-{}:{}", gap.access.as_str(), gap.path),
        ..Requirement::of_level(rule)
    });
    Ok(wanted.filter(|r| !is_satisfied(r, &facts.approvals, &facts.requester)).collect())
}

fn nobody_approves(level: u8) -> Reason {
    let message = format!("approval at level {level} is needed, and policy names no approver");
    Reason { code: ReasonCode::ApprovalRequired, message }
}

impl Requirement {
    fn of_level(rule: &ApprovalRule) -> Self {
        Self {
            name: format!("approval:level-{}", rule.level),
            level: rule.level,
            approvers: rule.approvers.clone(),
            quorum: rule.quorum,
            expires_min: Some(rule.expires_min),
        }
    }
}

impl Decision {
    /// Returns the answer in the reference's words: what its events and errors carry.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Allow { .. } => "policy allows this run".to_owned(),
            Self::Ask(ask) => {
                let names: Vec<&str> = ask.requirements.iter().map(|r| r.name.as_str()).collect();
                format!("consent required: {}", names.join("; "))
            }
            Self::Deny { reasons, .. } => {
                let messages: Vec<&str> = reasons.iter().map(|r| r.message.as_str()).collect();
                format!("policy denied: {}", messages.join("; "))
            }
        }
    }

    /// Returns the code for programs.
    #[must_use]
    pub fn code(&self) -> ReasonCode {
        match self {
            Self::Allow { .. } => ReasonCode::Allowed,
            Self::Ask(_) => ReasonCode::ApprovalRequired,
            Self::Deny { reasons, .. } => {
                reasons.first().map_or(ReasonCode::PolicyViolation, |reason| reason.code)
            }
        }
    }

    /// Returns the answer as contracts, events and receipts carry it.
    #[must_use]
    pub fn summary(&self, policy: &PolicySnapshot) -> DecisionSummary {
        let (decision, reasons, rules, level) = match self {
            Self::Allow { rules, .. } => {
                (warrant_protocol::Decision::Allow, vec![self.reason()], rules, None)
            }
            Self::Ask(ask) => {
                let reasons = vec![self.reason()];
                (warrant_protocol::Decision::Ask, reasons, &ask.rules, Some(ask.level))
            }
            Self::Deny { reasons, rules } => {
                let reasons = reasons.iter().map(|reason| reason.message.clone()).collect();
                (warrant_protocol::Decision::Deny, reasons, rules, None)
            }
        };
        let rules = rules.iter().map(|rule| rule.id.clone()).collect();
        DecisionSummary { decision, reasons, rules, policy_hash: Some(policy.hash()), level }
    }
}

/// What the rules say altogether.
struct Verdict {
    reasons: Vec<Reason>,
    rules: Vec<Rule>,
    /// The level of approval that is missing.
    level: Option<u8>,
}

struct Questioner<'a> {
    policy: &'a PolicySnapshot,
    facts: &'a Facts,
    terms: &'a Terms,
}

impl Questioner<'_> {
    fn verdict(&self) -> Verdict {
        let mut verdict = Verdict { reasons: Vec::new(), rules: Vec::new(), level: None };
        let mut open = Vec::new();
        for question in questions(self.policy.rules(), self.facts) {
            match self.policy.rules().certain(&question, self.facts) {
                Some(rule) => verdict.rules.push(rule),
                None => open.push(question),
            }
        }
        if !open.is_empty() {
            match context::base(self.facts, self.terms) {
                Some(base) => open.iter().for_each(|q| self.ask(q, &base, &mut verdict)),
                None => verdict.reasons.push(internal("facts cannot be put to the rules")),
            }
        }
        verdict.rules.sort();
        verdict.rules.dedup();
        verdict
    }

    fn ask(&self, question: &Question, base: &cedar_policy::Context, verdict: &mut Verdict) {
        let held = self.held_level();
        let by: BTreeSet<String> = self.facts.approvals.iter().map(|a| a.by.clone()).collect();
        let approval = (held > 0).then_some((held, &by));
        let answer = self.answer(question, base, approval);
        if is_content(question, &answer) {
            verdict.rules.extend(answer.rules);
            return;
        }
        for level in held + 1..=MAX_LEVEL {
            let approvers = self.policy.controls().approval(level);
            let by =
                approvers.map(|rule| rule.approvers.iter().cloned().collect()).unwrap_or_default();
            let hypothetical = self.answer(question, base, Some((level, &by)));
            if is_content(question, &hypothetical) {
                verdict.level = verdict.level.max(Some(level));
                // What asks is what forbids now, or else what would permit then.
                let asking =
                    if answer.rules.is_empty() { hypothetical.rules } else { answer.rules };
                verdict.rules.extend(asking);
                return;
            }
        }
        verdict.reasons.extend(refusals(question, &answer));
        verdict.rules.extend(answer.rules);
    }

    fn answer(
        &self,
        question: &Question,
        base: &cedar_policy::Context,
        approval: Option<(u8, &BTreeSet<String>)>,
    ) -> Answer {
        match context::of_question(base, question, approval) {
            Some(context) => self.policy.rules().answer(&self.facts.requester, question, context),
            None => {
                let failed = vec!["facts cannot be put to the rules".to_owned()];
                Answer { allowed: false, rules: Vec::new(), failed }
            }
        }
    }

    /// Returns the highest level whose requirement the approvals satisfy.
    fn held_level(&self) -> u8 {
        if self.facts.approvals.is_empty() {
            return 0;
        }
        let satisfied = |level: &u8| {
            let rule = self.policy.controls().approval(*level);
            rule.is_some_and(|rule| {
                let requirement = Requirement::of_level(rule);
                is_satisfied(&requirement, &self.facts.approvals, &self.facts.requester)
            })
        };
        (1..=MAX_LEVEL).rev().find(satisfied).unwrap_or(0)
    }
}

/// Returns every question to the rules with its answer, for people to read.
pub(crate) fn explained(policy: &PolicySnapshot, facts: &Facts) -> Vec<Explained> {
    let terms = Terms::of(policy.document().body(), policy.controls(), facts);
    let questioner = Questioner { policy, facts, terms: &terms };
    let base = context::base(facts, &terms);
    let rows = questions(policy.rules(), facts).into_iter().map(|question| {
        let mut verdict = Verdict { reasons: Vec::new(), rules: Vec::new(), level: None };
        match (policy.rules().certain(&question, facts), &base) {
            (Some(rule), _) => verdict.rules.push(rule),
            (None, Some(base)) => questioner.ask(&question, base, &mut verdict),
            (None, None) => verdict.reasons.push(internal("facts cannot be put to the rules")),
        }
        Explained {
            action: question.action.as_str(),
            considered: policy.rules().weight(&question),
            allowed: verdict.reasons.is_empty() && verdict.level.is_none(),
            rules: verdict.rules,
            would_satisfy: verdict.level,
            resource: question.resource,
        }
    });
    rows.collect()
}

/// Returns whether an answer gives what the question wants.
fn is_content(question: &Question, answer: &Answer) -> bool {
    let objects = !answer.rules.is_empty() || !answer.failed.is_empty();
    match question.wanted {
        Wanted::Permission => answer.allowed,
        Wanted::NoObjection => answer.allowed || !objects,
    }
}

fn refusals(question: &Question, answer: &Answer) -> Vec<Reason> {
    let Question { action, resource, .. } = question;
    let mut reasons: Vec<Reason> = answer
        .rules
        .iter()
        .map(|rule| {
            Reason::violation(format!("{action} \"{resource}\": {} ({})", rule.reason, rule.id))
        })
        .collect();
    for failure in &answer.failed {
        reasons.push(internal(&format!("{action} \"{resource}\": {failure}")));
    }
    if reasons.is_empty() {
        reasons.push(Reason::violation(format!("{action} \"{resource}\": no rule permits it")));
    }
    reasons
}

fn internal(message: &str) -> Reason {
    Reason { code: ReasonCode::Internal, message: message.to_owned() }
}
