//! Hooks of agents that have a shell and files of their own: a tool call comes in before it
//! happens, a verdict goes out in that agent's words.
//!
//! Start at [`ToolCall::read`], [`Intent::of`] and [`decide`]; [`Verdict::answer`] writes it down.
//! A shell command that policy allows is answered with the same command inside the sandbox; file
//! tools are judged by where they reach; everything that is not known is refused. Whoever calls
//! this turns every error into a denial.

mod intent;
mod place;
mod quote;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use thiserror::Error;
use warrant_plane::reception::APPROVAL_WAIT_MS;
use warrant_plane::{Judgment, Reception, Submission, random};
use warrant_protocol::{Decision, Digest, RunId};

pub use self::intent::Intent;
pub use self::place::{Place, Veils, is_below, place_of};
pub use self::quote::command_line;
use crate::ask::Ask;
use crate::desk::{Desk, DeskError, Permit};
use crate::keep::gate;

/// An agent whose hooks we answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// Claude Code.
    ClaudeCode,
    /// Codex.
    Codex,
}

/// A tool call that has not happened yet.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The tool, by the agent's name for it.
    pub tool: String,
    /// Its arguments.
    pub input: Map<String, Value>,
    /// Where the agent stands.
    pub cwd: PathBuf,
}

/// Why an event is no tool call.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InvalidEvent {
    /// Not JSON.
    #[error("the event is no JSON object")]
    NotJson,
    /// Another event.
    #[error("the event is `{0}`, and this hook answers PreToolUse alone")]
    OtherEvent(String),
    /// A member is missing or of the wrong kind.
    #[error("`{0}` of the event is missing or of the wrong kind")]
    Member(&'static str),
}

/// What the agent is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It may happen, with these arguments if they are there.
    Allow {
        /// The arguments to use instead.
        updated: Option<Map<String, Value>>,
    },
    /// We have nothing against it; the agent's own rules decide.
    NoObjection,
    /// The person at the agent is asked, and it happens with these arguments.
    Ask {
        /// Why.
        reason: String,
        /// The arguments to use instead.
        updated: Map<String, Value>,
    },
    /// It may not happen.
    Deny {
        /// Why, and what to do instead.
        reason: String,
    },
}

/// A command line and the ask that it makes, or why there is none.
pub type Rewritten = Result<(String, Ask), Box<dyn std::error::Error + Send + Sync>>;

/// What a verdict is made from, beside the call.
pub struct Judges<'a> {
    /// The desk.
    pub desk: &'a Desk,
    /// The workspace, canonical.
    pub workspace: &'a Path,
    /// Tools that the person who installed the hook lets pass unjudged.
    pub unjudged: &'a [String],
    /// Returns the command line that runs a script in the sandbox, and the ask that this very
    /// command line makes.
    pub in_sandbox: &'a dyn Fn(&str) -> Rewritten,
    /// Returns the ask of a program in the sandbox, for what has no command line of its own.
    pub ask: &'a dyn Fn(&[&str]) -> Ask,
}

