//! HTTP/1: requests in absolute form, and plain requests inside a tunnel to one fixed host.
//!
//! Every request is decided anew, also the second one on a connection. Heads are written anew, bodies
//! are framed anew; nothing of one request can be read as another.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::body::{Body, Piece};
use crate::decision::Why;
use crate::gate::{Destination, Gate};
use crate::head::{
    BadHead, Framing, RequestHead, ResponseHead, Version, parse_request, parse_response,
};
use crate::host::{parse_authority, sanitize};
use crate::ledger::{Subject, Tally};
use crate::pipe::{ROOM, fill, fill_more, within};

/// Where requests come from.
#[derive(Clone, Copy)]
pub(crate) enum Door<'d> {
    /// The explicit listener: each request names its host.
    Proxy,
    /// A tunnel: every request is for this host.
    Tunnel(&'d Destination),
}

/// Why a connection is done here.
pub(crate) enum End {
    /// It was closed.
    Closed,
    /// It asked to become a tunnel.
    Connect(Destination),
}

/// An open connection to a destination.
pub(crate) struct Link {
    pub(crate) stream: TcpStream,
    pub(crate) buffer: BytesMut,
    pub(crate) destination: Destination,
    is_used: bool,
}

impl Link {
    pub(crate) fn new(stream: TcpStream, destination: Destination) -> Self {
        Self { stream, buffer: BytesMut::new(), destination, is_used: false }
    }
}

/// One request, decided by nobody yet.
enum Ask {
    Connect(Destination),
    Send { destination: Destination, path: String },
}

/// A refusal: what to record, and what to tell the client.
struct Refusal {
    subject: Option<Subject>,
    why: Why,
    text: &'static str,
}

const BLOCKED: &str = "blocked by warrant egress policy";
const NOT_ABSOLUTE: &str = "proxy requires absolute-form URLs";
const BAD_REQUEST: &str = "bad request";
const UPSTREAM: &str = "upstream error";

