//! Negative controls: every backend that leaks or lies fails exactly the checks about it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warrant_conformance::checks::{find, required_by, tried_by};
use warrant_conformance::preflight::vocabulary;
use warrant_conformance::{
    Capabilities, Check, Level, OutputFidelity, Report, Subject, Tier, run_checks,
};
use warrant_protocol::Isolation;
use warrant_sandbox::{Backend, Namespace};

use crate::bent::{Bend, Bent};
use crate::kit::Bench;
use crate::raw::{Claims, Groups, Raw};

/// Returns the namespace tier with one thing bent.
fn bent(bench: &Bench, bend: Bend) -> Subject {
    let mut subject = bench.subject(Isolation::Namespace);
    subject.provider = format!("{bend:?}");
    subject.open = Box::new(move || {
        let inner: Arc<dyn Backend> = Arc::new(Namespace::new());
        Ok(Arc::new(Bent { inner, bend }))
    });
    subject
}

/// Runs these checks and returns the report.
fn examine<'a>(subject: &Subject, checks: impl IntoIterator<Item = &'a Check>) -> Report {
    run_checks(subject, Tier::Sovereign, checks, &mut |_| {})
}

#[track_caller]
fn fails(report: &Report, expected: &[&str]) {
    let failed: Vec<_> = report.failed().map(|check| check.id.as_str()).collect();
    let details: Vec<_> = report.failed().map(|check| (&check.id, &check.detail)).collect();
    assert_eq!(failed, expected, "{}: {details:#?}", report.provider);
}

fn named(ids: &[&str]) -> Vec<&'static Check> {
    ids.iter().map(|id| find(id).unwrap_or_else(|| panic!("no check {id}"))).collect()
}

/// A lie about what every provider does costs it every tier.
#[track_caller]
fn fails_at_l1(bend: Bend, expected: &[&str]) {
    // The other checks about what a program says and is given, and the slow ones not.
    let held = ["lifecycle.one-isolation", "exec.stdout", "exec.argv", "receipt.binds-preimage"];
    let bench = Bench::new();
    let report = examine(&bent(&bench, bend), named(&[expected, &held].concat()));
    fails(&report, expected);
    assert!(report.failed().all(|check| check.level == Level::L1));
    assert_eq!(report.earned(), None);
}

/// A boundary that does not hold leaves the provider with what lies below.
#[track_caller]
fn fails_above(bend: Bend, expected: &[&str], held: &[&str]) {
    let bench = Bench::new();
    let report = examine(&bent(&bench, bend), named(&[expected, held].concat()));
    fails(&report, expected);
    assert!(report.failed().all(|check| check.level > Level::L1));
}

#[test]
fn a_backend_that_leaks_the_environment_fails() {
    fails_at_l1(Bend::LeaksEnvironment, &["env.exact", "env.nothing-inherited"]);
}

#[test]
fn a_backend_that_lies_about_exit_codes_fails() {
    let expected =
        ["lifecycle.capabilities", "exec.exit-codes", "exec.not-found", "receipt.tells-the-run"];
    fails_at_l1(Bend::LiesAboutExit, &expected);
}

#[test]
fn a_backend_that_merges_the_streams_fails() {
    fails_at_l1(Bend::MergesStreams, &["exec.streams", "exec.not-found"]);
}

#[test]
fn a_backend_that_truncates_silently_fails() {
    fails_at_l1(Bend::TruncatesSilently, &["exec.binary", "exec.large"]);
}

#[test]
fn a_backend_with_constant_digests_fails() {
    fails_at_l1(Bend::ConstantDigests, &["exec.digests", "receipt.tells-the-run"]);
}

#[test]
fn a_backend_that_drops_posture_components_fails() {
    fails_at_l1(Bend::DropsComponents, &["preflight.report"]);
}

#[test]
fn a_backend_that_runs_a_program_twice_fails() {
    fails_at_l1(Bend::RunsTwice, &["stdin.bytes", "files.round-trip"]);
}

#[test]
fn a_subject_is_held_to_the_output_it_declares() {
    let bench = Bench::new();
    let mut subject = bench.subject(Isolation::Namespace);
    let checks = ["lifecycle.capabilities", "exec.stdout", "exec.argv", "exec.streams"];
    fails(&examine(&subject, named(&checks)), &[]);
    subject.capabilities.output = OutputFidelity::Lines;
    let failing = ["lifecycle.capabilities", "exec.stdout", "exec.argv"];
    fails(&examine(&subject, named(&checks)), &failing);
}

#[test]
fn a_subject_that_declares_less_than_it_can_fails() {
    let bench = Bench::new();
    for capabilities in [Capabilities::INTERPRETER, Capabilities::MEMORY] {
        let mut subject = bench.subject(Isolation::Namespace);
        subject.capabilities = capabilities;
        fails(&examine(&subject, named(&["lifecycle.capabilities"])), &["lifecycle.capabilities"]);
    }
}

#[test]
fn a_backend_whose_plans_are_all_the_same_fails() {
    let held = ["preimage.recomputes", "receipt.any-change-shows"];
    fails_above(Bend::ConstantPlan, &["preimage.follows-invocation"], &held);
}

#[test]
fn a_backend_that_tells_secrets_in_its_plan_fails() {
    fails_above(Bend::TellsSecrets, &["plan.no-secret-value"], &["preimage.recomputes"]);
}

