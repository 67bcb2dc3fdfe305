//! What strangers, slow peers and the holder of one token can do to others: nothing.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warrant_protocol::Event;

use super::support::{HandRunner, Plane, request};

/// How long anything here may take at most; a plane that hangs is told by this.
const BOUND: Duration = Duration::from_secs(60);

/// More than the buffers of a connection hold.
const LARGE_BLOB: usize = 24 * 1024 * 1024;

/// A connection that is spoken by hand.
struct Raw(TcpStream);

impl Raw {
    fn open(plane: &Plane) -> Self {
        let stream = TcpStream::connect(plane.url.trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream.set_write_timeout(Some(BOUND)).unwrap();
        Self(stream)
    }

    /// Sends the head of a request and the beginning of its body.
    fn begin(
        plane: &Plane,
        line: &str,
        token: Option<&str>,
        (length, start): (usize, &[u8]),
    ) -> Self {
        let mut raw = Self::open(plane);
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
        let head = format!(
            "{line} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n{}\r\n",
            token.unwrap_or_default()
        );
        raw.0.write_all(head.as_bytes()).unwrap();
        // Whoever was refused already may not take it.
        let _ = raw.0.write_all(start);
        raw
    }

    /// Begins an upload and returns once the plane waits for its body.
    fn busy(plane: &Plane, token: &str) -> Self {
        let mut raw = Self::open(plane);
        let head = format!(
            "POST /v1/blobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
             content-length: 1000\r\nexpect: 100-continue\r\n\r\n"
        );
        raw.0.write_all(head.as_bytes()).unwrap();
        let mut goes_on = [0; 12];
        raw.0.read_exact(&mut goes_on).unwrap();
        assert_eq!(&goes_on, b"HTTP/1.1 100");
        raw
    }

    /// Reads the whole answer; the connection may stay open after it.
    fn answer(&mut self) -> String {
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let count = self.0.read(&mut piece).unwrap();
            answer.extend_from_slice(&piece[..count]);
            let text = String::from_utf8_lossy(&answer);
            let is_whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
                let mut lines = head.lines().filter_map(|line| line.split_once(": "));
                let length = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
                length.is_none_or(|(_, length)| body.len() >= length.parse().unwrap())
            });
            if is_whole || count == 0 {
                return text.into_owned();
            }
        }
    }
}

/// Does something on a thread of its own and fails when it takes for ever.
fn within_bound<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = tell.send(work());
    });
    told.recv_timeout(BOUND).unwrap_or_else(|_| panic!("{what} was not answered"))
}

fn limits(limits: Value) -> Plane {
    Plane::start_with(|settings| settings.limits = serde_json::from_value(limits).unwrap())
}

fn large_blob(plane: &Plane, token: &str) -> String {
    let bytes: Vec<u8> = (0..LARGE_BLOB).map(|n| n.to_le_bytes()[n % 3]).collect();
    let (status, stored) = plane.client().bytes("POST", "/v1/blobs", Some(token), Some(bytes));
    assert_eq!(status, 200);
    let stored: Value = serde_json::from_slice(&stored).unwrap();
    format!("/v1/blobs/{}", stored["hash"].as_str().unwrap())
}

