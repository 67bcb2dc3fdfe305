//! Leases on clocks that the test moves, and replies that are lost, doubled or late.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use warrant_protocol::wire::Enroll;
use warrant_protocol::{Bundle, KeyRole, SteppedTime, TrustedKeys, verify};

use super::support::{Client, HandRunner, HeldRun, Plane, request};

const HOUR: Duration = Duration::from_secs(3600);

fn stepped() -> Arc<SteppedTime> {
    Arc::new(SteppedTime::at(crate::support::now()))
}

/// Lets time pass in steps of a second, with a sweep after each; returns what was reaped.
fn pass(plane: &Plane, time: &SteppedTime, seconds: u64) -> (Vec<String>, Vec<String>) {
    let (mut requeued, mut lost) = (Vec::new(), Vec::new());
    for _ in 0..seconds {
        time.advance(Duration::from_secs(1));
        let reaped = plane.service.reap().unwrap();
        requeued.extend(reaped.requeued.iter().map(ToString::to_string));
        lost.extend(reaped.lost.iter().map(ToString::to_string));
    }
    (requeued, lost)
}

/// One run that a runner took and one that it started.
fn two_runs(plane: &Plane, runner: &HandRunner) -> (HeldRun, HeldRun) {
    plane.submit("echo 1");
    let taken = runner.claim(0).unwrap();
    plane.submit("echo 2");
    let mut started = runner.claim(0).unwrap();
    runner.start(&mut started);
    (taken, started)
}

fn verified(plane: &Plane, run: &str, runner: &HandRunner) -> Value {
    let (status, bundle) =
        plane.client().call("GET", &format!("/v1/runs/{run}/bundle"), Some(&plane.admin), None);
    assert_eq!(status, 200, "{bundle}");
    let trusted = TrustedKeys::none()
        .and(KeyRole::Plane, plane.service.plane().home().plane_key().public().clone())
        .and(KeyRole::Runner, runner.key.public().clone());
    verify(Bundle::from_slice(bundle.to_string().as_bytes()).unwrap(), &trusted).unwrap();
    bundle
}

fn runner_row(plane: &Plane, runner: &HandRunner) -> Value {
    let (_, list) = plane.client().call("GET", "/v1/runners", Some(&plane.admin), None);
    let rows = list["runners"].as_array().unwrap();
    rows.iter().find(|row| row["runnerId"] == json!(runner.id)).unwrap().clone()
}

#[test]
fn a_lease_that_runs_out_requeues_before_the_start_and_loses_after_it() {
    let time = stepped();
    let plane = Plane::start_on(&time);
    let runner = HandRunner::enroll(&plane, "default");
    let (taken, mut started) = two_runs(&plane, &runner);
    assert_eq!(pass(&plane, &time, 18), (Vec::new(), Vec::new()));
    assert_eq!(pass(&plane, &time, 2), (vec![taken.run.clone()], Vec::new()), "within 20 s");
    assert_eq!(plane.view(&started.run)["state"], "running", "its runner may be on its own");
    assert_eq!(pass(&plane, &time, 590).1, Vec::<String>::new(), "policy gives it ten minutes");
    assert_eq!(pass(&plane, &time, 20).1, vec![started.run.clone()]);
    assert_eq!(plane.view(&started.run)["state"], "lost");
    assert_eq!(runner.finish(&mut started).0, 409, "too late");
    let again = runner.claim(0).unwrap();
    assert_eq!(again.run, taken.run);
    assert_eq!(runner.post(&taken, "start", &json!({})).0, 409, "the old lease is fenced");
    verified(&plane, &started.run, &runner);
}

