//! Properties: canonical JSON, parsers that never panic, and every byte of a bundle.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use warrant_protocol::approval::{Approval, Denial};
use warrant_protocol::authority::split_authority;
use warrant_protocol::glob::matches_pattern;
use warrant_protocol::handoff::{HandoffEnvelope, ToolJournal};
use warrant_protocol::sealed::{MasterMaterial, SealedBlob};
use warrant_protocol::verify::verify_slice;
use warrant_protocol::wire::{
    AppendEvents, ApproveRun, CancelRun, ClaimResult, ClaimRun, CompleteRun, Enroll,
    IssuePrincipal, RenewLease, StartRun, SubmitRun,
};
use warrant_protocol::{
    ChainedEvent, Claim, Contract, Digest, Host, KeyId, PolicyDocument, PoolName, PublicKey,
    Receipt, RelPath, RunId, RunRequest, SecretName, SigningKey, Timestamp, canonicalize,
    json as strict,
};

use crate::forge::{ours, reference, trusted};
use crate::vectors::{load, plane_public};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter_map("finite", |number| {
            serde_json::Number::from_f64(number).map(Value::Number)
        }),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::btree_map(".{0,6}", inner, 0..8)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Writes JSON with its members in reverse order and whitespace between.
fn scrambled(value: &Value, text: &mut String) {
    match value {
        Value::Array(items) => {
            text.push_str("[ ");
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index > 0 { " ,\n" } else { "" });
                scrambled(item, text);
            }
            text.push_str("\t]");
        }
        Value::Object(members) => {
            text.push('{');
            for (index, (name, member)) in members.iter().rev().enumerate() {
                text.push_str(if index > 0 { " , " } else { "\r\n" });
                text.push_str(&Value::from(name.as_str()).to_string());
                text.push_str(" : ");
                scrambled(member, text);
            }
            text.push('}');
        }
        leaf => text.push_str(&leaf.to_string()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn canonical_json_is_a_fixed_point_and_ignores_order(value in any_json()) {
        let mut text = String::new();
        scrambled(&value, &mut text);
        let parsed = strict::parse(text.as_bytes()).unwrap();
        let canonical = canonicalize(&parsed);
        prop_assert_eq!(&canonicalize(&value), &canonical);
        let again = strict::parse(canonical.as_bytes()).unwrap();
        prop_assert_eq!(&again, &parsed);
        prop_assert_eq!(canonicalize(&again), canonical);
    }

    #[test]
    fn member_names_are_ordered_by_utf16_units(names in prop::collection::btree_set(".{0,4}", 0..12)) {
        let members: Map<String, Value> = names.iter().map(|name| (name.clone(), json!(0))).collect();
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort_by_key(|name| name.encode_utf16().collect::<Vec<_>>());
        let expected: Vec<String> = sorted
            .iter()
            .map(|name| format!("{}:0", canonicalize(&json!(name))))
            .collect();
        prop_assert_eq!(canonicalize(&Value::Object(members)), format!("{{{}}}", expected.join(",")));
    }

    #[test]
    fn every_double_survives_its_canonical_text(bits in any::<u64>()) {
        let double = f64::from_bits(bits);
        prop_assume!(double.is_finite());
        let number = Value::Number(serde_json::Number::from_f64(double).unwrap());
        let again = strict::parse(canonicalize(&number).as_bytes()).unwrap();
        prop_assert_eq!(again.as_f64().unwrap(), double);
    }

    #[test]
    fn no_parser_panics_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        feed(&bytes);
    }

    #[test]
    fn no_parser_panics_on_any_json(value in any_json()) {
        feed_value(&value);
    }

    #[test]
    fn no_parser_panics_on_damaged_objects(
        which in 0..seeds().len(),
        at in any::<prop::sample::Index>(),
        replacement in any_json(),
    ) {
        let mut seed = seeds()[which].clone();
        let mut places = Vec::new();
        pointers(&seed, String::new(), &mut places);
        *seed.pointer_mut(&places[at.index(places.len())]).unwrap() = replacement;
        feed_value(&seed);
    }

    #[test]
    fn no_parser_panics_on_any_text(text in ".{0,80}", pattern in "[a-c*?!@+(){}\\[\\]|,./\\\\-]{0,40}") {
        feed_text(&text);
        feed_text(&pattern);
        let _ = matches_pattern(&text, &pattern);
        let _ = matches_pattern("a/b/c.ab", &pattern);
    }
}

