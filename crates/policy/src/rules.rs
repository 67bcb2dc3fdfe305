//! The second layer: Cedar rules, loaded strictly, sliced by scope, evaluated without mercy.
//!
//! Cedar skips a policy that errors, even a `forbid`; so rules are refused at load on any
//! warning of the strict validator, and an evaluation with any error is a refusal.

mod slices;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use cedar_policy::{
    Authorizer, Context, Entities, EntityId, EntityTypeName, EntityUid, ParseErrors, Policy,
    PolicyId, PolicySet, Request, Schema, ValidationMode, Validator,
};
use miette::Diagnostic as _;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use warrant_protocol::error_chain;

use crate::facts::Facts;
use crate::guards::Guard;
use crate::unsupplied;

use slices::{Member, Slice, Slices};

pub(crate) use slices::Scope;

/// The text of the schema every rule is validated against.
pub const SCHEMA: &str = include_str!("../schemas/warrant.cedarschema");

/// What a rule is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Whether a run may happen in a pool.
    Run,
    /// Whether a program may be started.
    Exec,
    /// Whether a host may be reached.
    NetConnect,
    /// Whether a secret may be used.
    SecretUse,
    /// Whether a root may be read or written.
    FsGrant,
}

impl Action {
    /// Every action.
    pub const ALL: [Self; 5] =
        [Self::Run, Self::Exec, Self::NetConnect, Self::SecretUse, Self::FsGrant];

    /// Returns the name used in rules.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Exec => "exec",
            Self::NetConnect => "net_connect",
            Self::SecretUse => "secret_use",
            Self::FsGrant => "fs_grant",
        }
    }

    const fn resource_type(self) -> &'static str {
        match self {
            Self::Run => "Pool",
            Self::Exec => "Program",
            Self::NetConnect => "Host",
            Self::SecretUse => "Secret",
            Self::FsGrant => "Root",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A rule that took part in a decision.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rule {
    /// Its `@id`, or the place in the document.
    pub id: String,
    /// Its `@reason`.
    pub reason: String,
}

/// A rule that passed: what has to be known of every rule, and the rule itself in Cedar's JSON
/// form, which is read when it is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PassedRule {
    pub(crate) rule: Rule,
    pub(crate) scope: Scope,
    pub(crate) guards: Vec<Guard>,
    pub(crate) can_fail: bool,
    pub(crate) policy: String,
}

/// Why rules are refused.
#[derive(Debug, Error)]
pub enum InvalidRules {
    /// The shipped schema is broken.
    #[error("the schema of rules: {0}")]
    Schema(String),
    /// The text is not Cedar.
    #[error("the rules do not parse: {0}")]
    Parse(String),
    /// A template; templates are not used.
    #[error("the rules hold a template, `{0}`")]
    Template(String),
    /// A rule without its name or reason.
    #[error("a rule has no @{annotation}: {rule}")]
    Unnamed {
        /// Which annotation is missing.
        annotation: &'static str,
        /// The rule, as far as it can be named.
        rule: String,
    },
    /// Two rules with one name.
    #[error("two rules are called `{0}`")]
    Duplicate(String),
    /// The validator found errors or warnings.
    #[error("the rules are not valid: {0}")]
    Invalid(String),
    /// A rule reads what nobody supplies, so it would never apply.
    #[error(
        "rule `{rule}` reads `{fact}`, which nobody supplies, so it would never apply; remove the \
         condition, or use context.history.runs_10m or context.history.denies_10m"
    )]
    UnsuppliedFact {
        /// Which rule.
        rule: String,
        /// Which fact.
        fact: String,
    },
    /// Cedar refused to put the rules together.
    #[error("the rules cannot be put together: {0}")]
    Assemble(String),
}

/// Rules that were loaded and validated.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// Present while every context is checked against it.
    schema: Option<Schema>,
    entities: Entities,
    /// Made when Cedar is first asked.
    names: OnceLock<Option<Names>>,
    members: Vec<Member>,
    slices: BTreeMap<Action, Slices>,
    known: HashMap<String, Rule>,
    /// The programs that rules name, by the last segment of their paths.
    programs: HashMap<String, Vec<String>>,
}

#[derive(Debug, Clone)]
struct Names {
    principal: EntityTypeName,
    resources: BTreeMap<Action, EntityTypeName>,
    actions: BTreeMap<Action, EntityUid>,
}

/// How one question was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) allowed: bool,
    /// The rules that decided.
    pub(crate) rules: Vec<Rule>,
    /// Rules that could not be evaluated.
    pub(crate) failed: Vec<String>,
}

/// One question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) action: Action,
    pub(crate) resource: String,
    /// Whether a rule must permit it, or only none may object.
    pub(crate) wanted: Wanted,
    /// What only this question's context has.
    pub(crate) detail: Detail,
}

/// What a question wants of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A rule must permit it.
    Permission,
    /// No rule may forbid it: it is part of something that was asked about by itself.
    NoObjection,
}

/// What only one question's context has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Detail {
    None,
    Connect { port: i64 },
    Grant { access: &'static str },
}

