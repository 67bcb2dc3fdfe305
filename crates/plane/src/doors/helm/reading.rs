//! The rest of the HELM SDK's surface, answered from what is kept: sessions, receipts, evidence,
//! approvals, conformance, health, version.
//!
//! The SDK sends no token when it has a pack verified, so that needs none: it reads nothing but
//! what was sent and this home's public keys, one pack at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Multipart, Path, Query, Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::Response;
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::{Digest, PublicKey, RunId, canonicalize};

use super::pack::{Files, pack, unpack};
use super::records::spelled;
use super::{Desk, Guest, error, evidence, fault, invalid, lock, records, words};
use crate::doors::reply::{self, text, unknown_member};
use crate::doors::{ExamLevel, Verdict, WorkshopError};
use crate::request_context::keep_cause;
use crate::store::RecordRow;
use crate::{Approved, EmbeddedPlane, random};

/// The largest pack that is read.
const MOST_PACK_BYTES: usize = 16 * 1024 * 1024;
/// How long a pack may take to arrive, since others wait meanwhile.
const READ_TIME: Duration = Duration::from_secs(30);
/// Receipts in one answer.
const MOST_RECEIPTS: u32 = 1_000;
/// Sessions in one answer.
const MOST_SESSIONS: u32 = 1_000;

/// Examinations of the boundary, one at a time; packs one at a time, too.
#[derive(Clone)]
pub(super) struct Exams {
    examining: Arc<Semaphore>,
    verifying: Arc<Semaphore>,
}

impl Default for Exams {
    fn default() -> Self {
        let one = || Arc::new(Semaphore::new(1));
        Self { examining: one(), verifying: one() }
    }
}

/// Returns the routes.
pub(super) fn routes() -> Router<Desk> {
    Router::new()
        .route("/healthz", get(health))
        .route("/version", get(version))
        .route("/api/v1/proofgraph/sessions", get(sessions))
        .route("/api/v1/proofgraph/sessions/{id}/receipts", get(receipts))
        .route("/api/v1/proofgraph/receipts/{hash}", get(receipt))
        .route("/api/v1/evidence/export", post(export))
        .route("/api/v1/kernel/approve", post(approve))
        .route("/api/v1/conformance/run", post(examine))
        .route("/api/v1/conformance/reports/{id}", get(report))
}

/// Returns the routes that take packs.
pub(super) fn pack_routes() -> Router<Desk> {
    Router::new()
        .route("/api/v1/evidence/verify", post(verify))
        .route("/api/v1/replay/verify", post(replay))
        .layer(DefaultBodyLimit::max(MOST_PACK_BYTES))
}

async fn health(State(desk): State<Desk>) -> Response {
    let works = desk.hall.ask(|workshop| {
        workshop.plane().store().live().map(|_| ()).map_err(WorkshopError::of_error)
    });
    let version = env!("CARGO_PKG_VERSION");
    match works.await {
        Ok(()) => reply::json(StatusCode::OK, &json!({ "status": "ok", "version": version })),
        Err(_) => {
            let text = ("ERROR_INTERNAL", "the store cannot be read, so nothing is allowed");
            fault(StatusCode::SERVICE_UNAVAILABLE, "internal_error", text)
        }
    }
}

async fn version() -> Response {
    let unknown = "not recorded";
    let body = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": option_env!("WARRANT_COMMIT").unwrap_or(unknown),
        "build_time": option_env!("WARRANT_BUILD_TIME").unwrap_or(unknown),
        "go_version": "none: written in Rust",
    });
    reply::json(StatusCode::OK, &body)
}

type Pairs = Query<BTreeMap<String, String>>;

/// Returns a number of the query, bounded.
fn number(
    pairs: &BTreeMap<String, String>,
    name: &str,
    (default, most): (u32, u32),
) -> Result<u32, String> {
    let Some(text) = pairs.get(name) else { return Ok(default) };
    let number: u32 = text
        .parse()
        .map_err(|error| keep_cause(&error, format!("{name} must be a whole number")))?;
    Ok(number.min(most))
}