/// Valid objects to damage.
fn seeds() -> &'static [Value] {
    static SEEDS: LazyLock<Vec<Value>> = LazyLock::new(make_seeds);
    &SEEDS
}

fn make_seeds() -> Vec<Value> {
    vec![
        reference(),
        reference()["contract"].clone(),
        ours()["receipt"].clone(),
        ours()["events"][6].clone(),
        PolicyDocument::reference(),
        load("handoff.json")["envelope"].clone(),
        load("sealed.json")["cases"][0]["sealed"].clone(),
    ]
}

fn pointers(value: &Value, at: String, places: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointers(item, format!("{at}/{index}"), places);
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                pointers(member, format!("{at}/{name}"), places);
            }
        }
        _ => {}
    }
    places.push(at);
}

fn feed(bytes: &[u8]) {
    let _ = strict::parse(bytes);
    let _ = verify_slice(bytes, trusted());
    let _ = Contract::from_slice(bytes);
    let _ = PolicyDocument::from_slice(bytes);
    feed_text(&String::from_utf8_lossy(bytes));
}

fn feed_text(text: &str) {
    static PLANE: LazyLock<PublicKey> = LazyLock::new(plane_public);
    let now = "2026-06-18T19:39:07.000Z".parse().unwrap();
    let _ = Claim::from_token(text, &PLANE, now);
    let _ = PublicKey::from_pem(text);
    let _ = SigningKey::from_pem(text);
    let _ = (text.parse::<KeyId>(), text.parse::<Digest>(), text.parse::<Timestamp>());
    let _ = (text.parse::<RunId>(), text.parse::<PoolName>(), text.parse::<SecretName>());
    let _ = (text.parse::<Host>(), text.parse::<RelPath>());
    let _ = (split_authority(text), MasterMaterial::parse(text));
    let _ = matches_pattern(text, text);
}

fn feed_value(value: &Value) {
    let _ = verify_slice(value.to_string().as_bytes(), trusted());
    let _ = (Contract::from_value(value.clone()), Receipt::from_value(value.clone()));
    let _ = (Approval::from_value(value.clone()), Denial::from_value(value.clone()));
    let _ = ChainedEvent::from_value(value.clone());
    let _ = PolicyDocument::from_value(value.clone());
    let _ = RunRequest::from_value(value);
    let _ = (SubmitRun::from_value(value), Enroll::from_value(value), ClaimRun::from_value(value));
    let _ = (StartRun::from_value(value), RenewLease::from_value(value));
    let _ = (AppendEvents::from_value(value), CompleteRun::from_value(value));
    let _ = (ApproveRun::from_value(value), CancelRun::from_value(value));
    let _ = (IssuePrincipal::from_value(value), ClaimResult::from_value(value));
    let _ = strict::view::<HandoffEnvelope>(value);
    let _ = strict::view::<ToolJournal>(value);
    let _ = strict::view::<SealedBlob>(value);
}

/// Changes every byte of a bundle outside the text of its keys, one at a time.
///
/// The canonical text has no whitespace and one spelling for each value, so every position
/// counts.
#[track_caller]
fn check_every_byte(bundle: &Value, flip: u8) {
    let text = canonicalize(bundle).into_bytes();
    assert!(verify_slice(&text, trusted()).is_ok());
    let find = |needle: &[u8]| text.windows(needle.len()).position(|part| part == needle).unwrap();
    let (keys_start, keys_end) = (find(b"\"keys\":{"), find(b"},\"receipt\":"));
    let is_case = flip == 0x20;
    let positions = (0..text.len())
        .filter(|at| *at < keys_start || *at > keys_end)
        .filter(|at| !is_case || text[*at].is_ascii_alphabetic());
    let mut changed = text.clone();
    let mut count = 0;
    for at in positions {
        changed[at] ^= flip;
        let result = verify_slice(&changed, trusted());
        let around =
            String::from_utf8_lossy(&changed[at.saturating_sub(20)..(at + 20).min(text.len())]);
        assert!(result.is_err(), "byte {at} may be changed: {around}");
        changed[at] ^= flip;
        count += 1;
    }
    assert!(count > if is_case { 3000 } else { 8000 }, "only {count} positions");
}

#[test]
fn changing_any_byte_of_the_reference_bundle_fails() {
    check_every_byte(&reference(), 0x01);
}

#[test]
fn changing_the_case_of_any_letter_fails() {
    check_every_byte(&reference(), 0x20);
}

#[test]
fn changing_any_byte_of_our_bundle_fails() {
    check_every_byte(&ours(), 0x01);
}