/// Serves the requests of one connection, one after the other.
pub(crate) async fn serve(
    gate: &Gate,
    client: &mut TcpStream,
    buffer: &mut BytesMut,
    (door, mut link): (Door<'_>, Option<Link>),
) -> io::Result<End> {
    loop {
        let head = match read_head(gate, client, buffer).await? {
            Some(Ok(head)) => head,
            Some(Err(bad)) => {
                let why = match bad {
                    BadHead::Malformed => Why::MalformedRequest,
                    BadHead::AmbiguousLength => Why::AmbiguousLength,
                };
                let subject = door.subject_of(buffer);
                refuse(gate, client, &Refusal { subject, why, text: BAD_REQUEST }, false).await?;
                return Ok(End::Closed);
            }
            None => return Ok(End::Closed),
        };
        buffer.advance(head.length);
        let may_keep = head.keep_alive && head.framing == Framing::Empty;
        let (destination, path) = match ask(door, &head) {
            Ok(Ask::Connect(destination)) => return Ok(End::Connect(destination)),
            Ok(Ask::Send { destination, path }) => (destination, path),
            Err(refusal) => {
                let keeps = may_keep && refusal.text == BLOCKED;
                refuse(gate, client, &refusal, keeps).await?;
                if keeps {
                    continue;
                }
                return Ok(End::Closed);
            }
        };
        let (open, tally) = match open(gate, link.take(), &destination).await {
            Ok(opened) => opened,
            Err(refusal) => {
                refuse(gate, client, &refusal, may_keep).await?;
                if may_keep {
                    continue;
                }
                return Ok(End::Closed);
            }
        };
        let is_sending = AtomicBool::new(false);
        let exchange = Exchange { gate, tally: &tally, head: &head, path: &path, is_sending };
        match exchange.run(client, buffer, open).await? {
            Flow::Keep(kept) => link = kept,
            Flow::Close => return Ok(End::Closed),
        }
    }
}

/// Reads a whole head; nothing when the client closed or fell silent before one began.
async fn read_head(
    gate: &Gate,
    client: &mut TcpStream,
    buffer: &mut BytesMut,
) -> io::Result<Option<Result<RequestHead, BadHead>>> {
    if buffer.is_empty() {
        match within(gate.options.idle_timeout, fill(client, buffer)).await {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
    let reading = async {
        loop {
            match parse_request(buffer) {
                Ok(Some(head)) => return Ok(Some(Ok(head))),
                Ok(None) if buffer.len() > gate.options.max_head_bytes => {
                    return Ok(Some(Err(BadHead::Malformed)));
                }
                Ok(None) => {}
                Err(bad) => return Ok(Some(Err(bad))),
            }
            if fill(client, buffer).await? == 0 {
                return Ok(None);
            }
        }
    };
    within(gate.options.head_timeout, reading).await
}

fn ask(door: Door<'_>, head: &RequestHead) -> Result<Ask, Refusal> {
    let malformed = |text: &str, why: Why| Refusal {
        subject: Some(Subject { host: sanitize(text.as_bytes()), port: 80, asked_address: None }),
        why,
        text: BLOCKED,
    };
    let target = head.target.as_str();
    let is_http = target.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("http://"));
    match door {
        Door::Proxy if head.method == "CONNECT" => {
            let (host, port) = parse_authority(target)
                .map_err(|_| Refusal { text: BLOCKED, ..malformed(target, Why::MalformedHost) })?;
            let port = port.unwrap_or(443);
            Ok(Ask::Connect(Destination { host, port, asked_address: None }))
        }
        Door::Proxy if !is_http && !target.contains("://") => {
            Err(Refusal { subject: None, why: Why::MalformedRequest, text: NOT_ABSOLUTE })
        }
        Door::Proxy => {
            let rest = target.split_once("://").map_or("", |(_, rest)| rest);
            let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
            if !is_http {
                return Err(malformed(authority, Why::Unsupported));
            }
            if target.contains('#') {
                return Err(malformed(authority, Why::MalformedRequest));
            }
            let (host, port) =
                parse_authority(authority).map_err(|_| malformed(authority, Why::MalformedHost))?;
            let destination = Destination { host, port: port.unwrap_or(80), asked_address: None };
            check_host(head, &destination)?;
            let slash = if path.starts_with('/') { "" } else { "/" };
            Ok(Ask::Send { destination, path: format!("{slash}{path}") })
        }
        Door::Tunnel(destination) => {
            let destination = destination.clone();
            if !target.starts_with('/') || target.contains('#') {
                let subject = Some(destination.subject());
                return Err(Refusal { subject, why: Why::MalformedRequest, text: BAD_REQUEST });
            }
            check_host(head, &destination)?;
            Ok(Ask::Send { destination, path: target.to_owned() })
        }
    }
}

/// SECURITY: a `Host` header that names another host would reach that host behind a shared front.
fn check_host(head: &RequestHead, destination: &Destination) -> Result<(), Refusal> {
    let refusal = |why| Refusal { subject: Some(destination.subject()), why, text: BLOCKED };
    let Some(text) = &head.host else {
        return match head.version {
            Version::Http10 => Ok(()),
            Version::Http11 => Err(refusal(Why::MalformedRequest)),
        };
    };
    let (host, port) = parse_authority(text).map_err(|_| refusal(Why::HostMismatch))?;
    let is_same = host == destination.host && port.is_none_or(|port| port == destination.port);
    if is_same { Ok(()) } else { Err(refusal(Why::HostMismatch)) }
}

/// Decides one request, and returns the open connection it may use.
async fn open(
    gate: &Gate,
    link: Option<Link>,
    destination: &Destination,
) -> Result<(Link, Tally), Refusal> {
    let refusal = |why: Why, text| Refusal { subject: Some(destination.subject()), why, text };
    gate.decide(destination).map_err(|why| refusal(why, BLOCKED))?;
    let link = match link {
        Some(link) if link.destination == *destination && !is_closed(&link) => link,
        Some(_) | None => {
            let stream = gate.dial(destination).await.map_err(|why| match why.is_allowed() {
                true => refusal(why, UPSTREAM),
                false => refusal(why, BLOCKED),
            })?;
            Link::new(stream, destination.clone())
        }
    };
    let tally = gate.record(destination, Why::Allowed);
    let tally = tally.map_err(|why| Refusal { subject: None, why, text: BLOCKED })?;
    Ok((link, tally))
}

/// Returns whether an idle connection was closed, or holds bytes nobody asked for.
fn is_closed(link: &Link) -> bool {
    let mut byte = [0];
    let silent = matches!(
        link.stream.try_read(&mut byte),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock
    );
    link.is_used && (!silent || !link.buffer.is_empty())
}

async fn refuse(
    gate: &Gate,
    client: &mut TcpStream,
    refusal: &Refusal,
    keeps: bool,
) -> io::Result<()> {
    if let Some(subject) = &refusal.subject {
        drop(gate.record_subject(subject, refusal.why));
    }
    let status = match refusal.text {
        BLOCKED => "403 Forbidden",
        UPSTREAM => "502 Bad Gateway",
        _ => "400 Bad Request",
    };
    let (text, why) = (refusal.text, refusal.why.as_str());
    let connection = if keeps { "keep-alive" } else { "close" };
    let reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Warrant-Why: {why}\r\nConnection: {connection}\r\n\r\n{text}",
        text.len()
    );
    within(gate.options.idle_timeout, client.write_all(reply.as_bytes())).await
}

impl Door<'_> {
    /// Returns what a malformed request is recorded under.
    fn subject_of(self, bytes: &[u8]) -> Option<Subject> {
        match self {
            Self::Tunnel(destination) => Some(destination.subject()),
            Self::Proxy => {
                let line = bytes.split(|b| *b == b'\r' || *b == b'\n').next()?;
                let target = line.split(|b| *b == b' ').nth(1)?;
                let target = target.strip_prefix(b"http://").unwrap_or(target);
                let authority = target.split(|b| *b == b'/').next()?;
                Some(Subject { host: sanitize(authority), port: 80, asked_address: None })
            }
        }
    }
}

