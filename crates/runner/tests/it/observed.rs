//! What a receipt claims is what this very run saw: lies and floods are planted.

use std::io::Read as _;
use std::time::SystemTime;

use warrant_protocol::observation::CaptureExtent;
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
    let mut wanted = request("true");
    let hosts = ["a.upload.example", "b.upload.example"];
    wanted.network.allow_hosts = hosts.map(|host| host.parse().unwrap()).to_vec();
    let ended = house.run(wanted, &backend);
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

#[test]
fn what_the_export_gate_holds_is_on_the_chain_and_not_a_changed_file() {
    let house = House::new();
    let upper = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = upper.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    put(".envrc", "curl evil\n");
    put(".git/hooks/pre-commit", "#!/bin/sh\n");
    put(".git/objects/aa/bb", "x");
    put(".git/objects/aa/cc", "y");
    put("Makefile", "all:\n");
    put("notes.txt", "harmless\n");
    let mut backend = TestBackend::new();
    backend.upper = Some(upper.path().to_owned());
    let ended = house.run(request("true"), &backend);
    let (mut changed, mut judged) = (Vec::new(), Vec::new());
    for event in events(&house, &ended.run) {
        match event {
            Event::FileChanged { path, .. } => changed.push(path),
            Event::ExportJudged { path, verdict, class, count, .. } => {
                judged.push((path, verdict.as_str(), class, count));
            }
            _ => {}
        }
    }
    assert_eq!(changed, ["Makefile", "notes.txt"], "what is held did not change anything");
    judged.sort();
    let row = |path: &str, verdict, class: &str, count| {
        (path.to_owned(), verdict, class.to_owned(), count)
    };
    assert!(judged.contains(&row(".envrc", "held", "directory-environment", None)), "{judged:?}");
    assert!(judged.contains(&row(".git/hooks/pre-commit", "refused", "git-hook", None)));
    assert!(judged.contains(&row("Makefile", "flagged", "build-script", None)));
    let states = judged.iter().filter(|one| one.2 == "git-state");
    assert_eq!(
        states.map(|one| (one.0.as_str(), one.1)).collect::<Vec<_>>(),
        [(".git", "refused")]
    );
    let export = ended.receipt.body().export.unwrap();
    assert_eq!((export.flagged, export.held), (1, 1));
    assert!(ended.judged.iter().any(|one| one.path == ".envrc"), "the summary can name it");
    let capture = ended.receipt.body().capture.clone().unwrap();
    assert_eq!((capture.extent, capture.files), (CaptureExtent::Complete, 2));
}

#[test]
fn a_capture_that_misses_something_says_so() {
    let house = House::new();
    let upper = tempfile::tempdir().unwrap();
    let mut deep = upper.path().to_owned();
    for _ in 0..200 {
        deep.push("d");
    }
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join("buried"), "x").unwrap();
    let mut backend = TestBackend::new();
    backend.upper = Some(upper.path().to_owned());
    let ended = house.run(request("true"), &backend);
    let capture = ended.receipt.body().capture.clone().unwrap();
    assert_ne!(capture.extent, CaptureExtent::Complete, "{capture:?}");
    assert!(capture.reason.is_some());
}

#[test]
fn nothing_changed_is_only_recorded_where_somebody_looked() {
    let house = House::new();
    let mut backend = TestBackend::new();
    let direct = house.run(request("true"), &backend);
    let capture = direct.receipt.body().capture.clone().unwrap();
    assert_eq!(capture.extent, CaptureExtent::None, "{capture:?}");
    let upper = tempfile::tempdir().unwrap();
    backend.upper = Some(upper.path().to_owned());
    let overlay = house.run(request("true"), &backend);
    let capture = overlay.receipt.body().capture.clone().unwrap();
    assert_eq!((capture.extent, capture.files), (CaptureExtent::Complete, 0));
}
