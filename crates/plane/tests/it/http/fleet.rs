//! Runners over HTTP: claims that wait, leases, starts, stops, and what is refused.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warrant_protocol::{Bundle, Event, KeyRole, PublicKey, TrustedKeys, verify};

use super::support::{Client, HandRunner, Plane, request};

fn verified(plane: &Plane, run: &str, runner: &HandRunner) {
    let (status, bundle) =
        plane.client().call("GET", &format!("/v1/runs/{run}/bundle"), Some(&plane.admin), None);
    assert_eq!(status, 200, "{bundle}");
    let plane_key: PublicKey = plane.service.plane().home().plane_key().public().clone();
    let trusted = TrustedKeys::none()
        .and(KeyRole::Plane, plane_key)
        .and(KeyRole::Runner, runner.key.public().clone());
    let bundle = Bundle::from_slice(bundle.to_string().as_bytes()).unwrap();
    verify(bundle, &trusted).unwrap();
}

#[test]
fn a_run_goes_from_submission_to_a_verified_bundle() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    assert!(runner.claim(0).is_none(), "nothing to do yet");
    let run = plane.submit("true");
    let mut held = runner.claim(0).unwrap();
    assert_eq!(held.run, run);
    assert_eq!(held.answer["secrets"], json!([]), "secrets wait for the start");
    assert_eq!(plane.view(&run)["status"], "claimed");
    runner.start(&mut held);
    assert_eq!(plane.view(&run)["status"], "running");
    let (status, answer) = runner.finish(&mut held);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["receipt"]["signatures"].as_array().unwrap().len(), 2);
    assert_eq!(plane.view(&run)["status"], "completed");
    verified(&plane, &run, &runner);
}

#[test]
fn a_claim_that_waits_is_answered_when_work_comes() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    let began = Instant::now();
    let run = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| runner.claim(20_000).map(|held| held.run));
        let run = plane.submit("true");
        assert_eq!(waiting.join().unwrap().unwrap(), run);
        run
    });
    assert!(began.elapsed() < Duration::from_secs(15), "it did not wait for the deadline");
    assert_eq!(plane.view(&run)["status"], "claimed");
}

