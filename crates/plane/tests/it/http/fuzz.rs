//! The API against a fuzzer nobody here wrote, by its own description: nothing is ever a 500, and
//! every answer is one the description names.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};
use warrant_plane::home::fresh_key;
use warrant_plane::http::settings::Limits;
use warrant_protocol::Event;

use super::support::{HandRunner, HeldRun, Plane, policy, request};

/// A stream that never ends; it is tried by hand elsewhere.
const ENDLESS: &str = "/v1/events";

/// The description itself, which the fuzzer reads before it begins.
const ITSELF: &str = "/v1/openapi.json";

const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_schema_conformance";

/// A plane that slows nobody down, so that the fuzzer meets the plane and not its limits.
fn generous() -> Plane {
    Plane::start_with(|settings| {
        // Some calls are made as the reference's runner makes them.
        settings.compat.open_blob_reads = true;
        settings.limits = Some(Limits {
            requests_per_second: 1_000_000,
            request_burst: 1_000_000,
            auth_failures_per_minute: 1_000_000,
            ..Limits::default()
        });
    })
}

/// So many calls of each kind that would be accepted; the fuzzer bends every other one.
const WHOLE: usize = 6;

/// Operations that a fuzzer only gets past with calls that were made for it.
const ACCEPTED: [&str; 4] = [
    "POST /v1/runs/{id}/complete",
    "POST /v1/runs/{id}/events",
    "POST /v1/runs/{id}/start",
    "PUT /v1/policy",
];

/// Calls that would be accepted as they are: of runs that are really claimed, with receipts that
/// really follow from their chains, and the policy in force.
///
/// Returned with them are the runs whose leases must be renewed until the fuzzer is done.
fn whole(plane: &Plane, runner: &HandRunner) -> (Value, Vec<HeldRun>) {
    let leased = RefCell::new(Vec::new());
    // As the reference claims, so that no lease ends before the fuzzer comes to it.
    let claim = |leases: bool| {
        plane.submit("echo whole");
        runner.claim_with(&json!({ "leases": leases })).unwrap()
    };
    let call = |held: &HeldRun, mut body: Value| {
        body["claimToken"] = json!(held.claim_token);
        json!({"path": {"id": held.run}, "body": body})
    };
    let completed = |_| {
        let mut held = claim(false);
        let (events, receipt) = runner.end(&mut held, &Event::RunCompleted {});
        call(&held, json!({"events": events, "receipt": receipt.to_value()}))
    };
    let told = |_| {
        let mut held = claim(false);
        let (events, _) = runner.end(&mut held, &Event::RunCompleted {});
        call(&held, json!({ "events": events }))
    };
    let started = |_| {
        let held = claim(true);
        let started = call(&held, json!({}));
        leased.borrow_mut().push(held);
        started
    };
    let policy = |_| json!({"path": {}, "body": {"document": policy()}});
    let all = |each: &dyn Fn(usize) -> Value| (0..WHOLE).map(each).collect::<Vec<_>>();
    let calls = json!({
        "POST /v1/runs/{id}/complete": all(&completed),
        "POST /v1/runs/{id}/events": all(&told),
        "POST /v1/runs/{id}/start": all(&started),
        "PUT /v1/policy": all(&policy),
    });
    (calls, leased.into_inner())
}

/// Renews leases until it is told to stop, so that a slow machine does not end them before the
/// fuzzer comes to them.
fn renew(runner: &HandRunner, held: &[HeldRun], stop: &Receiver<()>) {
    while stop.recv_timeout(Duration::from_secs(3)) == Err(RecvTimeoutError::Timeout) {
        for run in held {
            // Those that the fuzzer ended have nothing to renew.
            let _ = runner.post(run, "renew", &json!({}));
        }
    }
}

