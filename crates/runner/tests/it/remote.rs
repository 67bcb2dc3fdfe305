//! A runner of ours at a plane of the reference, which knows nothing of leases.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use warrant_plane::clock::SystemTimeSource;
use warrant_protocol::signed::Signed;
use warrant_protocol::wire::RunnerAbilities;
use warrant_protocol::{
    Chain, ChainedEvent, Contract, Digest, Event, PoolName, PublicKey, Receipt, Sealer, Signer,
    TimeSource, Timestamp, fold,
};
use warrant_runner::fleet::{Drain, Fleet, Tally};
use warrant_runner::remote::{
    BlobCache, CallError, EnrollError, EnrollOptions, Enrolled, Http, Outbox, PinnedBy,
    RemoteParts, RemotePlane,
};
use warrant_sandbox::{Backend, Process};

use crate::loopback::{Asked, Loopback, recorded_claims, recorded_plane_key};

/// The time at which the recorded contracts were good.
pub(crate) fn recorded_now() -> Timestamp {
    "2026-11-15T18:21:40.000Z".parse().unwrap()
}

fn pool() -> PoolName {
    "default".parse().unwrap()
}

fn enroll(plane: &Loopback, data: &Path, key: Option<&PublicKey>) -> Result<Enrolled, EnrollError> {
    let http = Http::new(&plane.url(), None).unwrap();
    let options = EnrollOptions {
        data,
        pool: &pool(),
        token: Some("rec-enroll"),
        plane_key: key,
        seed: [7; 32],
        patience: Duration::from_millis(1),
        time: &SystemTimeSource,
    };
    Enrolled::open(&http, &options)
}

fn remote(plane: &Loopback, data: &Path) -> RemotePlane {
    remote_with(plane, data, (Arc::new(SystemTimeSource), &recorded_plane_key()))
}

fn remote_with(
    plane: &Loopback,
    data: &Path,
    (time, key): (Arc<dyn TimeSource>, &PublicKey),
) -> RemotePlane {
    let enrolled = enroll(plane, data, Some(key)).unwrap();
    let outbox = Outbox::open_at(data.join("outbox")).unwrap();
    let http = Arc::new(Http::new(&plane.url(), None).unwrap());
    let abilities = RunnerAbilities::default();
    let (generation, process) = (None, None);
    RemotePlane::new(RemoteParts { http, enrolled, abilities, outbox, time, generation, process })
}

/// Works until the plane was asked `claims` times for work.
fn work(plane: &Loopback, data: &Path, claims: usize) -> Tally {
    let (time, plane_key) = (Arc::new(SystemTimeSource), recorded_plane_key());
    work_with(plane, RemoteSetup { data, claims, time, plane_key })
}

/// How a runner of these tests is set up.
pub(crate) struct RemoteSetup<'a> {
    /// Its directory.
    pub(crate) data: &'a Path,
    /// After how many claims it is drained.
    pub(crate) claims: usize,
    /// Its clocks.
    pub(crate) time: Arc<dyn TimeSource>,
    /// The key it pins.
    pub(crate) plane_key: PublicKey,
}

/// Works until the plane was asked so often for work, on the clocks that are given.
pub(crate) fn work_with(plane: &Loopback, setup: RemoteSetup<'_>) -> Tally {
    let RemoteSetup { data, claims, time, plane_key } = setup;
    let remote = remote_with(plane, data, (time, &plane_key));
    let drain = Drain::default();
    let process = Process::new();
    let backends: [&dyn Backend; 1] = [&process];
    let cache = BlobCache::open(&data.join("cache"), 1 << 20).unwrap();
    let environment = BTreeMap::new();
    let fleet = Fleet {
        plane: &remote,
        backends: &backends,
        pins: &[],
        data,
        cache: &cache,
        concurrency: 1,
        poll: Duration::from_millis(5),
        grace: Duration::from_secs(60),
        environment: &environment,
        mock: None,
        clock: &recorded_now,
    };
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| fleet.work(&drain).unwrap());
        let is_claim = |asked: &Asked| asked.path == "/v1/claims";
        while plane.asked().iter().filter(|asked| is_claim(asked)).count() < claims
            && !worker.is_finished()
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        drain.begin();
        worker.join().unwrap()
    })
}

