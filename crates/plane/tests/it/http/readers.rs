//! Who reads what: two requesters at every route, an approver, an auditor and an admin.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};
use warrant_protocol::event::ArtifactKind;
use warrant_protocol::{Digest, Event};

use super::support::{HandRunner, Plane, request};
use crate::support::now;

/// What a route gives to somebody whose run it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gives {
    /// Nothing of any run.
    NoRun,
    /// A run, or what belongs to one: nothing to a requester whose it is not.
    OneRun,
    /// A list or a stream of runs: only their own.
    ManyRuns,
    /// Nothing to any requester.
    NothingToRequesters,
    /// Nothing without a token of a runner.
    RunnersOnly,
}

use Gives::{ManyRuns, NoRun, NothingToRequesters, OneRun, RunnersOnly};

/// Every route. A new one must be put here, and into whichever test its class has.
const ROUTES: &[(&str, &str, Gives)] = &[
    ("get", "/", NoRun),
    ("get", "/metrics", NoRun),
    ("get", "/v1/openapi.json", NoRun),
    ("get", "/v1/health", NoRun),
    ("get", "/v1/plane-keys", NoRun),
    ("get", "/v1/ready", NoRun),
    ("get", "/v1/metrics", NoRun),
    ("get", "/v1/policy", NoRun),
    ("put", "/v1/policy", NothingToRequesters),
    ("get", "/v1/policy/history", NoRun),
    ("get", "/v1/secrets", NothingToRequesters),
    ("put", "/v1/secrets/{name}", NothingToRequesters),
    ("delete", "/v1/secrets/{name}", NothingToRequesters),
    ("get", "/v1/principals", NothingToRequesters),
    ("post", "/v1/principals", NothingToRequesters),
    ("post", "/v1/principals/{name}/rotate", NothingToRequesters),
    ("post", "/v1/principals/{name}/revoke", NothingToRequesters),
    ("post", "/v1/enroll-tokens", NothingToRequesters),
    ("get", "/v1/runners", NothingToRequesters),
    ("post", "/v1/runners/enroll", RunnersOnly),
    ("post", "/v1/runners/{id}/revoke", NothingToRequesters),
    ("get", "/v1/false-claims", NothingToRequesters),
    ("post", "/v1/claims", RunnersOnly),
    ("post", "/v1/blobs", NoRun),
    ("get", "/v1/blobs/{hash}", OneRun),
    ("get", "/v1/runs", ManyRuns),
    ("post", "/v1/runs", NoRun),
    ("get", "/v1/runs/{id}", OneRun),
    ("post", "/v1/runs/{id}/approve", NothingToRequesters),
    ("post", "/v1/runs/{id}/deny", NothingToRequesters),
    ("post", "/v1/runs/{id}/cancel", OneRun),
    ("get", "/v1/runs/{id}/bundle", OneRun),
    ("get", "/v1/runs/{id}/events", OneRun),
    ("post", "/v1/runs/{id}/events", RunnersOnly),
    ("get", "/v1/runs/{id}/logs", OneRun),
    ("post", "/v1/runs/{id}/logs", RunnersOnly),
    ("post", "/v1/runs/{id}/start", RunnersOnly),
    ("post", "/v1/runs/{id}/renew", RunnersOnly),
    ("post", "/v1/runs/{id}/hand-back", RunnersOnly),
    ("post", "/v1/runs/{id}/complete", RunnersOnly),
    ("get", "/v1/events", ManyRuns),
    ("get", "/v1/export", NothingToRequesters),
];

struct Scene {
    plane: Plane,
    alice: String,
    bob: String,
    auditor: String,
    /// A run of alice that ended, with a log.
    run: String,
    log: Digest,
}

