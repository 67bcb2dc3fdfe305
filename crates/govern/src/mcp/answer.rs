//! Answers: the same facts once as text for the model and once as JSON for programs.

use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock};
use serde_json::{Map, Value, json};
use warrant_plane::Judgment;
use warrant_protocol::observation::{CaptureExtent, ExportVerdict};
use warrant_protocol::{RunId, Timestamp};
use warrant_runner::Redactor;
use warrant_runner::run::Ended;
use warrant_workspace::{Gated, NotExported, TreePath, Verdict};

use super::secrets::redacted;
use crate::desk::{Desk, Permit};
use crate::keep::Kept;

/// How many changed paths are named in an answer.
const PATHS_NAMED: usize = 50;

/// What to do where nobody can be asked.
pub(crate) const NO_APPROVAL: &str = "No approval can change this answer. Do it another way, or ask the person to change the policy \
     (warrant policy show, warrant policy set).";

/// What a call is answered with.
#[derive(Debug)]
pub(crate) struct Answer {
    text: String,
    facts: Map<String, Value>,
    is_error: bool,
}

impl Answer {
    pub(crate) const fn good(text: String, facts: Map<String, Value>) -> Self {
        Self { text, facts, is_error: false }
    }

    pub(crate) const fn bad(text: String, facts: Map<String, Value>) -> Self {
        Self { text, facts, is_error: true }
    }

    /// The arguments do not make sense; nothing was judged.
    pub(crate) fn misuse(sentence: &str) -> Self {
        let facts = facts(json!({"status": "invalid-arguments", "problem": sentence}));
        Self::bad(format!("wrong arguments, nothing ran: {sentence}"), facts)
    }

    /// Something of ours failed. Whatever had not started by then does not start.
    pub(crate) fn broken(sentence: &str) -> Self {
        let facts = facts(json!({"status": "failed", "problem": sentence}));
        Self::bad(format!("refused, because governance failed: {sentence}"), facts)
    }

    /// It would not run, although policy allows it: it needs what it is not given.
    pub(crate) fn beyond(desk: &Desk, problem: &str) -> Self {
        let allowed = allowed(desk);
        let mut text = format!("it would be denied; nothing ran\n- {problem}\n");
        text.push_str(&format!("what is allowed: {}\n{NO_APPROVAL}\n", allowed.join("; ")));
        let facts = json!({"status": "denied", "reasons": [problem], "allowed": allowed});
        Self::bad(text, self::facts(facts))
    }

    /// Returns the answer without the values of secrets.
    pub(crate) fn without(self, redactor: &Redactor) -> Self {
        if redactor.is_empty() {
            return self;
        }
        let facts = facts(redacted(Value::Object(self.facts), redactor));
        Self { text: redactor.redact_text(&self.text), facts, is_error: self.is_error }
    }

    /// It did not run: policy said no, or people are asked first.
    pub(crate) fn not_run(desk: &Desk, permit: &Permit) -> Self {
        match permit {
            Permit::Denied { run, judgment, .. } => denied(desk, run, judgment),
            Permit::Waiting { run, judgment, deadline } => waiting(run, judgment, *deadline),
            // A granted permit is performed, never answered.
            Permit::Granted(run) => Self::broken(&format!("{run} was granted but not performed")),
        }
    }
}

impl From<Answer> for CallToolResponse {
    fn from(answer: Answer) -> Self {
        let content = vec![ContentBlock::text(answer.text)];
        let mut result = if answer.is_error {
            CallToolResult::error(content)
        } else {
            CallToolResult::success(content)
        };
        result.structured_content = Some(Value::Object(answer.facts));
        result.into()
    }
}