#[test]
fn a_wall_clock_that_jumps_an_hour_either_way_changes_nothing() {
    for is_ahead in [true, false] {
        let time = stepped();
        let plane = Plane::start_on(&time);
        let runner = HandRunner::enroll(&plane, "default");
        let (taken, mut started) = two_runs(&plane, &runner);
        let now = crate::support::now();
        let jumped = match is_ahead {
            true => now.plus_ms(3_590_000),
            false => warrant_protocol::Timestamp::from_unix_ms(now.unix_ms() - 3_590_000).unwrap(),
        };
        time.set_date(jumped);
        assert_eq!(pass(&plane, &time, 10), (Vec::new(), Vec::new()));
        for held in [&taken, &started] {
            assert_eq!(runner.post(held, "renew", &json!({})).0, 200);
        }
        assert_eq!(pass(&plane, &time, 10), (Vec::new(), Vec::new()));
        assert_eq!(runner.finish(&mut started).0, 200);
        // And a silent runner is still found out.
        assert_eq!(pass(&plane, &time, 20).0, vec![taken.run.clone()], "ahead: {is_ahead}");
        verified(&plane, &started.run, &runner);
    }
}

#[test]
fn a_plane_that_was_suspended_takes_nothing_from_anybody() {
    let time = stepped();
    let plane = Plane::start_on(&time);
    let runner = HandRunner::enroll(&plane, "default");
    let (taken, mut started) = two_runs(&plane, &runner);
    pass(&plane, &time, 5);
    // Nobody looks for an hour: a closed lid, a stopped process.
    time.advance(HOUR);
    let reaped = plane.service.reap().unwrap();
    assert!(reaped.requeued.is_empty() && reaped.lost.is_empty(), "{reaped:?}");
    for held in [&taken, &started] {
        assert_eq!(runner.post(held, "renew", &json!({})).0, 200);
    }
    assert_eq!(pass(&plane, &time, 14), (Vec::new(), Vec::new()));
    assert_eq!(runner.finish(&mut started).0, 200);
}

#[test]
fn a_plane_that_starts_again_gives_every_lease_its_full_time() {
    let time = stepped();
    let plane = Plane::start_on(&time);
    let settings = plane.service.settings().clone();
    let mut runner = HandRunner::enroll(&plane, "default");
    let (taken, mut started) = two_runs(&plane, &runner);
    let dir = Arc::clone(&plane.dir);
    drop(plane);
    time.advance(HOUR / 2);
    let plane = Plane::start_again_on(&time, dir, settings);
    runner.client = Client::new(&plane.url);
    assert_eq!(pass(&plane, &time, 17), (Vec::new(), Vec::new()));
    assert_eq!(runner.post(&started, "renew", &json!({})).0, 200);
    assert_eq!(pass(&plane, &time, 3), (vec![taken.run], Vec::new()));
    assert_eq!(runner.finish(&mut started).0, 200);
    verified(&plane, &started.run, &runner);
}

#[test]
fn the_answer_to_a_claim_and_a_renewal_carries_the_time_left_and_the_time_for_disconnection() {
    let time = stepped();
    let plane = Plane::start_on(&time);
    let runner = HandRunner::enroll(&plane, "default");
    plane.submit("true");
    let held = runner.claim(0).unwrap();
    assert_eq!(held.answer["leaseMs"], json!(15_000));
    assert_eq!(held.answer["disconnectMs"], json!(600_000));
    let (_, renewed) = runner.post(&held, "renew", &json!({}));
    assert_eq!(renewed["leaseMs"], json!(15_000));
}

