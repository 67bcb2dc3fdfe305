//! A policy's own examples: facts and what must be decided about them.
//!
//! One JSON object in a line: `name`, what differs from a plain request (`argv`, `script`,
//! `facts`), and what is expected (`expect`, and optionally `level`, `rules`, `reasons`).

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;
use warrant_protocol::Decision as Answer;
use warrant_protocol::execution::ShellName;
use warrant_protocol::json as wire;

use crate::decision::{Decision, decide};
use crate::facts::{CommandFacts, Facts, ProgramFile};
use crate::snapshot::PolicySnapshot;

/// One example.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Example {
    /// What it shows.
    pub name: String,
    /// The command, a program with its arguments.
    pub argv: Option<Vec<String>>,
    /// The command, a script.
    pub script: Option<String>,
    /// The program's real path.
    pub program: Option<String>,
    /// What else differs from a plain request, as a JSON merge patch over its facts.
    pub facts: Option<Value>,
    /// What must be decided.
    pub expect: Answer,
    /// At which level must be asked.
    pub level: Option<u8>,
    /// Rules that must have decided.
    #[serde(default)]
    pub rules: BTreeSet<String>,
    /// Texts that must appear in the reasons.
    #[serde(default)]
    pub reasons: Vec<String>,
}

/// Why examples cannot be read.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("example in line {line}: {message}")]
pub struct InvalidExamples {
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub message: String,
}

/// An example that is decided differently than it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExampleFailure {
    /// Which line, from 1.
    pub line: usize,
    /// What it shows.
    pub name: String,
    /// How it differs.
    pub message: String,
}

/// Returns the facts of a plain request: `true`, by a service, in the namespace tier.
#[must_use]
pub fn plain_facts() -> Value {
    json!({
        "requester": "service:agent",
        "agentKind": "command",
        "pool": "default",
        "execution": {"kind": "argv"},
        "cwd": ".",
        "env": {"names": [], "inherit": [], "secrets": [], "egressProxy": true},
        "network": {"defaultDeny": true, "hosts": [], "egress": []},
        "files": {"read": [], "write": [], "mode": "overlay"},
        "secrets": [],
        "isolation": "namespace",
        "limits": {},
        "disclosure": "none",
        "dataClasses": [],
        "requiredPosture": [],
        "acceptedEvidence": {},
        "history": {"runExecs": 0, "denies10m": 0, "spentCents": 0},
        "nowMs": 1_700_000_000_000_u64,
        "approvals": [],
    })
}

/// Reads examples.
///
/// # Errors
/// [`InvalidExamples`] naming the first line that is wrong.
pub fn read(text: &str) -> Result<Vec<(usize, Example)>, InvalidExamples> {
    let mut examples = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let line_number = index + 1;
        let fault = |message: String| InvalidExamples { line: line_number, message };
        let value = wire::parse(line.as_bytes()).map_err(|cause| fault(cause.detail()))?;
        let example: Example = wire::view(&value).map_err(|cause| fault(cause.detail()))?;
        examples.push((line_number, example));
    }
    Ok(examples)
}

/// Decides every example and returns those that are decided differently than they say.
///
/// # Errors
/// [`InvalidExamples`] naming the first line that is wrong.
pub fn run(policy: &PolicySnapshot, text: &str) -> Result<Vec<ExampleFailure>, InvalidExamples> {
    let mut failures = Vec::new();
    for (line, example) in read(text)? {
        let facts = example.facts().map_err(|message| InvalidExamples { line, message })?;
        if let Some(message) = example.differs(&decide(policy, &facts)) {
            failures.push(ExampleFailure { line, name: example.name, message });
        }
    }
    Ok(failures)
}

impl Example {
    /// Returns the facts the example speaks of.
    ///
    /// # Errors
    /// A sentence naming the member that does not fit.
    pub fn facts(&self) -> Result<Facts, String> {
        let file = self.program.clone().map(|path| ProgramFile { path, digest: None });
        let mut value = plain_facts();
        let cmd = match (&self.argv, &self.script) {
            (Some(argv), None) => {
                let (command, args) = argv.split_first().ok_or("argv is empty")?;
                CommandFacts::of_argv(command, args, file.as_ref())
            }
            (None, Some(script)) => {
                merge(&mut value, &json!({"execution": {"kind": "shell"}}));
                CommandFacts::of_script(script, ShellName::Sh, file.as_ref())
            }
            (None, None) => CommandFacts::of_argv("true", &[], file.as_ref()),
            (Some(_), Some(_)) => return Err("either argv or script".to_owned()),
        };
        let cmd = wire::to_value(&cmd).map_err(|cause| cause.detail())?;
        merge(&mut value, &json!({ "cmd": cmd }));
        if let Some(patch) = &self.facts {
            merge(&mut value, patch);
        }
        wire::view(&value).map_err(|cause| cause.detail())
    }

    /// Returns how a decision differs from what is expected.
    fn differs(&self, decision: &Decision) -> Option<String> {
        let (answer, level, rules) = match decision {
            Decision::Allow { rules, .. } => (Answer::Allow, None, rules),
            Decision::Ask(ask) => (Answer::Ask, Some(ask.level), &ask.rules),
            Decision::Deny { rules, .. } => (Answer::Deny, None, rules),
        };
        let said = decision.reason();
        if answer != self.expect {
            return Some(format!("expected {:?}, decided {answer:?}: {said}", self.expect));
        }
        if self.level.is_some() && self.level != level {
            return Some(format!("expected level {:?}, asked {level:?}", self.level));
        }
        let decided: BTreeSet<String> = rules.iter().map(|rule| rule.id.clone()).collect();
        if let Some(missing) = self.rules.difference(&decided).next() {
            return Some(format!("rule `{missing}` did not decide; {decided:?} did"));
        }
        let missing = self.reasons.iter().find(|text| !said.contains(text.as_str()));
        missing.map(|text| format!("`{text}` is not among the reasons: {said}"))
    }
}

/// Applies a JSON merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Value::Object(members) = target else { return };
    for (name, value) in patch {
        if value.is_null() {
            members.remove(name);
        } else {
            merge(members.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Returns failures in one line.
pub(crate) fn told(failures: &[ExampleFailure]) -> String {
    let lines = failures.iter().map(|f| format!("line {} ({}): {}", f.line, f.name, f.message));
    lines.collect::<Vec<_>>().join("; ")
}
