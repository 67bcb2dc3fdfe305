//! The plane over HTTP: the reference's wire, with its mistakes mended, and what ours adds.
//!
//! [`PlaneService::open`] opens the plane of a home, [`router`] makes the routes (doors of other
//! protocols are merged in by [`router_with`]), [`serve`] serves them until told to stop, and
//! [`keep_house`] ends leases that ran out. Handlers parse, call the plane on a thread that may
//! wait for the disk, and answer; every refusal is made in one file, `error`.

mod admission;
mod answer;
mod blobs;
pub(crate) mod body;
pub(crate) mod budget;
mod connections;
mod error;
mod fleet;
mod house;
mod idp;
pub(crate) mod json_scan;
mod lanes;
mod limits;
mod local;
mod logs;
mod metrics;
mod old_runner;
mod openapi;
mod pace;
mod people;
mod registry;
mod routes;
mod runs;
mod serve;
mod service;
pub mod settings;
mod store_watch;
mod tokens;
mod unserved;
mod visibility;
mod waiting;
mod watch;

use std::net::{IpAddr, Ipv4Addr};

use axum::extract::Request;

pub use admission::{Admission, BodySpace, buffer_json};
pub use body::BodyBounds;
pub use error::HttpError;
pub use lanes::BLOCKING_THREADS;
pub(crate) use lanes::COMPAT_THREADS;
pub use local::serve_local;
pub use routes::{observed, router, router_with};
pub(crate) use serve::{OverTls, Peer};
pub use serve::{ServeOptions, TlsError, TlsFiles, serve, tls};
pub use service::{PlaneService, ServiceError, Shared, keep_house};

/// Returns where a request came from; without a connection it came from here.
pub(crate) fn peer_of(request: &Request) -> IpAddr {
    let peer = request.extensions().get::<Peer>();
    peer.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |peer| peer.0)
}

/// The refusal of a path that nobody serves.
fn no_route(request: &Request) -> HttpError {
    let (method, path) = (request.method(), request.uri().path());
    HttpError::missing(format!("no route for {method} {path}"))
}
