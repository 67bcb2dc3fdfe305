//! Attacks from outside: no token, the wrong role, malformed and oversized bodies, guessing.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::support::{HandRunner, Plane};

/// Every route that wants a principal, with one that lacks its role.
const ROUTES: &[(&str, &str, &str)] = &[
    ("GET", "/v1/metrics", "enroller"),
    ("GET", "/metrics", "enroller"),
    ("GET", "/v1/policy", "enroller"),
    ("PUT", "/v1/policy", "requester"),
    ("GET", "/v1/policy/history", "enroller"),
    ("GET", "/v1/secrets", "requester"),
    ("PUT", "/v1/secrets/A", "requester"),
    ("DELETE", "/v1/secrets/A", "approver"),
    ("GET", "/v1/principals", "requester"),
    ("POST", "/v1/principals", "requester"),
    ("POST", "/v1/principals/a/rotate", "approver"),
    ("POST", "/v1/principals/a/revoke", "approver"),
    ("POST", "/v1/enroll-tokens", "enroller"),
    ("GET", "/v1/runners", "requester"),
    ("POST", "/v1/runners/rnr_a/revoke", "enroller"),
    ("POST", "/v1/blobs", "approver"),
    (
        "GET",
        "/v1/blobs/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "enroller",
    ),
    ("GET", "/v1/runs", "enroller"),
    ("POST", "/v1/runs", "approver"),
    ("GET", "/v1/runs/run_a", "enroller"),
    ("POST", "/v1/runs/run_a/approve", "requester"),
    ("POST", "/v1/runs/run_a/deny", "requester"),
    ("POST", "/v1/runs/run_a/cancel", "approver"),
    ("GET", "/v1/runs/run_a/bundle", "enroller"),
    ("GET", "/v1/runs/run_a/events", "enroller"),
    ("GET", "/v1/runs/run_a/logs", "enroller"),
    ("GET", "/v1/events", "enroller"),
    ("GET", "/v1/export", "requester"),
];

#[test]
fn nobody_without_a_token_or_the_role_gets_in() {
    let plane = Plane::start();
    let client = plane.client();
    let roles = ["requester", "approver", "enroller"];
    let tokens = roles
        .map(|role| (role, plane.principal(&json!({"name": format!("a-{role}"), "role": role}))));
    for (method, path, lacking) in ROUTES {
        let body = (*method != "GET").then(|| json!({}));
        let (status, answer) = client.call(method, path, None, body.as_ref());
        assert!(matches!(status, 401 | 429), "{method} {path}: {status} {answer}");
        let token = &tokens.iter().find(|(role, _)| role == lacking).unwrap().1;
        let (status, answer) = client.call(method, path, Some(token), body.as_ref());
        assert_eq!(status, 403, "{method} {path} as {lacking}: {answer}");
        let text = "forbidden: principal lacks the required role";
        assert_eq!(answer["error"], text, "{method} {path}");
    }
}

#[test]
fn guessing_tokens_locks_out_guesses_and_nobody_else() {
    let plane = Plane::start();
    let client = plane.client();
    let guess = |n: u32| client.call("GET", "/v1/runs", Some(&format!("guess-{n}")), None).0;
    let answers: Vec<u16> = (0..30).map(guess).collect();
    assert_eq!((answers[0], answers[29]), (401, 429));
    let (status, _) = client.call("GET", "/v1/runs", Some(&plane.admin), None);
    assert_eq!(status, 200, "a right token from the same address is let in");
}

#[test]
fn a_principal_that_asks_too_much_slows_only_itself() {
    let plane = Plane::start_with(|settings| {
        settings.limits =
            serde_json::from_value(json!({"requestsPerSecond": 1, "requestBurst": 3})).unwrap();
    });
    let client = plane.client();
    let get = |token: &str| client.call("GET", "/v1/policy", Some(token), None).0;
    let other = plane.principal(&json!({"name": "ci", "role": "requester"}));
    let answers: Vec<u16> = (0..6).map(|_| get(&plane.admin)).collect();
    assert!(answers.contains(&429), "{answers:?}");
    assert_eq!(get(&other), 200);
}

