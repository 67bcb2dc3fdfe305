//! Builds bundles the way an honest plane and runner do, and rebuilds tampered ones the way a
//! dishonest runner (with its own real key) would.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Value, json};
use warrant_protocol::approval::{Approval, ApprovalBody};
use warrant_protocol::contract::ContractBody;
use warrant_protocol::event::{
    ArtifactKind, Direction, GapDecision, NetworkVerdict, StreamSummary,
};
use warrant_protocol::request::{ActorKind, ActorRef};
use warrant_protocol::{
    Bundle, Chain, ChainedEvent, Component, Contract, Decision, Digest, Enforcement, Event,
    Evidence, Isolation, KeyRole, Limits, Outcome, Posture, Preimage, PreimageInputs, Receipt,
    Sealer, Signer, SigningKey, Timestamp, TrustedKeys, Usage, fold,
};

use crate::vectors::{contract, load, other_key, plane_key, runner_key};

/// The keys that a bundle is made with.
pub(crate) struct Keys {
    pub(crate) plane: SigningKey,
    pub(crate) runner: SigningKey,
}

impl Keys {
    pub(crate) fn real() -> Self {
        Self { plane: plane_key(), runner: runner_key() }
    }
}

pub(crate) fn trusted() -> &'static TrustedKeys {
    static TRUSTED: LazyLock<TrustedKeys> = LazyLock::new(|| {
        TrustedKeys::none()
            .and(KeyRole::Plane, plane_key().public().clone())
            .and(KeyRole::Runner, runner_key().public().clone())
            .and(KeyRole::Approver, other_key().public().clone())
    });
    &TRUSTED
}

/// The reference's bundle.
pub(crate) fn reference() -> Value {
    load("bundle.valid.json")
}

pub(crate) fn at(second: u64) -> Timestamp {
    let start: Timestamp = "2026-06-18T19:39:08.000Z".parse().unwrap();
    start.plus_ms(second * 1000)
}

pub(crate) fn approver() -> ActorRef {
    ActorRef { kind: ActorKind::Human, id: "security-lead".into() }
}

/// A contract with everything of ours in it.
pub(crate) fn our_contract() -> ContractBody {
    let mut body = contract().body().clone();
    body.isolation = Some(Isolation::Namespace);
    body.request_hash = Some(Digest::of(b"request"));
    body.limits = Some(Limits { wall_ms: Some(60_000), ..Limits::danger_unlimited() });
    body.required_posture = Some(vec!["network".into(), "files.write".into()]);
    body
}

pub(crate) fn approval() -> Approval {
    let body = ApprovalBody {
        run_id: our_contract().run_id,
        request_hash: Digest::of(b"request"),
        policy_hash: our_contract().policy_hash,
        approver: approver(),
        level: 2,
        issued_at: at(0),
        expires_at: at(600),
        nonce: "nonce-1".into(),
    };
    Approval::seal(&body, Signer::Approver, &other_key()).unwrap()
}

pub(crate) fn posture() -> Posture {
    let component = || Component {
        enforcement: Enforcement::Enforced,
        evidence: Evidence::Measured,
        source: "probe".into(),
        detail: None,
    };
    Posture {
        isolation: Isolation::Namespace,
        provider_version: "linux 6.18, warrant 0.1.0".into(),
        components: BTreeMap::from([
            ("network".to_owned(), component()),
            ("files.write".to_owned(), component()),
        ])
        .into(),
    }
}

fn stream(bytes: &[u8]) -> StreamSummary {
    StreamSummary { digest: Digest::of(bytes), bytes: bytes.len() as u64, truncated: false }
}

pub(crate) fn preimage() -> Preimage {
    let inputs = PreimageInputs {
        sandbox_spec: json!({"isolation": "namespace", "argv": ["sh", "-c", "…"]}),
        mounts: json!([{"path": "/workspace", "mode": "overlay"}]),
        egress_policy: json!({"allow": ["example.com:443"]}),
        resource_limits: json!({"wallMs": 60_000}),
    };
    Preimage::of("linux 6.18, warrant 0.1.0".into(), "none".into(), inputs)
}

