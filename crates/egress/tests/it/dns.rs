//! The DNS stub.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use crate::origin::World;

const A: u16 = 1;
const AAAA: u16 = 28;
const TXT: u16 = 16;

fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap());
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&[0, 1]);
    message
}

/// Asks over UDP; returns the code, the number of answers and the last bytes.
fn ask(world: &World, name: &str, kind: u16) -> (u8, u8, Vec<u8>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let question = question(name, kind);
    socket.send_to(&question, world.dns).unwrap();
    let mut reply = [0; 512];
    let length = socket.recv(&mut reply).unwrap();
    assert_eq!(&reply[..2], &question[..2]);
    assert_eq!(reply[2] & 0x80, 0x80);
    assert_eq!(&reply[12..question.len()], &question[12..]);
    (reply[3] & 15, reply[7], reply[question.len()..length].to_vec())
}

#[test]
fn allowed_names_get_synthetic_addresses() {
    let world =
        World::new(&["a.test".to_owned(), "*.b.test".to_owned(), "!no.b.test".to_owned()], &[]);
    let (code, count, answer) = ask(&world, "a.test", A);
    assert_eq!((code, count), (0, 1));
    assert_eq!(answer[answer.len() - 4..], [198, 18, 0, 1]);
    let (_, _, answer) = ask(&world, "x.b.test", A);
    assert_eq!(answer[answer.len() - 4..], [198, 18, 0, 2]);
    let (_, _, answer) = ask(&world, "A.TEST", A);
    assert_eq!(answer[answer.len() - 4..], [198, 18, 0, 1], "the same name, the same address");
    assert_eq!(ask(&world, "a.test", AAAA).0, 0, "it exists, without such an address");
    assert_eq!(ask(&world, "a.test", AAAA).1, 0);
    assert_eq!(ask(&world, "a.test", TXT).0, 5);
    assert_eq!(ask(&world, "no.b.test", A).0, 3);
}

#[test]
fn denied_name_is_never_resolved() {
    // The name server that would be asked; a denied name must not reach it.
    let upstream = UdpSocket::bind("127.0.0.1:0").unwrap();
    upstream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let server = upstream.local_addr().unwrap();
    let world = World::with(&["a.test".to_owned()], &[], |options| {
        options.resolver = warrant_egress::Resolver::Nameserver(server);
    });
    assert_eq!(ask(&world, "secret-data.evil.test", A).0, 3);
    assert_eq!(ask(&world, "a.test", A).0, 0);
    assert!(world.tunnel("secret-data.evil.test:443").is_err());
    assert!(world.tunnel("a.test:22").is_err(), "denied by its port");
    assert!(upstream.recv(&mut [0; 512]).is_err(), "something was asked outside");
    let told = world.told();
    assert_eq!(told[0], "secret-data.evil.test:53 not-listed 1");
    // An allowed one does reach it, once per address family.
    let mut client = world.connect();
    client.send(b"CONNECT a.test:443 HTTP/1.1\r\n\r\n");
    upstream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut message = [0; 512];
    let length = upstream.recv(&mut message).unwrap();
    assert!(message[..length].windows(6).any(|window| window == b"\x01a\x04tes"));
}

#[test]
fn names_over_tcp() {
    let world = World::new(&["a.test".to_owned()], &[]);
    let mut stream = TcpStream::connect(world.dns_tcp).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    for _ in 0..2 {
        let question = question("a.test", A);
        let length = u16::try_from(question.len()).unwrap().to_be_bytes();
        stream.write_all(&[&length[..], &question].concat()).unwrap();
        let mut length = [0; 2];
        stream.read_exact(&mut length).unwrap();
        let mut reply = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[reply.len() - 4..], [198, 18, 0, 1]);
    }
}

#[test]
fn a_flood_of_names_is_bounded() {
    let world = World::with(&["*.a.test".to_owned()], &[], |options| {
        options.max_names = 3;
        options.max_dns_queries = 10;
    });
    let codes: Vec<u8> = (0..12).map(|i| ask(&world, &format!("n{i}.a.test"), A).0).collect();
    assert_eq!(codes, [0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 5, 5]);
    assert_eq!(ask(&world, "n0.a.test", A).0, 5);
}