async fn sessions(State(desk): State<Desk>, Guest(guest): Guest, Query(pairs): Pairs) -> Response {
    let page = number(&pairs, "limit", (50, MOST_SESSIONS))
        .and_then(|limit| Ok((limit, number(&pairs, "offset", (0, u32::MAX))?)));
    let page = match page {
        Ok(page) => page,
        Err(message) => return invalid(&message),
    };
    let asked = Arc::clone(&desk.asked);
    let rows = desk.hall.ask(move |workshop| {
        let store = workshop.plane().store();
        let runs = lock(&asked).runs(&guest, None);
        words::tell(workshop.plane(), &asked, &runs)?;
        store.sessions(&guest.label(), page).map_err(WorkshopError::of_error)
    });
    match rows.await {
        Ok(rows) => {
            let told = |row: &crate::store::SessionRow| {
                json!({
                    "session_id": row.session,
                    "created_at": row.created_at.to_string(),
                    "receipt_count": row.count,
                    "last_lamport_clock": row.lamport,
                })
            };
            let rows: Vec<Value> = rows.iter().map(told).collect();
            reply::json(StatusCode::OK, &Value::Array(rows))
        }
        Err(refusal) => error(&refusal),
    }
}

async fn receipts(
    State(desk): State<Desk>,
    Guest(guest): Guest,
    (Path(session), Query(pairs)): (Path<String>, Pairs),
) -> Response {
    let page = number(&pairs, "after", (0, u32::MAX))
        .and_then(|after| Ok((after, number(&pairs, "limit", (MOST_RECEIPTS, MOST_RECEIPTS))?)));
    let (after, limit) = match page {
        Ok(page) => page,
        Err(message) => return invalid(&message),
    };
    let asked = Arc::clone(&desk.asked);
    let rows = desk.hall.ask(move |workshop| {
        let store = workshop.plane().store();
        let runs = lock(&asked).runs(&guest, Some(&session));
        words::tell(workshop.plane(), &asked, &runs)?;
        let rows = store.records((&session, &guest.label()), (u64::from(after), limit));
        rows.map_err(WorkshopError::of_error)
    });
    match rows.await {
        // The sessions of others do not exist.
        Ok(rows) if rows.is_empty() && after == 0 => missing("there is no such session"),
        Ok(rows) => {
            let rows: Vec<Value> = rows.iter().map(records::receipt).collect();
            reply::json(StatusCode::OK, &Value::Array(rows))
        }
        Err(refusal) => error(&refusal),
    }
}

async fn receipt(
    State(desk): State<Desk>,
    Guest(guest): Guest,
    Path(hash): Path<String>,
) -> Response {
    let Some(digest) = digest(&hash) else { return missing("there is no such receipt") };
    let row = desk.hall.ask(move |workshop| {
        let store = workshop.plane().store();
        store.record_of(&guest.label(), &digest).map_err(WorkshopError::of_error)
    });
    match row.await {
        Ok(Some(row)) => reply::json(StatusCode::OK, &records::receipt(&row)),
        Ok(None) => missing("there is no such receipt"),
        Err(refusal) => error(&refusal),
    }
}

/// Reads a digest with or without its prefix.
fn digest(text: &str) -> Option<Digest> {
    text.strip_prefix("sha256:").unwrap_or(text).parse().ok()
}

fn missing(message: &str) -> Response {
    fault(StatusCode::NOT_FOUND, "not_found", ("DENY_TOOL_NOT_FOUND", message))
}

async fn export(State(desk): State<Desk>, Guest(guest): Guest, body: Bytes) -> Response {
    let wish = reply::object(&body).and_then(|body| {
        if let Some(name) = unknown_member(&body, &["session_id", "format"]) {
            return Err(format!("{name} is not served here"));
        }
        if text(&body, "format")?.is_some_and(|format| format != "tar.gz") {
            return Err("format must be tar.gz".to_owned());
        }
        text(&body, "session_id")
    });
    let session = match wish {
        Ok(session) => session,
        Err(message) => return invalid(&message),
    };
    let asked = Arc::clone(&desk.asked);
    let packed = desk.hall.ask(move |workshop| {
        let runs = lock(&asked).runs(&guest, session.as_deref());
        words::tell(workshop.plane(), &asked, &runs)?;
        let files = evidence::gather(workshop.plane(), &guest, session.as_deref())?;
        pack(&files).map_err(|error| WorkshopError::Invalid(error.to_string()))
    });
    match packed.await {
        Ok(packed) => reply::bytes(StatusCode::OK, "application/octet-stream", packed),
        Err(refusal) => error(&refusal),
    }
}

