//! Evidence made from a run: contract, chain and receipt, signed with the caller's test keys.
//!
//! It says exactly what the backend said. Whether that can be believed is what
//! [`warrant_protocol::verify`] and the checks find out.

use std::collections::BTreeMap;

use serde_json::json;
use warrant_protocol::contract::{IssuerRole, KeyRef, RunnerChoice, Task};
use warrant_protocol::event::{FailureClass, StreamSummary};
use warrant_protocol::execution::{PrepareContext, ShellName};
use warrant_protocol::manifest::ManifestVersion;
use warrant_protocol::request::{ActorKind, AgentSpec, BudgetSpec, Disclosure, NetworkPolicy};
use warrant_protocol::{
    ActorRef, Bundle, Chain, Contract, ContractBody, Decision, Digest, Event, ExecutionSpec,
    KeyRole, Limits, Outcome, Posture, Preimage, PreimageInputs, Problem, Receipt, Sealer, Signer,
    SigningKey, Timestamp, TrustedKeys, Usage, VerifiedBundle, WorkspaceManifest, fold,
    hash_canonical, json as protocol_json, verify,
};
use warrant_sandbox::{Command, Network, Plan, Shell, StreamDigest};

use crate::lab::{Broken, Ran};

/// The keys that sign the evidence of the checks. They prove nothing to anyone else.
#[derive(Debug, Clone)]
pub struct EvidenceKeys {
    /// Signs contracts and countersigns receipts.
    pub plane: SigningKey,
    /// Signs receipts.
    pub runner: SigningKey,
}

/// What a receipt will say about a run.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) command: Command,
    pub(crate) limits: Limits,
    pub(crate) required: Vec<String>,
    pub(crate) posture: Posture,
    pub(crate) preimage: Preimage,
    pub(crate) outcome: Outcome,
    pub(crate) usage: Usage,
    pub(crate) stdout: StreamSummary,
    pub(crate) stderr: StreamSummary,
}

/// The signed form of [`Facts`].
pub(crate) struct Evidence {
    pub(crate) receipt: Receipt,
    pub(crate) bundle: Bundle,
}

impl Facts {
    /// Returns what a run says of itself.
    pub(crate) fn of(ran: &Ran) -> Result<Self, Broken> {
        let invocation = &ran.plan.invocation;
        let posture = ran.report.posture.clone();
        Ok(Self {
            command: invocation.command.clone(),
            limits: invocation.limits.clone(),
            required: Vec::new(),
            preimage: preimage(&ran.plan, &posture)?,
            posture,
            outcome: ran.report.outcome.clone(),
            usage: ran.report.usage.clone(),
            stdout: summary(&ran.report.stdout),
            stderr: summary(&ran.report.stderr),
        })
    }
}

impl Evidence {
    /// Writes and signs the evidence of a run that began at `now`.
    pub(crate) fn seal(facts: &Facts, keys: &EvidenceKeys, now: Timestamp) -> Result<Self, Broken> {
        let contract = contract(facts, keys, now)?;
        let contract = Contract::seal(&contract, Signer::Plane, &keys.plane).map_err(unsealed)?;
        let runner_id = "rnr_conformance".parse().map_err(unsealed)?;
        let key_id = keys.runner.public().id().clone();
        let sealer = Sealer::Runner { runner_id, key_id };
        let mut chain = Chain::new(contract.hash());
        for event in events(facts, &contract, &sealer)? {
            let at = now.plus_ms(chain.len());
            chain.append(at, &event).map_err(unsealed)?;
        }
        let body = fold(&contract, &chain, &sealer).map_err(unsealed)?;
        let receipt = Receipt::seal(&body, Signer::Runner, &keys.runner)
            .and_then(|receipt| receipt.countersign(Signer::Plane, &keys.plane))
            .map_err(unsealed)?;
        let keys = (keys.plane.public(), keys.runner.public());
        let bundle = Bundle::assemble(&contract, &receipt, &chain, keys);
        Ok(Self { receipt, bundle })
    }

    /// Checks the evidence as anyone would who trusts these keys.
    pub(crate) fn verify(&self, keys: &EvidenceKeys) -> Result<VerifiedBundle, Vec<Problem>> {
        verify_bundle(self.bundle.clone(), keys)
    }
}

/// Checks a bundle as anyone would who trusts these keys.
pub(crate) fn verify_bundle(
    bundle: Bundle,
    keys: &EvidenceKeys,
) -> Result<VerifiedBundle, Vec<Problem>> {
    let trusted = TrustedKeys::none()
        .and(KeyRole::Plane, keys.plane.public().clone())
        .and(KeyRole::Runner, keys.runner.public().clone());
    verify(bundle, &trusted)
}

