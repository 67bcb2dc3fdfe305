//! The Daytona door: the control API below `/api` and the toolbox of each sandbox.
//!
//! Both are opened by the door's token (`Authorization: Bearer`). Sessions are names for groups of
//! commands; each command is a run of its own.

mod contents;
mod control;
mod files;
mod git;
mod process;
mod pty;
mod session;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::FromRef;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::{any, get, post, put};
use serde_json::json;
use warrant_protocol::request::ActorRef;

use crate::doors::{FileFault, Hall, Sandbox, WorkshopError, reply};

/// Where a sandbox's home is.
pub(crate) const HOME: &str = "/home/daytona";
/// The only user.
pub(crate) const USER: &str = "daytona";
/// The version of the toolbox whose behavior is served.
pub(crate) const DAEMON_VERSION: &str = "0.190.0";

/// What this door remembers besides what the workshop does.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) hall: Hall,
    /// Sessions by sandbox and name, each with its commands.
    pub(crate) sessions: Arc<Mutex<Sessions>>,
    /// Terminals that are being made.
    pub(crate) terminals: Arc<Mutex<pty::Terminals>>,
}

type Sessions = HashMap<(String, String), session::Session>;

impl FromRef<Desk> for Hall {
    fn from_ref(desk: &Desk) -> Self {
        desk.hall.clone()
    }
}

/// Returns the routes.
pub fn router(hall: Hall) -> Router {
    let desk = Desk { hall, sessions: Arc::default(), terminals: Arc::default() };
    let control = Router::new()
        .route("/config", get(control::config))
        .route("/sandbox", post(control::create).get(control::list))
        .route("/sandbox/paginated", get(control::paginated))
        .route("/sandbox/{id}", get(control::describe).delete(control::destroy))
        .route("/sandbox/{id}/toolbox-proxy-url", get(control::toolbox_url))
        .route("/sandbox/{id}/ports/{port}/preview-url", get(control::preview))
        .route("/sandbox/{id}/stop", post(control::stop))
        .route("/sandbox/{id}/start", post(control::start))
        .route("/sandbox/{id}/autostop/{minutes}", post(control::set_idle))
        .route("/sandbox/{id}/autodelete/{minutes}", post(control::set_paused_end))
        .route("/sandbox/{id}/ttl/{minutes}", post(control::set_ttl))
        .route("/sandbox/{id}/labels", put(control::set_labels))
        .route("/sandbox/{id}/network-settings", post(control::set_network))
        .route("/sandbox/{id}/last-activity", post(control::touch))
        .fallback(any(unserved));
    Router::new()
        .nest("/api", control)
        .nest("/toolbox/{id}", toolbox())
        .nest("/api/toolbox/{id}/toolbox", toolbox())
        .fallback(any(unserved))
        .layer(map_response(|response| reply::in_words(response, in_words)))
        .with_state(desk)
}

fn toolbox() -> Router<Desk> {
    let session = "/process/session/{session}";
    let command = "/process/session/{session}/command/{command}";
    Router::new()
        .route("/process/execute", post(process::execute))
        .route("/process/code-run", post(process::code_run))
        .route("/process/session", post(session::create_session).get(session::list_sessions))
        .route(session, get(session::describe_session).delete(session::delete_session))
        .route(&format!("{session}/exec"), post(session::session_execute))
        .route(command, get(session::describe_command))
        .route(&format!("{command}/logs"), get(session::logs))
        .route(&format!("{command}/input"), post(session::send_input))
        .route("/process/pty", get(pty::list).post(pty::create))
        .route("/process/pty/create-connect", get(pty::create_and_connect))
        .route("/process/pty/{name}/connect", get(pty::connect))
        .route("/process/pty/{name}/resize", post(pty::resize))
        .route("/process/pty/{name}", get(pty::describe).delete(pty::kill))
        .route("/files", get(files::list).delete(files::remove))
        .route("/files/", get(files::list).delete(files::remove))
        .route("/files/info", get(files::describe))
        .route("/files/download", get(files::download))
        .route("/files/upload", post(files::upload))
        .route("/files/bulk-upload", post(files::bulk_upload))
        .route("/files/bulk-download", post(files::bulk_download))
        .route("/files/folder", post(files::make_directory))
        .route("/files/move", post(files::rename))
        .route("/files/search", get(files::search))
        .route("/files/find", get(contents::find))
        .route("/files/replace", post(contents::replace))
        .route("/files/permissions", post(files::set_permissions))
        .merge(repositories())
        .route("/user-home-dir", get(control::home_directory))
        .route("/work-dir", get(control::home_directory))
        .route("/project-dir", get(control::home_directory))
        .route("/version", get(control::version))
}

