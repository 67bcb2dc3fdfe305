//! Witnesses: sockets that see what nobody inside the jail takes, so that it can be told.
//!
//! A connection to a port without a listener is refused by the kernel, and a datagram dropped. A
//! witness gets a copy of the first packet of each, behind a filter that lets nothing else through.
//! It is a raw socket of the internet family: closing a packet socket would wait for the machine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, sock_filter};

use crate::network::set_option;
use crate::seccomp::{branch, statement};
use crate::spec::{Listener, ListenerKind};
use crate::sys::{self, Errno, Fd};

const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_WORD: u16 = 0x20;
const LOAD_HEADER_LENGTH: u16 = 0xb1;
const LOAD_BYTE_AFTER_HEADER: u16 = 0x50;
const LOAD_HALF_AFTER_HEADER: u16 = 0x48;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
/// The network header, where the filter begins at the transport header.
const NETWORK: u32 = 0xfff0_0000;
/// Bytes of a packet that are kept: both headers with most options.
const KEPT: u32 = 128;
const SYN_AND_ACK: u32 = 0x12;
const SYN: u32 = 0x02;
const NAMES: u32 = 53;

/// What begins a connection to somebody else, over IPv4.
static TCP4: [sock_filter; 10] = [
    statement(LOAD_BYTE, 16),
    branch(IF_EQUAL, 127, 7, 0),
    statement(LOAD_HALF, 6),
    branch(IF_ANY_BIT, 0x1fff, 5, 0),
    statement(LOAD_HEADER_LENGTH, 0),
    statement(LOAD_BYTE_AFTER_HEADER, 13),
    statement(AND, SYN_AND_ACK),
    branch(IF_EQUAL, SYN, 0, 1),
    statement(RETURN, KEPT),
    statement(RETURN, 0),
];

/// A datagram to somebody else that asks for no name, over IPv4.
static UDP4: [sock_filter; 9] = [
    statement(LOAD_BYTE, 16),
    branch(IF_EQUAL, 127, 6, 0),
    statement(LOAD_HALF, 6),
    branch(IF_ANY_BIT, 0x1fff, 4, 0),
    statement(LOAD_HEADER_LENGTH, 0),
    statement(LOAD_HALF_AFTER_HEADER, 2),
    branch(IF_EQUAL, NAMES, 1, 0),
    statement(RETURN, KEPT),
    statement(RETURN, 0),
];

/// What begins a connection to somebody else, over IPv6.
static TCP6: [sock_filter; 13] = [
    statement(LOAD_WORD, NETWORK + 24),
    branch(IF_EQUAL, 0, 0, 6),
    statement(LOAD_WORD, NETWORK + 28),
    branch(IF_EQUAL, 0, 0, 4),
    statement(LOAD_WORD, NETWORK + 32),
    branch(IF_EQUAL, 0, 0, 2),
    statement(LOAD_WORD, NETWORK + 36),
    branch(IF_EQUAL, 1, 4, 0),
    statement(LOAD_BYTE, 13),
    statement(AND, SYN_AND_ACK),
    branch(IF_EQUAL, SYN, 0, 1),
    statement(RETURN, KEPT),
    statement(RETURN, 0),
];

/// A datagram to somebody else that asks for no name, over IPv6.
static UDP6: [sock_filter; 12] = [
    statement(LOAD_WORD, NETWORK + 24),
    branch(IF_EQUAL, 0, 0, 6),
    statement(LOAD_WORD, NETWORK + 28),
    branch(IF_EQUAL, 0, 0, 4),
    statement(LOAD_WORD, NETWORK + 32),
    branch(IF_EQUAL, 0, 0, 2),
    statement(LOAD_WORD, NETWORK + 36),
    branch(IF_EQUAL, 1, 3, 0),
    statement(LOAD_HALF, 2),
    branch(IF_EQUAL, NAMES, 1, 0),
    statement(RETURN, KEPT),
    statement(RETURN, 0),
];

/// Opens a witness; nothing but the filtered packets is ever in it.
pub(crate) fn open(listener: &Listener) -> sys::Result<Fd> {
    let (protocol, filter): (c_int, &'static [sock_filter]) =
        match (is_udp(listener), listener.address) {
            (false, SocketAddr::V4(_)) => (libc::IPPROTO_TCP, &TCP4),
            (true, SocketAddr::V4(_)) => (libc::IPPROTO_UDP, &UDP4),
            (false, SocketAddr::V6(_)) => (libc::IPPROTO_TCP, &TCP6),
            (true, SocketAddr::V6(_)) => (libc::IPPROTO_UDP, &UDP6),
        };
    let family = match listener.address {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let args = [family as usize, kind as usize, protocol as usize, 0, 0];
    let fd = sys::number_call(libc::SYS_socket, args)? as Fd;
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let args = [
        fd as usize,
        libc::SOL_SOCKET as usize,
        libc::SO_ATTACH_FILTER as usize,
        &raw const program as usize,
        size_of::<libc::sock_fprog>(),
        0,
    ];
    // SAFETY: the program and its static filter outlive the call, which copies them.
    unsafe { sys::call(libc::SYS_setsockopt, args) }?;
    if family == libc::AF_INET6 {
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)?;
    }
    Ok(fd)
}

fn is_udp(listener: &Listener) -> bool {
    listener.kind == ListenerKind::UdpWitness
}

/// Returns where the next packet of a witness was sent to; nothing when there is none.
///
/// # Errors
/// The system's error.
pub fn next_destination(
    witness: BorrowedFd<'_>,
    listener: &Listener,
) -> io::Result<Option<SocketAddr>> {
    let mut bytes = [0_u8; KEPT as usize];
    loop {
        let (length, address) = match receive(witness.as_raw_fd(), &mut bytes) {
            Ok(received) => received,
            Err(Errno(libc::EAGAIN)) => return Ok(None),
            Err(Errno(libc::EINTR)) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let packet = bytes.get(..length).unwrap_or_default();
        let destination = match listener.address {
            SocketAddr::V4(_) => destination_v4(packet),
            SocketAddr::V6(_) => {
                address.zip(port(packet)).map(|(to, port)| SocketAddr::new(IpAddr::V6(to), port))
            }
        };
        // What cannot be read is passed over.
        if destination.is_some() {
            return Ok(destination);
        }
    }
}

fn destination_v4(packet: &[u8]) -> Option<SocketAddr> {
    let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    let header = usize::from(packet.first()? & 0x0f) * 4;
    let port = port(packet.get(header..)?)?;
    Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(to)), port))
}

fn port(transport: &[u8]) -> Option<u16> {
    transport.get(2..4)?.try_into().ok().map(u16::from_be_bytes)
}

fn receive(socket: Fd, bytes: &mut [u8]) -> sys::Result<(usize, Option<Ipv6Addr>)> {
    let mut address = None;
    let length = sys::receive(socket, bytes, 0, |level, kind, content| {
        if (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) {
            // An `in6_pktinfo` begins with the address.
            address = content.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets));
        }
    })?;
    Ok((length, address))
}