type Check = fn(&EmbeddedPlane, &Files) -> Result<evidence::Findings, String>;

async fn verify(State(desk): State<Desk>, request: Request) -> Response {
    checked(&desk, request, evidence::check).await
}

async fn replay(State(desk): State<Desk>, request: Request) -> Response {
    checked(&desk, request, evidence::replay).await
}

/// Returns the form that a request carries. The SDK's first versions send it and say that it is
/// JSON; its boundary is then the first line.
async fn form(request: Request) -> Result<Multipart, Response> {
    let unread = || invalid("the body is no form, broken or too large");
    let kind = reply::header(request.headers(), "content-type").unwrap_or_default();
    if kind.starts_with("multipart/form-data") {
        return Multipart::from_request(request, &())
            .await
            .map_err(|error| keep_cause(&error, unread()));
    }
    let (mut parts, body) = request.into_parts();
    let whole = Request::from_parts(parts.clone(), body);
    let body =
        Bytes::from_request(whole, &()).await.map_err(|error| keep_cause(&error, unread()))?;
    let line = body.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let boundary = line.strip_prefix(b"--").and_then(|line| std::str::from_utf8(line).ok());
    let boundary = boundary.filter(|boundary| (1..=70).contains(&boundary.len()));
    let kind = boundary.map(|boundary| format!("multipart/form-data; boundary={boundary}"));
    let kind = kind.and_then(|kind| HeaderValue::from_str(&kind).ok()).ok_or_else(unread)?;
    parts.headers.insert(CONTENT_TYPE, kind);
    let whole = Request::from_parts(parts, body.into());
    Multipart::from_request(whole, &()).await.map_err(|error| keep_cause(&error, unread()))
}

/// Returns the pack that a form carries.
async fn bundle(request: Request) -> Result<Bytes, Response> {
    let mut form = form(request).await?;
    loop {
        match form.next_field().await {
            Ok(Some(field)) if field.name() == Some("bundle") => {
                let bytes = field.bytes().await;
                return bytes
                    .map_err(|error| keep_cause(&error, invalid("bundle is broken or too large")));
            }
            Ok(Some(_)) => {}
            Ok(None) => return Err(invalid("bundle is missing")),
            Err(_) => return Err(invalid("the body is no form, broken or too large")),
        }
    }
}

async fn checked(desk: &Desk, request: Request, check: Check) -> Response {
    // SECURITY: nobody has to say who they are, so they wait for one another.
    let Ok(_turn) = desk.exams.verifying.acquire().await else {
        return error(&WorkshopError::because("the turns of verifying are closed"));
    };
    let bytes = match tokio::time::timeout(READ_TIME, bundle(request)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(response)) => return response,
        Err(_) => return invalid("the pack took too long to arrive"),
    };
    let found = desk.hall.ask(move |workshop| {
        let files = unpack(&bytes).map_err(|error| WorkshopError::Invalid(error.to_string()))?;
        check(workshop.plane(), &files).map_err(WorkshopError::Invalid)
    });
    match found.await {
        Ok(found) => reply::json(StatusCode::OK, &found.told()),
        Err(refusal) => error(&refusal),
    }
}

/// Returns what an approver signs: it names one waiting run and no other, so that it counts once.
pub(super) fn intent_hash(plane: &EmbeddedPlane, run: &RunId) -> Option<Digest> {
    let row = plane.store().run(run).ok()?;
    let intent = json!({
        "version": "warrant.intent.v1",
        "run": run.as_str(),
        "requestHash": row.request_hash.to_string(),
        "policyHash": row.policy_hash.to_string(),
    });
    Some(Digest::of(canonicalize(&intent).as_bytes()))
}

