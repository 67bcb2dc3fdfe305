//! `exec` and `request_approval`: programs that run, and programs that wait for people's word.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warrant_protocol::story::outcome_words;
use warrant_protocol::{Decision, Outcome, RunId, RunState, error_chain};
use warrant_runner::preview::{Terms, preview};

use super::answer::{Answer, NO_APPROVAL, allowed, facts, writes};
use super::arguments::Misuse;
use super::{Call, MOST_WAIT_MS, Server};
use crate::desk::{Desk, DeskError, Permit};
use crate::keep::Kept;
use crate::output::Capture;
use crate::workbench::{Errand, Step, WorkbenchError};

/// More blocked hosts than this are not told in words.
const MOST_HOSTS: usize = 5;

impl Server {
    /// Returns what a client tells its model about this server.
    pub(super) fn instructions(&self) -> String {
        let allowed = match self.bench.desk() {
            Ok(desk) => allowed(&desk).join("; "),
            Err(_) => "nothing, because the policy does not load".to_owned(),
        };
        format!(
            "A governed shell and files for the workspace {}. Every call is judged by policy, runs \
             inside the {} sandbox and leaves a signed receipt. Allowed now: {allowed}. Use these \
             tools instead of any other shell or file tool. A denial tells what is allowed and how \
             to ask; do not try to get around it.",
            self.bench.workspace().display(),
            self.bench.backend().isolation(),
        )
    }

    pub(super) fn exec(&self, mut call: Call) -> Result<Answer, Misuse> {
        let wanted = call.arguments.exec(self.bench.workspace())?;
        let call = call.finish()?;
        let capture = Arc::new(Capture::both_ends(wanted.output_bytes));
        Ok(match self.step(&wanted.errand, &call, &capture) {
            Ok(step) => self.told(&step, &capture),
            Err(answer) => answer,
        })
    }

    /// Takes a step and remembers it; `Err` is the answer to a step that did not run.
    pub(super) fn step(
        &self,
        errand: &Errand,
        call: &Call,
        capture: &Arc<Capture>,
    ) -> Result<Taken, Answer> {
        call.watch(capture, self.redactor()?);
        let step = self.bench.take(errand, &call.cancel, capture.as_ref());
        let had_secrets = match &step {
            Ok(Step::Ended { ended, .. }) => ended.had_secrets(),
            Err(WorkbenchError::Keep { .. }) => true,
            Ok(Step::NotRun(_)) | Err(_) => false,
        };
        if had_secrets {
            self.given(&errand.secrets);
        }
        match step {
            Ok(Step::Ended { ended, kept }) => {
                let mut done = self.done();
                done.last_run = Some(ended.run.clone());
                if let Kept::Exported { paths, change, .. } = &kept
                    && !paths.is_empty()
                {
                    done.kept.push(*change);
                }
                Ok(Taken { ended, kept })
            }
            Ok(Step::NotRun(permit)) => Err(self.not_run(&permit)),
            Err(error) => Err(failed(&error)),
        }
    }

    fn not_run(&self, permit: &Permit) -> Answer {
        if let Permit::Denied { run, .. } | Permit::Waiting { run, .. } = permit {
            self.done().last_run = Some(run.clone());
        }
        match self.bench.desk() {
            Ok(desk) => Answer::not_run(&desk, permit),
            Err(error) => Answer::broken(&error_chain(&error)),
        }
    }

    fn told(&self, done: &Taken, capture: &Capture) -> Answer {
        let (stdout, stderr) = capture.excerpts();
        let (lines, workspace) = writes(&done.kept, &done.ended);
        let ended = &done.ended;
        let mut text = stdout.text();
        let mut section = |title: &str, body: &str| {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(title);
            text.push_str(body);
        };
        if !stderr.head.is_empty() || !stderr.is_whole() {
            section("[standard error]\n", &stderr.text());
        }
        section("[warrant] ", &outcome_words(&ended.outcome));
        let is_silent = stdout.head.is_empty() && stderr.head.is_empty();
        let may_be_missing =
            is_silent && matches!(ended.outcome, Outcome::Exited { code: 126 | 127 });
        if (!is_the_programs(&ended.outcome) || may_be_missing) && !ended.message.is_empty() {
            section("[warrant] ", &ended.message);
        }
        let blocked = ended.blocked_hosts();
        if !blocked.is_empty() {
            let told: Vec<&str> = blocked.iter().copied().take(MOST_HOSTS).collect();
            section("[warrant] blocked hosts (`allow_hosts` asks for them): ", &told.join(", "));
        }
        let allowed = match (&ended.outcome, self.bench.desk()) {
            (Outcome::GapDenied, Ok(desk)) => Some(allowed(&desk)),
            _ => None,
        };
        if let Some(allowed) = &allowed {
            section("[warrant] what is allowed: ", &allowed.join("; "));
            section("[warrant] ", NO_APPROVAL);
        }
        for line in &lines {
            section("[warrant] ", line);
        }
        if !stdout.is_whole() || !stderr.is_whole() {
            section("[warrant] ", "output was shortened; ask for less of it at a time");
        }
        section("[warrant] receipt ", &format!("{}\n", ended.run));
        let exit_code = match ended.outcome {
            Outcome::Exited { code } => Some(code),
            _ => None,
        };
        let facts = facts(json!({
            "status": ended.receipt.body().status.as_str(),
            "runId": ended.run,
            "outcome": ended.outcome,
            "exitCode": exit_code,
            "message": ended.message,
            "blockedHosts": blocked,
            "stdout": stdout.text(),
            "stderr": stderr.text(),
            "stdoutMissingBytes": stdout.missing,
            "stderrMissingBytes": stderr.missing,
            "workspace": workspace,
            "allowed": allowed,
            "receiptHash": ended.receipt.hash(),
        }));
        if is_the_programs(&ended.outcome) {
            Answer::good(text, facts)
        } else {
            Answer::bad(text, facts)
        }
    }

