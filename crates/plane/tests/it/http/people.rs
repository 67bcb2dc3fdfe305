//! People over HTTP: roles, tokens, approvals, idempotency, pages, policy and secrets.

use serde_json::{Value, json};

use super::support::{HandRunner, Plane, policy, request};

fn ask(plane: &Plane, token: &str) -> String {
    let body = json!({"request": request("true", &["MOCK_SECRET"])});
    let (status, answer) = plane.client().call("POST", "/v1/runs", Some(token), Some(&body));
    assert_eq!((status, &answer["status"]), (200, &json!("awaiting_approval")), "{answer}");
    assert_eq!(answer["consentRequirements"], json!(["secret-release:MOCK_SECRET"]));
    answer["runId"].as_str().unwrap().to_owned()
}

fn approve(plane: &Plane, run: &str, token: &str, body: &Value) -> (u16, Value) {
    plane.client().call("POST", &format!("/v1/runs/{run}/approve"), Some(token), Some(body))
}

#[test]
fn who_asks_and_who_approves_come_from_the_token() {
    let plane = Plane::start();
    let alice = plane.principal(&json!({"name": "alice", "role": "requester"}));
    let security = plane.principal(&json!({"name": "security", "role": "approver"}));
    let run = ask(&plane, &alice);
    let pretend = json!({"actor": {"kind": "human", "id": "security-lead"}});
    let (status, answer) = approve(&plane, &run, &security, &pretend);
    assert_eq!((status, &answer["status"]), (200, &json!("created")), "{answer}");
    let text = plane.view(&run).to_string();
    assert!(!text.contains("security-lead") && !text.contains("mallory"), "{text}");
    let (_, list) = plane.client().call("GET", "/v1/runs", Some(&alice), None);
    assert_eq!(list["runs"][0]["requestedBy"], json!({"kind": "human", "id": "alice"}));
    let (status, again) = approve(&plane, &run, &security, &json!({}));
    assert_eq!((status, again), (200, answer), "a retry gets the same answer");
    let lead = json!({"name": "dora", "role": "approver", "groups": ["leads"]});
    let lead = plane.principal(&lead);
    assert_eq!(approve(&plane, &run, &lead, &json!({})).0, 409, "it does not wait any more");
}

#[test]
fn nobody_approves_their_own_request_and_only_those_named_approve() {
    let plane = Plane::start();
    let own = ask(&plane, &plane.admin);
    let (status, answer) = approve(&plane, &own, &plane.admin, &json!({}));
    assert_eq!((status, &answer["code"]), (403, &json!("forbidden")), "{answer}");
    let stranger = plane.principal(&json!({"name": "eve", "role": "approver"}));
    assert_eq!(approve(&plane, &own, &stranger, &json!({})).0, 403);
    let lead = json!({"name": "dora", "role": "approver", "groups": ["leads"]});
    let lead = plane.principal(&lead);
    assert_eq!(approve(&plane, &own, &lead, &json!({})).0, 200, "by group");
    let refused = ask(&plane, &plane.admin);
    let path = format!("/v1/runs/{refused}/deny");
    let why = json!({"reason": "not today"});
    assert_eq!(plane.client().call("POST", &path, Some(&lead), Some(&why)).0, 200);
    assert_eq!(plane.view(&refused)["state"], "denied");
    let idp = json!({"idpToken": "a.b.c"});
    let third = ask(&plane, &plane.admin);
    let (status, answer) = approve(&plane, &third, &lead, &idp);
    assert_eq!(status, 400);
    assert_eq!(answer["error"], "no IdP is configured for approvals");
}

#[test]
fn a_denied_request_is_told_with_every_reason_and_leaves_a_receipt() {
    let plane = Plane::start();
    let mut wish = request("true", &["OTHER"]);
    wish["pool"] = json!("moon");
    let dry = json!({"request": wish, "dryRun": true});
    let (status, answer) = plane.client().call("POST", "/v1/runs", Some(&plane.admin), Some(&dry));
    assert_eq!((status, &answer["code"]), (403, &json!("policy_denied")));
    assert!(answer.get("runId").is_none(), "a dry run stores nothing");
    let body = json!({"request": wish});
    let (status, answer) = plane.client().call("POST", "/v1/runs", Some(&plane.admin), Some(&body));
    assert_eq!(status, 403);
    assert_eq!(answer["reasons"].as_array().unwrap().len(), 2, "{answer}");
    let run = answer["runId"].as_str().unwrap();
    let bundle = format!("/v1/runs/{run}/bundle");
    assert_eq!(plane.client().call("GET", &bundle, Some(&plane.admin), None).0, 200);
}

