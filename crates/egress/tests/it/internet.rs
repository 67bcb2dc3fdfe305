//! An internet of our own: network namespaces with public-looking addresses, DNS, HTTP and TLS.
//!
//! ```text
//! run (every address is local) ── sockets handed to ── host ── veth ── outside
//!                                                       the proxy       all servers
//! ```
//!
//! Namespaces lose their names at once and live only as long as this process: nothing is left behind.
//! Needs root and `ip`.

use std::collections::HashMap;
use std::fs::File;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use warrant_egress::{Options, Resolver, Rules};

use crate::fetch::{answer_tls, tls_server};
use crate::origin::{Conversation, World, echo_requests};

/// The public address most names here have.
pub(crate) const PUBLIC: &str = "93.184.216.34";
/// The name server of this internet.
const NAMESERVER: &str = "8.8.8.8:53";
/// A port on which nothing is noted, to prove that an address can be reached at all.
const QUIET_PORT: u16 = 81;

/// What the names of this internet resolve to.
const NAMES: &[(&str, &[&str])] = &[
    ("public.test", &[PUBLIC]),
    ("six.test", &["2606:4700::1111"]),
    ("loopback.test", &["127.0.0.1"]),
    ("loopback6.test", &["::1"]),
    ("zero.test", &["0.0.0.0"]),
    ("private.test", &["10.0.0.5"]),
    ("metadata.test", &["169.254.169.254"]),
    ("carrier.test", &["100.64.0.5"]),
    ("mapped.test", &["::ffff:169.254.169.254"]),
    ("compatible.test", &["::169.254.169.254"]),
    ("nat64.test", &["64:ff9b::a9fe:a9fe"]),
    ("nat64-local.test", &["64:ff9b:1::a9fe:a9fe"]),
    ("sixtofour.test", &["2002:a9fe:a9fe::1"]),
    ("teredo.test", &["2001:0:a9fe:a9fe::1"]),
    ("isatap.test", &["2606:4700::5efe:a9fe:a9fe"]),
    ("sitelocal.test", &["fec0::5"]),
    ("unique.test", &["fd00:ec2::254"]),
    ("listed.test", &["fd00:ec2::22"]),
    ("mixed.test", &[PUBLIC, "10.0.0.5"]),
    ("own.test", &["93.184.216.99"]),
];

/// Addresses the outside answers at.
const ADDRESSES: &[&str] = &[
    "93.184.216.34/32",
    "8.8.8.8/32",
    "10.0.0.5/32",
    "169.254.169.254/32",
    "100.64.0.5/32",
    "2606:4700::1111/128",
    "64:ff9b::a9fe:a9fe/128",
    "64:ff9b:1::a9fe:a9fe/128",
    "2002:a9fe:a9fe::1/128",
    "2001:0:a9fe:a9fe::1/128",
    "2606:4700::5efe:a9fe:a9fe/128",
    "fec0::5/128",
    "fd00:ec2::254/128",
    "fd00:ec2::22/128",
];

/// A network namespace without a name.
pub(crate) struct Namespace(pub(crate) File);

/// The whole internet.
pub(crate) struct Internet {
    host: Namespace,
    /// Names asked of the name server.
    asked: Arc<Mutex<Vec<String>>>,
    /// Addresses at which connections arrived.
    reached: Arc<Mutex<Vec<SocketAddr>>>,
    /// The certificate every TLS server here shows.
    pub(crate) root: Vec<u8>,
}

/// Returns the one internet of this process.
pub(crate) fn internet() -> &'static Internet {
    static INTERNET: OnceLock<Internet> = OnceLock::new();
    INTERNET.get_or_init(build)
}

impl Internet {
    /// Does something on the host, from where the proxy dials.
    pub(crate) fn on_host<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.host.inside(work)
    }

    /// Starts a proxy on the host that uses this internet's names.
    pub(crate) fn proxy(&self, rules: &[&str], transparent: Vec<TcpListener>) -> World {
        let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
        World::start(Rules::parse(&rules).unwrap(), options(), transparent)
    }

    pub(crate) fn was_asked(&self, name: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| *asked == name).count()
    }

    pub(crate) fn was_reached(&self, address: &str) -> bool {
        let address: IpAddr = address.parse().unwrap();
        self.reached.lock().unwrap().iter().any(|reached| reached.ip().to_canonical() == address)
    }
}

/// Options that use this internet's name server.
pub(crate) fn options() -> Options {
    let mut options = Options::bounded();
    options.resolver = Resolver::Nameserver(NAMESERVER.parse().unwrap());
    options
}

/// Proves that an address can be reached from here, so that a refusal is the proxy's own.
#[track_caller]
pub(crate) fn assert_reachable(address: &str) {
    let address = SocketAddr::new(address.parse().unwrap(), QUIET_PORT);
    let connected = TcpStream::connect_timeout(&address, Duration::from_secs(10));
    assert!(connected.is_ok(), "{address} cannot be reached even directly: {connected:?}");
}