/// What was asked, as lines without the ids, claims for nothing left out.
fn lines(asked: &[Asked]) -> Vec<String> {
    let line = |asked: &Asked| {
        let segments: Vec<&str> = asked.path.trim_start_matches("/v1/").split('/').collect();
        let path = match segments.as_slice() {
            ["runs", _, verb] => format!("runs/:id/{verb}"),
            ["blobs", _] => "blobs/:hash".to_owned(),
            _ => segments.join("/"),
        };
        format!("{} {path}", asked.method)
    };
    asked.iter().map(line).collect()
}

pub(crate) fn posted<'a>(asked: &'a [Asked], ending: &str) -> Vec<&'a Asked> {
    asked.iter().filter(|asked| asked.method == "POST" && asked.path.ends_with(ending)).collect()
}

/// The chain that the plane would hold: what came with the claim, then what was posted.
fn chain_at_the_plane(claim: &Value, asked: &[Asked]) -> (Contract, Chain) {
    let contract = Contract::from_value(claim["contract"].clone()).unwrap();
    let mut events: Vec<ChainedEvent> = serde_json::from_value(claim["events"].clone()).unwrap();
    for post in posted(asked, "/events") {
        let more: Vec<ChainedEvent> =
            serde_json::from_value(post.json()["events"].clone()).unwrap();
        events.extend(more);
    }
    let chain = Chain::from_events(contract.hash(), events).unwrap();
    (contract, chain)
}

fn receipt(asked: &[Asked]) -> Receipt {
    let complete = posted(asked, "/complete");
    assert_eq!(complete.len(), 1);
    Signed::from_value(complete[0].json()["receipt"].clone()).unwrap()
}

#[test]
fn a_run_of_the_reference_is_spoken_of_in_its_words_and_brings_back_its_diff() {
    let claim = recorded_claims().remove(0);
    let plane = Loopback::with_claims(vec![claim.clone()]);
    let data = tempfile::tempdir().unwrap();
    let tally = work(&plane, data.path(), 2);
    assert_eq!(tally, Tally { ended: 1, fenced: 0, waiting: 0 });
    let asked = plane.asked();
    let first: Vec<String> = lines(&asked).into_iter().take(11).collect();
    let expected = [
        "POST runners/enroll",
        "POST claims",
        "GET blobs/:hash",
        "GET blobs/:hash",
        "GET blobs/:hash",
        "POST runs/:id/events",
        "POST blobs",
        "POST blobs",
        "POST runs/:id/events",
        "POST runs/:id/complete",
        "POST claims",
    ];
    assert_eq!(first, expected);
    let uploads: Vec<String> = posted(&asked, "/v1/blobs")
        .iter()
        .map(|blob| String::from_utf8(blob.body.clone()).unwrap())
        .collect();
    let recorded_diff = "diff --git a/README.md b/README.md\nindex 9048390..a29aaa2 100644\n\
        --- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-# e2e fixture\n+# e2e fixture (dirty)\n\
        diff --git a/notes.md b/notes.md\nnew file mode 100644\nindex 0000000..5a72eb2\n\
        --- /dev/null\n+++ b/notes.md\n@@ -0,0 +1 @@\n+untracked\n\
        diff --git a/out.txt b/out.txt\nnew file mode 100644\nindex 0000000..19f86f4\n\
        --- /dev/null\n+++ b/out.txt\n@@ -0,0 +1 @@\n+done\n";
    // Ours names the objects in full; git takes both.
    let without_index = |diff: &str| -> Vec<String> {
        diff.lines().filter(|line| !line.starts_with("index ")).map(str::to_owned).collect()
    };
    let brings = |upload: &String| without_index(upload) == without_index(recorded_diff);
    assert!(uploads.iter().any(brings), "{uploads:?}");
    assert!(uploads.contains(&"[REDACTED:MOCK_SECRET]".to_owned()), "{uploads:?}");
    let claim_token = claim["claimToken"].as_str();
    assert!(posted(&asked, "/v1/blobs").iter().all(|blob| blob.token.as_deref() == claim_token));

    let (contract, chain) = chain_at_the_plane(&claim, &asked);
    let receipt = receipt(&asked);
    let enrolled = enroll(&plane, data.path(), None).unwrap();
    let identity = enrolled.identity();
    assert_eq!(receipt.check_signature(Signer::Runner, identity.key.public()), Ok(()));
    let sealer = Sealer::Runner {
        runner_id: identity.id.clone(),
        key_id: identity.key.public().id().clone(),
    };
    assert_eq!(fold(&contract, &chain, &sealer).unwrap(), *receipt.body());
    assert_eq!(receipt.body().secrets_released.len(), 1);
}

