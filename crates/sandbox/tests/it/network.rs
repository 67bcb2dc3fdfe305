//! Network attacks from inside the namespace tier, around the proxy and through it.
//!
//! Each test is named after its attack, starts a real program inside, and looks from inside and
//! from outside.

pub(crate) mod internet;

use std::os::linux::net::SocketAddrExt;

use warrant_protocol::Outcome;
use warrant_sandbox::{Namespace, Network, Process, WorkspaceAccess};

use crate::bench::{run, shell, workspace};
use internet::{PUBLIC, internet, options};

/// What a program inside saw, and what was decided about it.
struct Seen {
    text: String,
    decisions: Vec<String>,
}

/// Runs a Python program inside, with these rules, on a host of our own internet.
fn attack(rules: &[&str], program: &str) -> Seen {
    internet().on_host(|| {
        let workspace = workspace();
        std::fs::write(workspace.path().join("attack.py"), program).unwrap();
        let mut invocation = shell(workspace.path(), "exec python3 attack.py 2>&1");
        invocation.network = Network::Allow(rules.iter().map(|rule| (*rule).to_owned()).collect());
        let (report, memory) = run(&Namespace::with_egress(options()), invocation);
        let report = report.unwrap();
        assert_eq!(report.outcome, Outcome::Exited { code: 0 }, "{}", memory.stdout());
        let decisions = memory.decisions.lock().unwrap();
        let line =
            |d: &warrant_sandbox::NetworkDecision| format!("{}:{} {}", d.host, d.port, d.why);
        Seen { text: memory.stdout(), decisions: decisions.iter().map(line).collect() }
    })
}

/// Python that tries something and prints what came of it.
fn trying(body: &str) -> String {
    let body = body.replace('\n', "\n    ");
    format!(
        "import socket, ssl, urllib.request, os\ntry:\n    {body}\nexcept Exception as e:\n    print('failed', type(e).__name__, e)\n"
    )
}

#[test]
fn an_allowed_name_is_reached_with_and_without_the_proxy_variables() {
    let program = "print(urllib.request.urlopen('http://public.test/').read())\n\
        for name in list(os.environ):\n    if 'proxy' in name.lower(): del os.environ[name]\n\
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))\n\
        print(opener.open('http://public.test/direct').read())";
    let seen = attack(&["public.test"], &trying(program));
    assert_eq!(seen.text, "b'public'\nb'public'\n", "{:?}", seen.decisions);
    assert!(internet().noticed("GET /direct HTTP/1.1"));
    assert_eq!(seen.decisions[0], "public.test:80 allowed");
}

/// The same attempts without a wall are noticed outside: the notes of the others mean something.
#[test]
fn where_no_wall_stands_everything_leaves() {
    let program = format!(
        "import socket\n\
         for address in (('{PUBLIC}', 8080), ('2606:4700::1111', 8080), ('169.254.169.254', 8080)):\n    \
             s = socket.create_connection(address, 5)\n    s.sendall(b'GET /open-tcp HTTP/1.1\\r\\n\\r\\n')\n    s.recv(100)\n\
         s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.settimeout(5)\n\
         s.sendto(b'open-udp', ('{PUBLIC}', 9999))\n\
         s.sendto(b'\\x12\\x34\\x01\\0\\0\\x01\\0\\0\\0\\0\\0\\0\\x09open-name\\x04test\\0\\0\\x01\\0\\x01', ('8.8.8.8', 53))\n\
         s.recv(512)\n"
    );
    let ran = internet()
        .on_host(|| std::process::Command::new("python3").args(["-c", &program]).output());
    let ran = ran.unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    for note in [
        "open-tcp",
        "open-udp",
        "asked open-name.test",
        "tcp [2606:4700::1111]:8080",
        "tcp 169.254.169.254:8080",
    ] {
        while !internet().noticed(note) {
            assert!(std::time::Instant::now() < deadline, "{note} was not noticed");
            std::thread::yield_now();
        }
    }
}

