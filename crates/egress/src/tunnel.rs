//! Tunnels: CONNECT, SOCKS and transparent connections, none of them blind.
//!
//! ```text
//! asked ─ decided ─ dialed ─ accepted ─ peeked ─┬─ TLS for the right name: passed on
//!   └ refused  └ refused                        ├─ HTTP: each request checked (`http`)
//!                                               └─ anything else: refused, unless the rule says raw
//! ```
//!
//! This is also the seam for brokered secrets: between `peeked` and `passed on`, a host that a
//! secret is bound to would be opened with a certificate of the run's own authority and its requests
//! sent through `http`, where the placeholder is swapped in the named header. The server's name is
//! already checked there, and no other host ever gets past this point under that name.

use std::io;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::decision::Why;
use crate::gate::{Destination, Gate};
use crate::hello::{self, Hello, Peek};
use crate::host::{Host, HostName};
use crate::http::{self, Door, Link};
use crate::pipe::{Tunnel, fill, within};
use crate::rules::Tolerance;
use crate::settle::{Handshake, Unsettled};
use crate::socks::{self, Reply};

/// How the tunnel was asked for, and so how it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Front {
    Connect,
    Socks,
    Transparent,
}

/// What is inside a tunnel.
enum Inside {
    Raw,
    Tls(Hello),
    Http,
}

/// Decides, opens and serves one tunnel.
pub(crate) async fn run(
    gate: &Gate,
    client: &mut TcpStream,
    mut buffer: BytesMut,
    (front, destination): (Front, Destination),
) -> io::Result<()> {
    let opened = match gate.decide(&destination) {
        Ok(tolerance) => gate.dial(&destination).await.map(|upstream| (upstream, tolerance)),
        Err(why) => Err(why),
    };
    let (mut upstream, tolerance) = match opened {
        Ok(opened) => opened,
        Err(why) => {
            drop(gate.record(&destination, why));
            return answer(client, front, Err(why)).await;
        }
    };
    answer(client, front, Ok(())).await?;
    let inside = match look_inside(gate, client, &mut buffer, (&destination, &tolerance)).await {
        Ok(inside) => inside,
        Err(why) => {
            drop(gate.record(&destination, why));
            // Not a clean end: nothing must look as if the server had answered.
            drop(client.set_zero_linger());
            return Ok(());
        }
    };
    if matches!(inside, Inside::Http) {
        let link = Link::new(upstream, destination.clone());
        let door = Door::Tunnel(&destination);
        return http::serve(gate, client, &mut buffer, (door, Some(link))).await.map(drop);
    }
    let Ok(tally) = gate.record(&destination, Why::Allowed) else { return Ok(()) };
    let idle = gate.options.idle_timeout;
    let mut from_upstream = BytesMut::new();
    if let Inside::Tls(hello) = inside {
        let mut handshake = Handshake {
            client,
            upstream: &mut upstream,
            tally: &tally,
            from_client: buffer,
            from_upstream,
        };
        let check = |second: &Hello| check_hello(gate, second, &destination, &tolerance);
        let settled = tokio::time::timeout(idle, handshake.settle(&hello, check)).await;
        Handshake { from_client: buffer, from_upstream, .. } = handshake;
        match settled {
            Ok(Ok(())) => {}
            Ok(Err(Unsettled::Refused(why))) => {
                drop(gate.record(&destination, why));
                return client.set_zero_linger();
            }
            Ok(Err(Unsettled::Broken(error))) => return Err(error),
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
    let tunnel = Tunnel { client, upstream: &mut upstream, tally: &tally, idle };
    tunnel.run(&buffer, &from_upstream).await
}

async fn answer(client: &mut TcpStream, front: Front, result: Result<(), Why>) -> io::Result<()> {
    match (front, result) {
        (Front::Connect, Ok(())) => {
            client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await
        }
        (Front::Connect, Err(why)) => {
            let status = if why.is_allowed() { "502 Bad Gateway" } else { "403 Forbidden" };
            let why = why.as_str();
            let reply = format!(
                "HTTP/1.1 {status}\r\nContent-Length: 0\r\nWarrant-Why: {why}\r\nConnection: close\r\n\r\n"
            );
            client.write_all(reply.as_bytes()).await
        }
        (Front::Socks, result) => {
            let reply = match result {
                Ok(()) => Reply::Succeeded,
                Err(why) if why.is_allowed() => Reply::Unreachable,
                Err(_) => Reply::NotAllowed,
            };
            socks::send_reply(client, reply).await
        }
        (Front::Transparent, Ok(())) => Ok(()),
        (Front::Transparent, Err(_)) => client.set_zero_linger(),
    }
}

/// Reads the first bytes of the client until it is clear what they are.
async fn look_inside(
    gate: &Gate,
    client: &mut TcpStream,
    buffer: &mut BytesMut,
    (destination, tolerance): (&Destination, &Tolerance),
) -> Result<Inside, Why> {
    if tolerance.raw {
        return Ok(Inside::Raw);
    }
    let looking = async {
        loop {
            match hello::peek(buffer) {
                Peek::Hello(hello) => {
                    let checked = check_hello(gate, &hello, destination, tolerance);
                    return Ok(checked.map(|()| Inside::Tls(hello)));
                }
                Peek::Malformed => return Ok(Err(Why::UnreadableTunnel)),
                Peek::NotTls => match starts_http(buffer) {
                    Some(true) => return Ok(Ok(Inside::Http)),
                    Some(false) => return Ok(Err(Why::UnreadableTunnel)),
                    None => {}
                },
                Peek::More => {}
            }
            if buffer.len() > gate.options.max_head_bytes {
                return Ok(Err(Why::UnreadableTunnel));
            }
            if fill(client, buffer).await? == 0 {
                // Closed without a word: allowed, and nothing happened.
                let ended =
                    if buffer.is_empty() { Ok(Inside::Raw) } else { Err(Why::UnreadableTunnel) };
                return Ok(ended);
            }
        }
    };
    match within(gate.options.head_timeout, looking).await {
        Ok(inside) => inside,
        Err(_) => Err(Why::SilentTunnel),
    }
}

fn check_hello(
    gate: &Gate,
    hello: &Hello,
    destination: &Destination,
    tolerance: &Tolerance,
) -> Result<(), Why> {
    if hello.has_encrypted_hello && !tolerance.ech {
        return Err(Why::EncryptedHello);
    }
    let Some(name) = &hello.server_name else {
        // An address has no server name to send.
        let may_lack = tolerance.no_sni || matches!(destination.host, Host::Address(_));
        return if may_lack { Ok(()) } else { Err(Why::NoSni) };
    };
    let name = std::str::from_utf8(name).ok().filter(|name| !name.ends_with('.'));
    let name = name.and_then(|name| HostName::from_wire(name).ok()).ok_or(Why::SniMismatch)?;
    let name = Host::Name(name);
    let is_right = match destination.host {
        Host::Name(_) => name == destination.host,
        // The address is listed; the name asked of it must be allowed by itself.
        Host::Address(_) => gate.rules.decide(&name, destination.port).is_ok(),
    };
    if is_right { Ok(()) } else { Err(Why::SniMismatch) }
}

/// Tells whether the bytes start with a method and a space; nothing while they are too few.
fn starts_http(bytes: &[u8]) -> Option<bool> {
    const LONGEST_METHOD: usize = 32;
    let method = bytes.iter().take(LONGEST_METHOD).take_while(|b| b.is_ascii_uppercase()).count();
    match bytes.get(method) {
        Some(b' ') => Some(method > 0),
        Some(_) => Some(false),
        None if method >= LONGEST_METHOD => Some(false),
        None => None,
    }
}
