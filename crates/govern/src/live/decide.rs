//! Decisions about commands that are executed by a later call: judged in both forms, and kept.

use std::collections::{BTreeMap, BTreeSet};

use warrant_plane::doors::{Decided, Question, RefusedExecution, Verdict, WorkshopError};
use warrant_plane::random;
use warrant_plane::{Judgment, Note, Reception, Submission, reception::APPROVAL_WAIT_MS};
use warrant_protocol::request::ActorRef;
use warrant_protocol::{Decision, RunId};

use super::Shared;
use super::asks::{self, Place, Seen, Wish};
use super::calls::{self, permitted};
use super::sandbox::{Living, plain_wish, words};
use crate::ask::Ask;

/// What people are told of a command whose directory is named when it is executed.
const ANY_DIRECTORY: &str = "in any directory: the client names one when it executes it";

/// Judges a command as it is to run and as what that is meant to run.
///
/// One no is a no. If a form is to be asked about, people are asked once, about the command.
pub(super) fn decide(
    shared: &Shared,
    living: &Living,
    question: &Question<'_>,
) -> Result<Decided, WorkshopError> {
    living.check_open()?;
    let argv = question.argv;
    let env = named(question.variables);
    asks::check_client(&env)?;
    let place = living.place(shared);
    let hosts = living.hosts();
    // Whoever names no directory, or that one, means home.
    let is_named = |cwd: &&str| *cwd != living.wanted.home;
    let cwd = question.cwd.filter(is_named);
    let wish = |argv| Wish { hosts: &hosts, cwd, env: env.clone(), ..plain_wish(argv) };
    let anywhere = question.cwd.is_none().then(|| ANY_DIRECTORY.to_owned());
    let command = asks::ask(&place, &Wish { note: anywhere.clone(), ..wish(argv) })?;
    let meant = asks::unwrapped(&place, &wish(argv))?;
    let mut asked: Option<Judgment> = None;
    for form in [&command].into_iter().chain(&meant) {
        let judgment = shared.desk.judge(form).map_err(WorkshopError::of_error)?;
        match judgment.summary.decision {
            Decision::Allow => {}
            Decision::Deny => return denied(shared, form, judgment),
            Decision::Ask => asked = Some(merged(asked, judgment)),
        }
    }
    // SECURITY: people would approve the command, not what a variable makes of its words.
    if let (Some(judgment), Some(name)) = (&mut asked, choosing(&command)) {
        let reason =
            format!("variable `{name}` chooses what the words mean: say it in the command");
        judgment.summary.decision = Decision::Deny;
        judgment.summary.reasons.push(reason);
        judgment.requirements.clear();
        return denied(shared, &command, judgment.clone());
    }
    let Some(judgment) = asked else {
        let told = words(&["sandbox", "decide", &living.id]);
        let note = Some(format!("allowed once: {}", argv.join(" ")));
        let ask = asks::ask(&place, &Wish { note, ..wish(&told) })?;
        let decided = match calls::allowed_note(shared, &ask)? {
            Some(note) => noted(note, Verdict::Allowed, Vec::new()),
            None => decided(calls::note(shared, &ask)?, Verdict::Allowed, Vec::new()),
        };
        return Ok(Decided { cwd: question.cwd.map(str::to_owned), ..decided? });
    };
    let elsewhere = question.elsewhere.iter().map(String::as_str).filter(is_named).map(Some);
    let here = Wish { cwd, note: anywhere, ..wish(argv) };
    let there = elsewhere.map(|cwd| Wish { cwd, ..wish(argv) });
    // First where an execution was refused: that is where the same command goes again.
    for wish in there.chain([here]) {
        let there = asks::ask(&place, &wish)?;
        let approved = shared.desk.approved_twin(&there).map_err(WorkshopError::of_error)?;
        let Some(run) = approved else { continue };
        // What people approved is used up here; the execution relies on this run, there.
        calls::noted(shared, (&run, &there))?;
        let cwd = wish.cwd.or(question.cwd).map(str::to_owned);
        let allowed = decided(run, Verdict::Allowed, Vec::new())?;
        return Ok(Decided { is_approved: true, cwd, ..allowed });
    }
    let reasons = judgment.summary.reasons.clone();
    match submit(shared, &command, (judgment, APPROVAL_WAIT_MS))? {
        Reception::AwaitingApproval { run, .. } | Reception::Repeated { run, .. } => {
            decided(run, Verdict::Waiting, reasons)
        }
        Reception::Denied { run, .. } => decided(run, Verdict::Denied, reasons),
        Reception::Queued { .. } => Err(WorkshopError::because("a question was queued")),
    }
}

fn decided(run: RunId, verdict: Verdict, reasons: Vec<String>) -> Result<Decided, WorkshopError> {
    let at = random::now().map_err(WorkshopError::of_error)?;
    Ok(Decided { run, verdict, reasons, is_approved: false, cwd: None, at, note: None })
}

/// Returns a decision whose run is yet to be kept.
fn noted(note: Note, verdict: Verdict, reasons: Vec<String>) -> Result<Decided, WorkshopError> {
    let decided = decided(note.run().clone(), verdict, reasons)?;
    Ok(Decided { note: Some(Box::new(note)), ..decided })
}

