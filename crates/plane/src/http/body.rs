//! Reading bodies: limits hold before anything is buffered, and a refusal is heard.
//!
//! Whoever is known by the head of a request may send much; of everybody else little is read until
//! their token has been checked. Every byte that is read, and every value that is parsed, has its
//! space in the memory budget first.

use crate::request_context::keep_cause;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use hyper::HeaderMap;
use hyper::header::CONTENT_LENGTH;
use serde_json::Value;

use super::admission::Admission;
use super::budget::{Holder, Reservation};
use super::error::HttpError;
use super::json_scan::{self, Member, ValueCounter};
use super::pace::TooSlow;
use super::peer_of;

/// How much a body may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyBounds {
    /// Bytes.
    pub bytes: usize,
    /// JSON values.
    pub values: usize,
}

/// A small call, also of somebody who is not known yet.
pub(crate) const SMALL: BodyBounds = BodyBounds { bytes: 64 * 1024, values: 4_000 };

/// A call with a statement or a secret in it.
pub(crate) const MEDIUM: BodyBounds = BodyBounds { bytes: 256 * 1024, values: 16_000 };

/// A policy.
pub(crate) const POLICY: BodyBounds = BodyBounds { bytes: 4 * 1024 * 1024, values: 200_000 };

/// A request with a workspace of a hundred thousand files, or the events of a run.
pub(crate) const LARGE: BodyBounds = BodyBounds { bytes: 24 * 1024 * 1024, values: 600_000 };

/// How long a whole JSON body may take.
const BODY_TIME: Duration = Duration::from_secs(60);

/// How much of a refused body is read, so that its sender gets to hear the refusal.
const DRAIN_BYTES: usize = 64 * 1024 * 1024;

/// How long a refused body is read.
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// A JSON body that was read, with its space.
#[derive(Debug)]
pub(crate) struct JsonBody {
    bytes: Bytes,
    /// Free again once the body was used.
    _space: Reservation,
}

impl JsonBody {
    /// Returns whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Parses it; its space is there already.
    pub(crate) fn parse(&self) -> Result<Value, HttpError> {
        parse(&self.bytes)
    }
}

/// Reads and parses a JSON body of somebody who is known; for bodies that are not large.
pub(crate) async fn json(
    request: Request,
    bounds: BodyBounds,
    holder: &str,
) -> Result<Value, HttpError> {
    json_body(request, bounds, Holder::Known(holder.to_owned())).await?.parse()
}

/// Reads a JSON body; it is parsed where that may take its time.
pub(crate) async fn json_body(
    request: Request,
    bounds: BodyBounds,
    holder: Holder,
) -> Result<JsonBody, HttpError> {
    let mut space = Admission::of(request.extensions()).budget.reservation(holder);
    let bytes = read_json_into(request, bounds, &mut space).await?;
    Ok(JsonBody { bytes, _space: space })
}

/// Reads a JSON body with the space that it and its values need.
pub(crate) async fn read_json_into(
    request: Request,
    bounds: BodyBounds,
    space: &mut Reservation,
) -> Result<Bytes, HttpError> {
    let counter = ValueCounter::new(bounds.values);
    let mut reading = Reading::of(request, bounds.bytes, Some(counter))?;
    reading.rest(space).await?;
    reading.with_values(bounds, space).await
}

/// Reads a JSON body that names its sender by a member of its own. Only so much as a [`SMALL`] body
/// has is read before `identify` has checked that member and told who it is.
pub(crate) async fn json_by_member(
    request: Request,
    name: &str,
    identify: impl Fn(&str) -> Result<String, HttpError>,
) -> Result<JsonBody, HttpError> {
    let holder = Holder::Stranger(peer_of(&request));
    let mut space = Admission::of(request.extensions()).budget.reservation(holder);
    let counter = ValueCounter::new(LARGE.values);
    let mut reading = Reading::of(request, LARGE.bytes, Some(counter))?;
    let is_small = reading.up_to(SMALL.bytes, &mut space).await?;
    if is_small {
        let bytes = reading.with_values(SMALL, &mut space).await?;
        return Ok(JsonBody { bytes, _space: space });
    }
    // SECURITY: the rest of a large body is read only for somebody whose token is good.
    let holder = match json_scan::member(&reading.bytes, name) {
        Member::Text(token) => identify(&token),
        Member::NotYet | Member::Absent => Err(HttpError::token_too_late(name, SMALL.bytes)),
    };
    match holder {
        Ok(holder) => space.identify(holder),
        Err(error) => {
            drain(reading.stream);
            return Err(error);
        }
    }
    reading.rest(&mut space).await?;
    let bytes = reading.with_values(LARGE, &mut space).await?;
    Ok(JsonBody { bytes, _space: space })
}