impl Scene {
    fn new() -> Self {
        let plane = Plane::start();
        let of_role =
            |name: &str, role: &str| plane.principal(&json!({"name": name, "role": role}));
        let (alice, bob) = (of_role("alice", "requester"), of_role("bob", "requester"));
        let auditor = of_role("audra", "auditor");
        let run = submit(&plane, &alice, &[]);
        let runner = HandRunner::enroll(&plane, "default");
        let mut held = runner.claim(0).unwrap();
        runner.start(&mut held);
        let path = "/v1/blobs";
        let (status, _) = runner.client.bytes(
            "POST",
            path,
            Some(&held.claim_token),
            Some(b"what alice's program printed".to_vec()),
        );
        assert_eq!(status, 200);
        let log = Digest::of(b"what alice's program printed");
        let from = held.chain.events().len();
        let kept = Event::ArtifactCreated { kind: ArtifactKind::Log, hash: log };
        held.chain.append(now(), &kept).unwrap();
        held.chain.append(now(), &Event::RunCompleted {}).unwrap();
        let events = runner.told_since(&held, from);
        let receipt = runner.receipt(&held).to_value();
        let body = json!({"events": events, "receipt": receipt});
        let (status, answer) = runner.post(&held, "complete", &body);
        assert_eq!(status, 200, "{answer}");
        Self { plane, alice, bob, auditor, run, log }
    }

    fn call(&self, method: &str, path: &str, token: &str) -> (u16, Value) {
        let path = path
            .replace("{id}", &self.run)
            .replace("{hash}", &self.log.to_hex())
            .replace("{name}", "NAME");
        let body = (method != "get").then(|| json!({}));
        self.plane.client().call(&method.to_uppercase(), &path, Some(token), body.as_ref())
    }
}

fn submit(plane: &Plane, token: &str, secrets: &[&str]) -> String {
    let body = json!({"request": request("true", secrets)});
    let (status, answer) = plane.client().call("POST", "/v1/runs", Some(token), Some(&body));
    assert_eq!(status, 200, "{answer}");
    answer["runId"].as_str().unwrap().to_owned()
}

#[test]
fn every_route_says_what_it_gives_to_others() {
    let plane = Plane::start();
    let (_, description) = plane.client().call("GET", "/v1/openapi.json", None, None);
    let mut served: Vec<(String, String)> = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        served.extend(methods.as_object().unwrap().keys().map(|m| (m.clone(), path.clone())));
    }
    let mut listed: Vec<(String, String)> =
        ROUTES.iter().map(|(method, path, _)| ((*method).into(), (*path).into())).collect();
    served.sort();
    listed.sort();
    assert_eq!(served, listed);
}

#[test]
fn a_requester_reads_nothing_of_another() {
    let scene = Scene::new();
    for (method, path, gives) in ROUTES {
        let (status, answer) = match *path {
            // Streams of all runs never end; they have a test of their own.
            "/v1/events" => continue,
            _ => scene.call(method, path, &scene.bob),
        };
        let context = format!("{method} {path} as bob: {status} {answer}");
        match gives {
            NoRun => {}
            OneRun => assert_eq!(status, 404, "{context}"),
            ManyRuns => assert_eq!((status, &answer["runs"]), (200, &json!([])), "{context}"),
            NothingToRequesters => assert_eq!(status, 403, "{context}"),
            RunnersOnly => assert!((400..=401).contains(&status), "{context}"),
        }
        let is_echo = path.contains("{id}");
        assert!(is_echo || !answer.to_string().contains(&scene.run), "{context}");
        assert!(!answer.to_string().contains("alice"), "{context}");
    }
    let (status, answer) = scene.call("get", "/v1/runs?requester=human:alice", &scene.bob);
    assert_eq!((status, &answer["runs"]), (200, &json!([])));
}

#[test]
fn the_requester_auditors_and_admins_read_a_run() {
    let scene = Scene::new();
    let admin = scene.plane.admin.clone();
    for token in [&scene.alice, &scene.auditor, &admin] {
        for (method, path, gives) in ROUTES {
            if *method != "get" || *path == "/v1/events" {
                continue;
            }
            let (status, answer) = scene.call(method, path, token);
            match gives {
                OneRun => assert_eq!(status, 200, "{method} {path}: {answer}"),
                ManyRuns => assert!(answer.to_string().contains(&scene.run), "{path}: {answer}"),
                NoRun | NothingToRequesters | RunnersOnly => {}
            }
        }
    }
    let (status, answer) = scene.call("post", "/v1/runs/{id}/cancel", &scene.auditor);
    assert_eq!(status, 403, "an auditor changes nothing: {answer}");
    for path in ["/v1/export", "/v1/runners", "/v1/false-claims"] {
        assert_eq!(scene.call("get", path, &scene.auditor).0, 200, "{path}");
    }
}

