//! Admission: what a plane takes on at once, for every entry of its port.
//!
//! One [`Admission`] belongs to one plane. [`super::serve`] puts it on every request, so that the
//! plane's own API, the compat APIs, MCP and the console share one table of connections and one
//! memory budget.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::Extensions;

use super::body::{self, BodyBounds};
use super::budget::{Holder, MemoryBudget, Reservation};
use super::connections::{ConnectionLimits, Connections};
use super::error::HttpError;
use super::pace::MinimumRate;
use super::settings::Limits;

/// What a plane takes on at once.
#[derive(Debug)]
pub struct Admission {
    pub(crate) connections: Arc<Connections>,
    pub(crate) budget: Arc<MemoryBudget>,
    /// How slow a transfer may be.
    pub(crate) rate: MinimumRate,
    /// How long a connection may be idle, or the head of a request take.
    pub(crate) idle: Duration,
}

impl Default for Admission {
    fn default() -> Self {
        Self::new(&Limits::default())
    }
}

impl Admission {
    /// Returns the admission under these limits.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        let connections = Connections::new(ConnectionLimits {
            total: limits.connections as usize,
            per_address: limits.connections_per_address as usize,
            per_token: limits.connections_per_token as usize,
        });
        Self {
            connections: Arc::new(connections),
            budget: Arc::new(MemoryBudget::new()),
            rate: MinimumRate {
                bytes_per_second: limits.min_bytes_per_second,
                stall: Duration::from_secs(u64::from(limits.stall_seconds)),
            },
            idle: Duration::from_secs(u64::from(limits.idle_seconds)),
        }
    }

    /// Returns the admission a request came through; one of its own when it came through none.
    pub(crate) fn of(extensions: &Extensions) -> Arc<Self> {
        extensions.get::<Arc<Self>>().cloned().unwrap_or_default()
    }
}

/// Space for a body that was read; it is free again when this is dropped.
#[derive(Debug)]
pub struct BodySpace {
    _reservation: Reservation,
}

/// Reads the JSON body of a request whose sender is known as `holder`, and returns the request with
/// its body in memory. Nothing is parsed; the JSON is bounded in bytes, values and depth.
///
/// # Errors
/// [`HttpError`] naming the limit that the body exceeds.
pub async fn buffer_json(
    request: Request,
    holder: &str,
    bounds: BodyBounds,
) -> Result<(Request, BodySpace), HttpError> {
    let admission = Admission::of(request.extensions());
    let mut reservation = admission.budget.reservation(Holder::Known(holder.to_owned()));
    let (parts, content) = request.into_parts();
    let whole = Request::from_parts(parts.clone(), content);
    let bytes = body::read_json_into(whole, bounds, &mut reservation).await?;
    let request = Request::from_parts(parts, bytes.into());
    Ok((request, BodySpace { _reservation: reservation }))
}
