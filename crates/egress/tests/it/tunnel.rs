//! Tunnels: CONNECT and SOCKS, and what is said inside them.

use std::io::{Read, Write};

use crate::origin::{Conversation, Origin, World, allow};

/// A ClientHello for a name, made by a real TLS library.
pub(crate) fn client_hello(name: Option<&str>) -> Vec<u8> {
    use rustls::pki_types::ServerName;
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = match name {
        Some(name) => ServerName::try_from(name.to_owned()).unwrap(),
        // A client that connects to an address sends no name.
        None => ServerName::try_from("127.0.0.1").unwrap(),
    };
    let mut session = rustls::ClientConnection::new(std::sync::Arc::new(config), name).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    hello
}

/// A server that sends back whatever it gets.
pub(crate) fn mirror() -> Origin {
    Origin::new(|mut stream| {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
    })
}

fn world(origin: &Origin) -> World {
    World::new(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")])
}

#[test]
fn tls_for_the_right_name_passes_untouched() {
    let origin = mirror();
    let world = world(&origin);
    let mut tunnel = world.tunnel(&format!("A.test:{}", origin.port)).ok().unwrap();
    let hello = client_hello(Some("a.test"));
    tunnel.send(&hello);
    let mut back = vec![0; hello.len()];
    tunnel.0.read_exact(&mut back).unwrap();
    assert_eq!(back, hello);
    // A half-closed tunnel still brings the rest back.
    tunnel.send(b"more");
    tunnel.0.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(tunnel.end(), "more");
    let (seen, totals) = world.close();
    assert_eq!(totals.bytes_out, hello.len() as u64 + 4);
    assert_eq!(totals.bytes_in, hello.len() as u64 + 4);
    assert_eq!(seen[0].why.as_str(), "allowed");
    assert_eq!((seen[1].count, seen[1].bytes_in), (0, totals.bytes_in));
}

#[test]
fn connect_then_another_sni_is_refused() {
    let origin = mirror();
    let world = world(&origin);
    for name in [Some("b.test"), Some("x.a.test"), None] {
        let mut tunnel = world.tunnel(&format!("a.test:{}", origin.port)).ok().unwrap();
        tunnel.send(&client_hello(name));
        assert_eq!(tunnel.end(), "", "{name:?}");
    }
    let port = origin.port;
    let expected = [format!("a.test:{port} sni-mismatch 1"), format!("a.test:{port} no-sni 1")];
    assert_eq!(world.told(), expected);
    let (_, totals) = world.close();
    assert_eq!(totals.bytes_out, 0);
}

#[test]
fn a_hello_cut_into_single_bytes_cannot_hide_its_name() {
    let origin = mirror();
    let world = world(&origin);
    let hello = client_hello(Some("b.test"));
    // The same message in records of one byte each.
    let records: Vec<u8> = hello[5..].iter().flat_map(|byte| [22, 3, 1, 0, 1, *byte]).collect();
    let mut tunnel = world.tunnel(&format!("a.test:{}", origin.port)).ok().unwrap();
    tunnel.send(&records);
    assert_eq!(tunnel.end(), "");
    assert_eq!(world.told(), [format!("a.test:{} sni-mismatch 1", origin.port)]);
}

#[test]
fn connect_then_another_host_is_refused() {
    let origin = Origin::echo();
    let world = world(&origin);
    let authority = format!("a.test:{}", origin.port);
    let mut tunnel = world.tunnel(&authority).ok().unwrap();
    tunnel.send(b"GET / HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n");
    let reply = tunnel.end();
    assert!(reply.starts_with("HTTP/1.1 403"), "{reply}");
    // The right host first and another one after it, on the same tunnel.
    let mut tunnel = world.tunnel(&authority).ok().unwrap();
    tunnel.send(format!("GET / HTTP/1.1\r\nHost: {authority}\r\n\r\n").as_bytes());
    assert!(tunnel.head().starts_with("HTTP/1.1 200"));
    assert!(tunnel.head().starts_with("GET / HTTP/1.1"));
    tunnel.send(b"GET / HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n");
    assert!(tunnel.end().starts_with("HTTP/1.1 403"));
    let port = origin.port;
    let expected = [format!("a.test:{port} host-mismatch 1"), format!("a.test:{port} allowed 1")];
    assert_eq!(world.told(), expected);
}

#[test]
fn a_tunnel_of_unknown_bytes_needs_a_rule_that_says_raw() {
    let origin = mirror();
    let strict = world(&origin);
    for bytes in [
        &b"SSH-2.0-x\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x00\x00",
        b"\0\0",
    ] {
        let mut tunnel = strict.tunnel(&format!("a.test:{}", origin.port)).ok().unwrap();
        tunnel.send(bytes);
        let reply = tunnel.end();
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 400"), "{bytes:?} {reply}");
    }
    assert_eq!(strict.close().1.bytes_out, 0);
    let rules = [format!("a.test:{}+raw", origin.port), format!("127.0.0.1:{}", origin.port)];
    let raw = World::new(&rules, &[("a.test", "127.0.0.1")]);
    let mut tunnel = raw.tunnel(&format!("a.test:{}", origin.port)).ok().unwrap();
    tunnel.send(b"SSH-2.0-x\r\n");
    assert_eq!(tunnel.exactly(11), "SSH-2.0-x\r\n");
}

#[test]
fn a_server_that_speaks_first_works_with_raw() {
    let origin = Origin::new(|mut stream| drop(stream.write_all(b"220 hello\r\n")));
    let rules = [format!("a.test:{}+raw", origin.port), format!("127.0.0.1:{}", origin.port)];
    let world = World::new(&rules, &[("a.test", "127.0.0.1")]);
    let tunnel = world.tunnel(&format!("a.test:{}", origin.port)).ok().unwrap();
    assert_eq!(tunnel.end(), "220 hello\r\n");
}

#[test]
fn a_large_transfer_arrives_byte_for_byte() {
    let origin = mirror();
    let rules = [format!("a.test:{}+raw", origin.port), format!("127.0.0.1:{}", origin.port)];
    let world = World::new(&rules, &[("a.test", "127.0.0.1")]);
    let tunnel = world.tunnel(&format!("a.test:{}", origin.port)).ok().unwrap();
    let size = 8 * 1024 * 1024_usize;
    let bytes: Vec<u8> = (0..size).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut writer = tunnel.0.try_clone().unwrap();
    let sent = bytes.clone();
    let sending = std::thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    let mut reader = tunnel.0;
    reader.read_to_end(&mut back).unwrap();
    sending.join().unwrap();
    assert!(back == bytes, "{} of {size} bytes", back.len());
    let (_, totals) = world.close();
    assert_eq!((totals.bytes_in, totals.bytes_out), (size as u64, size as u64));
}

#[test]
fn other_ports_of_an_allowed_host_are_refused() {
    let origin = mirror();
    let rules = ["a.test".to_owned(), format!("127.0.0.1:{}", origin.port)];
    let world = World::new(&rules, &[("a.test", "127.0.0.1")]);
    let refused = world.tunnel(&format!("a.test:{}", origin.port)).err().unwrap();
    assert!(refused.contains("Warrant-Why: port-not-allowed"), "{refused}");
    assert!(world.tunnel("a.test:22").is_err());
    assert_eq!(origin.count(), 0);
}

#[test]
fn socks_speaks_to_names_and_to_nothing_else() {
    let origin = mirror();
    let world = world(&origin);
    let port = origin.port.to_be_bytes();
    let request = |command: u8, host: &[u8]| {
        let length = u8::try_from(host.len()).unwrap();
        [&[5, 1, 0, 5, command, 0, 3, length], host, &port].concat()
    };
    let ask = |bytes: &[u8]| {
        let mut client = world.connect();
        client.send(bytes);
        let mut greeting = [0; 2];
        client.0.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting, [5, 0]);
        let mut reply = [0; 10];
        client.0.read_exact(&mut reply).unwrap();
        (reply[1], client)
    };
    let (code, mut tunnel) = ask(&request(1, b"a.test"));
    assert_eq!(code, 0);
    let hello = client_hello(Some("a.test"));
    tunnel.send(&hello);
    let mut back = vec![0; hello.len()];
    tunnel.0.read_exact(&mut back).unwrap();
    assert_eq!(ask(&request(1, b"b.test")).0, 2, "not listed");
    assert_eq!(ask(&request(1, b"0x7f.1")).0, 2, "a disguised address");
    assert_eq!(ask(&request(1, b"a.test\0.b")).0, 2, "a name with a NUL");
    assert_eq!(ask(&request(2, b"a.test")).0, 7, "BIND");
    assert_eq!(ask(&request(3, b"a.test")).0, 7, "UDP ASSOCIATE");
    let literal = [&[5, 1, 0, 5, 1, 0, 1, 10, 0, 0, 1][..], &port].concat();
    assert_eq!(ask(&literal).0, 2, "an address nobody listed");
    // An older version, and a client that insists on a password.
    assert_eq!(
        world.say(b"\x04\x01\x00\x50\x01\x02\x03\x04\x00"),
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 11\r\nWarrant-Why: malformed-request\r\nConnection: close\r\n\r\nbad request"
    );
    assert_eq!(world.say(b"\x05\x01\x02").as_bytes()[..1], [5]);
}

