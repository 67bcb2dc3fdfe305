//! The recording of the reference's SDK, runner and plane, replayed against ours: the same
//! requests, the same statuses, and every member of its answers in ours with the same type.
//!
//! What differs on purpose: whoever asked cannot approve, so another principal does; a cancelled
//! run has a bundle. What a runner signs is signed again, because our contracts are our own.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use warrant_protocol::ChainedEvent;
use warrant_protocol::event::Event;

use super::support::{HandRunner, HeldRun, Plane};

struct Replay {
    plane: Plane,
    approver: String,
    /// Texts of the recording and what stands for them here.
    ours: HashMap<String, String>,
    runner: Option<HandRunner>,
    held: Option<HeldRun>,
}

#[test]
fn the_reference_s_recorded_requests_are_answered_in_its_shapes() {
    let text = include_str!("../../../../../vectors/http-transcript.json");
    let recorded: Vec<Value> = serde_json::from_str(text).unwrap();
    let policy = recorded.iter().find(|step| step["label"] == "policy").unwrap();
    let dir = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let folder = dir.path().join("home/policy");
    drop(warrant_plane::home::Home::open_at(dir.path().join("home"), None).unwrap());
    std::fs::create_dir_all(&folder).unwrap();
    let document = policy["response"]["body"]["json"]["policy"].to_string();
    std::fs::write(folder.join("document.json"), document).unwrap();
    let mut settings = warrant_plane::http::settings::Settings::fresh().unwrap();
    settings.compat.open_blob_reads = true;
    let plane = Plane::start_in(dir, settings);
    let secret = json!({"value": "super-sensitive-value-1234"});
    let put =
        plane.client().call("PUT", "/v1/secrets/MOCK_SECRET", Some(&plane.admin), Some(&secret));
    assert_eq!(put.0, 200);
    let approver = plane.principal(&json!({"name": "security", "role": "approver"}));
    let ours = HashMap::from([
        ("rec-admin".to_owned(), plane.admin.clone()),
        ("rec-enroll".to_owned(), plane.enroll.clone()),
    ]);
    let mut replay = Replay { plane, approver, ours, runner: None, held: None };
    for (number, step) in recorded.iter().enumerate() {
        replay.step(number, step);
    }
}

impl Replay {
    fn step(&mut self, number: usize, step: &Value) {
        let label = step["label"].as_str().unwrap();
        let (request, response) = (&step["request"], &step["response"]);
        let method = request["method"].as_str().unwrap();
        let path = self.translate(request["path"].as_str().unwrap());
        if path == "/v1/runners/enroll" {
            let runner = HandRunner::enroll(&self.plane, "default");
            let recorded = response["body"]["json"]["runnerToken"].as_str().unwrap();
            self.ours.insert(recorded.to_owned(), runner.token.clone());
            self.runner = Some(runner);
            return;
        }
        if path == "/v1/claims" && response["body"]["json"].get("empty").is_none() {
            let held = self.runner.as_ref().unwrap().claim_with(&json!({})).unwrap();
            let recorded = &response["body"]["json"];
            same_shape(&format!("{number} {label}"), recorded, &held.answer);
            let token = recorded["claimToken"].as_str().unwrap();
            self.ours.insert(token.to_owned(), held.claim_token.clone());
            self.held = Some(held);
            return;
        }
        let body = self.body(&path, &request["body"]);
        let token = request["authorization"].as_str().map(|header| {
            let token = header.strip_prefix("Bearer ").unwrap();
            self.translate(token)
        });
        let is_approval = path.ends_with("/approve");
        let token = if is_approval { Some(self.approver.clone()) } else { token };
        let (status, answer) = self.plane.client().bytes(method, &path, token.as_deref(), body);
        let at = format!("{number} {label}: {method} {path}");
        let answer_text = String::from_utf8_lossy(&answer).into_owned();
        if label == "bundle of cancelled" {
            assert_eq!(status, 200, "{at}: every end has a receipt");
            return;
        }
        assert_eq!(u64::from(status), response["status"].as_u64().unwrap(), "{at}: {answer_text}");
        self.compare(&at, &response["body"], &answer_text, &answer);
    }

    fn compare(&mut self, at: &str, recorded: &Value, text: &str, bytes: &[u8]) {
        if let Some(recorded) = recorded.get("json") {
            let answer: Value = serde_json::from_str(text).unwrap();
            same_shape(at, recorded, &answer);
            if let (Some(theirs), Some(ours)) =
                (recorded["runId"].as_str(), answer["runId"].as_str())
            {
                self.ours.insert(theirs.to_owned(), ours.to_owned());
            }
        } else if let Some(content) = recorded.get("base64") {
            assert_eq!(STANDARD.decode(content.as_str().unwrap()).unwrap(), bytes, "{at}");
        } else if at.contains("/v1/export") && recorded.get("text").is_some() {
            for line in text.lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                assert_eq!(line["version"], "warrant.event.v1", "{at}");
                assert!(line["runId"].is_string() && line["hash"].is_string(), "{at}");
            }
        } else if let Some(content) = recorded.get("text") {
            assert_eq!(content.as_str().unwrap(), text, "{at}");
        } else {
            assert!(bytes.is_empty(), "{at}");
        }
    }

    fn translate(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (theirs, ours) in &self.ours {
            text = text.replace(theirs, ours);
        }
        text
    }

    fn body(&mut self, path: &str, recorded: &Value) -> Option<Vec<u8>> {
        if let Some(content) = recorded.get("base64") {
            return Some(STANDARD.decode(content.as_str().unwrap()).unwrap());
        }
        if let Some(content) = recorded.get("text") {
            return Some(content.as_str().unwrap().as_bytes().to_vec());
        }
        let sent = recorded.get("json")?;
        let held = self.held.as_mut();
        if path.ends_with("/events") {
            let held = held.unwrap();
            let from = held.chain.events().len();
            for event in sent["events"].as_array().unwrap() {
                let event: Event = serde_json::from_value(event["event"].clone()).unwrap();
                held.chain.append(crate::support::now(), &event).unwrap();
            }
            let told: Vec<Value> =
                held.chain.events()[from..].iter().map(ChainedEvent::to_value).collect();
            let body = json!({"claimToken": held.claim_token, "events": told});
            return Some(body.to_string().into_bytes());
        }
        if path.ends_with("/complete") {
            let held = held.unwrap();
            let receipt = self.runner.as_ref().unwrap().receipt(held).to_value();
            same_shape("the runner's receipt", &sent["receipt"], &receipt);
            let body = json!({"claimToken": held.claim_token, "receipt": receipt});
            return Some(body.to_string().into_bytes());
        }
        Some(self.translate(&sent.to_string()).into_bytes())
    }
}

/// Checks that `ours` has every member of `theirs` with the same type; lists by first entry.
fn same_shape(at: &str, theirs: &Value, ours: &Value) {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            for (name, theirs) in theirs {
                let found = ours.get(name);
                let found = found.unwrap_or_else(|| panic!("{at}: no member {name} in {ours:?}"));
                same_shape(&format!("{at}.{name}"), theirs, found);
            }
        }
        (Value::Array(theirs), Value::Array(ours)) => {
            if let (Some(theirs), Some(ours)) = (theirs.first(), ours.first()) {
                same_shape(&format!("{at}[0]"), theirs, ours);
            } else {
                assert!(theirs.is_empty() || !ours.is_empty(), "{at} is empty");
            }
        }
        _ => assert_eq!(
            std::mem::discriminant(theirs),
            std::mem::discriminant(ours),
            "{at}: {theirs} against {ours}"
        ),
    }
}
