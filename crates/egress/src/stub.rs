//! The DNS stub: allowed names get synthetic addresses, denied ones do not exist.
//!
//! Nothing is ever looked up here, so that a question carries nothing outside. What a synthetic
//! address stands for is looked up when someone connects to it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use crate::decision::Why;
use crate::dns::{self, Code, NotAQuery, Query};
use crate::gate::Gate;
use crate::host::HostName;
use crate::ledger::Subject;
use crate::pipe::within;

const V4_BASE: u32 = Ipv4Addr::new(198, 18, 0, 1).to_bits();
/// The last address of 198.18.0.0/15, which is never given out.
const V4_LAST: u32 = Ipv4Addr::new(198, 19, 255, 255).to_bits();
/// A unique local prefix of this program's own.
const V6_BASE: u128 = Ipv6Addr::new(0xfd77, 0x6172, 0x7261, 0x6e74, 0, 0, 0, 1).to_bits();

/// The names that were given synthetic addresses.
pub(crate) struct Names {
    table: Mutex<Table>,
    max_names: usize,
}

#[derive(Default)]
struct Table {
    names: Vec<HostName>,
    numbers: HashMap<HostName, u32>,
}

/// What an address inside the run stands for.
pub(crate) enum Meaning {
    Name(HostName),
    Unknown,
    Literal,
}

/// Whether questions for IPv6 addresses are answered with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Families {
    V4,
    Both,
}

/// Answers questions for one proxy.
pub(crate) struct Stub {
    pub(crate) names: Names,
    families: Families,
    asked: AtomicU64,
}

impl Names {
    pub(crate) fn new(max_names: usize) -> Self {
        let most = usize::try_from(V4_LAST - V4_BASE).unwrap_or(usize::MAX);
        Self { table: Mutex::new(Table::default()), max_names: max_names.min(most) }
    }

    /// Returns what an address stands for.
    pub(crate) fn meaning(&self, address: IpAddr) -> Meaning {
        let number = match address {
            IpAddr::V4(v4)
                if v4.octets().starts_with(&[198, 18]) || v4.octets().starts_with(&[198, 19]) =>
            {
                v4.to_bits().checked_sub(V4_BASE)
            }
            IpAddr::V6(v6) if v6.to_bits() >> 64 == V6_BASE >> 64 => {
                v6.to_bits().checked_sub(V6_BASE).and_then(|number| u32::try_from(number).ok())
            }
            IpAddr::V4(_) | IpAddr::V6(_) => return Meaning::Literal,
        };
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let index = number.and_then(|number| usize::try_from(number).ok());
        let name = index.and_then(|index| table.names.get(index));
        name.map_or(Meaning::Unknown, |name| Meaning::Name(name.clone()))
    }

    /// Returns the number of a name, giving it one if there is room.
    fn number(&self, name: &HostName) -> Option<u32> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = table.numbers.get(name) {
            return Some(*number);
        }
        if table.names.len() >= self.max_names {
            return None;
        }
        let number = u32::try_from(table.names.len()).ok()?;
        table.names.push(name.clone());
        table.numbers.insert(name.clone(), number);
        Some(number)
    }
}

impl Stub {
    pub(crate) fn new(max_names: usize, families: Families) -> Self {
        Self { names: Names::new(max_names), families, asked: AtomicU64::new(0) }
    }

    /// Returns the reply to one message; nothing for one that deserves none.
    pub(crate) fn reply(&self, gate: &Gate, message: &[u8]) -> Option<Vec<u8>> {
        let query = match dns::parse_query(message) {
            Ok(query) => query,
            Err(NotAQuery(id)) => return id.map(|id| dns::reply_error(id, Code::FormatError)),
        };
        let refuse = |why: Why, code: Code| {
            let subject = Subject { host: query.shown.clone(), port: 53, asked_address: None };
            drop(gate.record_subject(&subject, why));
            Some(dns::reply(&query, code, None))
        };
        if self.asked.fetch_add(1, Ordering::Relaxed) >= gate.options.max_dns_queries {
            return refuse(Why::TooMany, Code::Refused);
        }
        let Ok(name) = &query.name else { return refuse(Why::MalformedHost, Code::NameError) };
        if !gate.rules.knows(name) {
            return refuse(Why::NotListed, Code::NameError);
        }
        if !query.is_internet {
            return Some(dns::reply(&query, Code::NotImplemented, None));
        }
        self.answer(&query, name).or_else(|| refuse(Why::TooMany, Code::ServerFailure))
    }

    fn answer(&self, query: &Query, name: &HostName) -> Option<Vec<u8>> {
        let number = self.names.number(name)?;
        let address: IpAddr = match (query.kind, self.families) {
            (dns::A, _) => Ipv4Addr::from_bits(V4_BASE.checked_add(number)?).into(),
            (dns::AAAA, Families::Both) => {
                Ipv6Addr::from_bits(V6_BASE.checked_add(u128::from(number))?).into()
            }
            // The name exists, without such an address.
            (dns::AAAA, Families::V4) => return Some(dns::reply(query, Code::NoError, None)),
            _ => return Some(dns::reply(query, Code::Refused, None)),
        };
        Some(dns::reply(query, Code::NoError, Some(address)))
    }
}

/// Answers datagrams until the socket fails.
pub(crate) async fn serve_udp(gate: &Gate, stub: &Stub, socket: &UdpSocket) {
    let mut buffer = vec![0; 1232];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            // An unreachable asker shows up here; the next datagram is as good as any.
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let reply = buffer.get(..length).and_then(|message| stub.reply(gate, message));
        if let Some(reply) = reply {
            // An asker that does not read loses its answer, as with any datagram.
            drop(socket.try_send_to(&reply, from));
        }
    }
}

/// Answers the questions of one connection.
pub(crate) async fn serve_tcp(
    gate: &Gate,
    stub: &Stub,
    client: &mut TcpStream,
) -> std::io::Result<()> {
    loop {
        let message = within(gate.options.head_timeout, async {
            let length = client.read_u16().await?;
            let mut message = vec![0; usize::from(length.min(1232))];
            client.read_exact(&mut message).await?;
            Ok(message)
        });
        let Some(reply) = stub.reply(gate, &message.await?) else { return Ok(()) };
        let length = u16::try_from(reply.len()).map_err(std::io::Error::other)?;
        let framed = [&length.to_be_bytes()[..], &reply].concat();
        within(gate.options.head_timeout, client.write_all(&framed)).await?;
    }
}