#[test]
fn direct_tcp_does_not_leave() {
    let seen = attack(
        &["public.test"],
        &trying(&format!(
            "s = socket.create_connection(('{PUBLIC}', 8080), 5)\ns.sendall(b'GET /leak-tcp HTTP/1.1\\r\\n\\r\\n')\nprint(s.recv(100))"
        )),
    );
    assert!(seen.text.starts_with("failed"), "{}", seen.text);
    let seen = attack(
        &["public.test"],
        &trying(&format!(
            "s = socket.create_connection(('{PUBLIC}', 80), 5)\ns.sendall(b'GET /leak-tcp HTTP/1.1\\r\\nHost: public.test\\r\\n\\r\\n')\nprint('got', s.recv(100))"
        )),
    );
    assert!(seen.text.starts_with("failed") || seen.text == "got b''\n", "{}", seen.text);
    assert_eq!(seen.decisions, [format!("{PUBLIC}:80 not-listed")]);
    assert!(!internet().noticed("leak-tcp"));
}

#[test]
fn direct_udp_does_not_leave() {
    let seen = attack(
        &["public.test"],
        &trying(&format!(
            "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.settimeout(1)\ns.sendto(b'leak-udp', ('{PUBLIC}', 9999))\nprint(s.recv(10))"
        )),
    );
    assert!(seen.text.starts_with("failed"), "{}", seen.text);
    assert!(!internet().noticed("leak-udp"));
}

#[test]
fn direct_ipv6_does_not_leave() {
    let seen = attack(
        &["public.test"],
        &trying(
            "s = socket.create_connection(('2606:4700::1111', 80), 5)\ns.sendall(b'GET /leak-six HTTP/1.1\\r\\n\\r\\n')\nprint('got', s.recv(100))",
        ),
    );
    assert!(seen.text.starts_with("failed") || seen.text == "got b''\n", "{}", seen.text);
    assert!(!internet().noticed("leak-six"));
    assert!(!internet().noticed("tcp [2606:4700::1111]:80\n"));
}

