//! Negative controls: providers that leak or lie, each of which fails a named check at its level.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use warrant_conformance::checks::find;
use warrant_conformance::local::Setting;
use warrant_conformance::{EvidenceKeys, Level, Report, Subject, Tier, run_checks};
use warrant_protocol::{Isolation, SigningKey, Timestamp};
use warrant_sandbox::hermetic::WorkerProgram;
use warrant_sandbox::remote::Surroundings;

use super::door::{Door, binary};
use super::proxy::How::{Answers, Damages, Edits, Repeats, Rewrites};
use super::proxy::Kind::{Create, Download, Reading, Rules, Start, Status, Upload};
use super::proxy::When::{Every, Later, Saying};
use super::proxy::{HONEST, How, Proxy, Trick, When};
use super::site::variables;
use super::streams;

/// What the lie is, at which provider, and the check that finds it at its level.
struct Liar {
    lie: &'static str,
    provider: Isolation,
    trick: Trick,
    finds: (&'static str, Level),
}

const fn liar(
    (lie, provider): (&'static str, Isolation),
    (when, how): (When, How),
    finds: (&'static str, Level),
) -> Liar {
    Liar { lie, provider, trick: Trick { when, how }, finds }
}

use Isolation::{Daytona, E2b, Opensandbox};
use Level::{L1, L2};

const LIARS: &[Liar] = &[
    liar(
        ("every exit is told as a good one", E2b),
        (Saying, Rewrites(streams::e2b_always_well)),
        ("exec.exit-codes", L1),
    ),
    liar(
        ("every exit is told as a good one", Opensandbox),
        (Saying, Rewrites(streams::opensandbox_always_well)),
        ("exec.exit-codes", L1),
    ),
    liar(
        ("every exit is told as a good one", Daytona),
        (Every(Status), Edits(|told| told["exitCode"] = json!(0))),
        ("exec.exit-codes", L1),
    ),
    liar(
        ("both streams come as one", E2b),
        (Saying, Rewrites(streams::e2b_merged)),
        ("exec.streams", L1),
    ),
    liar(
        ("both streams come as one", Opensandbox),
        (Saying, Rewrites(streams::opensandbox_merged)),
        ("exec.streams", L1),
    ),
    liar(("what is said is lost", E2b), (Saying, Rewrites(streams::e2b_mute)), ("exec.stdout", L1)),
    liar(
        ("nobody tells the end", E2b),
        (Saying, Rewrites(streams::e2b_endless)),
        ("exec.stdout", L1),
    ),
    liar(
        ("nobody tells the end", Opensandbox),
        (Saying, Rewrites(streams::opensandbox_endless)),
        ("exec.exit-codes", L1),
    ),
    liar(("the program is started twice", E2b), (Every(Start), Repeats), ("files.round-trip", L1)),
    liar(
        ("the program is started twice", Daytona),
        (Every(Start), Repeats),
        ("files.round-trip", L1),
    ),
    liar(
        ("files arrive damaged", Daytona),
        (Every(Upload), Damages(streams::damaged)),
        ("lifecycle.create-destroy", L1),
    ),
    liar(
        ("files come back damaged", Daytona),
        (Every(Download), Rewrites(streams::damaged)),
        ("files.round-trip", L1),
    ),
    liar(
        ("another sandbox is told", Opensandbox),
        (Every(Reading), Edits(|info| info["id"] = json!("another"))),
        ("lifecycle.create-destroy", L1),
    ),
    liar(
        ("egress is opened after it was looked at", Daytona),
        (Later(Reading), Edits(|info| info["networkBlockAll"] = json!(false))),
        ("lifecycle.create-destroy", L1),
    ),
    liar(
        ("nothing can be made", E2b),
        (Every(Create), Answers(500, "{}")),
        ("lifecycle.create-destroy", L1),
    ),
    liar(
        ("other rules are applied than were asked for", E2b),
        (Every(Reading), Edits(|info| info["network"]["allowOut"] = json!(["evil.example"]))),
        ("preflight.strict-holds", L2),
    ),
    liar(
        ("rules are told and enforced by names alone", Opensandbox),
        (Every(Rules), Edits(|told| told["enforcementMode"] = json!("dns"))),
        ("preflight.strict-holds", L2),
    ),
    liar(
        ("no rules are told", Daytona),
        (
            Every(Reading),
            Edits(|info| drop(info.as_object_mut().unwrap().remove("networkBlockAll"))),
        ),
        ("preflight.strict-holds", L2),
    ),
];

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_unix_ms(u64::try_from(since.as_millis()).unwrap()).unwrap()
}

fn random() -> std::io::Result<[u8; 16]> {
    use std::io::Read as _;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Returns a provider at an address as a subject.
fn subject(
    scratch: &std::path::Path,
    provider: Isolation,
    (address, token): (&str, &str),
) -> Subject {
    let around = Surroundings {
        environment: variables(provider, address, token).into_iter().collect(),
        config: BTreeMap::new(),
        pinned: BTreeMap::new(),
        home: "home-of-the-test".into(),
        scratch: scratch.join("sessions"),
        random,
    };
    let setting = Setting {
        scratch: scratch.to_owned(),
        clock: now,
        keys: EvidenceKeys {
            plane: SigningKey::from_seed(&[1; 32]),
            runner: SigningKey::from_seed(&[2; 32]),
        },
        worker: WorkerProgram::at(binary()),
    };
    setting.remote(provider, around).unwrap()
}

fn examine(subject: &Subject, id: &str) -> Report {
    run_checks(subject, Tier::Sovereign, [find(id).unwrap()], &mut |_| {})
}

#[test]
fn every_lying_provider_fails_a_named_check_at_its_level() {
    let door = Door::open();
    let proxy = Proxy::before(&door.address);
    let scratch = tempfile::tempdir().unwrap();
    for Liar { lie, provider, trick, finds: (id, level) } in LIARS {
        let subject = subject(scratch.path(), *provider, (&proxy.address, &door.token));
        proxy.play(HONEST);
        let honest = examine(&subject, id);
        let failed: Vec<_> = honest.failed().map(|check| &check.detail).collect();
        assert!(failed.is_empty(), "{provider} without a lie fails {id}: {failed:?}");
        proxy.play(*trick);
        let report = examine(&subject, id);
        proxy.play(HONEST);
        let failed: Vec<_> =
            report.failed().map(|check| (check.id.as_str(), check.level)).collect();
        assert_eq!(failed, [(*id, *level)], "{provider}: {lie}");
        assert_eq!(door.sandboxes(), Vec::<String>::new(), "{provider}: {lie}");
    }
}