#[test]
fn the_same_run_is_never_given_to_two_runners() {
    let plane = Plane::start();
    let runners: Vec<_> = (0..4).map(|_| HandRunner::enroll(&plane, "default")).collect();
    for number in 0..12 {
        plane.submit(&format!("echo {number}"));
    }
    let mut all: Vec<String> = std::thread::scope(|scope| {
        let claim_all = |runner: &HandRunner| {
            std::iter::from_fn(|| runner.claim(0).map(|held| held.run)).collect::<Vec<_>>()
        };
        let threads: Vec<_> =
            runners.into_iter().map(|runner| scope.spawn(move || claim_all(&runner))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 12);
}

#[test]
fn an_old_runner_that_cannot_read_blobs_is_refused_before_secrets() {
    let plane = Plane::start();
    let run = plane.submit("true");
    let runner = HandRunner::enroll(&plane, "default");
    let claim = json!({"runnerToken": runner.token, "pool": "default"});
    let (status, answer) = runner.client.call("POST", "/v1/claims", None, Some(&claim));
    assert_eq!(status, 403, "{answer}");
    let told = answer["error"].as_str().unwrap();
    for part in ["--preset reference", "openBlobReads", "warrant runner start"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let view = plane.view(&run);
    assert_eq!(view["status"], "created", "{view}");
    assert!(!view["events"].to_string().contains("run.claimed"), "{view}");
    // A runner that shows its token is not concerned.
    assert!(runner.claim(0).is_some());
}

#[test]
fn an_old_runner_gets_its_secrets_with_the_claim_which_is_the_start() {
    let plane = Plane::start_with(|settings| settings.compat.open_blob_reads = true);
    let secret = json!({"value": "super-sensitive"});
    let path = "/v1/secrets/MOCK_SECRET";
    let (status, _) = plane.client().call("PUT", path, Some(&plane.admin), Some(&secret));
    assert_eq!(status, 200);
    let approver = plane.principal(&json!({"name": "security", "role": "approver"}));
    let body = json!({"request": request("true", &["MOCK_SECRET"])});
    let (_, answer) = plane.client().call("POST", "/v1/runs", Some(&plane.admin), Some(&body));
    let run = answer["runId"].as_str().unwrap();
    let approve = format!("/v1/runs/{run}/approve");
    let (status, answer) = plane.client().call("POST", &approve, Some(&approver), Some(&json!({})));
    assert_eq!((status, &answer["status"]), (200, &json!("created")));
    let runner = HandRunner::enroll(&plane, "default");
    let mut held = runner.claim_with(&json!({})).unwrap();
    assert_eq!(
        held.answer["secrets"],
        json!([{"name": "MOCK_SECRET", "value": "super-sensitive"}])
    );
    assert_eq!(plane.view(run)["state"], "running", "the claim was the start");
    let (status, answer) = runner.post(&held, "start", &json!({}));
    assert_eq!((status, &answer["code"]), (409, &json!("fenced")), "nothing starts twice");
    let (events, receipt) = runner.end(&mut held, &Event::RunCompleted {});
    let (status, _) = runner.post(&held, "events", &json!({"events": events}));
    assert_eq!(status, 200);
    let (status, answer) = runner.post(&held, "complete", &json!({"receipt": receipt.to_value()}));
    assert_eq!(status, 200, "{answer}");
    assert!(!plane.view(run).to_string().contains("super-sensitive"));
    verified(&plane, run, &runner);
}

#[test]
fn events_after_completion_are_refused_and_a_second_completion_is_the_first() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    let run = plane.submit("true");
    let mut held = runner.claim(0).unwrap();
    runner.start(&mut held);
    let (events, receipt) = runner.end(&mut held, &Event::RunCompleted {});
    let body = json!({"events": events, "receipt": receipt.to_value()});
    let (status, first) = runner.post(&held, "complete", &body);
    assert_eq!(status, 200, "{first}");
    assert_eq!(runner.post(&held, "complete", &body), (200, first));
    let from = held.chain.events().len();
    held.chain.append(crate::support::now(), &Event::RunCompleted {}).unwrap();
    let late = json!({"events": runner.told_since(&held, from)});
    assert_eq!(runner.post(&held, "events", &late).0, 409);
    verified(&plane, &run, &runner);
}

#[test]
fn a_refused_completion_does_not_burn_the_claim() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    let run = plane.submit("true");
    let mut held = runner.claim(0).unwrap();
    runner.start(&mut held);
    let (events, receipt) = runner.end(&mut held, &Event::RunCompleted {});
    let mut forged = receipt.to_value();
    forged["eventCount"] = json!(99);
    let (status, answer) =
        runner.post(&held, "complete", &json!({"events": events, "receipt": forged}));
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("receipt runner verification failed"));
    let (status, answer) =
        runner.post(&held, "complete", &json!({"events": events, "receipt": receipt.to_value()}));
    assert_eq!(status, 200, "{answer}");
    verified(&plane, &run, &runner);
}

#[test]
fn a_runner_cannot_forge_consent_or_sign_for_another() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    plane.submit("true");
    let mut held = runner.claim(0).unwrap();
    runner.start(&mut held);
    let from = held.chain.events().len();
    let actor = crate::support::person("alice");
    held.chain.append(crate::support::now(), &Event::ConsentGranted { actor }).unwrap();
    let forged = json!({"events": runner.told_since(&held, from)});
    let (status, answer) = runner.post(&held, "events", &forged);
    assert_eq!(status, 400);
    assert!(answer["error"].as_str().unwrap().contains("event chain rejected at seq"), "{answer}");
    let other = HandRunner::enroll(&plane, "default");
    plane.submit("true");
    let mut theirs = runner.claim(0).unwrap();
    runner.start(&mut theirs);
    let (events, receipt) = other.end(&mut theirs, &Event::RunCompleted {});
    let body = json!({"events": events, "receipt": receipt.to_value()});
    assert_eq!(runner.post(&theirs, "complete", &body).0, 400);
}