/// Writes down that a tool which runs at the client's is denied.
pub(super) fn deny_tool(
    shared: &Shared,
    guest: &ActorRef,
    tool: &str,
) -> Result<Decided, WorkshopError> {
    // SECURITY: names are as long as clients like, and are read by people.
    const MOST_CHARS: usize = 200;
    let shown = tool.chars().filter(|char| !char.is_control()).take(MOST_CHARS);
    let shown: String = shown.collect();
    let place = Place {
        guest,
        pool: shared.desk.plane().home().pool(),
        directory: &shared.root,
        label: "a tool at the client's".to_owned(),
        seen: Seen::default(),
    };
    let argv = words(&["sandbox", "decide", "tool", &shown]);
    let ask = asks::ask(&place, &plain_wish(&argv))?;
    let mut judgment = shared.desk.judge(&ask).map_err(WorkshopError::of_error)?;
    judgment.summary.decision = Decision::Deny;
    judgment.summary.reasons =
        vec![format!("`{shown}` runs outside of any sandbox, where nothing is enforced")];
    judgment.requirements.clear();
    denied(shared, &ask, judgment)
}

/// Everybody whom one of the forms needs is asked.
fn merged(before: Option<Judgment>, judgment: Judgment) -> Judgment {
    let Some(mut before) = before else { return judgment };
    for reason in judgment.summary.reasons {
        if !before.summary.reasons.contains(&reason) {
            before.summary.reasons.push(reason);
        }
    }
    for wanted in judgment.requirements {
        if !before.requirements.iter().any(|known| known.name == wanted.name) {
            before.requirements.push(wanted);
        }
    }
    before
}

/// Writes the evidence of a no.
fn denied(shared: &Shared, form: &Ask, judgment: Judgment) -> Result<Decided, WorkshopError> {
    let reasons = judgment.summary.reasons.clone();
    let note = calls::write_down(shared, form, judgment)?
        .ok_or(WorkshopError::because("a denial was not written down"))?;
    noted(note, Verdict::Denied, reasons)
}

fn submit(
    shared: &Shared,
    ask: &Ask,
    (judgment, approval_wait_ms): (Judgment, u64),
) -> Result<Reception, WorkshopError> {
    let submission = Submission {
        request: ask.request.clone(),
        principal: ask.principal.clone(),
        idempotency_key: None,
        approval_wait_ms,
    };
    let received = shared.desk.plane().submit(submission, |_| judgment);
    received.map_err(WorkshopError::of_error)
}

/// Returns the run of a command that people approved as `approval`: where policy would ask them,
/// they have answered; where it says no, it is no; and where it asks for more people than those
/// who answered, it asks.
pub(super) fn approved(
    shared: &Shared,
    ask: &Ask,
    approval: &RunId,
) -> Result<RunId, WorkshopError> {
    let mut judgment = shared.desk.judge(ask).map_err(WorkshopError::of_error)?;
    let is_answered = || is_covered(shared, &judgment, approval);
    // SECURITY: people approved the command, not what a variable makes of its words.
    if judgment.summary.decision != Decision::Ask || choosing(ask).is_some() || !is_answered()? {
        return permitted(shared.desk.permit(ask));
    }
    judgment.summary.decision = Decision::Allow;
    judgment.summary.reasons.push(format!("people approved this command as {approval}"));
    judgment.requirements.clear();
    match submit(shared, ask, (judgment, 1))? {
        Reception::Queued { run } => Ok(run),
        _ => Err(WorkshopError::because("an approved command was not queued")),
    }
}

/// Returns whether the people who approved `approval` are those whom policy asks for now: another
/// directory may need others.
fn is_covered(
    shared: &Shared,
    judgment: &Judgment,
    approval: &RunId,
) -> Result<bool, WorkshopError> {
    let store = shared.desk.plane().store();
    let approved = store.run(approval).map_err(WorkshopError::of_error)?;
    let approved: Judgment =
        serde_json::from_str(&approved.judgment).map_err(WorkshopError::of_error)?;
    let names: BTreeSet<&str> =
        approved.requirements.iter().map(|each| each.name.as_str()).collect();
    Ok(judgment.requirements.iter().all(|wanted| names.contains(wanted.name.as_str())))
}

/// Returns a variable of a request that chooses what its words mean.
fn choosing(ask: &Ask) -> Option<String> {
    let execution = ask.request.execution_or_default();
    let vars = execution.env().and_then(|env| env.vars.as_ref());
    let is_set = |name: &&String| !ask.settled_env.contains(*name);
    let mut names = vars.into_iter().flatten().map(|(name, _)| name).filter(is_set);
    names.find(|name| warrant_script::chooses_programs(name)).cloned()
}

/// Returns the variables of a command as a decision tells them: their names alone.
fn named(variables: &BTreeSet<String>) -> BTreeMap<String, String> {
    variables.iter().map(|name| (name.clone(), "not told".to_owned())).collect()
}

/// Records that an execution was refused, and why.
pub(super) fn refuse(
    shared: &Shared,
    living: &Living,
    refusal: &RefusedExecution<'_>,
) -> Result<RunId, WorkshopError> {
    let place = living.place(shared);
    let ask = asks::ask(&place, &plain_wish(refusal.argv))?;
    let mut judgment = shared.desk.judge(&ask).map_err(WorkshopError::of_error)?;
    judgment.summary.decision = Decision::Deny;
    judgment.summary.reasons = vec![refusal.reason.to_owned()];
    judgment.requirements.clear();
    match submit(shared, &ask, (judgment, 1))? {
        Reception::Denied { run, .. } => Ok(run),
        _ => Err(WorkshopError::because("a refusal was not recorded")),
    }
}
