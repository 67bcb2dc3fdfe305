//! The in-process client: the same gate as the proxy, for code that runs inside this process.
//!
//! GET and HEAD only, unless the rule names more. Every hop of a redirect is decided anew.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use crate::body::{Body, Piece};
use crate::decision::{Decision, Totals, Why};
use crate::gate::{AddressSpelling, Destination, Gate};
use crate::head::{Framing, ResponseHead, parse_response};
use crate::host::{Host, InvalidHost, sanitize};
use crate::ledger::{Ledger, LedgerBounds, Subject, Tally};
use crate::options::Options;
use crate::pipe::{fill, fill_more, within};
use crate::rules::Rules;
use crate::tls;
use crate::url::{Scheme, Url};

/// A client for one run. Cheap to clone; all clones count together.
#[derive(Clone)]
pub struct Client {
    gate: Arc<Gate>,
    tls: Arc<ClientConfig>,
}

/// What to fetch.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method, in capitals.
    pub method: String,
    /// An absolute `http` or `https` URL.
    pub url: String,
    /// Further headers; those that frame the message or name the host are not accepted.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// The longest accepted body of the response, in bytes.
    pub max_body_bytes: usize,
    /// Time for everything, redirects included.
    pub timeout: Duration,
    /// What to do with redirects.
    pub redirects: Redirects,
}

/// What to do with redirects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirects {
    /// Return them as they are.
    Return,
    /// Follow at most this many, each decided anew.
    Follow(u8),
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The words behind the code, if any.
    pub reason: String,
    /// The headers in order, without those of the connection.
    pub headers: Vec<(String, String)>,
    /// The body, decoded from its framing.
    pub body: Vec<u8>,
    /// The URL that answered, after redirects.
    pub url: String,
}

