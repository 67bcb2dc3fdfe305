//! Programs that know no proxy: every address is local to them, and the DNS stub names the synthetic ones.

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use warrant_egress::{Decision, Listeners, Proxy, Rules, serve};

use crate::internet::{Namespace, internet, options};
use crate::origin::Conversation;
use crate::tunnel::client_hello;

/// A run: its namespace, and the proxy that serves it from the host.
struct Run {
    namespace: Namespace,
    proxy: Option<Proxy>,
    seen: Arc<Mutex<Vec<Decision>>>,
}

impl Run {
    fn new(rules: &[&str]) -> Self {
        let namespace = Namespace::of_a_run();
        let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
        let rules = Rules::parse(&rules).unwrap();
        let ports = rules.ports();
        let listeners = namespace.inside(|| {
            let four = ports.iter().map(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)));
            let six = ports.iter().map(|port| bind_v6(*port));
            Listeners {
                explicit: Some(TcpListener::bind((Ipv4Addr::LOCALHOST, 3128)).unwrap()),
                dns_udp: Some(UdpSocket::bind((Ipv4Addr::LOCALHOST, 53)).unwrap()),
                dns_tcp: Some(TcpListener::bind((Ipv4Addr::LOCALHOST, 53)).unwrap()),
                transparent: four.chain(six).collect::<Result<_, _>>().unwrap(),
            }
        });
        let seen: Arc<Mutex<Vec<Decision>>> = Arc::default();
        let sink = Arc::clone(&seen);
        let reporter = Arc::new(move |decision| sink.lock().unwrap().push(decision));
        let proxy = internet().on_host(|| serve(listeners, rules, options(), reporter)).unwrap();
        Self { namespace, proxy: Some(proxy), seen }
    }

    /// Runs a real program inside, whose resolver is the stub.
    fn program(&self, program: &str, arguments: &[&str]) -> (bool, String) {
        let folder = tempfile::tempdir().unwrap();
        let resolver = folder.path().join("resolv.conf");
        std::fs::write(&resolver, "nameserver 127.0.0.1\n").unwrap();
        let enter =
            format!("--net=/proc/{}/fd/{}", std::process::id(), self.namespace.0.as_raw_fd());
        let script = r#"mount --bind "$1" /etc/resolv.conf && shift && exec "$@""#;
        let output = Command::new("nsenter")
            .args([&enter, "unshare", "--mount", "sh", "-c", script, "sh"])
            .arg(&resolver)
            .arg(program)
            .args(arguments)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    fn told(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        let line = |d: &Decision| {
            let asked = d.asked_address.map_or("-".to_owned(), |address| address.to_string());
            format!("{}:{} {} {asked}", d.host, d.port, d.why.as_str())
        };
        seen.iter().map(line).collect()
    }

    fn close(mut self) -> u64 {
        self.proxy.take().unwrap().shutdown().bytes_out
    }
}

/// A listener for IPv6 only, beside the one for IPv4.
fn bind_v6(port: u16) -> std::io::Result<TcpListener> {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};
    let socket = socket(AddressFamily::INET6, SocketType::STREAM, None)?;
    sockopt::set_ipv6_v6only(&socket, true)?;
    bind(&socket, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
    listen(&socket, 128)?;
    Ok(socket.into())
}

/// Asks the stub for a name's IPv4 address the way a libc does.
fn look_up(name: &str) -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut message = vec![9, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap());
        message.extend_from_slice(label.as_bytes());
    }
    message.extend_from_slice(&[0, 0, 1, 0, 1]);
    socket.send_to(&message, "127.0.0.1:53").unwrap();
    let mut reply = [0; 512];
    let length = socket.recv(&mut reply).unwrap();
    let octets: [u8; 4] = reply[length - 4..length].try_into().unwrap();
    (reply[7] == 1).then(|| octets.into())
}

fn say(address: SocketAddr, bytes: &[u8]) -> String {
    let stream = match TcpStream::connect_timeout(&address, Duration::from_secs(10)) {
        Ok(stream) => stream,
        // Refused before the handshake was noticed here.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return String::new(),
        Err(error) => panic!("{address}: {error}"),
    };
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut conversation = Conversation(stream);
    conversation.send(bytes);
    conversation.end()
}

#[test]
fn a_program_that_knows_no_proxy_reaches_an_allowed_name() {
    let run = Run::new(&["public.test"]);
    let script =
        "import urllib.request as u; print(u.urlopen('http://public.test/x').read().decode())";
    let (ok, text) = run.program("python3", &["-c", script]);
    assert!(ok && text.contains("GET /x HTTP/1.1"), "{text}");
    assert!(text.contains("Host: public.test"), "{text}");
    assert_eq!(run.told().len(), 1);
    assert!(run.told()[0].starts_with("public.test:80 allowed "), "{:?}", run.told());
    assert!(run.close() > 0);
}