#[test]
fn the_same_idempotency_key_gives_the_same_run() {
    let plane = Plane::start();
    let client = plane.client();
    let send = |key: &str, script: &str| {
        let headers = [
            ("authorization", format!("Bearer {}", plane.admin)),
            ("idempotency-key", key.to_owned()),
        ];
        let body = json!({"request": request(script, &[])}).to_string().into_bytes();
        let (status, answer) = client.send("POST", "/v1/runs", &headers, Some(body));
        (status, serde_json::from_slice::<Value>(&answer).unwrap())
    };
    let (status, first) = send("one", "true");
    assert_eq!(status, 200);
    assert_eq!(send("one", "true"), (200, first.clone()));
    let (status, refused) = send("one", "false");
    let text = refused["error"].as_str().unwrap();
    assert_eq!(status, 409, "another request under the same key");
    assert!(text.contains("Idempotency-Key") && text.contains(first["runId"].as_str().unwrap()));
    assert_ne!(send("two", "true").1["runId"], first["runId"]);
    assert_eq!(send(&"x".repeat(256), "true").0, 400);
}

#[test]
fn runs_are_paged_newest_first_and_filtered() {
    let plane = Plane::start();
    let ids: Vec<String> = (0..7).map(|n| plane.submit(&format!("echo {n}"))).collect();
    let get = |query: &str| {
        plane.client().call("GET", &format!("/v1/runs{query}"), Some(&plane.admin), None)
    };
    let (_, first) = get("?limit=3");
    let names = |page: &Value| -> Vec<String> {
        let runs = page["runs"].as_array().unwrap();
        runs.iter().map(|run| run["runId"].as_str().unwrap().to_owned()).collect()
    };
    let mut all = names(&first);
    let mut next = first["next"].as_str().map(ToOwned::to_owned);
    while let Some(cursor) = next {
        let (_, page) = get(&format!("?limit=3&cursor={cursor}"));
        all.extend(names(&page));
        next = page["next"].as_str().map(ToOwned::to_owned);
    }
    let newest: Vec<String> = ids.into_iter().rev().collect();
    assert_eq!(all, newest);
    assert_eq!(names(&get("?status=created").1).len(), 7);
    assert_eq!(names(&get("?state=running").1).len(), 0);
    assert_eq!(names(&get("?requester=human:admin&pool=default&agent=command").1).len(), 7);
    for wrong in ["?limit=0", "?limit=x", "?cursor=x", "?state=moon", "?status=moon"] {
        assert_eq!(get(wrong).0, 400, "{wrong}");
    }
}

#[test]
fn a_token_that_was_rotated_or_revoked_is_no_good() {
    let plane = Plane::start();
    let old = plane.principal(&json!({"name": "ci", "role": "requester"}));
    let get = |token: &str| plane.client().call("GET", "/v1/runs", Some(token), None).0;
    let post = |path: &str| plane.client().call("POST", path, Some(&plane.admin), None);
    assert_eq!(get(&old), 200);
    let (status, rotated) = post("/v1/principals/ci/rotate");
    assert_eq!(status, 200);
    let new = rotated["token"].as_str().unwrap();
    assert_eq!((get(&old), get(new)), (401, 200));
    assert_eq!(post("/v1/principals/ci/revoke").0, 200);
    assert_eq!(get(new), 401);
    assert_eq!(post("/v1/principals/nobody/revoke").0, 404);
    assert_eq!(post("/v1/principals/admin/revoke").0, 400, "nobody revokes themselves");
    let (_, list) = plane.client().call("GET", "/v1/principals", Some(&plane.admin), None);
    let ci = list["principals"].as_array().unwrap().iter().find(|p| p["name"] == "ci").unwrap();
    assert_eq!(ci["revoked"], true);
    let again = json!({"name": "ci", "role": "requester"});
    let (status, answer) =
        plane.client().call("POST", "/v1/principals", Some(&plane.admin), Some(&again));
    assert_eq!((status, &answer["error"]), (409, &json!("principal \"ci\" already exists")));
}

