//! `diff`, `undo` and `receipt`: looking back at what runs of this client did.

use serde_json::{Value, json};
use warrant_protocol::event::ArtifactKind;
use warrant_protocol::story::{Story, answers};
use warrant_protocol::{RunId, error_chain};
use warrant_workspace::{Changed, TreePath, UndoError};

use super::answer::{Answer, facts};
use super::arguments::Misuse;
use super::{Call, Server};
use crate::desk::Desk;
use crate::keep::{KEPT_CHANGES, open_journal};
use crate::record::{self, RecordError};

/// How much of a diff is given back.
const DIFF_BYTES: u64 = 256 * 1024;

impl Server {
    pub(super) fn diff(&self, call: Call) -> Result<Answer, Misuse> {
        let (desk, run) = match self.subject(call)? {
            Ok(subject) => subject,
            Err(answer) => return Ok(answer),
        };
        let found = record::artifact_bytes(&desk, &run, (ArtifactKind::Diff, DIFF_BYTES));
        Ok(match found {
            Err(error) => Answer::broken(&error_chain(&error)),
            Ok(None) => {
                let facts = facts(json!({"runId": run, "diff": ""}));
                Answer::good(format!("{run} changed nothing\n"), facts)
            }
            Ok(Some((bytes, has_more))) => {
                let diff = String::from_utf8_lossy(&bytes).into_owned();
                let facts = facts(json!({"runId": run, "diff": diff, "hasMore": has_more}));
                let more = if has_more { "\n[the rest of the diff is left out]" } else { "" };
                Answer::good(format!("{diff}{more}"), facts)
            }
        })
    }

    pub(super) fn receipt(&self, call: Call) -> Result<Answer, Misuse> {
        let (desk, run) = match self.subject(call)? {
            Ok(subject) => subject,
            Err(answer) => return Ok(answer),
        };
        let verified = match record::verified(&desk, &run) {
            Ok(verified) => verified,
            Err(error @ RecordError::NoBundle { .. }) => {
                let facts = facts(json!({"status": "not-ended", "runId": run}));
                return Ok(Answer::bad(format!("{}\n", error_chain(&error)), facts));
            }
            Err(error) => return Ok(Answer::broken(&error_chain(&error))),
        };
        let story = Story::of(&verified);
        if story.secrets.is_empty() && names_secrets(&desk, &run) {
            return Ok(veiled(&story));
        }
        let mut text = format!("{} {} (verified)\n", story.run_id, story.status);
        let mut told = serde_json::Map::new();
        for answer in answers(&verified) {
            text.push_str(&format!("\n{}\n", answer.question));
            for line in &answer.lines {
                text.push_str(&format!("  {line}\n"));
            }
            told.insert(answer.question.to_owned(), json!(answer.lines));
        }
        let facts = facts(json!({"verified": true, "story": story, "answers": told}));
        Ok(Answer::good(text, facts))
    }

    pub(super) fn undo(&self, mut call: Call) -> Result<Answer, Misuse> {
        let changed =
            if call.arguments.flag("force")? { Changed::Overwrite } else { Changed::Refuse };
        call.finish()?;
        let desk = match self.bench.desk() {
            Ok(desk) => desk,
            Err(error) => return Ok(Answer::broken(&error_chain(&error))),
        };
        let _writing = self.bench.hold();
        Ok(self.put_back(&desk, changed))
    }

    fn put_back(&self, desk: &Desk, changed: Changed) -> Answer {
        let workspace = self.bench.workspace();
        let refused = |text: &str| {
            Answer::bad(format!("{text}\n"), facts(json!({"status": "refused", "problem": text})))
        };
        let journal = match open_journal(desk, workspace) {
            Ok((journal, _)) => journal,
            Err(error) => return Answer::broken(&error_chain(&error)),
        };
        let mut done = self.done();
        match journal.undo_of(workspace, &done.kept, changed) {
            Ok((change, undone)) => {
                // It is undone, whether or not its record gets smaller.
                let _ = journal.tidy(KEPT_CHANGES);
                done.kept.retain(|kept| *kept != change);
                let paths = names(&undone.paths);
                let left = names(&undone.left);
                let facts = facts(json!({"status": "undone", "paths": paths, "left": left}));
                Answer::good(format!("put back: {}\n", paths.join(", ")), facts)
            }
            Err(UndoError::Changed { paths, .. }) => refused(&format!(
                "these files changed since, and undo would lose that (`force` does it): {}",
                names(&paths).join(", ")
            )),
            Err(UndoError::Theirs { paths, .. }) => refused(&format!(
                "somebody else's run changed these files since, and that is not yours to undo: {}",
                names(&paths).join(", ")
            )),
            Err(UndoError::Nothing) => refused("there is no change of this session to undo"),
            Err(error) => Answer::broken(&error_chain(&error)),
        }
    }

    /// Returns the run a call names, or the last one of this session.
    fn subject(
        &self,
        mut call: Call,
    ) -> Result<Result<(std::sync::Arc<Desk>, RunId), Answer>, Misuse> {
        let named = call.arguments.text("run")?;
        call.finish()?;
        let desk = match self.bench.desk() {
            Ok(desk) => desk,
            Err(error) => return Ok(Err(Answer::broken(&error_chain(&error)))),
        };
        let missing = |text: String| {
            Err(Answer::bad(format!("{text}\n"), facts(json!({"status": "not-found"}))))
        };
        let Some(text) = named else {
            return Ok(match self.done().last_run.clone() {
                Some(run) => Ok((desk, run)),
                None => missing("nothing ran in this session yet".to_owned()),
            });
        };
        Ok(match desk.run_named(&text) {
            Ok(run) if self.is_ours(&desk, &run) => Ok((desk, run)),
            _ => missing(format!("there is no run {text} in this workspace")),
        })
    }

    /// Whether a run was asked for by this client's principal in this workspace.
    // SECURITY: an agent in one project must not read what another one did elsewhere.
    fn is_ours(&self, desk: &Desk, run: &RunId) -> bool {
        let Ok(row) = desk.plane().store().run(run) else { return false };
        let place = format!("(in {})", self.bench.workspace().display());
        row.requested_by == self.bench.principal().label() && row.prompt.ends_with(&place)
    }
}

/// Whether a run asked for secrets.
fn names_secrets(desk: &Desk, run: &RunId) -> bool {
    let Ok(row) = desk.plane().store().run(run) else { return true };
    let request: Value = serde_json::from_str(&row.request).unwrap_or(Value::Null);
    let names = request.get("secretNames").and_then(Value::as_array);
    names.is_none_or(|names| !names.is_empty())
}

/// What an agent is told of a run that did not get the secrets it asked for.
// SECURITY: its own words, read back with a value taken out of them, would tell the agent that it
// guessed the value.
fn veiled(story: &Story) -> Answer {
    let (run, status) = (&story.run_id, &story.status);
    let note = "what it asked for is not repeated: it names secrets that it did not get";
    let facts = facts(json!({"verified": true, "runId": run, "status": status, "note": note}));
    Answer::good(format!("{run} {status} (verified)\n  {note}\n"), facts)
}

fn names(paths: &[TreePath]) -> Vec<String> {
    paths.iter().map(ToString::to_string).collect()
}
