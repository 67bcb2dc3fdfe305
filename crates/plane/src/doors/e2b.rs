//! The E2B door: the control API and the data plane (envd, Connect with the JSON codec).
//!
//! The control API is opened by the door's token (`X-API-KEY`), the data plane by the sandbox's
//! own access token, which the create answer carries and the SDKs send back.

mod commands;
mod connect;
mod control;
mod files;
mod input;
mod metrics;
mod watching;

use axum::Router;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::Response;
use axum::routing::{any, delete, get, post, put};
use serde_json::json;
use warrant_protocol::request::ActorRef;

use crate::doors::{Hall, WorkshopError, reply};

/// The version of the data plane whose behavior is served; SDKs choose by it.
pub(crate) const ENVD_VERSION: &str = "0.6.13";
/// Where a sandbox's home is.
pub(crate) const HOME: &str = "/home/user";
/// The only user.
pub(crate) const USER: &str = "user";

/// Returns the routes of the control API and, by header, of the data plane.
pub fn router(hall: Hall) -> Router {
    let control = Router::new()
        .route("/sandboxes", post(control::create).get(control::list))
        .route("/v2/sandboxes", post(control::create).get(control::list))
        .route("/sandboxes/{id}", get(control::describe))
        .route("/sandboxes/{id}", delete(control::destroy))
        .route("/sandboxes/{id}/timeout", post(control::set_timeout))
        .route("/sandboxes/{id}/refreshes", post(control::refresh))
        .route("/sandboxes/{id}/connect", post(control::connect))
        .route("/v2/sandboxes/{id}/connect", post(control::connect))
        .route("/sandboxes/{id}/resume", post(control::connect))
        .route("/sandboxes/{id}/pause", post(control::pause))
        .route("/sandboxes/{id}/network", put(control::set_network))
        .route("/sandboxes/metrics", get(metrics::of_many))
        .route("/v2/sandboxes/metrics", get(metrics::of_many))
        .route("/sandboxes/{id}/metrics", get(metrics::of_one))
        .route("/sandboxes/{id}/{rest}", any(control::unserved))
        .fallback(control::unserved_any);
    control.layer(map_response(|response| reply::in_words(response, api_fault))).with_state(hall)
}

/// Returns the routes of the data plane; the sandbox is named by a header.
pub fn data_router(hall: Hall) -> Router {
    let data = Router::new()
        .route("/health", get(health))
        .route("/metrics", get(metrics::of_envd))
        .route("/files", get(files::download).post(files::upload))
        .route("/process.Process/Start", post(commands::start))
        .route("/process.Process/Connect", post(commands::connect))
        .route("/process.Process/List", post(commands::list))
        .route("/process.Process/SendInput", post(commands::send_input))
        .route("/process.Process/StreamInput", post(input::stream_input))
        .route("/process.Process/CloseStdin", post(commands::close_stdin))
        .route("/process.Process/SendSignal", post(commands::send_signal))
        .route("/process.Process/Update", post(commands::update))
        .route("/filesystem.Filesystem/Stat", post(files::stat))
        .route("/filesystem.Filesystem/MakeDir", post(files::make_directory))
        .route("/filesystem.Filesystem/Move", post(files::rename))
        .route("/filesystem.Filesystem/ListDir", post(files::list))
        .route("/filesystem.Filesystem/Remove", post(files::remove))
        .route("/filesystem.Filesystem/WatchDir", post(watching::watch))
        .route("/filesystem.Filesystem/CreateWatcher", post(watching::create))
        .route("/filesystem.Filesystem/GetWatcherEvents", post(watching::events))
        .route("/filesystem.Filesystem/RemoveWatcher", post(watching::remove))
        .fallback(unserved_call);
    data.layer(from_fn(in_words)).with_state(hall)
}

/// Returns whether a path is one of the data plane's.
pub(crate) fn is_data_path(path: &str) -> bool {
    let services = ["/process.Process/", "/filesystem.Filesystem/"];
    ["/files", "/health", "/metrics"].contains(&path)
        || services.iter().any(|root| path.starts_with(root))
}

/// Says what was refused before it reached a call, in the words of that call.
async fn in_words(request: Request, next: Next) -> Response {
    let is_stream = commands::is_stream(request.headers());
    let is_rpc = request.uri().path().contains(".");
    let response = next.run(request).await;
    let fault: fn(StatusCode, &str) -> Response = match (is_rpc, is_stream) {
        (false, _) => api_fault,
        (true, false) => |status, message| connect::error(&connect::Fault::of(status, message)),
        (true, true) => {
            |status, message| commands::stream_of_fault(&connect::Fault::of(status, message))
        }
    };
    reply::in_words(response, fault).await
}

/// A sandbox that the caller of the data plane may use.
#[derive(Clone)]
pub(crate) struct Visit {
    pub(crate) hall: Hall,
    pub(crate) guest: ActorRef,
    pub(crate) id: String,
}

/// Returns whose sandbox a request of the data plane may use, or the answer that says it is not
/// running. A wrong token and a wrong id look the same.
fn visit(hall: &Hall, request: &HeaderMap) -> Result<Visit, Response> {
    let id = reply::header(request, "e2b-sandbox-id");
    let token = reply::header(request, "x-access-token").unwrap_or_default();
    // Some SDKs do not name a sandbox that they joined; its token tells it from all others.
    let named = id.map(str::to_owned).or_else(|| hall.workshop.named_by(token));
    let found = named.and_then(|id| hall.owner(&id, token).map(|guest| (guest, id)));
    match found {
        Some((guest, id)) => Ok(Visit { hall: hall.clone(), guest, id }),
        None => {
            let body = json!({
                "sandboxId": id.unwrap_or_default(),
                "message": "The sandbox was not found",
                "code": 502,
            });
            Err(reply::json(StatusCode::BAD_GATEWAY, &body))
        }
    }
}

impl FromRequestParts<Hall> for Visit {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, hall: &Hall) -> Result<Self, Response> {
        visit(hall, &parts.headers)
    }
}

async fn health(visit: Visit) -> Response {
    match visit.hall.workshop.find(&visit.guest, &visit.id) {
        Ok(sandbox) if sandbox.life == crate::doors::Life::Running => {
            reply::empty(StatusCode::NO_CONTENT)
        }
        _ => reply::empty(StatusCode::BAD_GATEWAY),
    }
}

async fn unserved_call(headers: HeaderMap) -> Response {
    let fault = connect::Fault {
        code: "unimplemented",
        message: "this call is not served here".to_owned(),
        run: None,
    };
    match commands::is_stream(&headers) {
        true => commands::stream_of_fault(&fault),
        false => connect::error(&fault),
    }
}

/// Returns the HTTP answer of the control API for a refusal.
pub(crate) fn api_error(error: &WorkshopError) -> Response {
    let status = match error {
        WorkshopError::NoSandbox => StatusCode::NOT_FOUND,
        WorkshopError::Paused | WorkshopError::Busy(_) => StatusCode::CONFLICT,
        WorkshopError::Denied { .. } | WorkshopError::Waiting { .. } => StatusCode::FORBIDDEN,
        WorkshopError::Refused { .. } => StatusCode::FORBIDDEN,
        WorkshopError::Invalid(_) | WorkshopError::File { .. } => StatusCode::BAD_REQUEST,
        WorkshopError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let response = api_fault(status, &reply::told(error));
    reply::with_receipt(response, error.run())
}

/// Returns an error of the control API.
pub(crate) fn api_fault(status: StatusCode, message: &str) -> Response {
    let body = json!({ "code": status.as_u16(), "message": message });
    reply::json(status, &body)
}