/// Why nothing was fetched.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The URL is malformed, or names its host in an unusual way.
    #[error("the url is not acceptable")]
    Url(#[source] InvalidHost),
    /// The method is not a word in capitals.
    #[error("the method is not a word in capitals")]
    Method,
    /// A header that is malformed or not for the caller to set.
    #[error("header `{0}` cannot be set")]
    Header(String),
    /// The rules refuse it.
    #[error("{host}:{port} is refused by the network rules ({})", why.as_str())]
    Refused {
        /// The canonical host.
        host: String,
        /// The port.
        port: u16,
        /// Why.
        why: Why,
    },
    /// The rules allow it, but nobody answered.
    #[error("{host}:{port} cannot be reached ({})", why.as_str())]
    Unreachable {
        /// The canonical host.
        host: String,
        /// The port.
        port: u16,
        /// Why.
        why: Why,
    },
    /// The server is not who it should be, or speaks no TLS.
    #[error("no secure connection to {host}")]
    Tls {
        /// The canonical host.
        host: String,
        /// What the library said.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[source] io::Error),
    /// The response is malformed.
    #[error("the response is malformed")]
    BadResponse,
    /// The body is longer than accepted.
    #[error("the response is longer than {0} bytes")]
    TooLong(usize),
    /// More redirects than accepted.
    #[error("too many redirects")]
    TooManyRedirects,
    /// It took too long.
    #[error("the time for the request ran out")]
    TimedOut,
    /// The configuration of TLS or of the runtime failed.
    #[error("the client cannot be set up")]
    Setup(#[source] io::Error),
}

impl Client {
    /// Makes a client for these rules; decisions are reported as those of the proxy.
    ///
    /// # Errors
    /// When an extra root is not a certificate.
    pub fn new(
        rules: Rules,
        options: Options,
        reporter: Arc<dyn Fn(Decision) + Send + Sync>,
    ) -> Result<Self, FetchError> {
        let tls = tls::client_config(&options.extra_roots);
        let tls = tls.map_err(|error| FetchError::Setup(io::Error::other(error)))?;
        let ledger = Ledger::new(reporter, LedgerBounds::of(&options));
        Ok(Self { gate: Arc::new(Gate::new(rules, options, ledger)), tls })
    }

    /// Fetches, or says why not; runs on the caller's runtime, which needs I/O and time.
    ///
    /// # Errors
    /// When the rules refuse it, nobody answers, or the answer is not acceptable.
    pub async fn fetch(&self, request: Request) -> Result<Response, FetchError> {
        let limit = request.timeout;
        match tokio::time::timeout(limit, self.follow(request)).await {
            Ok(result) => result,
            Err(_) => Err(FetchError::TimedOut),
        }
    }

    /// Fetches from code that is not asynchronous, on a runtime of its own.
    ///
    /// # Errors
    /// As [`Self::fetch`].
    pub fn fetch_blocking(&self, request: Request) -> Result<Response, FetchError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        runtime.map_err(FetchError::Setup)?.block_on(self.fetch(request))
    }

    /// Reports what was counted since the first report of each kind, and returns the bytes of all.
    pub fn finish(&self) -> Totals {
        self.gate.ledger.flush();
        self.gate.ledger.totals()
    }

    async fn follow(&self, mut request: Request) -> Result<Response, FetchError> {
        check_message(&request)?;
        let mut url =
            Url::parse(&request.url).map_err(|source| self.bad_url(&request.url, source))?;
        let mut left = match request.redirects {
            Redirects::Return => 0,
            Redirects::Follow(most) => most,
        };
        loop {
            let response = self.fetch_one(&request, &url).await?;
            let location = match request.redirects {
                Redirects::Follow(_) => response.location(),
                Redirects::Return => None,
            };
            let Some(location) = location else { return Ok(response) };
            left = left.checked_sub(1).ok_or(FetchError::TooManyRedirects)?;
            let next = url.join(location).map_err(|source| self.bad_url(location, source))?;
            let is_elsewhere =
                next.host != url.host || next.port != url.port || next.scheme != url.scheme;
            if is_elsewhere {
                // SECURITY: what was meant for one host is not told to another.
                request.headers.retain(|(name, _)| !is_credential(name));
            }
            let becomes_get = response.status == 303
                || (matches!(response.status, 301 | 302) && request.method == "POST");
            if becomes_get && request.method != "HEAD" {
                request.method = "GET".to_owned();
                request.body = Vec::new();
            }
            url = next;
        }
    }

    /// A URL that names no host is a decision too.
    fn bad_url(&self, text: &str, source: InvalidHost) -> FetchError {
        let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = sanitize(authority.as_bytes());
        let subject = Subject { host, port: 80, asked_address: None };
        drop(self.gate.record_subject(&subject, Why::MalformedHost));
        FetchError::Url(source)
    }

    async fn fetch_one(&self, request: &Request, url: &Url) -> Result<Response, FetchError> {
        let Url { host, port, .. } = url.clone();
        let spelling = AddressSpelling::Bracketed;
        let destination = Destination { host, port, asked_address: None, spelling };
        let tolerance =
            self.gate.decide(&destination).map_err(|why| self.refuse(&destination, why))?;
        let is_reading = matches!(request.method.as_str(), "GET" | "HEAD");
        let is_named =
            tolerance.methods.contains(&request.method) || tolerance.methods.contains("*");
        if !is_reading && !is_named {
            return Err(self.refuse(&destination, Why::MethodNotAllowed));
        }
        let dialed = self.gate.dial(&destination).await;
        let stream = dialed.map_err(|why| self.refuse(&destination, why))?;
        let exchange = Exchange { client: self, request, url };
        match url.scheme {
            Scheme::Http => {
                let tally = self.allow(&destination)?;
                exchange.run(stream, &tally).await
            }
            Scheme::Https => {
                let name = server_name(&destination.host)?;
                let connecting = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream);
                let connected = within(self.gate.options.connect_timeout, connecting).await;
                let stream = connected.map_err(|source| {
                    self.refuse(&destination, Why::Unreachable);
                    FetchError::Tls { host: destination.host.to_string(), source }
                })?;
                let tally = self.allow(&destination)?;
                exchange.run(stream, &tally).await
            }
        }
    }

    fn allow(&self, destination: &Destination) -> Result<Tally, FetchError> {
        self.gate.record(destination, Why::Allowed).map_err(|why| error(destination, why))
    }

    fn refuse(&self, destination: &Destination, why: Why) -> FetchError {
        drop(self.gate.record(destination, why));
        error(destination, why)
    }
}

impl Response {
    /// Returns the first header of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    fn location(&self) -> Option<&str> {
        matches!(self.status, 301 | 302 | 303 | 307 | 308)
            .then(|| self.header("location"))
            .flatten()
    }
}

fn error(destination: &Destination, why: Why) -> FetchError {
    let (host, port) = (destination.host.to_string(), destination.port);
    if why.is_allowed() {
        FetchError::Unreachable { host, port, why }
    } else {
        FetchError::Refused { host, port, why }
    }
}

fn server_name(host: &Host) -> Result<ServerName<'static>, FetchError> {
    match host {
        Host::Address(address) => Ok(ServerName::IpAddress((*address).into())),
        Host::Name(name) => {
            let name = ServerName::try_from(name.as_str().to_owned());
            name.map_err(|_| FetchError::Url(InvalidHost::Character))
        }
    }
}

