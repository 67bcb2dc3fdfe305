//! Every route with four cases: nobody, somebody who may not, nonsense, and too much. The routes
//! are those of the description, so one without a row here fails.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};
use warrant_plane::http::settings::Limits;

use super::support::{HandRunner, HeldRun, Plane};

/// Who guards a route, and who is not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// Nobody.
    Open,
    /// A principal; this role is not enough.
    Role(&'static str),
    /// A claim token in the body.
    Claim,
    /// A claim token as bearer.
    ClaimBearer,
    /// A runner's token in the body.
    Runner,
    /// An enroll token in the body.
    Enroll,
}

/// What a route takes, and the most it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    Json(usize),
    Bytes(usize),
}

use Guard::{Claim, ClaimBearer, Enroll, Open, Role, Runner};
use Takes::{Bytes, Json, Nothing};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// The largest blob of the plane in this test.
const BLOB: usize = 1000;

/// Method, path, guard, what it takes, and a path that makes no sense in its place.
const ROUTES: &[(&str, &str, Guard, Takes, &str)] = &[
    ("GET", "/", Open, Nothing, ""),
    ("GET", "/metrics", Role("enroller"), Nothing, ""),
    ("GET", "/v1/openapi.json", Open, Nothing, ""),
    ("GET", "/v1/health", Open, Nothing, ""),
    ("GET", "/v1/ready", Open, Nothing, ""),
    ("GET", "/v1/plane-keys", Open, Nothing, ""),
    ("GET", "/v1/metrics", Role("enroller"), Nothing, ""),
    ("GET", "/v1/policy", Role("enroller"), Nothing, ""),
    ("PUT", "/v1/policy", Role("requester"), Json(4 * MIB), ""),
    ("GET", "/v1/policy/history", Role("enroller"), Nothing, ""),
    ("GET", "/v1/secrets", Role("requester"), Nothing, ""),
    ("PUT", "/v1/secrets/{name}", Role("requester"), Json(256 * KIB), "/v1/secrets/1%20x"),
    ("DELETE", "/v1/secrets/{name}", Role("approver"), Nothing, "/v1/secrets/1%20x"),
    ("GET", "/v1/principals", Role("requester"), Nothing, ""),
    ("POST", "/v1/principals", Role("requester"), Json(64 * KIB), ""),
    (
        "POST",
        "/v1/principals/{name}/rotate",
        Role("approver"),
        Nothing,
        "/v1/principals/%00/rotate",
    ),
    (
        "POST",
        "/v1/principals/{name}/revoke",
        Role("approver"),
        Nothing,
        "/v1/principals/%00/revoke",
    ),
    ("POST", "/v1/enroll-tokens", Role("enroller"), Json(64 * KIB), ""),
    ("GET", "/v1/runners", Role("requester"), Nothing, ""),
    ("GET", "/v1/false-claims", Role("requester"), Nothing, ""),
    ("POST", "/v1/runners/enroll", Enroll, Json(64 * KIB), ""),
    ("POST", "/v1/runners/{id}/revoke", Role("enroller"), Nothing, "/v1/runners/%2e%2e/revoke"),
    ("POST", "/v1/claims", Runner, Json(64 * KIB), ""),
    ("POST", "/v1/blobs", Role("approver"), Bytes(BLOB), ""),
    ("GET", "/v1/blobs/{hash}", Role("enroller"), Nothing, "/v1/blobs/ABC"),
    ("GET", "/v1/runs", Role("enroller"), Nothing, "/v1/runs?limit=many"),
    ("POST", "/v1/runs", Role("approver"), Json(32 * MIB), ""),
    ("GET", "/v1/runs/{id}", Role("enroller"), Nothing, "/v1/runs/%2e"),
    ("POST", "/v1/runs/{id}/approve", Role("requester"), Json(256 * KIB), ""),
    ("POST", "/v1/runs/{id}/deny", Role("requester"), Json(64 * KIB), ""),
    ("POST", "/v1/runs/{id}/cancel", Role("approver"), Json(64 * KIB), ""),
    ("GET", "/v1/runs/{id}/bundle", Role("enroller"), Nothing, "/v1/runs/%2e/bundle"),
    ("GET", "/v1/runs/{id}/events", Role("enroller"), Nothing, "/v1/runs/%2e/events"),
    ("POST", "/v1/runs/{id}/events", Claim, Json(32 * MIB), ""),
    ("GET", "/v1/runs/{id}/logs", Role("enroller"), Nothing, "/v1/runs/%2e/logs"),
    ("POST", "/v1/runs/{id}/logs", ClaimBearer, Bytes(MIB), ""),
    ("POST", "/v1/runs/{id}/start", Claim, Json(32 * MIB), ""),
    ("POST", "/v1/runs/{id}/renew", Claim, Json(64 * KIB), ""),
    ("POST", "/v1/runs/{id}/hand-back", Claim, Json(64 * KIB), ""),
    ("POST", "/v1/runs/{id}/complete", Claim, Json(32 * MIB), ""),
    ("GET", "/v1/events", Role("enroller"), Nothing, ""),
    ("GET", "/v1/export", Role("requester"), Nothing, "/v1/export?since=yesterday"),
];

