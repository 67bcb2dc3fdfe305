//! The shipped policies load, which means that their own examples pass.

use serde_json::{Value, json};
use warrant_policy::{Decision, PolicySnapshot, PolicyText, Preset, decide, examples};
use warrant_protocol::{Evidence, Isolation};

use crate::facts;

#[test]
fn every_preset_passes_its_own_examples() {
    for preset in Preset::ALL {
        let policy = preset.load().unwrap_or_else(|e| panic!("{}: {e}", preset.as_str()));
        // In the reference's preset the document alone decides.
        let least = if preset == Preset::Reference { 6 } else { 13 };
        assert!(policy.rule_count() >= least, "{}", preset.as_str());
        assert!(Preset::NAMES.contains(preset.as_str()));
        let examples = examples::read(preset.text().examples).unwrap();
        assert!(examples.len() >= 8, "{}", preset.as_str());
        assert_eq!(Preset::named(preset.as_str()), Some(preset));
    }
    assert_eq!(Preset::named("open"), None);
}

#[test]
fn an_allowed_run_gets_policy_s_terms() {
    let policy = Preset::Default.load().unwrap();
    let wanted = json!({"limits": {"processes": 3}, "requiredPosture": ["ipc"], "timeoutMs": 5});
    let Decision::Allow { terms, .. } = decide(&policy, &facts(wanted)) else { panic!("denied") };
    assert_eq!(terms.limits.processes, Some(3));
    assert_eq!(terms.limits.wall_ms, Some(5));
    assert_eq!(terms.limits.memory_bytes, Some(2 << 30));
    assert!(terms.masks.contains(".env"));
    assert_eq!(terms.posture.get("network"), Some(&Evidence::Measured));
    assert_eq!(terms.posture.get("ipc"), Some(&Evidence::Measured));
    assert!(terms.gate.is_some());
}

#[test]
fn no_preset_allows_what_a_stricter_reading_of_it_forbids() {
    for preset in Preset::ALL {
        let policy = preset.load().unwrap();
        for patch in [
            json!({"network": {"hosts": ["169.254.169.254"]}}),
            json!({"network": {"defaultDeny": false}}),
            json!({"env": {"egressProxy": false}}),
            json!({"image": "x"}),
            json!({"isolation": "vercel-sandbox"}),
            json!({"env": {"inherit": ["AWS_SECRET_ACCESS_KEY"]}}),
        ] {
            let decision = decide(&policy, &facts(patch.clone()));
            assert!(matches!(decision, Decision::Deny { .. }), "{} {patch}", preset.as_str());
        }
    }
}

const ACCEPTED: &str =
    r#"{"evidence": "requested", "by": "human:ann", "at": "2026-11-17T23:00:00.000Z"}"#;

fn with_providers(providers: &str) -> Result<PolicySnapshot, String> {
    let text = Preset::Default.text();
    let mut document: Value = serde_json::from_str(text.document).unwrap();
    document["controls"]["providers"] = serde_json::from_str(providers).unwrap();
    let document = document.to_string();
    PolicySnapshot::load(PolicyText { document: &document, ..text }).map_err(|e| format!("{e:?}"))
}

#[test]
fn an_accepted_component_lowers_policys_demand_and_not_a_requests() {
    let providers = format!(
        r#"{{"e2b": {{"accepted": {{"image_digest": {ACCEPTED}, "network": {ACCEPTED}}}}}}}"#
    );
    let policy = with_providers(&providers).unwrap();
    let evidence = |patch: Value| {
        let Decision::Allow { terms, .. } = decide(&policy, &facts(patch)) else {
            panic!("denied")
        };
        terms.evidence
    };
    let e2b = evidence(json!({"isolation": "e2b"}));
    assert_eq!(e2b.get("image_digest"), Some(&Evidence::Requested));
    assert_eq!(e2b.get("network"), Some(&Evidence::Requested));
    assert_eq!(policy.controls().evidence_of(Isolation::E2b), e2b);
    // Other providers are other providers.
    let daytona = evidence(json!({"isolation": "daytona"}));
    assert_eq!(daytona.get("image_digest"), None);
    // What a request demands itself is what it gets.
    let patch = json!({"isolation": "e2b", "requiredPosture": ["image_digest"]});
    assert_eq!(evidence(patch).get("image_digest"), Some(&Evidence::Measured));
}

#[test]
fn what_people_accept_of_a_provider_is_checked() {
    let accepted = |name: &str, one: &str| {
        with_providers(&format!(r#"{{"{name}": {{"accepted": {{"image_digest": {one}}}}}}}"#))
    };
    assert!(accepted("e2b", ACCEPTED).is_ok());
    let nobody = ACCEPTED.replace("human:ann", " ");
    let undated = ACCEPTED.replace("2026-11-17T23:00:00.000Z", "yesterday");
    let unknown = ACCEPTED.replace("by", "from");
    for (name, one) in
        [("namespace", ACCEPTED), ("e2b", &nobody), ("e2b", &undated), ("e2b", &unknown)]
    {
        assert!(accepted(name, one).is_err(), "{name} {one}");
    }
    let pin = |version: &str| {
        let author = r#""by": "human:ann", "at": "2026-11-17T23:00:00.000Z""#;
        with_providers(&format!(
            r#"{{"e2b": {{"versions": [{{"version": "{version}", {author}}}]}}}}"#
        ))
    };
    assert!(pin(">=0.6.13 <0.7").is_ok());
    assert!(pin("0.*.1").is_err());
}

#[test]
fn the_reference_preset_is_the_reference_s_document() {
    let text = include_str!("../../../../vectors/policy.json");
    let vectors: Value = serde_json::from_str(text).unwrap();
    let mut document: Value = serde_json::from_str(Preset::Reference.text().document).unwrap();
    let ours = document.as_object_mut().unwrap().remove("controls").unwrap();
    assert_eq!(document, vectors["defaultPolicy"]);
    assert_eq!(ours.as_object().unwrap().keys().collect::<Vec<_>>(), ["isolation"]);
}