#[test]
fn a_failing_run_and_a_script_in_another_tier_end_in_receipts_too() {
    let claims = recorded_claims();
    let plane = Loopback::with_claims(claims[1..3].to_vec());
    let data = tempfile::tempdir().unwrap();
    let tally = work(&plane, data.path(), 3);
    assert_eq!(tally.ended, 2);
    let ends: Vec<Value> =
        posted(&plane.asked(), "/complete").iter().map(|post| post.json()).collect();
    let status = |end: &Value| end["receipt"]["status"].as_str().unwrap().to_owned();
    assert_eq!(status(&ends[0]), "failed");
    assert_eq!(ends[0]["receipt"]["exitCode"], json!(3));
    // The second asks for a tier that this runner does not have.
    assert_eq!(status(&ends[1]), "failed");
    assert_eq!(ends[1]["receipt"]["outcome"]["kind"], json!("posture-refused"));
}

#[test]
fn a_plane_that_swaps_a_blob_gets_a_receipt_and_runs_nothing() {
    let claim = recorded_claims().remove(0);
    let plane = Loopback::with(vec![claim.clone()], |asked| {
        let is_blob = asked.method == "GET" && asked.path.starts_with("/v1/blobs/");
        is_blob.then(|| (200, json!("something else")))
    });
    let data = tempfile::tempdir().unwrap();
    assert_eq!(work(&plane, data.path(), 2).ended, 1);
    let asked = plane.asked();
    let (_, chain) = chain_at_the_plane(&claim, &asked);
    let kinds: Vec<String> = chain
        .events()
        .iter()
        .map(|event| serde_json::to_value(event).unwrap()["event"]["type"].as_str().unwrap().into())
        .collect();
    assert!(!kinds.iter().any(|kind| kind == "command.executed"), "{kinds:?}");
    assert_eq!(kinds.last().map(String::as_str), Some("run.failed"));
}

#[test]
fn a_contract_of_a_plane_that_is_not_pinned_does_not_run() {
    let mut claim = recorded_claims().remove(0);
    claim["contract"]["execution"]["script"] = json!("echo pwned > out.txt");
    let plane = Loopback::with_claims(vec![claim]);
    let data = tempfile::tempdir().unwrap();
    work(&plane, data.path(), 2);
    let asked = plane.asked();
    assert!(posted(&asked, "/v1/blobs").is_empty());
    assert!(!asked.iter().any(|asked| asked.method == "GET"));
}

#[test]
fn an_outage_at_the_end_of_a_run_loses_nothing() {
    let claim = recorded_claims().remove(0);
    let plane = Arc::new(Loopback::with(vec![claim.clone()], |_| None));
    let data = tempfile::tempdir().unwrap();
    let watcher = Arc::clone(&plane);
    let away = std::thread::spawn(move || {
        // The plane goes away after the start, and comes back when the runner stands there.
        while posted(&watcher.asked(), "/events").is_empty() {
            std::thread::yield_now();
        }
        watcher.set_away(true);
        std::thread::sleep(Duration::from_millis(400));
        watcher.set_away(false);
    });
    let tally = work(&plane, data.path(), 2);
    away.join().unwrap();
    assert_eq!(tally, Tally { ended: 1, fenced: 0, waiting: 0 });
    let (contract, chain) = chain_at_the_plane(&claim, &plane.asked());
    assert_eq!(receipt(&plane.asked()).body().contract_hash, contract.hash());
    assert_eq!(receipt(&plane.asked()).body().events_head, chain.head());
    assert_eq!(std::fs::read_dir(data.path().join("outbox")).unwrap().count(), 0);
}

#[test]
fn a_run_whose_runner_was_killed_is_ended_by_its_next_life() {
    let claim = recorded_claims().remove(0);
    let plane = Loopback::with_claims(vec![claim.clone()]);
    let data = tempfile::tempdir().unwrap();
    {
        // The first life claims and starts, and is gone.
        use warrant_protocol::port::Plane as _;
        let first = remote(&plane, data.path());
        let lease = first.claim().unwrap().unwrap();
        first.start(&lease.key, &[]).unwrap();
    }
    let tally = work(&plane, data.path(), 2);
    assert_eq!(tally, Tally { ended: 0, fenced: 0, waiting: 0 });
    let receipt = receipt(&plane.asked());
    assert_eq!(receipt.to_value()["outcome"]["kind"], json!("unobserved"));
    let (_, chain) = chain_at_the_plane(&claim, &plane.asked());
    assert_eq!(receipt.body().events_head, chain.head());
    // SECURITY: nothing of the secret was ever written down.
    let secret = claim["secrets"][0]["value"].as_str().unwrap();
    assert!(!holds(data.path(), secret));
}

