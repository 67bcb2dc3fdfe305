//! HTTP/1: requests in absolute form, and plain requests inside a tunnel to one fixed host.
//!
//! Every request is decided anew, also the second one on a connection. Heads are written anew, bodies
//! are framed anew; nothing of one request can be read as another.

mod exchange;

use std::io;
use std::sync::atomic::AtomicBool;

use bytes::{Buf, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use self::exchange::{Exchange, Flow};
use crate::decision::Why;
use crate::gate::{AddressSpelling, Destination, Gate};
use crate::head::{BadHead, Framing, RequestHead, Version, parse_request};
use crate::host::{parse_authority, sanitize};
use crate::ledger::{Subject, Tally};
use crate::pipe::{fill, within};

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
const STRANGER: &str = "proxy authentication required";

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
        if !door.knows(gate, &head) {
            // Nothing is recorded: whoever this is, it is not the run.
            let refusal = Refusal { subject: None, why: Why::Unsupported, text: STRANGER };
            refuse(gate, client, &refusal, may_keep).await?;
            if may_keep {
                continue;
            }
            return Ok(End::Closed);
        }
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
            let spelling = AddressSpelling::Bare;
            Ok(Ask::Connect(Destination { host, port, asked_address: None, spelling }))
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
            let (port, spelling) = (port.unwrap_or(80), AddressSpelling::Bracketed);
            let destination = Destination { host, port, asked_address: None, spelling };
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
    let (status, demand) = match refusal.text {
        BLOCKED => ("403 Forbidden", ""),
        UPSTREAM => ("502 Bad Gateway", ""),
        STRANGER => {
            ("407 Proxy Authentication Required", "Proxy-Authenticate: Basic realm=\"warrant\"\r\n")
        }
        _ => ("400 Bad Request", ""),
    };
    let (text, why) = (refusal.text, refusal.why.as_str());
    let connection = if keeps { "keep-alive" } else { "close" };
    let reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         {demand}Warrant-Why: {why}\r\nConnection: {connection}\r\n\r\n{text}",
        text.len()
    );
    within(gate.options.idle_timeout, client.write_all(reply.as_bytes())).await
}

impl Door<'_> {
    /// Returns whether the client has shown what it must.
    fn knows(self, gate: &Gate, head: &RequestHead) -> bool {
        match (self, &gate.options.pass) {
            (Self::Proxy, Some(pass)) => pass.is_shown_by(head.proxy_authorization.as_deref()),
            (Self::Proxy, None) | (Self::Tunnel(_), _) => true,
        }
    }

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