/// Things that exist: what the fuzzer makes up around them reaches the code behind.
fn facts(plane: &Plane, whole: &Value) -> Value {
    let admin = Some(plane.admin.as_str());
    let runner = HandRunner::enroll(plane, "default");
    let sent_away = HandRunner::enroll(plane, "default");
    plane.principal(&json!({"name": "victim", "role": "requester"}));
    plane.submit("echo held");
    let mut held = runner.claim(0).unwrap();
    runner.start(&mut held);
    let open = plane.submit("echo open");
    let alice = plane.principal(&json!({"name": "alice", "role": "requester"}));
    let asked = json!({"request": request("true", &["MOCK_SECRET"])});
    let (_, waiting) = plane.client().call("POST", "/v1/runs", Some(&alice), Some(&asked));
    let mut refused = request("true", &[]);
    refused["pool"] = json!("no-such-pool");
    let refused = json!({ "request": refused });
    let (status, ended) = plane.client().call("POST", "/v1/runs", admin, Some(&refused));
    assert_eq!(status, 403, "{ended}");
    let (_, stored) = plane.client().bytes("POST", "/v1/blobs", admin, Some(b"blob".to_vec()));
    let stored: Value = serde_json::from_slice(&stored).unwrap();
    let of = |run: &Value| json!({ "id": run });
    json!({
        "whole": whole,
        "claimToken": held.claim_token,
        "runnerToken": runner.token,
        "enrollToken": plane.enroll,
        "publicKeyPem": fresh_key().unwrap().public().pem(),
        "pool": "default",
        "keep": ["admin", "bootstrap-enroller"],
        "request": request("echo fuzz", &[]),
        "id": held.run,
        "name": "victim",
        "hash": stored["hash"],
        "operations": {
            // What streams must end, and what ends a run must not end the one that is held.
            "GET /v1/runs/{id}/events": of(&ended["runId"]),
            "GET /v1/runs/{id}/logs": of(&ended["runId"]),
            "GET /v1/runs/{id}/bundle": of(&ended["runId"]),
            "POST /v1/runs/{id}/approve": of(&waiting["runId"]),
            "POST /v1/runs/{id}/deny": of(&waiting["runId"]),
            "POST /v1/runs/{id}/cancel": of(&json!(open)),
            "POST /v1/runners/{id}/revoke": of(&json!(sent_away.id)),
            "PUT /v1/secrets/{name}": {"name": "MOCK_SECRET"},
            "DELETE /v1/secrets/{name}": {"name": "MOCK_SECRET"},
        },
    })
}

/// The calls of runners, which bring their token in the body or in the head.
const FLEET: &str =
    "^/v1/(claims|runners/enroll|blobs|runs/[^/]+/(start|events|renew|complete|hand-back|logs))$";

/// One visit of the fuzzer.
struct Fuzz<'a> {
    plane: &'a Plane,
    /// The token in the head of every call.
    bearer: Option<&'a str>,
    facts: Value,
    /// Which paths, when not all.
    paths: Option<&'a str>,
    /// How many calls of each operation it makes up, unless `WARRANT_FUZZ_EXAMPLES` says.
    examples: u32,
}

impl Fuzz<'_> {
    /// Has the plane fuzzed; returns what each operation was answered.
    fn run(&self) -> String {
        let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/clients/schemathesis");
        let fuzzer = clients.join(".venv/bin/schemathesis");
        assert!(fuzzer.is_file(), "{} is missing: `cargo xtask install`", fuzzer.display());
        let folder = tempfile::tempdir().unwrap();
        let answers = folder.path().join("answers");
        let url = &self.plane.url;
        let examples = std::env::var("WARRANT_FUZZ_EXAMPLES");
        let examples = examples.unwrap_or_else(|_| self.examples.to_string());
        // It takes well under a minute; the bound is for one that never ends, not for a slow machine.
        let mut command = Command::new("timeout");
        command
            .arg("1200")
            .arg(&fuzzer)
            .args(["run", &format!("{url}/v1/openapi.json"), "--url", url])
            .args(["--checks", CHECKS, "--max-examples", &examples, "--seed", "7"])
            .args(["--phases", "examples,coverage,fuzzing", "--exclude-path", ENDLESS])
            .args(["--generation-database", "none", "--no-color", "--continue-on-failure"])
            .args(["--request-timeout", "30", "--suppress-health-check", "all"])
            .env("SCHEMATHESIS_HOOKS", clients.join("hooks.py"))
            .env("WARRANT_FACTS", self.facts.to_string())
            .env("WARRANT_ANSWERS", &answers)
            .current_dir(folder.path());
        if let Some(bearer) = self.bearer {
            command.args(["--header", &format!("Authorization: Bearer {bearer}")]);
        }
        if let Some(paths) = self.paths {
            command.args(["--include-path-regex", paths]);
        }
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
        let (status, answer) = self.plane.client().call("GET", "/v1/ready", None, None);
        assert_eq!(status, 200, "it still works: {answer}");
        std::fs::read_to_string(&answers).unwrap()
    }
}

