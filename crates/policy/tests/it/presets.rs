//! The shipped policies load, which means that their own examples pass.

use serde_json::json;
use warrant_policy::{Decision, Preset, decide, examples};
use warrant_protocol::Evidence;

use crate::facts;

#[test]
fn every_preset_passes_its_own_examples() {
    for preset in Preset::ALL {
        let policy = preset.load().unwrap_or_else(|e| panic!("{}: {e}", preset.as_str()));
        assert!(policy.rule_count() >= 13, "{}", preset.as_str());
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
