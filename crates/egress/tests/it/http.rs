//! HTTP in absolute form through the explicit listener.

use crate::origin::{Origin, World, allow};

fn get(host: &str, port: u16) -> String {
    format!("GET http://{host}:{port}/x HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n")
}

#[test]
fn an_allowed_request_is_sent_on_in_origin_form() {
    let origin = Origin::echo();
    let world = World::new(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")]);
    let mut client = world.connect();
    let port = origin.port;
    let request = format!(
        "POST http://A.test:{port}/p?q=1 HTTP/1.1\r\nHost: a.TEST:{port}\r\nX-Keep: 1\r\n\
         Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\nContent-Length: 3\r\n\r\nabc"
    );
    client.send(request.as_bytes());
    let head = client.head();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let expected = format!(
        "POST /p?q=1 HTTP/1.1\r\nHost: a.test:{port}\r\nX-Keep: 1\r\nContent-Length: 3\r\n\r\nabc"
    );
    assert_eq!(client.exactly(expected.len()), expected);
    client.send(get("a.test", port).as_bytes());
    assert!(client.head().starts_with("HTTP/1.1 200"));
    assert_eq!(origin.count(), 1, "the connection to the server is kept");
    let (seen, totals) = world.close();
    let counts: Vec<(u64, bool)> = seen.iter().map(|d| (d.count, d.allowed)).collect();
    assert_eq!(counts, [(1, true), (1, true)]);
    assert!(totals.bytes_in > 100 && totals.bytes_out > 100, "{totals:?}");
    assert_eq!(seen[1].bytes_in, totals.bytes_in);
}

#[test]
fn the_words_of_the_reference_are_kept() {
    let world = World::new(
        &["a.test".to_owned(), "dead.test:1".to_owned(), "127.0.0.1:1".to_owned()],
        &[("dead.test", "127.0.0.1")],
    );
    let blocked =
        world.say(b"GET http://b.test/ HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n");
    assert!(blocked.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{blocked}");
    assert!(blocked.ends_with("\r\n\r\nblocked by warrant egress policy"), "{blocked}");
    let relative = world.say(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(relative.starts_with("HTTP/1.1 400 "), "{relative}");
    assert!(relative.ends_with("\r\n\r\nproxy requires absolute-form URLs"), "{relative}");
    let gone = world.say(b"GET http://dead.test:1/ HTTP/1.0\r\n\r\n");
    assert!(gone.starts_with("HTTP/1.1 502 "), "{gone}");
    assert!(gone.ends_with("\r\n\r\nupstream error"), "{gone}");
    assert_eq!(world.told(), ["b.test:80 not-listed 1", "dead.test:1 unreachable 1"]);
    let refused = world.tunnel("b.test:443").err().unwrap();
    assert!(refused.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{refused}");
}

#[test]
fn an_ipv6_address_is_recorded_as_the_reference_writes_it() {
    let world = World::new(&["a.test".to_owned()], &[]);
    world.say(b"GET http://[2001:db8::2]/ HTTP/1.0\r\n\r\n");
    world.tunnel("[2001:db8::1]:443").err().unwrap();
    assert_eq!(world.told(), ["[2001:db8::2]:80 not-listed 1", "2001:db8::1:443 not-listed 1"]);
}

#[test]
fn a_chunked_body_goes_both_ways() {
    let origin = Origin::echo();
    let world = World::new(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")]);
    let mut client = world.connect();
    let port = origin.port;
    client.send(
        format!(
            "PUT http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\nTransfer-Encoding: chunked\r\n\r\n\
             3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
        )
        .as_bytes(),
    );
    let head = client.head();
    assert!(head.contains("Content-Length"), "{head}");
    let echoed = client.head();
    assert!(echoed.contains("Transfer-Encoding: chunked\r\n"), "{echoed}");
    let body = client.exactly("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n".len());
    assert_eq!(body, "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "extensions and trailers stay here");
}

#[test]
fn a_response_without_length_ends_with_its_connection() {
    let origin = Origin::new(|stream| {
        let mut conversation = crate::origin::Conversation(stream);
        conversation.head();
        conversation.send(b"HTTP/1.0 200 OK\r\nX-A: 1\r\n\r\nhello");
    });
    let world = World::new(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")]);
    let mut client = world.connect();
    client.send(get("a.test", origin.port).as_bytes());
    let head = client.head();
    assert!(head.contains("X-A: 1\r\n") && head.contains("Transfer-Encoding: chunked"), "{head}");
    assert_eq!(client.exactly(15), "5\r\nhello\r\n0\r\n\r\n");
    let old = world.say(format!("GET http://a.test:{}/ HTTP/1.0\r\n\r\n", origin.port).as_bytes());
    assert!(old.ends_with("\r\n\r\nhello"), "{old}");
}

#[test]
fn a_hundred_continue_is_passed_on() {
    let origin = Origin::new(|stream| {
        let mut conversation = crate::origin::Conversation(stream);
        assert!(conversation.head().contains("Expect: 100-continue"));
        conversation.send(b"HTTP/1.1 100 Continue\r\n\r\n");
        let body = conversation.exactly(5);
        conversation.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{body}").as_bytes());
    });
    let world = World::new(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")]);
    let mut client = world.connect();
    let port = origin.port;
    client.send(
        format!(
            "POST http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\nContent-Length: 5\r\n\
             Expect: 100-continue\r\n\r\n"
        )
        .as_bytes(),
    );
    assert!(client.head().starts_with("HTTP/1.1 100"));
    client.send(b"12345");
    assert!(client.head().starts_with("HTTP/1.1 200"));
    assert_eq!(client.exactly(5), "12345");
}

#[test]
fn keep_alive_to_a_second_host_is_decided_anew() {
    let one = Origin::echo();
    let two = Origin::echo();
    let mut rules = allow("a.test", one.port);
    rules.push(format!("127.0.0.1:{}", two.port));
    let world = World::new(&rules, &[("a.test", "127.0.0.1"), ("b.test", "127.0.0.1")]);
    let mut client = world.connect();
    client.send(get("a.test", one.port).as_bytes());
    assert!(client.head().starts_with("HTTP/1.1 200"));
    let length = format!("GET /x HTTP/1.1\r\nHost: a.test:{}\r\n\r\n", one.port).len();
    client.exactly(length);
    client.send(get("b.test", two.port).as_bytes());
    assert!(client.head().starts_with("HTTP/1.1 403"));
    assert_eq!(two.count(), 0);
    // The refusal costs nothing but itself: the connection goes on.
    client.exactly("blocked by warrant egress policy".len());
    client.send(get("a.test", one.port).as_bytes());
    assert!(client.head().starts_with("HTTP/1.1 200"));
}

#[test]
fn a_host_header_for_another_host_is_refused() {
    let origin = Origin::echo();
    let world = World::new(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")]);
    let port = origin.port;
    for fields in [
        "Host: b.test".to_owned(),
        format!("Host: a.test:{port}\r\nHost: b.test"),
        "Host: a.test:1".to_owned(),
        "Host: a.test@b.test".to_owned(),
        "Host: ".to_owned(),
        "X: y".to_owned(),
    ] {
        let reply = world.say(
            format!("GET http://a.test:{port}/ HTTP/1.1\r\n{fields}\r\nConnection: close\r\n\r\n")
                .as_bytes(),
        );
        assert!(reply.starts_with("HTTP/1.1 40"), "{fields}: {reply}");
    }
    assert_eq!(origin.count(), 0);
}

#[test]
fn smuggled_lengths_are_refused() {
    let origin = Origin::echo();
    let world = World::new(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")]);
    let port = origin.port;
    for fields in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Content-Length: 4\r\nContent-Length: 5",
        "Content-Length: 4\r\nContent-Length: 4",
        "Content-Length: 4,4",
        "Content-Length: -4",
        "Content-Length: 4\r\n\tfolded",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding:\r\n chunked",
        "X: a\nTransfer-Encoding: chunked",
        "X: a\rTransfer-Encoding: chunked",
    ] {
        let smuggled = "0\r\n\r\nGET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n";
        let request = format!(
            "POST http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\n{fields}\r\n\r\n{smuggled}"
        );
        let reply = world.say(request.as_bytes());
        assert!(reply.starts_with("HTTP/1.1 400"), "{fields}: {reply}");
        assert_eq!(reply.matches("HTTP/1.1").count(), 1, "{fields}: {reply}");
    }
    assert_eq!(origin.count(), 0, "nothing of it went out");
}

#[test]
fn a_smuggled_second_request_is_decided_by_itself() {
    let origin = Origin::echo();
    let world = World::new(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")]);
    let port = origin.port;
    let two = format!(
        "POST http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\nContent-Length: 3\r\n\r\nabc\
         GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n"
    );
    let reply = world.say(two.as_bytes());
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    assert!(reply.contains("HTTP/1.1 403"), "{reply}");
    assert_eq!(world.told()[1], "evil.test:80 not-listed 1");
}

#[test]
fn a_redirect_is_just_another_request() {
    let origin = Origin::new(|stream| {
        let mut conversation = crate::origin::Conversation(stream);
        conversation.head();
        conversation.send(
            b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest\r\nContent-Length: 0\r\n\r\n",
        );
    });
    let world = World::new(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")]);
    let mut client = world.connect();
    client.send(get("a.test", origin.port).as_bytes());
    let head = client.head();
    assert!(
        head.contains("Location: http://169.254.169.254/latest"),
        "passed on, not followed: {head}"
    );
    let followed = world.say(b"GET http://169.254.169.254/latest HTTP/1.1\r\nHost: 169.254.169.254\r\nConnection: close\r\n\r\n");
    assert!(followed.starts_with("HTTP/1.1 403"), "{followed}");
}

#[test]
fn a_head_without_end_is_cut_off() {
    let world = World::with(&["a.test".to_owned()], &[], |options| options.max_head_bytes = 4096);
    let mut client = world.connect();
    client.send(b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nX: ");
    client.send(&vec![b'a'; 100_000]);
    let reply = client.end();
    assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 400"), "{reply}");
}

#[test]
fn a_head_that_drips_is_cut_off() {
    let world = World::with(&["a.test".to_owned()], &[], |options| {
        options.head_timeout = std::time::Duration::from_millis(200);
    });
    let mut client = world.connect();
    client.send(b"GET http://a.test/ HTTP/1.1\r\n");
    assert_eq!(client.end(), "");
}

#[test]
fn a_body_that_ends_early_never_looks_whole() {
    let whole: std::sync::Arc<std::sync::Mutex<Vec<bool>>> = std::sync::Arc::default();
    let sink = std::sync::Arc::clone(&whole);
    let origin = Origin::new(move |stream| {
        use std::io::Read;
        let mut conversation = crate::origin::Conversation(stream);
        conversation.head();
        let mut body = Vec::new();
        // Ends only when the proxy closes.
        drop(conversation.0.read_to_end(&mut body));
        sink.lock().unwrap().push(body.ends_with(b"0\r\n\r\n") || body.len() == 10);
    });
    let world = World::new(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")]);
    let port = origin.port;
    for rest in [
        "Content-Length: 10\r\n\r\n12345",
        "Transfer-Encoding: chunked\r\n\r\n4\r\n1234\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\nzz\r\n0\r\n\r\n",
    ] {
        let mut client = world.connect();
        client.send(
            format!("POST http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\n{rest}")
                .as_bytes(),
        );
        client.0.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.end(), "", "{rest:?}");
    }
    world.close();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while whole.lock().unwrap().len() < 3 {
        assert!(std::time::Instant::now() < deadline, "the server still waits");
        std::thread::yield_now();
    }
    assert_eq!(*whole.lock().unwrap(), [false; 3]);
}

#[test]
fn a_slow_upload_outlives_the_idle_time() {
    let origin = Origin::echo();
    let world = World::with(&allow("a.test", origin.port), &[("a.test", "127.0.0.1")], |options| {
        options.idle_timeout = std::time::Duration::from_millis(400);
    });
    let port = origin.port;
    let mut client = world.connect();
    client.send(format!("POST http://a.test:{port}/ HTTP/1.1\r\nHost: a.test:{port}\r\nContent-Length: 10\r\n\r\n").as_bytes());
    for _ in 0..10 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        client.send(b"x");
    }
    assert!(client.head().starts_with("HTTP/1.1 200"));
}
