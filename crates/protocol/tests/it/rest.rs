//! Story, sealed blobs, handoff objects and CONNECT targets against the vectors.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use warrant_protocol::authority::split_authority;
use warrant_protocol::handoff::{HandoffEnvelope, ToolJournal, to_blob};
use warrant_protocol::redact::redact;
use warrant_protocol::sealed::{MasterMaterial, SealError, SealedBlob};
use warrant_protocol::story::{Story, answers, summarize};
use warrant_protocol::{Bundle, SecretName, VerifiedBundle, json as strict, verify};

use crate::forge::{Keys, ours, reference, reseal, trusted};
use crate::vectors::{bytes_of_hex, load, text};

fn verified(bundle: Value) -> VerifiedBundle {
    verify(Bundle::from_value(bundle).unwrap(), trusted()).unwrap()
}

#[test]
fn the_story_of_the_reference_bundle_is_told_alike() {
    let vectors = load("story.json");
    let verified = verified(reference());
    assert_eq!(strict::to_value(&Story::of(&verified)).unwrap(), vectors["story"]);
    let summaries: Vec<_> = verified.chain().events().iter().map(summarize).collect();
    assert_eq!(strict::to_value(&summaries).unwrap(), vectors["eventSummaries"]);
}

#[test]
fn five_questions_are_answered_from_our_bundle() {
    let mut told = String::new();
    for answer in answers(&verified(ours())) {
        told.push_str(&format!("{}?\n", answer.question));
        for line in answer.lines {
            told.push_str(&format!("  {line}\n"));
        }
    }
    assert_eq!(
        told,
        "\
what moved?
  in: commit 4b825dc642cb6eb9a060e54bf8d69288fbee4904, manifest 543532c43896
  out: code-diff df087996d45b
  files changed: 1, diff df087996d45b
why?
  human:alice@example.com asked for command
  task: printf 'héllo' > out.txt
  policy aa47681f992c
  decision ask: secret release needs approval (rules: consent.0, cedar:secrets)
who approved?
  human:security-lead at level 2, 2026-06-18T19:39:11.000Z, by signed statement
what saw it?
  runner rnr_00000000-0000-4000-8000-000000000003 in pool eng-prod, namespace
  2 of 2 protections in force, by linux 6.18, warrant 0.1.0
  secret API_TOKEN (e2e-test)
  network example.com allowed
  network evil.example blocked
  model p/m
  outcome exit 0
how to reproduce or revoke?
  check again: warrant verify <bundle.json>, plane key ed25519:06b353723a3319cd
  take the work: warrant pull run_00000000-0000-4000-8000-000000000001
  contract 08a5f27e58f0 ended 2026-06-18T20:39:07.000Z
  sandbox e81bc231ee7b, image none
"
    );
}

#[test]
fn text_from_inside_cannot_drive_the_terminal() {
    let mut bundle = ours();
    let events = bundle["events"].as_array_mut().unwrap();
    let changed = events.iter_mut().find(|event| event["event"]["type"] == "file.changed").unwrap();
    changed["event"]["path"] = json!("a\u{1b}[2J\nVERIFIED\u{202e}");
    reseal(&mut bundle, &Keys::real());
    let verified = verified(bundle);
    let bad = ['\u{1b}', '\n', '\u{202e}'];
    for event in verified.chain().events() {
        assert!(!summarize(event).detail.contains(bad), "{:?}", summarize(event));
    }
    for answer in answers(&verified) {
        assert!(answer.lines.iter().all(|line| !line.contains(bad)), "{:?}", answer.lines);
    }
}

#[test]
fn sealed_blobs_of_the_reference_open_and_are_made_alike() {
    for case in load("sealed.json")["cases"].as_array().unwrap() {
        let material = MasterMaterial::parse(text(&case["masterKey"])).unwrap();
        let blob: SealedBlob = strict::view(&case["sealed"]).unwrap();
        let key = material.derive(&blob.salt().unwrap()).unwrap();
        if let Some(derived) = case.get("derivedKeyHex") {
            assert_eq!(key.as_bytes().as_slice(), bytes_of_hex(derived));
        }
        let plain = key.open(&blob).unwrap();
        assert_eq!(plain, text(&case["plaintextUtf8"]).as_bytes());
        let iv = STANDARD.decode(&blob.iv).unwrap().try_into().unwrap();
        assert_eq!(key.seal(&iv, &plain).unwrap(), blob);

        let mut changed = blob.clone();
        changed.data.replace_range(0..1, if blob.data.starts_with('A') { "B" } else { "A" });
        assert_eq!(key.open(&changed), Err(SealError::WrongKey));
        let other = MasterMaterial::parse("another passphrase").unwrap();
        let other = other.derive(&blob.salt().unwrap()).unwrap();
        assert_eq!(other.open(&blob), Err(SealError::WrongKey));
        let cut = SealedBlob { tag: "AAAA".into(), ..blob };
        assert_eq!(key.open(&cut), Err(SealError::Part("tag")));
    }
    assert!(MasterMaterial::parse(" \n").is_err());
}

#[test]
fn handoff_objects_keep_their_hashes() {
    let vectors = load("handoff.json");
    let envelope: HandoffEnvelope = strict::view(&vectors["envelope"]).unwrap();
    let (bytes, digest) = to_blob(&envelope).unwrap();
    assert_eq!(bytes, text(&vectors["envelopeBlobIsCanonicalBytes"]).as_bytes());
    assert_eq!(digest.to_hex(), text(&vectors["envelopeHash"]));
    let journal: ToolJournal = strict::view(&vectors["toolJournal"]).unwrap();
    assert_eq!(to_blob(&journal).unwrap().1.to_hex(), text(&vectors["toolJournalHash"]));
}

#[test]
fn connect_targets_are_split_like_the_reference() {
    for case in load("validators.json")["connectAuthority"].as_array().unwrap() {
        let authority = split_authority(text(&case["input"]));
        assert_eq!(authority.host, text(&case["host"]), "{}", case["input"]);
        assert_eq!(json!(authority.port), case["port"], "{}", case["input"]);
    }
}

/// The reference decodes as UTF-8 first and so corrupts binary; ours replaces bytes in bytes.
#[test]
fn redaction_replaces_like_the_reference_and_keeps_binary_intact() {
    for case in load("validators.json")["redaction"].as_array().unwrap() {
        let input = bytes_of_hex(&case["inputHex"]);
        let secrets: Vec<(SecretName, String)> = case["secrets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|secret| (text(&secret["name"]).parse().unwrap(), text(&secret["value"]).into()))
            .collect();
        let expected = match std::str::from_utf8(&input) {
            Ok(_) => bytes_of_hex(&case["outputHex"]),
            Err(_) => input.clone(),
        };
        assert_eq!(redact(&input, &secrets), expected, "{}", case["inputHex"]);
    }
    let secret = [("A".parse().unwrap(), "ab".to_owned())];
    assert_eq!(redact(b"\xffab\xfe", &secret), b"\xff[REDACTED:A]\xfe");
}
