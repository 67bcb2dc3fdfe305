//! Leases on clocks that the test moves: claims that wait, replies that are lost, and a plane that
//! does not answer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use warrant_protocol::execution::ExecutionSpec;
use warrant_protocol::signed::Signed;
use warrant_protocol::{
    Chain, ChainedEvent, Contract, Event, PublicKey, Receipt, Sealer, Signer, SigningKey,
    SteppedTime, fold,
};
use warrant_runner::fleet::Tally;

use crate::loopback::{Asked, Loopback, recorded_claims, recorded_plane_key};
use crate::remote::{RemoteSetup, posted, recorded_now, work_with};

fn stepped() -> Arc<SteppedTime> {
    Arc::new(SteppedTime::at(recorded_now()))
}

/// What a claim brings from a plane that has leases.
fn leased(mut claim: Value) -> Value {
    claim["epoch"] = json!(1);
    claim["leaseMs"] = json!(15_000);
    claim["secrets"] = json!([]);
    claim
}

fn plane_key() -> SigningKey {
    SigningKey::from_seed(&[9; 32])
}

/// A claim for this script, by a plane of our own.
fn claim_for(script: &str) -> Value {
    let mut claim = leased(recorded_claims().remove(0));
    let key = plane_key();
    let mut body = Contract::from_value(claim["contract"].clone()).unwrap().body().clone();
    let spec = json!({"kind": "shell", "script": script});
    body.execution = Some(serde_json::from_value::<ExecutionSpec>(spec).unwrap());
    body.secrets.clear();
    body.issuer.key_id = key.public().id().clone();
    let contract: Contract = Signed::seal(&body, Signer::Plane, &key).unwrap();
    let mut chain = Chain::new(contract.hash());
    for event in claim["events"].as_array().unwrap() {
        let event: Event = serde_json::from_value(event["event"].clone()).unwrap();
        if !matches!(event, Event::SecretReleased { .. }) {
            chain.append(recorded_now(), &event).unwrap();
        }
    }
    claim["contract"] = contract.to_value();
    claim["events"] = chain.events().iter().map(ChainedEvent::to_value).collect();
    claim
}

/// The answers of a plane that has leases, beside those of the reference.
fn lease_answers(asked: &Asked) -> Option<(u16, Value)> {
    match asked.path.rsplit('/').next().unwrap() {
        "start" => Some((200, json!({"events": [], "secrets": []}))),
        "renew" => {
            let claim_token = asked.json()["claimToken"].clone();
            let answer =
                json!({"directive": "continue", "leaseMs": 15_000, "claimToken": claim_token});
            Some((200, answer))
        }
        "logs" | "hand-back" => Some((200, json!({"ok": true}))),
        _ => None,
    }
}

fn busy() -> Option<(u16, Value)> {
    Some((503, json!({"error": "not now"})))
}

/// The only receipt that was sent, after checking that it follows from the chain that was sent.
fn only_receipt(claim: &Value, asked: &[Asked], key: &PublicKey) -> (Receipt, Vec<Event>) {
    let ends = posted(asked, "/complete");
    assert_eq!(ends.len(), 1, "exactly one receipt");
    let end = ends[0].json();
    let receipt: Receipt = Signed::from_value(end["receipt"].clone()).unwrap();
    let contract = Contract::from_value(claim["contract"].clone()).unwrap();
    contract.check_signature(Signer::Plane, key).unwrap();
    let mut chain = Chain::new(contract.hash());
    let starts = posted(asked, "/start");
    let started = starts.last().map(|start| start.json()).unwrap_or_default();
    for events in [&claim["events"], &started["events"], &end["events"]] {
        for event in events.as_array().into_iter().flatten() {
            chain.push(ChainedEvent::from_value(event.clone()).unwrap()).unwrap();
        }
    }
    let runner = &receipt.body().runner;
    let sealer =
        Sealer::Runner { runner_id: runner.runner_id.clone(), key_id: runner.key_id.clone() };
    assert_eq!(fold(&contract, &chain, &sealer).unwrap(), *receipt.body());
    (receipt, chain.events().iter().map(|event| event.event().clone()).collect())
}

#[test]
fn a_claim_that_waited_any_time_for_work_brings_a_whole_lease() {
    let claim = leased(recorded_claims().remove(0));
    for parked_s in 0..=30 {
        let time = stepped();
        let clock = Arc::clone(&time);
        let plane = Loopback::with(vec![claim.clone()], move |asked| {
            if asked.path == "/v1/claims" {
                // The plane answers when there is work.
                clock.advance(Duration::from_secs(parked_s));
            }
            lease_answers(asked)
        });
        let data = tempfile::tempdir().unwrap();
        let plane_key = recorded_plane_key();
        let setup = RemoteSetup { data: data.path(), claims: 2, time, plane_key };
        let tally = work_with(&plane, setup);
        assert_eq!(tally, Tally { ended: 1, fenced: 0, waiting: 0 }, "after {parked_s} s");
        let (receipt, _) = only_receipt(&claim, &plane.asked(), &recorded_plane_key());
        assert_eq!(receipt.body().status.as_str(), "completed", "after {parked_s} s");
    }
}

/// The directory in which the only run works.
fn checkout(data: &Path) -> PathBuf {
    let session = std::fs::read_dir(data.join("sessions")).unwrap().next().unwrap().unwrap();
    session.path().join("repo")
}

/// A script that waits until the test lets it end.
const WAITS: &str = "while [ ! -e go ]; do sleep 0.02; done; echo done > out.txt";