async fn approve(State(desk): State<Desk>, Guest(guest): Guest, body: Bytes) -> Response {
    let wish = reply::object(&body).and_then(|body| {
        let known = ["intent_hash", "signature_b64", "public_key_b64"];
        if let Some(name) = unknown_member(&body, &known) {
            return Err(format!("{name} is not served here"));
        }
        let needed = |name: &str| text(&body, name)?.ok_or(format!("{name} is missing"));
        let bytes = |name: &str| {
            let decoded = STANDARD.decode(needed(name)?);
            decoded.map_err(|error| keep_cause(&error, format!("{name} is no base64")))
        };
        let intent = digest(&needed("intent_hash")?).ok_or("intent_hash is no digest")?;
        let signature: [u8; 64] =
            bytes("signature_b64")?.try_into().map_err(|bytes: Vec<u8>| {
                format!("signature_b64 must hold 64 bytes, not {}", bytes.len())
            })?;
        Ok((intent, signature, bytes("public_key_b64")?))
    });
    let (intent, signature, key) = match wish {
        Ok(wish) => wish,
        Err(message) => return invalid(&message),
    };
    let asked = Arc::clone(&desk.asked);
    let done = desk.hall.ask(move |workshop| {
        let plane = workshop.plane();
        // SECURITY: only a key that is registered here counts, and only over this very intent.
        let Some((name, key)) = approver(plane, &key)? else { return Ok(Word::Unknown) };
        if key.verify(spelled(&intent).as_bytes(), &signature).is_err() {
            return Ok(Word::Unsigned);
        }
        let waiting = plane.waiting().map_err(WorkshopError::of_error)?;
        let is_it = |run: &RunId| intent_hash(plane, run) == Some(intent);
        let Some(waiting) = waiting.into_iter().find(|waiting| is_it(&waiting.run)) else {
            return Ok(Word::Nothing);
        };
        let actor = ActorRef { kind: ActorKind::Human, id: name };
        match plane.approve_authenticated(&waiting.run, &actor) {
            Ok(approved) => {
                let verdict = match approved {
                    Approved::Issued => Verdict::Allowed,
                    _ => Verdict::Waiting,
                };
                let by = actor.label();
                let record = words::record(plane, &asked, &waiting.run, (&by, verdict))?;
                // Somebody sent the same approval at the same moment, and it is a record already.
                if record.is_none() && lock(&asked).of(&waiting.run).is_some() {
                    return Ok(Word::Nothing);
                }
                Ok(Word::Taken(waiting.run, approved, (actor, record)))
            }
            Err(refusal) => Ok(Word::Refused(refusal.to_string())),
        }
    });
    let denied = |reason: &str, text: &str| {
        fault(StatusCode::FORBIDDEN, "permission_denied", (reason, text))
    };
    match done.await {
        Ok(Word::Taken(run, _, (_, Some(record)))) => {
            let body = records::receipt(&record);
            reply::with_receipt(reply::json(StatusCode::OK, &body), Some(&run))
        }
        Ok(Word::Taken(run, approved, (actor, None))) => taken(&run, &approved, (&actor, intent)),
        Ok(Word::Unknown) => denied("DENY_TRUST_KEY_REVOKED", "this key approves nothing here"),
        Ok(Word::Unsigned) => denied("DENY_POLICY_VIOLATION", "signature_b64 does not fit"),
        Ok(Word::Nothing) => missing("nothing waits under this intent_hash"),
        Ok(Word::Refused(text)) => denied("DENY_POLICY_VIOLATION", &text),
        Err(refusal) => {
            tracing::warn!(principal = %guest.label(), "an approval could not be taken");
            error(&refusal)
        }
    }
}

/// What became of an approval.
enum Word {
    Taken(RunId, Approved, (ActorRef, Option<RecordRow>)),
    Unknown,
    Unsigned,
    Nothing,
    Refused(String),
}

fn approver(
    plane: &EmbeddedPlane,
    key: &[u8],
) -> Result<Option<(String, PublicKey)>, WorkshopError> {
    let known = plane.home().named_approvers().map_err(WorkshopError::of_error)?;
    Ok(known.into_iter().find(|(_, known)| known.as_bytes().as_slice() == key))
}