#[test]
fn a_silent_tunnel_is_closed() {
    let origin = mirror();
    let world = World::with(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")], |options| {
        options.head_timeout = std::time::Duration::from_millis(200);
    });
    let tunnel = world.tunnel(&format!("a.test:{}", origin.port)).ok().unwrap();
    assert_eq!(tunnel.end(), "");
    assert_eq!(world.told(), [format!("a.test:{} silent-tunnel 1", origin.port)]);
}

#[test]
fn more_connections_than_allowed_wait_their_turn() {
    let origin = mirror();
    let world = World::with(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")], |options| {
        options.max_connections = 2;
        options.head_timeout = std::time::Duration::from_secs(60);
        options.idle_timeout = std::time::Duration::from_secs(60);
    });
    let authority = format!("a.test:{}", origin.port);
    let one = world.tunnel(&authority).ok().unwrap();
    let two = world.tunnel(&authority).ok().unwrap();
    let mut three = world.connect();
    three.send(format!("CONNECT {authority} HTTP/1.1\r\n\r\n").as_bytes());
    three.0.set_read_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
    assert!(three.0.read(&mut [0]).is_err(), "nobody serves a third");
    drop((one, two));
    three.0.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    assert!(three.head().starts_with("HTTP/1.1 200"));
    drop::<Conversation>(three);
}