impl Namespace {
    /// Makes a namespace and takes its name away again.
    pub(crate) fn new(setup: impl FnOnce(&str)) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("w{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        ip(&format!("netns add {name}"));
        ip(&format!("-n {name} link set lo up"));
        setup(&name);
        let file = File::open(format!("/var/run/netns/{name}")).unwrap();
        ip(&format!("netns del {name}"));
        Self(file)
    }

    /// Makes one like those of a run: no way out, and every address is local.
    pub(crate) fn of_a_run() -> Self {
        Self::new(|name| {
            ip(&format!("-n {name} route add local 0.0.0.0/0 dev lo"));
            ip(&format!("-n {name} -6 route add local ::/0 dev lo"));
        })
    }

    /// Does something on a thread inside.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
                    .unwrap();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

fn build() -> Internet {
    let mut host = None;
    let outside = Namespace::new(|outside| {
        host = Some(Namespace::new(|host| join(host, outside)));
        for address in ADDRESSES {
            ip(&format!("-n {outside} addr add {address} dev lo"));
        }
    });
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let reached: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
    let (tls, root) = tls_server("public.test");
    outside.inside(|| {
        let everywhere = |port: u16| TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
        let tls = move |stream| {
            answer_tls(&tls, stream, b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret")
        };
        accept(everywhere(80), Arc::clone(&reached), echo_requests);
        accept(everywhere(443), Arc::clone(&reached), tls);
        accept(everywhere(22), Arc::clone(&reached), |stream| {
            Conversation(stream).send(b"SSH-2.0-x\r\n")
        });
        accept(everywhere(QUIET_PORT), Arc::default(), drop);
        let socket = UdpSocket::bind(NAMESERVER).unwrap();
        let asked = Arc::clone(&asked);
        std::thread::spawn(move || answer_names(&socket, &asked));
    });
    Internet { host: host.unwrap(), asked, reached, root }
}

/// Joins the host to the outside, with a default route there.
fn join(host: &str, outside: &str) {
    ip(&format!("-n {host} link add up0 type veth peer name down0 netns {outside}"));
    for (namespace, link, four, six) in [
        (host, "up0", "93.184.216.99/24", "2606:4700:99::99/64"),
        (outside, "down0", "93.184.216.1/24", "2606:4700:99::1/64"),
    ] {
        ip(&format!("-n {namespace} addr add {four} dev {link}"));
        ip(&format!("-n {namespace} -6 addr add {six} dev {link} nodad"));
        ip(&format!("-n {namespace} link set {link} up"));
    }
    ip(&format!("-n {host} route add default via 93.184.216.1"));
    ip(&format!("-n {host} -6 route add default via 2606:4700:99::1"));
    // On the same wire as the host, but answered by the outside's loopback.
    ip(&format!("-n {host} route add 93.184.216.34/32 via 93.184.216.1"));
}

fn accept(
    listener: TcpListener,
    reached: Arc<Mutex<Vec<SocketAddr>>>,
    serve: impl Fn(TcpStream) + Send + Sync + 'static,
) {
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            reached.lock().unwrap().push(stream.local_addr().unwrap());
            let serve = Arc::clone(&serve);
            std::thread::spawn(move || serve(stream));
        }
    });
}

/// Answers from the table; `rebind.test` is public once and the metadata address ever after.
fn answer_names(socket: &UdpSocket, asked: &Mutex<Vec<String>>) {
    let names: HashMap<&str, &[&str]> = NAMES.iter().copied().collect();
    let mut buffer = [0; 512];
    let mut rebound = 0;
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let question = &buffer[12..length];
        let end = question.iter().position(|byte| *byte == 0).unwrap();
        let kind = u16::from_be_bytes([question[end + 1], question[end + 2]]);
        let name = read_name(&question[..end]);
        let addresses: Vec<IpAddr> = match name.as_str() {
            "rebind.test" if kind == 1 => {
                rebound += 1;
                vec![if rebound == 1 { PUBLIC } else { "169.254.169.254" }.parse().unwrap()]
            }
            _ => names
                .get(name.as_str())
                .into_iter()
                .flat_map(|list| list.iter())
                .map(|a| a.parse().unwrap())
                .collect(),
        };
        if kind == 1 {
            asked.lock().unwrap().push(name);
        }
        let mut reply = buffer[..12 + end + 5].to_vec();
        reply[2] |= 0x80;
        reply[11] = 0;
        for address in addresses {
            let (of, value) = match address {
                IpAddr::V4(v4) => (1_u16, v4.octets().to_vec()),
                IpAddr::V6(v6) => (28, v6.octets().to_vec()),
            };
            if of == kind {
                reply[7] += 1;
                reply.extend_from_slice(&[0xc0, 0x0c]);
                reply.extend_from_slice(&kind.to_be_bytes());
                reply.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, u8::try_from(value.len()).unwrap()]);
                reply.extend_from_slice(&value);
            }
        }
        socket.send_to(&reply, from).unwrap();
    }
}

fn read_name(mut labels: &[u8]) -> String {
    let mut name = Vec::new();
    while let Some((length, rest)) = labels.split_first() {
        let (label, rest) = rest.split_at(usize::from(*length));
        name.push(String::from_utf8_lossy(label).into_owned());
        labels = rest;
    }
    name.join(".")
}

#[track_caller]
fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("`ip` is needed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
