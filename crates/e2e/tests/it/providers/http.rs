//! Messages of HTTP/1.1 as bytes: just enough to sit between a client and a server.

use std::io::{self, Read};
use std::net::TcpStream;

/// A request, read whole.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    head: Vec<String>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// Reads a request; nothing when the client has none more.
    pub(crate) fn read(stream: &mut TcpStream) -> Option<Self> {
        let (head, mut body) = read_head(stream).ok()??;
        let mut lines = head.iter();
        let mut words = lines.next()?.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let length = header(&head, "content-length").and_then(|text| text.parse().ok());
        let length: usize = length.unwrap_or(0);
        let mut rest = vec![0; length.saturating_sub(body.len())];
        stream.read_exact(&mut rest).ok()?;
        body.extend(rest);
        Some(Self { method, target, head, body })
    }

    /// Returns a question for another place with what this one shows.
    pub(crate) fn get(&self, target: &str) -> Self {
        let mut head = self.head.clone();
        head[0] = format!("GET {target} HTTP/1.1");
        Self { method: "GET".to_owned(), target: target.to_owned(), head, body: Vec::new() }
    }

    /// Returns the path without its query.
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap()
    }

    /// Whether it asks for another protocol.
    pub(crate) fn is_upgrade(&self) -> bool {
        header(&self.head, "upgrade").is_some()
    }

    /// Whether the body holds these words.
    pub(crate) fn says(&self, words: &str) -> bool {
        self.body.windows(words.len()).any(|window| window == words.as_bytes())
    }

    /// Returns the request as it is passed on: for one answer, unless it becomes something else.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let keep = |line: &&String| {
            let line = line.to_lowercase();
            let is_own = line.starts_with("connection:") && !self.is_upgrade();
            !is_own && !line.starts_with("content-length:")
        };
        let mut lines: Vec<String> = self.head.iter().filter(keep).cloned().collect();
        if !self.is_upgrade() {
            lines.push("Connection: close".to_owned());
        }
        lines.push(format!("Content-Length: {}", self.body.len()));
        [format!("{}\r\n\r\n", lines.join("\r\n")).as_bytes(), &self.body].concat()
    }
}

/// An answer, read whole.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    head: Vec<String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Reads an answer after which the server closes.
    pub(crate) fn read(stream: &mut TcpStream) -> Option<Self> {
        let (head, mut body) = read_head(stream).ok()??;
        stream.read_to_end(&mut body).ok()?;
        if header(&head, "transfer-encoding").is_some() {
            body = unchunked(&body);
        }
        Some(Self { head, body })
    }

    pub(crate) fn new(status: u16, body: &str) -> Self {
        let head =
            vec![format!("HTTP/1.1 {status} X"), "Content-Type: application/json".to_owned()];
        Self { head, body: body.as_bytes().to_vec() }
    }

    /// Returns the answer as it is sent, after which the connection closes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.with("Connection: close")
    }

    /// Returns the answer as it is sent on a connection that stays.
    pub(crate) fn to_open_bytes(&self) -> Vec<u8> {
        self.with("Connection: keep-alive")
    }

    fn with(&self, line: &str) -> Vec<u8> {
        let keep = |line: &&String| {
            let line = line.to_lowercase();
            let own = ["connection:", "content-length:", "transfer-encoding:"];
            !own.iter().any(|name| line.starts_with(name))
        };
        let mut lines: Vec<String> = self.head.iter().filter(keep).cloned().collect();
        lines.push(format!("Content-Length: {}", self.body.len()));
        lines.push(line.to_owned());
        [format!("{}\r\n\r\n", lines.join("\r\n")).as_bytes(), &self.body].concat()
    }
}

type Head = Option<(Vec<String>, Vec<u8>)>;

/// Reads lines up to the empty one; returns them and what was read of the body.
pub(crate) fn read_head(stream: &mut TcpStream) -> io::Result<Head> {
    let mut bytes = Vec::new();
    loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&bytes[..at]).into_owned();
            let lines = text.split("\r\n").map(str::to_owned).collect();
            return Ok(Some((lines, bytes[at + 4..].to_vec())));
        }
        let mut piece = [0; 8192];
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Ok(None);
        }
        bytes.extend_from_slice(&piece[..count]);
    }
}

/// Returns a header's value.
pub(crate) fn header<'a>(head: &'a [String], name: &str) -> Option<&'a str> {
    head.iter().skip(1).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(at) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = String::from_utf8_lossy(&rest[..at]).into_owned();
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { break };
        let start = at + 2;
        if size == 0 || rest.len() < start + size {
            break;
        }
        body.extend_from_slice(&rest[start..start + size]);
        rest = rest.get(start + size + 2..).unwrap_or_default();
    }
    body
}