#[test]
fn a_start_that_cannot_be_noted_starts_nothing() {
    let claim = recorded_claims().remove(0);
    let data = tempfile::tempdir().unwrap();
    let outbox = data.path().join("outbox");
    let plane = Loopback::with(vec![claim.clone()], move |asked| {
        // The workspace is fetched before the start; from then on the note has no place.
        if asked.method == "GET" && asked.path.starts_with("/v1/blobs/") {
            let entry = std::fs::read_dir(&outbox).unwrap().next().unwrap().unwrap();
            std::fs::create_dir_all(entry.path().join("started.json/taken")).unwrap();
        }
        None
    });
    let tally = work(&plane, data.path(), 2);
    assert_eq!(tally, Tally { ended: 1, fenced: 0, waiting: 0 });
    let asked = plane.asked();
    let (_, chain) = chain_at_the_plane(&claim, &asked);
    let text = serde_json::to_string(chain.events()).unwrap();
    for never in ["command.executed", "run.started", "artifact.created"] {
        assert!(!text.contains(never), "{never}: {text}");
    }
    let receipt = receipt(&asked).to_value();
    assert_eq!(receipt["outcome"]["kind"], json!("failed"), "{receipt}");
    assert!(text.contains("cannot note that the run starts"), "{text}");
    assert!(posted(&asked, "/v1/blobs").is_empty(), "nothing ran, so nothing came back");
}

/// What a claim brings from a plane that has leases.
fn leased(claim: &Value) -> Value {
    let mut leased = claim.clone();
    leased["epoch"] = json!(1);
    leased["leaseMs"] = json!(60_000);
    leased
}

#[test]
fn a_run_that_an_older_runner_had_begun_is_not_taken_for_one_that_never_started() {
    use warrant_protocol::port::Plane as _;
    let claim = recorded_claims().remove(0);
    for claim in [claim.clone(), leased(&claim)] {
        let plane = Loopback::with_claims(vec![claim.clone()]);
        let data = tempfile::tempdir().unwrap();
        drop(remote(&plane, data.path()).claim().unwrap().unwrap());
        let entries = std::fs::read_dir(data.path().join("outbox")).unwrap();
        let entries: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        let [entry] = entries.as_slice() else { panic!("{entries:?}") };
        assert!(entry.join("lease.json").is_file());
        // An older runner left this mark beside the lease.
        std::fs::write(entry.join("starting"), "").unwrap();
        work(&plane, data.path(), 2);
        let asked = plane.asked();
        assert!(posted(&asked, "/hand-back").is_empty(), "{:?}", lines(&asked));
        let receipt = receipt(&asked).to_value();
        assert_eq!(receipt["outcome"]["kind"], json!("unobserved"), "{receipt}");
        assert!(!entry.exists(), "it was delivered");
    }
}

#[test]
fn a_start_that_was_not_answered_is_given_back_or_told_as_the_plane_recorded_it() {
    use warrant_protocol::port::Plane as _;
    for is_recorded in [false, true] {
        let claim = leased(&recorded_claims().remove(0));
        let (_, mut chain) = chain_at_the_plane(&claim, &[]);
        let before = chain.events().len();
        let base = Event::WorkspaceMaterialized { manifest_hash: Digest::of(b"one") };
        chain.append(recorded_now(), &base).unwrap();
        let started = Event::RunStarted { epoch: 1, lamport: None, start_id: None };
        let started = chain.append(recorded_now(), &started).unwrap().clone();
        let told = chain.events()[before..=before].to_vec();
        let calls = AtomicUsize::new(0);
        let plane = Loopback::with(vec![claim], move |asked| {
            let refused = || Some((409, json!({"error": "over", "code": "fenced"})));
            if asked.path.ends_with("/hand-back") {
                return if is_recorded { refused() } else { Some((200, json!({"ok": true}))) };
            }
            // The first answer never arrives; the runner is killed while it waits.
            match asked.path.ends_with("/start") && calls.fetch_add(1, Ordering::SeqCst) > 0 {
                true => Some((200, json!({"events": [started.clone()], "secrets": []}))),
                false if asked.path.ends_with("/start") => refused(),
                false => None,
            }
        });
        let data = tempfile::tempdir().unwrap();
        let first = remote(&plane, data.path());
        let lease = first.claim().unwrap().unwrap();
        assert!(first.start(&lease.key, &told).is_err());
        drop(first);
        work(&plane, data.path(), 2);
        let asked = plane.asked();
        let starts: Vec<Value> = posted(&asked, "/start").iter().map(|post| post.json()).collect();
        if !is_recorded {
            assert_eq!((starts.len(), posted(&asked, "/complete").len()), (1, 0), "given back");
            continue;
        }
        assert_eq!(starts[0], starts[1], "the same start, with the same events");
        assert_eq!(starts[1]["events"].as_array().unwrap().len(), 1);
        let end = posted(&asked, "/complete")[0].json();
        let next = end["events"][0]["seq"].as_u64();
        assert_eq!(next, Some(chain.events().len() as u64), "it follows what the plane has: {end}");
        assert_eq!(end["receipt"]["outcome"]["kind"], json!("unobserved"), "{end}");
    }
}