#[test]
fn a_fuzzer_that_reads_the_description_finds_no_server_error() {
    let plane = generous();
    let leases = HandRunner::enroll(&plane, "default");
    let (whole, held) = whole(&plane, &leases);
    let facts = facts(&plane, &whole);
    let (stop, stopped) = channel();
    let renewing = std::thread::spawn(move || renew(&leases, &held, &stopped));
    let fuzz = Fuzz { plane: &plane, bearer: Some(&plane.admin), facts, paths: None, examples: 10 };
    let answers = fuzz.run();
    drop(stop);
    renewing.join().unwrap();
    let (_, description) = plane.client().call("GET", "/v1/openapi.json", None, None);
    every_operation_was_met(&description, &answers);
}

#[test]
fn a_fuzzer_without_a_token_finds_no_server_error_and_no_undocumented_status() {
    let plane = generous();
    let facts = json!({
        "whole": {}, "operations": {}, "keep": [], "name": "victim", "pool": "default",
        "claimToken": "a-guess", "runnerToken": "a-guess", "enrollToken": "a-guess",
        "publicKeyPem": fresh_key().unwrap().public().pem(), "request": request("true", &[]),
        "id": plane.submit("echo of-somebody-else"), "hash": "0".repeat(64),
    });
    let answers = Fuzz { plane: &plane, bearer: None, facts, paths: None, examples: 2 }.run();
    let is_open = |operation: &str| {
        [
            "GET / ",
            "GET /v1/health ",
            "GET /v1/ready ",
            "GET /v1/openapi.json ",
            "GET /v1/plane-key",
        ]
        .iter()
        .any(|open| operation.starts_with(open))
    };
    let good = |line: &&str| line.ends_with(" 200") && !is_open(line);
    let let_in: Vec<&str> = answers.lines().filter(good).collect();
    assert!(let_in.is_empty(), "a stranger was let in: {let_in:?}");
}

#[test]
fn a_fuzzer_with_a_claim_token_finds_no_server_error_in_what_runners_say() {
    let plane = generous();
    let runner = HandRunner::enroll(&plane, "default");
    plane.submit("echo held");
    let mut held = runner.claim_with(&json!({"leases": false})).unwrap();
    let bearer = held.claim_token.clone();
    let (events, _) = runner.end(&mut held, &Event::RunCompleted {});
    assert!(!events.is_empty());
    let facts = facts(&plane, &json!({}));
    let fuzz =
        Fuzz { plane: &plane, bearer: Some(&bearer), facts, paths: Some(FLEET), examples: 5 };
    let answers = fuzz.run();
    for call in ["/start", "/events", "/renew", "/complete", "/hand-back", "/logs"] {
        assert!(answers.contains(call), "{call} was never met");
    }
}

/// Checks that the fuzzer met each operation itself, and not its limits.
fn every_operation_was_met(description: &Value, answers: &str) {
    let mut met: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
    for line in answers.lines() {
        let (operation, status) = line.rsplit_once(' ').unwrap();
        met.entry(operation).or_default().push(status.parse().unwrap());
    }
    let mut accepted = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let operation = format!("{} {path}", method.to_uppercase());
            if [ENDLESS, ITSELF].contains(&path.as_str()) {
                continue;
            }
            let statuses = met.get(operation.as_str()).cloned().unwrap_or_default();
            let limited = statuses.iter().filter(|status| **status == 429).count();
            let is_met = statuses.len() > limited && limited * 10 <= statuses.len();
            assert!(is_met, "{operation}: {statuses:?}");
            assert!(
                statuses.iter().any(|status| ![401, 404].contains(status)),
                "{operation} only met the door: {statuses:?}"
            );
            let is_accepted = statuses.iter().any(|status| (200..300).contains(status));
            let has_whole = ACCEPTED.contains(&operation.as_str());
            assert!(is_accepted || !has_whole, "{operation} was never accepted: {statuses:?}");
            accepted += usize::from(has_whole);
        }
    }
    assert_eq!(accepted, ACCEPTED.len(), "the description has them all");
}
