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
mod pack;
mod reading;
mod records;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{FromRef, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::{any, delete, get, post};
use serde_json::{Map, Value, json};
use warrant_protocol::request::ActorRef;
use warrant_protocol::{Digest, RunId};

use self::records::{Entry, Kind};
use crate::doors::reply::{self, number, text, texts, unknown_member};
use crate::doors::{
    ChunkStream, Decided, DoorName, FileAnswer, FileCall, FileFault, Hall, Reach, Sandbox, Start,
    Verdict, Wanted, WorkshopError,
};
use crate::store::RecordRow;

/// Where a sandbox's home is.
const HOME: &str = "/home/daytona";
/// The only user.
const USER: &str = "daytona";
/// The label with the time of one execution, in milliseconds, as the adapter gave it at creation.
const EXECUTION_TIME: &str = "helm.executionMs";
/// How long a grant may wait for its execution.
const GRANT_LIFE: Duration = Duration::from_secs(60);
/// More grants than this do not wait at once.
const MOST_GRANTS: usize = 200_000;

/// What this door remembers besides what the workshop does.
#[derive(Clone)]
struct Desk {
    hall: Hall,
    grants: Arc<Mutex<Grants>>,
    exams: reading::Exams,
}

/// Grants by sandbox and command, oldest first.
#[derive(Debug, Default)]
struct Grants {
    by_command: HashMap<(String, String), VecDeque<Grant>>,
    waiting: usize,
}

/// A decision that waits for its execution.
#[derive(Debug, Clone)]
struct Grant {
    until: Instant,
    decision: RunId,
    is_approved: bool,
}

/// Returns the routes.
pub fn router(hall: Hall) -> Router {
    let desk = Desk { hall, grants: Arc::default(), exams: reading::Exams::default() };
    reading::routes()
        .route("/v1/chat/completions", post(decide))
        .route("/sandbox", post(create))
        .route("/sandbox/{id}", delete(destroy))
        .route("/sandbox/{id}/process/execute", post(execute))
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
        fault(StatusCode::UNAUTHORIZED, "authentication_error", ("UNAUTHORIZED", text))
    })
}

