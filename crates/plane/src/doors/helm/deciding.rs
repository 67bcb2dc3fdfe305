//! Decisions: an intent is judged, recorded and answered, and an allow becomes a grant.
//!
//! ```text
//! command ─► allowed ─► grant, for one execution     tool ─► denied, and recorded
//!         ├► denied
//!         └► asked about ─► people's word ─► the same intent again is allowed, once
//! ```
//!
//! What runs is the argv that was judged. The adapter says in what directory only when it executes
//! it, so policy judges that once more there; people are told that they approve it in any directory
//! when the intent names none, and what they approved in a named one counts there alone.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use warrant_protocol::Digest;
use warrant_protocol::request::ActorRef;

use super::grants::{self, Asked, Grant, Questions};
use super::intent::{self, Command, Intent, Wish};
use super::records::{self, Entry, Kind};
use super::{
    Asker, Desk, HOME, error, fault, invalid, lock, no_token, own, reading, reason, set, words,
};
use crate::doors::{Decided, Hall, Question, Verdict, Workshop, WorkshopError, inside, reply};
use crate::store::RecordRow;

/// A decision that is kept.
pub(super) struct Kept {
    pub(super) decided: Decided,
    record: RecordRow,
    /// The body of the answer, if it is a completion.
    text: String,
    reason: &'static str,
    /// What an approver signs, when people are asked.
    intent: Option<Digest>,
}

pub(super) async fn decide(State(desk): State<Desk>, asker: Asker, body: Bytes) -> Response {
    let read = intent::read(&body);
    let guest = match asker {
        Asker::Holder(guest) => Some(guest),
        Asker::Local => read.as_ref().ok().and_then(|intent| owner_of(&desk.hall, &intent.wish)),
    };
    let Some(guest) = guest else { return no_token() };
    let Intent { model, wish } = match read {
        Ok(intent) => intent,
        // SECURITY: whoever writes the arguments of a tool could make an error of it, after which
        // careless adapters run the tool.
        Err(_) if intent::is_about_tool(&body) => {
            let unread = ("helm-governance".to_owned(), String::new(), Digest::of(&body));
            return ungoverned(&desk, guest, unread).await;
        }
        Err(message) => return invalid(&message),
    };
    let mut command = match wish {
        Wish::Command(command) => command,
        Wish::Tool { tool, digest } => {
            return ungoverned(&desk, guest, (model, tool, digest)).await;
        }
    };
    if let Some(cwd) = &mut command.cwd {
        let Some(folded) = inside(HOME, cwd) else { return invalid("cwd is no path") };
        *cwd = folded;
    }
    // SECURITY: what is told as allowed must have its grant; whether there is room is known before.
    let argv = command.argv.clone();
    if !desk.grants().has_room(argv.iter().map(String::len).sum(), Instant::now()) {
        return crowded();
    }
    let key = grants::key(&command.sandbox, &command.line, &command.variables);
    let asked = Arc::clone(&desk.asked);
    let kept =
        desk.hall.ask(move |workshop| judge(workshop, &asked, (&guest, Some(&model), command)));
    let kept = match kept.await {
        Ok(kept) => kept,
        Err(refusal) => return error(&refusal),
    };
    let Decided { run, is_approved, cwd, .. } = kept.decided.clone();
    let grant = Grant { decision: run, argv, is_approved, cwd };
    let is_allowed = kept.decided.verdict == Verdict::Allowed;
    if is_allowed && !desk.grants().keep(key, grant, Instant::now()) {
        return crowded();
    }
    kept.answer()
}

/// Returns whose sandbox an intent is about that brings no token.
fn owner_of(hall: &Hall, wish: &Wish) -> Option<ActorRef> {
    match wish {
        Wish::Command(command) => hall.owner_of(&command.sandbox),
        Wish::Tool { .. } => None,
    }
}

fn crowded() -> Response {
    let full = ("DENY_BUDGET_EXCEEDED", "too many grants wait for their execution");
    fault(StatusCode::TOO_MANY_REQUESTS, "permission_denied", full)
}

/// Has a command judged, and keeps what was decided; what people are asked is remembered. With a
/// model it is told as a completion.
pub(super) fn judge(
    workshop: &dyn Workshop,
    asked: &std::sync::Mutex<Questions>,
    (guest, model, command): (&ActorRef, Option<&str>, Command),
) -> Result<Kept, WorkshopError> {
    own(workshop, guest, &command.sandbox)?;
    let digest = Digest::of(command.line.as_bytes());
    // Who does not say where is allowed wherever people said yes.
    let elsewhere = match &command.cwd {
        Some(_) => Vec::new(),
        None => lock(asked).places(&command.sandbox, &digest),
    };
    let question = Question {
        argv: &command.argv,
        variables: &command.variables,
        cwd: command.cwd.as_deref(),
        elsewhere: &elsewhere,
    };
    let mut decided = workshop.decide(guest, &command.sandbox, &question)?;
    let plane = workshop.plane();
    if decided.is_approved {
        // Their word comes before what it allows.
        words::tell(plane, asked, &[decided.run.clone()])?;
    }
    let text = model.map(|model| completion(&decided, (model, &command)));
    let reason = reason(decided.verdict);
    let entry = Entry {
        verdict: decided.verdict,
        reason,
        reasons: decided.reasons.clone(),
        command: Some(digest),
        output: text.as_ref().map(|text| Digest::of(text.as_bytes())),
        ..Entry::allowed(Kind::Decision, decided.run.clone())
    };
    // INVARIANT: what is not recorded was not allowed.
    let who = (command.sandbox.as_str(), guest);
    let record = match decided.note.take() {
        Some(note) => records::keep_noted(plane, who, entry, *note)?,
        None => records::keep(plane, who, entry)?,
    };
    let mut intent = None;
    if decided.verdict == Verdict::Waiting {
        let question = Asked::new(guest.clone(), digest, command.cwd);
        let is_alive = |id: &str| workshop.is_alive(id);
        lock(asked).keep((command.sandbox, decided.run.clone()), question, is_alive);
        intent = reading::intent_hash(plane, &decided.run);
    }
    Ok(Kept { decided, record, text: text.unwrap_or_default(), reason, intent })
}

