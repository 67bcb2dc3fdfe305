//! A small HTTP/1.1 server on loopback: one thread per connection, whole requests, answers that
//! may be streamed, cut or held back.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// With the query.
    pub(crate) target: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap()
    }

    pub(crate) fn query(&self, name: &str) -> Option<String> {
        let query = self.target.split_once('?')?.1;
        let pair = query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")))?;
        Some(unescaped(pair))
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Returns the content of the only file of a form.
    pub(crate) fn form_file(&self) -> Vec<u8> {
        let start = find(&self.body, b"\r\n\r\n").unwrap() + 4;
        let boundary = self.body.split(|b| *b == b'\r').next().unwrap();
        let end = start + find(&self.body[start..], &[b"\r\n", boundary].concat()).unwrap();
        self.body[start..end].to_vec()
    }
}

pub(crate) fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let hex = [rest.next().unwrap(), rest.next().unwrap()];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// Writes an answer.
pub(crate) struct Answer<'a> {
    stream: &'a mut TcpStream,
}

impl Answer<'_> {
    /// A whole answer.
    pub(crate) fn send(&mut self, status: u16, kind: &str, body: &[u8]) {
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let _ = self.stream.write_all(&[head.as_bytes(), body].concat());
    }

    pub(crate) fn json(&mut self, status: u16, value: &serde_json::Value) {
        self.send(status, "application/json", value.to_string().as_bytes());
    }

    pub(crate) fn empty(&mut self, status: u16) {
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
        let _ = self.stream.write_all(head.as_bytes());
    }

    /// An answer that promises more than it sends, and is cut.
    pub(crate) fn truncated(&mut self, body: &[u8]) {
        let head =
            "HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 99999\r\n\r\n";
        let _ = self.stream.write_all(&[head.as_bytes(), body].concat());
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Begins an answer that is streamed.
    pub(crate) fn begin(&mut self, kind: &str) {
        let head =
            format!("HTTP/1.1 200 X\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
        let _ = self.stream.write_all(head.as_bytes());
    }

    /// Returns whether somebody still reads.
    pub(crate) fn piece(&mut self, bytes: &[u8]) -> bool {
        let head = format!("{:x}\r\n", bytes.len());
        self.stream.write_all(&[head.as_bytes(), bytes, b"\r\n"].concat()).is_ok()
    }

    pub(crate) fn end(&mut self) {
        let _ = self.stream.write_all(b"0\r\n\r\n");
    }

    /// Closes the connection in the middle.
    pub(crate) fn cut(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Gives the raw connection away.
    pub(crate) fn raw(&mut self) -> &mut TcpStream {
        self.stream
    }

    /// Waits until the other side goes away; nothing is sent.
    pub(crate) fn hang(&mut self) {
        let mut nothing = [0; 1];
        while matches!(self.stream.read(&mut nothing), Ok(count) if count > 0) {}
    }
}

type Handler = dyn Fn(&Request, &mut Answer<'_>) + Send + Sync;

/// A server that stops when it is dropped.
pub(crate) struct Server {
    pub(crate) address: String,
    stop: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn start(
        handler: impl Fn(&Request, &mut Answer<'_>) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let handler: Arc<Handler> = Arc::new(handler);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let handler = Arc::clone(&handler);
                std::thread::spawn(move || serve(stream.unwrap(), &*handler));
            }
        });
        Self { address, stop }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(&self.address);
    }
}

fn serve(mut stream: TcpStream, handler: &Handler) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(request) = read(&mut reader) {
        handler(&request, &mut Answer { stream: &mut stream });
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let mut body = Vec::new();
    if let Some(length) = headers.get("content-length") {
        body.resize(length.parse().ok()?, 0);
        reader.read_exact(&mut body).ok()?;
    } else if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
        loop {
            let mut size = String::new();
            reader.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            let mut piece = vec![0; size + 2];
            reader.read_exact(&mut piece).ok()?;
            body.extend_from_slice(&piece[..size]);
            if size == 0 {
                break;
            }
        }
    }
    Some(Request { method, target, headers, body })
}