/// Every event an honest governed run can write, with the seconds they happened at.
pub(crate) fn our_events() -> Vec<Event> {
    let runner = runner_key();
    let manifest_hash = contract().manifest_hash();
    let command = contract().body().execution_or_default();
    let argv_hash = command_hash(&command);
    let diff = Digest::of(b"diff");
    let kind = |kind: &str| kind.to_owned();
    vec![
        Event::RunCreated {},
        Event::DecisionMade {
            decision: Decision::Ask,
            reasons: vec!["secret release needs approval".into()],
            rules: vec!["consent.0".into(), "cedar:secrets".into()],
            policy_hash: Some(our_contract().policy_hash),
            level: Some(2),
        },
        Event::ConsentRequested { requirement: "secret-release:API_TOKEN".into() },
        Event::ApprovalGranted {
            actor: approver(),
            level: 2,
            statement_hash: approval().hash(),
            statement: approval().to_value(),
        },
        Event::RunClaimed {
            runner_id: "rnr_00000000-0000-4000-8000-000000000003".parse().unwrap(),
            runner_key_id: runner.public().id().clone(),
            epoch: Some(1),
            attestation_tier: None,
        },
        Event::WorkspaceMaterialized { manifest_hash },
        Event::PreflightChecked {
            posture: posture(),
            limits_enforced: Limits { wall_ms: Some(60_000), ..Limits::danger_unlimited() },
            limits_observed: None,
            evidence_accepted: BTreeMap::from([("network".to_owned(), Evidence::Measured)]),
        },
        Event::RunStarted { epoch: 1, lamport: Some(7), start_id: None },
        Event::SecretReleased { name: "API_TOKEN".parse().unwrap(), scope: "e2e-test".into() },
        Event::GapFound { gap: "g1".into(), kind: kind("host"), detail: "example.com".into() },
        Event::GapDecided {
            gap: "g1".into(),
            decision: GapDecision::Granted,
            reason: "listed".into(),
        },
        Event::GrantAdded { kind: kind("host"), value: "example.com".into(), by: None },
        Event::PreimageBound { preimage: preimage() },
        network("example.com", NetworkVerdict::Allowed),
        network("evil.example", NetworkVerdict::Blocked),
        network("example.com", NetworkVerdict::Allowed),
        Event::ModelCalled { provider: "p".into(), model: "m".into(), cost_usd: Some(0.25) },
        Event::CommandExecuted { argv_hash, exit_code: 0 },
        Event::OutputRecorded { stdout: stream(b"out"), stderr: stream(b"") },
        Event::FileChanged { path: "out.txt".into(), content_hash: Digest::of(b"hello") },
        Event::ArtifactCreated { kind: ArtifactKind::Diff, hash: diff },
        Event::BoundaryCrossed {
            direction: Direction::Out,
            content_hash: diff,
            data_class: "code-diff".into(),
        },
        Event::OutcomeRecorded {
            outcome: Outcome::Exited { code: 0 },
            exit_code: Some(0),
            usage: Usage { wall_us: Some(1234), cpu_us: Some(999), ..Usage::default() },
        },
        Event::RunCompleted {},
    ]
}

fn network(host: &str, decision: NetworkVerdict) -> Event {
    Event::NetworkConnected {
        host: host.into(),
        decision,
        port: Some(443),
        why: Some("listed".into()),
        count: Some(1),
        bytes_out: Some(10),
        bytes_in: Some(20),
    }
}

pub(crate) fn command_hash(spec: &warrant_protocol::ExecutionSpec) -> Digest {
    use warrant_protocol::execution::PrepareContext;
    let context = PrepareContext { environment: &BTreeMap::new(), mock_agent: None };
    spec.prepare(&contract().body().budget, &context).unwrap().hash()
}

/// Seals a bundle of ours from a contract and events, one second apart.
pub(crate) fn seal(body: &ContractBody, events: &[Event], keys: &Keys) -> Value {
    let contract = Contract::seal(body, Signer::Plane, &keys.plane).unwrap();
    let mut chain = Chain::new(contract.hash());
    for (second, event) in (0..).zip(events) {
        chain.append(at(second), event).unwrap();
    }
    let sealer = Sealer::Runner {
        runner_id: "rnr_00000000-0000-4000-8000-000000000003".parse().unwrap(),
        key_id: keys.runner.public().id().clone(),
    };
    let receipt = fold(&contract, &chain, &sealer).unwrap();
    let receipt = Receipt::seal(&receipt, Signer::Runner, &keys.runner).unwrap();
    let receipt = receipt.countersign(Signer::Plane, &keys.plane).unwrap();
    let keys = (keys.plane.public(), keys.runner.public());
    Value::Object(Bundle::assemble(&contract, &receipt, &chain, keys).raw().clone())
}

/// An honest bundle with every member of ours.
pub(crate) fn ours() -> Value {
    seal(&our_contract(), &our_events(), &Keys::real())
}

/// Chains, hashes and signs a tampered bundle again, with these keys.
pub(crate) fn reseal(bundle: &mut Value, keys: &Keys) {
    let unsigned = |value: &Value| {
        let mut value = value.clone();
        value["signatures"] = json!([]);
        value
    };
    let contract = Contract::from_value(unsigned(&bundle["contract"])).unwrap();
    let contract = contract.countersign(Signer::Plane, &keys.plane).unwrap();
    bundle["contract"] = contract.to_value();
    let mut prev = contract.hash();
    let events = bundle["events"].as_array_mut().unwrap();
    for (seq, slot) in (0..).zip(events.iter_mut()) {
        let ts = slot["ts"].as_str().unwrap().parse().unwrap();
        let next = ChainedEvent::next_raw(prev, seq, ts, slot["event"].clone()).unwrap();
        prev = next.hash();
        *slot = next.to_value();
    }
    bundle["receipt"]["eventCount"] = json!(events.len());
    bundle["receipt"]["eventsHead"] = json!(prev);
    bundle["receipt"]["contractHash"] = json!(contract.hash());
    let receipt = Receipt::from_value(unsigned(&bundle["receipt"])).unwrap();
    let receipt = receipt.countersign(Signer::Runner, &keys.runner).unwrap();
    bundle["receipt"] = receipt.countersign(Signer::Plane, &keys.plane).unwrap().to_value();
    bundle["keys"]["planePublicKeyPem"] = json!(keys.plane.public().pem());
    bundle["keys"]["runnerPublicKeyPem"] = json!(keys.runner.public().pem());
}
