//! Calls to a plane over HTTP, from threads that block.
//!
//! One small thread drives every connection; whoever calls waits for the answer. Connections are
//! kept alive, redirects are never followed (a token must not travel elsewhere), answers are
//! bounded.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Client, Response};
use serde_json::Value;
use thiserror::Error;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use warrant_protocol::Digest;
use warrant_protocol::RunId;
use warrant_protocol::event::FailureClass;

use super::stream::{BlobStream, file_body};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer to a small call may take.
const ANSWER: Duration = Duration::from_secs(30);
/// How long an upload may take.
const UPLOAD: Duration = Duration::from_secs(600);
/// The largest answer that is read.
const MOST_ANSWER_BYTES: usize = 64 << 20;
/// The largest text of a refusal that is repeated.
const MOST_REFUSAL_CHARS: usize = 400;

/// Why a call did not do what it was to do.
#[derive(Debug, Error)]
pub enum CallError {
    /// No answer came.
    #[error("the plane cannot be reached")]
    Unreachable(#[source] reqwest::Error),
    /// An answer came, and it was no.
    #[error("the plane answered {status}: {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The plane's words.
        message: String,
        /// The plane's word for programs.
        code: Option<String>,
        /// The plane's word for the receipt, when the no is a lasting one.
        failure: Option<FailureClass>,
        /// The run that was refused, when it has a record.
        run: Option<RunId>,
    },
    /// The answer makes no sense.
    #[error("the plane's answer cannot be read: {0}")]
    Malformed(String),
    /// A file of ours failed.
    #[error("cannot read {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// Somebody gave the call up.
    #[error("the call was given up")]
    GivenUp,
}

impl CallError {
    /// Returns whether the call surely never reached the plane.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        matches!(self, Self::Unreachable(error) if error.is_connect())
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Refused { failure: Some(_), .. } => false,
            Self::Refused { status, .. } => *status >= 500 || *status == 429 || *status == 408,
            Self::Malformed(_) | Self::File { .. } | Self::GivenUp => false,
        }
    }
}

/// Why no client could be made.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The address is no plane's.
    #[error("`{0}` is no address of a plane; write it as https://plane.example:7172")]
    Address(String),
    /// The certificate file holds none.
    #[error("{path} holds no certificate")]
    Certificate {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The client could not be set up.
    #[error("the HTTP client cannot be set up")]
    Setup(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A client of one plane.
#[derive(Debug)]
pub struct Http {
    client: Client,
    base: String,
    handle: Handle,
    give_up: watch::Sender<bool>,
    /// Dropped with the client, which ends the thread.
    _running: oneshot::Sender<()>,
}

/// A write that the plane does once, however often it is sent.
#[derive(Debug, Clone, Copy)]
pub struct KeyedCall<'a> {
    /// The path of the call.
    pub path: &'a str,
    /// Who calls.
    pub token: &'a str,
    /// The caller's own name for this write.
    pub key: &'a str,
    /// What is written.
    pub body: &'a Value,
}

/// Where a stream of events begins, and how long it may be silent.
#[derive(Debug, Clone, Copy)]
pub struct EventsFrom {
    /// The id of the last event that was received before.
    pub last: Option<u64>,
    /// The longest time between two pieces.
    pub silence: Duration,
}

/// How long to wait for an answer, and whether giving up ends the wait.
#[derive(Debug, Clone, Copy)]
enum Patience {
    /// A call that is answered at once, and is finished in any case.
    Short,
    /// A call that takes long because it carries much, and is finished in any case.
    Long(Duration),
    /// A call that the plane parks; giving up ends it.
    Parked(Duration),
}

/// How the bytes of a call travel.
enum CallTransport<'a> {
    /// To the address, with TLS if it says so.
    Tcp {
        /// A certificate file that is trusted instead of the machine's.
        ca: Option<&'a Path>,
    },
    /// To a Unix socket of this machine, without TLS.
    Socket {
        /// Where it is.
        path: &'a Path,
    },
}

impl Http {
    /// Returns a client of the plane at `address`; `ca` names a certificate file that is trusted
    /// instead of the machine's.
    ///
    /// # Errors
    /// [`ClientError`] when the address or the certificate is none.
    pub fn new(address: &str, ca: Option<&Path>) -> Result<Self, ClientError> {
        Self::connected(address, &CallTransport::Tcp { ca })
    }

    /// Returns a client of the plane behind the Unix socket at `socket`; nothing it sends leaves
    /// through a TCP port. `address` names the plane in messages and in the `host` header.
    ///
    /// # Errors
    /// [`ClientError`] when the address is none.
    pub fn over_socket(address: &str, socket: &Path) -> Result<Self, ClientError> {
        Self::connected(address, &CallTransport::Socket { path: socket })
    }