/// Why there is no verdict; the call must be refused.
#[derive(Debug, Error)]
pub enum DecideError {
    /// The desk failed.
    #[error(transparent)]
    Desk(#[from] DeskError),
    /// The denial could not be recorded.
    #[error("the denial could not be recorded")]
    Record(#[from] warrant_plane::SubmitError),
    /// No clock.
    #[error("the system has no clock")]
    Clock(#[from] std::io::Error),
    /// Nobody can say which files are secrets.
    #[error("the workspace could not be searched for secrets")]
    Look(#[source] std::io::Error),
    /// The command cannot be put into the sandbox.
    #[error("the command cannot be put into the sandbox")]
    Rewrite(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Agent {
    /// Returns the agent's name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
        }
    }

    /// Returns the agent of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::ClaudeCode, Self::Codex].into_iter().find(|agent| agent.as_str() == name)
    }
}

impl ToolCall {
    /// Reads the event that an agent writes to its hook.
    ///
    /// # Errors
    /// [`InvalidEvent`] naming what is wrong.
    pub fn read(bytes: &[u8]) -> Result<Self, InvalidEvent> {
        let Ok(Value::Object(mut event)) = serde_json::from_slice(bytes) else {
            return Err(InvalidEvent::NotJson);
        };
        let mut text = |name: &'static str| match event.remove(name) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text),
            _ => Err(InvalidEvent::Member(name)),
        };
        let kind = text("hook_event_name")?;
        if kind != "PreToolUse" {
            return Err(InvalidEvent::OtherEvent(kind));
        }
        let (tool, cwd) = (text("tool_name")?, PathBuf::from(text("cwd")?));
        if !cwd.is_absolute() {
            return Err(InvalidEvent::Member("cwd"));
        }
        let Some(Value::Object(input)) = event.remove("tool_input") else {
            return Err(InvalidEvent::Member("tool_input"));
        };
        Ok(Self { tool, input, cwd })
    }
}

impl Verdict {
    /// Returns the verdict in an agent's own words, as JSON for its hook's standard output.
    #[must_use]
    pub fn answer(&self, agent: Agent) -> Value {
        let (word, reason, updated) = match (self, agent) {
            (Self::Allow { updated: Some(updated) }, _) => ("allow", None, Some(updated)),
            (Self::Allow { updated: None }, Agent::ClaudeCode) => ("allow", None, None),
            // Codex takes an allow only together with arguments.
            (Self::Allow { updated: None }, Agent::Codex) | (Self::NoObjection, _) => {
                return json!({});
            }
            (Self::Ask { reason, updated }, Agent::ClaudeCode) => {
                ("ask", Some(reason), Some(updated))
            }
            // Codex cannot ask: whoever must be asked first has not been.
            (Self::Ask { reason, .. }, Agent::Codex) | (Self::Deny { reason }, _) => {
                ("deny", Some(reason), None)
            }
        };
        let mut specific = json!({"hookEventName": "PreToolUse", "permissionDecision": word});
        if let Value::Object(members) = &mut specific {
            if let Some(reason) = reason {
                members.insert("permissionDecisionReason".to_owned(), json!(reason));
            }
            if let Some(updated) = updated {
                members.insert("updatedInput".to_owned(), json!(updated));
            }
        }
        json!({ "hookSpecificOutput": specific })
    }
}

/// Decides about one tool call.
///
/// # Errors
/// [`DecideError`]; the caller must refuse the call then.
pub fn decide(judges: &Judges<'_>, call: &ToolCall) -> Result<Verdict, DecideError> {
    if judges.unjudged.contains(&call.tool) {
        return Ok(Verdict::NoObjection);
    }
    match Intent::of(call) {
        Intent::Script(script) => judge_script(judges, call, &script),
        Intent::Read(paths) => judge_paths(judges, call, (&paths, Access::Read)),
        Intent::Write(paths) => judge_paths(judges, call, (&paths, Access::Write)),
        Intent::Harmless => Ok(Verdict::NoObjection),
        Intent::Governed => Ok(Verdict::Allow { updated: None }),
        Intent::Refused(reason) => Ok(Verdict::Deny { reason }),
    }
}

fn judge_script(
    judges: &Judges<'_>,
    call: &ToolCall,
    script: &str,
) -> Result<Verdict, DecideError> {
    let (line, ask) = (judges.in_sandbox)(script).map_err(DecideError::Rewrite)?;
    let mut updated = call.input.clone();
    updated.insert("command".to_owned(), json!(line));
    let judgment = judges.desk.judge(&ask)?;
    match judgment.summary.decision {
        // The run itself is judged again, contracted and sealed when the command line starts.
        Decision::Allow => Ok(Verdict::Allow { updated: Some(updated) }),
        Decision::Ask | Decision::Deny => Ok(match judges.desk.permit(&ask)? {
            // Approved since it was asked for: the rewritten command uses that approval, once.
            Permit::Granted(_) => Verdict::Allow { updated: Some(updated) },
            Permit::Waiting { run, judgment, .. } => {
                Verdict::Ask { reason: waiting(&run, &judgment), updated }
            }
            Permit::Denied { run, judgment, .. } => {
                Verdict::Deny { reason: denied(&run, &judgment) }
            }
        }),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// Judges a file tool: by policy, and every path by where it really lies.
fn judge_paths(
    judges: &Judges<'_>,
    call: &ToolCall,
    (paths, access): (&[PathBuf], Access),
) -> Result<Verdict, DecideError> {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let mut argv = vec![match access {
        Access::Read => "cat",
        Access::Write => "tee",
    }];
    argv.push("--");
    argv.extend(names.iter().map(String::as_str));
    let mut ask = (judges.ask)(&argv);
    let judgment = judges.desk.judge(&ask)?;
    let decision = judgment.summary.decision;
    let veils = Veils::find(judges.workspace, &judgment.masks).map_err(DecideError::Look)?;
    let reasons = objections(judges, &veils, (paths, access));
    if decision != Decision::Deny && !reasons.is_empty() {
        let run = record_denial(judges.desk, &ask, reasons.clone())?;
        let reason = format!(
            "{}. The workspace is {}. Shell commands run in the sandbox and may read more. \
             Receipt: {run}",
            reasons.join("; "),
            judges.workspace.display(),
        );
        return Ok(Verdict::Deny { reason });
    }
    if decision == Decision::Allow {
        return Ok(Verdict::Allow { updated: None });
    }
    // SECURITY: people approve this call with everything in it, not whatever is written there.
    let input = Digest::of(Value::Object(call.input.clone()).to_string().as_bytes());
    ask.request.prompt = format!("{} with {input}: {}", call.tool, ask.request.prompt);
    Ok(match judges.desk.permit(&ask)? {
        Permit::Granted(run) => {
            // The agent carries it out, so nothing of ours would ever use the approval up.
            judges.desk.plane().cancel(&run, &ask.principal).map_err(DeskError::from)?;
            Verdict::NoObjection
        }
        Permit::Waiting { run, judgment, .. } => Verdict::Deny { reason: waiting(&run, &judgment) },
        Permit::Denied { run, judgment, .. } => Verdict::Deny { reason: denied(&run, &judgment) },
    })
}

/// Returns what speaks against paths, whatever policy says of the call.
fn objections(
    judges: &Judges<'_>,
    veils: &Veils,
    (paths, access): (&[PathBuf], Access),
) -> Vec<String> {
    let gate = gate(judges.desk);
    let home = judges.desk.plane().home().root();
    let told = |path: &PathBuf| {
        let place = match is_below(path, home) {
            true => Place::Masked,
            false => place_of(path, judges.workspace, veils, &gate),
        };
        objection(path, &place, access)
    };
    paths.iter().filter_map(told).collect()
}

fn objection(path: &Path, place: &Place, access: Access) -> Option<String> {
    let path = path.display();
    match place {
        Place::Inside => None,
        Place::Later if access == Access::Read => None,
        Place::Later => Some(format!(
            "{path} would run by itself later (hook, settings, startup file): a person must change it"
        )),
        Place::Outside => Some(format!("{path} lies outside the workspace")),
        Place::Masked => Some(format!("{path} holds secrets by its name")),
    }
}

/// Leaves the evidence of a denial that policy alone would not have made.
fn record_denial(desk: &Desk, ask: &Ask, reasons: Vec<String>) -> Result<RunId, DecideError> {
    let submission = Submission {
        request: ask.request.clone(),
        principal: ask.principal.clone(),
        idempotency_key: None,
        approval_wait_ms: APPROVAL_WAIT_MS,
    };
    let around = ask.around(random::now()?.unix_ms());
    let reception = desk.plane().submit(submission, |request| {
        let mut judgment = desk.plane().judge(desk.policy(), request, around);
        judgment.summary.decision = Decision::Deny;
        judgment.summary.reasons = reasons;
        judgment.summary.rules = vec!["hook-files".to_owned()];
        judgment.requirements.clear();
        judgment
    })?;
    Ok(match reception {
        Reception::Denied { run, .. }
        | Reception::Queued { run }
        | Reception::AwaitingApproval { run, .. }
        | Reception::Repeated { run, .. } => run,
    })
}

fn denied(run: &RunId, judgment: &Judgment) -> String {
    format!(
        "Warrant policy denies this and nothing ran: {}. Do it another way, or ask the person to \
         change the policy (warrant policy show). Receipt: {run}",
        judgment.summary.reasons.join("; ")
    )
}

fn waiting(run: &RunId, judgment: &Judgment) -> String {
    format!(
        "Warrant policy lets this run only with approval: {}. A person approves it with: warrant \
         approve {run}. Then repeat exactly the same command; it runs once.",
        judgment.summary.reasons.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(verdict: &Verdict, agent: Agent, expected: Value) {
        assert_eq!(verdict.answer(agent), expected, "{agent:?} {verdict:?}");
    }

    fn updated() -> Map<String, Value> {
        Map::from_iter([("command".to_owned(), json!("x"))])
    }

    fn specific(members: Value) -> Value {
        let mut specific = json!({"hookEventName": "PreToolUse"});
        specific.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        json!({"hookSpecificOutput": specific})
    }

    #[test]
    fn every_verdict_is_told_in_the_agents_own_words() {
        let reason = || "why".to_owned();
        let allow = Verdict::Allow { updated: Some(updated()) };
        let told = json!({"permissionDecision": "allow", "updatedInput": {"command": "x"}});
        check(&allow, Agent::ClaudeCode, specific(told.clone()));
        check(&allow, Agent::Codex, specific(told));
        let plain = Verdict::Allow { updated: None };
        check(&plain, Agent::ClaudeCode, specific(json!({"permissionDecision": "allow"})));
        check(&plain, Agent::Codex, json!({}));
        for agent in [Agent::ClaudeCode, Agent::Codex] {
            check(&Verdict::NoObjection, agent, json!({}));
            let told = json!({"permissionDecision": "deny", "permissionDecisionReason": "why"});
            check(&Verdict::Deny { reason: reason() }, agent, specific(told));
        }
        let ask = Verdict::Ask { reason: reason(), updated: updated() };
        check(
            &ask,
            Agent::ClaudeCode,
            specific(json!({
                "permissionDecision": "ask",
                "permissionDecisionReason": "why",
                "updatedInput": {"command": "x"},
            })),
        );
        let told = json!({"permissionDecision": "deny", "permissionDecisionReason": "why"});
        check(&ask, Agent::Codex, specific(told));
    }

    #[test]
    fn an_event_is_read_or_refused_by_its_member() {
        let event = json!({
            "session_id": "s", "cwd": "/w", "hook_event_name": "PreToolUse",
            "tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "t",
        });
        let call = ToolCall::read(event.to_string().as_bytes()).unwrap();
        assert_eq!((call.tool.as_str(), call.cwd.as_path()), ("Bash", Path::new("/w")));
        let refused = |name: &str, value: Value| {
            let mut event = event.clone();
            event[name] = value;
            ToolCall::read(event.to_string().as_bytes()).unwrap_err()
        };
        assert_eq!(refused("tool_name", json!(3)), InvalidEvent::Member("tool_name"));
        assert_eq!(refused("tool_input", json!("ls")), InvalidEvent::Member("tool_input"));
        assert_eq!(refused("cwd", json!("w")), InvalidEvent::Member("cwd"));
        assert_eq!(
            refused("hook_event_name", json!("Stop")),
            InvalidEvent::OtherEvent("Stop".to_owned())
        );
        for bytes in [&b"[]"[..], b"{", b"", b"\xff"] {
            assert_eq!(ToolCall::read(bytes).unwrap_err(), InvalidEvent::NotJson);
        }
    }
}