#[test]
fn policy_says_for_how_long_a_run_goes_on_without_its_plane() {
    for (disconnect, expected_ms, lost_after_s) in
        [(json!("stop"), Value::Null, 20), (json!({"max": "90s"}), json!(90_000), 110)]
    {
        let time = stepped();
        let plane = Plane::start_on(&time);
        let runner = HandRunner::enroll(&plane, "default");
        let mut document = super::support::policy();
        document["controls"] = json!({"disconnect": disconnect});
        let body = json!({"document": document});
        let (status, answer) =
            plane.client().call("PUT", "/v1/policy", Some(&plane.admin), Some(&body));
        assert_eq!(status, 200, "{answer}");
        plane.submit("true");
        let mut held = runner.claim(0).unwrap();
        assert_eq!(held.answer["disconnectMs"], expected_ms);
        runner.start(&mut held);
        assert_eq!(pass(&plane, &time, lost_after_s - 3), (Vec::new(), Vec::new()));
        assert_eq!(pass(&plane, &time, 3).1, vec![held.run]);
    }
    let plane = Plane::start();
    for wrong in [json!("go"), json!({"max": "0s"}), json!({"max": 10}), json!({"max": "25h"})] {
        let mut document = super::support::policy();
        document["controls"] = json!({"disconnect": wrong});
        let body = json!({"document": document});
        let (status, answer) =
            plane.client().call("PUT", "/v1/policy", Some(&plane.admin), Some(&body));
        assert_eq!(status, 400, "{answer}");
        assert!(answer.to_string().contains("disconnect"), "{answer}");
    }
}

#[test]
fn a_silent_runner_is_shown_as_unreachable_within_20_s_and_as_reachable_once_it_is_heard() {
    let time = stepped();
    let plane = Plane::start_on(&time);
    let runner = HandRunner::enroll(&plane, "default");
    assert!(runner.claim(0).is_none());
    pass(&plane, &time, 15);
    assert_eq!(runner_row(&plane, &runner).get("unreachable"), None, "a claim waits that long");
    pass(&plane, &time, 5);
    assert_eq!(runner_row(&plane, &runner)["unreachable"], json!(true));
    assert!(runner.claim(0).is_none());
    assert_eq!(runner_row(&plane, &runner).get("unreachable"), None);
    time.advance(HOUR);
    plane.service.reap().unwrap();
    assert_eq!(runner_row(&plane, &runner).get("unreachable"), None, "the plane was suspended");
}

#[test]
fn a_later_process_of_a_runner_gives_up_at_once_what_an_earlier_one_held() {
    let time = stepped();
    let plane = Plane::start_on(&time);
    let runner = HandRunner::enroll(&plane, "default");
    let claim =
        |generation: u64| runner.claim_with(&json!({"leases": true, "generation": generation}));
    plane.submit("echo 1");
    let taken = claim(7).unwrap();
    plane.submit("echo 2");
    let mut started = claim(7).unwrap();
    runner.start(&mut started);
    assert_eq!(pass(&plane, &time, 1), (Vec::new(), Vec::new()));
    assert!(claim(8).is_none());
    assert_eq!(pass(&plane, &time, 1), (vec![taken.run], vec![started.run.clone()]));
    assert_eq!(plane.view(&started.run)["failureMessage"], "the process that ran it is gone");
    let late = json!({"runnerToken": runner.token, "pool": "default", "generation": 7});
    let (status, answer) = runner.client.call("POST", "/v1/claims", None, Some(&late));
    assert_eq!(status, 401, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("--data-dir"), "{answer}");
    verified(&plane, &started.run, &runner);
}

