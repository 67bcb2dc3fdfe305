//! The OpenSandbox door: the lifecycle API below `/v1` and, behind the same port, each sandbox's
//! execd and egress endpoints.
//!
//! The lifecycle is opened by the door's token (`OPEN-SANDBOX-API-KEY`), execd by the sandbox's own
//! access token, which the endpoint answer carries as a header that SDKs send back, or by the
//! door's token. An image's tag is a label here: what is shown inside is this machine's system,
//! and the contract says so; a digest is a demand that cannot be met and is refused.

mod commands;
mod files;
mod lifecycle;
mod network;
mod piece;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef, Request};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::Response;
use axum::routing::{MethodRouter, any, delete, get, patch, post};
use serde_json::json;
use warrant_protocol::request::ActorRef;

use crate::doors::{FileFault, Hall, Sandbox, WorkshopError, reply};

/// Where a sandbox's home is.
pub(crate) const HOME: &str = "/workspace";
/// The only user.
pub(crate) const USER: &str = "sandbox";
/// The port of a sandbox's execd, as clients name it.
pub(crate) const EXECD_PORT: u16 = 44772;
/// The port of a sandbox's egress, as clients name it.
pub(crate) const EGRESS_PORT: u16 = 18080;
/// The largest body that is no file: what is read from JSON takes many times its size.
const MOST_JSON: usize = 4 * 1024 * 1024;
/// The header by which clients find their request in logs.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A longer name of a request is not told again.
const LONGEST_REQUEST_ID: usize = 128;
/// The header that carries a sandbox's access token.
pub(crate) const ACCESS_HEADER: &str = "x-execd-access-token";

/// What this door remembers besides what the workshop does.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) hall: Hall,
    /// Sessions by sandbox and id, each with its directory.
    pub(crate) sessions: Arc<Mutex<Sessions>>,
    /// What clients denied by name.
    pub(crate) denied: Arc<network::Denied>,
}

type Sessions = HashMap<(String, String), Option<String>>;

impl FromRef<Desk> for Hall {
    fn from_ref(desk: &Desk) -> Self {
        desk.hall.clone()
    }
}

/// Returns the routes.
pub fn router(hall: Hall) -> Router {
    let desk = Desk { hall, sessions: Arc::default(), denied: Arc::default() };
    let sandbox = "/v1/sandboxes/{id}";
    Router::new()
        .route("/version", get(lifecycle::version))
        .route("/health", get(lifecycle::health))
        .route("/v1/metrics/events", post(lifecycle::telemetry))
        .route("/v1/sandboxes", post(lifecycle::create).get(lifecycle::list))
        .route(sandbox, get(lifecycle::describe).delete(lifecycle::destroy))
        .route(&format!("{sandbox}/endpoints/{{port}}"), get(lifecycle::endpoint))
        .route(&format!("{sandbox}/renew-expiration"), post(lifecycle::renew))
        .route(&format!("{sandbox}/pause"), post(lifecycle::pause))
        .route(&format!("{sandbox}/resume"), post(lifecycle::resume))
        .route(&format!("{sandbox}/networkpolicy"), egress().put(network::replace))
        .route(&format!("{sandbox}/metadata"), patch(lifecycle::set_metadata))
        .route(&format!("{sandbox}/proxy/{EGRESS_PORT}/policy"), egress())
        .nest(&format!("{sandbox}/proxy/{EXECD_PORT}"), execd())
        .fallback(any(unserved))
        .layer(map_response(|response| reply::in_words(response, in_words)))
        .layer(from_fn(name_again))
        .layer(DefaultBodyLimit::max(MOST_JSON))
        .with_state(desk)
}

fn egress() -> MethodRouter<Desk> {
    get(network::policy).patch(network::add_rules).delete(network::remove_rules)
}

fn execd() -> Router<Desk> {
    Router::new()
        .route("/ping", get(commands::ping))
        .route("/metrics", get(lifecycle::metrics))
        .route("/command", post(commands::run).delete(commands::interrupt))
        .route("/command/status/{command}", get(commands::status))
        .route("/command/{command}/logs", get(commands::logs))
        .route("/session", post(commands::create_session))
        .route("/session/{session}", delete(commands::delete_session))
        .route("/session/{session}/run", post(commands::run_in_session))
        .route("/files", delete(files::remove))
        .route("/files/info", get(files::describe))
        .route(
            "/files/upload",
            post(files::upload).layer(DefaultBodyLimit::max(crate::doors::MAX_BODY_BYTES)),
        )
        .route("/files/download", get(files::download))
        .route("/files/search", get(files::search))
        .route("/files/mv", post(files::rename))
        .route("/files/permissions", post(files::set_permissions))
        .route("/files/replace", post(files::replace))
        .route("/directories", post(files::make_directories).delete(files::remove_directories))
        .route("/directories/list", get(files::list))
}

