//! The HELM door: governance as a chat completion, and the adapter's own sandbox calls.
//!
//! The adapter asks `POST /v1/chat/completions` about a command and executes it with another call
//! that nothing links to the answer. Here an allow is a grant: good for one execution, of that
//! exact command, in that sandbox, within a minute. Executing without one, twice or with another
//! command is refused and recorded. Everything that is no allow is told as a denial.
//!
//! Everything done in a sandbox is a record of its session, signed and chained (`records`); the
//! rest of that SDK's surface reads them back (`reading`).

mod evidence;
mod grants;
mod intent;
mod pack;
mod reading;
mod records;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRef, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::{any, delete, get, post};
use serde_json::{Map, Value, json};
use warrant_protocol::request::ActorRef;
use warrant_protocol::{Digest, RunId};

use self::grants::{Asked, Grant, Grants, Questions};
use self::intent::{Command, Intent, Wish};
use self::records::{Entry, Kind};
use crate::doors::reply::{self, number, text, texts, unknown_member};
use crate::doors::{
    AtEnd, ChunkStream, Decided, DoorName, FileAnswer, FileCall, FileFault, Hall, Question, Reach,
    Sandbox, Start, Verdict, Wanted, Workshop, WorkshopError,
};
use crate::store::RecordRow;

/// Where a sandbox's home is.
const HOME: &str = "/home/daytona";
/// The only user.
const USER: &str = "daytona";
/// The label with the time of one execution, in milliseconds, as the adapter gave it at creation.
const EXECUTION_TIME: &str = "helm.executionMs";
/// The largest body that is no file: commands are shorter, and JSON takes more in memory.
const MOST_JSON_BYTES: usize = 4 * 1024 * 1024;

