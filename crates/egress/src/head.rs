//! HTTP/1 heads, read strictly: what two readers could read differently is refused.
//!
//! Owns no socket. The end-to-end headers are kept as ready lines; those of one hop, the host
//! and the length are never copied but written anew by whoever sends the head on.

use httparse::{EMPTY_HEADER, Header};

const MAX_HEADERS: usize = 128;

/// A request head.
#[derive(Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Bytes of the head, with its empty line.
    pub length: usize,
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) version: Version,
    pub(crate) host: Option<String>,
    pub(crate) framing: Framing,
    pub(crate) keep_alive: bool,
    pub(crate) proxy_authorization: Option<Vec<u8>>,
    pub(crate) lines: Vec<u8>,
}

/// A response head.
#[derive(Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Bytes of the head, with its empty line.
    pub length: usize,
    pub(crate) status: u16,
    pub(crate) reason: String,
    pub(crate) framing: Option<Framing>,
    pub(crate) keep_alive: bool,
    pub(crate) lines: Vec<u8>,
}

/// The versions that are spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    Http10,
    Http11,
}

/// How long a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Empty,
    Length(u64),
    Chunked,
    UntilClose,
}

/// Why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadHead {
    /// It is not HTTP, or not in the one accepted spelling.
    Malformed,
    /// The length of the body can be read in two ways.
    AmbiguousLength,
}

/// Parses a request head; nothing while its empty line has not come.
///
/// # Errors
/// When the head is malformed, or its body's length is ambiguous.
pub fn parse_request(bytes: &[u8]) -> Result<Option<RequestHead>, BadHead> {
    let Some(head) = whole_head(bytes)? else { return Ok(None) };
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(length)) if length == head.len() => {}
        Ok(_) | Err(_) => return Err(BadHead::Malformed),
    }
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return Err(BadHead::Malformed);
    };
    let version = match request.version {
        Some(0) => Version::Http10,
        Some(1) => Version::Http11,
        _ => return Err(BadHead::Malformed),
    };
    let is_plain = method.bytes().all(|b| b.is_ascii_uppercase() || b == b'-')
        && target.bytes().all(|b| (0x21..0x7f).contains(&b));
    if !is_plain {
        return Err(BadHead::Malformed);
    }
    let fields = Fields::read(request.headers)?;
    let framing = match fields.length()? {
        Some(Framing::Chunked) if version == Version::Http10 => {
            return Err(BadHead::AmbiguousLength);
        }
        Some(framing) => framing,
        None => Framing::Empty,
    };
    Ok(Some(RequestHead {
        length: head.len(),
        method: method.to_owned(),
        target: target.to_owned(),
        version,
        host: fields.host.map(str::to_owned),
        framing,
        keep_alive: fields.keep_alive(version),
        proxy_authorization: fields.proxy_authorization.map(<[u8]>::to_vec),
        lines: fields.lines(request.headers),
    }))
}

/// Parses a response head; nothing while its empty line has not come.
///
/// # Errors
/// When the head is malformed, or its body's length is ambiguous.
pub fn parse_response(bytes: &[u8]) -> Result<Option<ResponseHead>, BadHead> {
    let Some(head) = whole_head(bytes)? else { return Ok(None) };
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    match response.parse(head) {
        Ok(httparse::Status::Complete(length)) if length == head.len() => {}
        Ok(_) | Err(_) => return Err(BadHead::Malformed),
    }
    let version = match response.version {
        Some(0) => Version::Http10,
        Some(1) => Version::Http11,
        _ => return Err(BadHead::Malformed),
    };
    let fields = Fields::read(response.headers)?;
    Ok(Some(ResponseHead {
        length: head.len(),
        status: response.code.ok_or(BadHead::Malformed)?,
        reason: response.reason.unwrap_or_default().to_owned(),
        framing: fields.length()?,
        keep_alive: fields.keep_alive(version),
        lines: fields.lines(response.headers),
    }))
}

impl ResponseHead {
    /// Returns how long the body is, given what was asked.
    pub(crate) fn body(&self, method: &str) -> Framing {
        let has_none = method == "HEAD" || matches!(self.status, 100..=199 | 204 | 304);
        if has_none { Framing::Empty } else { self.framing.unwrap_or(Framing::UntilClose) }
    }
}

/// Returns the head up to and with its empty line; it has CR LF at the end of lines and nowhere else.
fn whole_head(bytes: &[u8]) -> Result<Option<&[u8]>, BadHead> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4);
    let head = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or(bytes);
    if head.starts_with(b"\r") {
        return Err(BadHead::Malformed);
    }
    let mut previous = 0;
    for (at, byte) in head.iter().enumerate() {
        let is_last = at + 1 == head.len();
        let is_stray = match byte {
            b'\n' => previous != b'\r',
            b'\r' => !is_last && head.get(at + 1) != Some(&b'\n'),
            0 => true,
            _ => false,
        };
        if is_stray {
            return Err(BadHead::Malformed);
        }
        previous = *byte;
    }
    Ok(end.map(|_| head))
}

/// What the headers say about this hop.
#[derive(Default)]
struct Fields<'h> {
    host: Option<&'h str>,
    content_length: Option<u64>,
    is_chunked: bool,
    proxy_authorization: Option<&'h [u8]>,
    connection: Vec<&'h str>,
}

