//! The web page: its session by hand, and the whole of it in a real browser.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use warrant_protocol::Event;
use warrant_protocol::event::ArtifactKind;

use super::support::{HandRunner, HeldRun, Plane, request};

fn json_of((status, bytes): (u16, Vec<u8>)) -> (u16, Value) {
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// Logs in as the page does and returns the cookie.
fn log_in(plane: &Plane, token: &str) -> String {
    let url = format!("{}/ui/session", plane.url);
    let output = Command::new("curl")
        .args(["-s", "-i", "-H", "x-warrant-page: 1", "-d"])
        .arg(json!({"token": token}).to_string())
        .arg(url)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.to_lowercase().starts_with("set-cookie:")).unwrap();
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/ui"] {
        assert!(line.contains(attribute), "{line}");
    }
    assert!(!line.contains(token), "{line}");
    line.split_once(": ").unwrap().1.split(';').next().unwrap().to_owned()
}

#[test]
fn page_session_does_what_its_token_may_and_nothing_forged() {
    let plane = Plane::start();
    let client = plane.client();
    let run = plane.submit("true");
    let reader = plane.principal(&json!({"name": "dora", "role": "approver"}));
    let cookie = log_in(&plane, &plane.admin);
    let own = |extra: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
        let pairs = [("cookie", cookie.as_str())];
        pairs.iter().chain(extra).map(|(name, value)| (*name, (*value).to_owned())).collect()
    };
    let list = json_of(client.send("GET", "/ui/api/v1/runs", &own(&[]), None));
    assert_eq!((list.0, &list.1["runs"][0]["runId"]), (200, &json!(run)), "{}", list.1);
    let cancel = format!("/ui/api/v1/runs/{run}/cancel");
    let body = || Some(b"{}".to_vec());
    assert_eq!(client.send("POST", &cancel, &own(&[]), body()).0, 403, "forged form");
    let crossed = own(&[("x-warrant-page", "1"), ("sec-fetch-site", "cross-site")]);
    assert_eq!(client.send("POST", &cancel, &crossed, body()).0, 403, "from another site");
    let nobody = [("x-warrant-page", "1".to_owned())];
    assert_eq!(client.send("POST", &cancel, &nobody, body()).0, 401, "without a session");
    let brought = [("authorization", format!("Bearer {}", plane.admin))];
    assert_eq!(client.send("GET", "/ui/api/v1/runs", &brought, None).0, 401, "only sessions");
    let weaker = log_in(&plane, &reader);
    let weaker = [("cookie", weaker), ("x-warrant-page", "1".to_owned())];
    assert_eq!(client.send("POST", &cancel, &weaker, body()).0, 403, "the token's own rights");
    let page = own(&[("x-warrant-page", "1"), ("sec-fetch-site", "same-origin")]);
    assert_eq!(client.send("POST", &cancel, &page, body()).0, 200);
    assert_eq!(client.send("DELETE", "/ui/session", &page, None).0, 200);
    assert_eq!(client.send("GET", "/ui/api/v1/runs", &own(&[]), None).0, 401, "logged out");
    for bad in ["", "{", r#"{"token":""}"#, r#"{"token":"a\nb"}"#, r#"{"token":7}"#] {
        let sent = client.send("POST", "/ui/session", &nobody, Some(bad.into()));
        assert_eq!(sent.0, 400, "{bad}");
    }
    let large = vec![b' '; 1 << 20];
    assert_eq!(client.send("POST", "/ui/session", &nobody, Some(large)).0, 413);
    assert_eq!(client.send("GET", "/ui/api/v1/nothing", &[], None).0, 404);
    assert_eq!(client.send("GET", "/ui/assets/nothing.js", &[], None).0, 404);
}

#[test]
fn sessions_for_made_up_tokens_are_not_opened() {
    let plane = Plane::start();
    let client = plane.client();
    let page = [("x-warrant-page", "1".to_owned())];
    let made_up = json!({"token": "a-token-nobody-has"}).to_string();
    let (status, body) =
        json_of(client.send("POST", "/ui/session", &page, Some(made_up.clone().into_bytes())));
    assert_eq!((status, &body["error"]), (401, &json!("unauthorized")));
    let refused: Vec<u16> = (0..40)
        .map(|_| client.send("POST", "/ui/session", &page, Some(made_up.clone().into_bytes())).0)
        .collect();
    assert!(refused.contains(&429), "guesses are slowed down: {refused:?}");
    // A right token does not suffer from its neighbors.
    assert!(log_in(&plane, &plane.admin).starts_with("warrant_session="));
}

fn blob(plane: &Plane, bytes: &[u8]) -> warrant_protocol::Digest {
    let sent = plane.client().bytes("POST", "/v1/blobs", Some(&plane.admin), Some(bytes.to_vec()));
    assert_eq!(sent.0, 200);
    warrant_protocol::Digest::of(bytes)
}

