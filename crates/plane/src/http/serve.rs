//! Serving: connections in, optionally through TLS, and a graceful end.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::waiting::going_down;

/// How many connections are served at once.
const MAX_CONNECTIONS: usize = 4096;

/// How long the head of a request may take.
const HEAD_TIME: Duration = Duration::from_secs(30);

/// How long a handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// How long requests that are under way may take once the plane goes down.
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// The address a request came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Says that a request came over a connection that we made TLS ourselves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OverTls;

/// The files of TLS.
#[derive(Debug, Clone, Copy)]
pub struct TlsFiles<'a> {
    /// The certificate chain, PEM.
    pub certificate: &'a Path,
    /// The private key, PEM.
    pub key: &'a Path,
    /// The authority that must have signed the certificates of clients, PEM.
    pub client_authority: Option<&'a Path>,
}

/// Why TLS cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file holds no usable PEM.
    #[error("{path} holds no usable {what}")]
    File {
        /// Which file.
        path: String,
        /// What it should hold.
        what: &'static str,
        /// What is wrong.
        #[source]
        cause: rustls::pki_types::pem::Error,
    },
    /// Certificate and key do not fit.
    #[error("certificate and key cannot be used")]
    Config(#[from] rustls::Error),
    /// The clients' authority cannot be used.
    #[error("the authority of client certificates cannot be used")]
    Clients(#[from] rustls::server::VerifierBuilderError),
}

/// Reads the files of TLS.
///
/// # Errors
/// [`TlsError`] naming the file that cannot be used.
pub fn tls(files: &TlsFiles<'_>) -> Result<TlsAcceptor, TlsError> {
    let wrong = |path: &Path, what: &'static str| {
        let path = path.display().to_string();
        move |cause| TlsError::File { path, what, cause }
    };
    let certificates = |path: &Path| {
        let read = CertificateDer::pem_file_iter(path).map_err(wrong(path, "certificate"))?;
        read.collect::<Result<Vec<_>, _>>().map_err(wrong(path, "certificate"))
    };
    let chain = certificates(files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(files.key).map_err(wrong(files.key, "private key"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = match files.client_authority {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = rustls::RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate)?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves `router` until `shutdown` turns true, then lets what is under way finish.
///
/// # Errors
/// The system's error when no connection can be taken any more.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Option<TlsAcceptor>,
    mut shutdown: watch::Receiver<bool>,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = going_down(&mut shutdown) => break,
        };
        while connections.try_join_next().is_some() {}
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            // No descriptor is free, or the client is gone already: neither ends the plane.
            Err(error) => {
                tracing::warn!(%error, "a connection was not taken");
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        // More than we serve at once are turned away, so that none hang.
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let (router, tls, shutdown) = (router.clone(), tls.clone(), shutdown.clone());
        connections.spawn(async move {
            let _place = place;
            connection(stream, (router, Peer(address.ip())), tls, shutdown).await;
        });
    }
    drop(listener);
    let finish = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_TIME, finish).await.is_err() {
        tracing::warn!("requests were cut off at the end");
    }
    Ok(())
}

async fn connection(
    stream: TcpStream,
    to: (Router, Peer),
    tls: Option<TlsAcceptor>,
    shutdown: watch::Receiver<bool>,
) {
    // Answers are small; waiting to fill a packet only delays them.
    let _ = stream.set_nodelay(true);
    match tls {
        None => talk(stream, (to, None), shutdown).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIME, tls.accept(stream)).await {
                talk(stream, (to, Some(OverTls)), shutdown).await;
            }
        }
    }
}

async fn talk(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ((router, peer), over_tls): ((Router, Peer), Option<OverTls>),
    mut shutdown: watch::Receiver<bool>,
) {
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        if let Some(over_tls) = over_tls {
            request.extensions_mut().insert(over_tls);
        }
        let router = router.clone();
        async move { call(router, request.map(axum::body::Body::new)).await }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
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
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn call(
    mut router: Router,
    request: Request,
) -> Result<axum::response::Response, std::convert::Infallible> {
    use tower_service::Service as _;
    // A router is always ready.
    router.call(request).await
}
