//! A proxy that others than the run can reach asks for a password.

use warrant_egress::Pass;

use crate::origin::{Origin, World, allow};

const RANDOM: [u8; 16] = [0xab; 16];

fn world(port: u16) -> World {
    World::with(&allow("a.test", port), &[("a.test", "127.0.0.1")], |options| {
        options.pass = Some(Pass::from_random(RANDOM));
    })
}

/// `warrant:abab…`, as everyone encodes it.
const SHOWN: &str = "Basic d2FycmFudDphYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYg==";

#[test]
fn a_stranger_at_the_listener_reaches_nothing_and_is_not_recorded() {
    let origin = Origin::echo();
    let world = world(origin.port);
    let port = origin.port;
    for header in ["", "Proxy-Authorization: Basic d2FycmFudDo=\r\n", "Authorization: x\r\n"] {
        let request = format!(
            "GET http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\n{header}Connection: close\r\n\r\n"
        );
        let reply = world.say(request.as_bytes());
        assert!(reply.starts_with("HTTP/1.1 407 "), "{reply}");
        assert!(reply.contains("Proxy-Authenticate: Basic realm="), "{reply}");
        let reply = world.tunnel(&format!("a.test:{port}")).err().unwrap();
        assert!(reply.starts_with("HTTP/1.1 407 "), "{reply}");
    }
    // SOCKS: without a password, and with a wrong one.
    let mut client = world.connect();
    client.send(&[5, 1, 0]);
    assert_eq!(client.end().as_bytes()[0], 5);
    let mut client = world.connect();
    client.send(&[5, 1, 2, 1, 7]);
    client.send(b"warrant\x03bad");
    let said = client.end();
    assert_eq!(said.as_bytes(), [5, 2, 1, 1], "{said:?}");
    assert_eq!(origin.count(), 0);
    let (seen, totals) = world.close();
    assert!(seen.is_empty(), "{seen:?}");
    assert_eq!(totals.bytes_out, 0);
}

#[test]
fn the_run_itself_shows_its_password_and_goes_on() {
    let origin = Origin::echo();
    let world = world(origin.port);
    let port = origin.port;
    let mut client = world.connect();
    let request = |more: &str| {
        format!("GET http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\n{more}\r\n")
    };
    // Some clients show it only when asked, on the same connection.
    client.send(request("").as_bytes());
    assert!(client.head().starts_with("HTTP/1.1 407 "));
    client.exactly("proxy authentication required".len());
    client.send(request(&format!("Proxy-Authorization: {SHOWN}\r\n")).as_bytes());
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    let echoed = client.exactly(20);
    assert!(!echoed.contains("Proxy"), "{echoed}");
    let mut client = world.connect();
    let password = "ab".repeat(16);
    client.send(&[5, 2, 0, 2]);
    assert_eq!(client.exactly(2).as_bytes(), [5, 2]);
    client.send(format!("\x01\x07warrant\x20{password}").as_bytes());
    assert_eq!(client.exactly(2).as_bytes(), [1, 0]);
    let [high, low] = port.to_be_bytes();
    client.send(&[&b"\x05\x01\x00\x03\x06a.test"[..], &[high, low]].concat());
    assert_eq!(client.exactly(2).as_bytes(), [5, 0]);
}