fn connections(plane: &Plane) -> u64 {
    let (_, text) = plane.client().call("GET", "/metrics", Some(&plane.admin), None);
    let text = text.as_str().unwrap();
    let line = text.lines().find(|line| line.starts_with("warrant_connections ")).unwrap();
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn stalled_transfers_keep_nobody_from_the_plane() {
    let plane = Plane::start();
    let token = plane.principal(&json!({"name": "slow", "role": "requester"}));
    let path = large_blob(&plane, &token);
    let readers: Vec<Raw> = (0..40)
        .map(|_| {
            let mut reader = Raw::begin(&plane, &format!("GET {path}"), Some(&token), (0, b""));
            let mut first = [0; 15];
            reader.0.read_exact(&mut first).unwrap();
            assert_eq!(&first, b"HTTP/1.1 200 OK");
            reader
        })
        .collect();
    let start = vec![b'x'; 100_000];
    let writers: Vec<Raw> = (0..40)
        .map(|_| Raw::begin(&plane, "POST /v1/blobs", Some(&token), (LARGE_BLOB, &start)))
        .collect();
    let export = Raw::begin(&plane, "GET /v1/export", Some(&plane.admin), (0, b""));
    let (runner, client) = (HandRunner::enroll(&plane, "default"), plane.client());
    let admin = plane.admin.clone();
    within_bound("a lifecycle beside 80 stalled transfers", move || {
        for _ in 0..5 {
            assert_eq!(client.call("GET", "/v1/health", None, None).0, 200);
            assert_eq!(client.call("GET", "/v1/ready", None, None).0, 200);
            let body = json!({"request": request("true", &[])});
            let (status, answer) = client.call("POST", "/v1/runs", Some(&admin), Some(&body));
            assert_eq!(status, 200, "{answer}");
            let mut held = runner.claim(0).unwrap();
            runner.start(&mut held);
            assert_eq!(runner.post(&held, "renew", &json!({})).0, 200);
            assert_eq!(runner.finish(&mut held).0, 200);
            assert_eq!(client.call("GET", "/v1/runs", Some(&admin), None).0, 200);
            let blob = Some(vec![b'y'; 100_000]);
            assert_eq!(client.bytes("POST", "/v1/blobs", Some(&admin), blob).0, 200);
        }
    });
    drop((readers, writers, export));
}

#[test]
fn a_slow_sender_hears_why_it_ends_and_a_slow_reader_is_cut_off() {
    let plane = limits(json!({"stallSeconds": 1, "minBytesPerSecond": 1000}));
    let admin = Some(plane.admin.as_str());
    for line in ["POST /v1/blobs", "POST /v1/runs"] {
        let mut sender = Raw::begin(&plane, line, admin, (10_000, b"{\"request\":"));
        let answer = sender.answer();
        assert!(answer.starts_with("HTTP/1.1 408"), "{line}: {answer}");
        assert!(answer.contains("slower than 1000 bytes per second for 1 s"), "{line}: {answer}");
        assert!(answer.contains("retry-after: 1"), "{line}: {answer}");
    }
    let path = large_blob(&plane, &plane.admin);
    let before = connections(&plane);
    let mut reader = Raw::begin(&plane, &format!("GET {path}"), admin, (0, b""));
    let mut first = [0; 15];
    reader.0.read_exact(&mut first).unwrap();
    let began = Instant::now();
    while connections(&plane) > before {
        assert!(began.elapsed() < BOUND, "it is never cut off");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut rest = Vec::new();
    // A reset is as good an end as any.
    let _ = reader.0.read_to_end(&mut rest);
    assert!(rest.len() < LARGE_BLOB, "{} bytes came", rest.len());
}

#[test]
fn idle_connections_and_slow_heads_end() {
    let plane = limits(json!({"idleSeconds": 1}));
    let mut idle = Raw::open(&plane);
    let mut slow = Raw::open(&plane);
    slow.0.write_all(b"GET /v1/health HTTP/1.1\r\nhost: ").unwrap();
    let mut used = Raw::begin(&plane, "GET /v1/health", None, (0, b""));
    assert!(used.answer().starts_with("HTTP/1.1 200"));
    for (name, raw) in [("idle", &mut idle), ("slow", &mut slow), ("used", &mut used)] {
        let mut rest = Vec::new();
        raw.0.read_to_end(&mut rest).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn idle_connections_lock_nobody_out_and_busy_ones_only_their_own_address() {
    let plane = limits(json!({"connections": 8, "connectionsPerAddress": 6}));
    let idle: Vec<Raw> = (0..50).map(|_| Raw::open(&plane)).collect();
    let client = plane.client();
    assert_eq!(client.call("GET", "/v1/runs", Some(&plane.admin), None).0, 200);
    drop(idle);
    drop(client);
    let busy: Vec<Raw> = (0..6).map(|_| Raw::busy(&plane, &plane.admin)).collect();
    let refused = Raw::begin(&plane, "GET /v1/health", None, (0, b"")).answer();
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    assert!(refused.contains("this address has 6 busy connections"), "{refused}");
    assert!(refused.contains("retry-after: 1"), "{refused}");
    drop(busy);
}

#[test]
fn one_token_has_only_so_many_requests_under_way() {
    let plane = limits(json!({"connectionsPerToken": 2}));
    let token = plane.principal(&json!({"name": "many", "role": "requester"}));
    let busy: Vec<Raw> = (0..2).map(|_| Raw::busy(&plane, &token)).collect();
    let (status, answer) = plane.client().call("GET", "/v1/runs", Some(&token), None);
    assert_eq!(status, 429, "{answer}");
    assert_eq!(answer["error"], "this token has 2 requests under way, which is the limit");
    let (status, _) = plane.client().call("GET", "/v1/runs", Some(&plane.admin), None);
    assert_eq!(status, 200, "others are not held up");
    drop(busy);
}

#[test]
fn nobody_s_body_is_read_before_they_are_known() {
    let plane = limits(json!({"authFailuresPerMinute": 100_000}));
    let (_, description) = plane.client().call("GET", "/v1/openapi.json", None, None);
    let mut checked = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let has_body = operation.get("requestBody").is_some();
            if !has_body || operation.get("security").is_none() {
                continue;
            }
            let line = format!("{} {}", method.to_uppercase(), path.replace(['{', '}'], ""));
            for token in [None, Some("a-guess")] {
                // Not one byte of the body is there.
                let answer = Raw::begin(&plane, &line, token, (5_000_000, b"")).answer();
                assert!(answer.starts_with("HTTP/1.1 4"), "{line}: {answer}");
                assert!(
                    answer.contains("unauthorized") || answer.contains("claim token"),
                    "{answer}"
                );
            }
            checked += 1;
        }
    }
    assert!(checked >= 8, "{checked}");
}

#[test]
fn a_large_body_with_its_token_inside_is_read_only_once_the_token_is_good() {
    let plane = Plane::start_with(|settings| settings.compat.open_blob_reads = true);
    let runner = HandRunner::enroll(&plane, "default");
    plane.submit("true");
    let mut held = runner.claim_with(&json!({})).unwrap();
    let path = format!("/v1/runs/{}/events", held.run);
    let line = format!("POST {path}");
    let start = |token: &str| {
        let events = "{\"seq\":1},".repeat(20_000);
        format!("{{\"claimToken\":\"{token}\",\"events\":[{events}").into_bytes()
    };
    for (name, status, start) in [
        ("a forged token", "401", start(&format!("{}x", held.claim_token))),
        ("no token at all", "413", format!("{{\"events\":[{}", "[],".repeat(50_000)).into_bytes()),
        ("no JSON", "413", vec![b'x'; 200_000]),
    ] {
        // The rest of twenty megabytes is never sent: what is here decides.
        let answer = Raw::begin(&plane, &line, None, (20_000_000, &start)).answer();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{name}: {answer}");
    }
    let from = held.chain.events().len();
    for number in 0..1_000 {
        let path = format!("{number}-{}", "x".repeat(100));
        let content_hash = warrant_protocol::Digest::of(b"");
        let event = Event::FileChanged { path, content_hash };
        held.chain.append(crate::support::now(), &event).unwrap();
    }
    let events = runner.told_since(&held, from);
    let body = json!({"claimToken": held.claim_token, "events": events}).to_string();
    assert!(body.len() > 200_000, "{}", body.len());
    let (status, answer) = runner.client.bytes("POST", &path, None, Some(body.into_bytes()));
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn json_is_bounded_in_values_and_depth_before_it_is_parsed() {
    let plane = Plane::start();
    let admin = Some(plane.admin.as_str());
    let many = |count: usize| format!("{{\"request\":[{}[]]}}", "[],".repeat(count));
    let deep = format!("{{\"request\":{}{}}}", "[".repeat(200), "]".repeat(200));
    for (method, path, body, named) in [
        ("POST", "/v1/runs", many(2_000_000), "more than 600000 values"),
        ("POST", "/v1/runs", deep.clone(), "nests deeper than 100"),
        ("PUT", "/v1/policy", many(300_000), "more than 200000 values"),
        ("POST", "/v1/principals", many(5_000), "more than 4000 values"),
        ("POST", "/v1/claims", many(5_000), "more than 4000 values"),
        ("POST", "/v1/runs/run_a/complete", many(5_000), "more than 4000 values"),
    ] {
        let (status, answer) = plane.client().bytes(method, path, admin, Some(body.into_bytes()));
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert_eq!(status, 413, "{method} {path}: {answer}");
        assert!(answer.contains(named), "{method} {path}: {answer}");
    }
}

#[test]
fn a_full_chain_is_refused_by_its_limit_and_the_run_still_completes() {
    let plane = Plane::start_with(|settings| settings.compat.open_blob_reads = true);
    let runner = HandRunner::enroll(&plane, "default");
    plane.submit("true");
    let mut held = runner.claim_with(&json!({})).unwrap();
    let content_hash = warrant_protocol::Digest::of(b"");
    let tell = |held: &mut super::support::HeldRun, count: usize| {
        let (from, before) = (held.chain.events().len(), held.chain.clone());
        for number in 0..count {
            let path = format!("{number}-{}", "x".repeat(1_000_000));
            let event = Event::FileChanged { path, content_hash };
            held.chain.append(crate::support::now(), &event).unwrap();
        }
        let events = runner.told_since(held, from);
        let answer = runner.post(held, "events", &json!({ "events": events }));
        if answer.0 != 200 {
            held.chain = before;
        }
        answer
    };
    assert_eq!(tell(&mut held, 15).0, 200);
    let (status, answer) = tell(&mut held, 3);
    assert_eq!(status, 413, "{answer}");
    let error = answer["error"].as_str().unwrap();
    assert!(error.contains("bytes, its limit is 16777216"), "{error}");
    assert_eq!(tell(&mut held, 1).0, 200, "what fits is taken");
    let limit = warrant_protocol::chain::ChainLimit::Bytes;
    let limited = Event::ChainLimited { limit, max: limit.max() };
    held.chain.append(crate::support::now(), &limited).unwrap();
    let (events, receipt) = {
        let from = held.chain.events().len() - 1;
        held.chain.append(crate::support::now(), &Event::RunCompleted {}).unwrap();
        (runner.told_since(&held, from), runner.receipt(&held))
    };
    let body = json!({"events": events, "receipt": receipt.to_value()});
    let (status, answer) = runner.post(&held, "complete", &body);
    assert_eq!(status, 200, "{answer}");
    let last = plane.view(&held.run)["events"].as_array().unwrap().len();
    assert_eq!(last, held.chain.events().len());
}

#[test]
fn an_export_in_pieces_has_every_event_once() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    let mut expected = Vec::new();
    for _ in 0..4 {
        plane.submit("true");
        let mut held = runner.claim(0).unwrap();
        runner.start(&mut held);
        let from = held.chain.events().len();
        for number in 0..40 {
            let path = format!("{number}-{}", "x".repeat(5_000));
            let content_hash = warrant_protocol::Digest::of(b"");
            let event = Event::FileChanged { path, content_hash };
            held.chain.append(crate::support::now(), &event).unwrap();
        }
        let events = runner.told_since(&held, from);
        assert_eq!(runner.post(&held, "events", &json!({ "events": events })).0, 200);
        for event in plane.view(&held.run)["events"].as_array().unwrap() {
            expected.push((held.run.clone(), event["seq"].as_u64().unwrap(), event.clone()));
        }
    }
    let (status, text) = plane.client().bytes("GET", "/v1/export", Some(&plane.admin), None);
    assert_eq!(status, 200);
    assert!(text.len() > 3 * 256 * 1024, "{} bytes are several pieces", text.len());
    let text = String::from_utf8(text).unwrap();
    let mut exported: Vec<(String, u64, Value)> = text
        .lines()
        .map(|line| {
            let mut event: Value = serde_json::from_str(line).unwrap();
            let run = event.as_object_mut().unwrap().remove("runId").unwrap();
            (run.as_str().unwrap().to_owned(), event["seq"].as_u64().unwrap(), event)
        })
        .collect();
    let key = |(run, seq, _): &(String, u64, Value)| (run.clone(), *seq);
    exported.sort_by_key(key);
    expected.sort_by_key(key);
    assert_eq!(exported, expected);
}