#[test]
fn a_lease_number_that_was_given_twice_opens_the_run_for_its_holder_alone() {
    let plane = Plane::start();
    let (first, second) =
        (HandRunner::enroll(&plane, "default"), HandRunner::enroll(&plane, "default"));
    let run = plane.submit("true");
    let forgotten = first.claim(0).unwrap();
    // A power cut took the lease away before it was durable: the run is queued as before.
    let raw = rusqlite::Connection::open(plane.dir.path().join("home/data/plane.db")).unwrap();
    raw.busy_timeout(Duration::from_secs(10)).unwrap();
    raw.execute_batch(
        "DROP TRIGGER events_last;
         DELETE FROM events WHERE seq = (SELECT max(seq) FROM events);
         CREATE TRIGGER events_last BEFORE DELETE ON events
           WHEN OLD.run NOT IN (SELECT run FROM sweeping)
           BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
         UPDATE runs SET state = 'queued', epoch = 0, runner = NULL, lease_until = NULL,
           event_count = event_count - 1,
           head = (SELECT hash FROM events ORDER BY seq DESC LIMIT 1);",
    )
    .unwrap();
    let settings = plane.service.settings().clone();
    let dir = std::sync::Arc::clone(&plane.dir);
    drop(plane);
    let plane = Plane::start_in(dir, settings);
    let (mut first, mut second) = (first, second);
    first.client = Client::new(&plane.url);
    second.client = Client::new(&plane.url);
    let mut held = second.claim(0).unwrap();
    assert_eq!(held.answer["epoch"], forgotten.answer["epoch"]);
    assert_eq!(first.post(&forgotten, "start", &json!({})).0, 409, "the chain names another");
    second.start(&mut held);
    assert_eq!(second.finish(&mut held).0, 200);
    verified(&plane, &run, &second);
}

#[test]
fn a_stop_reaches_a_runner_that_waits_within_a_second() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    let run = plane.submit("sleep 1000");
    let mut held = runner.claim(0).unwrap();
    runner.start(&mut held);
    let renewed = std::thread::scope(|scope| {
        let parked = scope.spawn(|| {
            let answer = runner.post(&held, "renew", &json!({"waitMs": 5000})).1;
            (answer, Instant::now())
        });
        // The renewal is parked once its lease was extended.
        std::thread::sleep(Duration::from_millis(300));
        let asked = Instant::now();
        let cancel = format!("/v1/runs/{run}/cancel");
        let (status, answer) =
            plane.client().call("POST", &cancel, Some(&plane.admin), Some(&json!({})));
        assert_eq!((status, &answer["state"]), (200, &json!("stopping")), "{answer}");
        let (answer, heard) = parked.join().unwrap();
        assert!(heard.duration_since(asked) < Duration::from_secs(1));
        answer
    });
    assert_eq!(renewed["directive"], "stop");
    assert_eq!(renewed["actor"], json!({"kind": "human", "id": "admin"}));
    let actor = crate::support::person("admin");
    let (events, receipt) = runner.end(&mut held, &Event::RunCancelled { actor, reason: None });
    let body = json!({"events": events, "receipt": receipt.to_value()});
    let (status, answer) = runner.post(&held, "complete", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(plane.view(&run)["status"], "cancelled");
}

#[test]
fn a_run_is_cancelled_before_it_started_and_its_runner_is_fenced() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    let run = plane.submit("true");
    let held = runner.claim(0).unwrap();
    let cancel = format!("/v1/runs/{run}/cancel");
    let (status, answer) =
        plane.client().call("POST", &cancel, Some(&plane.admin), Some(&json!({})));
    assert_eq!((status, &answer["status"]), (200, &json!("cancelled")));
    assert_eq!(runner.post(&held, "start", &json!({})).0, 409);
    assert_eq!(runner.post(&held, "renew", &json!({})).0, 409);
    verified(&plane, &run, &runner);
}

#[test]
fn a_run_handed_back_goes_to_the_next_runner() {
    let plane = Plane::start();
    let first = HandRunner::enroll(&plane, "default");
    let run = plane.submit("true");
    let held = first.claim(0).unwrap();
    assert_eq!(first.post(&held, "hand-back", &json!({})).0, 200);
    let second = HandRunner::enroll(&plane, "default");
    let mut again = second.claim(0).unwrap();
    assert_eq!((again.run.as_str(), &again.answer["epoch"]), (run.as_str(), &json!(2)));
    assert_eq!(first.post(&held, "start", &json!({})).0, 409, "the old lease is over");
    second.start(&mut again);
    assert_eq!(second.post(&again, "hand-back", &json!({})).0, 409, "it was started");
    assert_eq!(second.finish(&mut again).0, 200);
    verified(&plane, &run, &second);
}

