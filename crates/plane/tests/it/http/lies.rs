//! Runners that lie: what the plane can refute it refuses, records, and stops believing.

use serde_json::{Value, json};
use warrant_protocol::event::{ArtifactKind, FailureClass, NetworkVerdict, StreamSummary};
use warrant_protocol::receipt::{ReceiptBody, ReleasedSecret};
use warrant_protocol::{
    ChainedEvent, Component, Digest, Enforcement, Event, Evidence, ExecutionSpec, Isolation,
    Limits, Outcome, Posture, Receipt, Sealer, Signed, Signer, Timestamp, Usage, fold,
};

use super::support::{HandRunner, HeldRun, Plane, policy};
use crate::support::{now, person};

/// A plane whose policy bears many false claims, with its one started run.
struct Scene {
    plane: Plane,
    runner: HandRunner,
}

/// What a lying runner posts.
struct Lie {
    verb: &'static str,
    body: Value,
}

impl Scene {
    fn new() -> Self {
        let plane = plane_with(1000);
        let runner = HandRunner::enroll(&plane, "default");
        Self { plane, runner }
    }

    fn started(&self) -> HeldRun {
        self.plane.submit("true");
        let mut held = self.runner.claim(0).unwrap();
        self.runner.start(&mut held);
        held
    }

    /// Has the runner lie about a started run; the lie must be refused naming `field`, be on
    /// record, and leave the lease to an honest end.
    #[track_caller]
    fn check(&self, field: &str, lie: impl FnOnce(&HandRunner, &mut HeldRun) -> Lie) {
        let mut held = self.started();
        let honest = held.chain.clone();
        let Lie { verb, body } = lie(&self.runner, &mut held);
        let (status, answer) = self.runner.post(&held, verb, &body);
        assert_eq!(status, 400, "{field}: {answer}");
        let text = answer["error"].as_str().unwrap();
        assert!(text.contains(field), "{field} is not named: {text}");
        let newest = &false_claims(&self.plane)[0];
        assert_eq!(newest["runId"], held.run.as_str(), "{field}: not recorded: {newest}");
        assert_eq!(newest["runnerId"], json!(self.runner.id));
        assert!(newest["field"].as_str().unwrap().contains(field), "{field}: {newest}");
        held.chain = honest;
        let (status, answer) = self.runner.finish(&mut held);
        assert_eq!(status, 200, "{field}: the lease is not burned: {answer}");
    }
}

fn plane_with(most: u64) -> Plane {
    let plane = Plane::start();
    let mut document = policy();
    document["runners"]["maxFalseClaims"] = json!(most);
    let body = json!({"document": document});
    let (status, answer) =
        plane.client().call("PUT", "/v1/policy", Some(&plane.admin), Some(&body));
    assert_eq!(status, 200, "{answer}");
    plane
}

fn false_claims(plane: &Plane) -> Vec<Value> {
    let (status, answer) = plane.client().call("GET", "/v1/false-claims", Some(&plane.admin), None);
    assert_eq!(status, 200, "{answer}");
    answer["falseClaims"].as_array().unwrap().clone()
}

/// Completes with further events, and a receipt that `change` has changed.
fn complete_with(
    runner: &HandRunner,
    held: &mut HeldRun,
    events: &[Event],
    change: impl FnOnce(&mut ReceiptBody),
) -> Lie {
    let from = held.chain.events().len();
    for event in events {
        held.chain.append(now(), event).unwrap();
    }
    let key = &runner.key;
    let sealer = Sealer::Runner { runner_id: runner.id.clone(), key_id: key.public().id().clone() };
    let mut body = fold(&held.contract, &held.chain, &sealer).unwrap();
    change(&mut body);
    let receipt: Receipt = Signed::seal(&body, Signer::Runner, key).unwrap();
    let told = runner.told_since(held, from);
    Lie { verb: "complete", body: json!({"events": told, "receipt": receipt.to_value()}) }
}

fn complete(runner: &HandRunner, held: &mut HeldRun, events: &[Event]) -> Lie {
    complete_with(runner, held, events, |_| {})
}

fn append(runner: &HandRunner, held: &mut HeldRun, at: Timestamp, event: &Event) -> Lie {
    let from = held.chain.events().len();
    held.chain.append(at, event).unwrap();
    Lie { verb: "events", body: json!({"events": runner.told_since(held, from)}) }
}

fn argv_hash(held: &HeldRun) -> Digest {
    use warrant_protocol::execution::PrepareContext;
    let spec: ExecutionSpec = held.contract.body().execution_or_default();
    let context = PrepareContext { environment: &Default::default(), mock_agent: None };
    spec.prepare(&held.contract.body().budget, &context).unwrap().hash()
}