/// One request and its response.
struct Exchange<'e> {
    gate: &'e Gate,
    tally: &'e Tally,
    head: &'e RequestHead,
    path: &'e str,
    /// Whether the body is still on its way; until it has arrived, a silent server is only waiting.
    is_sending: AtomicBool,
}

/// What comes after an exchange.
enum Flow {
    Keep(Option<Link>),
    Close,
}

/// What became of a response.
struct Relayed {
    keeps_client: bool,
    keeps_upstream: bool,
}

enum RelayError {
    /// Nothing was sent to the client yet.
    NotStarted,
    /// The client saw a part; all that is left is to close.
    Broken,
}

impl From<io::Error> for RelayError {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

impl Exchange<'_> {
    async fn run(
        &self,
        client: &mut TcpStream,
        buffer: &mut BytesMut,
        mut link: Link,
    ) -> io::Result<Flow> {
        let is_repeatable = matches!(self.head.method.as_str(), "GET" | "HEAD" | "OPTIONS");
        let may_retry = link.is_used && is_repeatable && self.head.framing == Framing::Empty;
        let mut relayed = self.send_and_relay(client, buffer, &mut link).await;
        if may_retry && matches!(relayed, Err(RelayError::NotStarted)) {
            // The kept connection was closed under us; a request that changes nothing may go again.
            if let Ok(stream) = self.gate.dial(&link.destination).await {
                link = Link::new(stream, link.destination);
                relayed = self.send_and_relay(client, buffer, &mut link).await;
            }
        }
        match relayed {
            Ok(Relayed { keeps_client: false, .. }) | Err(RelayError::Broken) => Ok(Flow::Close),
            Ok(Relayed { keeps_upstream: true, .. }) => {
                link.is_used = true;
                Ok(Flow::Keep(Some(link)))
            }
            Ok(Relayed { .. }) => Ok(Flow::Keep(None)),
            Err(RelayError::NotStarted) => {
                let subject = Some(link.destination.subject());
                let refusal = Refusal { subject, why: Why::Unreachable, text: UPSTREAM };
                refuse(self.gate, client, &refusal, false).await?;
                Ok(Flow::Close)
            }
        }
    }

