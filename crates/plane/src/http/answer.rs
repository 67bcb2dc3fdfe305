//! Answers: JSON with its length, nothing else.

use axum::body::Body;
use axum::response::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;

use super::serve::HeldBody;

/// Returns a JSON answer.
pub(crate) fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => json_text(text),
        // Every type we answer with has a JSON form; an empty body tells that this one had none.
        Err(_) => Response::new(Body::empty()),
    }
}

/// Returns an answer of JSON that is text already.
pub(crate) fn json_text(text: String) -> Response {
    typed("application/json", Body::from(text))
}

/// Returns an answer that keeps something until it was sent.
pub(crate) fn held<T: Unpin + Send + 'static>(response: Response, held: T) -> Response {
    response.map(|inner| Body::new(HeldBody { inner, _held: held }))
}

/// Returns an answer of some type.
pub(crate) fn typed(content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
