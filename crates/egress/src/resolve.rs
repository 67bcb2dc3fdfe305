//! Looks allowed names up: hosts file, name servers, or a fixed table.
//!
//! Names are absolute here: no search list ever turns one name into another.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use crate::dns::{self, Answers};
use crate::host::HostName;
use crate::options::Resolver;

const ATTEMPT: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 2;
const MAX_ADDRESSES: usize = 64;
const MAX_CACHED: usize = 512;
const CACHE_TIME: Duration = Duration::from_secs(10);
const MAX_CONFIG: u64 = 4 * 1024 * 1024;

/// Looks names up for one proxy.
pub(crate) struct Lookup {
    source: Source,
    cache: Mutex<HashMap<HostName, (Instant, Vec<IpAddr>)>>,
}

enum Source {
    Servers { hosts: HashMap<String, Vec<IpAddr>>, servers: Vec<SocketAddr> },
    Table(HashMap<String, Vec<IpAddr>>),
}

impl Lookup {
    /// Prepares lookups; the machine's configuration is read once, here.
    pub(crate) fn new(resolver: Resolver) -> Self {
        let source = match resolver {
            Resolver::System => Source::Servers {
                hosts: parse_hosts(&read_config("/etc/hosts")),
                servers: parse_servers(&read_config("/etc/resolv.conf")),
            },
            Resolver::Nameserver(server) => {
                Source::Servers { hosts: HashMap::new(), servers: vec![server] }
            }
            Resolver::Static(table) => Source::Table(table),
        };
        Self { source, cache: Mutex::new(HashMap::new()) }
    }

    /// Returns the addresses of a name, IPv4 first; none when it does not exist or nobody answers.
    ///
    /// They are not checked here; whoever dials one checks it first.
    pub(crate) async fn addresses(&self, name: &HostName) -> Vec<IpAddr> {
        match &self.source {
            Source::Table(table) => table.get(name.as_str()).cloned().unwrap_or_default(),
            Source::Servers { hosts, servers } => match hosts.get(name.as_str()) {
                Some(addresses) => addresses.clone(),
                None => self.ask_cached(servers, name).await,
            },
        }
    }

    async fn ask_cached(&self, servers: &[SocketAddr], name: &HostName) -> Vec<IpAddr> {
        let now = Instant::now();
        {
            let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            cache.retain(|_, (until, _)| *until > now);
            if let Some((_, addresses)) = cache.get(name) {
                return addresses.clone();
            }
        }
        let addresses = ask_all(servers, name).await;
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if !addresses.is_empty() && cache.len() < MAX_CACHED {
            cache.insert(name.clone(), (now + CACHE_TIME, addresses.clone()));
        }
        addresses
    }
}

async fn ask_all(servers: &[SocketAddr], name: &HostName) -> Vec<IpAddr> {
    for _ in 0..ATTEMPTS {
        for server in servers.iter().take(3) {
            let both = async {
                let v4 = ask(*server, name, dns::A);
                let v6 = ask(*server, name, dns::AAAA);
                tokio::join!(v4, v6)
            };
            let (v4, v6) = both.await;
            if v4.is_none() && v6.is_none() {
                continue;
            }
            let found = v4.into_iter().chain(v6).flat_map(|answers| answers.addresses);
            return found.take(MAX_ADDRESSES).collect();
        }
    }
    Vec::new()
}

/// Asks one server one question; nothing when it does not answer it in time.
async fn ask(server: SocketAddr, name: &HostName, kind: u16) -> Option<Answers> {
    let question = dns::question(random_id()?, name, kind);
    let answer = tokio::time::timeout(ATTEMPT, ask_udp(server, &question)).await;
    let answer = match answer {
        Ok(Ok(answer)) if answer.is_truncated => {
            let over_tcp = tokio::time::timeout(ATTEMPT, ask_tcp(server, &question)).await;
            over_tcp.ok().and_then(Result::ok).unwrap_or(answer)
        }
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => return None,
    };
    // A server that fails or refuses knows nothing; another may.
    matches!(answer.code, 0 | 3).then_some(answer)
}

async fn ask_udp(server: SocketAddr, question: &[u8]) -> io::Result<Answers> {
    let unspecified: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((unspecified, 0)).await?;
    socket.connect(server).await?;
    socket.send(question).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let message = buffer.get(..length).unwrap_or_default();
        if let Some(answers) = dns::answers(question, message) {
            return Ok(answers);
        }
    }
}

async fn ask_tcp(server: SocketAddr, question: &[u8]) -> io::Result<Answers> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    let mut message = length.to_be_bytes().to_vec();
    message.extend_from_slice(question);
    stream.write_all(&message).await?;
    let length = stream.read_u16().await?;
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await?;
    dns::answers(question, &message).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// An id nobody can guess; no randomness, no question.
fn random_id() -> Option<u16> {
    let mut id = [0; 2];
    let filled = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty()).ok()?;
    (filled == id.len()).then(|| u16::from_be_bytes(id))
}

/// A missing or unreadable file configures nothing.
fn read_config(path: &str) -> String {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_CONFIG).read_to_end(&mut text));
    match read {
        Ok(_) => String::from_utf8_lossy(&text).into_owned(),
        Err(_) => String::new(),
    }
}

fn parse_hosts(text: &str) -> HashMap<String, Vec<IpAddr>> {
    let mut hosts: HashMap<String, Vec<IpAddr>> = HashMap::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else { continue };
        for name in words.filter_map(|word| HostName::from_wire(word).ok()) {
            hosts.entry(name.as_str().to_owned()).or_default().push(address);
        }
    }
    hosts
}

fn parse_servers(text: &str) -> Vec<SocketAddr> {
    let servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let servers = servers.filter_map(|rest| rest.split_whitespace().next()?.parse::<IpAddr>().ok());
    let servers: Vec<SocketAddr> = servers.map(|address| (address, 53).into()).collect();
    if servers.is_empty() { vec![(Ipv4Addr::LOCALHOST, 53).into()] } else { servers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_the_machine_is_understood() {
        let hosts =
            parse_hosts("127.0.0.1 localhost # here\n::1 localhost ip6\nbad line\n#1.1.1.1 no");
        assert_eq!(hosts["localhost"].len(), 2);
        assert_eq!(hosts.len(), 2);
        let servers =
            parse_servers("search a.b\nnameserver 10.0.0.1\nnameserver  fd00::1 \noptions x");
        let expected = ["10.0.0.1:53", "[fd00::1]:53"].map(|server| server.parse().unwrap());
        assert_eq!(servers, expected);
    }
}
