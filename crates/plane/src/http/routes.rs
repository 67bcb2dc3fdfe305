//! Every route, in one list, and what is done around all of them.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get, post, put};
use hyper::header::{CACHE_CONTROL, HeaderValue, X_CONTENT_TYPE_OPTIONS};

use super::service::Shared;
use super::{blobs, fleet, house, no_route, openapi, people, runs, watch};
use crate::page;
use crate::request_context::observe;

/// One route, as the description of the API tells it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) access: Access,
    pub(super) body: Takes,
    pub(super) summary: &'static str,
}

/// Who may call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Everyone.
    Open,
    /// A principal, by bearer token.
    Principal,
    /// A runner, by a token in the body.
    InBody,
    /// A principal or the holder of a claim token, by bearer token.
    Bearer,
}

/// What a call takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// Nothing.
    Nothing,
    /// Bytes.
    Bytes,
    /// JSON of this name.
    Json(&'static str),
    /// JSON of this name, or nothing.
    OptionalJson(&'static str),
}

/// Makes the routes and their description from one list.
macro_rules! routes {
    ($($method:ident $path:literal $handler:path, $access:ident, $body:expr, $summary:literal;)*) => {
        /// Every route.
        pub(super) const OPERATIONS: &[Operation] = &[$(Operation {
            method: stringify!($method),
            path: $path,
            access: Access::$access,
            body: $body,
            summary: $summary,
        }),*];

        fn own() -> Router<Shared> {
            Router::new()$(.route($path, $method($handler)))*
        }
    };
}

use Takes::{Bytes, Json, Nothing, OptionalJson};

routes! {
    get "/" house::root, Open, Nothing, "Leads to the page";
    get "/metrics" house::prometheus, Principal, Nothing, "Counters and gauges as Prometheus text";
    get "/v1/openapi.json" openapi::document, Open, Nothing, "This description";
    get "/v1/health" house::health, Open, Nothing, "Whether the process answers";
    get "/v1/ready" house::ready, Open, Nothing, "Whether the plane can work";
    get "/v1/plane-keys" house::plane_keys, Open, Nothing, "The plane's key and its successions";
    get "/v1/metrics" house::metrics, Principal, Nothing, "Counters";
    get "/v1/policy" house::policy, Principal, Nothing, "The policy in force";
    put "/v1/policy" house::set_policy, Principal, Json("PolicyUpload"), "Put a policy in force";
    get "/v1/policy/history" house::policy_history, Principal, Nothing, "Every policy that was set";
    get "/v1/secrets" house::secrets, Principal, Nothing, "The names of the secrets";
    put "/v1/secrets/{name}" house::set_secret, Principal, Json("SetSecret"), "Set a secret";
    delete "/v1/secrets/{name}" house::remove_secret, Principal, Nothing, "Remove a secret";
    get "/v1/principals" people::list, Principal, Nothing, "Everyone with a token";
    post "/v1/principals" people::issue, Principal, Json("IssuePrincipal"), "Make a principal";
    post "/v1/principals/{name}/rotate" people::rotate, Principal, Nothing, "Give another token";
    post "/v1/principals/{name}/revoke" people::revoke, Principal, Nothing, "Withdraw a token";
    post "/v1/enroll-tokens" people::issue_enroll_token, Principal,
        OptionalJson("IssueEnrollToken"), "Make a token that lets one runner in";
    get "/v1/runners" people::runners, Principal, Nothing, "Every runner";
    post "/v1/runners/enroll" fleet::enroll, InBody, Json("Enroll"), "Let a runner in";
    post "/v1/runners/{id}/revoke" people::revoke_runner, Principal, Nothing, "Send a runner away";
    get "/v1/false-claims" people::false_claims, Principal, Nothing,
        "What runners said that the plane refuted, newest first";
    post "/v1/claims" fleet::claim, InBody, Json("ClaimRun"), "Ask for work";
    post "/v1/blobs" blobs::store, Bearer, Bytes, "Store a blob";
    get "/v1/blobs/{hash}" blobs::fetch, Bearer, Nothing, "Read a blob";
    get "/v1/runs" runs::list, Principal, Nothing, "Runs, newest first";
    post "/v1/runs" runs::submit, Principal, Json("SubmitRun"), "Ask for a run";
    get "/v1/runs/{id}" runs::view, Principal, Nothing, "One run with its chain";
    post "/v1/runs/{id}/approve" runs::approve, Principal, Json("ApproveRun"), "Approve a run";
    post "/v1/runs/{id}/deny" runs::deny, Principal, Json("RefuseRun"), "Refuse a run";
    post "/v1/runs/{id}/cancel" runs::cancel, Principal, Json("CancelRun"), "Stop a run";
    get "/v1/runs/{id}/bundle" runs::bundle, Principal, Nothing, "What a verifier needs";
    get "/v1/runs/{id}/events" watch::events, Principal, Nothing, "The chain, live";
    post "/v1/runs/{id}/events" fleet::append, InBody, Json("AppendEvents"), "Record events";
    get "/v1/runs/{id}/logs" watch::logs, Principal, Nothing, "The log, live";
    post "/v1/runs/{id}/logs" fleet::push_log, Bearer, Bytes, "Tell what the program said";
    post "/v1/runs/{id}/start" fleet::start, InBody, Json("StartRun"), "Start a leased run";
    post "/v1/runs/{id}/renew" fleet::renew, InBody, Json("RenewLease"), "Give a sign of life";
    post "/v1/runs/{id}/hand-back" fleet::hand_back, InBody, Json("HandBack"), "Give a run back";
    post "/v1/runs/{id}/complete" fleet::complete, InBody, Json("CompleteRun"), "End a run";
    get "/v1/events" watch::changes, Principal, Nothing, "Which runs change, live";
    get "/v1/export" runs::export, Principal, Nothing, "Every event as JSON lines";
}

/// Returns the plane's own routes.
pub fn router(service: Shared) -> Router {
    router_with(service, Router::new())
}

/// Returns the plane's own routes together with those of doors, pages and the like.
pub fn router_with(service: Shared, doors: Router) -> Router {
    let is_tls = service.settings().plane_url.starts_with("https:");
    let transport = if is_tls { page::Transport::Tls } else { page::Transport::Plain };
    let own = own().with_state(Arc::clone(&service));
    let observing = Arc::clone(&service);
    own.clone()
        .merge(page::routes(own, service, transport))
        .merge(doors)
        .method_not_allowed_fallback(refuse)
        .fallback(refuse)
        .layer(middleware::from_fn_with_state(observing, around))
}

async fn refuse(request: Request) -> Response {
    no_route(&request).into_response()
}

/// Has every request observed and counted, and says how answers may be used.
async fn around(State(service): State<Shared>, request: Request, next: Next) -> Response {
    let mut response = observe(request, next, |status| service.metrics.count_status(status)).await;
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns routes that may hold other APIs in front of the plane's, with every request observed:
/// it gets an id, one line in the log, and counts by its status.
pub fn observed(routes: Router, service: Shared) -> Router {
    Router::new().fallback_service(routes).layer(middleware::from_fn_with_state(service, outside))
}

async fn outside(State(service): State<Shared>, request: Request, next: Next) -> Response {
    observe(request, next, |status| service.metrics.count_status(status)).await
}