impl Rules {
    /// Reads and validates rules.
    pub(crate) fn load(text: &str) -> Result<Self, InvalidRules> {
        let (schema, warnings) = Schema::from_cedarschema_str(SCHEMA)
            .map_err(|cause| InvalidRules::Schema(cause.to_string()))?;
        if let Some(warning) = warnings.into_iter().next() {
            return Err(InvalidRules::Schema(warning.to_string()));
        }
        let parsed = PolicySet::from_str(text).map_err(|cause| parse_error(text, &cause))?;
        if let Some(template) = parsed.templates().next() {
            return Err(InvalidRules::Template(template.id().to_string()));
        }
        let (policies, known) = named(&parsed)?;
        let set = PolicySet::from_policies(policies.iter().cloned())
            .map_err(|cause| InvalidRules::Assemble(cause.to_string()))?;
        let result = Validator::new(schema.clone()).validate(&set, ValidationMode::Strict);
        if !result.validation_passed_without_warnings() {
            let errors = result.validation_errors().map(ToString::to_string);
            let warnings = result.validation_warnings().map(ToString::to_string);
            let all: Vec<String> = errors.chain(warnings).collect();
            return Err(InvalidRules::Invalid(all.join("; ")));
        }
        let members: Vec<Member> =
            policies.into_iter().map(Member::of_policy).collect::<Result<_, _>>()?;
        refuse_unsupplied(&members)?;
        Ok(Self::of_members(members, known, Some(schema)))
    }

    /// Takes rules that passed before.
    pub(crate) fn of_passed(passed: Vec<PassedRule>) -> Result<Self, InvalidRules> {
        let mut known = HashMap::new();
        let mut members = Vec::new();
        for PassedRule { rule, scope, guards, can_fail, policy } in passed {
            let (id, policy, text) = (rule.id.clone(), OnceLock::new(), policy);
            members.push(Member { id, scope, guards, can_fail, policy, text });
            if let Some(twin) = known.insert(rule.id.clone(), rule) {
                return Err(InvalidRules::Duplicate(twin.id));
            }
        }
        Ok(Self::of_members(members, known, None))
    }

    /// Returns the rules in the form that [`Rules::of_passed`] takes.
    pub(crate) fn to_passed(&self) -> Result<Vec<PassedRule>, InvalidRules> {
        let passed = self.members.iter().map(|member| {
            let rule = self.known.get(&member.id).cloned();
            let rule = rule.ok_or_else(|| InvalidRules::Assemble(member.id.clone()))?;
            let Member { scope, guards, can_fail, text, .. } = member.clone();
            Ok(PassedRule { rule, scope, guards, can_fail, policy: text })
        });
        passed.collect()
    }

    /// Stops checking contexts against the schema, but for builds with assertions.
    ///
    /// Contexts are built by one function from typed facts, so the check can only find a mistake
    /// in this crate; its tests and the examples of every policy look for that.
    pub(crate) fn settled(mut self) -> Self {
        if !cfg!(debug_assertions) {
            self.schema = None;
        }
        self
    }

    fn of_members(
        members: Vec<Member>,
        known: HashMap<String, Rule>,
        schema: Option<Schema>,
    ) -> Self {
        let mut slices: BTreeMap<Action, Slices> = BTreeMap::new();
        for action in Action::ALL {
            slices.insert(action, Slices::new(action, &members));
        }
        let mut programs: HashMap<String, Vec<String>> = HashMap::new();
        for path in slices.get(&Action::Exec).into_iter().flat_map(|s| s.by_resource.keys()) {
            let name = path.rsplit('/').next().unwrap_or(path);
            programs.entry(name.to_owned()).or_default().push(path.clone());
        }
        let (entities, names) = (Entities::empty(), OnceLock::new());
        Self { schema, entities, names, members, slices, known, programs }
    }

    /// Returns how many rules there are.
    pub(crate) const fn count(&self) -> usize {
        self.members.len()
    }

    /// Returns the permit without conditions that decides a question by itself, because no other
    /// rule can apply to these facts; nothing where Cedar has to be asked.
    pub(crate) fn certain(&self, question: &Question, facts: &Facts) -> Option<Rule> {
        let slice = self.slice(question)?;
        let permit = slice.plain_permit?;
        let rules_out = |index: &usize| {
            let member = self.members.get(*index);
            member.is_some_and(|member| member.guards.iter().any(|guard| guard.is_false(facts)))
        };
        let is_alone = slice.guarded.iter().all(rules_out);
        let permit = self.members.get(permit).filter(|_| is_alone)?;
        self.known.get(&permit.id).cloned()
    }

    /// Returns how many rules a question is put to.
    pub(crate) fn weight(&self, question: &Question) -> usize {
        self.slice(question).map_or(0, |slice| slice.members.len())
    }

    /// Returns whether any rule that a question is put to forbids.
    #[cfg(test)]
    pub(crate) fn forbids(&self, question: &Question) -> bool {
        let members = self.slice(question).into_iter().flat_map(|slice| &slice.members);
        members.filter_map(|index| self.members.get(*index)).any(|member| member.scope.forbids)
    }