/// Tells of the word about a run that no session here asked for, so that no record tells of it.
fn taken(run: &RunId, approved: &Approved, (actor, intent): (&ActorRef, Digest)) -> Response {
    let is_enough = matches!(approved, Approved::Issued);
    let at = random::now().map(|now| now.to_string()).unwrap_or_default();
    let body = json!({
        "receipt_id": run.as_str(),
        "decision_id": run.as_str(),
        "effect_id": spelled(&intent),
        "status": if is_enough { "APPROVED" } else { "PENDING" },
        "reason_code": if is_enough { "ALLOW" } else { "DENY_APPROVAL_REQUIRED" },
        "output_hash": "",
        "blob_hash": spelled(&intent),
        "prev_hash": "",
        "lamport_clock": 0,
        "signature": "",
        "timestamp": at,
        "principal": actor.label(),
    });
    reply::with_receipt(reply::json(StatusCode::OK, &body), Some(run))
}

async fn examine(State(desk): State<Desk>, Guest(guest): Guest, body: Bytes) -> Response {
    let wish = reply::object(&body).and_then(|body| {
        if let Some(name) = unknown_member(&body, &["level", "profile"]) {
            return Err(format!("{name} is not served here"));
        }
        if text(&body, "profile")?.is_some_and(|profile| profile != "full") {
            return Err("profile must be full".to_owned());
        }
        match text(&body, "level")?.as_deref() {
            Some("L1") => Ok(ExamLevel::L1),
            Some("L2") => Ok(ExamLevel::L2),
            _ => Err("level must be L1 or L2".to_owned()),
        }
    });
    let level = match wish {
        Ok(level) => level,
        Err(message) => return invalid(&message),
    };
    let Some(examiner) = desk.hall.examiner.clone() else {
        let text = ("ERROR_INTERNAL", "nothing can be examined here");
        return fault(StatusCode::NOT_IMPLEMENTED, "internal_error", text);
    };
    let Ok(_turn) = desk.exams.examining.try_acquire() else {
        return error(&WorkshopError::Busy("an examination is under way".to_owned()));
    };
    let found = desk.hall.ask(move |_| examiner.examine(level).map_err(WorkshopError::Invalid));
    let found = match found.await {
        Ok(found) => found,
        Err(refusal) => return error(&refusal),
    };
    let failed = found.iter().filter(|check| check.failure.is_some()).count();
    let word = |check: &crate::doors::Examined| match &check.failure {
        None => "PASS".to_owned(),
        Some(failure) => format!("FAIL: {failure}"),
    };
    let details: BTreeMap<&str, String> =
        found.iter().map(|check| (check.id.as_str(), word(check))).collect();
    let id = match random::hex() {
        Ok(id) => id,
        Err(cause) => return error(&WorkshopError::of_error(cause)),
    };
    let body = json!({
        "report_id": id,
        "level": match level { ExamLevel::L1 => "L1", ExamLevel::L2 => "L2" },
        "verdict": if failed == 0 && !found.is_empty() { "PASS" } else { "FAIL" },
        "gates": found.len(),
        "failed": failed,
        "details": details,
    });
    let text = body.to_string();
    let kept = desk.hall.ask(move |workshop| {
        let now = random::now().map_err(WorkshopError::of_error)?;
        let store = workshop.plane().store();
        let kept = store.keep_report((&id, &guest.label()), text, now);
        kept.map_err(WorkshopError::of_error)
    });
    match kept.await {
        Ok(()) => reply::json(StatusCode::OK, &body),
        Err(refusal) => error(&refusal),
    }
}

async fn report(State(desk): State<Desk>, Guest(guest): Guest, Path(id): Path<String>) -> Response {
    let found = desk.hall.ask(move |workshop| {
        let store = workshop.plane().store();
        store.report(&id, &guest.label()).map_err(WorkshopError::of_error)
    });
    match found.await {
        Ok(Some(text)) => reply::bytes(StatusCode::OK, "application/json", text),
        // The reports of others do not exist.
        Ok(None) => missing("there is no such report"),
        Err(refusal) => error(&refusal),
    }
}
