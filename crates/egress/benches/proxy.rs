//! How fast the proxy is, and what it costs: requests, bytes and memory, each beside a direct
//! connection measured in the same run. Start with `cargo bench -p warrant-egress`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a benchmark prints, and stops at the first surprise"
)]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use warrant_egress::{Listeners, Options, Proxy, Resolver, Rules, serve};

const CONNECTIONS: usize = 64;
const ROUND: Duration = Duration::from_secs(1);
const ROUNDS: usize = 5;
/// What each tunnel carries before memory is measured.
const MEMORY_BYTES: usize = 4 * 1024 * 1024;
const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n\
    0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789";

fn main() {
    let web = web_server();
    let bulk = bulk_server(usize::MAX);
    let (proxy, address) = start_proxy(web.port(), bulk.port());
    // A word on the command line picks one: `cargo bench -p warrant-egress -- memory`.
    let picked: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wants = |what: &str| picked.is_empty() || picked.iter().any(|word| word == what);
    if wants("requests") {
        requests(web, address);
    }
    if wants("throughput") {
        throughput(bulk, address);
    }
    let _ = proxy.shutdown();
    if wants("memory") {
        memory(bulk_server(MEMORY_BYTES));
    }
}

fn requests(web: SocketAddr, proxy: SocketAddr) {
    let direct = format!("GET /x HTTP/1.1\r\nHost: a.test:{}\r\n\r\n", web.port());
    let through =
        format!("GET http://a.test:{0}/x HTTP/1.1\r\nHost: a.test:{0}\r\n\r\n", web.port());
    let (mut direct_best, mut through_best) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        direct_best.push(hammer(web, &direct));
        through_best.push(hammer(proxy, &through));
    }
    report("keep-alive requests/s, 100-byte replies", &mut direct_best, &mut through_best);
}

fn throughput(bulk: SocketAddr, proxy: SocketAddr) {
    let (mut direct, mut through) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        direct.push(drain(open(bulk, None)) / 1e9);
        through.push(drain(open(proxy, Some(bulk.port()))) / 1e9);
    }
    report("GB/s through CONNECT", &mut direct, &mut through);
}

/// Memory of many runs at once, each with open connections that have carried bytes.
fn memory(bulk: SocketAddr) {
    const RUNS: usize = 40;
    const TUNNELS: usize = 8;
    let before = resident_bytes();
    let mut running = Vec::new();
    for _ in 0..RUNS {
        let (proxy, address) = start_proxy(1, bulk.port());
        let mut tunnels: Vec<TcpStream> =
            (0..TUNNELS).map(|_| open(address, Some(bulk.port()))).collect();
        let mut buffer = vec![0; 64 * 1024];
        for tunnel in &mut tunnels {
            for _ in 0..MEMORY_BYTES / buffer.len() {
                tunnel.read_exact(&mut buffer).unwrap();
            }
        }
        running.push((proxy, tunnels));
    }
    let used = resident_bytes().saturating_sub(before) as f64 / RUNS as f64 / 1e6;
    println!("resident MB per run, {TUNNELS} open tunnels each, {RUNS} runs: {used:.2}");
}

fn report(what: &str, direct: &mut [f64], through: &mut [f64]) {
    direct.sort_by(f64::total_cmp);
    through.sort_by(f64::total_cmp);
    let (direct, through) = (direct[direct.len() / 2], through[through.len() / 2]);
    let ratio = through / direct;
    println!(
        "{what} (median of {ROUNDS}): direct {direct:.2}, proxy {through:.2}, ratio {ratio:.2}"
    );
}

fn start_proxy(web: u16, bulk: u16) -> (Proxy, SocketAddr) {
    let explicit = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = explicit.local_addr().unwrap();
    let rules = [
        format!("a.test:{web}"),
        format!("a.test:{bulk}"),
        format!("127.0.0.1:{web}"),
        format!("127.0.0.1:{bulk}"),
    ];
    let mut options = Options::bounded();
    let table = HashMap::from([("a.test".to_owned(), vec![Ipv4Addr::LOCALHOST.into()])]);
    options.resolver = Resolver::Static(table);
    let listeners = Listeners { explicit: Some(explicit), ..Listeners::default() };
    let rules = Rules::parse(&rules).unwrap();
    (serve(listeners, rules, options, Arc::new(|_| {})).unwrap(), address)
}

/// Answers every read that ends a head with the same reply.
fn web_server() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        runtime().block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                        assert!(buffer[..count].ends_with(b"\r\n\r\n"));
                        if stream.write_all(REPLY).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
    });
    address
}

/// Reads the first bytes, then sends this much as fast as it can, or until the other side closes.
fn bulk_server(most: usize) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                // Not on the heap, whose growth is measured.
                static BYTES: [u8; 256 * 1024] = [7; 256 * 1024];
                let mut first = [0; 4096];
                let mut sent = 0;
                while stream.read(&mut first).is_ok_and(|count| count > 0) {
                    while sent < most && stream.write_all(&BYTES).is_ok() {
                        sent += BYTES.len();
                    }
                }
            });
        }
    });
    address
}

/// Opens a connection to the bulk server, through a tunnel if a port is given.
fn open(address: SocketAddr, port: Option<u16>) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    if let Some(port) = port {
        write!(stream, "CONNECT a.test:{port} HTTP/1.1\r\n\r\n").unwrap();
        let mut reply = Vec::new();
        let mut byte = [0];
        while !reply.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            reply.push(byte[0]);
        }
        assert!(reply.starts_with(b"HTTP/1.1 200"));
    }
    stream.write_all(&client_hello()).unwrap();
    stream
}

fn drain(mut stream: TcpStream) -> f64 {
    let mut buffer = vec![0; 256 * 1024];
    let start = Instant::now();
    let mut bytes = 0_usize;
    while start.elapsed() < ROUND {
        bytes += stream.read(&mut buffer).unwrap();
    }
    bytes as f64 / start.elapsed().as_secs_f64()
}

/// Sends one request after the other on many connections; returns requests per second.
fn hammer(address: SocketAddr, request: &str) -> f64 {
    let done = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    runtime().block_on(async {
        let mut tasks = Vec::new();
        for _ in 0..CONNECTIONS {
            let (done, is_over) = (Arc::clone(&done), Arc::clone(&is_over));
            let request = request.to_owned();
            tasks.push(tokio::spawn(async move {
                let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                let mut buffer = [0; 4096];
                while !is_over.load(Ordering::Relaxed) {
                    stream.write_all(request.as_bytes()).await.unwrap();
                    let mut length = 0;
                    while !ends_reply(&buffer[..length]) {
                        let count = stream.read(&mut buffer[length..]).await.unwrap();
                        assert!(count > 0, "the connection was closed");
                        length += count;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        tokio::time::sleep(ROUND).await;
        is_over.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.unwrap();
        }
    });
    done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

fn ends_reply(bytes: &[u8]) -> bool {
    let body = &REPLY[REPLY.len() - 104..];
    bytes.ends_with(body)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn client_hello() -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from("a.test").unwrap();
    let mut session = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    hello
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