/// A plane with somebody of every role, two runs that are held, and one that ended.
struct Scene {
    plane: Plane,
    tokens: Vec<(&'static str, String)>,
    runner: HandRunner,
    held: HeldRun,
    other: HeldRun,
    receipt: Value,
}

impl Scene {
    fn new() -> Self {
        let plane = Plane::start_with(|settings| {
            settings.limits = Some(Limits {
                auth_failures_per_minute: 1_000_000,
                blob_bytes: BLOB as u64,
                ..Limits::default()
            });
        });
        let token = |role| {
            let body = json!({"name": format!("a-{role}"), "role": role});
            (role, plane.principal(&body))
        };
        let tokens = ["requester", "approver", "enroller"].map(token).to_vec();
        let runner = HandRunner::enroll(&plane, "default");
        for _ in 0..3 {
            plane.submit("true");
        }
        let mut ended = runner.claim(0).unwrap();
        runner.start(&mut ended);
        let (status, done) = runner.finish(&mut ended);
        assert_eq!(status, 200, "{done}");
        let (held, other) = (runner.claim(0).unwrap(), runner.claim(0).unwrap());
        let receipt = done["receipt"].clone();
        Self { plane, tokens, runner, held, other, receipt }
    }

    fn path(&self, template: &str) -> String {
        let id = if template.starts_with("/v1/runners/") {
            self.runner.id.to_string()
        } else {
            self.held.run.clone()
        };
        let hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        template.replace("{id}", &id).replace("{name}", "A").replace("{hash}", hash)
    }

    /// A body that is right but for its token.
    fn body(&self, guard: Guard, token: &str) -> Value {
        match guard {
            Runner => json!({"runnerToken": token, "pool": "default"}),
            Enroll => json!({
                "enrollToken": token, "pool": "default",
                "publicKeyPem": self.runner.key.public().pem(),
            }),
            _ => json!({"claimToken": token, "events": [], "receipt": self.receipt}),
        }
    }

    #[track_caller]
    fn check(
        &self,
        call: (&str, &str),
        (token, body): (Option<&str>, Option<Vec<u8>>),
        wanted: u16,
    ) {
        let (method, path) = call;
        let (status, answer) = self.plane.client().bytes(method, path, token, body);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert_eq!(status, wanted, "{method} {path}: {answer}");
        let error: Value = serde_json::from_str(&answer).unwrap_or_default();
        assert!(error["error"].is_string(), "{method} {path}: {answer}");
    }
}

impl Scene {
    /// Sends a head that no client would send, and returns the status.
    fn raw(&self, head: &str) -> String {
        let address = self.plane.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[9..]).into_owned()
    }
}

fn bytes(body: &Value) -> Option<Vec<u8>> {
    Some(body.to_string().into_bytes())
}

#[test]
fn every_route_of_the_description_has_its_four_cases() {
    let plane = Plane::start();
    let (_, description) = plane.client().call("GET", "/v1/openapi.json", None, None);
    let mut described = BTreeSet::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            described.insert(format!("{} {path}", method.to_uppercase()));
            let good = ["200", "302"].iter().find_map(|code| operation["responses"].get(code));
            let good = good.unwrap_or_else(|| panic!("{method} {path} has no good answer"));
            assert!(path == "/" || good["content"].is_object(), "{method} {path}: {good}");
        }
    }
    let listed: BTreeSet<String> =
        ROUTES.iter().map(|(method, path, ..)| format!("{method} {path}")).collect();
    assert_eq!(described, listed);
}

#[test]
fn the_description_names_every_member_of_the_lease_protocol() {
    let plane = Plane::start();
    let (_, description) = plane.client().call("GET", "/v1/openapi.json", None, None);
    let schemas = &description["components"]["schemas"];
    for (schema, member) in [
        ("Enroll", "proof"),
        ("ClaimRun", "generation"),
        ("ClaimRun", "process"),
        ("StartRun", "startId"),
        ("LeasedRun", "leaseMs"),
        ("LeasedRun", "disconnectMs"),
        ("RenewResult", "leaseMs"),
    ] {
        let described = &schemas[schema]["properties"][member];
        assert!(described.is_object(), "{schema}.{member}: {}", schemas[schema]);
    }
    let runner = &schemas["RunnerList"]["properties"]["runners"]["items"]["properties"];
    assert!(runner["unreachable"].is_object(), "{runner}");
}