#[test]
fn icmp_does_not_leave() {
    let echoes = || {
        let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
        text.lines().filter(|line| line.starts_with("Icmp:")).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = internet().outside(echoes);
    let seen = attack(
        &["public.test"],
        &trying(&format!(
            "for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):\n    try:\n        s = socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP)\n        s.sendto(b'\\x08\\x00\\xf7\\xff\\0\\0\\0\\0', ('{PUBLIC}', 0))\n        print('sent')\n    except OSError as e:\n        print('refused')"
        )),
    );
    assert!(!seen.text.contains("failed"), "{}", seen.text);
    assert!(seen.text.starts_with("refused\n"), "a raw socket was given: {}", seen.text);
    assert_eq!(internet().outside(echoes), before);
}

#[test]
fn host_loopback_is_not_reached() {
    let listener = internet().on_host(|| std::net::TcpListener::bind("127.0.0.1:8080").unwrap());
    listener.set_nonblocking(true).unwrap();
    let program = "for host in ('127.0.0.1', 'localhost', '127.0.0.2', '0.0.0.0', '93.184.216.99'):\n    try:\n        socket.create_connection((host, 8080), 2)\n        print('connected', host)\n    except OSError:\n        print('refused')";
    let seen = attack(&["public.test", "loopback.test"], &trying(program));
    assert!(!seen.text.contains("connected"), "{}", seen.text);
    // And by name, through the proxy.
    let seen = attack(
        &["loopback.test:8080"],
        &trying("print(urllib.request.urlopen('http://loopback.test:8080/').read())"),
    );
    assert!(seen.text.contains("403"), "{}", seen.text);
    assert_eq!(seen.decisions, ["loopback.test:8080 private-address"]);
    assert!(listener.accept().is_err(), "the host's own service was reached");
}

#[test]
fn metadata_address_is_not_reached() {
    let program = "for url in ('http://169.254.169.254/jailed-latest', 'http://metadata.test/jailed-latest', 'http://2852039166/jailed-latest', 'http://0xa9fea9fe/jailed-latest'):\n    for handlers in ([], [urllib.request.ProxyHandler({})]):\n        try:\n            print('got', urllib.request.build_opener(*handlers).open(url, timeout=5).read())\n        except Exception as e:\n            print('refused')";
    let seen = attack(&["public.test", "metadata.test"], &trying(program));
    assert_eq!(seen.text, "refused\n".repeat(8), "{:?}", seen.decisions);
    assert!(!internet().noticed("jailed-latest"));
}

#[test]
fn own_dns_query_carries_nothing_outside() {
    let program = "import struct\nq = b'\\x12\\x34\\x01\\0\\0\\x01\\0\\0\\0\\0\\0\\0\\x09leak-name\\x04test\\0\\0\\x01\\0\\x01'\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.settimeout(2)\n\
        try:\n    s.sendto(q, ('8.8.8.8', 53))\n    r = s.recv(512)\n    print('code', r[3] & 15)\nexcept OSError:\n    print('code none')\n\
        try:\n    socket.gethostbyname('leak-name.test')\n    print('found')\nexcept OSError:\n    print('unknown')\n\
        try:\n    urllib.request.urlopen('http://leak-name.test/')\n    print('found')\nexcept OSError:\n    print('refused')";
    let seen = attack(&["public.test"], &trying(program));
    assert!(seen.text.ends_with("unknown\nrefused\n"), "{}", seen.text);
    assert!(seen.text.starts_with("code none") || seen.text.starts_with("code 3"), "{}", seen.text);
    assert!(!internet().noticed("leak-name"));
    assert!(
        seen.decisions.contains(&"leak-name.test:53 not-listed".to_owned()),
        "{:?}",
        seen.decisions
    );
}

#[test]
fn unix_sockets_of_the_host_are_not_reached() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("service");
    let by_path = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let name = format!("service{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let abstracted =
        internet().on_host(|| std::os::unix::net::UnixListener::bind_addr(&address).unwrap());
    for listener in [&by_path, &abstracted] {
        listener.set_nonblocking(true).unwrap();
    }
    let seen = attack(
        &["public.test"],
        &trying(&format!(
            "for address in ('{}', '\\0{name}'):\n    try:\n        s = socket.socket(socket.AF_UNIX)\n        s.connect(address)\n        print('connected')\n    except OSError:\n        print('refused')",
            path.display()
        )),
    );
    assert_eq!(seen.text, "refused\nrefused\n");
    assert!(by_path.accept().is_err() && abstracted.accept().is_err());
}

#[test]
fn a_tunnel_to_an_allowed_host_cannot_name_another() {
    let program = "c = ssl.create_default_context()\nc.check_hostname = False\nc.verify_mode = ssl.CERT_NONE\n\
        for via in (('127.0.0.1', 3128), ('public.test', 443)):\n    s = socket.create_connection(via, 5)\n    \
        if via[1] == 3128:\n        s.sendall(b'CONNECT public.test:443 HTTP/1.1\\r\\n\\r\\n')\n        assert b' 200 ' in s.recv(1000)\n    \
        try:\n        c.wrap_socket(s, server_hostname='evil-name.test')\n        print('spoke')\n    except OSError:\n        print('refused')";
    let seen = attack(&["public.test"], &trying(program));
    assert_eq!(seen.text, "refused\nrefused\n", "{:?}", seen.decisions);
    assert_eq!(seen.decisions, ["public.test:443 sni-mismatch", "public.test:443 sni-mismatch"]);
    assert!(!internet().noticed("evil-name"));
}

#[test]
fn an_allowed_name_resolving_to_a_private_address_is_not_reached() {
    let program = "for handlers in ([], [urllib.request.ProxyHandler({})]):\n    try:\n        print('got', urllib.request.build_opener(*handlers).open('http://private.test/jailed-private', timeout=5).read())\n    except Exception as e:\n        print('refused')";
    let seen = attack(&["private.test"], &trying(program));
    assert_eq!(seen.text, "refused\nrefused\n");
    assert!(
        seen.decisions.iter().all(|line| line == "private.test:80 private-address"),
        "{:?}",
        seen.decisions
    );
    assert!(!internet().noticed("jailed-private"));
}

#[test]
fn without_rules_there_is_no_network_at_all() {
    let program = "for address in (('127.0.0.1', 3128), ('93.184.216.34', 80), ('93.184.216.34', 443), ('8.8.8.8', 53)):\n    try:\n        s = socket.create_connection(address, 2)\n        s.sendall(b'CONNECT public.test:443 HTTP/1.1\\r\\n\\r\\n')\n        r = s.recv(100)\n        print('closed' if r == b'' or b'403' in r else r)\n    except OSError:\n        print('closed')";
    let seen = attack(&[], &trying(program));
    assert_eq!(seen.text, "closed\n".repeat(4));
    assert!(seen.decisions.iter().all(|line| !line.ends_with(" allowed")), "{:?}", seen.decisions);
}

/// The process tier's proxy listens where every user of the machine can connect.
#[test]
fn other_users_cannot_use_the_proxy_of_the_process_tier() {
    let program = "import urllib.parse\nurl = urllib.parse.urlsplit(os.environ['http_proxy'])\n\
        for proxy in (f'http://{url.hostname}:{url.port}', f'http://warrant:guess@{url.hostname}:{url.port}', url.geturl()):\n    \
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({'http': proxy}))\n    \
            try:\n        print(opener.open('http://public.test/', timeout=5).read())\n    \
            except Exception as e:\n        print(e.code)";
    let seen = internet().on_host(|| {
        let workspace = workspace();
        std::fs::write(workspace.path().join("attack.py"), trying(program)).unwrap();
        let mut invocation = shell(workspace.path(), "exec python3 attack.py 2>&1");
        invocation.network = Network::Allow(vec!["public.test".to_owned()]);
        invocation.files.access = WorkspaceAccess::Direct;
        let (report, memory) = run(&Process::with_egress(options()), invocation);
        assert_eq!(report.unwrap().outcome, Outcome::Exited { code: 0 });
        let allowed = memory.decisions.lock().unwrap().iter().map(|d| d.count).sum::<u64>();
        (memory.stdout(), allowed)
    });
    assert_eq!(seen, ("407\n407\nb'public'\n".to_owned(), 1));
}

/// In the process tier the proxy is what sees an attempt, so it is there even when nothing is
/// allowed, and loopback goes through it.
#[test]
fn process_tier_records_attempts_of_a_contract_that_allows_nothing() {
    let program = "for url in ('http://public.test/', 'http://127.0.0.1:9/'):\n    \
            try:\n        print(urllib.request.urlopen(url, timeout=5).read())\n    \
            except Exception as e:\n        print(getattr(e, 'code', type(e).__name__))";
    let (text, decisions) = internet().on_host(|| {
        let workspace = workspace();
        std::fs::write(workspace.path().join("attack.py"), trying(program)).unwrap();
        let mut invocation = shell(workspace.path(), "exec python3 attack.py 2>&1");
        invocation.network = Network::Allow(Vec::new());
        invocation.files.access = WorkspaceAccess::Direct;
        let (report, memory) = run(&Process::with_egress(options()), invocation);
        assert_eq!(report.unwrap().outcome, Outcome::Exited { code: 0 });
        let decisions = memory.decisions.lock().unwrap();
        let hosts: Vec<String> = decisions.iter().map(|d| d.host.to_string()).collect();
        (memory.stdout(), hosts)
    });
    assert_eq!(text, "403\n403\n");
    assert_eq!(decisions, ["public.test", "127.0.0.1"]);
}
