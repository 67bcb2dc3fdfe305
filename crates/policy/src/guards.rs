//! Guards: simple conditions that a rule cannot do without, looked at before Cedar is asked.
//!
//! A rule whose `when` is a conjunction with `context.mode == "direct"` in it does not apply to a
//! run whose mode is another, whatever else it says. So where the only permit has no conditions and
//! a guard of every other rule is surely false, the answer is known. A guard never says that a rule
//! applies; whenever one is not surely false, or a rule has none, Cedar evaluates.
//!
//! This is sound because rules were validated strictly, and only those have guards that cannot fail
//! then: no arithmetic, no extensions.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context;
use crate::facts::Facts;

/// A condition on one attribute of the context that every question shares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Guard {
    /// It is this text.
    Text(Attribute, String),
    /// It is this truth.
    Flag(Attribute, bool),
    /// It is at least this number.
    AtLeast(Attribute, i64),
    /// It holds one of these texts.
    Holds(Attribute, Vec<String>),
}

/// The attributes that guards look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Attribute {
    /// `context.mode`
    Mode,
    /// `context.isolation`
    Isolation,
    /// `context.pool`
    Pool,
    /// `context.agent`
    Agent,
    /// `context.cmd.program`
    Program,
    /// `context.cmd.argv0`
    Argv0,
    /// `context.cmd.shell`
    Shell,
    /// `context.cmd.dynamic`
    Dynamic,
    /// `context.cmd.parsed`
    Parsed,
    /// `context.cmd.resolved`
    Resolved,
    /// `context.cmd.programs`
    Programs,
    /// `context.cmd.flags`
    Flags,
    /// `context.cmd.args`
    Arguments,
    /// `context.cmd.mentions`
    Mentions,
    /// `context.history.denies_10m`
    Denies,
    /// `context.history.runs_10m`
    Runs,
}

/// What an attribute is.
enum Fact<'a> {
    Text(&'a str),
    Flag(bool),
    Number(i64),
    Texts(&'a BTreeSet<String>),
}

impl Attribute {
    const ALL: [(Self, &'static [&'static str]); 16] = [
        (Self::Mode, &["mode"]),
        (Self::Isolation, &["isolation"]),
        (Self::Pool, &["pool"]),
        (Self::Agent, &["agent"]),
        (Self::Program, &["cmd", "program"]),
        (Self::Argv0, &["cmd", "argv0"]),
        (Self::Shell, &["cmd", "shell"]),
        (Self::Dynamic, &["cmd", "dynamic"]),
        (Self::Parsed, &["cmd", "parsed"]),
        (Self::Resolved, &["cmd", "resolved"]),
        (Self::Programs, &["cmd", "programs"]),
        (Self::Flags, &["cmd", "flags"]),
        (Self::Arguments, &["cmd", "args"]),
        (Self::Mentions, &["cmd", "mentions"]),
        (Self::Denies, &["history", "denies_10m"]),
        (Self::Runs, &["history", "runs_10m"]),
    ];

    fn of(self, facts: &Facts) -> Fact<'_> {
        let cmd = &facts.cmd;
        match self {
            Self::Mode => Fact::Text(context::mode(facts)),
            Self::Isolation => Fact::Text(facts.isolation.as_str()),
            Self::Pool => Fact::Text(facts.pool.as_str()),
            Self::Agent => Fact::Text(&facts.agent_kind),
            Self::Program => Fact::Text(&cmd.program),
            Self::Argv0 => Fact::Text(&cmd.argv0),
            Self::Shell => Fact::Flag(cmd.shell),
            Self::Dynamic => Fact::Flag(cmd.dynamic),
            Self::Parsed => Fact::Flag(cmd.parsed),
            Self::Resolved => Fact::Flag(cmd.resolved),
            Self::Programs => Fact::Texts(&cmd.programs),
            Self::Flags => Fact::Texts(&cmd.flags),
            Self::Arguments => Fact::Texts(&cmd.args),
            Self::Mentions => Fact::Texts(&cmd.mentions),
            Self::Denies => Fact::Number(i64::from(facts.history.denies_10m)),
            Self::Runs => Fact::Number(i64::from(facts.history.runs_10m)),
        }
    }

    /// Reads `context.a` or `context.a.b` in Cedar's JSON form.
    fn read(expression: &Value) -> Option<Self> {
        let mut path = Vec::new();
        let mut rest = expression;
        while let Some(access) = only(rest, ".") {
            path.push(access.get("attr")?.as_str()?);
            rest = access.get("left")?;
        }
        if only(rest, "Var")?.as_str()? != "context" {
            return None;
        }
        path.reverse();
        let mut all = Self::ALL.into_iter();
        all.find(|(_, known)| *known == path).map(|(attribute, _)| attribute)
    }
}