#[test]
fn a_stream_of_changes_tells_a_requester_of_their_own_runs_alone() {
    let scene = Scene::new();
    let mut stream = TcpStream::connect(scene.plane.url.strip_prefix("http://").unwrap()).unwrap();
    let head = format!(
        "GET /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
        scene.bob
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains(": here")), "the stream has begun");
    let other = submit(&scene.plane, &scene.alice, &[]);
    let own = submit(&scene.plane, &scene.bob, &[]);
    let told: Vec<String> = lines
        .filter(|line| line.contains("runId"))
        .take_while(|line| !line.contains(&own))
        .collect();
    assert!(!told.iter().any(|line| line.contains(&other)), "{told:?}");
    assert_eq!(told, Vec::<String>::new());
}

#[test]
fn a_blob_is_read_by_who_stored_it_and_by_who_reads_a_run_that_names_it() {
    let scene = Scene::new();
    let client = scene.plane.client();
    let store = |token: &str, bytes: &[u8]| {
        assert_eq!(client.bytes("POST", "/v1/blobs", Some(token), Some(bytes.to_vec())).0, 200);
        Digest::of(bytes)
    };
    let read = |token: &str, digest: &Digest| {
        client.bytes("GET", &format!("/v1/blobs/{digest}"), Some(token), None).0
    };
    let blob = store(&scene.alice, b"alice's workspace");
    assert_eq!((read(&scene.alice, &blob), read(&scene.bob, &blob)), (200, 404));
    // To name a digest in a request of one's own proves nothing.
    let mut asked = request("true", &[]);
    asked["workspace"]["bundleHash"] = json!(blob);
    let body = json!({"request": asked});
    assert_eq!(client.call("POST", "/v1/runs", Some(&scene.bob), Some(&body)).0, 200);
    assert_eq!(read(&scene.bob, &blob), 404);
    assert_eq!(read(&scene.auditor, &blob), 200);
    // Who has the bytes may read them.
    store(&scene.bob, b"alice's workspace");
    assert_eq!(read(&scene.bob, &blob), 200);
}

#[test]
fn an_approver_reads_what_waits_for_them_and_what_they_answered() {
    let scene = Scene::new();
    let plane = &scene.plane;
    let client = plane.client();
    let of_role = |name: &str| plane.principal(&json!({"name": name, "role": "approver"}));
    // The policy names `security` for secrets, and nobody else by name.
    let (security, other) = (of_role("security"), of_role("somebody"));
    let path = "/v1/secrets/MOCK_SECRET";
    assert_eq!(client.call("PUT", path, Some(&plane.admin), Some(&json!({"value": "v"}))).0, 200);
    let runs: BTreeMap<&str, String> = ["approved", "refused", "waiting"]
        .into_iter()
        .map(|name| (name, submit(plane, &scene.alice, &["MOCK_SECRET"])))
        .collect();
    let answer = |name: &str, verb: &str| {
        let path = format!("/v1/runs/{}/{verb}", runs[name]);
        let (status, answer) = client.call("POST", &path, Some(&security), Some(&json!({})));
        assert_eq!(status, 200, "{answer}");
    };
    answer("approved", "approve");
    answer("refused", "deny");
    let view = |token: &str, run: &str| {
        client.call("GET", &format!("/v1/runs/{run}"), Some(token), None).0
    };
    let listed = |token: &str| client.call("GET", "/v1/runs", Some(token), None).1.to_string();
    for (name, run) in &runs {
        assert_eq!((view(&security, run), view(&other, run)), (200, 404), "{name}");
        assert!(!listed(&other).contains(run.as_str()), "{name}");
    }
    assert_eq!(view(&security, &scene.run), 404, "nobody asked security about it");
    let all = listed(&security);
    assert!(all.contains(&runs["approved"]) && all.contains(&runs["waiting"]), "{all}");
    assert!(!all.contains(&scene.run), "{all}");
}
