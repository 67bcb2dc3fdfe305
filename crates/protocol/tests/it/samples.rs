//! The sample bundle that the README verifies is exactly what the code makes.
//!
//! To write it again after a change of the protocol: `WARRANT_WRITE_SAMPLES=1 cargo test -p
//! warrant-protocol samples`.

use std::path::PathBuf;

use serde_json::Value;
use warrant_protocol::approval::Approval;
use warrant_protocol::verify::verify_slice;
use warrant_protocol::{Event, KeyRole, PublicKey, Signer, TrustedKeys};

use crate::forge::{Keys, approval, our_contract, our_events, seal};
use crate::vectors::{plane_key, runner_key};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../samples").join(name)
}

/// The approval is signed by the plane for the approver it authenticated, so that two key files
/// are enough.
fn sample() -> Value {
    let statement = Approval::seal(approval().body(), Signer::Plane, &plane_key()).unwrap();
    let mut events = our_events();
    for event in &mut events {
        if let Event::ApprovalGranted { statement_hash, statement: inner, .. } = event {
            *statement_hash = statement.hash();
            *inner = statement.to_value();
        }
    }
    seal(&our_contract(), &events, &Keys::real())
}

#[test]
fn samples_are_what_the_code_makes_and_verify() {
    let files = [
        ("bundle.json", format!("{}\n", serde_json::to_string_pretty(&sample()).unwrap())),
        ("plane.pub.pem", plane_key().public().pem().to_owned()),
        ("runner.pub.pem", runner_key().public().pem().to_owned()),
    ];
    for (name, text) in &files {
        if std::env::var_os("WARRANT_WRITE_SAMPLES").is_some() {
            std::fs::create_dir_all(path("")).unwrap();
            std::fs::write(path(name), text).unwrap();
        }
        let stored = std::fs::read_to_string(path(name)).unwrap();
        // The order of members depends on others' features, so objects are compared, not texts.
        let value = |text: &str| serde_json::from_str::<Value>(text).ok();
        assert!(
            stored == *text || value(&stored).is_some_and(|v| Some(v) == value(text)),
            "{name}"
        );
    }
    let key = |name| PublicKey::from_pem(&std::fs::read_to_string(path(name)).unwrap()).unwrap();
    let trusted = TrustedKeys::none()
        .and(KeyRole::Plane, key("plane.pub.pem"))
        .and(KeyRole::Runner, key("runner.pub.pem"));
    let bundle = std::fs::read(path("bundle.json")).unwrap();
    assert!(verify_slice(&bundle, &trusted).unwrap().is_extended());
}
