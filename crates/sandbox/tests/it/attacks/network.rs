//! Attacks on the network around the proxy: every way out but the listeners.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use warrant_sandbox::WorkspaceAccess;

use crate::attacks::scene::{Scene, Verdict, next_number};

crate::attacks::attacks!("network around the proxy":
    direct_tcp_reaches_nobody Always,
    direct_udp_reaches_nobody Always,
    ipv6_reaches_nobody Perhaps,
    icmp_is_refused Always,
    host_loopback_is_not_reachable Always,
    metadata_address_is_not_reachable Perhaps,
    own_dns_query_reaches_nobody Always,
    unix_socket_by_path_is_not_reachable Always,
    abstract_unix_socket_is_not_reachable Always,
);

/// A server of the host that says so to whoever connects.
struct Server {
    port: u16,
    hit: std::sync::mpsc::Receiver<()>,
}

fn serve(address: &str) -> Option<Server> {
    let listener = TcpListener::bind(address).ok()?;
    let port = listener.local_addr().unwrap().port();
    let (tell, hit) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(b"BROKEN host server\n");
            let _ = tell.send(());
        }
    });
    Some(Server { port, hit })
}

impl Server {
    fn verdict(&self, said: bool) -> Verdict {
        let was_hit = self.hit.recv_timeout(Duration::from_millis(100)).is_ok();
        Verdict::broken_if(said || was_hit, "a server of the host was reached")
    }
}

fn connect(family: u8, address: &str, port: u16) -> String {
    let (pack, family) = match family {
        4 => ("pack_sockaddr_in", "AF_INET"),
        _ => ("pack_sockaddr_in6", "AF_INET6"),
    };
    format!(
        "use Socket qw(:all); socket(my $s, {family}, SOCK_STREAM, 0) or exit;\n\
         $SIG{{ALRM}} = sub {{ exit }}; alarm 3;\n\
         connect($s, {pack}({port}, inet_pton({family}, '{address}'))) or exit; my $l = <$s>; print $l;"
    )
}

/// Returns an address of this machine that is not loopback, or loopback if it has none.
fn own_address() -> String {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    match socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr()) {
        Ok(address) => address.ip().to_string(),
        Err(_) => "127.0.0.1".to_owned(),
    }
}

fn direct_tcp_reaches_nobody(scene: &Scene) -> Verdict {
    let server = serve("0.0.0.0:0").unwrap();
    let played = scene.perl(&connect(4, &own_address(), server.port));
    server.verdict(played.said("BROKEN"))
}

fn host_loopback_is_not_reachable(scene: &Scene) -> Verdict {
    let server = serve("127.0.0.1:0").unwrap();
    let played = scene.perl(&connect(4, "127.0.0.1", server.port));
    server.verdict(played.said("BROKEN"))
}

fn ipv6_reaches_nobody(scene: &Scene) -> Verdict {
    let Some(server) = serve("[::1]:0") else { return Verdict::Held };
    let played = scene.perl(&connect(6, "::1", server.port));
    server.verdict(played.said("BROKEN"))
}

fn metadata_address_is_not_reachable(scene: &Scene) -> Verdict {
    let program = "use Socket; socket(my $s, AF_INET, SOCK_STREAM, 0); $SIG{ALRM} = sub { exit }; alarm 3;\n\
         connect($s, pack_sockaddr_in(80, inet_aton('169.254.169.254'))) or exit;\n\
         syswrite($s, \"GET /latest/meta-data/ HTTP/1.0\\r\\nHost: 169.254.169.254\\r\\n\\r\\n\"); my $l = <$s>;\n\
         print \"BROKEN $l\" if $l =~ / 200 /;";
    scene.perl(program).by_own_word()
}

fn direct_udp_reaches_nobody(scene: &Scene) -> Verdict {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let port = socket.local_addr().unwrap().port();
    for address in [own_address(), "127.0.0.1".to_owned()] {
        scene.perl(&format!(
            "use Socket; socket(my $s, AF_INET, SOCK_DGRAM, 0); send($s, 'x', 0, pack_sockaddr_in({port}, inet_aton('{address}')));"
        ));
    }
    Verdict::broken_if(socket.recv(&mut [0; 8]).is_ok(), "a datagram left")
}

fn own_dns_query_reaches_nobody(scene: &Scene) -> Verdict {
    // A name server of the host on an unusual port stands for any server the program might ask.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let port = socket.local_addr().unwrap().port();
    scene.perl(&format!(
        "use Socket; socket(my $s, AF_INET, SOCK_DGRAM, 0);\n\
         my $q = pack('nnnnnn', 7, 256, 1, 0, 0, 0) . \"\\6secret\\4test\\0\" . pack('nn', 1, 1);\n\
         send($s, $q, 0, pack_sockaddr_in({port}, inet_aton('127.0.0.1')));"
    ));
    Verdict::broken_if(socket.recv(&mut [0; 512]).is_ok(), "a query left")
}

fn icmp_is_refused(scene: &Scene) -> Verdict {
    let program = "my $r = syscall(41, 2, 3, 1); print \"BROKEN raw\\n\" if $r >= 0;\n\
         my $d = syscall(41, 2, 2, 1); if ($d >= 0) { use Socket; open(my $s, '+<&=', $d);\n\
         my $e = pack('CCnnn', 8, 0, 0xf7ff, 0, 0); print \"BROKEN ping\\n\" if send($s, $e, 0, pack_sockaddr_in(0, inet_aton('127.0.0.1'))); }";
    scene.perl(program).by_own_word()
}

fn unix_socket_by_path_is_not_reachable(scene: &Scene) -> Verdict {
    let path = scene.workspace().join("docker.sock");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let program = "use Socket; for my $f (1) { socket(my $s, AF_UNIX, SOCK_STREAM, 0) or exit;\n\
         print \"BROKEN\\n\" if connect($s, pack_sockaddr_un('docker.sock')); }";
    std::fs::write(scene.workspace().join("attack.pl"), program).unwrap();
    let mut invocation = scene.script("perl attack.pl");
    invocation.files.access = WorkspaceAccess::Direct;
    scene.play_invocation(invocation).by_own_word()
}

fn abstract_unix_socket_is_not_reachable(scene: &Scene) -> Verdict {
    use std::os::linux::net::SocketAddrExt;
    let name = format!("warrant-attack-{}", next_number());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    let program = format!(
        "use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or exit;\n\
         print \"BROKEN\\n\" if connect($s, pack('Sa*', 1, \"\\0{name}\"));"
    );
    let verdict = scene.perl(&program).by_own_word();
    drop(listener);
    verdict
}

#[test]
fn servers_of_these_tests_can_be_reached_from_the_host() {
    let server = serve("127.0.0.1:0").unwrap();
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("BROKEN"));
}