#[test]
fn a_runner_gets_only_what_it_can_do() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    let mut hermetic = request("true", &[]);
    hermetic["isolation"] = json!("hermetic");
    let body = json!({"request": hermetic});
    let (status, answer) = plane.client().call("POST", "/v1/runs", Some(&plane.admin), Some(&body));
    assert_eq!(status, 200, "{answer}");
    let process = plane.submit("true");
    let abilities = json!({"leases": true, "abilities": {"isolations": ["process"]}});
    let held = runner.claim_with(&abilities).unwrap();
    assert_eq!(held.run, process);
    assert!(runner.claim_with(&abilities).is_none());
    let agents = json!({"leases": true, "abilities": {"agentKinds": ["codex"]}});
    assert!(runner.claim_with(&agents).is_none());
    assert_eq!(runner.claim(0).unwrap().run, answer["runId"]);
    let wrong = json!({"runnerToken": runner.token, "pool": "default",
        "abilities": {"isolations": ["moon"]}});
    let (status, answer) = runner.client.call("POST", "/v1/claims", None, Some(&wrong));
    assert_eq!(status, 400);
    assert!(answer["issues"][0].as_str().unwrap().starts_with("abilities.isolations.0:"));
}

#[test]
fn a_backlog_of_one_requester_delays_nobody_else_and_priority_goes_first() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    let bob = plane.principal(&json!({"name": "bob", "role": "requester"}));
    let submit = |token: &str, body: &Value| {
        let (status, answer) = plane.client().call("POST", "/v1/runs", Some(token), Some(body));
        assert_eq!(status, 200, "{answer}");
        answer["runId"].as_str().unwrap().to_owned()
    };
    let mine: Vec<String> = (0..5).map(|n| plane.submit(&format!("echo {n}"))).collect();
    let theirs = submit(&bob, &json!({"request": request("echo bob", &[])}));
    let urgent = submit(&plane.admin, &json!({"request": request("echo now", &[]), "priority": 5}));
    let order: Vec<String> = std::iter::from_fn(|| runner.claim(0).map(|held| held.run)).collect();
    assert_eq!(order[0], urgent);
    assert_eq!(order[1], mine[0]);
    assert_eq!(order[2], theirs, "bob does not wait for the whole backlog");
    let wish = json!({"request": request("x", &[]), "priority": 5});
    let (status, _) = plane.client().call("POST", "/v1/runs", Some(&bob), Some(&wish));
    assert_eq!(status, 403, "only an admin may go before others");
}

#[test]
fn a_runner_that_was_sent_away_gets_and_keeps_nothing() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    let unstarted = plane.submit("true");
    let held = runner.claim(0).unwrap();
    let path = format!("/v1/runners/{}/revoke", runner.id);
    assert_eq!(plane.client().call("POST", &path, Some(&plane.admin), None).0, 200);
    assert_eq!(runner.post(&held, "start", &json!({})).0, 401);
    let claim = json!({"runnerToken": runner.token, "pool": "default"});
    assert_eq!(runner.client.call("POST", "/v1/claims", None, Some(&claim)).0, 401);
    assert_eq!(plane.view(&unstarted)["state"], "queued", "what it held is taken from it");
}

#[test]
fn leases_and_runs_survive_a_restart_of_the_plane() {
    let plane = Plane::start();
    let settings = plane.service.settings().clone();
    let mut runner = HandRunner::enroll(&plane, "default");
    let run = plane.submit("true");
    let mut held = runner.claim(0).unwrap();
    runner.start(&mut held);
    let dir = std::sync::Arc::clone(&plane.dir);
    drop(plane);
    let plane = Plane::start_in(dir, settings);
    runner.client = Client::new(&plane.url);
    assert_eq!(runner.post(&held, "renew", &json!({})).0, 200);
    assert_eq!(runner.finish(&mut held).0, 200);
    verified(&plane, &run, &runner);
}

#[test]
fn live_events_and_logs_are_streamed_to_whoever_watches() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    let run = plane.submit("true");
    let mut held = runner.claim(0).unwrap();
    runner.start(&mut held);
    let watch = |path: String| plane.client().bytes("GET", &path, Some(&plane.admin), None).1;
    let (events, log) = std::thread::scope(|scope| {
        let log = format!("/v1/runs/{run}/logs");
        let (status, _) =
            runner.client.bytes("POST", &log, Some(&held.claim_token), Some(b"hello\n".to_vec()));
        assert_eq!(status, 200);
        let logs = scope.spawn(|| watch(format!("/v1/runs/{run}/logs")));
        let events = scope.spawn(|| watch(format!("/v1/runs/{run}/events")));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(runner.finish(&mut held).0, 200);
        (events.join().unwrap(), logs.join().unwrap())
    });
    let events = String::from_utf8(events).unwrap();
    assert!(events.contains("event: event\ndata: {"), "{events}");
    assert!(events.contains("run.completed") && events.contains("event: end"), "{events}");
    let log = String::from_utf8(log).unwrap();
    assert!(log.contains("data: aGVsbG8K") && log.contains("event: end"), "{log}");
}