impl Guard {
    /// Returns whether the condition is surely false.
    pub(crate) fn is_false(&self, facts: &Facts) -> bool {
        match self {
            Self::Text(attribute, wanted) => {
                matches!(attribute.of(facts), Fact::Text(text) if text != wanted)
            }
            Self::Flag(attribute, wanted) => {
                matches!(attribute.of(facts), Fact::Flag(flag) if flag != *wanted)
            }
            Self::AtLeast(attribute, least) => {
                matches!(attribute.of(facts), Fact::Number(number) if number < *least)
            }
            Self::Holds(attribute, any) => {
                matches!(attribute.of(facts), Fact::Texts(texts)
                    if !any.iter().any(|text| texts.contains(text)))
            }
        }
    }

    /// Returns the guards of a rule in Cedar's JSON form: what its `when` clauses demand at once.
    pub(crate) fn of_policy(policy: &Value) -> Vec<Self> {
        let conditions = policy.get("conditions").and_then(Value::as_array);
        if !never_fails(policy) {
            return Vec::new();
        }
        let clauses = conditions.into_iter().flatten();
        let wanted = clauses.filter(|clause| clause.get("kind").is_some_and(|kind| kind == "when"));
        let mut guards = Vec::new();
        let mut open: Vec<&Value> = wanted.filter_map(|clause| clause.get("body")).collect();
        while let Some(expression) = open.pop() {
            match only(expression, "&&") {
                Some(both) => open.extend(both.get("left").into_iter().chain(both.get("right"))),
                None => guards.extend(Self::read(expression)),
            }
        }
        guards
    }

    fn read(expression: &Value) -> Option<Self> {
        if let Some(attribute) = Attribute::read(expression) {
            return Some(Self::Flag(attribute, true));
        }
        if let Some(negated) = only(expression, "!") {
            return Some(Self::Flag(Attribute::read(negated.get("arg")?)?, false));
        }
        let sides = |operator: &str| {
            let sides = only(expression, operator)?;
            Some((Attribute::read(sides.get("left")?)?, sides.get("right")?))
        };
        if let Some((attribute, right)) = sides("==") {
            return Some(Self::Text(attribute, text(right)?));
        }
        if let Some((attribute, right)) = sides(">=") {
            return Some(Self::AtLeast(attribute, only(right, "Value")?.as_i64()?));
        }
        if let Some((attribute, right)) = sides("contains") {
            return Some(Self::Holds(attribute, vec![text(right)?]));
        }
        let (attribute, right) = sides("containsAny")?;
        let items = only(right, "Set")?.as_array()?.iter().map(text).collect::<Option<_>>()?;
        Some(Self::Holds(attribute, items))
    }
}

/// Operators that never fail on what the strict validator let through.
const SAFE: [&str; 20] = [
    "Value",
    "Var",
    "Set",
    ".",
    "has",
    "!",
    "&&",
    "||",
    "==",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "in",
    "contains",
    "containsAll",
    "containsAny",
    "like",
    "is",
];

/// Returns whether evaluating a validated rule, in Cedar's JSON form, is never an error.
pub(crate) fn never_fails(policy: &Value) -> bool {
    let conditions = policy.get("conditions").and_then(Value::as_array);
    let mut bodies = conditions.into_iter().flatten().map(|clause| clause.get("body"));
    bodies.all(|body| body.is_some_and(cannot_fail))
}

/// Returns whether evaluating an expression of a validated rule always gives a value.
fn cannot_fail(expression: &Value) -> bool {
    let Some(members) = expression.as_object() else { return false };
    let mut members = members.iter();
    let (Some((operator, operands)), None) = (members.next(), members.next()) else { return false };
    if !SAFE.contains(&operator.as_str()) {
        return false;
    }
    match operands {
        Value::Array(items) if operator == "Set" => items.iter().all(cannot_fail),
        Value::Object(operands) if operator != "Value" => {
            let parts = ["left", "right", "arg", "in"];
            parts.into_iter().filter_map(|part| operands.get(part)).all(cannot_fail)
        }
        _ => operator == "Value" || operator == "Var",
    }
}

/// Returns the value of the object's only member, if that is `name`.
fn only<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    let members = object.as_object()?;
    if members.len() == 1 { members.get(name) } else { None }
}

