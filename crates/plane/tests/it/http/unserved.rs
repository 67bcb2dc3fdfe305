//! Runs that no enrolled runner can serve: whoever submits one is told at once.

use serde_json::{Value, json};

use super::support::{Client, HandRunner, Plane, request};

fn submit(plane: &Plane, change: impl FnOnce(&mut Value)) -> (u16, Value) {
    let mut asked = request("true", &[]);
    change(&mut asked);
    let body = json!({"request": asked});
    plane.client().call("POST", "/v1/runs", Some(&plane.admin), Some(&body))
}

#[track_caller]
fn unserved(plane: &Plane, change: impl FnOnce(&mut Value), expected: &[&str]) {
    let (status, answer) = submit(plane, change);
    assert_eq!(status, 200, "it waits for a runner: {answer}");
    let told = answer["unserved"].as_str().unwrap_or_default();
    for part in expected {
        assert!(told.contains(part), "{part}: {answer}");
    }
    assert_eq!(expected.is_empty(), told.is_empty(), "{answer}");
}

#[track_caller]
fn refused_tier(plane: &Plane, expected: &[&str]) {
    for is_dry in [false, true] {
        let mut asked = request("true", &[]);
        asked["isolation"] = json!("namespace");
        let body = json!({"request": asked, "dryRun": is_dry});
        let (status, answer) =
            plane.client().call("POST", "/v1/runs", Some(&plane.admin), Some(&body));
        assert_eq!(status, 400, "{answer}");
        let told = answer["error"].as_str().unwrap();
        for part in expected {
            assert!(told.contains(part), "{part}: {answer}");
        }
    }
}

#[test]
fn whoever_submits_what_nobody_can_serve_is_told_what_is_missing() {
    let plane = Plane::start();
    unserved(&plane, |_| {}, &["no runner is enrolled in pool default", "warrant runner start"]);
    let runner = HandRunner::enroll(&plane, "default");
    unserved(&plane, |_| {}, &[]);
    let offers = json!({
        "isolations": ["process", "hermetic"],
        "agentKinds": ["command"],
        "posture": ["environment"],
    });
    while runner.claim_with(&json!({"leases": true, "abilities": offers})).is_some() {}
    unserved(&plane, |_| {}, &[]);
    // A tier that none of them makes would wait in vain.
    refused_tier(&plane, &["pool default", "offers namespace", "hermetic, process"]);
    unserved(&plane, |asked| asked["agentKind"] = json!("codex"), &["agent codex", "command"]);
    unserved(
        &plane,
        |asked| asked["requiredPosture"] = json!(["environment", "network"]),
        &["posture", "lacks network"],
    );
    unserved(&plane, |asked| asked["pool"] = json!("other"), &["pool other"]);
    // What a runner can do outlives the plane's process.
    let settings = plane.service.settings().clone();
    let dir = std::sync::Arc::clone(&plane.dir);
    drop(plane);
    let plane = Plane::start_in(dir, settings);
    refused_tier(&plane, &["hermetic, process"]);
    let other = HandRunner { client: Client::new(&plane.url), ..runner };
    let (status, answer) = plane.client().call(
        "POST",
        &format!("/v1/runners/{}/revoke", other.id),
        Some(&plane.admin),
        None,
    );
    assert_eq!(status, 200, "{answer}");
    unserved(&plane, |_| {}, &["no runner is enrolled in pool default"]);
}

#[test]
fn a_tier_that_nobody_makes_is_refused_at_once() {
    let plane = Plane::start();
    let (status, answer) = submit(&plane, |asked| asked["isolation"] = json!("vercel-sandbox"));
    assert_eq!(status, 400, "{answer}");
    let error = answer["error"].as_str().unwrap();
    assert!(error.contains("isolation") && error.contains("namespace"), "{error}");
    let (status, answer) = submit(&plane, |asked| asked["isolation"] = json!("balloon"));
    assert_eq!(status, 400, "{answer}");
    let (_, listed) = plane.client().call("GET", "/v1/runs", Some(&plane.admin), None);
    assert_eq!(listed["runs"], json!([]), "nothing waits in vain");
}