fn repositories() -> Router<Desk> {
    Router::new()
        .route("/git/status", get(git::status))
        .route("/git/history", get(git::history))
        .route(
            "/git/branches",
            get(git::branches).post(git::create_branch).delete(git::delete_branch),
        )
        .route("/git/checkout", post(git::checkout))
        .route("/git/add", post(git::add))
        .route("/git/commit", post(git::commit))
        .route("/git/init", post(git::init))
        .route("/git/clone", post(git::clone))
        .route("/git/pull", post(git::pull))
        .route("/git/push", post(git::push))
        .route("/git/reset", post(git::reset))
        .route("/git/restore", post(git::restore))
        .route("/git/remotes", get(git::remotes).post(git::add_remote))
        .route("/git/config", get(git::setting).post(git::set_setting))
        .route("/git/config/user", post(git::set_user))
        .route("/git/credentials", post(git::authenticate))
}

/// Returns who calls, or the answer that the token is not good.
fn guest(hall: &Hall, headers: &HeaderMap) -> Result<ActorRef, Response> {
    let holder = reply::bearer(headers).and_then(|token| hall.admit(token));
    holder.ok_or_else(|| fault(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "Invalid credentials"))
}

/// Returns who calls and the sandbox they name, by id or name.
fn visit(hall: &Hall, headers: &HeaderMap, id: &str) -> Result<(ActorRef, Sandbox), Response> {
    let guest = guest(hall, headers)?;
    if let Ok(sandbox) = hall.find(&guest, id) {
        return Ok((guest, sandbox));
    }
    let mut all = hall.workshop.list(&guest, crate::doors::DoorName::Daytona).into_iter();
    match all.find(|sandbox| sandbox.wanted.name.as_deref() == Some(id)) {
        Some(sandbox) => Ok((guest, sandbox)),
        None => Err(error(&WorkshopError::NoSandbox)),
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

/// Returns the answer for a refusal.
pub(crate) fn error(refusal: &WorkshopError) -> Response {
    let (status, code) = match refusal {
        WorkshopError::NoSandbox => (StatusCode::NOT_FOUND, "NOT_FOUND"),
        WorkshopError::Paused => (StatusCode::BAD_REQUEST, "SANDBOX_NOT_STARTED"),
        WorkshopError::Busy(_) => (StatusCode::CONFLICT, "CONFLICT"),
        WorkshopError::Denied { .. } | WorkshopError::Refused { .. } => {
            (StatusCode::FORBIDDEN, "POLICY_DENIED")
        }
        WorkshopError::Waiting { .. } => (StatusCode::FORBIDDEN, "APPROVAL_REQUIRED"),
        WorkshopError::Invalid(_) => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
        WorkshopError::File { fault, .. } => match fault {
            FileFault::Missing => (StatusCode::NOT_FOUND, "FILE_NOT_FOUND"),
            FileFault::Exists => (StatusCode::CONFLICT, "FILE_EXISTS"),
            FileFault::Forbidden => (StatusCode::FORBIDDEN, "FILE_FORBIDDEN"),
            FileFault::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "FILE_TOO_LARGE"),
            FileFault::IsDirectory | FileFault::NotDirectory | FileFault::NotEmpty => {
                (StatusCode::BAD_REQUEST, "BAD_REQUEST")
            }
        },
        WorkshopError::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_SERVER_ERROR"),
    };
    let response = fault(status, code, &reply::told(refusal));
    reply::with_receipt(response, refusal.run())
}

/// Returns an error of this API.
pub(crate) fn fault(status: StatusCode, code: &str, message: &str) -> Response {
    let at = crate::random::now().map(|now| now.to_string()).unwrap_or_default();
    let body = json!({
        "statusCode": status.as_u16(),
        "message": message,
        "error": message,
        "code": code,
        "timestamp": at,
        "source": "warrant",
    });
    reply::json(status, &body)
}

/// Returns the answer that a value or setting cannot be taken.
pub(crate) fn invalid(message: &str) -> Response {
    fault(StatusCode::BAD_REQUEST, "BAD_REQUEST", message)
}

/// Says what was refused before it reached a call.
fn in_words(status: StatusCode, message: &str) -> Response {
    fault(status, "BAD_REQUEST", message)
}

/// Returns whether the SDK that calls is of this minor version or newer; one that does not say so
/// is taken for the newest.
fn is_sdk_since(headers: &HeaderMap, since: u32) -> bool {
    let version = reply::header(headers, "x-daytona-sdk-version").unwrap_or_default();
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    minor.is_none_or(|minor| minor >= since)
}

async fn unserved() -> Response {
    fault(StatusCode::NOT_FOUND, "NOT_FOUND", "this call is not served here")
}