    /// Returns the resources that rules of an action name, for which `wanted` holds.
    pub(crate) fn named(&self, action: Action, wanted: impl Fn(&str) -> bool) -> Vec<&str> {
        let slices = self.slices.get(&action);
        let names = slices.into_iter().flat_map(|slices| slices.by_resource.keys());
        let mut names: Vec<&str> = names.map(String::as_str).filter(|name| wanted(name)).collect();
        names.sort_unstable();
        names
    }

    /// Returns the programs that rules name and whose path ends in `name`.
    pub(crate) fn programs_called(&self, name: &str) -> &[String] {
        self.programs.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    fn slice(&self, question: &Question) -> Option<&Slice> {
        let slices = self.slices.get(&question.action)?;
        Some(slices.by_resource.get(&question.resource).unwrap_or(&slices.general))
    }

    /// Answers one question; whatever goes wrong is a refusal.
    pub(crate) fn answer(&self, principal: &str, question: &Question, context: Context) -> Answer {
        let refused = |why: String| Answer { allowed: false, rules: Vec::new(), failed: vec![why] };
        let Some(names) = self.names.get_or_init(|| Names::new().ok()) else {
            return refused("names that Cedar does not know".to_owned());
        };
        let (Some(slice), Some(action), Some(resource)) = (
            self.slice(question),
            names.actions.get(&question.action),
            names.resources.get(&question.action),
        ) else {
            return refused("an action that is not known".to_owned());
        };
        let Some(set) = slice.set(&self.members) else {
            return refused("rules that cannot be put together".to_owned());
        };
        let principal = uid(&names.principal, principal);
        let resource = uid(resource, &question.resource);
        let request =
            Request::new(principal, action.clone(), resource, context, self.schema.as_ref());
        let request = match request {
            Ok(request) => request,
            Err(cause) => return refused(format!("facts that do not fit the schema: {cause}")),
        };
        let response = Authorizer::new().is_authorized(&request, set, &self.entities);
        let diagnostics = response.diagnostics();
        let failed: Vec<String> = diagnostics.errors().map(ToString::to_string).collect();
        let mut rules: Vec<Rule> =
            diagnostics.reason().filter_map(|id| self.rule(id)).cloned().collect();
        rules.sort();
        if !failed.is_empty() {
            // What Cedar took for its reason is not ours: a rule that failed might have said no.
            rules.clear();
        }
        let allowed = response.decision() == cedar_policy::Decision::Allow && failed.is_empty();
        Answer { allowed, rules, failed }
    }

    fn rule(&self, id: &PolicyId) -> Option<&Rule> {
        let id: &str = id.as_ref();
        self.known.get(id)
    }
}

impl Names {
    fn new() -> Result<Self, InvalidRules> {
        let type_name = |name: &str| {
            EntityTypeName::from_str(name).map_err(|cause| InvalidRules::Schema(cause.to_string()))
        };
        let action_type = type_name("Action")?;
        let mut resources = BTreeMap::new();
        let mut actions = BTreeMap::new();
        for action in Action::ALL {
            resources.insert(action, type_name(action.resource_type())?);
            actions.insert(action, uid(&action_type, action.as_str()));
        }
        Ok(Self { principal: type_name("Principal")?, resources, actions })
    }
}

/// Refuses rules that read a fact which no caller supplies.
fn refuse_unsupplied(members: &[Member]) -> Result<(), InvalidRules> {
    for member in members {
        let policy = serde_json::from_str(&member.text)
            .map_err(|cause| InvalidRules::Assemble(format!("{}: {cause}", member.id)))?;
        if let Some(fact) = unsupplied::read_by(&policy) {
            return Err(InvalidRules::UnsuppliedFact { rule: member.id.clone(), fact });
        }
    }
    Ok(())
}

/// Gives every policy its own name, and notes its reason.
fn named(set: &PolicySet) -> Result<(Vec<Policy>, HashMap<String, Rule>), InvalidRules> {
    let mut policies = Vec::new();
    let mut known = HashMap::new();
    for policy in set.policies() {
        let annotation = |annotation: &'static str| {
            let text = policy.annotation(annotation).filter(|text| !text.trim().is_empty());
            text.map(str::to_owned).ok_or_else(|| InvalidRules::Unnamed {
                annotation,
                rule: policy.annotation("id").unwrap_or("a rule without a name").to_owned(),
            })
        };
        let id = annotation("id")?;
        let reason = annotation("reason")?;
        if known.insert(id.clone(), Rule { id: id.clone(), reason }).is_some() {
            return Err(InvalidRules::Duplicate(id));
        }
        policies.push(policy.new_id(PolicyId::new(id)));
    }
    // Evaluation does not depend on the order, but people compare plans.
    policies.sort_by_key(|policy| policy.id().to_string());
    Ok((policies, known))
}

/// Returns why rules do not parse, with the line.
fn parse_error(text: &str, cause: &ParseErrors) -> InvalidRules {
    let offset = cause.labels().and_then(|mut labels| labels.next()).map(|label| label.offset());
    let line =
        offset.map(|offset| 1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count());
    let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
    InvalidRules::Parse(format!("{line}{}", error_chain(cause)))
}

fn uid(type_name: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(type_name.clone(), EntityId::new(id))
}