#[test]
fn a_run_goes_on_while_its_plane_is_away_and_its_receipt_says_for_how_long() {
    let mut claim = claim_for(WAITS);
    claim["disconnectMs"] = json!(600_000);
    let (time, data) = (stepped(), tempfile::tempdir().unwrap());
    let (clock, directory) = (Arc::clone(&time), data.path().to_owned());
    let renewals = AtomicUsize::new(0);
    let plane = Loopback::with(vec![claim.clone()], move |asked| {
        if !asked.path.ends_with("/renew") {
            return lease_answers(asked);
        }
        // Six renewals, over 24 s, are not answered.
        match renewals.fetch_add(1, Ordering::SeqCst) {
            0 => lease_answers(asked),
            1..=6 => {
                clock.advance(Duration::from_secs(4));
                busy()
            }
            _ => {
                std::fs::write(checkout(&directory).join("go"), "").unwrap();
                lease_answers(asked)
            }
        }
    });
    let plane_key = plane_key().public().clone();
    let setup = RemoteSetup { data: data.path(), claims: 2, time, plane_key: plane_key.clone() };
    let tally = work_with(&plane, setup);
    assert_eq!(tally, Tally { ended: 1, fenced: 0, waiting: 0 });
    let (receipt, events) = only_receipt(&claim, &plane.asked(), &plane_key);
    assert_eq!(receipt.body().status.as_str(), "completed");
    assert_eq!(receipt.body().disconnected_ms, Some(24_000));
    let outages = events.iter().filter(|event| matches!(event, Event::RunDisconnected { .. }));
    assert_eq!(outages.count(), 1);
}

#[test]
fn a_run_whose_time_without_the_plane_is_over_is_cancelled_with_author_and_reason() {
    for (disconnect_ms, silent_s) in [(None, 12), (Some(30_000), 30)] {
        let mut claim = claim_for(WAITS);
        if let Some(disconnect_ms) = disconnect_ms {
            claim["disconnectMs"] = json!(disconnect_ms);
        }
        let (time, data) = (stepped(), tempfile::tempdir().unwrap());
        let clock = Arc::clone(&time);
        let plane = Loopback::with(vec![claim.clone()], move |asked| {
            if asked.path.ends_with("/renew") {
                clock.advance(Duration::from_secs(4));
                return busy();
            }
            lease_answers(asked)
        });
        let plane_key = plane_key().public().clone();
        let setup =
            RemoteSetup { data: data.path(), claims: 2, time, plane_key: plane_key.clone() };
        assert_eq!(work_with(&plane, setup), Tally { ended: 1, fenced: 0, waiting: 0 });
        let asked = plane.asked();
        let renewals = posted(&asked, "/renew").len();
        assert!(renewals >= silent_s / 4, "it tried {renewals} times");
        let (receipt, events) = only_receipt(&claim, &asked, &plane_key);
        assert_eq!(receipt.body().status.as_str(), "cancelled");
        let Some(Event::RunCancelled { actor, reason }) = events.last() else {
            panic!("{events:?}");
        };
        assert_eq!(actor.label(), format!("service:{}", receipt.body().runner.runner_id));
        assert!(reason.as_ref().unwrap().contains("the plane did not answer"), "{reason:?}");
    }
}

#[test]
fn a_start_whose_reply_was_lost_is_asked_again_under_the_same_id() {
    let claim = claim_for("true");
    let starts = AtomicUsize::new(0);
    let plane = Loopback::with(vec![claim.clone()], move |asked| {
        let is_first = asked.path.ends_with("/start") && starts.fetch_add(1, Ordering::SeqCst) == 0;
        if is_first { busy() } else { lease_answers(asked) }
    });
    let data = tempfile::tempdir().unwrap();
    let plane_key = plane_key().public().clone();
    let setup =
        RemoteSetup { data: data.path(), claims: 2, time: stepped(), plane_key: plane_key.clone() };
    assert_eq!(work_with(&plane, setup), Tally { ended: 1, fenced: 0, waiting: 0 });
    let asked = plane.asked();
    let ids: Vec<Value> =
        posted(&asked, "/start").iter().map(|start| start.json()["startId"].clone()).collect();
    assert_eq!(ids.len(), 2);
    assert!(ids[0].is_string() && ids[0] == ids[1], "{ids:?}");
    let (receipt, _) = only_receipt(&claim, &asked, &plane_key);
    assert_eq!(receipt.body().status.as_str(), "completed");
}

#[test]
fn a_run_that_could_not_be_started_in_time_is_given_back_and_not_cancelled() {
    let claim = claim_for("true");
    let (time, data) = (stepped(), tempfile::tempdir().unwrap());
    let clock = Arc::clone(&time);
    let plane = Loopback::with(vec![claim], move |asked| match asked.path.rsplit('/').next() {
        Some("start" | "renew") => {
            clock.advance(Duration::from_secs(2));
            busy()
        }
        _ => lease_answers(asked),
    });
    let plane_key = plane_key().public().clone();
    let setup = RemoteSetup { data: data.path(), claims: 2, time, plane_key };
    assert_eq!(work_with(&plane, setup), Tally { ended: 0, fenced: 1, waiting: 0 });
    let asked = plane.asked();
    assert_eq!(posted(&asked, "/hand-back").len(), 1);
    assert!(posted(&asked, "/complete").is_empty(), "nothing happened, so nothing is sealed");
    assert_eq!(std::fs::read_dir(data.path().join("outbox")).unwrap().count(), 0);
}
