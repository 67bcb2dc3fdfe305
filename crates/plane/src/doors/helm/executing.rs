//! Executions: what a grant allows is run and recorded; whatever else comes is refused and recorded.

use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use warrant_protocol::Digest;
use warrant_protocol::request::ActorRef;

use super::deciding::{judge, refusal};
use super::grants::{self, Grant, Redeemed};
use super::intent::Command;
use super::records::{self, Entry, Kind};
use super::{Desk, EXECUTION_TIME, HOME, Visit, error, fault, invalid, reason, timeout_ms};
use crate::doors::reply::{self, text, texts, unknown_member};
use crate::doors::{ChunkStream, Sandbox, Start, Verdict, WorkshopError, inside};

pub(super) async fn execute(
    State(desk): State<Desk>,
    Visit((guest, sandbox)): Visit,
    body: Bytes,
) -> Response {
    let wish = match reply::object(&body).and_then(|body| wish(&body)) {
        Ok(wish) => wish,
        Err(message) => return invalid(&message),
    };
    let (command, mut start) = wish;
    let usual = sandbox.wanted.labels.get(EXECUTION_TIME).and_then(|ms| ms.parse().ok());
    start.timeout_ms = start.timeout_ms.or(usual);
    let Some(cwd) = inside(HOME, start.cwd.as_deref().unwrap_or(HOME)) else {
        return invalid("cwd is no path");
    };
    // SECURITY: the decision is bound to the sandbox, the exact command and the names of its
    // variables, what people approved also to its directory, and it counts once.
    let names = start.env.keys().cloned().collect();
    let key = grants::key(&sandbox.id, &command, &names);
    let redeemed = desk.grants().redeem(&key, &cwd, Instant::now());
    let grant = match redeemed {
        Redeemed::Used(grant) => grant,
        Redeemed::ApprovedElsewhere => {
            let argv = vec![command];
            let command = Command { sandbox: sandbox.id, argv, cwd: Some(cwd), variables: names };
            return ask_there(&desk, guest, command).await;
        }
        Redeemed::Nothing => return refuse(&desk, (guest, sandbox), (command, start)).await,
    };
    start.approved = grant.is_approved.then(|| grant.decision.clone());
    // SECURITY: a client that goes away meanwhile takes no record with it.
    let work = perform(desk, (guest, sandbox), (command, start, grant));
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|cause| error(&WorkshopError::of_error(cause)))
}

/// Executes what a grant allows and records it.
async fn perform(
    desk: Desk,
    (guest, sandbox): (ActorRef, Sandbox),
    (command, start, grant): (String, Start, Grant),
) -> Response {
    let (session, holder) = (sandbox.id.clone(), guest.clone());
    let started = desk.hall.ask(move |workshop| workshop.start(&guest, &sandbox.id, start)).await;
    let process = match started {
        Ok(process) => process.attend(),
        Err(refusal) => {
            return unstarted(&desk, (session, holder), (command, grant, refusal)).await;
        }
    };
    let end = process.wait().await;
    let run = process.facts().run.clone();
    let (text, is_told) = match end.exit_code() {
        Some(code) => {
            let took = end.at.unix_ms().saturating_sub(process.facts().started_at.unix_ms());
            let body = json!({
                "output": process.text(Some(ChunkStream::Stdout)),
                "errors": process.text(Some(ChunkStream::Stderr)),
                "exitCode": if end.is_timeout() { 124 } else { code },
                "timedOut": end.is_timeout(),
                "durationMs": took,
            });
            (body.to_string(), true)
        }
        None => (end.message.clone(), false),
    };
    let entry = Entry {
        decision: Some(grant.decision),
        command: Some(Digest::of(command.as_bytes())),
        output: Some(Digest::of(text.as_bytes())),
        ..Entry::allowed(Kind::Execution, run.clone())
    };
    let kept =
        desk.hall.ask(move |workshop| records::keep(workshop.plane(), (&session, &holder), entry));
    if let Err(refusal) = kept.await {
        return error(&refusal);
    }
    if !is_told {
        return error(&WorkshopError::Refused { run, message: end.message });
    }
    let response = reply::bytes(StatusCode::OK, "application/json", text.into_bytes());
    reply::with_receipt(response, Some(&run))
}

