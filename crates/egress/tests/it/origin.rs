//! Servers to reach, and a proxy to reach them through, all on loopback.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use warrant_egress::{Decision, Listeners, Options, Proxy, Resolver, Rules, Totals, serve};

/// A proxy under test, and what it reported.
pub(crate) struct World {
    pub(crate) address: SocketAddr,
    pub(crate) dns: SocketAddr,
    pub(crate) dns_tcp: SocketAddr,
    proxy: Option<Proxy>,
    seen: Arc<Mutex<Vec<Decision>>>,
}

impl World {
    /// Starts a proxy for these rules; every name of `names` resolves to the address beside it.
    pub(crate) fn new(rules: &[String], names: &[(&str, &str)]) -> Self {
        Self::with(rules, names, |_| {})
    }

    pub(crate) fn with(
        rules: &[String],
        names: &[(&str, &str)],
        change: impl FnOnce(&mut Options),
    ) -> Self {
        let mut table: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for (name, address) in names {
            table.entry((*name).to_owned()).or_default().push(address.parse().unwrap());
        }
        let mut options = Options::bounded();
        options.resolver = Resolver::Static(table);
        options.head_timeout = Duration::from_secs(3);
        change(&mut options);
        Self::start(Rules::parse(rules).unwrap(), options, Vec::new())
    }

    pub(crate) fn start(rules: Rules, options: Options, transparent: Vec<TcpListener>) -> Self {
        let explicit = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let dns_udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let dns_tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = explicit.local_addr().unwrap();
        let (dns, dns_tcp_address) = (dns_udp.local_addr().unwrap(), dns_tcp.local_addr().unwrap());
        let listeners = Listeners {
            explicit: Some(explicit),
            dns_udp: Some(dns_udp),
            dns_tcp: Some(dns_tcp),
            transparent,
        };
        let seen: Arc<Mutex<Vec<Decision>>> = Arc::default();
        let sink = Arc::clone(&seen);
        let reporter = Arc::new(move |decision| sink.lock().unwrap().push(decision));
        let proxy = serve(listeners, rules, options, reporter).unwrap();
        Self { address, dns, dns_tcp: dns_tcp_address, proxy: Some(proxy), seen }
    }

    /// Opens a connection to the explicit listener.
    pub(crate) fn connect(&self) -> Conversation {
        Conversation::open(self.address)
    }

    /// Sends bytes on a fresh connection and returns everything that comes back.
    pub(crate) fn say(&self, bytes: &[u8]) -> String {
        let mut conversation = self.connect();
        conversation.send(bytes);
        conversation.end()
    }

    /// Asks for a tunnel and returns the connection if it was granted, else the refusal.
    pub(crate) fn tunnel(&self, authority: &str) -> Result<Conversation, String> {
        let mut conversation = self.connect();
        conversation
            .send(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").as_bytes());
        let head = conversation.head();
        if head.starts_with("HTTP/1.1 200") { Ok(conversation) } else { Err(head) }
    }

    /// What was reported so far: `host:port why count`.
    pub(crate) fn told(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.iter()
            .map(|d| format!("{}:{} {} {}", d.host, d.port, d.why.as_str(), d.count))
            .collect()
    }

    /// Stops the proxy; returns all reports and the totals.
    pub(crate) fn close(mut self) -> (Vec<Decision>, Totals) {
        let totals = self.proxy.take().unwrap().shutdown();
        (std::mem::take(&mut *self.seen.lock().unwrap()), totals)
    }
}

/// One connection, with deadlines so that a hang is a failure.
pub(crate) struct Conversation(pub(crate) TcpStream);

impl Conversation {
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        // The other side may have refused and closed already; what it said is read next.
        drop(self.0.write_all(bytes));
    }

    /// Reads up to the end of a head, byte by byte so that nothing of the body is lost.
    pub(crate) fn head(&mut self) -> String {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            match self.0.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                Ok(_) | Err(_) => break,
            }
        }
        String::from_utf8_lossy(&head).into_owned()
    }

    pub(crate) fn exactly(&mut self, count: usize) -> String {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Reads to the end; a reset is an end too, but a hang is not.
    pub(crate) fn end(mut self) -> String {
        let mut bytes = Vec::new();
        if let Err(error) = self.0.read_to_end(&mut bytes) {
            assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "no end in time");
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A server whose handler gets each connection.
pub(crate) struct Origin {
    pub(crate) port: u16,
    /// Connections accepted so far.
    pub(crate) accepted: Arc<Mutex<usize>>,
}

impl Origin {
    pub(crate) fn new(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), serve)
    }

    pub(crate) fn at(
        address: SocketAddr,
        serve: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepted: Arc<Mutex<usize>> = Arc::default();
        let count = Arc::clone(&accepted);
        let serve = Arc::new(serve);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                *count.lock().unwrap() += 1;
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || serve(stream));
            }
        });
        Self { port, accepted }
    }

    /// A server that answers each request with its own head and body, keeping the connection.
    pub(crate) fn echo() -> Self {
        Self::new(echo_requests)
    }

    pub(crate) fn count(&self) -> usize {
        *self.accepted.lock().unwrap()
    }
}

/// Answers each request with exactly the bytes that arrived of it.
pub(crate) fn echo_requests(stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut conversation = Conversation(stream);
    loop {
        let head = conversation.head();
        if !head.ends_with("\r\n\r\n") {
            return;
        }
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
        let body = match length {
            Some(length) => conversation.exactly(length.parse().unwrap()),
            None if lower.contains("transfer-encoding: chunked") => {
                let mut body = String::new();
                while !body.ends_with("0\r\n\r\n") {
                    body.push_str(&conversation.exactly(1));
                }
                body
            }
            None => String::new(),
        };
        let echo = format!("{head}{body}");
        let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{echo}", echo.len());
        conversation.send(reply.as_bytes());
    }
}

/// Rules that let `name` through to a server on loopback.
pub(crate) fn allow(name: &str, port: u16) -> Vec<String> {
    vec![format!("{name}:{port}"), format!("127.0.0.1:{port}")]
}