    fn connected(address: &str, transport: &CallTransport<'_>) -> Result<Self, ClientError> {
        let base = address.trim_end_matches('/').to_owned();
        let is_address = base.starts_with("http://") || base.starts_with("https://");
        let parsed = reqwest::Url::parse(&base).ok().filter(|url| url.has_host());
        if !is_address || parsed.is_none() {
            return Err(ClientError::Address(address.to_owned()));
        }
        // A provider that somebody else installed before is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .pool_idle_timeout(Duration::from_secs(60));
        match transport {
            CallTransport::Socket { path } => {
                builder = builder.unix_socket(*path).tls_certs_only([]);
            }
            CallTransport::Tcp { ca: Some(path) } => {
                builder = builder.tls_certs_only(certificates(path)?);
            }
            CallTransport::Tcp { ca: None } if base.starts_with("http://") => {
                builder = builder.tls_certs_only([]);
            }
            CallTransport::Tcp { ca: None } => {}
        }
        let client = builder.build().map_err(|cause| ClientError::Setup(cause.into()))?;
        let (handle, running) = start_worker().map_err(|cause| ClientError::Setup(cause.into()))?;
        Ok(Self { client, base, handle, give_up: watch::Sender::new(false), _running: running })
    }

    /// Returns the plane's address, without a slash at its end.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Ends every parked call, now and from now on.
    pub fn give_up_parked(&self) {
        self.give_up.send_replace(true);
    }

    /// Sends a JSON body and returns the JSON answer.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, CallError> {
        self.wait(self.sending(path, None, body), Patience::Short)
    }

    /// Asks for work; the plane parks the call up to `wait`. The token is in the head as well as in
    /// the body, so that the plane knows who asks before it reads the body.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn claim(&self, token: &str, body: &Value, wait: Duration) -> Result<Value, CallError> {
        self.wait(self.sending("/v1/claims", Some(token), body), Patience::Parked(wait))
    }

    /// As [`Http::post`], with a bearer token.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn post_as(&self, path: &str, token: &str, body: &Value) -> Result<Value, CallError> {
        self.wait(self.sending(path, Some(token), body), Patience::Short)
    }

    /// As [`Http::post_as`], with a key under which the plane does the same work only once.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn post_with_key(&self, call: &KeyedCall<'_>) -> Result<Value, CallError> {
        let request = self
            .client
            .post(self.url(call.path))
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", call.key)
            .body(call.body.to_string());
        self.wait(answer_of(authorized(request, Some(call.token))), Patience::Short)
    }

    /// Returns the JSON answer to a read.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn get(&self, path: &str, token: Option<&str>) -> Result<Value, CallError> {
        let request = authorized(self.client.get(self.url(path)), token);
        self.wait(answer_of(request), Patience::Short)
    }

    /// Returns a stream of bytes that a read is answered with; it does not end by itself.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn get_stream(&self, path: &str, token: Option<&str>) -> Result<BlobStream, CallError> {
        let request = authorized(self.client.get(self.url(path)), token);
        self.wait(opened(request), Patience::Short)
    }

    /// Returns a stream of server-sent events from after the event `last` on. A plane that sends
    /// nothing for longer than `silence`, not even a heartbeat, ends the stream with an error.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn get_events(
        &self,
        path: &str,
        token: &str,
        EventsFrom { last, silence }: EventsFrom,
    ) -> Result<BlobStream, CallError> {
        let mut request = authorized(self.client.get(self.url(path)), Some(token));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let call = async move {
            let response = request.send().await.map_err(CallError::Unreachable)?;
            Ok(BlobStream::of_events(successful(response).await?, silence))
        };
        self.wait(call, Patience::Short)
    }

    /// Opens a blob.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn open_blob(&self, digest: &Digest, token: &str) -> Result<BlobStream, CallError> {
        self.get_stream(&format!("/v1/blobs/{digest}"), Some(token))
    }

    /// Sends a file as a blob and returns the digest the plane computed.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn put_blob(&self, file: &Path, token: &str) -> Result<Digest, CallError> {
        let failed = |cause| CallError::File { path: file.to_owned(), cause };
        let (body, length) = file_body(file, &self.handle).map_err(failed)?;
        let request = self
            .client
            .post(self.url("/v1/blobs"))
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(reqwest::header::CONTENT_LENGTH, length)
            .body(body);
        let request = authorized(request, Some(token));
        let answer = self.wait(answer_of(request), Patience::Long(UPLOAD))?;
        let hash = answer.get("hash").and_then(Value::as_str).unwrap_or_default();
        hash.parse().map_err(|error| CallError::Malformed(format!("the blob's hash: {error}")))
    }

    /// Returns a call as a future of its own, for whoever lives on the client's thread.
    pub(crate) fn sending(
        &self,
        path: &str,
        token: Option<&str>,
        body: &Value,
    ) -> impl Future<Output = Result<Value, CallError>> + Send + use<> {
        let request = self
            .client
            .post(self.url(path))
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string());
        answer_of(authorized(request, token))
    }

    /// As [`Http::sending`], for bytes.
    pub(crate) fn sending_bytes(
        &self,
        path: &str,
        token: &str,
        bytes: Vec<u8>,
    ) -> impl Future<Output = Result<Value, CallError>> + Send + use<> {
        let request = self
            .client
            .post(self.url(path))
            .header(CONTENT_TYPE, "application/octet-stream")
            .body(bytes);
        answer_of(authorized(request, Some(token)))
    }

    /// Lets a future live on the client's thread.
    pub(crate) fn spawn(
        &self,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::AbortHandle {
        self.handle.spawn(future).abort_handle()
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    fn wait<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, CallError>> + Send + 'static,
        patience: Patience,
    ) -> Result<T, CallError> {
        let (done, waiting) = mpsc::sync_channel(1);
        let mut give_up = self.give_up.subscribe();
        self.handle.spawn(async move {
            let outcome = match patience {
                Patience::Short => timed(ANSWER, call).await,
                Patience::Long(most) => timed(most, call).await,
                Patience::Parked(wait) => tokio::select! {
                    outcome = timed(wait + ANSWER, call) => outcome,
                    _ = give_up.wait_for(|is_given_up| *is_given_up) => Err(CallError::GivenUp),
                },
            };
            // Nobody waiting is nobody to tell.
            let _ = done.send(outcome);
        });
        waiting.recv().unwrap_or(Err(CallError::GivenUp))
    }
}