fn text(expression: &Value) -> Option<String> {
    only(expression, "Value")?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod random;

#[cfg(test)]
mod tests {
    use warrant_protocol::request::WorkspaceMode;

    use super::*;
    use crate::preset::Preset;
    use crate::questions::questions;
    use crate::terms::Terms;

    #[test]
    fn every_attribute_is_one_of_the_schema() {
        // A rule about an attribute that is not there is refused by the strict validator.
        for (attribute, path) in Attribute::ALL {
            let path = path.join(".");
            let condition = match attribute {
                Attribute::Shell | Attribute::Dynamic | Attribute::Parsed | Attribute::Resolved => {
                    format!("context.{path}")
                }
                Attribute::Programs
                | Attribute::Flags
                | Attribute::Arguments
                | Attribute::Mentions => format!("context.{path}.contains(\"x\")"),
                Attribute::Denies | Attribute::Runs => format!("context.{path} >= 3"),
                _ => format!("context.{path} == \"x\""),
            };
            let rule = format!(
                "@id(\"a\") @reason(\"b\") \
                 forbid (principal, action == Action::\"run\", resource) when {{ {condition} }};"
            );
            let rules = crate::rules::Rules::load(&rule).unwrap();
            let passed = rules.to_passed().unwrap();
            assert_eq!(passed[0].guards.len(), 1, "{condition}");
        }
    }

    /// Turns every attribute that guards look at into what it is not.
    fn turned(facts: &Facts) -> Vec<Facts> {
        let mut all = vec![facts.clone()];
        let mut add = |change: &dyn Fn(&mut Facts)| {
            let mut other = facts.clone();
            change(&mut other);
            all.push(other);
        };
        add(&|facts| facts.files.mode = WorkspaceMode::Direct);
        add(&|facts| facts.files.mode = WorkspaceMode::ReadOnly);
        add(&|facts| facts.cmd.shell = !facts.cmd.shell);
        add(&|facts| facts.cmd.parsed = !facts.cmd.parsed);
        add(&|facts| (facts.cmd.shell, facts.cmd.parsed) = (true, false));
        add(&|facts| facts.cmd.dynamic = !facts.cmd.dynamic);
        add(&|facts| facts.cmd.resolved = !facts.cmd.resolved);
        add(&|facts| facts.history.denies_10m = 99);
        add(&|facts| facts.history.denies_10m = 100);
        for program in ["sudo", "sudoku", "mount", "curl", "bash"] {
            add(&|facts| facts.cmd.programs.extend([program.to_owned()]));
        }
        all
    }

    #[test]
    fn where_guards_answer_cedar_answers_the_same() {
        let (mut known, mut asked) = (0, 0);
        for preset in Preset::ALL {
            let policy = preset.load().unwrap();
            let examples = Preset::ALL
                .into_iter()
                .flat_map(|preset| crate::examples::read(preset.text().examples).unwrap());
            let facts = examples.flat_map(|(_, example)| turned(&example.facts().unwrap()));
            for facts in facts {
                let terms = Terms::of(policy.document().body(), policy.controls(), &facts);
                let base = context::base(&facts, &terms).unwrap();
                for question in questions(policy.rules(), &facts) {
                    let Some(rule) = policy.rules().certain(&question, &facts) else {
                        asked += 1;
                        continue;
                    };
                    let context = context::of_question(&base, &question, None).unwrap();
                    let answer = policy.rules().answer(&facts.requester, &question, context);
                    assert!(answer.allowed && answer.rules.contains(&rule), "{question:?}");
                    known += 1;
                }
            }
        }
        assert!(known > 1000 && asked > 100, "{known} {asked}");
    }

    #[test]
    fn what_a_rule_may_do_without_is_no_guard() {
        let rule = "@id(\"a\") @reason(\"b\") \
            forbid (principal, action == Action::\"run\", resource) \
            when { context.mode == \"direct\" || context.cmd.shell } \
            unless { context.pool == \"p\" };";
        let rules = crate::rules::Rules::load(rule).unwrap();
        assert_eq!(rules.to_passed().unwrap()[0].guards, []);
    }

    #[test]
    fn a_rule_that_may_fail_has_no_guard() {
        let rule = "@id(\"a\") @reason(\"b\") \
            forbid (principal, action == Action::\"run\", resource) \
            when { context.mode == \"direct\" && context.history.denies_10m * 1000 > 7 };";
        let rules = crate::rules::Rules::load(rule).unwrap();
        assert_eq!(rules.to_passed().unwrap()[0].guards, []);
    }
}
