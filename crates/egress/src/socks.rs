//! SOCKS5 on the explicit listener: CONNECT only, a password where the proxy asks for one, no BIND,
//! no UDP.

use std::net::{Ipv4Addr, Ipv6Addr};

use bytes::{Buf, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::decision::Why;
use crate::gate::{AddressSpelling, Destination, Gate};
use crate::host::{Host, HostName, InvalidHost, sanitize};
use crate::ledger::Subject;
use crate::pipe::{fill, within};

/// The version byte every SOCKS5 client starts with.
pub(crate) const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const PASSWORD: u8 = 2;
/// The version of the exchange of a password.
const PASSWORD_VERSION: u8 = 1;
const CONNECT: u8 = 1;

/// What a SOCKS request asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct SocksRequest {
    /// Whether it is CONNECT.
    pub is_connect: bool,
    /// The host, and how it was spelled.
    pub host: Result<Host, InvalidHost>,
    /// The host in a form fit for the record.
    pub shown: String,
    /// The port.
    pub port: u16,
    /// Bytes of the request.
    pub length: usize,
}

/// A message that is not SOCKS5.
#[derive(Debug, PartialEq, Eq)]
pub struct NotSocks;

/// The answer codes used here.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reply {
    Succeeded = 0,
    NotAllowed = 2,
    Unreachable = 4,
    NotSupported = 7,
}

/// Parses the first message: its length and the ways of authentication it offers.
///
/// # Errors
/// When it is not SOCKS5.
pub fn parse_greeting(bytes: &[u8]) -> Result<Option<(usize, &[u8])>, NotSocks> {
    match bytes {
        [] | [VERSION] => Ok(None),
        [VERSION, 0, ..] => Err(NotSocks),
        [VERSION, count, rest @ ..] => {
            let methods = rest.get(..usize::from(*count));
            Ok(methods.map(|methods| (methods.len() + 2, methods)))
        }
        _ => Err(NotSocks),
    }
}

/// A user and a password as a client shows them.
#[derive(Debug, PartialEq, Eq)]
pub struct SocksPassword<'a> {
    /// The user.
    pub user: &'a [u8],
    /// The password.
    pub password: &'a [u8],
    /// Bytes of the whole message.
    pub length: usize,
}

/// Parses a user and a password; nothing while they are incomplete.
///
/// # Errors
/// When it is not the exchange of a password.
pub fn parse_password(bytes: &[u8]) -> Result<Option<SocksPassword<'_>>, NotSocks> {
    let [version, rest @ ..] = bytes else { return Ok(None) };
    if *version != PASSWORD_VERSION {
        return Err(NotSocks);
    }
    let fields = take_field(rest)
        .and_then(|(user, rest)| take_field(rest).map(|(password, _)| (user, password)));
    Ok(fields.map(|(user, password)| {
        let length = 3 + user.len() + password.len();
        SocksPassword { user, password, length }
    }))
}

/// Splits off a field that begins with its length.
fn take_field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

/// Parses the request; nothing while it is incomplete.
///
/// # Errors
/// When it is not a SOCKS5 request.
pub fn parse_request(bytes: &[u8]) -> Result<Option<SocksRequest>, NotSocks> {
    let (command, kind, rest) = match bytes {
        [VERSION, command, 0, kind, rest @ ..] => (*command, *kind, rest),
        [VERSION] | [VERSION, _] | [VERSION, _, 0] | [] => return Ok(None),
        _ => return Err(NotSocks),
    };
    let (address, rest) = match (kind, rest) {
        (1, rest) => match rest.split_at_checked(4) {
            Some(split) => split,
            None => return Ok(None),
        },
        (4, rest) => match rest.split_at_checked(16) {
            Some(split) => split,
            None => return Ok(None),
        },
        (3, []) => return Ok(None),
        (3, [length, rest @ ..]) => match rest.split_at_checked(usize::from(*length)) {
            Some(split) => split,
            None => return Ok(None),
        },
        _ => return Err(NotSocks),
    };
    let Some((port, rest)) = rest.split_first_chunk::<2>() else { return Ok(None) };
    let host = parse_host(kind, address);
    let shown = host.as_ref().map_or_else(|_| sanitize(address), Host::to_string);
    Ok(Some(SocksRequest {
        is_connect: command == CONNECT,
        host,
        shown,
        port: u16::from_be_bytes(*port),
        length: bytes.len() - rest.len(),
    }))
}

fn parse_host(kind: u8, address: &[u8]) -> Result<Host, InvalidHost> {
    if let (1, Ok(octets)) = (kind, <[u8; 4]>::try_from(address)) {
        return Ok(Host::Address(Ipv4Addr::from(octets).into()));
    }
    if let (4, Ok(octets)) = (kind, <[u8; 16]>::try_from(address)) {
        return Ok(Host::Address(Ipv6Addr::from(octets).into()));
    }
    let text = std::str::from_utf8(address).map_err(|_| InvalidHost::Character)?;
    // Some libraries send an address as a name; only its usual spelling is one.
    match text.parse() {
        Ok(address) => Ok(Host::Address(address)),
        Err(_) => HostName::from_wire(text).map(Host::Name),
    }
}