fn executed(held: &HeldRun, exit_code: i64) -> Event {
    Event::CommandExecuted { argv_hash: argv_hash(held), exit_code }
}

fn outcome(outcome: Outcome, usage: Usage) -> Event {
    let exit_code = match outcome {
        Outcome::Exited { code } => Some(code),
        _ => None,
    };
    Event::OutcomeRecorded { outcome, exit_code, usage }
}

fn preflight(isolation: Isolation, enforced: &[&str]) -> Event {
    let component = || Component {
        enforcement: Enforcement::Enforced,
        evidence: Evidence::Measured,
        source: "a lie".into(),
        detail: None,
    };
    let components = enforced.iter().map(|name| ((*name).to_owned(), component()));
    let components: std::collections::BTreeMap<_, _> = components.collect();
    Event::PreflightChecked {
        posture: Posture { isolation, provider_version: "1".into(), components: components.into() },
        limits_enforced: Limits::danger_unlimited(),
        limits_observed: None,
        evidence_accepted: Default::default(),
    }
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[test]
fn a_runner_cannot_speak_for_people() {
    let scene = Scene::new();
    scene.check("grant.added.by", |runner, held| {
        let by = Some(person("alice"));
        let granted = Event::GrantAdded { kind: "read".into(), value: "/etc".into(), by };
        let (ran, end) =
            (executed(held, 0), outcome(Outcome::Exited { code: 0 }, Usage::default()));
        complete(runner, held, &[granted, ran, end, Event::RunCompleted {}])
    });
    scene.check("run.cancelled.actor", |runner, held| {
        complete(runner, held, &[Event::RunCancelled { actor: person("alice"), reason: None }])
    });
    // Even the requester, who may well have asked, but did not.
    scene.check("run.cancelled.actor", |runner, held| {
        let actor = held.contract.body().requested_by.clone();
        complete(runner, held, &[Event::RunCancelled { actor, reason: None }])
    });
}

#[test]
fn a_runner_cannot_end_a_run_twice_or_before_it_started() {
    let scene = Scene::new();
    scene.check("].seq", |runner, held| {
        complete(runner, held, &[Event::RunCompleted {}, Event::RunCompleted {}])
    });
    scene.check("].seq", |runner, held| {
        let failed =
            Event::RunFailed { failure: FailureClass::SessionFailed, message: "no".into() };
        complete(runner, held, &[failed, executed(held, 0), Event::RunCompleted {}])
    });
    scene.plane.submit("true");
    let mut held = scene.runner.claim(0).unwrap();
    let honest = held.chain.clone();
    let place = held.chain.events().len();
    let Lie { verb, body } = complete(&scene.runner, &mut held, &[Event::RunCompleted {}]);
    let (status, answer) = scene.runner.post(&held, verb, &body);
    assert_eq!(status, 400, "{answer}");
    let text = answer["error"].as_str().unwrap();
    assert!(text.contains(&format!("events[{place}]")) && text.contains("run.started"), "{text}");
    assert_eq!(false_claims(&scene.plane)[0]["runId"], held.run.as_str());
    held.chain = honest;
    scene.runner.start(&mut held);
    assert_eq!(scene.runner.finish(&mut held).0, 200);
}

#[test]
fn a_runner_cannot_execute_something_else_or_elsewhere() {
    let scene = Scene::new();
    scene.check("command.executed.argvHash", |runner, held| {
        let other = Event::CommandExecuted { argv_hash: Digest::of(b"other"), exit_code: 0 };
        complete(runner, held, &[other, Event::RunCompleted {}])
    });
    scene.check("workspace.materialized.manifestHash", |runner, held| {
        let other = Event::WorkspaceMaterialized { manifest_hash: Digest::of(b"other") };
        complete(runner, held, &[other, Event::RunCompleted {}])
    });
    scene.check("receipt.runner.isolation", |runner, held| {
        let checked = preflight(Isolation::Namespace, &["network"]);
        let (ran, end) =
            (executed(held, 0), outcome(Outcome::Exited { code: 0 }, Usage::default()));
        complete(runner, held, &[checked, ran, end, Event::RunCompleted {}])
    });
    scene.check("preflight.checked.posture", |runner, held| {
        let checked = preflight(Isolation::Process, &["environment", "network", "syscalls"]);
        let (ran, end) =
            (executed(held, 0), outcome(Outcome::Exited { code: 0 }, Usage::default()));
        complete(runner, held, &[checked, ran, end, Event::RunCompleted {}])
    });
    scene.check("network.connected.host", |runner, held| {
        let connected = Event::NetworkConnected {
            host: "evil.example".into(),
            decision: NetworkVerdict::Allowed,
            port: None,
            why: None,
            count: None,
            bytes_out: None,
            bytes_in: None,
        };
        complete(runner, held, &[connected, executed(held, 0), Event::RunCompleted {}])
    });
    scene.check("receipt.workspaceOut.artifactHashes", |runner, held| {
        let kept =
            Event::ArtifactCreated { kind: ArtifactKind::Diff, hash: Digest::of(b"never stored") };
        complete(runner, held, &[executed(held, 0), kept, Event::RunCompleted {}])
    });
}

#[test]
fn a_runner_cannot_contradict_itself() {
    let scene = Scene::new();
    let exited = Outcome::Exited { code: 0 };
    scene.check("command.executed.exitCode", |runner, held| {
        complete(runner, held, &[executed(held, 3), Event::RunCompleted {}])
    });
    scene.check("outcome.recorded.outcome", |runner, held| {
        let denied = outcome(Outcome::Denied, Usage::default());
        let failure = FailureClass::PolicyDenied;
        let failed = Event::RunFailed { failure, message: "policy denied".into() };
        complete(runner, held, &[executed(held, 0), denied, failed])
    });
    scene.check("outcome.recorded.outcome", |runner, held| {
        let end = outcome(exited.clone(), Usage::default());
        complete(runner, held, &[end, Event::RunCompleted {}])
    });
    scene.check("events[", |runner, held| {
        let (first, second) = (
            outcome(Outcome::Exited { code: 1 }, Usage::default()),
            outcome(exited.clone(), Usage::default()),
        );
        complete(runner, held, &[executed(held, 0), first, second, Event::RunCompleted {}])
    });
    scene.check("usage", |runner, held| {
        let refused =
            outcome(Outcome::PostureRefused, Usage { cpu_us: Some(5), ..Usage::default() });
        let failure = FailureClass::AttestationFailed;
        let failed = Event::RunFailed { failure, message: "refused".into() };
        complete(runner, held, &[refused, failed])
    });
    scene.check("usage.wallUs", |runner, held| {
        let years = Usage { wall_us: Some(10 * 365 * 86_400 * 1_000_000), ..Usage::default() };
        let end = outcome(exited.clone(), years);
        complete(runner, held, &[executed(held, 0), end, Event::RunCompleted {}])
    });
    scene.check("events[", |runner, held| {
        let stream = StreamSummary { digest: Digest::of(b""), bytes: 0, truncated: false };
        let said = Event::OutputRecorded { stdout: stream, stderr: stream };
        complete(runner, held, &[said.clone(), said, Event::RunCompleted {}])
    });
}

#[test]
fn a_receipt_says_nothing_that_its_chain_does_not() {
    let scene = Scene::new();
    let done = [Event::RunCompleted {}];
    let check = |field: &str, change: &dyn Fn(&mut ReceiptBody)| {
        scene.check(field, |runner, held| complete_with(runner, held, &done, |body| change(body)));
    };
    check("receipt.runId", &|body| {
        body.run_id = "run_00000000-0000-4000-8000-000000000001".parse().unwrap();
    });
    check("receipt.contractHash", &|body| body.contract_hash = Digest::of(b"other"));
    check("receipt.startedAt", &|body| body.started_at = at("2020-01-01T00:00:00.000Z"));
    check("receipt.endedAt", &|body| body.ended_at = at("2020-01-01T00:00:00.000Z"));
    check("receipt.workspaceIn", &|body| body.workspace_in.manifest_hash = Digest::of(b"x"));
    check("receipt.workspaceIn", &|body| body.workspace_in.base_ref = "other".into());
    check("receipt.eventCount", &|body| body.event_count += 1);
    check("receipt.eventsHead", &|body| body.events_head = Digest::of(b"x"));
    check("receipt.costUsd", &|body| body.cost_usd = Some(0.0));
    check("receipt.secretsReleased", &|body| {
        let name = "API_TOKEN".parse().unwrap();
        body.secrets_released.push(ReleasedSecret { name, scope: "x".into(), ts: now() });
    });
    check("receipt.runner.runnerId", &|body| {
        body.runner.runner_id = "rnr_00000000-0000-4000-8000-000000000001".parse().unwrap();
    });
    check("receipt.runner.pool", &|body| body.runner.pool = "other".parse().unwrap());
    let other = HandRunner::enroll(&scene.plane, "default");
    scene.check("receipt.runner.keyId", |_, held| complete(&other, held, &done));
}

#[test]
fn events_that_only_the_plane_writes_are_refused_from_a_runner() {
    let scene = Scene::new();
    let person = person("alice");
    let planes_own = [
        Event::RunCreated {},
        Event::ConsentGranted { actor: person.clone() },
        Event::ConsentRequested { requirement: "any-run".into() },
        Event::ApprovalDenied { actor: person.clone(), reason: "no".into() },
        Event::SecretReleased { name: "API_TOKEN".parse().unwrap(), scope: "x".into() },
        Event::RunStarted { epoch: 1, lamport: None, start_id: None },
        Event::RunStopping { actor: person, reason: None },
        Event::RunRequeued { epoch: 1 },
        Event::RunLost { epoch: 1, last_heard_at: now() },
        Event::ContractExpired { expires_at: now() },
        Event::RunClaimed {
            runner_id: scene.runner.id.clone(),
            runner_key_id: scene.runner.key.public().id().clone(),
            epoch: Some(1),
            attestation_tier: None,
        },
    ];
    for event in planes_own {
        scene.check(".event.type", |runner, held| append(runner, held, now(), &event));
    }
}

#[test]
fn times_that_cannot_be_are_refused() {
    let scene = Scene::new();
    let ran = |held: &HeldRun| executed(held, 0);
    scene.check("].ts", |runner, held| {
        let event = ran(held);
        append(runner, held, at("2100-01-01T00:00:00.000Z"), &event)
    });
    scene.check("].ts", |runner, held| {
        let event = ran(held);
        append(runner, held, at("1990-01-01T00:00:00.000Z"), &event)
    });
}

#[test]
fn an_event_in_the_place_of_another_is_refused() {
    let scene = Scene::new();
    scene.check("].seq", |_, held| {
        let [.., before, last] = held.chain.events() else { panic!("a started run has events") };
        let event = executed(held, 0);
        let event = serde_json::to_value(&event).unwrap();
        let forged = ChainedEvent::next_raw(before.hash(), last.seq(), now(), event).unwrap();
        Lie { verb: "events", body: json!({"events": [forged.to_value()]}) }
    });
}

#[test]
fn an_event_of_an_unknown_type_is_refused_and_is_no_lie() {
    let scene = Scene::new();
    let mut held = scene.started();
    let last = held.chain.events().last().unwrap();
    let event = ChainedEvent::next_raw(
        last.hash(),
        last.seq() + 1,
        now(),
        json!({"type": "from.the.future"}),
    );
    let body = json!({"events": [event.unwrap().to_value()]});
    let (status, answer) = scene.runner.post(&held, "events", &body);
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("from.the.future"), "{answer}");
    assert_eq!(false_claims(&scene.plane), Vec::<Value>::new());
    assert_eq!(scene.runner.finish(&mut held).0, 200);
}

