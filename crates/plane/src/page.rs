//! The web page at `/ui`: its files are in the binary, and its person is known by a cookie.
//!
//! [`routes`] serves the files, keeps sessions, and passes `/ui/api/…` on to the plane's own API
//! with the session's token. So the page may do exactly what that token may do, and its scripts
//! never see it.

mod files;
mod sessions;
mod tickets;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use hyper::header::{
    AUTHORIZATION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HeaderMap, HeaderName,
    HeaderValue, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use sessions::Sessions;
pub(crate) use tickets::Tickets;

use crate::http::{OverTls, Shared, peer_of};

/// Only our own files, no inline anything, nobody frames us.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'self'; \
                      frame-ancestors 'none'";
const COOKIE_NAME: &str = "warrant_session";
/// A request that changes something carries this; other sites cannot send it unasked.
const OWN_HEADER: &str = "x-warrant-page";
/// The largest body a log-in has.
const LOGIN_BYTES: usize = 16 * 1024;

/// How the page's cookie travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Over TLS: the cookie is sent over nothing else.
    Tls,
    /// In the clear, as on one machine.
    Plain,
}

#[derive(Debug)]
struct Page {
    sessions: Sessions,
    service: Shared,
    transport: Transport,
}

/// Returns the page's routes over the plane's own. `transport` is what a proxy in front of us
/// does; a connection of our own that is TLS is one anyway.
pub(crate) fn routes(api: Router, service: Shared, transport: Transport) -> Router {
    let page = Arc::new(Page { sessions: Sessions::new(), service, transport });
    let api = api.layer(middleware::from_fn_with_state(Arc::clone(&page), as_session));
    Router::new()
        .route("/ui", get(index))
        .route("/ui/", get(index))
        .route("/ui/{*path}", get(place))
        .route("/ui/assets/{name}", get(asset))
        .route("/ui/session", post(log_in).delete(log_out))
        .with_state(page)
        .nest("/ui/api", api)
}

async fn index() -> Response {
    file("index.html")
}

/// Every other path is a place in the page, which reads it itself.
async fn place(Path(path): Path<String>) -> Response {
    if path.starts_with("api/") {
        return plain(StatusCode::NOT_FOUND, &json!({"error": "there is no such call"}));
    }
    file("index.html")
}

async fn asset(Path(name): Path<String>) -> Response {
    file(&name)
}

fn file(name: &str) -> Response {
    let Some((kind, bytes)) = files::find(name) else {
        return plain(StatusCode::NOT_FOUND, &json!({"error": "there is no such file"}));
    };
    let mut response = Response::new(Body::from(bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    protect(headers);
    response
}

fn protect(headers: &mut HeaderMap) {
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_FRAME_OPTIONS, "DENY"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

fn plain(status: StatusCode, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    protect(headers);
    response
}

impl Page {
    fn transport_of(&self, request: &Request) -> Transport {
        match request.extensions().get::<OverTls>() {
            Some(OverTls) => Transport::Tls,
            None => self.transport,
        }
    }
}

/// Takes a token, or a ticket for one, and gives a cookie for it.
///
/// SECURITY: only a token that somebody has opens a session. Otherwise strangers could fill the
/// house with sessions until those of its people are closed.
async fn log_in(State(page): State<Arc<Page>>, request: Request) -> Response {
    let (transport, peer) = (page.transport_of(&request), peer_of(&request));
    if !is_from_the_page(request.headers()) {
        return plain(StatusCode::FORBIDDEN, &json!({"error": "this is for the page only"}));
    }
    let bad = |error: &str| plain(StatusCode::BAD_REQUEST, &json!({"error": error}));
    let body = match crate::http::body::read_small(request, LOGIN_BYTES).await {
        Ok(body) => body,
        Err(refusal) => {
            let mut refusal = refusal.into_response();
            protect(refusal.headers_mut());
            return refusal;
        }
    };
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return bad("request body is not valid JSON");
    };
    let word = |name: &str| body.get(name).and_then(Value::as_str);
    let redeemed = match word("ticket") {
        None => None,
        Some(ticket) => match page.service.tickets.redeem(ticket, page.service.moment()) {
            Some(token) => Some(token),
            None => {
                let error = "the ticket was used, or is old";
                return plain(StatusCode::UNAUTHORIZED, &json!({ "error": error }));
            }
        },
    };
    let token = redeemed.as_deref().or_else(|| word("token")).unwrap_or_default();
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_token {
        return bad("token: a token has visible letters only");
    }
    if page.service.registry.principal(token).is_none() {
        let mut refusal = page.service.stranger(peer).into_response();
        protect(refusal.headers_mut());
        return refusal;
    }
    match page.sessions.open(token, page.service.moment()) {
        Ok(id) => with_cookie(transport, &id, sessions::LIFE.as_secs()),
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, &json!({"error": "internal error"})),
    }
}

async fn log_out(State(page): State<Arc<Page>>, request: Request) -> Response {
    if !is_from_the_page(request.headers()) {
        return plain(StatusCode::FORBIDDEN, &json!({"error": "this is for the page only"}));
    }
    if let Some(id) = cookie(request.headers()) {
        page.sessions.close(&id);
    }
    with_cookie(page.transport_of(&request), "", 0)
}

fn with_cookie(transport: Transport, id: &str, seconds: u64) -> Response {
    let mut response = plain(StatusCode::OK, &json!({"ok": true}));
    let secure = match transport {
        Transport::Tls => "; Secure",
        Transport::Plain => "",
    };
    let text = format!(
        "{COOKIE_NAME}={id}; Path=/ui; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    );
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().insert(SET_COOKIE, value);
    }
    response
}

/// Puts the session's token where the API looks for it.
///
/// SECURITY: a page of another site gets neither the cookie (`SameSite`) nor the header through,
/// and whatever authorization a request brought itself is dropped.
async fn as_session(State(page): State<Arc<Page>>, mut request: Request, next: Next) -> Response {
    let is_reading = matches!(*request.method(), Method::GET | Method::HEAD);
    let is_elsewhere = !is_same_site(request.headers());
    if is_elsewhere || (!is_reading && !is_from_the_page(request.headers())) {
        return plain(StatusCode::FORBIDDEN, &json!({"error": "this is for the page only"}));
    }
    let id = cookie(request.headers());
    let token = id.as_deref().and_then(|id| page.sessions.token(id, page.service.moment()));
    let header = token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok());
    let (Some(id), Some(mut header)) = (id, header) else {
        return plain(StatusCode::UNAUTHORIZED, &json!({"error": "unauthorized"}));
    };
    header.set_sensitive(true);
    let headers = request.headers_mut();
    headers.remove(COOKIE);
    headers.insert(AUTHORIZATION, header);
    let mut response = next.run(request).await;
    if response.status() == StatusCode::UNAUTHORIZED {
        page.sessions.close(&id);
    }
    protect(response.headers_mut());
    response
}

fn is_from_the_page(headers: &HeaderMap) -> bool {
    headers.contains_key(OWN_HEADER) && is_same_site(headers)
}

/// Returns whether the browser, if it is one that says so, sends this for our own page.
fn is_same_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    matches!(site, None | Some(b"same-origin" | b"none"))
}

fn cookie(headers: &HeaderMap) -> Option<String> {
    let pairs = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = pairs.flat_map(|value| value.split(';')).map(str::trim);
    pairs.find_map(|pair| pair.strip_prefix(COOKIE_NAME)?.strip_prefix('=')).map(ToOwned::to_owned)
}
