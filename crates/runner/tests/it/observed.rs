//! What a receipt claims is what this very run saw: lies and floods are planted.

use std::io::Read as _;
use std::time::SystemTime;

use warrant_protocol::port::Plane as _;
use warrant_protocol::{Component, Digest, Enforcement, Event, Evidence, Limits, Outcome, RunId};
use warrant_sandbox::NetworkDecision;

use crate::support::{House, TestBackend, request};

fn component(enforcement: Enforcement) -> Component {
    Component { enforcement, evidence: Evidence::Measured, source: "test".into(), detail: None }
}

fn decision(host: String, allowed: bool) -> NetworkDecision {
    NetworkDecision {
        host,
        port: 443,
        allowed,
        why: if allowed { "allowed".into() } else { "not-listed".into() },
        count: 3,
        bytes_out: if allowed { 1_000_000 } else { 0 },
        bytes_in: 0,
        at: SystemTime::now(),
        model: None,
    }
}

/// Returns the events of a run.
fn events(house: &House, run: &RunId) -> Vec<Event> {
    let bundle = house.plane.bundle(run).unwrap();
    let events = bundle["events"].as_array().unwrap().iter();
    events.map(|event| serde_json::from_value(event["event"].clone()).unwrap()).collect()
}

#[test]
fn a_flood_of_blocked_names_cannot_hide_where_something_went() {
    let house = House::new();
    let mut backend = TestBackend::new();
    backend.network = (0..5000).map(|i| decision(format!("junk{i}.example"), false)).collect();
    backend.network.extend(["a", "b"].map(|host| decision(format!("{host}.upload.example"), true)));
    let ended = house.run(request("true"), &backend);
    let events = events(&house, &ended.run);
    let uploads: Vec<(&str, Option<u64>)> = events
        .iter()
        .filter_map(|event| match event {
            Event::NetworkConnected { host, bytes_out, .. } if host.ends_with("upload.example") => {
                Some((host.as_str(), *bytes_out))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        uploads,
        [("a.upload.example", Some(1_000_000)), ("b.upload.example", Some(1_000_000))]
    );
    let folded = events.iter().find_map(|event| match event {
        Event::NetworkFolded { destinations, attempts, hash } => {
            Some((*destinations, *attempts, *hash))
        }
        _ => None,
    });
    let (destinations, attempts, hash) = folded.unwrap();
    assert_eq!((destinations, attempts), (5000 - 1024, 3 * (5000 - 1024)), "exactly counted");
    assert_eq!(ended.receipt.body().network_folded.unwrap().hash, hash);
    let mut list = String::new();
    house.plane.blob(&hash).unwrap().read_to_string(&mut list).unwrap();
    assert_eq!(Digest::of(list.as_bytes()), hash);
    assert_eq!(list.lines().count() as u64, destinations);
    assert!(list.contains("junk4999.example\t443\tnot-listed\t3\n"));
}

#[test]
fn a_posture_that_only_preflight_saw_is_not_in_the_receipt() {
    let house = House::new();
    let mut backend = TestBackend::new();
    let mut running = backend.posture.clone();
    backend.posture.components.insert("network".into(), component(Enforcement::Enforced));
    running.components.insert("network".into(), component(Enforcement::Absent));
    backend.posture_while_running = Some(running);
    let ended = house.run(request("true"), &backend);
    assert_eq!(ended.outcome, Outcome::Exited { code: 0 });
    let posture = ended.receipt.body().posture.clone().unwrap();
    assert_eq!(posture.components["network"].enforcement, Enforcement::Absent);
}

#[test]
fn a_limit_that_is_only_sampled_is_not_told_as_enforced() {
    let house = House::new();
    let mut backend = TestBackend::new();
    backend.posture.components.insert("limits.memory".into(), component(Enforcement::Observed));
    let mut wanted = request("true");
    let limits = Limits { memory_bytes: Some(1 << 30), ..Limits::danger_unlimited() };
    wanted.limits = Some(limits);
    let ended = house.run(wanted.clone(), &backend);
    assert_eq!(ended.outcome, Outcome::Exited { code: 0 }, "{}", ended.message);
    let limits = ended.receipt.body().limits.clone().unwrap();
    assert_eq!(limits.enforced.memory_bytes, None);
    assert_eq!(limits.observed.unwrap().memory_bytes, Some(1 << 30));

    wanted.required_posture = Some(vec!["limits.memory".into()]);
    let ended = house.run(wanted, &backend);
    assert_eq!(ended.outcome, Outcome::PostureRefused);
    assert!(ended.message.contains("limits.memory only sampled here"), "{}", ended.message);
    assert!(ended.message.contains("warrant doctor"), "{}", ended.message);
    assert_eq!(backend.runs(), 1, "the second one never ran");
}