/// What this door remembers besides what the workshop does.
#[derive(Clone)]
struct Desk {
    hall: Hall,
    grants: Arc<Mutex<Grants>>,
    asked: Arc<Mutex<Questions>>,
    exams: reading::Exams,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the routes.
pub fn router(hall: Hall) -> Router {
    let (grants, asked, exams) = Default::default();
    let desk = Desk { hall, grants, asked, exams };
    reading::routes()
        .route("/v1/chat/completions", post(decide))
        .route("/sandbox", post(create))
        .route("/sandbox/{id}", delete(destroy))
        .route("/sandbox/{id}/process/execute", post(execute))
        .layer(DefaultBodyLimit::max(MOST_JSON_BYTES))
        .merge(reading::pack_routes())
        .route("/sandbox/{id}/filesystem", get(read_file).put(write_file))
        .fallback(any(unserved))
        .layer(map_response(|response| reply::in_words(response, in_words)))
        .with_state(desk)
}

/// Says what was refused before it reached a call.
fn in_words(status: StatusCode, message: &str) -> Response {
    fault(status, "invalid_request", ("DENY_SCHEMA_MISMATCH", message))
}

impl FromRef<Desk> for Hall {
    fn from_ref(desk: &Desk) -> Self {
        desk.hall.clone()
    }
}

extractor! {
    /// Who calls.
    Guest(ActorRef) by guest
}

extractor! {
    /// Who calls, and the sandbox they name.
    Visit((ActorRef, Sandbox)) by visit of id
}

fn guest(hall: &Hall, headers: &HeaderMap) -> Result<ActorRef, Response> {
    let holder = reply::bearer(headers).and_then(|token| hall.keeper.admit(token));
    holder.ok_or_else(|| {
        let text = "the token is missing or not good here";
        let reason = ("DENY_TRUST_KEY_REVOKED", text);
        fault(StatusCode::UNAUTHORIZED, "authentication_error", reason)
    })
}

/// An error in the SDK's envelope: that of its first versions, and beside it that of newer ones.
fn fault(status: StatusCode, kind: &str, (reason, message): (&str, &str)) -> Response {
    let code = match status {
        StatusCode::UNAUTHORIZED => "unauthenticated",
        StatusCode::FORBIDDEN => "permission_denied",
        StatusCode::NOT_FOUND => "not_found",
        StatusCode::TOO_MANY_REQUESTS => "resource_exhausted",
        StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => "unimplemented",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable",
        status if status.is_client_error() => "invalid_argument",
        _ => "internal",
    };
    let detail = json!({ "reason_code": reason, "retryable": code == "resource_exhausted" });
    let body = json!({
        "error": { "message": message, "type": kind, "code": code, "reason_code": reason },
        "code": code,
        "message": message,
        "details": [{ "type": "helm.errors.v1.ErrorDetail", "debug": detail }],
    });
    let mut response = reply::json(status, &body);
    // Whatever an adapter makes of the status, this is no approval.
    set(&mut response, "x-helm-status", "DENIED");
    set(&mut response, "x-helm-reason-code", reason);
    response
}

fn set(response: &mut Response, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
}

/// Returns the error of a refusal.
fn error(refusal: &WorkshopError) -> Response {
    let message = refusal.to_string();
    let (status, kind, reason) = match refusal {
        WorkshopError::NoSandbox => (StatusCode::NOT_FOUND, "not_found", "DENY_TOOL_NOT_FOUND"),
        WorkshopError::Denied { .. } => {
            (StatusCode::FORBIDDEN, "permission_denied", "DENY_POLICY_VIOLATION")
        }
        WorkshopError::Waiting { .. } => {
            (StatusCode::FORBIDDEN, "permission_denied", "DENY_APPROVAL_REQUIRED")
        }
        WorkshopError::Refused { .. } | WorkshopError::Paused => {
            (StatusCode::FORBIDDEN, "permission_denied", "DENY_SANDBOX_TRAP")
        }
        WorkshopError::Busy(_) => {
            (StatusCode::TOO_MANY_REQUESTS, "permission_denied", "DENY_BUDGET_EXCEEDED")
        }
        WorkshopError::Invalid(_) => {
            (StatusCode::BAD_REQUEST, "invalid_request", "DENY_SCHEMA_MISMATCH")
        }
        WorkshopError::File { fault: FileFault::Missing, .. } => {
            (StatusCode::NOT_FOUND, "not_found", "DENY_TOOL_NOT_FOUND")
        }
        WorkshopError::File { .. } => {
            (StatusCode::FORBIDDEN, "permission_denied", "DENY_POLICY_VIOLATION")
        }
        WorkshopError::Failed => {
            (StatusCode::INTERNAL_SERVER_ERROR, "internal_error", "ERROR_INTERNAL")
        }
    };
    reply::with_receipt(fault(status, kind, (reason, &message)), refusal.run())
}

fn invalid(message: &str) -> Response {
    fault(StatusCode::BAD_REQUEST, "invalid_request", ("DENY_SCHEMA_MISMATCH", message))
}

async fn decide(State(desk): State<Desk>, Guest(guest): Guest, body: Bytes) -> Response {
    let Intent { model, wish } = match intent::read(&body) {
        Ok(intent) => intent,
        Err(message) => return invalid(&message),
    };
    let command = match wish {
        Wish::Command(command) => command,
        Wish::Tool(tool) => return ungoverned(&model, &tool),
    };
    let key = grants::key(&command.sandbox, &command.argv.join(" "));
    let digest = key.1;
    let asking = Arc::clone(&desk.asked);
    let decided = desk.hall.ask(move |workshop| {
        own(workshop, &guest, &command.sandbox)?;
        let question = Question { argv: &command.argv, variables: &command.variables };
        let mut decided = workshop.decide(&guest, &command.sandbox, &question)?;
        let text = completion(&decided, (&model, &command));
        let entry = Entry {
            verdict: decided.verdict,
            reason: reason(decided.verdict),
            reasons: decided.reasons.clone(),
            command: Some(digest),
            output: Some(Digest::of(text.as_bytes())),
            ..Entry::allowed(Kind::Decision, decided.run.clone())
        };
        // INVARIANT: what is not recorded was not allowed.
        let (plane, who) = (workshop.plane(), (command.sandbox.as_str(), &guest));
        let record = match decided.note.take() {
            Some(note) => records::keep_noted(plane, who, entry, *note)?,
            None => records::keep(plane, who, entry)?,
        };
        let mut asked = None;
        if decided.verdict == Verdict::Waiting {
            let question = Asked { session: command.sandbox, owner: guest, command: digest };
            lock(&asking).keep(decided.run.clone(), question);
            asked = reading::intent_hash(plane, &decided.run);
        }
        Ok((decided, record, text, asked))
    });
    let (decided, record, text, asked) = match decided.await {
        Ok(decided) => decided,
        Err(refusal) => return error(&refusal),
    };
    let grant = Grant { decision: decided.run.clone(), is_approved: decided.is_approved };
    if decided.verdict == Verdict::Allowed && !desk.grants().keep(key, grant, Instant::now()) {
        let text = "too many grants wait for their execution";
        let full = ("DENY_BUDGET_EXCEEDED", text);
        return fault(StatusCode::TOO_MANY_REQUESTS, "permission_denied", full);
    }
    let mut response = answer(&decided, &record, text);
    if let Some(hash) = asked {
        set(&mut response, "x-helm-intent-hash", &records::spelled(&hash));
    }
    response
}

/// Says no to a tool that runs at the client's: nothing here could hold it to an answer.
///
/// SECURITY: a denial and no error, since adapters that are told to go on without governance run
/// the tool after an error.
fn ungoverned(model: &str, tool: &str) -> Response {
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

/// Returns what policy said of a call that failed.
const fn judged(refusal: &WorkshopError) -> Verdict {
    match refusal {
        WorkshopError::Denied { .. } => Verdict::Denied,
        WorkshopError::Waiting { .. } => Verdict::Waiting,
        _ => Verdict::Allowed,
    }
}

const fn reason(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allowed => "ALLOW",
        Verdict::Denied => "DENY_POLICY_VIOLATION",
        Verdict::Waiting => "DENY_APPROVAL_REQUIRED",
    }
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
fn refusal(decided: &Decided) -> String {
    let reasons = decided.reasons.join("; ");
    match decided.verdict {
        Verdict::Waiting => {
            let run = &decided.run;
            format!("waits for approval, then ask again: warrant approve {run}; {reasons}")
        }
        Verdict::Allowed | Verdict::Denied => reasons,
    }
}

fn answer(decided: &Decided, record: &RecordRow, text: String) -> Response {
    let is_allowed = decided.verdict == Verdict::Allowed;
    let hash = records::spelled(&Digest::of(text.as_bytes()));
    let mut response = reply::bytes(StatusCode::OK, "application/json", text.into_bytes());
    set(&mut response, "x-helm-status", if is_allowed { "APPROVED" } else { "DENIED" });
    set(&mut response, "x-helm-reason-code", reason(decided.verdict));
    set(&mut response, "x-helm-receipt-id", decided.run.as_str());
    set(&mut response, "x-helm-decision-id", decided.run.as_str());
    set(&mut response, "x-helm-lamport-clock", &record.lamport.to_string());
    set(&mut response, "x-helm-proofgraph-node", &records::spelled(&record.hash));
    set(&mut response, "x-helm-output-hash", &hash);
    set(&mut response, "x-helm-signature", &record.signature);
    set(&mut response, "x-helm-tool-calls", if is_allowed { "1" } else { "0" });
    reply::with_receipt(response, Some(&decided.run))
}

impl Desk {
    fn grants(&self) -> MutexGuard<'_, Grants> {
        lock(&self.grants)
    }

    /// Does a call on files and records it.
    async fn file(
        &self,
        (guest, sandbox): (ActorRef, Sandbox),
        call: FileCall,
    ) -> Result<(FileAnswer, RunId), WorkshopError> {
        let done = self.hall.ask(move |workshop| {
            let done = workshop.file(&guest, &sandbox.id, call);
            let run = done.as_ref().map_or_else(WorkshopError::run, |(_, run)| Some(run));
            if let Some(run) = run.cloned() {
                let verdict = done.as_ref().map_or_else(judged, |_| Verdict::Allowed);
                let reason = reason(verdict);
                let entry = Entry { verdict, reason, ..Entry::allowed(Kind::File, run) };
                records::keep(workshop.plane(), (&sandbox.id, &guest), entry)?;
            }
            done
        });
        done.await
    }
}

async fn create(State(desk): State<Desk>, Guest(guest): Guest, body: Bytes) -> Response {
    let wish = reply::object(&body).and_then(|body| {
        if let Some(name) = unknown_member(&body, &["language", "timeout"]) {
            return Err(format!("{name} cannot be enforced here"));
        }
        // The adapter's timeout is that of one execution; the sandbox lives as policy lets.
        let time = timeout_ms(&body)?.map(|ms| (EXECUTION_TIME.to_owned(), ms.to_string()));
        let language = text(&body, "language")?.unwrap_or_else(|| "python3".to_owned());
        Ok((language, time.into_iter().collect()))
    });
    let (language, labels) = match wish {
        Ok(wish) => wish,
        Err(message) => return invalid(&message),
    };
    let wanted = Wanted {
        door: DoorName::Helm,
        template: language,
        name: None,
        timeout_ms: None,
        at_end: AtEnd::Ends,
        idle_ms: None,
        env: std::collections::BTreeMap::new(),
        labels,
        reach: Reach::AsPolicy,
        memory_bytes: None,
        cpu_milli: None,
        disk_bytes: None,
        home: HOME.to_owned(),
        user: USER.to_owned(),
    };
    let created = desk.hall.ask(move |workshop| {
        let sandbox = workshop.create(&guest, wanted)?;
        let entry = Entry::allowed(Kind::Create, sandbox.run.clone());
        if let Err(failure) = records::keep(workshop.plane(), (&sandbox.id, &guest), entry) {
            // Nobody learns its name, so nobody else would end it.
            let _ = workshop.destroy(&guest, &sandbox.id);
            return Err(failure);
        }
        Ok(sandbox)
    });
    match created.await {
        Ok(sandbox) => {
            let body = json!({ "sandboxId": sandbox.id, "id": sandbox.id, "state": "started" });
            reply::with_receipt(reply::json(StatusCode::OK, &body), Some(&sandbox.run))
        }
        Err(refusal) => error(&refusal),
    }
}

fn visit(hall: &Hall, headers: &HeaderMap, id: &str) -> Result<(ActorRef, Sandbox), Response> {
    let guest = guest(hall, headers)?;
    match own(&*hall.workshop, &guest, id) {
        Ok(sandbox) => Ok((guest, sandbox)),
        Err(refusal) => Err(error(&refusal)),
    }
}

/// Finds a sandbox of this door.
///
/// SECURITY: what other doors do in theirs is no record of a session, so a session there would
/// tell a part and look whole.
fn own(workshop: &dyn Workshop, guest: &ActorRef, id: &str) -> Result<Sandbox, WorkshopError> {
    let sandbox = workshop.find(guest, id)?;
    match sandbox.wanted.door {
        DoorName::Helm => Ok(sandbox),
        DoorName::E2b | DoorName::Daytona | DoorName::Opensandbox => Err(WorkshopError::NoSandbox),
    }
}

async fn destroy(State(desk): State<Desk>, Visit((guest, sandbox)): Visit) -> Response {
    desk.grants().forget(&sandbox.id, Instant::now());
    lock(&desk.asked).forget(&sandbox.id);
    match desk.hall.ask(move |workshop| workshop.destroy(&guest, &sandbox.id)).await {
        Ok(run) => reply::with_receipt(reply::json(StatusCode::OK, &json!({})), Some(&run)),
        Err(refusal) => error(&refusal),
    }
}

async fn execute(
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
    // SECURITY: the decision is bound to the sandbox and the exact command, and counts once.
    let redeemed = desk.grants().redeem(&grants::key(&sandbox.id, &command), Instant::now());
    let Some(grant) = redeemed else {
        return refuse(&desk, (guest, sandbox), (command, start)).await;
    };
    start.approved = grant.is_approved.then(|| grant.decision.clone());
    // SECURITY: a client that goes away meanwhile takes no record with it.
    let work = perform(desk, (guest, sandbox), (command, start, grant));
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|_| error(&WorkshopError::Failed))
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

/// Reads a time in seconds; none, or nothing, is no limit but that of policy.
fn timeout_ms(body: &Map<String, Value>) -> Result<Option<u64>, String> {
    let seconds = number(body, "timeout")?.filter(|seconds| *seconds > 0.0);
    Ok(seconds.map(|seconds| {
        let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
    }))
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

type Pairs = Query<std::collections::BTreeMap<String, String>>;

async fn read_file(
    State(desk): State<Desk>,
    Visit((guest, sandbox)): Visit,
    Query(query): Pairs,
) -> Response {
    let Some(path) = query.get("path").cloned() else { return invalid("path is missing") };
    let read = FileCall::Read { path };
    match desk.file((guest, sandbox), read).await {
        Ok((FileAnswer::Content(content), run)) => {
            let response = reply::bytes(StatusCode::OK, "application/octet-stream", content);
            reply::with_receipt(response, Some(&run))
        }
        Ok(_) => error(&WorkshopError::Failed),
        Err(refusal) => error(&refusal),
    }
}

async fn write_file(
    State(desk): State<Desk>,
    Visit((guest, sandbox)): Visit,
    Query(query): Pairs,
    content: Bytes,
) -> Response {
    let Some(path) = query.get("path").cloned() else { return invalid("path is missing") };
    let write = FileCall::Write { path, content, mode: None };
    match desk.file((guest, sandbox), write).await {
        Ok((_, run)) => reply::with_receipt(reply::json(StatusCode::OK, &json!({})), Some(&run)),
        Err(refusal) => error(&refusal),
    }
}

async fn unserved() -> Response {
    let text = ("DENY_TOOL_NOT_FOUND", "this call is not served here");
    fault(StatusCode::NOT_FOUND, "not_found", text)
}
