//! How a run ended, as people and programs are told: the last line of `warrant run` and
//! `warrant watch`, and their exit code.

use std::io::{self, IsTerminal as _};

use serde_json::{Value, json};
use warrant_protocol::{Outcome, RunId};

use crate::commands::exec::report::exit_of;
use crate::commands::reading::insert_bytes;
use crate::exit::Exit;
use crate::ui::{self, Tone, paint};

/// The end of a run as its bundle tells it.
#[derive(Debug)]
pub(crate) struct RunEnding {
    run: RunId,
    /// The receipt's status, or what else is known of a run without a receipt.
    status: String,
    exit: Exit,
    /// Who cancelled it.
    cancelled_by: Option<Value>,
    /// Why it was cancelled or failed.
    reason: Option<String>,
}

impl RunEnding {
    /// Reads how a run ended. Without a bundle only `status` is known.
    pub(crate) fn read(run: &RunId, bundle: Option<&Value>, status: &str) -> Self {
        let receipt = bundle.and_then(|bundle| bundle.get("receipt"));
        let member = |name: &str| receipt.and_then(|receipt| receipt.get(name));
        let status = member("status").and_then(Value::as_str).unwrap_or(status).to_owned();
        let outcome = member("outcome").cloned();
        let outcome = outcome.and_then(|outcome| serde_json::from_value::<Outcome>(outcome).ok());
        let exit = match (&outcome, status.as_str()) {
            (Some(outcome), _) => exit_of(outcome),
            (None, "completed") => Exit::Success,
            (None, "cancelled") => Exit::Cancelled,
            (None, _) => Exit::Failure,
        };
        let last = |kind: &str| bundle.and_then(|bundle| last_event(bundle, kind));
        let cancelled = last("run.cancelled");
        let text = |event: &Option<&Value>, name: &str| {
            event.and_then(|event| event.get(name)?.as_str()).map(str::to_owned)
        };
        let is_program = exit.owner() == "program";
        let failed = last("run.failed").filter(|_| !is_program);
        Self {
            run: run.clone(),
            status,
            exit,
            cancelled_by: cancelled.and_then(|event| event.get("actor")).cloned(),
            reason: text(&cancelled, "reason").or_else(|| text(&failed, "message")),
        }
    }

    /// Returns what the command ends with.
    pub(crate) const fn exit(&self) -> Exit {
        self.exit
    }

    /// Prints the line for people.
    pub(crate) fn note(&self) {
        let tone = if self.exit.code() == 0 { Tone::Good } else { Tone::Bad };
        let status = paint(&ui::printable(&self.status), tone, io::stderr().is_terminal());
        let run = &self.run;
        let by = self.cancelled_by.as_ref().map(|actor| format!(" by {}", actor_text(actor)));
        let reason = self.reason.as_ref().map(|reason| format!(": {}", ui::printable(reason)));
        let (by, reason) = (by.unwrap_or_default(), reason.unwrap_or_default());
        let code = exit_text(self.exit);
        ui::note(&format!(
            "warrant: {run} {status}{by}{reason} · {code} · receipt: warrant receipt {run}"
        ));
    }

    /// Returns the last object of `--json`, with what the program printed.
    pub(crate) fn json(&self, output: Vec<u8>) -> Value {
        let mut object = json!({
            "runId": self.run,
            "status": self.status,
            "exitCode": self.exit.code(),
            "exitCodeIs": self.exit.owner(),
        });
        if let Value::Object(members) = &mut object {
            if let Some(actor) = &self.cancelled_by {
                members.insert("cancelledBy".to_owned(), actor.clone());
            }
            if let Some(reason) = &self.reason {
                members.insert("reason".to_owned(), json!(reason));
            }
        }
        insert_bytes(&mut object, ("output", "outputBase64"), output);
        object
    }
}

/// Says what an exit code is and whose it is.
pub(crate) fn exit_text(exit: Exit) -> String {
    let owner = if exit.owner() == "program" { "the program's" } else { "warrant's own" };
    format!("exit code {} is {owner}", exit.code())
}

fn last_event<'a>(bundle: &'a Value, kind: &str) -> Option<&'a Value> {
    let events = bundle.get("events")?.as_array()?;
    let mut bodies = events.iter().rev().filter_map(|link| link.get("event"));
    bodies.find(|event| event.get("type").and_then(Value::as_str) == Some(kind))
}

fn actor_text(actor: &Value) -> String {
    let member = |name: &str| ui::printable(actor.get(name).and_then(Value::as_str).unwrap_or("?"));
    format!("{} {}", member("kind"), member("id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(receipt: Value, events: Value) -> RunEnding {
        let run = "run_00000000-0000-4000-8000-000000000000".parse().unwrap();
        let bundle = json!({"receipt": receipt, "events": events});
        RunEnding::read(&run, Some(&bundle), "running")
    }

    #[test]
    fn a_denial_and_a_program_that_exits_with_3_are_told_apart() {
        let outcome = json!({"kind": "exited", "code": 3});
        let program = ending(json!({"status": "failed", "outcome": outcome}), json!([]));
        let outcome = json!({"kind": "denied"});
        let denied = ending(json!({"status": "failed", "outcome": outcome}), json!([]));
        assert_eq!((program.exit().code(), denied.exit().code()), (3, 3));
        assert_eq!(program.json(Vec::new())["exitCodeIs"], "program");
        assert_eq!(denied.json(Vec::new())["exitCodeIs"], "warrant");
    }

    #[test]
    fn a_cancellation_names_its_author_and_its_reason() {
        let event = json!({"event": {
            "type": "run.cancelled",
            "actor": {"kind": "human", "id": "ann"},
            "reason": "the wrong branch",
        }});
        let outcome = json!({"kind": "cancelled"});
        let ending = ending(json!({"status": "cancelled", "outcome": outcome}), json!([event]));
        let told = ending.json(Vec::new());
        assert_eq!(told["cancelledBy"]["id"], "ann");
        assert_eq!(told["reason"], "the wrong branch");
    }

    #[test]
    fn a_run_without_a_receipt_is_not_called_cancelled() {
        let run = "run_00000000-0000-4000-8000-000000000000".parse().unwrap();
        let ending = RunEnding::read(&run, None, "failed");
        assert_eq!((ending.status.as_str(), ending.exit()), ("failed", Exit::Failure));
    }
}