#[test]
fn an_enroll_token_lets_one_runner_into_its_pool_once() {
    let plane = Plane::start();
    let client = plane.client();
    let body = json!({"pool": "default"});
    let (_, issued) = client.call("POST", "/v1/enroll-tokens", Some(&plane.admin), Some(&body));
    let token = issued["token"].as_str().unwrap();
    let key = warrant_plane::home::fresh_key().unwrap();
    let enroll = |pool: &str, pem: &str| {
        let body = json!({"enrollToken": token, "publicKeyPem": pem, "pool": pool});
        client.call("POST", "/v1/runners/enroll", None, Some(&body))
    };
    let pem = key.public().pem();
    assert_eq!(enroll("default", "no key").0, 400, "a wrong key uses nothing up");
    assert_eq!(enroll("other", pem).0, 400, "another pool uses nothing up");
    let (status, answer) = enroll("default", pem);
    assert_eq!(status, 200, "{answer}");
    let plane_pem = plane.service.plane().home().plane_key().public().pem().to_owned();
    assert_eq!(answer["planePublicKeyPem"], json!(plane_pem));
    let (status, answer) = enroll("default", pem);
    assert_eq!((status, &answer["error"]), (400, &json!("invalid enroll token")));
}

#[test]
fn a_policy_is_replaced_with_history_and_what_was_decided_before_does_not_start() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    let run = plane.submit("true");
    let held = runner.claim(0).unwrap();
    let mut document = policy();
    document["budget"]["maxSpendUsd"] = json!(1);
    let put =
        |body: &Value| plane.client().call("PUT", "/v1/policy", Some(&plane.admin), Some(body));
    let (status, answer) = put(&json!({"document": {"version": "warrant.policy.v1"}}));
    assert_eq!(status, 400, "{answer}");
    let (status, answer) = put(&json!({"document": document, "rules": "permit (principal"}));
    assert_eq!(status, 400, "{answer}");
    let (status, answer) = put(&json!({"document": document}));
    assert_eq!(status, 200, "{answer}");
    let (status, refused) = runner.post(&held, "start", &json!({}));
    assert_eq!((status, &refused["failure"]), (403, &json!("policy_denied")), "{refused}");
    let (_, now) = plane.client().call("GET", "/v1/policy", Some(&plane.admin), None);
    assert_eq!(now["policy"], document);
    assert_eq!(now["policyHash"], answer["policyHash"]);
    let (_, history) = plane.client().call("GET", "/v1/policy/history", Some(&plane.admin), None);
    let all = history["policies"].as_array().unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!((&all[0]["setBy"], &all[1]["setBy"]), (&json!("human:admin"), &json!("file")));
    assert_eq!(plane.view(&run)["state"], "leased");
}

#[test]
fn secrets_are_set_listed_and_removed_and_never_shown() {
    let plane = Plane::start();
    let client = plane.client();
    let call = |method: &str, path: &str, body: Option<&Value>| {
        client.call(method, path, Some(&plane.admin), body)
    };
    let value = json!({"value": "very-secret"});
    assert_eq!(call("PUT", "/v1/secrets/TOKEN", Some(&value)).0, 200);
    let (status, list) = call("GET", "/v1/secrets", None);
    assert_eq!((status, &list["secrets"][0]["name"]), (200, &json!("TOKEN")));
    assert!(!list.to_string().contains("very-secret"));
    assert_eq!(call("PUT", "/v1/secrets/not-a-name", Some(&value)).0, 400);
    assert_eq!(call("PUT", "/v1/secrets/TOKEN", Some(&json!({"value": ""}))).0, 400);
    assert_eq!(call("DELETE", "/v1/secrets/TOKEN", None).0, 200);
    assert_eq!(call("DELETE", "/v1/secrets/TOKEN", None).0, 404);
}

#[test]
fn metrics_are_told_as_json_and_as_prometheus_text() {
    let plane = Plane::start();
    plane.submit("true");
    let (status, all) = plane.client().call("GET", "/v1/metrics", Some(&plane.admin), None);
    assert_eq!((status, &all["metrics"]["runs.requested"]), (200, &json!(1)));
    let (status, text) = plane.client().bytes("GET", "/metrics", Some(&plane.admin), None);
    let text = String::from_utf8(text).unwrap();
    assert_eq!(status, 200);
    assert!(text.contains("warrant_events_total{event=\"runs.requested\"} 1\n"), "{text}");
    assert!(text.contains("warrant_runs_queued{pool=\"default\"} 1\n"), "{text}");
}