fn check_message(request: &Request) -> Result<(), FetchError> {
    let method = request.method.as_bytes();
    let is_word = (1..=16).contains(&method.len()) && method.iter().all(u8::is_ascii_uppercase);
    if !is_word || matches!(request.method.as_str(), "CONNECT" | "TRACE") {
        return Err(FetchError::Method);
    }
    for (name, value) in &request.headers {
        let is_token = !name.is_empty() && name.bytes().all(is_token_byte);
        let is_plain = value.bytes().all(|b| b == b'\t' || (b >= 0x20 && b != 0x7f));
        if !is_token || !is_plain || is_reserved(name) {
            return Err(FetchError::Header(sanitize(name.as_bytes())));
        }
    }
    Ok(())
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn is_reserved(name: &str) -> bool {
    const NAMES: [&str; 9] = [
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    let lower = name.to_ascii_lowercase();
    NAMES.contains(&lower.as_str()) || lower.starts_with("proxy-")
}

fn is_credential(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    matches!(lower.as_str(), "authorization" | "cookie")
        || ["key", "token", "secret", "auth"].iter().any(|word| lower.contains(word))
}

/// One request and its response on an open connection.
struct Exchange<'e> {
    client: &'e Client,
    request: &'e Request,
    url: &'e Url,
}

impl Exchange<'_> {
    async fn run(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        tally: &Tally,
    ) -> Result<Response, FetchError> {
        let idle = self.client.gate.options.idle_timeout;
        let mut message = self.head();
        message.extend_from_slice(&self.request.body);
        within(idle, stream.write_all(&message)).await.map_err(FetchError::Broken)?;
        tally.add_out(message.len() as u64);
        let mut buffer = BytesMut::new();
        let head = self.read_head(&mut stream, &mut buffer, tally).await?;
        let body = self.read_body(&head, (&mut stream, &mut buffer), tally).await?;
        let mut headers = header_pairs(&head.lines);
        if let Some(Framing::Length(length)) = head.framing {
            headers.push(("content-length".to_owned(), length.to_string()));
        }
        Ok(Response {
            status: head.status,
            reason: head.reason,
            headers,
            body,
            url: self.url.to_string(),
        })
    }

    fn head(&self) -> Vec<u8> {
        let Request { method, headers, body, .. } = self.request;
        let (path, authority) = (&self.url.path, self.url.authority());
        let mut head = Vec::with_capacity(256);
        // Writing to a vector does not fail.
        drop(write!(
            head,
            "{method} {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n"
        ));
        for (name, value) in headers {
            drop(write!(head, "{name}: {value}\r\n"));
        }
        if !body.is_empty() || matches!(method.as_str(), "POST" | "PUT" | "PATCH") {
            drop(write!(head, "Content-Length: {}\r\n", body.len()));
        }
        head.extend_from_slice(b"\r\n");
        head
    }

    async fn read_head(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        buffer: &mut BytesMut,
        tally: &Tally,
    ) -> Result<ResponseHead, FetchError> {
        let options = &self.client.gate.options;
        loop {
            match parse_response(buffer) {
                Ok(Some(head)) => {
                    buffer.advance(head.length);
                    match head.status {
                        101 => return Err(FetchError::BadResponse),
                        100..=199 => continue,
                        _ => return Ok(head),
                    }
                }
                Ok(None) if buffer.len() <= options.max_head_bytes => {}
                Ok(None) | Err(_) => return Err(FetchError::BadResponse),
            }
            let count = within(options.idle_timeout, fill(stream, buffer)).await;
            match count.map_err(FetchError::Broken)? {
                0 => return Err(FetchError::Broken(io::ErrorKind::UnexpectedEof.into())),
                count => tally.add_in(count as u64),
            }
        }
    }

    async fn read_body(
        &self,
        head: &ResponseHead,
        (stream, buffer): (&mut (impl AsyncRead + Unpin), &mut BytesMut),
        tally: &Tally,
    ) -> Result<Vec<u8>, FetchError> {
        let idle = self.client.gate.options.idle_timeout;
        let most = self.request.max_body_bytes;
        let mut body = Body::new(head.body(&self.request.method));
        let mut bytes = Vec::new();
        loop {
            match body.next(buffer).map_err(|_| FetchError::BadResponse)? {
                Piece::End => return Ok(bytes),
                Piece::Skip(count) => buffer.advance(count.min(buffer.len())),
                Piece::Data(count) => {
                    let data = buffer.split_to(count.min(buffer.len()));
                    if bytes.len().saturating_add(data.len()) > most {
                        return Err(FetchError::TooLong(most));
                    }
                    bytes.extend_from_slice(&data);
                }
                Piece::More => match within(idle, fill_more(stream, buffer)).await {
                    Ok(0) if body.ends_at_close() => return Ok(bytes),
                    Ok(0) => return Err(FetchError::Broken(io::ErrorKind::UnexpectedEof.into())),
                    Ok(count) => tally.add_in(count as u64),
                    Err(error) => return Err(FetchError::Broken(error)),
                },
            }
        }
    }
}

fn header_pairs(lines: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(lines);
    let pairs = text.split("\r\n").filter_map(|line| line.split_once(": "));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