/// Tells a request's own name again, which SDKs put into their errors.
async fn name_again(request: Request, next: Next) -> Response {
    let given = request.headers().get(&REQUEST_ID).cloned();
    let mut response = next.run(request).await;
    if let Some(name) = given.filter(|name| name.len() <= LONGEST_REQUEST_ID) {
        response.headers_mut().insert(REQUEST_ID, name);
    }
    response
}

/// Returns who calls, or the answer that the key is missing or not good.
fn guest(hall: &Hall, headers: &HeaderMap) -> Result<ActorRef, Response> {
    let Some(key) = reply::header(headers, "open-sandbox-api-key") else {
        return Err(fault(StatusCode::UNAUTHORIZED, "MISSING_API_KEY", "the API key is missing"));
    };
    hall.admit(key).ok_or_else(|| {
        fault(StatusCode::UNAUTHORIZED, "INVALID_API_KEY", "the API key is not good here")
    })
}

/// Returns who calls and the sandbox they name, by the lifecycle's key.
fn visit(hall: &Hall, headers: &HeaderMap, id: &str) -> Result<(ActorRef, Sandbox), Response> {
    let guest = guest(hall, headers)?;
    match hall.find(&guest, id) {
        Ok(sandbox) => Ok((guest, sandbox)),
        Err(refusal) => Err(error(&refusal)),
    }
}

/// Returns who calls and the sandbox they name, by the sandbox's own token or the key.
fn enter(hall: &Hall, headers: &HeaderMap, id: &str) -> Result<(ActorRef, Sandbox), Response> {
    let Some(token) = reply::header(headers, ACCESS_HEADER) else {
        return visit(hall, headers, id);
    };
    let found = hall.owner(id, token).and_then(|guest| {
        let sandbox = hall.find(&guest, id).ok()?;
        Some((guest, sandbox))
    });
    found.ok_or_else(|| error(&WorkshopError::NoSandbox))
}

extractor! {
    /// Who calls.
    Guest(ActorRef) by guest
}

extractor! {
    /// Who calls, and the sandbox they name, by the lifecycle's key.
    Visit((ActorRef, Sandbox)) by visit of id
}

extractor! {
    /// Who calls, and the sandbox they name, by the sandbox's own token or the key.
    Enter((ActorRef, Sandbox)) by enter of id
}

/// Returns the answer for a refusal.
pub(crate) fn error(refusal: &WorkshopError) -> Response {
    let (status, code) = match refusal {
        WorkshopError::NoSandbox => (StatusCode::NOT_FOUND, "SANDBOX_NOT_FOUND"),
        WorkshopError::Paused | WorkshopError::Busy(_) => {
            (StatusCode::CONFLICT, "INVALID_SANDBOX_STATE")
        }
        WorkshopError::Denied { .. } | WorkshopError::Refused { .. } => {
            (StatusCode::FORBIDDEN, "POLICY_DENIED")
        }
        WorkshopError::Waiting { .. } => (StatusCode::FORBIDDEN, "APPROVAL_REQUIRED"),
        WorkshopError::Invalid(_) => (StatusCode::BAD_REQUEST, "INVALID_REQUEST"),
        WorkshopError::File { fault, .. } => match fault {
            FileFault::Missing => (StatusCode::NOT_FOUND, "FILE_NOT_FOUND"),
            FileFault::Forbidden => (StatusCode::FORBIDDEN, "FILE_FORBIDDEN"),
            FileFault::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "FILE_TOO_LARGE"),
            FileFault::Exists
            | FileFault::IsDirectory
            | FileFault::NotDirectory
            | FileFault::NotEmpty => (StatusCode::BAD_REQUEST, "INVALID_FILE"),
        },
        WorkshopError::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_ERROR"),
    };
    let response = fault(status, code, &reply::told(refusal));
    reply::with_receipt(response, refusal.run())
}

/// Returns an error of this API.
pub(crate) fn fault(status: StatusCode, code: &str, message: &str) -> Response {
    reply::json(status, &json!({ "code": code, "message": message }))
}

/// Returns the answer that a value or setting cannot be taken.
pub(crate) fn invalid(message: &str) -> Response {
    fault(StatusCode::BAD_REQUEST, "INVALID_REQUEST", message)
}

/// Says what was refused before it reached a call.
fn in_words(status: StatusCode, message: &str) -> Response {
    fault(status, "INVALID_REQUEST", message)
}

async fn unserved() -> Response {
    fault(StatusCode::NOT_IMPLEMENTED, "NOT_IMPLEMENTED", "this call is not served here")
}