impl<'h> Fields<'h> {
    fn read(headers: &[Header<'h>]) -> Result<Self, BadHead> {
        let mut fields = Self::default();
        for header in headers {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            if is("host") {
                let host = std::str::from_utf8(header.value).map_err(|_| BadHead::Malformed)?;
                if fields.host.replace(host).is_some() {
                    return Err(BadHead::Malformed);
                }
            } else if is("content-length") {
                let length = parse_length(header.value).ok_or(BadHead::AmbiguousLength)?;
                if fields.content_length.replace(length).is_some() {
                    return Err(BadHead::AmbiguousLength);
                }
            } else if is("transfer-encoding") {
                let is_repeated = std::mem::replace(&mut fields.is_chunked, true);
                if is_repeated || !header.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(BadHead::AmbiguousLength);
                }
            } else if is("proxy-authorization") {
                if fields.proxy_authorization.replace(header.value).is_some() {
                    return Err(BadHead::Malformed);
                }
            } else if is("connection") {
                let value = std::str::from_utf8(header.value).map_err(|_| BadHead::Malformed)?;
                fields.connection.extend(value.split(',').map(str::trim));
            }
        }
        Ok(fields)
    }

    /// SECURITY: a head with both lengths is how one request is made to hide another.
    fn length(&self) -> Result<Option<Framing>, BadHead> {
        match (self.is_chunked, self.content_length) {
            (true, Some(_)) => Err(BadHead::AmbiguousLength),
            (true, None) => Ok(Some(Framing::Chunked)),
            (false, Some(0)) => Ok(Some(Framing::Empty)),
            (false, Some(length)) => Ok(Some(Framing::Length(length))),
            (false, None) => Ok(None),
        }
    }

    fn keep_alive(&self, version: Version) -> bool {
        let says =
            |word: &str| self.connection.iter().any(|option| option.eq_ignore_ascii_case(word));
        match version {
            Version::Http11 => !says("close"),
            Version::Http10 => says("keep-alive") && !says("close"),
        }
    }

    fn lines(&self, headers: &[Header<'_>]) -> Vec<u8> {
        let mut lines = Vec::with_capacity(256);
        for header in headers {
            let is_named =
                self.connection.iter().any(|name| name.eq_ignore_ascii_case(header.name));
            if is_of_this_hop(header.name) || is_named {
                continue;
            }
            lines.extend_from_slice(header.name.as_bytes());
            lines.extend_from_slice(b": ");
            lines.extend_from_slice(header.value);
            lines.extend_from_slice(b"\r\n");
        }
        lines
    }
}

fn is_of_this_hop(name: &str) -> bool {
    const NAMES: [&str; 12] = [
        "connection",
        "content-length",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

fn parse_length(value: &[u8]) -> Option<u64> {
    let is_digits = !value.is_empty() && value.len() <= 18 && value.iter().all(u8::is_ascii_digit);
    if !is_digits {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refuse(head: &str, expected: BadHead) {
        assert_eq!(parse_request(head.as_bytes()), Err(expected), "{head:?}");
    }

    #[test]
    fn headers_of_this_hop_are_not_sent_on() {
        let head = "POST http://a/ HTTP/1.1\r\nHost: a\r\nX-One: 1\r\nConnection: x-two, close\r\n\
            X-Two: 2\r\nProxy-Authorization: secret\r\nContent-Length: 3\r\nUpgrade: h2c\r\n\r\nabc";
        let head = parse_request(head.as_bytes()).unwrap().unwrap();
        assert_eq!(head.lines, b"X-One: 1\r\n");
        assert_eq!((head.framing, head.keep_alive), (Framing::Length(3), false));
        assert_eq!(head.host.as_deref(), Some("a"));
    }

    #[test]
    fn lengths_that_can_be_read_in_two_ways_are_refused() {
        for fields in [
            "Content-Length: 3\r\nTransfer-Encoding: chunked",
            "Content-Length: 3\r\nContent-Length: 3",
            "Content-Length: 3, 3",
            "Content-Length: +3",
            "Content-Length: 0x3",
            "Content-Length: ",
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding: chunked, identity",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: \x0bchunked",
        ] {
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
            let found = parse_request(head.as_bytes());
            assert!(found.is_err(), "{fields:?} {found:?}");
        }
        refuse("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", BadHead::AmbiguousLength);
    }

    #[test]
    fn odd_lines_are_malformed() {
        for head in [
            "GET / HTTP/1.1\nHost: a\n\n",
            "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\0\r\n\r\n",
            "GET / HTTP/2.0\r\n\r\n",
            "GET  / HTTP/1.1\r\n\r\n",
            "get / HTTP/1.1\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\n\r\n",
        ] {
            refuse(head, BadHead::Malformed);
        }
        assert_eq!(parse_request(b"GET / HTTP/1.1\r\nHost: a\r\n"), Ok(None));
    }

    #[test]
    fn the_body_of_a_response_depends_on_the_question() {
        let head =
            parse_response(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").unwrap().unwrap();
        assert_eq!(head.body("GET"), Framing::Length(5));
        assert_eq!(head.body("HEAD"), Framing::Empty);
        let head = parse_response(b"HTTP/1.0 200 OK\r\n\r\n").unwrap().unwrap();
        assert_eq!((head.body("GET"), head.keep_alive), (Framing::UntilClose, false));
        let head =
            parse_response(b"HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\n").unwrap().unwrap();
        assert_eq!(head.body("GET"), Framing::Empty);
    }
}