#[test]
fn malformed_bodies_are_refused_by_name_and_never_break_the_plane() {
    let plane = Plane::start();
    let client = plane.client();
    let runner = HandRunner::enroll(&plane, "default");
    let admin = Some(plane.admin.as_str());
    let nasty: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"{".to_vec(),
        b"null".to_vec(),
        b"[]".to_vec(),
        b"\"x\"".to_vec(),
        b"{\"a\":1,\"a\":2}".to_vec(),
        b"{\"claimToken\":\"\\ud800\"}".to_vec(),
        b"{\"claimToken\":7,\"events\":{},\"receipt\":[]}".to_vec(),
        b"{\"claimToken\":\"x.y\",\"events\":[null],\"receipt\":{}}".to_vec(),
        [b"[".repeat(100_000), b"]".repeat(100_000)].concat(),
        vec![0xff; 64],
    ];
    let routes = [
        ("POST", "/v1/runners/enroll", None),
        ("POST", "/v1/claims", None),
        ("POST", "/v1/runs", admin),
        ("POST", "/v1/runs/run_a/approve", admin),
        ("POST", "/v1/runs/run_a/deny", admin),
        ("POST", "/v1/runs/run_a/cancel", admin),
        ("POST", "/v1/runs/run_a/start", None),
        ("POST", "/v1/runs/run_a/renew", None),
        ("POST", "/v1/runs/run_a/events", None),
        ("POST", "/v1/runs/run_a/complete", None),
        ("POST", "/v1/runs/run_a/hand-back", None),
        ("POST", "/v1/principals", admin),
        ("PUT", "/v1/policy", admin),
        ("PUT", "/v1/secrets/A", admin),
    ];
    for (method, path, token) in routes {
        for body in &nasty {
            let (status, answer) = client.bytes(method, path, token, Some(body.clone()));
            let answer = String::from_utf8_lossy(&answer).into_owned();
            assert!((400..500).contains(&status), "{method} {path} {status}: {answer}");
            let answer: Value = serde_json::from_str(&answer).unwrap();
            assert!(answer["error"].is_string());
        }
    }
    let bad_fields = [
        ("pool", json!("a b")),
        ("secretNames", json!(["1x"])),
        ("agentKind", json!("")),
        ("network", json!({"defaultDeny": true, "allowHosts": ["a/b"]})),
    ];
    for (field, value) in bad_fields {
        let mut request = super::support::request("true", &[]);
        request[field] = value;
        let (status, answer) =
            client.call("POST", "/v1/runs", admin, Some(&json!({"request": request})));
        assert_eq!(status, 400, "{field}: {answer}");
        let issue = answer["issues"][0].as_str().unwrap();
        assert!(issue.starts_with(&format!("request.{field}")), "{issue}");
    }
    assert_eq!(client.call("GET", "/v1/export?since=yesterday", admin, None).0, 400);
    let claim = json!({"runnerToken": runner.token, "pool": "default", "waitMs": "long"});
    let (status, answer) = client.call("POST", "/v1/claims", None, Some(&claim));
    assert_eq!(status, 400);
    assert!(answer["issues"][0].as_str().unwrap().starts_with("waitMs:"));
    for (method, path) in [("GET", "/nowhere"), ("HEAD", "/v1/health"), ("PATCH", "/v1/runs")] {
        let (status, answer) = client.call(method, path, admin, None);
        if method != "HEAD" {
            assert_eq!(answer["error"], json!(format!("no route for {method} {path}")));
            assert_eq!(status, 404);
        }
    }
}