    async fn send_and_relay(
        &self,
        client: &mut TcpStream,
        buffer: &mut BytesMut,
        link: &mut Link,
    ) -> Result<Relayed, RelayError> {
        let idle = self.gate.options.idle_timeout;
        let head = self.request_head(&link.destination);
        within(idle, link.stream.write_all(&head)).await.map_err(|_| RelayError::NotStarted)?;
        self.tally.add_out(head.len() as u64);
        if self.head.framing == Framing::Empty {
            return self.relay_response(&mut link.stream, &mut link.buffer, client).await;
        }
        let (mut client_in, mut client_out) = client.split();
        let (mut upstream_in, mut upstream_out) = link.stream.split();
        let sending = async {
            let mut body = Body::new(self.head.framing);
            let chunked = self.head.framing == Framing::Chunked;
            let mut out = Vec::new();
            let relay = BodyRelay { gate: self.gate, tally: self.tally, way: Way::Out, chunked };
            relay.run(&mut body, (&mut client_in, buffer), (&mut upstream_out, &mut out)).await
        };
        let relaying = self.relay_response(&mut upstream_in, &mut link.buffer, &mut client_out);
        tokio::pin!(sending, relaying);
        self.is_sending.store(true, Ordering::Relaxed);
        tokio::select! {
            biased;
            sent = &mut sending => {
                self.is_sending.store(false, Ordering::Relaxed);
                match sent {
                    Ok(()) => relaying.await,
                    // The server may have answered without wanting the rest.
                    Err(error) if is_closed_by_peer(&error) => {
                        relaying.await.map(|relayed| Relayed { keeps_client: false, ..relayed })
                    }
                    // The client's body ended early or is malformed: nobody may take it for whole.
                    Err(_) => Err(RelayError::Broken),
                }
            }
            relayed = &mut relaying => {
                relayed.map(|_| Relayed { keeps_client: false, keeps_upstream: false })
            }
        }
    }

    fn request_head(&self, destination: &Destination) -> Vec<u8> {
        let mut head = Vec::with_capacity(256 + self.head.lines.len());
        let (method, path) = (&self.head.method, self.path);
        let Destination { host, port, .. } = destination;
        let port = if *port == 80 { String::new() } else { format!(":{port}") };
        // Writing to a vector does not fail.
        drop(write!(head, "{method} {path} HTTP/1.1\r\nHost: {host}{port}\r\n"));
        head.extend_from_slice(&self.head.lines);
        match self.head.framing {
            Framing::Length(length) => drop(write!(head, "Content-Length: {length}\r\n")),
            Framing::Chunked => head.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            Framing::Empty if matches!(method.as_str(), "POST" | "PUT" | "PATCH") => {
                head.extend_from_slice(b"Content-Length: 0\r\n");
            }
            Framing::Empty | Framing::UntilClose => {}
        }
        head.extend_from_slice(b"\r\n");
        head
    }

    async fn relay_response(
        &self,
        upstream: &mut (impl AsyncRead + Unpin),
        buffer: &mut BytesMut,
        client: &mut (impl AsyncWrite + Unpin),
    ) -> Result<Relayed, RelayError> {
        let response = self.read_response(upstream, buffer, client).await?;
        let framing = response.body(&self.head.method);
        let is_modern = self.head.version == Version::Http11;
        let chunked = is_modern && matches!(framing, Framing::Chunked | Framing::UntilClose);
        let ends_by_closing =
            !is_modern && matches!(framing, Framing::Chunked | Framing::UntilClose);
        let keeps_client = self.head.keep_alive && !ends_by_closing;
        let mut out = response_head(&response, framing, chunked);
        out.extend_from_slice(match keeps_client {
            true if is_modern => b"\r\n",
            true => b"Connection: keep-alive\r\n\r\n",
            false => b"Connection: close\r\n\r\n",
        });
        let mut body = Body::new(framing);
        let relay = BodyRelay { gate: self.gate, tally: self.tally, way: Way::In, chunked };
        relay.run(&mut body, (upstream, buffer), (client, &mut out)).await?;
        let keeps_upstream = response.keep_alive && !body.ends_at_close();
        Ok(Relayed { keeps_client, keeps_upstream })
    }

