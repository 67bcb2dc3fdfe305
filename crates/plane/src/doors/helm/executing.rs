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
use crate::doors::{
    ChunkStream, Decided, RefusedExecution, Sandbox, Start, Verdict, WorkshopError, inside,
};

pub(super) async fn execute(
    State(desk): State<Desk>,
    Visit((guest, sandbox)): Visit,
    body: Bytes,
) -> Response {
    let wish = match reply::object(&body).and_then(|body| wish(&body)) {
        Ok(wish) => wish,
        Err(message) => return invalid(&message),
    };
    let (line, mut start) = wish;
    let usual = sandbox.wanted.labels.get(EXECUTION_TIME).and_then(|ms| ms.parse().ok());
    start.timeout_ms = start.timeout_ms.or(usual);
    let Some(cwd) = inside(HOME, start.cwd.as_deref().unwrap_or(HOME)) else {
        return invalid("cwd is no path");
    };
    // SECURITY: the decision is bound to the sandbox, the exact command and the names of its
    // variables, what people approved also to its directory, and it counts once.
    let names = start.env.keys().cloned().collect();
    let key = grants::key(&sandbox.id, &line, &names);
    let redeemed = desk.grants().redeem(&key, &cwd, Instant::now());
    let grant = match redeemed {
        Redeemed::Used(grant) => grant,
        Redeemed::ApprovedElsewhere(argv) => {
            let id = sandbox.id.clone();
            let command =
                Command { sandbox: id, argv, line: line.clone(), cwd: Some(cwd), variables: names };
            match ask_there(&desk, guest.clone(), command).await {
                Ok(grant) => grant,
                Err(refusal) => return refusal,
            }
        }
        Redeemed::Nothing => return refuse(&desk, (guest, sandbox), (line, start)).await,
    };
    start.approved = grant.is_approved.then(|| grant.decision.clone());
    // SECURITY: what was judged is what runs, not what a shell would make of the line.
    start.argv.clone_from(&grant.argv);
    // SECURITY: a client that goes away meanwhile takes no record with it.
    let work = perform(desk, (guest, sandbox), (line, start, grant));
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

/// Tells why an execution that was allowed did not start, and records it: its grant is used up.
async fn unstarted(
    desk: &Desk,
    (session, holder): (String, ActorRef),
    (command, grant, refusal): (String, Grant, WorkshopError),
) -> Response {
    let told = refusal.clone();
    let kept = desk.hall.ask(move |workshop| {
        let run = match refusal.run() {
            Some(run) => run.clone(),
            // Nobody judged it, so nothing tells of it yet.
            None => {
                let reason = refusal.to_string();
                let refused = RefusedExecution { argv: &grant.argv, reason: &reason };
                workshop.refuse(&holder, &session, &refused)?
            }
        };
        let (verdict, reason) = match refusal {
            WorkshopError::Waiting { .. } => (Verdict::Waiting, reason(Verdict::Waiting)),
            WorkshopError::Invalid(_) => (Verdict::Denied, "DENY_SCHEMA_MISMATCH"),
            _ => (Verdict::Denied, reason(Verdict::Denied)),
        };
        let entry = Entry {
            verdict,
            reason,
            decision: Some(grant.decision),
            command: Some(Digest::of(command.as_bytes())),
            ..Entry::allowed(Kind::Refusal, run.clone())
        };
        records::keep(workshop.plane(), (&session, &holder), entry)?;
        Ok(run)
    });
    match kept.await {
        Ok(run) => reply::with_receipt(error(&told), Some(&run)),
        // There is no session any more that could tell of it.
        Err(WorkshopError::NoSandbox) => error(&told),
        Err(failure) => error(&failure),
    }
}

/// Asks about a command here that people approved for another directory: the decision of this very
/// execution, or its refusal while people are asked.
async fn ask_there(desk: &Desk, guest: ActorRef, command: Command) -> Result<Grant, Response> {
    let asked = std::sync::Arc::clone(&desk.asked);
    let argv = command.argv.clone();
    let kept = desk.hall.ask(move |workshop| judge(workshop, &asked, (&guest, None, command)));
    let decided = kept.await.map_err(|failure| error(&failure))?.decided;
    match decided.verdict {
        Verdict::Allowed => {
            let Decided { run, is_approved, cwd, .. } = decided;
            Ok(Grant { decision: run, argv, is_approved, cwd })
        }
        Verdict::Denied | Verdict::Waiting => {
            let reason = (reason(decided.verdict), &*refusal(&decided));
            let response = fault(StatusCode::FORBIDDEN, "permission_denied", reason);
            Err(reply::with_receipt(response, Some(&decided.run)))
        }
    }
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
        let reason = "no decision allows this execution";
        let refused = RefusedExecution { argv: &start.argv, reason };
        let run = workshop.refuse(&guest, &sandbox.id, &refused)?;
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
