//! What each local backend earns.

use warrant_conformance::Tier;
use warrant_protocol::Isolation;

use crate::kit::{Bench, examine};

#[track_caller]
fn earns(isolation: Isolation, earned: Tier) {
    let bench = Bench::new();
    let report = examine(&bench.subject(isolation), Tier::Sovereign);
    let failed: Vec<_> = report.failed().map(|check| (&check.id, &check.detail)).collect();
    assert_eq!(report.earned(), Some(earned), "{failed:#?}");
}

#[cfg(feature = "hermetic")]
#[test]
fn mock_earns_sovereign() {
    earns(Isolation::Mock, Tier::Sovereign);
}

#[cfg(feature = "hermetic")]
#[test]
fn hermetic_earns_sovereign() {
    earns(Isolation::Hermetic, Tier::Sovereign);
}

#[test]
fn namespace_earns_sovereign() {
    earns(Isolation::Namespace, Tier::Sovereign);
}

#[test]
fn process_earns_compatible_and_the_report_says_why_not_more() {
    let bench = Bench::new();
    let report = examine(&bench.subject(Isolation::Process), Tier::Sovereign);
    let failed: Vec<_> = report.failed().map(|check| (&check.id, &check.detail)).collect();
    assert_eq!(report.earned(), Some(Tier::Compatible), "{failed:#?}");
    let strict = report.failed().find(|check| check.id == "preflight.strict-holds").unwrap();
    let why = strict.detail.as_deref().unwrap();
    for component in ["files.read", "files.write", "network"] {
        assert!(why.contains(component), "{why}");
    }
}