#[test]
fn a_backend_that_ignores_the_deadline_fails() {
    fails_above(
        Bend::IgnoresDeadline,
        &["stop.deadline"],
        &["stop.exit-kills-tree", "stop.cancel"],
    );
}

#[test]
fn a_backend_that_claims_limits_it_does_not_hold_fails() {
    let expected = [
        "limits.output",
        "limits.cpu",
        "limits.memory",
        "limits.processes",
        "limits.open-files",
        "limits.file-size",
        "limits.disk",
        "limits.inodes",
        "hostile.fork-bomb",
    ];
    fails_above(Bend::IgnoresLimits, &expected, &["stop.deadline"]);
}

#[test]
fn a_backend_that_shows_host_files_fails() {
    let held = ["claims.files-write", "claims.environment"];
    fails_above(Bend::ShowsHostFiles, &["claims.files-read", "hostile.names"], &held);
}

#[test]
fn a_backend_that_writes_through_its_overlay_fails() {
    fails_above(
        Bend::WritesThroughOverlay,
        &["files.overlay", "replay.independent"],
        &["files.read-only"],
    );
}

#[test]
fn a_backend_that_ignores_read_only_fails() {
    fails_above(Bend::IgnoresReadOnly, &["files.read-only"], &["files.overlay"]);
}

#[test]
fn a_backend_that_ignores_masks_fails() {
    fails_above(Bend::IgnoresMasks, &["files.masks"], &["files.overlay"]);
}

#[test]
fn a_backend_that_piles_up_output_fails() {
    fails_above(Bend::PilesUp, &["flood.back-pressure"], &["replay.concurrent"]);
}

#[test]
fn a_backend_that_hides_signals_fails() {
    fails_above(Bend::HidesSignals, &["hostile.crash"], &["stop.sigstop"]);
}

/// No boundary, every claim; and only the program itself is ended, not what it started.
#[test]
fn a_backend_without_a_boundary_fails_every_claim() {
    let bench = Bench::new();
    let mut subject = bench.subject(Isolation::Namespace);
    subject.provider = "raw".into();
    let groups = Groups::default();
    let of_raw = groups.clone();
    subject.open =
        Box::new(move || Ok(Arc::new(Raw { groups: of_raw.clone(), claims: Claims::All })));
    let report = examine(&subject, required_by(Tier::Sovereign));
    // What stopped itself would stay for ever, for nothing ends it but this.
    assert!(groups.living() > 0, "the control ends what it started, so it controls nothing");
    groups.end();
    let until = Instant::now() + Duration::from_secs(20);
    while groups.living() > 0 && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(groups.living(), 0, "the control leaves processes behind");
    fails(
        &report,
        &[
            "stop.deadline-kills-tree",
            "stop.exit-kills-tree",
            "limits.cpu",
            "limits.memory",
            "limits.processes",
            "limits.open-files",
            "limits.file-size",
            "limits.disk",
            "limits.inodes",
            "files.read-only",
            "files.overlay",
            "files.masks",
            "network.deny-all",
            "claims.files-read",
            "claims.files-write",
            "claims.processes-namespace",
            "claims.privileges",
            "claims.syscalls",
            "claims.network-names",
            "claims.ipc",
            "stop.cancel",
            "stop.sigstop",
            "network.sockets-by-name",
            "claims.neighbors-environment",
            "flood.back-pressure",
            "replay.independent",
            "hostile.names",
            "hostile.fork-bomb",
        ],
    );
    assert_eq!(report.earned(), Some(Tier::Compatible));
}

/// One claim at a time that nothing stands behind: each component, and each is caught.
#[test]
fn a_false_claim_is_caught_for_every_component() {
    let bench = Bench::new();
    let groups = Groups::default();
    for name in vocabulary() {
        let mut subject = bench.subject(Isolation::Namespace);
        subject.provider = format!("claims {name}");
        let (of_raw, claimed) = (groups.clone(), name.clone());
        subject.open = Box::new(move || {
            Ok(Arc::new(Raw { groups: of_raw.clone(), claims: Claims::Only(claimed.clone()) }))
        });
        let check = tried_by(&name).unwrap();
        fails(&examine(&subject, [check]), &[check.id]);
    }
    groups.end();
}

#[cfg(feature = "hermetic")]
#[test]
fn a_backend_that_tells_faults_as_successes_fails() {
    let bench = Bench::new();
    let mut subject = bench.subject(Isolation::Mock);
    let ids = ["fault.crash", "fault.hang", "fault.boundary", "fault.posture"];
    fails(&examine(&subject, named(&ids)), &[]);
    // Whatever is injected, this one goes on as if nothing had happened.
    let good = bench.subject(Isolation::Mock);
    subject.inject = Some(Box::new(move |_| (good.open)().ok()));
    fails(&examine(&subject, named(&ids)), &ids);
}

#[cfg(feature = "hermetic")]
#[test]
fn a_remote_subject_on_which_nothing_can_be_tried_fails() {
    let bench = Bench::new();
    let mut subject = bench.subject(Isolation::Hermetic);
    let faults: Vec<_> =
        required_by(Tier::Sovereign).filter(|c| c.id.starts_with("fault.")).collect();
    let ids: Vec<_> = faults.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), 14);
    fails(&examine(&subject, faults.clone()), &[]);
    subject.capabilities.is_remote = true;
    fails(&examine(&subject, faults), &ids);
}
