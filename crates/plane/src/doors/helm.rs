//! The HELM door: governance as a chat completion, and the adapter's own sandbox calls.
//!
//! The adapter asks `POST /v1/chat/completions` about a command and executes it with another call
//! that nothing links to the answer. Here an allow is a grant: good for one execution, of that
//! exact command, in that sandbox, within a minute. The argv that was judged is what runs; the line
//! that the adapter makes of it only has to match. Executing without a grant, twice or with another
//! command is refused and recorded. Everything that is no allow is told as a denial.
//!
//! Everything done in a sandbox is a record of its session, signed and chained (`records`); the
//! rest of that SDK's surface reads them back (`reading`).

mod deciding;
mod evidence;
mod executing;
mod grants;
mod intent;
mod pack;
mod reading;
mod records;
mod words;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRef, FromRequestParts, Query, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::{any, delete, get, post};
use serde_json::{Map, Value, json};
use warrant_protocol::RunId;
use warrant_protocol::request::ActorRef;

use self::grants::{Grants, Questions};
use self::records::{Entry, Kind};
use crate::doors::reply::{self, number, text, unknown_member};
use crate::doors::{
    AtEnd, DoorName, FileAnswer, FileCall, FileFault, Hall, Reach, Sandbox, Verdict, Wanted,
    Workshop, WorkshopError,
};
use crate::http::Peer;
use crate::request_context::note_cause;

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
        .route("/v1/chat/completions", post(deciding::decide))
        .route("/sandbox", post(create))
        .route("/sandbox/{id}", delete(destroy))
        .route("/sandbox/{id}/process/execute", post(executing::execute))
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
    let holder = reply::bearer(headers).and_then(|token| hall.admit(token));
    holder.ok_or_else(|| {
        let text = "the token is missing or not good here: set daytonaApiKey and apiKey to a token \
                    of `warrant doors issue NAME`";
        let reason = ("DENY_TRUST_KEY_REVOKED", text);
        fault(StatusCode::UNAUTHORIZED, "authentication_error", reason)
    })
}

/// Who asks for a decision. The adapter needs a key for its sandboxes, but none for decisions.
enum Asker {
    /// The holder of a token.
    Holder(ActorRef),
    /// Somebody on this machine who brings no token: the intent must name a sandbox that lives.
    ///
    /// SECURITY: nobody guesses the id of a sandbox, and a decision is of use only to who executes
    /// it, with the token.
    Local,
}

impl<S: Send + Sync> FromRequestParts<S> for Asker
where
    Hall: FromRef<S>,
{
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let hall = Hall::from_ref(state);
        match is_local(parts) && !parts.headers.contains_key(AUTHORIZATION) {
            true => Ok(Self::Local),
            false => guest(&hall, &parts.headers).map(Self::Holder),
        }
    }
}

/// Returns whether a request comes from this machine, and not through a proxy on it.
fn is_local(parts: &Parts) -> bool {
    let is_forwarded = ["forwarded", "x-forwarded-for", "via", "x-real-ip"]
        .iter()
        .any(|name| parts.headers.contains_key(*name));
    let peer = parts.extensions.get::<Peer>();
    !is_forwarded && peer.is_some_and(|peer| peer.0.is_loopback())
}

/// Refuses an intent without a token that names no sandbox that lives.
fn no_token() -> Response {
    let text = "the intent has no token and names no sandbox that lives here: set apiKey to a \
                token of `warrant doors issue NAME`, or create the sandbox here first";
    let reason = ("DENY_TRUST_KEY_REVOKED", text);
    fault(StatusCode::UNAUTHORIZED, "authentication_error", reason)
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
    if let WorkshopError::Failed(cause) = refusal {
        note_cause(cause.as_str());
    }
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
        WorkshopError::Failed(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "internal_error", "ERROR_INTERNAL")
        }
    };
    reply::with_receipt(fault(status, kind, (reason, &message)), refusal.run())
}

fn invalid(message: &str) -> Response {
    fault(StatusCode::BAD_REQUEST, "invalid_request", ("DENY_SCHEMA_MISMATCH", message))
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
    let asked = Arc::clone(&desk.asked);
    let ended = desk.hall.ask(move |workshop| {
        let run = workshop.destroy(&guest, &sandbox.id)?;
        // Nothing that people say from now on is of use to this session. What cannot be kept now
        // is told when somebody reads the session.
        let runs = lock(&asked).runs(&guest, Some(&sandbox.id));
        if words::tell(workshop.plane(), &asked, &runs).is_ok() {
            lock(&asked).forget(&sandbox.id);
        }
        Ok(run)
    });
    match ended.await {
        Ok(run) => reply::with_receipt(reply::json(StatusCode::OK, &json!({})), Some(&run)),
        Err(refusal) => error(&refusal),
    }
}

/// Reads a time in seconds; none, or nothing, is no limit but that of policy.
fn timeout_ms(body: &Map<String, Value>) -> Result<Option<u64>, String> {
    let seconds = number(body, "timeout")?.filter(|seconds| *seconds > 0.0);
    Ok(seconds.map(|seconds| {
        let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
    }))
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
        Ok(_) => error(&WorkshopError::because("a call on files gave another answer")),
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