/// Speaks SOCKS5 up to the request; nothing when the client was refused.
pub(crate) async fn negotiate(
    gate: &Gate,
    client: &mut TcpStream,
    buffer: &mut BytesMut,
) -> Option<Destination> {
    let limit = gate.options.head_timeout;
    within(limit, greet_and_read(gate, client, buffer)).await.ok().flatten()
}

async fn greet_and_read(
    gate: &Gate,
    client: &mut TcpStream,
    buffer: &mut BytesMut,
) -> std::io::Result<Option<Destination>> {
    if !greet(gate, client, buffer).await? {
        return Ok(None);
    }
    let request = loop {
        match parse_request(buffer) {
            Ok(Some(request)) => break request,
            Ok(None) => {}
            Err(NotSocks) => return Ok(None),
        }
        if fill(client, buffer).await? == 0 {
            return Ok(None);
        }
    };
    buffer.advance(request.length);
    let SocksRequest { is_connect, host, shown, port, .. } = request;
    let why = match host {
        Ok(host) if is_connect && port != 0 => {
            let spelling = AddressSpelling::Bracketed;
            return Ok(Some(Destination { host, port, asked_address: None, spelling }));
        }
        Ok(_) => Why::Unsupported,
        Err(_) => Why::MalformedHost,
    };
    drop(gate.record_subject(&Subject { host: shown, port, asked_address: None }, why));
    let reply = if is_connect { Reply::NotAllowed } else { Reply::NotSupported };
    send_reply(client, reply).await?;
    Ok(None)
}

/// Agrees on a way of authentication and goes it; returns whether the client may go on.
async fn greet(
    gate: &Gate,
    client: &mut TcpStream,
    buffer: &mut BytesMut,
) -> std::io::Result<bool> {
    let wanted = if gate.options.pass.is_some() { PASSWORD } else { NO_AUTHENTICATION };
    let (length, is_offered) = loop {
        match parse_greeting(buffer) {
            Ok(Some((length, methods))) => break (length, methods.contains(&wanted)),
            Ok(None) => {}
            Err(NotSocks) => return Ok(false),
        }
        if fill(client, buffer).await? == 0 {
            return Ok(false);
        }
    };
    if !is_offered {
        client.write_all(&[VERSION, 0xff]).await?;
        return Ok(false);
    }
    buffer.advance(length);
    client.write_all(&[VERSION, wanted]).await?;
    let Some(pass) = &gate.options.pass else { return Ok(true) };
    let (length, is_known) = loop {
        match parse_password(buffer) {
            Ok(Some(shown)) => break (shown.length, pass.is_named_by(shown.user, shown.password)),
            Ok(None) => {}
            Err(NotSocks) => return Ok(false),
        }
        if fill(client, buffer).await? == 0 {
            return Ok(false);
        }
    };
    buffer.advance(length);
    client.write_all(&[PASSWORD_VERSION, u8::from(!is_known)]).await?;
    Ok(is_known)
}

/// Answers a request; the bound address is never told.
pub(crate) async fn send_reply(client: &mut TcpStream, reply: Reply) -> std::io::Result<()> {
    client.write_all(&[VERSION, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_in_all_three_spellings() {
        let request = parse_request(b"\x05\x01\x00\x03\x09a.example\x01\xbbrest").unwrap().unwrap();
        assert_eq!((request.shown.as_str(), request.port, request.length), ("a.example", 443, 16));
        let request = parse_request(&[5, 1, 0, 1, 1, 2, 3, 4, 0, 80]).unwrap().unwrap();
        assert_eq!(request.shown, "1.2.3.4");
        let mut six = vec![5, 2, 0, 4];
        six.extend_from_slice(&[0; 15]);
        six.extend_from_slice(&[1, 0, 80]);
        let request = parse_request(&six).unwrap().unwrap();
        assert_eq!((request.shown.as_str(), request.is_connect), ("[::1]", false));
        let spelled = parse_request(b"\x05\x01\x00\x03\x06127.01\x00\x50").unwrap().unwrap();
        assert!(spelled.host.is_err());
        assert_eq!(parse_request(b"\x05\x01\x00\x03\x09a.ex"), Ok(None));
        assert_eq!(parse_request(b"\x04\x01\x00\x03"), Err(NotSocks));
        assert_eq!(parse_greeting(b"\x05\x02\x01\x00"), Ok(Some((4, &[1, 0][..]))));
        assert_eq!(parse_greeting(b"\x05\x01\x02"), Ok(Some((3, &[2][..]))));
        let shown = SocksPassword { user: b"u", password: b"pw", length: 6 };
        assert_eq!(parse_password(b"\x01\x01u\x02pwx"), Ok(Some(shown)));
        assert_eq!(parse_password(b"\x01\x01u\x02p"), Ok(None));
        assert_eq!(parse_password(b"\x05\x01"), Err(NotSocks));
    }
}