fn holds(directory: &Path, text: &str) -> bool {
    std::fs::read_dir(directory).unwrap().flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return holds(&path, text);
        }
        String::from_utf8_lossy(&std::fs::read(path).unwrap()).contains(text)
    })
}

#[test]
fn an_identity_is_private_and_kept_and_of_one_pool() {
    let plane = Loopback::with_claims(Vec::new());
    let data = tempfile::tempdir().unwrap();
    let key = recorded_plane_key();
    let first = enroll(&plane, data.path(), Some(&key)).unwrap();
    assert_eq!(first.pinned_by(), PinnedBy::Operator);
    for name in ["identity.json", "runner.key.pem", "runner.pub.pem", "plane.pub.pem"] {
        let mode = std::fs::metadata(data.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let again = enroll(&plane, data.path(), None).unwrap();
    assert_eq!(again.pinned_by(), PinnedBy::Before);
    assert_eq!(again.identity().id, first.identity().id);
    assert_eq!(posted(&plane.asked(), "/enroll").len(), 1);

    let http = Http::new(&plane.url(), None).unwrap();
    let other = "other".parse().unwrap();
    let options = EnrollOptions {
        data: data.path(),
        pool: &other,
        token: None,
        plane_key: None,
        seed: [8; 32],
        patience: Duration::ZERO,
        time: &SystemTimeSource,
    };
    let refused = Enrolled::open(&http, &options).unwrap_err();
    assert!(matches!(refused, EnrollError::OtherPool { .. }), "{refused}");
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(data.path().join("runner.key.pem"), open).unwrap();
    let refused = enroll(&plane, data.path(), None).unwrap_err();
    assert!(matches!(refused, EnrollError::NotPrivate(_)), "{refused}");
}

#[test]
fn a_plane_that_does_not_say_its_key_is_not_believed() {
    let plane = Loopback::with_claims(Vec::new());
    let data = tempfile::tempdir().unwrap();
    let refused = enroll(&plane, data.path(), None).unwrap_err();
    assert!(matches!(refused, EnrollError::NoPlaneKey), "{refused}");
}

#[test]
fn a_refused_enrollment_is_not_tried_again() {
    let plane = Loopback::with(Vec::new(), |asked| {
        let refusal = json!({"error": "invalid enroll token", "code": "bad_request"});
        asked.path.ends_with("/enroll").then_some((400, refusal))
    });
    let data = tempfile::tempdir().unwrap();
    let http = Http::new(&plane.url(), None).unwrap();
    let options = EnrollOptions {
        data: data.path(),
        pool: &pool(),
        token: Some("wrong"),
        plane_key: None,
        seed: [7; 32],
        patience: Duration::from_secs(600),
        time: &SystemTimeSource,
    };
    let refused = Enrolled::open(&http, &options).unwrap_err();
    let EnrollError::Plane(CallError::Refused { status: 400, message, .. }) = refused else {
        panic!("{refused}");
    };
    assert_eq!(message, "invalid enroll token");
    assert_eq!(plane.asked().len(), 1);
}

#[test]
fn a_redirect_does_not_carry_a_token_elsewhere() {
    let elsewhere = Loopback::with_claims(Vec::new());
    let location = json!({"location": format!("{}/v1/claims", elsewhere.url())});
    let plane = Loopback::with(Vec::new(), move |_| Some((307, location.clone())));
    let http = Http::new(&plane.url(), None).unwrap();
    let refused = http.post_as("/v1/claims", "secret", &json!({})).unwrap_err();
    assert!(matches!(refused, CallError::Refused { status: 307, .. }), "{refused}");
    assert!(elsewhere.asked().is_empty());
}
