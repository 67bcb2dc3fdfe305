//! Serving on the Unix socket of the home, to programs of the same user.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower_service::Service as _;

use super::serve::{Peer, ServeOptions};
use super::waiting::going_down;
use crate::serving::is_own_user;

/// How many local connections are served at once.
const MAX_LOCAL_CONNECTIONS: usize = 256;

/// How long the head of a local request may take.
const LOCAL_HEAD_TIME: Duration = Duration::from_secs(30);

/// Serves `router` on a Unix socket until `shutdown` turns true, then lets what is under way
/// finish as long as the caller waits. Local clients share the memory budget of all others; TLS is
/// not used.
///
/// # Errors
/// The system's error when the socket cannot be used.
pub async fn serve_local(
    listener: std::os::unix::net::UnixListener,
    router: Router,
    options: ServeOptions,
) -> io::Result<()> {
    let ServeOptions { admission, mut shutdown, .. } = options;
    let router = router.layer(Extension(admission));
    let listener = UnixListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = going_down(&mut shutdown) => break,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, _)) if is_welcome(&stream) => {
                if connections.len() < MAX_LOCAL_CONNECTIONS {
                    connections.spawn(converse(stream, router.clone(), shutdown.clone()));
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "a local connection was not accepted");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

// SECURITY: the mode of the socket keeps others out; this holds even where it was changed.
fn is_welcome(stream: &UnixStream) -> bool {
    match is_own_user(stream) {
        Ok(true) => true,
        Ok(false) => {
            tracing::warn!("a local connection of another user was refused");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "the user of a local connection is unknown; it was refused");
            false
        }
    }
}

async fn converse(stream: UnixStream, router: Router, mut shutdown: watch::Receiver<bool>) {
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(Peer(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        // A router is always ready.
        router.clone().call(request.map(axum::body::Body::new))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(LOCAL_HEAD_TIME)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = going_down(&mut shutdown) => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a local connection ended early");
    }
}
