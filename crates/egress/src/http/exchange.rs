//! One request sent on and its response relayed: heads written anew, bodies framed anew.

use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Link, Refusal, UPSTREAM, refuse};
use crate::body::{Body, Piece};
use crate::decision::Why;
use crate::gate::{Destination, Gate};
use crate::head::{Framing, RequestHead, ResponseHead, Version, parse_response};
use crate::ledger::Tally;
use crate::model::ModelPeek;
use crate::pipe::{ROOM, fill, fill_more, within};

/// One request and its response.
pub(super) struct Exchange<'e> {
    pub(super) gate: &'e Gate,
    pub(super) tally: &'e Tally,
    pub(super) head: &'e RequestHead,
    pub(super) path: &'e str,
    /// Whether the body is still on its way; until it has arrived, a silent server is only waiting.
    pub(super) is_sending: AtomicBool,
}

/// What comes after an exchange.
pub(super) enum Flow {
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
    /// Sends the request, relays the response, and tells what may go on.
    pub(super) async fn run(
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
        let subject = link.destination.subject();
        let (mut client_in, mut client_out) = client.split();
        let (mut upstream_in, mut upstream_out) = link.stream.split();
        let sending = async {
            let mut body = Body::new(self.head.framing);
            let chunked = self.head.framing == Framing::Chunked;
            let mut out = Vec::new();
            let relay = BodyRelay { gate: self.gate, tally: self.tally, way: Way::Out, chunked };
            let mut peek = ModelPeek::of(&self.head.method, self.path);
            let tell = |call| self.gate.ledger.tell_model(&subject, call);
            let mut see = |data: &[u8]| {
                if let Some(call) = peek.as_mut().and_then(|peek| peek.see(data)) {
                    tell(call);
                }
            };
            let ends = ((&mut client_in, buffer), (&mut upstream_out, &mut out));
            let sent = relay.run((&mut body, &mut see), ends.0, ends.1).await;
            if let Some(call) = peek.as_mut().and_then(ModelPeek::end) {
                tell(call);
            }
            sent
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
        relay.run((&mut body, &mut |_| ()), (upstream, buffer), (client, &mut out)).await?;
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
        (body, see): (&mut Body, &mut (impl FnMut(&[u8]) + Send)),
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
                    see(&data);
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