#[test]
fn a_runner_that_is_killed_on_this_machine_loses_its_runs_and_nobody_elses() {
    let time = stepped();
    let plane = Plane::start_on(&time);
    let (killed, other) =
        (HandRunner::enroll(&plane, "default"), HandRunner::enroll(&plane, "default"));
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks: u64 = fields.split_whitespace().nth(19).unwrap().parse().unwrap();
    let own = warrant_plane::process_identity::this_process().unwrap();
    let process = json!({
        "bootId": own.boot_id, "pidNamespace": own.pid_namespace,
        "pid": child.id(), "startTicks": ticks,
    });
    let claim = |runner: &HandRunner, process: &Value| {
        runner.claim_with(&json!({"leases": true, "process": process})).unwrap()
    };
    plane.submit("echo 1");
    let taken = claim(&killed, &process);
    plane.submit("echo 2");
    let mut started = claim(&killed, &process);
    killed.start(&mut started);
    plane.submit("echo 3");
    let mut others = claim(&other, &json!(own));
    other.start(&mut others);
    assert_eq!(pass(&plane, &time, 1), (Vec::new(), Vec::new()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(pass(&plane, &time, 1), (Vec::new(), Vec::new()), "it may come back");
    assert_eq!(pass(&plane, &time, 2), (vec![taken.run], vec![started.run.clone()]));
    assert_eq!(plane.view(&started.run)["failureMessage"], "the process that ran it is gone");
    verified(&plane, &started.run, &killed);
    assert_eq!(plane.view(&others.run)["state"], "running");
}

/// A run with a secret, approved, and held by a runner.
fn with_secret(plane: &Plane, runner: &HandRunner) -> HeldRun {
    let secret = json!({"value": "super-sensitive"});
    let path = "/v1/secrets/MOCK_SECRET";
    assert_eq!(plane.client().call("PUT", path, Some(&plane.admin), Some(&secret)).0, 200);
    let approver = plane.principal(&json!({"name": "security", "role": "approver"}));
    let body = json!({"request": request("true", &["MOCK_SECRET"])});
    let (_, answer) = plane.client().call("POST", "/v1/runs", Some(&plane.admin), Some(&body));
    let approve = format!("/v1/runs/{}/approve", answer["runId"].as_str().unwrap());
    assert_eq!(plane.client().call("POST", &approve, Some(&approver), Some(&json!({}))).0, 200);
    runner.claim(0).unwrap()
}

#[test]
fn the_same_start_again_gets_the_same_answer_and_another_one_none() {
    let plane = Plane::start();
    let settings = plane.service.settings().clone();
    let mut runner = HandRunner::enroll(&plane, "default");
    let mut held = with_secret(&plane, &runner);
    let start = json!({"startId": "start-1"});
    let (status, first) = runner.post(&held, "start", &start);
    assert_eq!(status, 200, "{first}");
    assert_eq!(first["secrets"], json!([{"name": "MOCK_SECRET", "value": "super-sensitive"}]));
    assert_eq!(runner.post(&held, "start", &start), (200, first.clone()), "a reply was lost");
    let dir = Arc::clone(&plane.dir);
    drop(plane);
    let plane = Plane::start_in(dir, settings);
    runner.client = Client::new(&plane.url);
    assert_eq!(runner.post(&held, "start", &start), (200, first.clone()), "after a restart");
    for other in [json!({"startId": "start-2"}), json!({})] {
        assert_eq!(runner.post(&held, "start", &other).0, 409, "nothing starts twice");
    }
    for event in first["events"].as_array().unwrap() {
        let event = warrant_protocol::ChainedEvent::from_value(event.clone()).unwrap();
        held.chain.push(event).unwrap();
    }
    assert_eq!(runner.finish(&mut held).0, 200);
    let (status, late) = runner.post(&held, "start", &start);
    assert_eq!(status, 409, "a run that ended gets no secrets: {late}");
    verified(&plane, &held.run, &runner);
}

#[test]
fn the_same_start_twice_at_once_is_one_start() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    for round in 0..10 {
        plane.submit(&format!("echo {round}"));
        let held = runner.claim(0).unwrap();
        let body = json!({"claimToken": held.claim_token, "startId": "start-1"});
        let path = format!("/v1/runs/{}/start", held.run);
        let answers: Vec<(u16, Value)> = std::thread::scope(|scope| {
            let ask = || plane.client().call("POST", &path, None, Some(&body));
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(answers.iter().all(|answer| answer.0 == 200 && *answer == answers[0]));
        let view = plane.view(&held.run).to_string();
        assert_eq!(view.matches("run.started").count(), 1, "{view}");
    }
}

#[test]
fn a_run_handed_back_twice_is_queued_once() {
    let plane = Plane::start();
    let (first, second) =
        (HandRunner::enroll(&plane, "default"), HandRunner::enroll(&plane, "default"));
    let run = plane.submit("true");
    let held = first.claim(0).unwrap();
    assert_eq!(first.post(&held, "hand-back", &json!({})).0, 200);
    assert_eq!(first.post(&held, "hand-back", &json!({})).0, 200, "the reply was lost");
    let mut again = second.claim(0).unwrap();
    assert_eq!(first.post(&held, "hand-back", &json!({})).0, 200, "a late copy");
    second.start(&mut again);
    assert_eq!(second.finish(&mut again).0, 200);
    let bundle = verified(&plane, &run, &second);
    assert_eq!(bundle.to_string().matches("run.requeued").count(), 1);
}

fn enroll_body(key: &warrant_protocol::SigningKey, token: &str) -> Value {
    let pem = key.public().pem();
    let text = Enroll::proof_text(token, pem, &"default".parse().unwrap());
    let proof = STANDARD.encode(key.sign(text.as_bytes()));
    json!({"enrollToken": token, "publicKeyPem": pem, "pool": "default", "proof": proof})
}

#[test]
fn the_same_enrollment_again_is_the_same_runner() {
    let plane = Plane::start();
    let client = plane.client();
    let (_, issued) =
        client.call("POST", "/v1/enroll-tokens", Some(&plane.admin), Some(&json!({})));
    let once = issued["token"].as_str().unwrap();
    for token in [once, plane.enroll.as_str()] {
        let key = warrant_plane::home::fresh_key().unwrap();
        let body = enroll_body(&key, token);
        let enroll = |body: &Value| client.call("POST", "/v1/runners/enroll", None, Some(body));
        let (status, first) = enroll(&body);
        assert_eq!(status, 200, "{first}");
        assert_eq!(enroll(&body), (200, first.clone()), "a reply was lost");
        let claim = json!({"runnerToken": first["runnerToken"], "pool": "default", "leases": true});
        assert_eq!(client.call("POST", "/v1/claims", None, Some(&claim)).0, 200);
        // Who only knows the public key is somebody else.
        let mut stranger = body.clone();
        stranger["proof"] = json!(STANDARD.encode([7; 64]));
        let (status, answer) = enroll(&stranger);
        assert_ne!(answer["runnerId"], first["runnerId"], "{status} {answer}");
        assert_ne!(answer["runnerToken"], first["runnerToken"], "{status} {answer}");
        let revoke = format!("/v1/runners/{}/revoke", first["runnerId"].as_str().unwrap());
        assert_eq!(client.call("POST", &revoke, Some(&plane.admin), None).0, 200);
        let (status, answer) = enroll(&body);
        assert_eq!(status, 400, "a revoked runner does not come back: {answer}");
    }
    let other = enroll_body(&warrant_plane::home::fresh_key().unwrap(), once);
    let (status, _) = client.call("POST", "/v1/runners/enroll", None, Some(&other));
    assert_eq!(status, 400, "the token let one runner in");
    let (_, list) = client.call("GET", "/v1/runners", Some(&plane.admin), None);
    assert_eq!(list["runners"].as_array().unwrap().len(), 3, "two, and one that proved nothing");
}

#[test]
fn a_run_that_a_person_cancels_names_them_and_the_reason() {
    let plane = Plane::start();
    let run = plane.submit("true");
    let cancel = format!("/v1/runs/{run}/cancel");
    assert_eq!(plane.client().call("POST", &cancel, Some(&plane.admin), Some(&json!({}))).0, 200);
    let view = plane.view(&run);
    let last = view["events"].as_array().unwrap().last().unwrap()["event"].clone();
    assert_eq!(last["type"], "run.cancelled");
    assert_eq!(last["actor"], json!({"kind": "human", "id": "admin"}));
    assert!(last["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{last}");
    assert!(view["failureMessage"].as_str().unwrap().contains("human:admin"), "{view}");
}