/// Says no to a tool that runs at the client's, and records it: nothing here could hold it to an
/// answer.
///
/// SECURITY: a denial and no error, since adapters that are told to go on without governance run
/// the tool after an error. Where nothing can be kept it is a denial that names no receipt.
async fn ungoverned(
    desk: &Desk,
    guest: ActorRef,
    (model, tool, digest): (String, String, Digest),
) -> Response {
    const REASON: &str = "DENY_TOOL_NOT_FOUND";
    let unkept = untold(&model, &tool);
    let kept = desk.hall.ask(move |workshop| {
        let mut decided = workshop.deny_tool(&guest, &tool)?;
        let content = json!({ "role": "assistant", "content": refusal(&decided) });
        let id = format!("chatcmpl-{}", decided.run.as_str());
        let text = said((&id, &model), decided.at.unix_ms() / 1000, (content, "stop"));
        let entry = Entry {
            verdict: Verdict::Denied,
            reason: REASON,
            reasons: decided.reasons.clone(),
            command: Some(digest),
            output: Some(Digest::of(text.as_bytes())),
            ..Entry::allowed(Kind::Decision, decided.run.clone())
        };
        let note = decided.note.take().ok_or(WorkshopError::because("a decision has no note"))?;
        let session = records::tools_of(&guest);
        let record = records::keep_noted(workshop.plane(), (&session, &guest), entry, *note)?;
        Ok(Kept { decided, record, text, reason: REASON, intent: None })
    });
    kept.await.map_or(unkept, Kept::answer)
}

/// The denial of a tool that no record could be kept of.
fn untold(model: &str, tool: &str) -> Response {
    let text = format!("`{tool}` runs outside of any sandbox, where nothing is enforced");
    let message = json!({ "role": "assistant", "content": text });
    let now = crate::random::now().map_or(0, |now| now.unix_ms() / 1000);
    let body = said(("chatcmpl-denied", model), now, (message, "stop"));
    let mut response = reply::bytes(StatusCode::OK, "application/json", body.into_bytes());
    set(&mut response, "x-helm-status", "DENIED");
    set(&mut response, "x-helm-reason-code", "DENY_TOOL_NOT_FOUND");
    set(&mut response, "x-helm-tool-calls", "0");
    response
}

/// Returns the body of the answer to an intent.
fn completion(decided: &Decided, (model, command): (&str, &Command)) -> String {
    let (message, finish) = match decided.verdict {
        Verdict::Allowed => {
            let arguments = json!({ "sandbox_id": command.sandbox, "command": command.argv });
            let message = json!({ "role": "assistant", "content": null, "tool_calls": [{
                "id": format!("call_{}", decided.run.as_str()),
                "type": "function",
                "function": { "name": intent::TOOL, "arguments": arguments.to_string() },
            }] });
            (message, "tool_calls")
        }
        Verdict::Denied | Verdict::Waiting => {
            (json!({ "role": "assistant", "content": refusal(decided) }), "stop")
        }
    };
    let id = format!("chatcmpl-{}", decided.run.as_str());
    said((&id, model), decided.at.unix_ms() / 1000, (message, finish))
}

/// Returns a chat completion of one message.
fn said((id, model): (&str, &str), created: u64, (message, finish): (Value, &str)) -> String {
    let body = json!({
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [{ "index": 0, "message": message, "finish_reason": finish }],
        "usage": { "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0 },
    });
    body.to_string()
}

/// Returns why not, for the person who reads it.
pub(super) fn refusal(decided: &Decided) -> String {
    let reasons = decided.reasons.join("; ");
    match decided.verdict {
        Verdict::Waiting => {
            let run = &decided.run;
            format!("waits for approval, then ask again: warrant approve {run}; {reasons}")
        }
        Verdict::Allowed | Verdict::Denied => reasons,
    }
}

impl Kept {
    fn answer(self) -> Response {
        let Self { decided, record, text, reason, intent } = self;
        let is_allowed = decided.verdict == Verdict::Allowed;
        let hash = records::spelled(&Digest::of(text.as_bytes()));
        let mut response = reply::bytes(StatusCode::OK, "application/json", text.into_bytes());
        set(&mut response, "x-helm-status", if is_allowed { "APPROVED" } else { "DENIED" });
        set(&mut response, "x-helm-reason-code", reason);
        set(&mut response, "x-helm-receipt-id", decided.run.as_str());
        set(&mut response, "x-helm-decision-id", decided.run.as_str());
        set(&mut response, "x-helm-lamport-clock", &record.lamport.to_string());
        set(&mut response, "x-helm-proofgraph-node", &records::spelled(&record.hash));
        set(&mut response, "x-helm-output-hash", &hash);
        set(&mut response, "x-helm-signature", &record.signature);
        set(&mut response, "x-helm-tool-calls", if is_allowed { "1" } else { "0" });
        if let Some(hash) = intent {
            set(&mut response, "x-helm-intent-hash", &records::spelled(&hash));
        }
        reply::with_receipt(response, Some(&decided.run))
    }
}
