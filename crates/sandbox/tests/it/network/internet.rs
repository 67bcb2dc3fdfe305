//! An internet of our own: a host that runs sandboxes, and an outside with servers that take notes.
//!
//! Namespaces lose their names at once and live only as long as this process: nothing is left behind.
//! Needs root and `ip`.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use warrant_egress::{Options, Resolver};

/// A public address with a web server.
pub(crate) const PUBLIC: &str = "93.184.216.34";
const NAMESERVER: &str = "8.8.8.8:53";
const ADDRESSES: &[&str] =
    &["93.184.216.34/32", "8.8.8.8/32", "10.0.0.5/32", "169.254.169.254/32", "2606:4700::1111/128"];
const NAMES: &[(&str, &str)] = &[
    ("public.test", PUBLIC),
    ("private.test", "10.0.0.5"),
    ("metadata.test", "169.254.169.254"),
    ("loopback.test", "127.0.0.1"),
];

/// What the outside noticed.
pub(crate) struct Internet {
    host: File,
    outside: File,
    notes: Arc<Mutex<Vec<String>>>,
}

/// Returns the one internet of this process.
pub(crate) fn internet() -> &'static Internet {
    static INTERNET: OnceLock<Internet> = OnceLock::new();
    INTERNET.get_or_init(build)
}

impl Internet {
    /// Does something on the host.
    pub(crate) fn on_host<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.host, work)
    }

    /// Does something outside.
    pub(crate) fn outside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.outside, work)
    }

    /// Returns whether any note contains this text.
    pub(crate) fn noticed(&self, text: &str) -> bool {
        self.notes.lock().unwrap().iter().any(|note| note.contains(text))
    }
}

/// Options of a proxy that uses this internet's names.
pub(crate) fn options() -> Options {
    let mut options = Options::bounded();
    options.resolver = Resolver::Nameserver(NAMESERVER.parse().unwrap());
    options
}

fn inside<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn build() -> Internet {
    let (host, outside) = (fresh(), fresh());
    ip(&format!("-n {host} link add up0 type veth peer name down0 netns {outside}"));
    for (name, link, four, six) in [
        (&host, "up0", "93.184.216.99/24", "2606:4700:99::99/64"),
        (&outside, "down0", "93.184.216.1/24", "2606:4700:99::1/64"),
    ] {
        ip(&format!("-n {name} addr add {four} dev {link}"));
        ip(&format!("-n {name} -6 addr add {six} dev {link} nodad"));
        ip(&format!("-n {name} link set {link} up"));
    }
    ip(&format!("-n {host} route add default via 93.184.216.1"));
    ip(&format!("-n {host} -6 route add default via 2606:4700:99::1"));
    ip(&format!("-n {host} route add {PUBLIC}/32 via 93.184.216.1"));
    for address in ADDRESSES {
        ip(&format!("-n {outside} addr add {address} dev lo"));
    }
    let notes: Arc<Mutex<Vec<String>>> = Arc::default();
    let (host, outside) = (open(&host), open(&outside));
    inside(&outside, || {
        for port in [80, 443, 8080] {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
            let notes = Arc::clone(&notes);
            std::thread::spawn(move || serve_web(&listener, &notes));
        }
        for (address, is_nameserver) in [(NAMESERVER, true), ("93.184.216.34:9999", false)] {
            let socket = UdpSocket::bind(address).unwrap();
            let notes = Arc::clone(&notes);
            std::thread::spawn(move || serve_datagrams(&socket, &notes, is_nameserver));
        }
    });
    Internet { host, outside, notes }
}

fn fresh() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("s{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    ip(&format!("netns add {name}"));
    ip(&format!("-n {name} link set lo up"));
    name
}

fn open(name: &str) -> File {
    let file = File::open(format!("/var/run/netns/{name}")).unwrap();
    ip(&format!("netns del {name}"));
    file
}

/// Notes where each connection arrived and what it said first, and answers.
fn serve_web(listener: &TcpListener, notes: &Arc<Mutex<Vec<String>>>) {
    for mut stream in listener.incoming().map_while(Result::ok) {
        let notes = Arc::clone(notes);
        std::thread::spawn(move || note_and_answer(&mut stream, &notes));
    }
}

fn note_and_answer(stream: &mut TcpStream, notes: &Mutex<Vec<String>>) {
    let at = stream.local_addr().unwrap();
    let at = SocketAddr::new(at.ip().to_canonical(), at.port());
    notes.lock().unwrap().push(format!("tcp {at}\n"));
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut bytes = [0; 4096];
    let count = stream.read(&mut bytes).unwrap_or(0);
    notes.lock().unwrap().push(format!("said {}", String::from_utf8_lossy(&bytes[..count])));
    drop(
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\npublic"),
    );
}

fn serve_datagrams(socket: &UdpSocket, notes: &Mutex<Vec<String>>, is_nameserver: bool) {
    let mut buffer = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let message = &buffer[..length];
        if !is_nameserver {
            notes.lock().unwrap().push(format!("udp {}", String::from_utf8_lossy(message)));
            continue;
        }
        let end = 12 + message[12..].iter().position(|byte| *byte == 0).unwrap();
        let name: String =
            message[13..end].iter().map(|b| if *b < 32 { '.' } else { char::from(*b) }).collect();
        notes.lock().unwrap().push(format!("asked {name}"));
        let kind = message[end + 2];
        let mut reply = message[..end + 5].to_vec();
        reply[2] |= 0x80;
        let found = NAMES.iter().find(|(known, _)| *known == name);
        if let (1, Some((_, address))) = (kind, found) {
            let IpAddr::V4(address) = address.parse().unwrap() else { panic!() };
            reply[7] = 1;
            reply.extend_from_slice(&[0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
            reply.extend_from_slice(&address.octets());
        }
        socket.send_to(&reply, from).unwrap();
    }
}

#[track_caller]
fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("`ip` is needed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
