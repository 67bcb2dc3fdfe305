//! A remote provider on loopback as a subject, and providers that lie: each fails a named check at
//! its level.

#[allow(dead_code, reason = "shared with the tests of the clients")]
#[path = "../../../sandbox/tests/it/remote/e2b.rs"]
mod e2b;
#[allow(dead_code, reason = "shared with the tests of the clients")]
#[path = "../../../sandbox/tests/it/remote/http.rs"]
mod http;
#[allow(dead_code, reason = "shared with the tests of the clients")]
#[path = "../../../sandbox/tests/it/remote/machine.rs"]
mod machine;
#[allow(dead_code, reason = "shared with the tests of the clients")]
#[path = "../../../sandbox/tests/it/remote/trick.rs"]
mod trick;

use std::collections::BTreeMap;

use warrant_conformance::checks::find;
use warrant_conformance::{Level, Report, Tier, run_checks};
use warrant_protocol::Isolation;
use warrant_sandbox::remote::Surroundings;

use e2b::Provider;
use trick::Trick;

/// Runs some checks on an E2B-shaped provider that plays a trick.
fn examine(trick: Trick, ids: &[&str]) -> Report {
    let (provider, server) = Provider::start(trick);
    let scratch = tempfile::tempdir().unwrap();
    let variables = [
        ("E2B_API_KEY", e2b::KEY.to_owned()),
        ("E2B_API_URL", server.url()),
        ("E2B_SANDBOX_URL", server.url()),
        ("WARRANT_EGRESS_CANARY", "127.0.0.1:9".to_owned()),
        ("WARRANT_PROVIDER_TIMEOUT_S", "5".to_owned()),
    ];
    let around = Surroundings {
        environment: variables.map(|(name, value)| (name.to_owned(), value)).into(),
        config: BTreeMap::new(),
        home: "home-of-the-test".into(),
        scratch: scratch.path().join("sessions"),
        random,
    };
    let bench = crate::kit::Bench::new();
    let subject = bench.setting.remote(Isolation::E2b, around).unwrap();
    let checks = ids.iter().map(|id| find(id).unwrap());
    let report = run_checks(&subject, Tier::Sovereign, checks, &mut |_| {});
    assert_eq!(provider.left(), 0, "{trick:?} left a sandbox");
    report
}

fn random() -> std::io::Result<[u8; 16]> {
    use std::io::Read as _;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn an_honest_provider_passes_what_a_client_can_see() {
    let report = examine(
        Trick::None,
        &[
            "lifecycle.create-destroy",
            "exec.stdout",
            "exec.binary",
            "exec.streams",
            "exec.exit-codes",
            "stdin.bytes",
            "env.exact",
            "files.round-trip",
            "preflight.report",
            "preflight.strict-holds",
            "preflight.run-agrees",
            "receipt.binds-preimage",
            "stop.deadline",
            "fault.crash",
            "fault.hang",
            "fault.boundary",
            "fault.posture",
            "fault.server-error",
            "fault.server-hang",
            "fault.truncated",
            "fault.malformed",
            "fault.wrong-sandbox",
            "fault.other-spec",
            "fault.key-revoked",
            "fault.egress-opened",
            "fault.image-swapped",
            "fault.connection-cut",
        ],
    );
    let failed: Vec<_> = report.failed().map(|check| (&check.id, &check.detail)).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn every_lying_provider_fails_a_named_check_at_its_level() {
    for (trick, id, level) in [
        (Trick::LyingExitCode, "exec.exit-codes", Level::L1),
        (Trick::MergedStreams, "exec.streams", Level::L1),
        (Trick::SwallowedOutput, "exec.stdout", Level::L1),
        (Trick::NoEnd, "exec.stdout", Level::L1),
        (Trick::DamagedUpload, "lifecycle.create-destroy", Level::L1),
        (Trick::DamagedDownload, "files.round-trip", Level::L1),
        (Trick::OtherSandboxTold, "lifecycle.create-destroy", Level::L1),
        (Trick::EgressOpenedLater, "lifecycle.create-destroy", Level::L1),
        (Trick::OpenEgress, "network.deny-all", Level::L2),
        (Trick::NoEgressTold, "preflight.strict-holds", Level::L2),
        (Trick::OtherEgressTold, "preflight.strict-holds", Level::L2),
    ] {
        let report = examine(trick, &[id]);
        let failed: Vec<_> =
            report.failed().map(|check| (check.id.as_str(), check.level)).collect();
        assert_eq!(failed, [(id, level)], "{trick:?}");
    }
}
