//! The jail's own network: loopback up, every address local, and the listeners handed out.
//!
//! With one route `local 0.0.0.0/0 dev lo` (and `::/0`) every destination is this machine, so a
//! program that ignores the proxy variables still lands on our listeners, and `getsockname` of
//! the accepted socket says where it wanted to go. There is no other interface.

use std::net::SocketAddr;

use crate::spec::{Listener, ListenerKind};
use crate::sys::{self, Errno, Fd};
use crate::witness;

const RTM_NEWLINK: u16 = 16;
const RTM_NEWROUTE: u16 = 24;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const LOOPBACK_INDEX: u32 = 1;

#[repr(C)]
struct Header {
    length: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
}

#[repr(C)]
struct LinkUp {
    header: Header,
    family: u8,
    padding: u8,
    device: u16,
    index: u32,
    flags: u32,
    change: u32,
}

#[repr(C)]
struct LocalRoute {
    header: Header,
    family: u8,
    destination_length: u8,
    source_length: u8,
    tos: u8,
    table: u8,
    protocol: u8,
    scope: u8,
    kind: u8,
    flags: u32,
    attribute_length: u16,
    attribute: u16,
    output: u32,
}

/// Moves this process into a network of its own, where nothing is yet.
pub(crate) fn leave_the_hosts() -> sys::Result<()> {
    sys::number_call(libc::SYS_unshare, [libc::CLONE_NEWNET as usize, 0, 0, 0, 0]).map(drop)
}

fn header(length: usize, kind: u16, flags: u16) -> Header {
    let flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    Header { length: length as u32, kind, flags, sequence: 1, port: 0 }
}

fn local_route(family: i32, scope: u8) -> LocalRoute {
    LocalRoute {
        header: header(size_of::<LocalRoute>(), RTM_NEWROUTE, NLM_F_CREATE),
        family: family as u8,
        destination_length: 0,
        source_length: 0,
        tos: 0,
        table: 255,
        protocol: 3,
        scope,
        kind: 2,
        flags: 0,
        attribute_length: 8,
        attribute: 4,
        output: LOOPBACK_INDEX,
    }
}

/// Brings up the loopback interface and makes every address local.
///
/// A host without IPv6 is fine: then there is no IPv6 inside either.
pub(crate) fn bring_up() -> sys::Result<()> {
    let kind = (libc::SOCK_RAW | libc::SOCK_CLOEXEC) as usize;
    let socket = sys::number_call(libc::SYS_socket, [libc::AF_NETLINK as usize, kind, 0, 0, 0])?;
    let socket = socket as Fd;
    let up = LinkUp {
        header: header(size_of::<LinkUp>(), RTM_NEWLINK, 0),
        family: 0,
        padding: 0,
        device: 0,
        index: LOOPBACK_INDEX,
        flags: libc::IFF_UP as u32,
        change: libc::IFF_UP as u32,
    };
    request(socket, &up)?;
    request(socket, &local_route(libc::AF_INET, 254))?;
    let _ = request(socket, &local_route(libc::AF_INET6, 0));
    sys::close(socket);
    Ok(())
}

fn request<T>(socket: Fd, message: &T) -> sys::Result<()> {
    // SAFETY: every message type here is made of integers without padding between them.
    let bytes = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(message).cast::<u8>(), size_of::<T>())
    };
    sys::write_all(socket, bytes)?;
    let mut answer = [0_u8; 256];
    let length = sys::read(socket, &mut answer)?;
    let answer = answer.get(..length).unwrap_or_default();
    let kind = answer.get(4..6).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes);
    let code = answer.get(16..20).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, code) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(Errno(-code)),
        _ => Err(Errno(libc::EPROTO)),
    }
}

/// Opens one listener.
pub(crate) fn listen(listener: &Listener) -> sys::Result<Fd> {
    let kind = match listener.kind {
        ListenerKind::Tcp => libc::SOCK_STREAM,
        ListenerKind::Udp => libc::SOCK_DGRAM,
        ListenerKind::TcpWitness | ListenerKind::UdpWitness => return witness::open(listener),
    };
    let family = match listener.address {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let fd = open(family, kind)?;
    match begin(fd, listener) {
        Ok(()) => Ok(fd),
        Err(errno) => {
            // Pid 1 goes on when it is asked for a port that is taken.
            sys::close(fd);
            Err(errno)
        }
    }
}

fn begin(fd: Fd, listener: &Listener) -> sys::Result<()> {
    if listener.address.is_ipv6() {
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)?;
    }
    if listener.kind == ListenerKind::Tcp {
        set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    }
    bind(fd, &listener.address)?;
    if listener.kind == ListenerKind::Tcp {
        sys::number_call(libc::SYS_listen, [fd as usize, 128, 0, 0, 0])?;
    }
    Ok(())
}

/// Opens a socket that nobody uses yet.
pub(crate) fn open(family: i32, kind: i32) -> sys::Result<Fd> {
    let kind = (kind | libc::SOCK_CLOEXEC) as usize;
    Ok(sys::number_call(libc::SYS_socket, [family as usize, kind, 0, 0, 0])? as Fd)
}

pub(crate) fn set_option(fd: Fd, level: i32, option: i32) -> sys::Result<()> {
    let one: i32 = 1;
    let args = [
        fd as usize,
        level as usize,
        option as usize,
        &raw const one as usize,
        size_of::<i32>(),
        0,
    ];
    // SAFETY: the value is an integer that outlives the call.
    unsafe { sys::call(libc::SYS_setsockopt, args) }.map(drop)
}

fn bind(fd: Fd, address: &SocketAddr) -> sys::Result<()> {
    match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            bind_raw(fd, &raw const raw as usize, size_of_val(&raw))
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: 0,
            };
            bind_raw(fd, &raw const raw as usize, size_of_val(&raw))
        }
    }
}

fn bind_raw(fd: Fd, address: usize, length: usize) -> sys::Result<()> {
    // SAFETY: both callers pass a live socket address and its size.
    unsafe { sys::call(libc::SYS_bind, [fd as usize, address, length, 0, 0, 0]) }.map(drop)
}