    pub(super) fn request_approval(&self, mut call: Call) -> Result<Answer, Misuse> {
        let wait_ms = call.arguments.number("wait_ms", (0, MOST_WAIT_MS))?.unwrap_or(0);
        let wanted = call.arguments.exec(self.bench.workspace())?;
        let call = call.finish()?;
        let asked = self.ask_people(&wanted.errand);
        let (desk, permit) = match asked {
            Ok(Asked::Waiting(desk, permit)) => (desk, permit),
            Ok(Asked::Settled(answer)) => return Ok(answer),
            Err(error) => return Ok(failed(&error)),
        };
        let Permit::Waiting { run, .. } = permit.as_ref() else { return Ok(self.not_run(&permit)) };
        let deadline = Instant::now() + Duration::from_millis(wait_ms);
        Ok(match await_word(&desk, run, (deadline, &call)) {
            Ok(RunState::AwaitingApproval) => self.not_run(&permit),
            Ok(RunState::Queued) => approved(run),
            Ok(_) => refused(run),
            Err(error) => failed(&error.into()),
        })
    }

    fn ask_people(&self, errand: &Errand) -> Result<Asked, WorkbenchError> {
        let desk = self.bench.desk()?;
        let ask = self.bench.ask(&desk, errand)?;
        let judgment = desk.judge(&ask)?;
        if judgment.summary.decision == Decision::Allow {
            let terms = Terms { limits: judgment.limits.as_ref(), masks: &judgment.masks };
            let places = (ask.workspace.as_path(), desk.plane().home().root());
            let plan = preview(&ask.request, terms, places, self.bench.backend());
            if let Some(problem) = plan.get("refused").and_then(Value::as_str) {
                return Ok(Asked::Settled(Answer::beyond(&desk, problem)));
            }
            let text = "no approval is needed: policy allows it; call exec\n".to_owned();
            let facts = facts(json!({"status": "allowed"}));
            return Ok(Asked::Settled(Answer::good(text, facts)));
        }
        Ok(match desk.permit(&ask)? {
            Permit::Granted(run) => Asked::Settled(approved(&run)),
            permit => Asked::Waiting(desk, Box::new(permit)),
        })
    }
}

/// A step that has a receipt of its own.
pub(super) struct Taken {
    pub(super) ended: Box<warrant_runner::run::Ended>,
    pub(super) kept: Kept,
}

enum Asked {
    Waiting(Arc<Desk>, Box<Permit>),
    Settled(Answer),
}

impl Call {
    /// Refuses arguments that nobody took.
    pub(super) fn finish(mut self) -> Result<Self, Misuse> {
        let rest =
            std::mem::replace(&mut self.arguments, super::Arguments::new(Default::default()));
        rest.finish()?;
        Ok(self)
    }
}

/// Whether the program itself decided how it ended.
const fn is_the_programs(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Exited { .. } | Outcome::Signaled { .. })
}

fn failed(error: &WorkbenchError) -> Answer {
    Answer::broken(&error_chain(error))
}

fn approved(run: &RunId) -> Answer {
    let text = format!("{run} is approved; call exec with exactly the same arguments\n");
    Answer::good(text, facts(json!({"status": "approved", "runId": run})))
}

fn refused(run: &RunId) -> Answer {
    let text = format!("{run} was refused, or nobody approved it in time; do not ask again\n");
    Answer::bad(text, facts(json!({"status": "approval-refused", "runId": run})))
}

/// Waits until people gave their word, the time is up or the call is cancelled.
fn await_word(
    desk: &Desk,
    run: &RunId,
    (deadline, call): (Instant, &Call),
) -> Result<RunState, DeskError> {
    loop {
        let state = desk.plane().store().run(run)?.state;
        let is_over = Instant::now() >= deadline || call.cancel.is_cancelled();
        if state != RunState::AwaitingApproval || is_over {
            return Ok(state);
        }
        // Another process writes the approval; the store has no way to call us.
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns a fact of a text, or of bytes that are none.
pub(super) fn encoded(bytes: &[u8]) -> (&'static str, Value) {
    match std::str::from_utf8(bytes) {
        Ok(text) => ("utf-8", json!(text)),
        Err(_) => ("base64", json!(super::files::base64(bytes))),
    }
}
