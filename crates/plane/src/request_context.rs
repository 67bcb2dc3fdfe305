//! What is known of the request that is answered now, for its one line in the log.
//!
//! ```text
//! observe (outermost) ──► routes, compat APIs, MCP ──► handlers, and their work on other threads
//!    one line at the end      note_route                 note_principal, note_cause
//! ```
//!
//! Every request is logged at `debug` when it is answered, with method, route, status, duration and
//! principal; one that failed inside, or is answered with a 5xx, is logged as an error with its
//! cause. Never logged: tokens, headers, queries, bodies. The id is returned in `x-request-id`.

use std::error::Error;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use hyper::Method;
use hyper::header::{HeaderName, HeaderValue};

use warrant_protocol::error_chain;

use crate::random;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

tokio::task_local! {
    static CURRENT: Arc<RequestContext>;
}

/// What was noted about one request.
#[derive(Debug)]
struct RequestContext {
    id: String,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    route: Option<String>,
    principal: Option<String>,
    cause: Option<String>,
    /// Why a client was refused, more exactly than it was told.
    detail: Option<String>,
}

/// A request that was answered.
struct Answered<'a> {
    id: &'a str,
    method: &'a Method,
    status: u16,
    duration_ms: u64,
    notes: &'a Notes,
}

/// Notes which route answers; the first one counts.
pub fn note_route(route: &str) {
    note(|notes| {
        notes.route.get_or_insert_with(|| route.to_owned());
    });
}

/// Notes who was authenticated.
pub fn note_principal(id: &str) {
    note(|notes| notes.principal = Some(id.to_owned()));
}

/// Notes why the request fails inside, for the log alone. What fails outside of any request is
/// logged at once.
pub fn note_cause(cause: &str) {
    let is_noted = note(|notes| {
        notes.cause.get_or_insert_with(|| cause.to_owned());
    });
    if !is_noted {
        tracing::error!(error = cause, "failed inside");
    }
}

/// Returns a refusal after noting the error it comes from, which the line of the request has as
/// `detail`. Outside of any request it is logged at once.
pub fn keep_cause<T>(error: &(dyn Error + 'static), refusal: T) -> T {
    let text = match error.downcast_ref::<serde_json::Error>() {
        // SECURITY: what does not fit a type is repeated in that error, and may be a secret.
        Some(json) if json.is_data() => {
            format!("wrong JSON at line {} column {}", json.line(), json.column())
        }
        _ => error_chain(error),
    };
    let is_noted = note(|notes| {
        notes.detail.get_or_insert_with(|| text.clone());
    });
    if !is_noted {
        tracing::debug!(detail = text, "refused");
    }
    refusal
}

fn note(change: impl FnOnce(&mut Notes)) -> bool {
    let noted = CURRENT.try_with(|context| {
        change(&mut context.notes.lock().unwrap_or_else(PoisonError::into_inner));
    });
    noted.is_ok()
}

/// Returns work that notes to the same request wherever it is done.
pub fn carried<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let context = CURRENT.try_with(Arc::clone).ok();
    move || match context {
        Some(context) => CURRENT.sync_scope(context, work),
        None => work(),
    }
}

/// Returns a task that notes to the same request wherever it is run.
pub fn carried_task<T, F: Future<Output = T>>(task: F) -> impl Future<Output = T> {
    let context = CURRENT.try_with(Arc::clone).ok();
    async move {
        match context {
            Some(context) => CURRENT.scope(context, task).await,
            None => task.await,
        }
    }
}

/// Middleware of a router: notes its route.
pub(crate) async fn with_route(request: Request, next: Next) -> Response {
    if let Some(route) = request.extensions().get::<MatchedPath>() {
        note_route(route.as_str());
    }
    next.run(request).await
}

/// Gives a request an id, has it answered, and logs it once. `count` hears the status.
pub(crate) async fn observe(request: Request, next: Next, count: impl FnOnce(u16)) -> Response {
    if CURRENT.try_with(|_| ()).is_ok() {
        // Somebody further out observes it.
        return with_route(request, next).await;
    }
    let began = Instant::now();
    let id = request_id(&request);
    let method = request.method().clone();
    let context = Arc::new(RequestContext { id, notes: Mutex::default() });
    let answering = CURRENT.scope(Arc::clone(&context), with_route(request, next));
    let mut response = answering.await;
    let status = response.status().as_u16();
    count(status);
    let duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let notes = context.notes.lock().unwrap_or_else(PoisonError::into_inner);
    Answered { id: &context.id, method: &method, status, duration_ms, notes: &notes }.log();
    if let Ok(id) = HeaderValue::from_str(&context.id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

impl Answered<'_> {
    fn log(&self) {
        let Self { id, method, status, duration_ms, notes } = self;
        let route = notes.route.as_deref().unwrap_or("(none)");
        let principal = notes.principal.as_deref().unwrap_or("(none)");
        let detail = notes.detail.as_deref();
        let cause = notes.cause.as_deref().or(detail.filter(|_| *status >= 500));
        if cause.is_some() || (*status >= 500 && *status != 501) {
            let error = cause.unwrap_or("no cause was noted");
            tracing::error!(
                request.id = %id, %method, route, status, duration_ms, principal, error, detail,
                "{method} {route} {status}: {error}"
            );
        } else {
            tracing::debug!(
                request.id = %id, %method, route, status, duration_ms, principal, detail,
                "{method} {route} {status}"
            );
        }
    }
}

/// The caller's own id for a request when it is plain, else a fresh one.
fn request_id(request: &Request) -> String {
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let is_plain = |text: &&str| {
        (1..=64).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    match given.filter(is_plain) {
        Some(given) => given.to_owned(),
        None => random::hex().unwrap_or_default(),
    }
}