#[test]
fn a_runner_that_lies_too_often_is_revoked_and_its_runs_are_a_dead_runners() {
    let plane = plane_with(2);
    let runner = HandRunner::enroll(&plane, "default");
    let lie_once = || {
        plane.submit("true");
        let mut held = runner.claim(0).unwrap();
        runner.start(&mut held);
        let actor = person("alice");
        let lie = complete(&runner, &mut held, &[Event::RunCancelled { actor, reason: None }]);
        // A repeated message is one claim.
        for _ in 0..2 {
            let (status, answer) = runner.post(&held, lie.verb, &lie.body);
            assert!(status == 400 || status == 401, "{status} {answer}");
        }
        held
    };
    plane.submit("echo started");
    let mut started = runner.claim(0).unwrap();
    runner.start(&mut started);
    plane.submit("echo leased");
    let leased = runner.claim(0).unwrap();
    let first = lie_once();
    assert_eq!(plane.view(&first.run)["status"], "running", "one lie is borne");
    let second = lie_once();
    let (_, runners) = plane.client().call("GET", "/v1/runners", Some(&plane.admin), None);
    assert_eq!(runners["runners"][0]["revoked"], true, "{runners}");
    let (_, metrics) = plane.client().call("GET", "/v1/metrics", Some(&plane.admin), None);
    assert!(metrics["metrics"]["runners.false_claims"].as_u64().unwrap() >= 2, "{metrics}");
    assert_eq!(false_claims(&plane).len(), 2);
    for run in [&started.run, &first.run, &second.run] {
        assert_eq!(plane.view(run)["state"], "lost", "{run}");
    }
    assert_eq!(plane.view(&leased.run)["state"], "queued");
    let claim = json!({"runnerToken": runner.token, "pool": "default", "leases": true});
    assert_eq!(runner.client.call("POST", "/v1/claims", None, Some(&claim)).0, 401);
    let other = HandRunner::enroll(&plane, "default");
    let mut again = other.claim(0).unwrap();
    assert_eq!(again.run, leased.run);
    other.start(&mut again);
    assert_eq!(other.finish(&mut again).0, 200);
}
