//! What rules know of a requester, over HTTP: their own last minutes, and the classes of data.

use serde_json::{Value, json};

use super::support::{Plane, policy, request};

const RULES: &str = r#"
@id("runs") @reason("runs are allowed")
permit (principal, action, resource);
@id("often-denied") @reason("denied too often")
forbid (principal, action == Action::"run", resource) when { context.history.denies_10m >= 3 };
@id("often-asked") @reason("asked too often")
forbid (principal, action == Action::"run", resource) when { context.history.runs_10m >= 8 };
"#;

fn put_policy(plane: &Plane, document: &Value, rules: Option<&str>) -> (u16, Value) {
    let body = json!({"document": document, "rules": rules});
    let body = match rules {
        Some(_) => body,
        None => json!({"document": document}),
    };
    plane.client().call("PUT", "/v1/policy", Some(&plane.admin), Some(&body))
}

fn submit(plane: &Plane, token: &str, change: impl FnOnce(&mut Value)) -> (u16, Value) {
    let mut asked = request("true", &[]);
    change(&mut asked);
    plane.client().call("POST", "/v1/runs", Some(token), Some(&json!({"request": asked})))
}

#[test]
fn denials_and_runs_of_the_last_minutes_count_for_their_requester_alone() {
    let plane = Plane::start();
    assert_eq!(put_policy(&plane, &policy(), Some(RULES)).0, 200);
    let alice = plane.principal(&json!({"name": "alice", "role": "requester"}));
    let bob = plane.principal(&json!({"name": "bob", "role": "requester"}));
    for _ in 0..3 {
        assert_eq!(submit(&plane, &alice, |_| {}).0, 200);
        assert_eq!(submit(&plane, &alice, |asked| asked["pool"] = json!("nowhere")).0, 403);
    }
    let (status, answer) = submit(&plane, &alice, |_| {});
    assert_eq!(status, 403, "{answer}");
    assert!(answer["reasons"].to_string().contains("denied too often"), "{answer}");
    for _ in 0..8 {
        assert_eq!(submit(&plane, &bob, |_| {}).0, 200);
    }
    let (status, answer) = submit(&plane, &bob, |_| {});
    assert_eq!(status, 403, "{answer}");
    assert!(answer["reasons"].to_string().contains("asked too often"), "{answer}");
}

#[test]
fn classes_of_data_are_what_a_request_names_and_what_every_run_gives_out() {
    let plane = Plane::start();
    let mut document = policy();
    document["dataClasses"] = json!([{"dataClass": "payroll", "allowPools": ["other"]}]);
    assert_eq!(put_policy(&plane, &document, None).0, 200);
    assert_eq!(submit(&plane, &plane.admin, |_| {}).0, 200, "nothing of that class travels");
    let (status, answer) =
        submit(&plane, &plane.admin, |asked| asked["dataClasses"] = json!(["payroll"]));
    assert_eq!(status, 403, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("payroll"), "{answer}");
    let (status, answer) =
        submit(&plane, &plane.admin, |asked| asked["dataClasses"] = json!(["unheard-of"]));
    assert_eq!(status, 403, "{answer}");
    let (status, answer) =
        submit(&plane, &plane.admin, |asked| asked["dataClasses"] = json!("payroll"));
    assert_eq!(status, 400, "{answer}");
    document["dataClasses"] = json!([{"dataClass": "session-log", "allowPools": ["other"]}]);
    assert_eq!(put_policy(&plane, &document, None).0, 200);
    let (status, answer) = submit(&plane, &plane.admin, |_| {});
    assert_eq!(status, 403, "every run has a log: {answer}");
    assert!(answer["error"].as_str().unwrap().contains("session-log"), "{answer}");
}

#[test]
fn a_policy_with_a_rule_about_a_fact_nobody_supplies_is_refused() {
    let plane = Plane::start();
    let rules = RULES.replace("context.history.runs_10m", "context.history.run_execs");
    let (status, answer) = put_policy(&plane, &policy(), Some(&rules));
    assert_eq!(status, 400, "{answer}");
    let error = answer["error"].as_str().unwrap();
    assert!(error.contains("often-asked") && error.contains("run_execs"), "{error}");
}