/// A HelloRetryRequest, as a server sends it that wants another key share.
fn retry_request() -> Vec<u8> {
    let random = [
        0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8,
        0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8,
        0x33, 0x9c,
    ];
    [&[22, 3, 3, 0, 42, 2, 0, 0, 38, 3, 3][..], &random, &[0, 0x13, 0x01, 0]].concat()
}

#[test]
fn a_second_hello_cannot_change_the_name() {
    let heard: std::sync::Arc<std::sync::Mutex<Vec<u8>>> = std::sync::Arc::default();
    let sink = std::sync::Arc::clone(&heard);
    let origin = Origin::new(move |mut stream| {
        let mut buffer = [0; 4096];
        let mut is_first = true;
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            sink.lock().unwrap().extend_from_slice(&buffer[..count]);
            if std::mem::replace(&mut is_first, false) {
                stream.write_all(&retry_request()).unwrap();
            }
        }
    });
    let world = world(&origin);
    let authority = format!("a.test:{}", origin.port);
    let early_data = [23, 3, 3, 0, 3, 1, 2, 3];
    for before in [&[][..], &[20, 3, 3, 0, 1, 1], &early_data] {
        let mut tunnel = world.tunnel(&authority).ok().unwrap();
        tunnel.send(&client_hello(Some("a.test")));
        tunnel.send(before);
        let mut retry = vec![0; retry_request().len()];
        tunnel.0.read_exact(&mut retry).unwrap();
        assert_eq!(retry, retry_request());
        tunnel.send(&client_hello(Some("other.test")));
        assert_eq!(tunnel.end(), "");
    }
    let heard = heard.lock().unwrap();
    assert!(!heard.windows(10).any(|window| window == b"other.test"), "the second hello went out");
    let port = origin.port;
    let expected = [format!("a.test:{port} allowed 1"), format!("a.test:{port} sni-mismatch 1")];
    assert_eq!(world.told(), expected);
}

#[test]
fn a_server_that_asks_for_another_key_share_works() {
    use rustls::crypto::ring::{default_provider, kx_group};
    use std::sync::Arc;
    let key = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
    let certificate = key.cert.der().clone();
    let secret = rustls::pki_types::PrivatePkcs8KeyDer::from(key.signing_key.serialize_der());
    let mut provider = default_provider();
    provider.kx_groups = vec![kx_group::SECP384R1];
    let server = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], secret.into())
        .unwrap();
    let server = Arc::new(server);
    let origin = Origin::new(move |stream| crate::fetch::answer_tls(&server, stream, b"hello"));
    let world = world(&origin);
    let mut tunnel = world.tunnel(&format!("a.test:{}", origin.port)).ok().unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from("a.test").unwrap();
    let mut session = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
    let mut tls = rustls::Stream::new(&mut session, &mut tunnel.0);
    tls.write_all(b"hi").unwrap();
    let mut reply = String::new();
    tls.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "hello");
    assert_eq!(session.handshake_kind(), Some(rustls::HandshakeKind::FullWithHelloRetryRequest));
}