/// Returns the members of an object.
pub(crate) fn facts(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

fn denied(desk: &Desk, run: &RunId, judgment: &Judgment) -> Answer {
    let summary = &judgment.summary;
    let allowed = allowed(desk);
    let mut text = String::from("denied by policy; nothing ran\n");
    for reason in &summary.reasons {
        text.push_str(&format!("- {reason}\n"));
    }
    text.push_str(&format!("what is allowed: {}\n", allowed.join("; ")));
    text.push_str(&format!("{NO_APPROVAL}\n"));
    text.push_str(&format!("receipt: {run}\n"));
    let facts = facts(json!({
        "status": "denied",
        "runId": run,
        "reasons": summary.reasons,
        "rules": summary.rules,
        "allowed": allowed,
    }));
    Answer::bad(text, facts)
}

fn waiting(run: &RunId, judgment: &Judgment, deadline: Timestamp) -> Answer {
    let needs = requirements(judgment);
    let mut text = String::from("needs approval; nothing ran\n");
    for reason in &judgment.summary.reasons {
        text.push_str(&format!("- {reason}\n"));
    }
    text.push_str(&format!(
        "It needs {}. You cannot approve it. A person approves it with: warrant approve {run}\n\
         Then call exec again with exactly the same arguments; it runs once. It can be approved \
         until {deadline}.\n",
        needs.join(" and ")
    ));
    let facts = facts(json!({
        "status": "awaiting-approval",
        "runId": run,
        "reasons": judgment.summary.reasons,
        "requirements": judgment.requirements,
        "deadline": deadline,
    }));
    Answer::bad(text, facts)
}

/// Returns whose word a run needs.
pub(crate) fn requirements(judgment: &Judgment) -> Vec<String> {
    let name = |approver: &String| match approver.as_str() {
        "*" => "anyone but the requester".to_owned(),
        name => name.to_owned(),
    };
    judgment
        .requirements
        .iter()
        .map(|wanted| {
            let people: Vec<String> = wanted.approvers.iter().map(name).collect();
            format!("{} of: {} (level {})", wanted.quorum, people.join(", "), wanted.level)
        })
        .collect()
}

/// Returns what the policy in force permits, in a few phrases.
pub(crate) fn allowed(desk: &Desk) -> Vec<String> {
    let Some(policy) = desk.policy() else {
        return vec!["nothing, because no policy is in force".to_owned()];
    };
    let body = policy.document().body();
    let list = |names: Vec<String>, nothing: &str| match names.as_slice() {
        [] => nothing.to_owned(),
        names => names.join(", "),
    };
    let hosts = body.network.allow_hosts.iter().map(ToString::to_string).collect();
    let secrets = body.secrets.releasable.iter().map(|rule| rule.name.to_string()).collect();
    vec![
        "programs inside the sandbox, in the workspace".to_owned(),
        format!("hosts: {}", list(hosts, "none")),
        format!("secrets: {}", list(secrets, "none")),
    ]
}

/// Returns what became of a run's writes, as lines and as facts.
pub(crate) fn writes(kept: &Kept, ended: &Ended) -> (Vec<String>, Value) {
    let (mut lines, facts) = writes_kept(kept, ended);
    if !matches!(kept, Kept::Exported { .. }) {
        let kept_out = ended.judged.iter().filter(|one| one.verdict != ExportVerdict::Flagged);
        lines.extend(kept_out.take(PATHS_NAMED).map(|one| {
            format!(
                "{}: {} ({}); a person must make this change",
                one.verdict.as_str(),
                one.path,
                one.class
            )
        }));
    }
    if let Some(capture) = &ended.receipt.body().capture
        && capture.extent == CaptureExtent::Partial
    {
        let reason = capture.reason.as_deref().unwrap_or("no reason given");
        lines.push(format!("only a part of the changes was captured: {reason}"));
    }
    (lines, facts)
}

fn writes_kept(kept: &Kept, ended: &Ended) -> (Vec<String>, Value) {
    match kept {
        Kept::Nothing => (Vec::new(), json!({"writes": "none"})),
        Kept::AsDiff(diff) => {
            let line = "changed files are kept as a diff".to_owned();
            (vec![line], json!({"writes": "diff", "diffHash": diff}))
        }
        Kept::RolledBack => {
            let line = "its writes were dropped; the workspace is as it was".to_owned();
            (vec![line], json!({"writes": "rolled-back"}))
        }
        Kept::Exported { paths, gated, conflicts, left_out, git, .. } => {
            let name = |path: &TreePath| ended.name_of(path);
            let (mut lines, mut facts) = exported((paths, conflicts), gated, name);
            lines.extend(git.lines());
            let unkept: Vec<(String, &str)> = left_out
                .iter()
                .map(NotExported::told)
                .map(|(path, why)| (name(path), why))
                .collect();
            lines.extend(unkept.iter().map(|(path, why)| {
                format!("not kept, because it is {why}: {path} (the workspace has no such file)")
            }));
            let unkept: Vec<Value> =
                unkept.iter().map(|(path, why)| json!({"path": path, "reason": why})).collect();
            if let Value::Object(members) = &mut facts {
                members.insert("leftOut".to_owned(), json!(unkept));
                members.insert("git".to_owned(), git.facts());
            }
            (lines, facts)
        }
    }
}

fn exported(
    (paths, conflicts): (&[TreePath], &[TreePath]),
    gated: &[Gated],
    name: impl Fn(&TreePath) -> String,
) -> (Vec<String>, Value) {
    let names: Vec<String> = paths.iter().take(PATHS_NAMED).map(&name).collect();
    let mut lines = Vec::new();
    if !names.is_empty() {
        let more = paths.len().saturating_sub(PATHS_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        lines.push(format!("changed: {}{more}", names.join(", ")));
    }
    for gate in gated.iter().filter(|gate| gate.verdict != Verdict::Flag) {
        lines.push(format!(
            "not kept: {} (it {}; a person must make this change)",
            name(&gate.path),
            gate.class.reason()
        ));
    }
    lines.extend(conflicts.iter().map(|path| {
        let path = name(path);
        format!("not kept, because somebody else changed it meanwhile: {path} (read it again)")
    }));
    let held: Vec<Value> = gated
        .iter()
        .map(|gate| {
            let verdict = match gate.verdict {
                Verdict::Flag => "flag",
                Verdict::Hold => "hold",
                Verdict::Refuse => "refuse",
            };
            json!({"path": name(&gate.path), "verdict": verdict})
        })
        .collect();
    let facts = json!({
        "writes": "kept",
        "paths": names,
        "pathCount": paths.len(),
        "gated": held,
        "conflicts": conflicts.iter().map(&name).collect::<Vec<_>>(),
    });
    (lines, facts)
}