/// Returns problems as people read them.
pub(crate) fn describe(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Returns the six values that name the sandbox of a plan, and what they were computed from.
fn preimage(plan: &Plan, posture: &Posture) -> Result<Preimage, Broken> {
    let artifact = |name: &str| plan.artifact.get(name).cloned();
    let egress_policy = match &plan.invocation.network {
        Network::Allow(rules) => json!({ "allow": rules }),
        Network::DangerEverything => json!({ "allow": "everything" }),
    };
    let inputs = PreimageInputs {
        mounts: artifact("mounts").unwrap_or_else(|| json!([])),
        egress_policy,
        resource_limits: protocol_json::to_value(&plan.invocation.limits).map_err(unsealed)?,
        sandbox_spec: plan.artifact.clone(),
    };
    let image = artifact("image_digest").and_then(|image| image.as_str().map(str::to_owned));
    let image = image.unwrap_or_else(|| "none".to_owned());
    Ok(Preimage::of(posture.provider_version.clone(), image, inputs))
}

fn summary(stream: &StreamDigest) -> StreamSummary {
    StreamSummary { digest: stream.digest, bytes: stream.bytes, truncated: stream.truncated }
}

fn execution(command: &Command) -> ExecutionSpec {
    match command.clone() {
        Command::Argv { program, args } => ExecutionSpec::Argv {
            command: program,
            args,
            cwd: None,
            timeout_ms: None,
            env: None,
            log: None,
        },
        Command::Shell { shell, script } => ExecutionSpec::Shell {
            script,
            shell: Some(match shell {
                Shell::Sh => ShellName::Sh,
                Shell::Bash => ShellName::Bash,
            }),
            cwd: None,
            timeout_ms: None,
            env: None,
            log: None,
        },
    }
}

fn contract(facts: &Facts, keys: &EvidenceKeys, now: Timestamp) -> Result<ContractBody, Broken> {
    let nothing = Digest::of(b"");
    Ok(ContractBody {
        run_id: format!("run_conformance-{}", now.unix_ms()).parse().map_err(unsealed)?,
        issued_at: now,
        issuer: KeyRef { key_id: keys.plane.public().id().clone(), role: IssuerRole::Plane },
        requested_by: ActorRef { kind: ActorKind::Service, id: "conformance".to_owned() },
        approved_by: None,
        agent: AgentSpec { kind: "command".to_owned(), version: None },
        task: Task { prompt: "conformance".to_owned() },
        runner: RunnerChoice { pool: "conformance".parse().map_err(unsealed)? },
        workspace: WorkspaceManifest {
            version: ManifestVersion::V1,
            base_ref: "0".repeat(40),
            bundle_hash: nothing,
            dirty_diff_hash: None,
            untracked_files: Vec::new(),
            denied_patterns: Vec::new(),
            denied_paths: Vec::new(),
        },
        policy_hash: nothing,
        secrets: Vec::new(),
        network: NetworkPolicy { default_deny: true, allow_hosts: Vec::new() },
        budget: BudgetSpec { max_spend_usd: None, max_duration_min: None },
        disclosure: Disclosure::None,
        execution: Some(execution(&facts.command)),
        isolation: Some(facts.posture.isolation),
        continuation: None,
        expires_at: now.plus_ms(warrant_protocol::contract::CONTRACT_LIFETIME_MS),
        request_hash: None,
        decision: None,
        limits: Some(facts.limits.clone()),
        required_posture: Some(facts.required.clone()),
        mode: None,
        files: None,
        egress: None,
        masks: None,
        image: None,
        required_evidence: None,
        retry_safe: None,
        critical: None,
    })
}

fn events(facts: &Facts, contract: &Contract, sealer: &Sealer) -> Result<Vec<Event>, Broken> {
    let (Sealer::Runner { runner_id, key_id }, body) = (sealer, contract.body()) else {
        return Err(Broken("the checks seal as a runner".to_owned()));
    };
    let context = PrepareContext { environment: &BTreeMap::new(), mock_agent: None };
    let prepared = execution(&facts.command).prepare(&body.budget, &context).map_err(unsealed)?;
    let evidence = facts.required.iter().filter_map(|name| {
        let fact = facts.posture.components.get(name)?;
        Some((name.clone(), fact.evidence))
    });
    let mut events = vec![
        Event::RunCreated {},
        Event::DecisionMade {
            decision: Decision::Allow,
            reasons: Vec::new(),
            rules: vec!["conformance".to_owned()],
            policy_hash: None,
            level: None,
        },
        Event::RunClaimed {
            runner_id: runner_id.clone(),
            runner_key_id: key_id.clone(),
            epoch: Some(1),
            attestation_tier: None,
        },
        Event::WorkspaceMaterialized { manifest_hash: contract.manifest_hash() },
        Event::PreflightChecked {
            posture: facts.posture.clone(),
            limits_enforced: facts.limits.clone(),
            limits_observed: None,
            evidence_accepted: evidence.collect(),
        },
        Event::PreimageBound { preimage: facts.preimage.clone() },
        Event::RunStarted { epoch: 1, lamport: None, start_id: None },
    ];
    if let Some(code) = facts.outcome.wire_exit_code() {
        let exit_code = i64::from(code);
        events.push(Event::CommandExecuted { argv_hash: prepared.hash(), exit_code });
    }
    let exit_code = match facts.outcome {
        Outcome::Exited { code } => Some(code),
        _ => None,
    };
    events.push(Event::OutputRecorded { stdout: facts.stdout, stderr: facts.stderr });
    let (outcome, usage) = (facts.outcome.clone(), facts.usage.clone());
    events.push(Event::OutcomeRecorded { outcome, exit_code, usage });
    events.push(if facts.outcome.is_success() {
        Event::RunCompleted {}
    } else {
        let message = "the program failed".to_owned();
        Event::RunFailed { failure: FailureClass::SessionFailed, message }
    });
    Ok(events)
}

/// Returns the hash of a thing that a preimage could be made of.
pub(crate) fn hash_of(value: &serde_json::Value) -> Digest {
    hash_canonical(value)
}

fn unsealed(error: impl std::error::Error) -> Broken {
    Broken(format!("the evidence could not be sealed: {error}"))
}