/// Tells why an execution that was allowed did not start, and records it when it was judged.
async fn unstarted(
    desk: &Desk,
    (session, holder): (String, ActorRef),
    (command, grant, refusal): (String, Grant, WorkshopError),
) -> Response {
    if let Some(run) = refusal.run().cloned() {
        let verdict = match refusal {
            WorkshopError::Waiting { .. } => Verdict::Waiting,
            _ => Verdict::Denied,
        };
        let entry = Entry {
            verdict,
            reason: reason(verdict),
            decision: Some(grant.decision),
            command: Some(Digest::of(command.as_bytes())),
            ..Entry::allowed(Kind::Refusal, run)
        };
        let kept = desk
            .hall
            .ask(move |workshop| records::keep(workshop.plane(), (&session, &holder), entry));
        if let Err(failure) = kept.await {
            return error(&failure);
        }
    }
    error(&refusal)
}

/// Refuses what people approved for another directory, and asks them about this one: then the
/// same intent is allowed here, once.
async fn ask_there(desk: &Desk, guest: ActorRef, command: Command) -> Response {
    let asked = std::sync::Arc::clone(&desk.asked);
    let kept = desk.hall.ask(move |workshop| judge(workshop, &asked, (&guest, None, command)));
    let decided = match kept.await {
        Ok(kept) => kept.decided,
        Err(failure) => return error(&failure),
    };
    let text = match decided.verdict {
        Verdict::Allowed => "people approved this for another directory".to_owned(),
        Verdict::Denied | Verdict::Waiting => refusal(&decided),
    };
    let reason = match decided.verdict {
        Verdict::Allowed => "DENY_APPROVAL_REQUIRED",
        Verdict::Denied | Verdict::Waiting => reason(decided.verdict),
    };
    let response = fault(StatusCode::FORBIDDEN, "permission_denied", (reason, &text));
    reply::with_receipt(response, Some(&decided.run))
}

/// Refuses an execution that no decision allows, and records it.
async fn refuse(
    desk: &Desk,
    (guest, sandbox): (ActorRef, Sandbox),
    (command, start): (String, Start),
) -> Response {
    const REASON: &str = "DENY_IDEMPOTENCY_DUPLICATE";
    let text = "no decision allows this very command in this sandbox, or it was used already";
    let refused = desk.hall.ask(move |workshop| {
        let run = workshop.refuse(&guest, &sandbox.id, &start.argv)?;
        let entry = Entry {
            verdict: Verdict::Denied,
            reason: REASON,
            command: Some(Digest::of(command.as_bytes())),
            ..Entry::allowed(Kind::Refusal, run.clone())
        };
        records::keep(workshop.plane(), (&sandbox.id, &guest), entry)?;
        Ok(run)
    });
    let run = refused.await.ok();
    let response = fault(StatusCode::FORBIDDEN, "permission_denied", (REASON, text));
    reply::with_receipt(response, run.as_ref())
}

fn wish(body: &Map<String, Value>) -> Result<(String, Start), String> {
    if let Some(name) = unknown_member(body, &["command", "env", "cwd", "timeout"]) {
        return Err(format!("{name} is not served here"));
    }
    let command = text(body, "command")?.filter(|command| !command.is_empty());
    let command = command.ok_or("command is missing")?;
    let start = Start {
        argv: vec!["bash".to_owned(), "-c".to_owned(), command.clone()],
        env: texts(body, "env")?,
        cwd: text(body, "cwd")?.filter(|cwd| !cwd.is_empty()),
        timeout_ms: timeout_ms(body)?,
        stdin: false,
        terminal: None,
        tag: None,
        session: None,
        approved: None,
    };
    Ok((command, start))
}
