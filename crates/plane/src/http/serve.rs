//! Serving: connections in, optionally through TLS, each within its limits, and a graceful end.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::response::{IntoResponse as _, Response};
use hyper::StatusCode;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use super::admission::Admission;
use super::connections::{Connection, ConnectionRefusal, RequestUnderWay};
use super::error::HttpError;
use super::pace::{PacedBody, PacedStream};
use super::waiting::going_down;
use super::{answer, body};

/// How much of a request's head, and of an answer that waits for its reader, one connection holds.
const BUFFER_BYTES: usize = 32 * 1024;

/// How long a handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// How long a client may take to hear that its connection is not served.
const TURN_AWAY_TIME: Duration = Duration::from_secs(1);

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

/// How a plane is served.
pub struct ServeOptions {
    /// The certificate of the plane, for TLS.
    pub tls: Option<TlsAcceptor>,
    /// What is taken on at once.
    pub admission: Arc<Admission>,
    /// Turns true when serving is to end.
    pub shutdown: watch::Receiver<bool>,
}

/// Serves `router` until `shutdown` turns true, then lets what is under way finish.
///
/// # Errors
/// The system's error when no connection can be taken any more.
pub async fn serve(listener: TcpListener, router: Router, options: ServeOptions) -> io::Result<()> {
    let ServeOptions { tls, admission, mut shutdown } = options;
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
        let connection = match admission.connections.open(address.ip()) {
            Ok(connection) => connection,
            Err(refusal) => {
                turn_away(stream, refusal, tls.is_some());
                continue;
            }
        };
        let served = Served {
            router: router.clone(),
            admission: Arc::clone(&admission),
            connection,
            over_tls: tls.as_ref().map(|_| OverTls),
        };
        let (tls, shutdown) = (tls.clone(), shutdown.clone());
        connections.spawn(async move { served.accept(stream, tls, shutdown).await });
    }
    drop(listener);
    let finish = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_TIME, finish).await.is_err() {
        tracing::warn!("requests were cut off at the end");
    }
    Ok(())
}

/// How many clients are told at once that their connection is not served.
static TURNING_AWAY: Semaphore = Semaphore::const_new(64);

/// Tells a client why its connection is not served. When many are told already, or a handshake
/// would be needed first, the connection is closed without a word.
fn turn_away(mut stream: TcpStream, refusal: ConnectionRefusal, is_tls: bool) {
    tracing::debug!(?refusal, "a connection was refused");
    let Ok(permit) = TURNING_AWAY.try_acquire() else { return };
    if is_tls {
        return;
    }
    tokio::spawn(async move {
        let _permit = permit;
        let answer = HttpError::too_many_connections(refusal).as_text();
        let tell = async {
            stream.write_all(answer.as_bytes()).await?;
            stream.shutdown().await?;
            // Closed with a request unread, the connection would break before it is heard.
            while stream.read(&mut [0; 1024]).await? > 0 {}
            io::Result::Ok(())
        };
        // Whoever does not listen does not hear it.
        let _ = tokio::time::timeout(TURN_AWAY_TIME, tell).await;
    });
}

/// One connection and what it leads to.
struct Served {
    router: Router,
    admission: Arc<Admission>,
    connection: Arc<Connection>,
    over_tls: Option<OverTls>,
}

impl Served {
    async fn accept(
        self,
        stream: TcpStream,
        tls: Option<TlsAcceptor>,
        shutdown: watch::Receiver<bool>,
    ) {
        // Answers are small; waiting to fill a packet only delays them.
        let _ = stream.set_nodelay(true);
        let stream = PacedStream::new(stream, self.admission.rate, Arc::clone(&self.connection));
        match tls {
            None => self.talk(stream, shutdown).await,
            Some(tls) => {
                let handshake = tokio::time::timeout(HANDSHAKE_TIME, tls.accept(stream)).await;
                if let Ok(Ok(stream)) = handshake {
                    self.talk(stream, shutdown).await;
                }
            }
        }
    }

    async fn talk(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        mut shutdown: watch::Receiver<bool>,
    ) {
        let connection = Arc::clone(&self.connection);
        let idle = self.admission.idle;
        let service = service_fn(move |request| self.answer(request));
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(idle)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let mut serving = std::pin::pin!(serving);
        let ended = tokio::select! {
            ended = serving.as_mut() => ended,
            () = connection.closed() => return,
            () = going_down(&mut shutdown) => {
                serving.as_mut().graceful_shutdown();
                serving.as_mut().await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended early");
        }
    }

    /// Answers one request, or says that its token has too many under way.
    fn answer(
        &self,
        mut request: hyper::Request<Incoming>,
    ) -> impl Future<Output = Result<Response, Infallible>> + Send + use<> {
        let begun = self.connection.begin_request(request.headers());
        request.extensions_mut().insert(Peer(self.connection.address()));
        request.extensions_mut().insert(Arc::clone(&self.admission));
        if let Some(over_tls) = self.over_tls {
            request.extensions_mut().insert(over_tls);
        }
        let rate = self.admission.rate;
        let mut router = self.router.clone();
        async move {
            let request = request.map(|body| Body::new(PacedBody::new(body, rate)));
            let under_way = match begun {
                Ok(under_way) => under_way,
                Err(limit) => {
                    body::drain_body(request.into_body());
                    return Ok(HttpError::too_many_requests_of_token(limit).into_response());
                }
            };
            // A router is always ready.
            let response = router.call(request).await?;
            Ok(held_until_sent(response, under_way))
        }
    }
}

/// Counts a request as under way until its answer was sent, or for as long as the connection is
/// used for another protocol.
fn held_until_sent(response: Response, under_way: RequestUnderWay) -> Response {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        under_way.keep_for_life();
        return response;
    }
    answer::held(response, under_way)
}

/// A body that keeps something for as long as it is sent.
pub(crate) struct HeldBody<T> {
    pub(crate) inner: Body,
    pub(crate) _held: T,
}

impl<T: Unpin> HttpBody for HeldBody<T> {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
