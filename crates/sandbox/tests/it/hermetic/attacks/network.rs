//! Reaching what nobody allowed, directly or through what is allowed.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use warrant_egress::{Options, Resolver};
use warrant_protocol::{LimitKind, Outcome};
use warrant_sandbox::hermetic::Hermetic;
use warrant_sandbox::{Command, Invocation, Network, Shell};

use crate::hermetic::kit::{Bench, Ran, is_warm, pool, run};

/// A server on loopback that answers by path and remembers who asked.
struct Server {
    address: SocketAddr,
    hits: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let hits = Arc::new(AtomicUsize::new(0));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (counting, keeping) = (Arc::clone(&hits), Arc::clone(&requests));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                counting.fetch_add(1, Ordering::SeqCst);
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                keeping.lock().unwrap().push(line.trim().to_owned());
                let mut header = String::new();
                while reader.read_line(&mut header).is_ok_and(|n| n > 2) {
                    header.clear();
                }
                let path = line.split(' ').nth(1).unwrap_or("/").to_owned();
                let reply = match path.as_str() {
                    "/slow" => {
                        std::thread::sleep(Duration::from_secs(30));
                        continue;
                    }
                    "/away" => "HTTP/1.1 302 Found\r\nLocation: http://other.test/\r\n\
                                Content-Length: 0\r\nConnection: close\r\n\r\n"
                        .to_owned(),
                    _ => format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{path}\n",
                        path.len() + 1
                    ),
                };
                // A client that hung up does not matter.
                let _ = stream.write_all(reply.as_bytes());
            }
        });
        Self { address, hits, requests }
    }

    fn port(&self) -> u16 {
        self.address.port()
    }

    fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }
}

fn fetch(rules: &[String], script: &str) -> Ran {
    let mut bench = Bench::new();
    bench.invocation.network = Network::Allow(rules.to_vec());
    bench.invocation.limits.wall_ms = Some(5000);
    let names = HashMap::from([
        ("good.test".to_owned(), vec![Ipv4Addr::LOCALHOST.into()]),
        ("other.test".to_owned(), vec![Ipv4Addr::LOCALHOST.into()]),
    ]);
    let options = Options { resolver: Resolver::Static(names), ..Options::bounded() };
    let backend = Hermetic::with_egress(pool(), options);
    let backend = if is_warm() { backend.keeping_warm() } else { backend };
    let command = Command::Shell { shell: Shell::Bash, script: script.into() };
    run(&backend, Invocation { command, ..bench.invocation.clone() })
}

fn open_to(server: &Server) -> Vec<String> {
    vec![format!("good.test:{}", server.port()), format!("127.0.0.1:{}", server.port())]
}

#[test]
fn without_an_allowed_host_curl_does_not_exist() {
    let bench = Bench::new();
    for command in ["curl", "wget", "http", "nc", "ssh", "telnet"] {
        let ran = bench.run(&format!("{command} http://example.com/; echo $?; type {command}"));
        assert!(ran.stdout.starts_with("127\n"), "{command}: {}", ran.stdout);
    }
    let ran = bench.run("exec 3<>/dev/tcp/127.0.0.1/80; echo $?; echo x > /dev/udp/127.0.0.1/53");
    assert!(!ran.stdout.starts_with("0\n"), "{}", ran.stdout);
    assert!(ran.network.is_empty());
}

#[test]
fn an_allowed_host_is_reached_and_recorded() {
    let server = Server::start();
    let url = format!("http://good.test:{}/page", server.port());
    let ran = fetch(&open_to(&server), &format!("curl -s {url}; wget -q -O - {url}"));
    assert_eq!(ran.stdout, "/page\n/page\n", "{}", ran.stderr);
    let first = &ran.network[0];
    assert_eq!(
        (first.host.as_str(), first.port, first.allowed),
        ("good.test", server.port(), true)
    );
    assert_eq!(ran.network.iter().map(|d| d.count).sum::<u64>(), 2);
    assert!(ran.report.usage.net_in_bytes.unwrap() > 0);
    assert!(ran.report.usage.net_out_bytes.unwrap() > 0);
}

#[test]
fn a_host_that_is_not_listed_is_refused_recorded_and_never_contacted() {
    let server = Server::start();
    let rules = open_to(&server);
    let port = server.port();
    let urls = [
        format!("http://other.test:{port}/"),
        format!("http://good.test.other.test:{port}/"),
        format!("http://good.test@other.test:{port}/"),
        format!("http://other.test:{port}#@good.test/"),
        format!("http://localhost:{port}/"),
        format!("http://[::1]:{port}/"),
        format!("http://2130706433:{port}/"),
        format!("http://0x7f.1:{port}/"),
        format!("http://good%2etest.other.test:{port}/"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "file:///etc/passwd".to_owned(),
        "gopher://good.test/".to_owned(),
    ];
    for url in urls {
        let ran = fetch(&rules, &format!("curl -s --max-time 3 '{url}' && echo REACHED"));
        assert!(!ran.stdout.contains("REACHED"), "{url}: {}", ran.stdout);
        assert!(ran.network.iter().all(|d| !d.allowed), "{url}: {:?}", ran.network);
    }
    assert_eq!(server.hits(), 0);
    let ran = fetch(&rules, &format!("curl -s http://other.test:{port}/"));
    assert_eq!(ran.network[0].why, "not-listed");
}

#[test]
fn a_redirect_to_another_host_is_decided_again() {
    let server = Server::start();
    let url = format!("http://good.test:{}/away", server.port());
    let ran = fetch(&open_to(&server), &format!("curl -sL {url}; echo $?"));
    assert_ne!(ran.stdout, "0\n");
    assert!(ran.network.iter().any(|d| d.host == "other.test" && !d.allowed));
    assert_eq!(server.hits(), 1);
}

#[test]
fn an_allowed_name_that_resolves_to_a_private_address_is_refused() {
    let server = Server::start();
    let rules = [format!("good.test:{}", server.port())];
    let ran =
        fetch(&rules, &format!("curl -s http://good.test:{}/ && echo REACHED", server.port()));
    assert_eq!(ran.stdout, "");
    assert_eq!(ran.network[0].why, "private-address");
    assert_eq!(server.hits(), 0);
}

#[test]
fn methods_that_change_things_need_a_rule_that_names_them() {
    let server = Server::start();
    let url = format!("http://good.test:{}/form", server.port());
    let ran = fetch(
        &open_to(&server),
        &format!("curl -s -X POST -d a=b {url}; curl -s -X PUT -d x {url}"),
    );
    assert_eq!(server.hits(), 0, "{}", ran.stdout);
    let rules = [
        format!("good.test:{}+method=POST", server.port()),
        format!("127.0.0.1:{}", server.port()),
    ];
    let ran = fetch(&rules, &format!("curl -s -X POST -d a=b {url}"));
    assert_eq!(ran.stdout, "/form\n", "{}", ran.stderr);
    assert!(server.requests.lock().unwrap()[0].starts_with("POST /form"));
}

#[test]
fn a_slow_server_does_not_hold_the_run_beyond_its_deadline() {
    let server = Server::start();
    let mut bench = Bench::new();
    bench.invocation.network = Network::Allow(vec![format!("127.0.0.1:{}", server.port())]);
    bench.invocation.limits.wall_ms = Some(500);
    let ran = bench.run(&format!("curl -s http://127.0.0.1:{}/slow", server.port()));
    assert_eq!(ran.report.outcome, Outcome::Limited { limit: LimitKind::Wall });
    assert!(ran.took < Duration::from_millis(1500), "{:?}", ran.took);
}
