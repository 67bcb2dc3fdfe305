//! Which rules a question has to be put to: rules by their action and the resource they name.

use std::collections::HashMap;
use std::sync::OnceLock;

use cedar_policy::{
    ActionConstraint, Effect, EntityUid, Policy, PolicyId, PolicySet, PrincipalConstraint,
    ResourceConstraint,
};
use serde::{Deserialize, Serialize};
use warrant_protocol::error_chain;

use super::{Action, InvalidRules};
use crate::guards::{self, Guard};

/// What a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Scope {
    pub(super) forbids: bool,
    actions: Vec<Action>,
    /// The type and name of the only resource it is about.
    resource: Option<(String, String)>,
    /// It permits whatever is in its scope, without looking.
    is_plain_permit: bool,
}

/// One rule.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) id: String,
    pub(super) scope: Scope,
    pub(super) guards: Vec<Guard>,
    /// Whether evaluating it may be an error, which is a denial whatever the rule would say.
    pub(super) can_fail: bool,
    /// As Cedar has it, read from `text` when it is first needed.
    pub(super) policy: OnceLock<Option<Policy>>,
    pub(super) text: String,
}

/// The rules of one action, by the resource they name.
#[derive(Debug, Clone)]
pub(super) struct Slices {
    /// Rules that name none.
    pub(super) general: Slice,
    /// Those together with the ones that name this resource.
    pub(super) by_resource: HashMap<String, Slice>,
}

#[derive(Debug, Clone)]
pub(super) struct Slice {
    /// Which of the policies.
    pub(super) members: Vec<usize>,
    /// Put together when first asked.
    set: OnceLock<Option<PolicySet>>,
    /// A permit without conditions where nothing forbids and nothing can fail: no need to
    /// evaluate. Or one besides rules that all have guards: no need while a guard of each is
    /// surely false.
    pub(super) plain_permit: Option<usize>,
    /// The rules whose guards have to be looked at.
    pub(super) guarded: Vec<usize>,
}

impl Member {
    pub(super) fn of_policy(policy: Policy) -> Result<Self, InvalidRules> {
        let mut json =
            policy.to_json().map_err(|cause| InvalidRules::Parse(error_chain(&cause)))?;
        if let Some(members) = json.as_object_mut() {
            // They are in the rule; reading them again would only cost time.
            members.remove("annotations");
        }
        Ok(Self {
            id: policy.id().to_string(),
            scope: Scope::of_policy(&policy),
            guards: Guard::of_policy(&json),
            can_fail: !guards::never_fails(&json),
            text: json.to_string(),
            policy: OnceLock::from(Some(policy)),
        })
    }

    /// Returns the rule as Cedar has it; nothing when it cannot be read.
    pub(super) fn policy(&self) -> Option<&Policy> {
        let read = || {
            let json = serde_json::from_str(&self.text).ok()?;
            Policy::from_json(Some(PolicyId::new(&self.id)), json).ok()
        };
        self.policy.get_or_init(read).as_ref()
    }
}

impl Scope {
    pub(super) fn of_policy(policy: &Policy) -> Self {
        let applies = |action: &Action| {
            let is_it = |uid: &EntityUid| {
                uid.type_name().to_string() == "Action" && uid.id().unescaped() == action.as_str()
            };
            match policy.action_constraint() {
                ActionConstraint::Any => true,
                ActionConstraint::Eq(only) => is_it(&only),
                ActionConstraint::In(any) => any.iter().any(is_it),
            }
        };
        let resource = policy.resource_constraint();
        let is_plain_permit = policy.effect() == Effect::Permit
            && !policy.has_non_scope_constraint()
            && policy.principal_constraint() == PrincipalConstraint::Any
            && matches!(resource, ResourceConstraint::Any | ResourceConstraint::Eq(_));
        let resource = match resource {
            ResourceConstraint::Eq(only) => {
                Some((only.type_name().to_string(), only.id().unescaped().to_owned()))
            }
            ResourceConstraint::Any
            | ResourceConstraint::In(_)
            | ResourceConstraint::Is(_)
            | ResourceConstraint::IsIn(_, _) => None,
        };
        Self {
            forbids: policy.effect() == Effect::Forbid,
            actions: Action::ALL.into_iter().filter(applies).collect(),
            resource,
            is_plain_permit,
        }
    }
}

impl Slices {
    pub(super) fn new(action: Action, rules: &[Member]) -> Self {
        let mut general = Vec::new();
        let mut named: HashMap<String, Vec<usize>> = HashMap::new();
        let applying =
            rules.iter().enumerate().filter(|(_, rule)| rule.scope.actions.contains(&action));
        for (index, rule) in applying {
            match &rule.scope.resource {
                None => general.push(index),
                Some((kind, name)) if kind == action.resource_type() => {
                    named.entry(name.clone()).or_default().push(index);
                }
                // It names a resource of another action's type and can never apply.
                Some(_) => {}
            }
        }
        let mut by_resource = HashMap::new();
        for (resource, members) in named {
            let all = general.iter().copied().chain(members).collect();
            by_resource.insert(resource, Slice::new(rules, all));
        }
        Self { general: Slice::new(rules, general), by_resource }
    }
}

impl Slice {
    pub(super) fn new(rules: &[Member], members: Vec<usize>) -> Self {
        let of = |index: &usize| rules.get(*index);
        let forbids = members.iter().filter_map(of).any(|rule| rule.scope.forbids);
        let is_plain = |index: &usize| of(index).is_some_and(|rule| rule.scope.is_plain_permit);
        let plain = members.iter().copied().find(is_plain);
        // Where nothing forbids, another permit changes nothing unless it fails.
        let matters = |index: &usize| forbids || of(index).is_none_or(|rule| rule.can_fail);
        let others = members.iter().copied().filter(|index| Some(*index) != plain);
        let others = others.filter(matters);
        let guarded: Vec<usize> = others.collect();
        let has_guards = |index: &usize| of(index).is_some_and(|rule| !rule.guards.is_empty());
        let plain_permit = plain.filter(|_| guarded.iter().all(has_guards));
        Self { members, set: OnceLock::new(), plain_permit, guarded }
    }

    /// Returns the rules put together; nothing when Cedar refuses, or when one is missing.
    pub(super) fn set(&self, rules: &[Member]) -> Option<&PolicySet> {
        let put_together = || {
            let rules = self.members.iter().map(|index| rules.get(*index)?.policy().cloned());
            PolicySet::from_policies(rules.collect::<Option<Vec<Policy>>>()?).ok()
        };
        self.set.get_or_init(put_together).as_ref()
    }
}
