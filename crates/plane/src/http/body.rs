//! Reading bodies: limits hold before anything is buffered, and a refusal is heard.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use hyper::HeaderMap;
use hyper::header::CONTENT_LENGTH;
use serde_json::Value;

use super::error::HttpError;

/// The most that a body may have whose sender is not known yet.
pub(crate) const STRANGER_BYTES: usize = 64 * 1024;

/// The most that a JSON body of somebody we know may have.
pub(crate) const JSON_BYTES: usize = 32 * 1024 * 1024;

/// How long a whole JSON body may take.
const BODY_TIME: Duration = Duration::from_secs(60);

/// How much of a refused body is read, so that its sender gets to hear the refusal.
const DRAIN_BYTES: usize = 64 * 1024 * 1024;

/// How long a refused body is read.
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// Reads a JSON body of at most `limit` bytes.
pub(crate) async fn json(request: Request, limit: usize) -> Result<Value, HttpError> {
    let bytes = read(request, limit).await?;
    parse(&bytes)
}

/// Reads bytes as JSON.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, HttpError> {
    warrant_protocol::json::parse(bytes).map_err(|_| HttpError::not_json())
}

/// Reads a body of at most `limit` bytes.
pub(crate) async fn read(request: Request, limit: usize) -> Result<Bytes, HttpError> {
    let announced = length_of(request.headers());
    let mut stream = request.into_body().into_data_stream();
    if announced.is_some_and(|length| length > limit as u64) {
        drain(stream);
        return Err(HttpError::too_large());
    }
    let collect = async {
        let mut all = BytesMut::new();
        while let Some(chunk) = stream.next().await {
            // Whoever breaks off gets no answer anyway.
            let chunk = chunk.map_err(|_| HttpError::not_json())?;
            if all.len() + chunk.len() > limit {
                return Ok(None);
            }
            all.extend_from_slice(&chunk);
        }
        Ok(Some(all.freeze()))
    };
    match tokio::time::timeout(BODY_TIME, collect).await {
        Err(_) => Err(HttpError::slow_body()),
        Ok(Err(error)) => Err(error),
        Ok(Ok(Some(all))) => Ok(all),
        Ok(Ok(None)) => {
            drain(stream);
            Err(HttpError::too_large())
        }
    }
}

/// Returns the length that a request announces.
pub(crate) fn length_of(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads the rest of a refused body for a while: a sender that is still writing when the
/// connection closes would never see the answer.
pub(crate) fn drain(mut stream: BodyDataStream) {
    tokio::spawn(async move {
        let read = async {
            let mut total = 0;
            while let Some(Ok(chunk)) = stream.next().await {
                total += chunk.len();
                if total > DRAIN_BYTES {
                    return;
                }
            }
        };
        // Either way the connection may close now.
        let _ = tokio::time::timeout(DRAIN_TIME, read).await;
    });
}

/// Drains the body of a request that was refused by its head alone.
pub(crate) fn drain_body(body: Body) {
    drain(body.into_data_stream());
}