#[test]
fn claim_tokens_are_refused_in_the_reference_s_words() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    let run = plane.submit("true");
    plane.submit("true");
    let held = runner.claim(0).unwrap();
    let other = runner.claim(0).unwrap();
    let events = |run: &str, token: &str| {
        let body = json!({"claimToken": token, "events": []});
        let path = format!("/v1/runs/{run}/events");
        let (status, answer) = runner.client.call("POST", &path, None, Some(&body));
        (status, answer["error"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(events(&run, "nonsense"), (400, "malformed claim token".into()));
    let forged = format!("{}x", held.claim_token);
    assert_eq!(events(&run, &forged).0, 401);
    assert_eq!(events(&run, &other.claim_token), (401, "claim token run mismatch".into()));
    assert_eq!(events(&run, &held.claim_token).0, 200);
}

#[test]
fn an_oversized_body_is_refused_before_it_is_read_and_the_sender_hears_it() {
    let plane = Plane::start_with(|settings| {
        settings.limits = serde_json::from_value(json!({"blobBytes": 1000})).unwrap();
    });
    let admin = Some(plane.admin.as_str());
    let client = plane.client();
    let large = vec![b'x'; 3 * 1024 * 1024];
    for (method, path, token) in [
        ("POST", "/v1/blobs", admin),
        ("POST", "/v1/runners/enroll", None),
        ("POST", "/v1/claims", None),
        ("POST", "/v1/principals", admin),
        ("POST", "/v1/enroll-tokens", admin),
        ("POST", "/v1/runs/run_a/renew", None),
        ("POST", "/v1/runs/run_a/hand-back", None),
        ("POST", "/v1/runs/run_a/approve", admin),
        ("POST", "/v1/runs/run_a/cancel", admin),
        ("PUT", "/v1/secrets/A", admin),
    ] {
        let (status, answer) = client.bytes(method, path, token, Some(large.clone()));
        let answer = String::from_utf8(answer).unwrap();
        assert_eq!(status, 413, "{method} {path}: {answer}");
        let limit = if path == "/v1/blobs" { "1000" } else { "" };
        let named = format!("{{\"error\":\"body too large: this call takes at most {limit}");
        assert!(answer.starts_with(&named), "{method} {path}: {answer}");
    }
    let huge = vec![b'x'; 33 * 1024 * 1024];
    for (path, token) in [("/v1/runs", admin), ("/v1/runs/run_a/complete", None)] {
        let (status, _) = client.bytes("POST", path, token, Some(huge.clone()));
        assert_eq!(status, 413, "{path}");
    }
    // One that never announced its length is stopped at the limit.
    let address = plane.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/blobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         transfer-encoding: chunked\r\n\r\n",
        plane.admin
    );
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..20 {
        stream.write_all(format!("64\r\n{}\r\n", "y".repeat(100)).as_bytes()).unwrap();
    }
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}

#[test]
fn blobs_need_a_token_unless_old_runners_may_read_them() {
    let closed = Plane::start();
    let large: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    let put = |plane: &Plane, bytes: &[u8]| {
        let admin = Some(plane.admin.as_str());
        let (status, answer) =
            plane.client().bytes("POST", "/v1/blobs", admin, Some(bytes.to_vec()));
        assert_eq!(status, 200);
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        format!("/v1/blobs/{}", answer["hash"].as_str().unwrap())
    };
    for bytes in [&b""[..], b"small", &large] {
        let path = put(&closed, bytes);
        assert_eq!(closed.client().bytes("GET", &path, None, None).0, 401);
        let (status, read) = closed.client().bytes("GET", &path, Some(&closed.admin), None);
        assert_eq!((status, read.as_slice()), (200, bytes));
    }
    let runner = HandRunner::enroll(&closed, "default");
    closed.submit("true");
    let held = runner.claim(0).unwrap();
    let path = put(&closed, b"small");
    assert_eq!(closed.client().bytes("GET", &path, Some(&held.claim_token), None).0, 200);
    let upload = |token: &str| {
        runner.client.bytes("POST", "/v1/blobs", Some(token), Some(b"diff".to_vec())).0
    };
    assert_eq!(upload(&held.claim_token), 200, "a claim token stores blobs of its run");
    assert_eq!(runner.post(&held, "hand-back", &json!({})).0, 200);
    assert_eq!(upload(&held.claim_token), 401, "and none when the lease is over");
    let open = Plane::start_with(|settings| settings.compat.open_blob_reads = true);
    let path = put(&open, b"small");
    assert_eq!(open.client().bytes("GET", &path, None, None), (200, b"small".to_vec()));
    let missing = format!("/v1/blobs/{}", "0".repeat(64));
    assert_eq!(open.client().bytes("GET", &missing, None, None).0, 404);
    assert_eq!(open.client().bytes("GET", "/v1/blobs/ABC", None, None).0, 404);
}

#[test]
fn a_requester_cancels_only_its_own_runs() {
    let plane = Plane::start();
    let run = plane.submit("true");
    let eve = plane.principal(&json!({"name": "eve", "role": "requester"}));
    let path = format!("/v1/runs/{run}/cancel");
    assert_eq!(plane.client().call("POST", &path, Some(&eve), Some(&json!({}))).0, 404);
    assert_eq!(plane.view(&run)["status"], "created");
}
