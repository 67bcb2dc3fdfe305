//! An internet of our own: a host that runs sandboxes, and an outside with servers that take notes.
//!
//! Namespaces lose their names at once and live only as long as this process: nothing is left behind.
//! Needs root and `ip`. A copy of this binary that was started on its host shares it, and asks the
//! outside for its notes.

use std::collections::HashSet;
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
/// Where the outside tells its notes.
const NOTES: &str = "93.184.216.1:7777";
/// Set for a process that was started on the host of somebody else's internet.
pub(crate) const SHARED: &str = "WARRANT_TEST_SHARED_INTERNET";
const ADDRESSES: &[&str] = &[
    "93.184.216.34/32",
    "93.184.216.35/32",
    "8.8.8.8/32",
    "10.0.0.5/32",
    "169.254.169.254/32",
    "2606:4700::1111/128",
    "64:ff9b::a9fe:a9fe/128",
    "2002:a9fe:a9fe::1/128",
    "fec0::5/128",
];
const NAMES: &[(&str, &str)] = &[
    ("public.test", PUBLIC),
    ("other.test", "93.184.216.35"),
    ("bad.public.test", "93.184.216.35"),
    ("nat64.test", "64:ff9b::a9fe:a9fe"),
    ("sixtofour.test", "2002:a9fe:a9fe::1"),
    ("sitelocal.test", "fec0::5"),
    ("private.test", "10.0.0.5"),
    ("metadata.test", "169.254.169.254"),
    ("loopback.test", "127.0.0.1"),
];

/// What the outside noticed.
pub(crate) enum Internet {
    /// Built by this process.
    Own { host: File, outside: File, notes: Arc<Mutex<Vec<String>>> },
    /// Built by whoever started this process on its host.
    Shared,
}

/// Returns the one internet of this process.
pub(crate) fn internet() -> &'static Internet {
    static INTERNET: OnceLock<Internet> = OnceLock::new();
    INTERNET.get_or_init(|| match std::env::var_os(SHARED) {
        Some(_) => Internet::Shared,
        None => build(),
    })
}

impl Internet {
    /// Does something on the host.
    pub(crate) fn on_host<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match self {
            Self::Own { host, .. } => inside(host, work),
            Self::Shared => work(),
        }
    }

    /// Does something outside.
    pub(crate) fn outside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match self {
            Self::Own { outside, .. } => inside(outside, work),
            Self::Shared => panic!("the outside is not ours"),
        }
    }

    /// Returns whether any note contains this text.
    pub(crate) fn noticed(&self, text: &str) -> bool {
        match self {
            Self::Own { notes, .. } => notes.lock().unwrap().iter().any(|note| note.contains(text)),
            Self::Shared => {
                let mut notes = Vec::new();
                TcpStream::connect(NOTES).unwrap().read_to_end(&mut notes).unwrap();
                String::from_utf8_lossy(&notes).contains(text)
            }
        }
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
    for address in [PUBLIC, "93.184.216.35"] {
        ip(&format!("-n {host} route add {address}/32 via 93.184.216.1"));
    }
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
        let told = TcpListener::bind(NOTES).unwrap();
        let mine = Arc::clone(&notes);
        std::thread::spawn(move || tell_notes(&told, &mine));
        for (address, is_nameserver) in [(NAMESERVER, true), ("93.184.216.34:9999", false)] {
            let socket = UdpSocket::bind(address).unwrap();
            let notes = Arc::clone(&notes);
            std::thread::spawn(move || serve_datagrams(&socket, &notes, is_nameserver));
        }
    });
    Internet::Own { host, outside, notes }
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
    let said = String::from_utf8_lossy(&bytes[..count]).into_owned();
    notes.lock().unwrap().push(format!("{at} said {said}"));
    let answer = match said.strip_prefix("GET /redirect/").and_then(|rest| rest.split_once(' ')) {
        Some((to, _)) => {
            format!(
                "HTTP/1.1 302 Found\r\nLocation: http://{to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
        }
        None => {
            "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\npublic".to_owned()
        }
    };
    drop(stream.write_all(answer.as_bytes()));
}

fn tell_notes(listener: &TcpListener, notes: &Mutex<Vec<String>>) {
    for mut stream in listener.incoming().map_while(Result::ok) {
        let text = notes.lock().unwrap().concat();
        drop(stream.write_all(text.as_bytes()));
    }
}

fn serve_datagrams(socket: &UdpSocket, notes: &Mutex<Vec<String>>, is_nameserver: bool) {
    let mut buffer = [0; 512];
    let mut rebound = HashSet::new();
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
        let known = NAMES.iter().find(|(known, _)| *known == name).map(|(_, address)| *address);
        // Public when first asked for, and never again.
        let address = match known {
            None if name.starts_with("rebind") && kind == 1 => {
                Some(if rebound.insert(name) { PUBLIC } else { "169.254.169.254" })
            }
            known => known,
        };
        let octets = match (kind, address.map(|address| address.parse().unwrap())) {
            (1, Some(IpAddr::V4(address))) => address.octets().to_vec(),
            (28, Some(IpAddr::V6(address))) => address.octets().to_vec(),
            _ => Vec::new(),
        };
        if !octets.is_empty() {
            reply[7] = 1;
            reply.extend_from_slice(&[0xc0, 0x0c, 0, kind, 0, 1, 0, 0, 0, 0, 0]);
            reply.push(octets.len() as u8);
            reply.extend_from_slice(&octets);
        }
        socket.send_to(&reply, from).unwrap();
    }
}

#[track_caller]
fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("`ip` is needed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