/// An error in the SDK's envelope.
fn fault(status: StatusCode, kind: &str, (reason, message): (&str, &str)) -> Response {
    let body = json!({ "error": {
        "message": message, "type": kind, "code": status.as_u16(), "reason_code": reason,
    } });
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

/// What an adapter wants to know.
struct Intent {
    sandbox: String,
    argv: Vec<String>,
    model: String,
}

async fn decide(State(desk): State<Desk>, Guest(guest): Guest, body: Bytes) -> Response {
    let intent = match reply::object(&body).and_then(|body| intent(&body)) {
        Ok(intent) => intent,
        Err(message) => return invalid(&message),
    };
    let key = (intent.sandbox.clone(), intent.argv.join(" "));
    let decided = desk.hall.ask(move |workshop| {
        let mut decided = workshop.decide(&guest, &intent.sandbox, &intent.argv)?;
        let text = completion(&decided, &intent);
        let entry = Entry {
            verdict: decided.verdict,
            reason: reason(decided.verdict),
            reasons: decided.reasons.clone(),
            command: Some(Digest::of(intent.argv.join(" ").as_bytes())),
            output: Some(Digest::of(text.as_bytes())),
            ..Entry::allowed(Kind::Decision, decided.run.clone())
        };
        // INVARIANT: what is not recorded was not allowed.
        let (plane, who) = (workshop.plane(), (intent.sandbox.as_str(), &guest));
        let record = match decided.note.take() {
            Some(note) => records::keep_noted(plane, who, entry, *note)?,
            None => records::keep(plane, who, entry)?,
        };
        let asked = (decided.verdict == Verdict::Waiting)
            .then(|| reading::intent_hash(plane, &decided.run));
        Ok((decided, record, text, asked.flatten()))
    });
    let (decided, record, text, asked) = match decided.await {
        Ok(decided) => decided,
        Err(refusal) => return error(&refusal),
    };
    if decided.verdict == Verdict::Allowed && !desk.grant(key, &decided) {
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

const fn reason(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allowed => "ALLOW",
        Verdict::Denied => "DENY_POLICY_VIOLATION",
        Verdict::Waiting => "DENY_APPROVAL_REQUIRED",
    }
}

/// Reads the intent inside the message. Values of variables are not even looked at.
fn intent(body: &Map<String, Value>) -> Result<Intent, String> {
    let messages = body.get("messages").and_then(Value::as_array);
    let last = messages.and_then(|messages| messages.last()).ok_or("messages is missing")?;
    let content = last.get("content").and_then(Value::as_str).ok_or("content is missing")?;
    let intent: Value =
        serde_json::from_str(content).map_err(|_| "content is no JSON of an intent")?;
    let member = |name: &str| intent.get(name).and_then(Value::as_str);
    if member("type") != Some("sandbox_exec_intent") {
        return Err("type must be sandbox_exec_intent".to_owned());
    }
    let sandbox = member("sandbox_id").ok_or("sandbox_id is missing")?.to_owned();
    let words = intent.get("command").and_then(Value::as_array).ok_or("command must be a list")?;
    let word = |value: &Value| value.as_str().map(str::to_owned);
    let argv: Option<Vec<String>> = words.iter().map(word).collect();
    let argv = argv.filter(|argv| !argv.is_empty()).ok_or("command must be a list of strings")?;
    let model = text(body, "model")?.unwrap_or_else(|| "helm-governance".to_owned());
    Ok(Intent { sandbox, argv, model })
}

/// Returns the body of the answer to an intent.
fn completion(decided: &Decided, intent: &Intent) -> String {
    let is_allowed = decided.verdict == Verdict::Allowed;
    let message = match is_allowed {
        true => {
            let arguments = json!({ "sandbox_id": intent.sandbox, "command": intent.argv });
            json!({ "role": "assistant", "content": null, "tool_calls": [{
                "id": format!("call_{}", decided.run.as_str()),
                "type": "function",
                "function": { "name": "sandbox_exec", "arguments": arguments.to_string() },
            }] })
        }
        false => json!({ "role": "assistant", "content": refusal(decided) }),
    };
    let finish = if is_allowed { "tool_calls" } else { "stop" };
    let body = json!({
        "id": format!("chatcmpl-{}", decided.run.as_str()),
        "object": "chat.completion",
        "created": decided.at.unix_ms() / 1000,
        "model": intent.model,
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
    /// Keeps a grant; false when too many wait.
    fn grant(&self, key: (String, String), decided: &Decided) -> bool {
        let now = Instant::now();
        let mut grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        if grants.waiting >= MOST_GRANTS {
            grants.tidy(now);
        }
        if grants.waiting >= MOST_GRANTS {
            return false;
        }
        let (decision, is_approved) = (decided.run.clone(), decided.is_approved);
        let grant = Grant { until: now + GRANT_LIFE, decision, is_approved };
        grants.by_command.entry(key).or_default().push_back(grant);
        grants.waiting += 1;
        true
    }

    /// Does a call on files and records it.
    async fn file(
        &self,
        (guest, sandbox): (ActorRef, Sandbox),
        call: FileCall,
    ) -> Result<(FileAnswer, RunId), WorkshopError> {
        let done = self.hall.ask(move |workshop| {
            let (answer, run) = workshop.file(&guest, &sandbox.id, call)?;
            let entry = Entry::allowed(Kind::File, run.clone());
            records::keep(workshop.plane(), (&sandbox.id, &guest), entry)?;
            Ok((answer, run))
        });
        done.await
    }

    /// Uses a grant up; nothing when there is none that is still good.
    fn redeem(&self, key: &(String, String)) -> Option<Grant> {
        let now = Instant::now();
        let mut grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // The oldest come first, so that whatever is behind a good one is good, too.
            let oldest = grants.by_command.get_mut(key)?.pop_front();
            let Some(oldest) = oldest else {
                grants.by_command.remove(key);
                return None;
            };
            grants.waiting -= 1;
            if oldest.until > now {
                return Some(oldest);
            }
        }
    }
}

impl Grants {
    /// Forgets what waited too long.
    fn tidy(&mut self, now: Instant) {
        self.by_command.retain(|_, waiting| {
            waiting.retain(|grant| grant.until > now);
            !waiting.is_empty()
        });
        self.waiting = self.by_command.values().map(VecDeque::len).sum();
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
        records::keep(workshop.plane(), (&sandbox.id, &guest), entry)?;
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
    match hall.workshop.find(&guest, id) {
        Ok(sandbox) => Ok((guest, sandbox)),
        Err(refusal) => Err(error(&refusal)),
    }
}

async fn destroy(State(desk): State<Desk>, Visit((guest, sandbox)): Visit) -> Response {
    {
        let mut grants = desk.grants.lock().unwrap_or_else(PoisonError::into_inner);
        grants.by_command.retain(|(of, _), _| *of != sandbox.id);
        grants.tidy(Instant::now());
    }
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
    let Some(grant) = desk.redeem(&(sandbox.id.clone(), command.clone())) else {
        return refuse(&desk, (guest, sandbox), (command, start)).await;
    };
    start.approved = grant.is_approved.then(|| grant.decision.clone());
    // SECURITY: a client that goes away meanwhile takes no record with it.
    let work = redeemed(desk, (guest, sandbox), (command, start, grant));
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|_| error(&WorkshopError::Failed))
}

/// Executes what a grant allows and records it.
async fn redeemed(
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