/// Reads bytes as JSON.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, HttpError> {
    warrant_protocol::json::parse(bytes).map_err(|error| keep_cause(&error, HttpError::not_json()))
}

/// Reads a body of at most `limit` bytes, each with its space.
pub(crate) async fn read_into(
    request: Request,
    limit: usize,
    space: &mut Reservation,
) -> Result<Bytes, HttpError> {
    let mut reading = Reading::of(request, limit, None)?;
    reading.rest(space).await?;
    Ok(reading.bytes.freeze())
}

/// Reads a body of at most `limit` bytes of somebody who is known.
pub(crate) async fn read(
    request: Request,
    limit: usize,
    holder: &str,
) -> Result<(Bytes, Reservation), HttpError> {
    let holder = Holder::Known(holder.to_owned());
    let mut space = Admission::of(request.extensions()).budget.reservation(holder);
    let bytes = read_into(request, limit, &mut space).await?;
    Ok((bytes, space))
}

/// Reads a body of at most `limit` bytes of somebody who is not known yet.
pub(crate) async fn read_small(request: Request, limit: usize) -> Result<Bytes, HttpError> {
    let holder = Holder::Stranger(peer_of(&request));
    let mut space = Admission::of(request.extensions()).budget.reservation(holder);
    read_into(request, limit, &mut space).await
}

/// A body on its way.
struct Reading {
    bytes: BytesMut,
    stream: BodyDataStream,
    limit: usize,
    /// Counts the values of JSON as they come.
    counter: Option<ValueCounter>,
    deadline: tokio::time::Instant,
}

impl Reading {
    fn of(
        request: Request,
        limit: usize,
        counter: Option<ValueCounter>,
    ) -> Result<Self, HttpError> {
        let announced = length_of(request.headers());
        let stream = request.into_body().into_data_stream();
        if announced.is_some_and(|length| length > limit as u64) {
            drain(stream);
            return Err(HttpError::too_large(limit as u64));
        }
        let deadline = tokio::time::Instant::now() + BODY_TIME;
        // Memory is used once something is written to it; a body that grows by doubling would take
        // three times its size.
        let bytes = BytesMut::with_capacity(announced.map_or(0, |length| length as usize));
        Ok(Self { bytes, stream, limit, counter, deadline })
    }

    /// Reads until there are more than `most` bytes, or all; true when that is all. After a refusal
    /// the rest is read for a while, so that the sender hears it.
    async fn up_to(&mut self, most: usize, space: &mut Reservation) -> Result<bool, HttpError> {
        let read = self.read_up_to(most, space).await;
        if read.is_err() {
            drain(std::mem::replace(&mut self.stream, Body::empty().into_data_stream()));
        }
        read
    }

    async fn read_up_to(
        &mut self,
        most: usize,
        space: &mut Reservation,
    ) -> Result<bool, HttpError> {
        while self.bytes.len() <= most {
            let next = tokio::time::timeout_at(self.deadline, self.stream.next()).await;
            let chunk = match next {
                Err(_) => return Err(HttpError::slow_body(format!("{BODY_TIME:?} were over"))),
                Ok(None) => return Ok(true),
                Ok(Some(chunk)) => chunk.map_err(broken)?,
            };
            if self.bytes.len() + chunk.len() > self.limit {
                return Err(HttpError::too_large(self.limit as u64));
            }
            if let Some(counter) = &mut self.counter {
                counter.feed(&chunk)?;
            }
            space.grow(chunk.len()).await?;
            self.bytes.extend_from_slice(&chunk);
        }
        Ok(false)
    }

    /// Reads what is left.
    async fn rest(&mut self, space: &mut Reservation) -> Result<(), HttpError> {
        self.up_to(self.limit, space).await.map(drop)
    }

    /// Takes the space that parsing needs, and returns the bytes.
    async fn with_values(
        self,
        bounds: BodyBounds,
        space: &mut Reservation,
    ) -> Result<Bytes, HttpError> {
        if let Some(counter) = self.counter {
            space.grow(counter.parsed_size(self.bytes.len(), bounds.values)?).await?;
        }
        Ok(self.bytes.freeze())
    }
}

/// Tells why a body ended before its end.
pub(crate) fn broken(error: axum::Error) -> HttpError {
    let error = error.into_inner();
    match error.downcast_ref::<TooSlow>() {
        Some(slow) => HttpError::slow_body(slow.to_string()),
        // Whoever breaks off gets no answer anyway.
        None => HttpError::bad_request("the body broke off"),
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