    /// Reads up to the head of the final response, passing on those before it.
    async fn read_response(
        &self,
        upstream: &mut (impl AsyncRead + Unpin),
        buffer: &mut BytesMut,
        client: &mut (impl AsyncWrite + Unpin),
    ) -> Result<ResponseHead, RelayError> {
        let options = &self.gate.options;
        loop {
            match parse_response(buffer) {
                Ok(Some(head)) => {
                    buffer.advance(head.length);
                    match head.status {
                        // The header that asks for another protocol was never sent on.
                        101 => return Err(RelayError::NotStarted),
                        100..=199 if self.head.version == Version::Http11 => {
                            let line = format!("HTTP/1.1 {} \r\n\r\n", head.status);
                            within(options.idle_timeout, client.write_all(line.as_bytes())).await?;
                        }
                        100..=199 => {}
                        _ => return Ok(head),
                    }
                    continue;
                }
                Ok(None) if buffer.len() > options.max_head_bytes => {
                    return Err(RelayError::NotStarted);
                }
                Ok(None) => {}
                Err(_) => return Err(RelayError::NotStarted),
            }
            match within(options.idle_timeout, fill(upstream, buffer)).await {
                Err(error)
                    if error.kind() == io::ErrorKind::TimedOut
                        && self.is_sending.load(Ordering::Relaxed) => {}
                Ok(0) | Err(_) => return Err(RelayError::NotStarted),
                Ok(count) => self.tally.add_in(count as u64),
            }
        }
    }
}

fn is_closed_by_peer(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn response_head(response: &ResponseHead, framing: Framing, chunked: bool) -> Vec<u8> {
    let mut head = Vec::with_capacity(256 + response.lines.len());
    // Writing to a vector does not fail.
    drop(write!(head, "HTTP/1.1 {} {}\r\n", response.status, response.reason));
    head.extend_from_slice(&response.lines);
    match (framing, response.framing) {
        _ if chunked => head.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        (Framing::Length(length), _) | (Framing::Empty, Some(Framing::Length(length))) => {
            drop(write!(head, "Content-Length: {length}\r\n"));
        }
        (Framing::Empty, Some(Framing::Empty)) if response.status != 204 => {
            head.extend_from_slice(b"Content-Length: 0\r\n");
        }
        _ => {}
    }
    head
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

/// Passes one body on, decoded and framed anew.
struct BodyRelay<'r> {
    gate: &'r Gate,
    tally: &'r Tally,
    way: Way,
    chunked: bool,
}

impl BodyRelay<'_> {
    async fn run(
        &self,
        body: &mut Body,
        (from, buffer): (&mut (impl AsyncRead + Unpin), &mut BytesMut),
        (to, out): (&mut (impl AsyncWrite + Unpin), &mut Vec<u8>),
    ) -> io::Result<()> {
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        loop {
            match body.next(buffer).map_err(|_| bad())? {
                Piece::End => break,
                Piece::Skip(count) => buffer.advance(count.min(buffer.len())),
                Piece::Data(count) => {
                    let data = buffer.split_to(count.min(buffer.len()));
                    if self.chunked {
                        drop(write!(out, "{count:x}\r\n"));
                    }
                    out.extend_from_slice(&data);
                    if self.chunked {
                        out.extend_from_slice(b"\r\n");
                    }
                    if out.len() >= ROOM {
                        self.flush(to, out).await?;
                    }
                }
                Piece::More => {
                    self.flush(to, out).await?;
                    let count =
                        within(self.gate.options.idle_timeout, fill_more(from, buffer)).await?;
                    if count == 0 && body.ends_at_close() {
                        break;
                    }
                    if count == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    if self.way == Way::In {
                        self.tally.add_in(count as u64);
                    }
                }
            }
        }
        if self.chunked {
            out.extend_from_slice(b"0\r\n\r\n");
        }
        self.flush(to, out).await
    }

    async fn flush(&self, to: &mut (impl AsyncWrite + Unpin), out: &mut Vec<u8>) -> io::Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        within(self.gate.options.idle_timeout, to.write_all(out)).await?;
        if self.way == Way::Out {
            self.tally.add_out(out.len() as u64);
        }
        out.clear();
        Ok(())
    }
}