async fn timed<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    let late = || CallError::Refused {
        status: 408,
        message: "no answer in time".to_owned(),
        code: None,
        failure: None,
        run: None,
    };
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(late()))
}

fn authorized(request: reqwest::RequestBuilder, token: Option<&str>) -> reqwest::RequestBuilder {
    match token {
        Some(token) => request.header(AUTHORIZATION, format!("Bearer {token}")),
        None => request,
    }
}

async fn answer_of(request: reqwest::RequestBuilder) -> Result<Value, CallError> {
    let response = request.send().await.map_err(CallError::Unreachable)?;
    let response = successful(response).await?;
    let bytes = bounded(response).await?;
    warrant_protocol::json::parse(&bytes).map_err(|error| CallError::Malformed(error.detail()))
}

async fn opened(request: reqwest::RequestBuilder) -> Result<BlobStream, CallError> {
    let response = request.send().await.map_err(CallError::Unreachable)?;
    Ok(BlobStream::of(successful(response).await?))
}

async fn successful(response: Response) -> Result<Response, CallError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let bytes = bounded(response).await.unwrap_or_default();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let text = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
    let message = text("error").unwrap_or_else(|| "no reason given".to_owned());
    let message = message.chars().filter(|c| !c.is_control()).take(MOST_REFUSAL_CHARS).collect();
    let failure = body.get("failure").and_then(|word| serde_json::from_value(word.clone()).ok());
    let run = text("runId").and_then(|run| run.parse().ok());
    let (status, code) = (status.as_u16(), text("code"));
    Err(CallError::Refused { status, message, code, failure, run })
}

async fn bounded(mut response: Response) -> Result<Vec<u8>, CallError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(CallError::Unreachable)? {
        if bytes.len() + chunk.len() > MOST_ANSWER_BYTES {
            return Err(CallError::Malformed("it is too long".to_owned()));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn certificates(path: &Path) -> Result<Vec<reqwest::Certificate>, ClientError> {
    let failed = |cause: Box<dyn std::error::Error + Send + Sync>| ClientError::Certificate {
        path: path.to_owned(),
        cause,
    };
    let pem = std::fs::read(path).map_err(|cause| failed(cause.into()))?;
    reqwest::Certificate::from_pem_bundle(&pem).map_err(|cause| failed(cause.into()))
}

/// Starts the thread that drives the connections until the sender is dropped.
fn start_worker() -> io::Result<(Handle, oneshot::Sender<()>)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (running, ended) = oneshot::channel::<()>();
    thread::Builder::new().name("plane-client".to_owned()).spawn(move || {
        // The error is the signal: the sender is gone.
        let _ = runtime.block_on(ended);
        runtime.shutdown_background();
    })?;
    Ok((handle, running))
}