#[test]
fn tls_of_a_program_that_knows_no_proxy_is_end_to_end() {
    let run = Run::new(&["public.test"]);
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.der");
    std::fs::write(&root, &internet().root).unwrap();
    let script = "import ssl,sys,urllib.request as u\n\
        c=ssl.create_default_context(cadata=open(sys.argv[1],'rb').read())\n\
        print(u.urlopen('https://public.test/',context=c).read().decode())";
    let (ok, text) = run.program("python3", &["-c", script, root.to_str().unwrap()]);
    assert!(ok && text.contains("secret"), "{text}");
}

#[test]
fn direct_tcp_to_an_address_nobody_listed_is_refused() {
    let run = Run::new(&["public.test"]);
    run.namespace.inside(|| {
        for address in [
            "93.184.216.34:80",
            "169.254.169.254:80",
            "10.0.0.5:80",
            "127.0.0.1:80",
            "198.18.0.77:80",
        ] {
            assert_eq!(
                say(address.parse().unwrap(), b"GET / HTTP/1.1\r\nHost: public.test\r\n\r\n"),
                "",
                "{address}"
            );
        }
        assert_eq!(
            say("[2606:4700::1111]:443".parse().unwrap(), &client_hello(Some("public.test"))),
            ""
        );
        assert_eq!(
            say("[::ffff:169.254.169.254]:80".parse().unwrap(), b"GET / HTTP/1.1\r\n\r\n"),
            ""
        );
        assert!(
            TcpStream::connect_timeout(
                &"93.184.216.34:8080".parse().unwrap(),
                Duration::from_secs(5)
            )
            .is_err()
        );
    });
    let told = run.told();
    assert_eq!(told[0], "93.184.216.34:80 not-listed 93.184.216.34:80");
    assert_eq!(told[4], "198.18.0.77:80 unknown-address 198.18.0.77:80");
    assert_eq!(told[5], "[2606:4700::1111]:443 not-listed [2606:4700::1111]:443");
    assert_eq!(run.close(), 0);
    assert!(!internet().was_reached("169.254.169.254"));
}

#[test]
fn a_synthetic_address_cannot_be_used_for_another_name() {
    let run = Run::new(&["public.test", "six.test"]);
    run.namespace.inside(|| {
        let address = look_up("public.test").unwrap();
        assert_eq!(address, Ipv4Addr::new(198, 18, 0, 1));
        assert_eq!(look_up("other.test"), None);
        let tls = SocketAddr::from((address, 443));
        assert_eq!(say(tls, &client_hello(Some("other.test"))), "");
        assert_eq!(say(tls, &client_hello(Some("six.test"))), "", "allowed too, but not this name");
        let http = SocketAddr::from((address, 80));
        assert!(
            say(http, b"GET / HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n")
                .starts_with("HTTP/1.1 403")
        );
        assert!(
            say(http, b"GET / HTTP/1.1\r\nHost: public.test\r\nConnection: close\r\n\r\n")
                .starts_with("HTTP/1.1 200")
        );
    });
    let told = run.told();
    assert_eq!(told[0], "other.test:53 not-listed -");
    assert_eq!(told[1], "public.test:443 sni-mismatch 198.18.0.1:443");
    assert_eq!(told.last().unwrap(), "public.test:80 allowed 198.18.0.1:80");
}

#[test]
fn an_own_dns_query_to_a_public_server_gets_no_answer() {
    let run = Run::new(&["public.test"]);
    run.namespace.inside(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        // Whether the send fails or the answer never comes, nothing arrives outside.
        drop(socket.send_to(
            b"\x01\x01\x01\0\0\x01\0\0\0\0\0\0\x06leaked\x04test\0\0\x01\0\x01",
            "8.8.8.8:53",
        ));
        assert!(socket.recv(&mut [0; 512]).is_err());
    });
    assert_eq!(internet().was_asked("leaked.test"), 0);
}

#[test]
fn ipv6_by_synthetic_address_works() {
    let run = Run::new(&["six.test"]);
    let script = "import socket;s=socket.create_connection(socket.getaddrinfo('six.test',80,socket.AF_INET6)[0][4][:2]);\
        s.sendall(b'GET / HTTP/1.1\\r\\nHost: six.test\\r\\nConnection: close\\r\\n\\r\\n');print(s.recv(4096).decode())";
    let (ok, text) = run.program("python3", &["-c", script]);
    assert!(ok && text.starts_with("HTTP/1.1 200"), "{text}");
    assert_eq!(run.told(), ["six.test:80 allowed [fd77:6172:7261:6e74::1]:80"]);
}

#[test]
fn a_raw_port_is_reached_by_name() {
    let run = Run::new(&["public.test:22+raw"]);
    run.namespace.inside(|| {
        let address = look_up("public.test").unwrap();
        let mut stream = TcpStream::connect((address, 22)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        drop(stream.write_all(b"SSH-2.0-client\r\n"));
        assert_eq!(Conversation(stream).end(), "SSH-2.0-x\r\n");
    });
}
