//! What governing one run costs: the decision of the shipped policy, contract, chain, two
//! signatures, countersignature, with and without durable commits, and whether that stays flat over
//! many stored runs on disk.
//!
//! `cargo bench --workspace --bench governance [-- <stored runs>]`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a benchmark")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use warrant_plane::judge::judge;
use warrant_plane::notary::{Case, Notary};
use warrant_plane::store::RunFilter;
use warrant_plane::{EmbeddedPlane, Home, Judgment, Reception, Submission, random};
use warrant_policy::{History, PolicySnapshot, Preset, ProgramFile, Surroundings};
use warrant_protocol::port::Plane as _;
use warrant_protocol::request::WorkspaceMode;
use warrant_protocol::{
    Decision, Digest, Event, Isolation, Outcome, RunId, RunRequest, Sealer, Signed, Signer, Usage,
    fold,
};

fn request() -> RunRequest {
    let value = json!({
        "requestedBy": {"kind": "human", "id": "alice"},
        "agentKind": "command",
        "prompt": "true",
        "execution": {"kind": "argv", "command": "true", "args": [], "env": {"vars": {}}},
        "isolation": "namespace",
        "mode": "overlay",
        "pool": "default",
        "secretNames": [],
        "workspace": {
            "version": "warrant.manifest.v1",
            "baseRef": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
            "bundleHash": Digest::of(b""),
            "untrackedFiles": [],
            "deniedPatterns": [],
            "deniedPaths": [],
        },
        "network": {"defaultDeny": true, "allowHosts": []},
        "budget": {},
        "disclosure": "none",
    });
    serde_json::from_value(value).unwrap()
}

/// What the shipped policy decides, with everything about the request judged.
fn judgment(policy: &PolicySnapshot, request: &RunRequest) -> Judgment {
    let around = Surroundings {
        requester: request.requested_by.label(),
        settled_env: BTreeSet::new(),
        program: Some(ProgramFile { path: "/usr/bin/true".to_owned(), digest: None }),
        isolation: Isolation::Namespace,
        mode: WorkspaceMode::Overlay,
        image: None,
        accepted_evidence: BTreeMap::new(),
        data_classes: BTreeSet::new(),
        history: History::default(),
        now_ms: random::now().unwrap().unix_ms(),
        approvals: Vec::new(),
    };
    let judgment = judge(Some(policy), request, around);
    assert_eq!(judgment.summary.decision, Decision::Allow, "{:?}", judgment.summary.reasons);
    judgment
}

fn endings() -> [Event; 4] {
    let outcome = Outcome::Exited { code: 0 };
    [
        Event::RunStarted { epoch: 1, lamport: Some(1), start_id: None },
        Event::CommandExecuted { argv_hash: Digest::of(b"true"), exit_code: 0 },
        Event::OutcomeRecorded { outcome, exit_code: Some(0), usage: Usage::default() },
        Event::RunCompleted {},
    ]
}

/// Decision, contract, chain, fold, the runner's signature and the plane's, in memory.
fn govern(home: &Home, policy: &PolicySnapshot) {
    let now = random::now().unwrap();
    let run = RunId::from_random(random::bytes().unwrap());
    let request = request();
    let judgment = judgment(policy, &request);
    let request_hash = request.hash().unwrap();
    let case = Case { run: &run, request: &request, request_hash, judgment: &judgment };
    let issued = Notary { key: home.plane_key(), now }.issue(&case, &[]).unwrap();
    issued.contract.check_signature(Signer::Plane, home.plane_key().public()).unwrap();
    let mut chain = issued.chain;
    for event in endings() {
        chain.append(now, &event).unwrap();
    }
    let key_id = home.runner_key().public().id().clone();
    let sealer = Sealer::Runner { runner_id: home.runner_id().clone(), key_id };
    let body = fold(&issued.contract, &chain, &sealer).unwrap();
    let receipt = Signed::seal(&body, Signer::Runner, home.runner_key()).unwrap();
    receipt.check_signature(Signer::Runner, home.runner_key().public()).unwrap();
    assert_eq!(fold(&issued.contract, &chain, &sealer).unwrap(), *receipt.body());
    receipt.countersign(Signer::Plane, home.plane_key()).unwrap();
}

/// The same through the plane and its store: submit, lease, start, complete.
fn govern_stored(plane: &EmbeddedPlane, policy: &PolicySnapshot) {
    let submission = Submission {
        request: request(),
        principal: request().requested_by,
        idempotency_key: None,
        approval_wait_ms: 0,
    };
    let judge = |request: &RunRequest| judgment(policy, request);
    let Reception::Queued { run } = plane.submit(submission, judge).unwrap() else {
        return;
    };
    let lease = plane.lease(&run).unwrap();
    let mut chain = lease.chain.clone();
    for event in plane.start(&lease.key, &[]).unwrap().events {
        chain.push(event).unwrap();
    }
    let told = chain.events().len();
    let now = random::now().unwrap();
    for event in endings().iter().skip(1) {
        chain.append(now, event).unwrap();
    }
    let home = plane.home();
    let key_id = home.runner_key().public().id().clone();
    let sealer = Sealer::Runner { runner_id: home.runner_id().clone(), key_id };
    let body = fold(&lease.contract, &chain, &sealer).unwrap();
    let receipt = Signed::seal(&body, Signer::Runner, home.runner_key()).unwrap();
    let events = chain.events().get(told..).unwrap();
    plane.complete(&lease.key, events, receipt).unwrap();
}

/// Stores many runs; many at once share one commit.
fn fill(plane: &EmbeddedPlane, policy: &PolicySnapshot, runs: usize) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::Relaxed) < runs {
                    govern_stored(plane, policy);
                }
            });
        }
    });
}

fn report(name: &str, count: usize, mut work: impl FnMut()) {
    let mut times: Vec<Duration> = (0..count)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
    println!("{name}: p50 {:?}, p90 {:?}, p99 {:?}", at(50), at(90), at(99));
}

fn main() {
    let stored = std::env::args().filter_map(|text| text.parse().ok()).next_back();
    let stored: usize = stored.unwrap_or(2_000);
    let policy = &Preset::Default.load().unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let root = dir.path().join("home");
    report("the decision alone", 2_000, || drop(judgment(policy, &request())));
    report("governance in memory", 1_000, {
        let home = Home::open_at(root.clone(), None).unwrap();
        move || govern(&home, policy)
    });
    let open = || {
        let home = Home::open_at(root.clone(), None).unwrap();
        EmbeddedPlane::open(home, policy.hash()).unwrap()
    };
    let plane = open();
    report("governance with durable commits", 400, || govern_stored(&plane, policy));
    let started = Instant::now();
    fill(&plane, policy, stored);
    println!("{stored} further runs stored in {:?}", started.elapsed());
    report("governance with durable commits, then", 400, || govern_stored(&plane, policy));
    report("a page of 100 runs", 50, || {
        let filter = RunFilter { limit: Some(100), ..RunFilter::default() };
        assert!(!plane.store().list(&filter).unwrap().runs.is_empty());
    });
    drop(plane);
    report("open home and store, seal what was lost", 50, || drop(open()));
}