/// Runs one run by hand, so that there is something to see.
fn worked(plane: &Plane, runner: &HandRunner) -> String {
    plane.submit("echo said by the run");
    let mut held: HeldRun = runner.claim(5_000).unwrap();
    runner.start(&mut held);
    let diff = blob(
        plane,
        b"diff --git a/new.txt b/new.txt\nnew file mode 100644\n--- /dev/null\n+++ b/new.txt\n\
          @@ -0,0 +1 @@\n+from the run\n",
    );
    let log = blob(plane, b"said by the run\n");
    let from = held.chain.events().len();
    for event in [
        Event::FileChanged { path: "new.txt".to_owned(), content_hash: diff },
        Event::ArtifactCreated { kind: ArtifactKind::Diff, hash: diff },
        Event::ArtifactCreated { kind: ArtifactKind::Log, hash: log },
    ] {
        held.chain.append(crate::support::now(), &event).unwrap();
    }
    let events = runner.told_since(&held, from);
    let (status, answer) = runner.post(&held, "events", &json!({"events": events}));
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = runner.finish(&mut held);
    assert_eq!(status, 200, "{answer}");
    held.run
}

/// Holds a run until somebody cancels it, as a runner does, and ends it then.
fn hold(plane: &Plane, runner: &HandRunner, mut held: HeldRun) {
    let began = std::time::Instant::now();
    let actor = loop {
        assert!(began.elapsed().as_secs() < 280, "nobody cancelled it");
        let (status, answer) = runner.post(&held, "renew", &json!({"waitMs": 2_000}));
        assert_eq!(status, 200, "{answer}");
        if answer["directive"] == "stop" {
            break serde_json::from_value(answer["actor"].clone()).unwrap();
        }
    };
    let log = blob(plane, b"all of the log\n");
    let kept = Event::ArtifactCreated { kind: ArtifactKind::Log, hash: log };
    held.chain.append(crate::support::now(), &kept).unwrap();
    let events = runner.told_since(&held, held.chain.events().len() - 1);
    assert_eq!(runner.post(&held, "events", &json!({"events": events})).0, 200);
    let (events, receipt) = runner.end(&mut held, &Event::RunCancelled { actor, reason: None });
    let body = json!({"events": events, "receipt": receipt.to_value()});
    let (status, answer) = runner.post(&held, "complete", &body);
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn page_works_in_a_real_browser() {
    let plane = Plane::start();
    let runner = HandRunner::enroll(&plane, "default");
    let worked = worked(&plane, &runner);
    let alice = plane.principal(&json!({"name": "alice", "role": "requester"}));
    let security = plane.principal(&json!({"name": "security", "role": "admin"}));
    let asked = |prompt: &str| {
        let body = json!({"request": request(prompt, &["MOCK_SECRET"])});
        let (status, answer) = plane.client().call("POST", "/v1/runs", Some(&alice), Some(&body));
        assert_eq!(status, 200, "{answer}");
        answer["runId"].as_str().unwrap().to_owned()
    };
    let waiting = asked(r#"<img src=x onerror="window.planted=1">"#);
    let to_refuse = asked("something else");
    let mut refused = request("true", &[]);
    refused["pool"] = json!("no-such-pool");
    let body = json!({ "request": refused });
    let (status, _) = plane.client().call("POST", "/v1/runs", Some(&alice), Some(&body));
    assert_eq!(status, 403);
    let (_, list) = plane.client().call("GET", "/v1/runs?state=denied", Some(&alice), None);
    let ended = list["runs"][0]["runId"].as_str().unwrap();
    plane.submit("sleep 60");
    let mut held = runner.claim(5_000).unwrap();
    runner.start(&mut held);
    let (live, claim) = (held.run.clone(), held.claim_token.clone());
    let ticket = plane.service.ticket(&security).unwrap();
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/clients/page");
    let output = std::thread::scope(|scope| {
        let holding = scope.spawn(|| hold(&plane, &runner, held));
        let output = Command::new("timeout")
            .args(["270", "node", "page.mjs"])
            .current_dir(clients)
            .env("WARRANT_URL", &plane.url)
            .env("WARRANT_TOKEN", &security)
            .env("WARRANT_TICKET", ticket)
            .env("WARRANT_WAITING", waiting)
            .env("WARRANT_REFUSED", to_refuse)
            .env("WARRANT_ENDED", ended)
            .env("WARRANT_WORKED", &worked)
            .env("WARRANT_LIVE", &live)
            .env("WARRANT_CLAIM", claim)
            .output()
            .unwrap();
        if !output.status.success() {
            // Whoever holds the run waits for a cancel that did not come.
            let path = format!("/v1/runs/{live}/cancel");
            plane.client().call("POST", &path, Some(&plane.admin), Some(&json!({})));
        }
        (output, holding.join())
    });
    let (output, held) = output;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("all checks passed"), "{told}\n{complained}");
    held.unwrap();
}
