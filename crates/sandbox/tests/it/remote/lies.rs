//! Providers that fail, lie or change their mind: each ends in the right outcome, nothing runs
//! twice, and no sandbox is left behind.

use warrant_protocol::{Enforcement, Evidence, Outcome};
use warrant_sandbox::{Backend as _, Cancel};

use super::e2b::Provider;
use super::kit::Desk;
use super::trick::Trick;
use crate::bench::run;

/// Runs `echo ran` and returns the outcome, or none when nothing could be built.
#[track_caller]
fn ends(trick: Trick, programs: usize) -> Option<Outcome> {
    let (provider, server) = Provider::start(trick);
    let desk = Desk::new();
    let mut invocation = desk.script("echo ran");
    invocation.limits.wall_ms = Some(4_000);
    let (report, heard) = run(&desk.e2b(&server.url()), invocation);
    assert_eq!(provider.programs().len(), programs, "{trick:?} started another number of programs");
    assert_eq!(provider.left(), 0, "{trick:?} left a sandbox");
    if programs == 0 {
        assert_eq!(heard.stdout(), "", "{trick:?}");
    }
    report.ok().map(|report| report.outcome)
}

#[test]
fn a_provider_that_cannot_build_runs_nothing() {
    for trick in [
        Trick::RevokedKey,
        Trick::CreateError,
        Trick::CreateHang,
        Trick::CreateMadeAndCut,
        Trick::CreateMadeAndError,
        Trick::CreateMalformed,
        Trick::InfoError,
        Trick::InfoMalformed,
        Trick::InfoTruncated,
        Trick::OtherSandboxTold,
        Trick::OtherSessionTold,
        Trick::DamagedUpload,
        Trick::KeyRevokedLater,
        Trick::StartDenied,
    ] {
        let programs = usize::from(trick == Trick::StartDenied);
        assert_eq!(ends(trick, programs), None, "{trick:?}");
    }
}

#[test]
fn an_id_that_leads_elsewhere_is_refused() {
    assert_eq!(ends(Trick::CreateStrangeId, 0), None);
}

#[test]
fn a_sandbox_that_changed_after_it_was_looked_at_starts_nothing() {
    for trick in [
        Trick::EgressOpenedLater,
        Trick::ImageSwappedLater,
        Trick::MemoryChangedLater,
        Trick::VersionChangedLater,
    ] {
        assert_eq!(ends(trick, 0), Some(Outcome::PostureRefused), "{trick:?}");
    }
}

#[test]
fn an_end_nobody_saw_is_never_a_success_and_never_tried_again() {
    for trick in [Trick::StartError, Trick::StartHang, Trick::StartCut, Trick::NoEnd] {
        assert_eq!(ends(trick, 1), Some(Outcome::Unobserved), "{trick:?}");
    }
}

#[test]
fn passing_trouble_and_slow_or_repeated_answers_change_nothing() {
    for trick in [Trick::InfoFlaky, Trick::SlowLoris, Trick::EndTwice] {
        assert_eq!(ends(trick, 1), Some(Outcome::Exited { code: 0 }), "{trick:?}");
    }
}

#[test]
fn damage_on_the_way_back_is_noticed() {
    assert_eq!(ends(Trick::DamagedDownload, 1), None);
}

/// Each single degraded field shows in the posture of what was made ready.
#[test]
fn every_degraded_field_is_told() {
    use Enforcement::{Absent, Unknown};
    for (trick, component, expected) in [
        (Trick::UnknownVersion, "provider_version", Absent),
        (Trick::NoVersion, "provider_version", Unknown),
        (Trick::NoEgressTold, "egress_policy", Unknown),
        (Trick::NoEgressTold, "network", Unknown),
        (Trick::OtherEgressTold, "egress_policy", Absent),
        (Trick::OtherEgressTold, "network", Absent),
        (Trick::OpenEgress, "network", Absent),
        (Trick::TooMuchMemory, "limits.memory", Absent),
        (Trick::ForeignMount, "mounts", Absent),
    ] {
        let (provider, server) = Provider::start(trick);
        let desk = Desk::new();
        let backend = desk.e2b(&server.url());
        let mut invocation = desk.script(":");
        // Less than any machine these tests run on has.
        invocation.limits.memory_bytes = Some(600 << 20);
        let mut plan = backend.prepare(invocation).unwrap();
        let posture = backend.ready(&mut plan, &Cancel::new().unwrap()).unwrap();
        let found = &posture.components[component];
        assert_eq!(found.enforcement, expected, "{trick:?} {component}: {found:?}");
        backend.release(&plan);
        assert_eq!(provider.left(), 0);
    }
}

#[test]
fn a_lie_about_egress_is_found_from_inside() {
    let (_provider, server) = Provider::start(Trick::OpenEgress);
    let desk = Desk::new();
    let posture = desk.e2b(&server.url()).probe();
    assert_eq!(posture.components["egress_policy"].enforcement, Enforcement::Enforced);
    let network = &posture.components["network"];
    assert_eq!((network.enforcement, network.evidence), (Enforcement::Absent, Evidence::Measured));
}

#[test]
fn what_could_not_be_deleted_is_deleted_by_the_next_run() {
    let (provider, server) = Provider::start(Trick::None);
    let desk = Desk::new();
    let cancel = Cancel::new().unwrap();
    let backend = desk.e2b(&server.url());
    let mut plan = backend.prepare(desk.script(":")).unwrap();
    backend.ready(&mut plan, &cancel).unwrap();
    provider.play(Trick::RevokedKey);
    backend.release(&plan);
    assert_eq!(provider.left(), 1);
    provider.play(Trick::None);
    let (report, _) = run(&backend, desk.script("true"));
    assert!(report.unwrap().outcome.is_success());
    assert_eq!(provider.left(), 0);
}
