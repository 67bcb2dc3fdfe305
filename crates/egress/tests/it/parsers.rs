//! No bytes make a parser panic, and what a parser accepts it accepts in one spelling.

use proptest::prelude::*;
use warrant_egress::parsers::{
    Chunks, Peek, answers, parse_authority, parse_greeting, parse_password, parse_query,
    parse_request, parse_response, parse_socks_request, peek,
};
use warrant_egress::{Host, HostName, Rules};

use crate::tunnel::client_hello;

/// Bytes that look like the real thing, with a few of them changed.
fn near(base: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let length = base.len();
    proptest::collection::vec((0..length, any::<u8>()), 0..8).prop_map(move |changes| {
        let mut bytes = base.clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes
    })
}

fn request() -> Vec<u8> {
    b"POST http://a.test:81/x?y HTTP/1.1\r\nHost: a.test:81\r\nTransfer-Encoding: chunked\r\nConnection: x\r\n\r\n".to_vec()
}

fn query() -> Vec<u8> {
    b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04test\x00\x00\x01\x00\x01".to_vec()
}

fn answer() -> Vec<u8> {
    let mut message = query();
    message[2] = 0x81;
    message[7] = 1;
    message.extend_from_slice(b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04\x01\x02\x03\x04");
    message
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn http_heads_never_panic(bytes in prop_oneof![near(request()), any::<Vec<u8>>()]) {
        let whole = parse_request(&bytes);
        let _ = parse_response(&bytes);
        if let Ok(Some(head)) = whole {
            prop_assert!(head.length <= bytes.len());
            // More bytes behind a head never change it.
            let longer = [&bytes[..], b"GET / HTTP/1.1\r\n\r\n"].concat();
            prop_assert_eq!(parse_request(&longer), Ok(Some(head)));
        }
    }

    #[test]
    fn chunks_never_panic_and_always_move_on(bytes in "[0-9a-f;\r\n]{0,64}") {
        let mut chunks = Chunks::default();
        let mut rest = bytes.as_bytes();
        for _ in 0..200 {
            use warrant_egress::parsers::Piece;
            match chunks.next(rest) {
                Ok(Piece::Skip(count) | Piece::Data(count)) => {
                    prop_assert!(count > 0 && count <= rest.len());
                    rest = &rest[count..];
                }
                Ok(Piece::More | Piece::End) | Err(_) => return Ok(()),
            }
        }
        prop_assert!(false, "no end");
    }

    #[test]
    fn socks_never_panics(bytes in prop_oneof![
        near(b"\x05\x01\x00\x03\x06a.test\x01\xbb".to_vec()), any::<Vec<u8>>()
    ]) {
        let _ = parse_greeting(&bytes);
        let _ = parse_password(&bytes);
        if let Ok(Some(request)) = parse_socks_request(&bytes) {
            prop_assert!(request.length <= bytes.len());
        }
    }

    #[test]
    fn dns_never_panics(bytes in prop_oneof![near(query()), near(answer()), any::<Vec<u8>>()]) {
        let _ = parse_query(&bytes);
        let _ = answers(&query(), &bytes);
    }

    #[test]
    fn client_hellos_never_panic(bytes in prop_oneof![
        near(client_hello(Some("a.test"))), any::<Vec<u8>>()
    ]) {
        if let Peek::Hello(hello) = peek(&bytes) {
            prop_assert!(hello.length <= bytes.len());
        }
    }

    #[test]
    fn hosts_have_one_spelling(text in prop_oneof!["[a-zA-Z0-9.:\\[\\]%@_-]{0,40}", any::<String>()]) {
        let _ = parse_authority(&text);
        let _ = HostName::from_human(&text);
        if let Ok(host) = Host::from_wire(&text) {
            prop_assert_eq!(Host::from_wire(&host.to_string()), Ok(host));
        }
    }

    #[test]
    fn rules_never_panic_and_their_canonical_form_is_stable(
        entry in prop_oneof!["[!*a-z0-9.:/+\\[\\]=-]{0,40}", any::<String>()]
    ) {
        if let Ok(rules) = Rules::parse(std::slice::from_ref(&entry)) {
            let canonical = rules.canonical_json();
            let deny = canonical["deny"].as_array().unwrap().iter().map(|e| format!("!{}", e.as_str().unwrap()));
            let allow = canonical["allow"].as_array().unwrap().iter().map(|e| e.as_str().unwrap().to_owned());
            let again = Rules::parse(&deny.chain(allow).collect::<Vec<_>>()).unwrap();
            prop_assert_eq!(again.canonical_json(), canonical);
        }
    }
}

/// What the reference reads from a CONNECT target is read the same way here, or refused.
#[test]
fn connect_targets_agree_with_the_reference_or_are_refused() {
    let text = include_str!("../../../../vectors/validators.json");
    let vectors: serde_json::Value = serde_json::from_str(text).unwrap();
    let mut refused = Vec::new();
    for row in vectors["connectAuthority"].as_array().unwrap() {
        let input = row["input"].as_str().unwrap();
        match parse_authority(input) {
            Ok((host, port)) => {
                let host = host.to_string();
                let bare = host.trim_start_matches('[').trim_end_matches(']');
                assert_eq!(bare, row["host"].as_str().unwrap(), "{input}");
                assert_eq!(
                    u64::from(port.unwrap_or(443)),
                    row["port"].as_u64().unwrap(),
                    "{input}"
                );
            }
            Err(_) => refused.push(input),
        }
    }
    assert_eq!(refused, ["2001:db8::1", "host:", "host:abc", "", ":80", "[bad", " a.b:1 "]);
}