#[test]
fn nobody_is_turned_away_at_every_route() {
    let scene = Scene::new();
    let forged = format!("{}x", scene.held.claim_token);
    for (method, template, guard, takes, _) in ROUTES {
        let path = scene.path(template);
        let call = (*method, path.as_str());
        let some = (*takes != Nothing).then(|| b"{}".to_vec());
        match guard {
            Open => {
                let status = scene.plane.client().bytes(method, &path, None, None).0;
                assert!(matches!(status, 200 | 302), "{method} {path}: {status}");
            }
            Role(_) | ClaimBearer => {
                scene.check(call, (None, some.clone()), 401);
                let guess = if *guard == ClaimBearer { forged.as_str() } else { "a-guess" };
                scene.check(call, (Some(guess), some), 401);
            }
            Claim => {
                let body = scene.body(Claim, &forged);
                scene.check(call, (None, bytes(&body)), 401);
            }
            Runner => scene.check(call, (None, bytes(&scene.body(Runner, "a-guess"))), 401),
            // As the reference says it.
            Enroll => scene.check(call, (None, bytes(&scene.body(Enroll, "a-guess"))), 400),
        }
    }
}

#[test]
fn somebody_who_may_not_is_turned_away_at_every_route() {
    let scene = Scene::new();
    for (method, template, guard, takes, _) in ROUTES {
        let path = scene.path(template);
        let call = (*method, path.as_str());
        let some = (*takes != Nothing).then(|| b"{}".to_vec());
        match guard {
            Open => {}
            Role(lacking) => {
                let token = &scene.tokens.iter().find(|(role, _)| role == lacking).unwrap().1;
                scene.check(call, (Some(token), some), 403);
            }
            // Somebody else's run.
            ClaimBearer => scene.check(call, (Some(&scene.other.claim_token), some), 401),
            Claim => {
                let body = scene.body(Claim, &scene.other.claim_token);
                scene.check(call, (None, bytes(&body)), 401);
            }
            // Somebody else's pool.
            Runner => {
                let mut body = scene.body(Runner, &scene.runner.token);
                body["pool"] = json!("other");
                scene.check(call, (None, bytes(&body)), 401);
            }
            Enroll => {
                let wish = json!({"pool": "other"});
                let admin = Some(scene.plane.admin.as_str());
                let client = scene.plane.client();
                let (_, made) = client.call("POST", "/v1/enroll-tokens", admin, Some(&wish));
                let token = made["token"].as_str().unwrap();
                scene.check(call, (None, bytes(&scene.body(Enroll, token))), 400);
            }
        }
    }
}

#[test]
fn nonsense_is_refused_at_every_route() {
    let scene = Scene::new();
    let admin = Some(scene.plane.admin.as_str());
    for (method, template, guard, takes, nonsense) in ROUTES {
        let path = scene.path(template);
        let token = if matches!(guard, Role(_)) { admin } else { None };
        if let Json(_) = takes {
            for body in [&b"{"[..], b"[]", b"\"x\"", b"{\"claimToken\":7}", &[0xff; 8]] {
                // A cancel and an approval have nothing that must be there.
                if template.ends_with("cancel") && body.starts_with(b"{\"") {
                    continue;
                }
                if template.ends_with("approve") || template.ends_with("deny") {
                    continue;
                }
                if template.ends_with("enroll-tokens") && body.starts_with(b"{\"") {
                    continue;
                }
                scene.check((method, &path), (token, Some(body.to_vec())), 400);
            }
        }
        if !nonsense.is_empty() {
            let body = matches!(takes, Json(_)).then(|| b"{\"value\":\"x\"}".to_vec());
            let client = scene.plane.client();
            let (status, answer) = client.bytes(method, nonsense, token, body);
            let answer = String::from_utf8_lossy(&answer);
            assert!(matches!(status, 400 | 404), "{method} {nonsense}: {status} {answer}");
        }
        if matches!(guard, Role(_)) {
            let basic = [("authorization", "Basic YWRtaW46eA==".to_owned())];
            let status = scene.plane.client().send(method, &path, &basic, None).0;
            assert_eq!(status, 401, "{method} {path}: another scheme");
        }
    }
    for verb in ["approve", "deny"] {
        let path = format!("/v1/runs/{}/{verb}", scene.held.run);
        for body in [&b"{"[..], b"[]", b"{\"reason\":7,\"idpToken\":7}"] {
            scene.check(("POST", &path), (admin, Some(body.to_vec())), 400);
        }
    }
}

#[test]
fn too_much_is_refused_at_every_route() {
    let scene = Scene::new();
    let admin = Some(scene.plane.admin.as_str());
    let long = "x".repeat(70_000);
    for (method, template, guard, takes, _) in ROUTES {
        let path = scene.path(template);
        let token = match guard {
            Role(_) => admin,
            ClaimBearer => Some(scene.held.claim_token.as_str()),
            _ => None,
        };
        match takes {
            Json(most) | Bytes(most) => {
                scene.check((method, &path), (token, Some(vec![b' '; most + 1])), 413);
            }
            // Nothing of it is read, so only the head can be too large.
            Nothing => {}
        }
        let status = scene.raw(&format!("{method} {path}?x={long} HTTP/1.1\r\nhost: x\r\n\r\n"));
        assert!(matches!(status.as_str(), "414" | "431"), "{method} {path}: {status}");
    }
    let health = scene.plane.client().call("GET", "/v1/ready", None, None);
    assert_eq!(health.0, 200, "it still works");
}
