//! The notary: writes contracts and the receipts that no runner can sign.
//!
//! Pure: keys, times and judgments come in, signed objects go out. It never stores.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use warrant_protocol::chain::InvalidEvent;
use warrant_protocol::contract::{CONTRACT_LIFETIME_MS, IssuerRole, KeyRef, RunnerChoice, Task};
use warrant_protocol::event::FailureClass;
use warrant_protocol::execution::PrepareContext;
use warrant_protocol::fold::FoldError;
use warrant_protocol::request::{ActorRef, AgentSpec, SecretClaim};
use warrant_protocol::signed::InvalidSigned;
use warrant_protocol::{
    Chain, ChainedEvent, Contract, ContractBody, Decision, DecisionSummary, Digest, Event,
    Evidence, Limits, Outcome, Receipt, RunId, RunRequest, Sealer, Signed, Signer, SigningKey,
    Timestamp, Usage, fold,
};

/// What the judge said about a request, and what follows from it.
///
/// It is stored with a run that waits for approval, so that approving needs no second judge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Judgment {
    /// The answer, its reasons and rules.
    pub summary: DecisionSummary,
    /// The digest of the policy snapshot that was asked.
    pub policy_hash: Digest,
    /// What each secret may be used for, in the order of the request.
    pub secrets: Vec<SecretClaim>,
    /// What people must agree to, all of it, when the answer is to ask.
    pub requirements: Vec<ApprovalRequirement>,
    /// Limits for the whole process tree; absent means the request's own.
    pub limits: Option<Limits>,
    /// Globs of files that are masked, beyond those the request names.
    pub masks: Vec<String>,
    /// Posture components that must hold, beyond those the request names.
    pub required_posture: Vec<String>,
    /// The weakest evidence that counts for those of them where it is not the usual.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub evidence: BTreeMap<String, Evidence>,
}

/// One thing people must agree to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRequirement {
    /// In the reference's words: `any-run`, `secret-release:A`; or `approval:level-2`.
    pub name: String,
    /// The level an approval must have.
    pub level: u8,
    /// Who may approve, by name; `*` means everyone but the requester.
    pub approvers: Vec<String>,
    /// How many different people it takes.
    pub quorum: u32,
    /// How long an approval counts, in minutes, when the policy says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_min: Option<u32>,
}

/// An approval that counts, with the signed statement.
#[derive(Debug, Clone, PartialEq)]
pub struct GrantedApproval {
    /// Who.
    pub actor: ActorRef,
    /// At which level.
    pub level: u8,
    /// The digest of the statement.
    pub statement_hash: Digest,
    /// The statement as JSON.
    pub statement: serde_json::Value,
    /// Until when it counts.
    pub expires_at: Timestamp,
}

/// Why nothing could be signed.
#[derive(Debug, Error)]
pub enum NotaryError {
    /// The object holds something that is not signed.
    #[error("cannot sign")]
    Sign(#[from] InvalidSigned),
    /// An event holds something that is not signed.
    #[error("cannot record an event")]
    Event(#[from] InvalidEvent),
    /// The chain does not end.
    #[error("cannot seal a receipt")]
    Fold(#[from] FoldError),
}

/// A contract with the first events of its chain.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The contract.
    pub contract: Contract,
    /// Its chain so far.
    pub chain: Chain,
}

/// A run that ended here: contract, whole chain and receipt.
#[derive(Debug, Clone)]
pub struct SealedRun {
    /// The contract.
    pub contract: Contract,
    /// The whole chain.
    pub chain: Chain,
    /// The receipt, signed by the plane alone.
    pub receipt: Receipt,
}

/// A request, its name and what was judged about it.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// The run it will be.
    pub run: &'a RunId,
    /// The request.
    pub request: &'a RunRequest,
    /// The digest of the canonical request.
    pub request_hash: Digest,
    /// The judgment.
    pub judgment: &'a Judgment,
}

/// Writes for one plane.
#[derive(Debug, Clone, Copy)]
pub struct Notary<'a> {
    /// The key that signs.
    pub key: &'a SigningKey,
    /// The present moment.
    pub now: Timestamp,
}

impl Notary<'_> {
    /// Writes the contract of an allowed or approved request.
    ///
    /// # Errors
    /// [`NotaryError`] when something cannot be signed.
    pub fn issue(
        &self,
        case: &Case<'_>,
        approvals: &[GrantedApproval],
    ) -> Result<Issued, NotaryError> {
        let mut body = self.contract_body(case);
        if !approvals.is_empty() {
            body.approved_by = Some(approvals.iter().map(|given| given.actor.clone()).collect());
            // Nobody starts on a permission that those who gave it meant to be over.
            let over = approvals.iter().map(|given| given.expires_at);
            body.expires_at = over.fold(body.expires_at, Ord::min);
        }
        let contract = Signed::seal(&body, Signer::Plane, self.key)?;
        let mut chain = Chain::new(contract.hash());
        self.record_decision(&mut chain, case)?;
        for given in approvals {
            let granted = Event::ApprovalGranted {
                actor: given.actor.clone(),
                level: given.level,
                statement_hash: given.statement_hash,
                statement: given.statement.clone(),
            };
            chain.append(self.now, &granted)?;
            chain.append(self.now, &Event::ConsentGranted { actor: given.actor.clone() })?;
        }
        Ok(Issued { contract, chain })
    }

    /// Writes down a request that may not run: a contract that permits nothing, its chain and
    /// its receipt. `ending` are the events between the decision and the end.
    ///
    /// # Errors
    /// [`NotaryError`] when something cannot be signed.
    pub fn deny(&self, case: &Case<'_>, refusal: &Refusal) -> Result<SealedRun, NotaryError> {
        let mut body = self.contract_body(case);
        // SECURITY: a runner that knows nothing of decisions must find it expired as well.
        body.expires_at = self.now;
        body.secrets.clear();
        body.critical = Some(vec!["decision".to_owned()]);
        if let Some(decision) = &mut body.decision {
            decision.decision = Decision::Deny;
        }
        let contract = Signed::seal(&body, Signer::Plane, self.key)?;
        let mut chain = Chain::new(contract.hash());
        self.record_decision(&mut chain, case)?;
        for event in &refusal.events {
            chain.append(self.now, event)?;
        }
        self.seal(contract, chain, refusal)
    }

    /// Writes down a request that was allowed and of which nothing else happens: a contract that
    /// nobody can be given, its chain and its receipt. No program is started, so none is promised
    /// a boundary.
    ///
    /// # Errors
    /// [`NotaryError`] when something cannot be signed.
    pub fn note(&self, case: &Case<'_>) -> Result<SealedRun, NotaryError> {
        let mut body = self.contract_body(case);
        // SECURITY: it is over when it is written, so that no runner takes it for a permission.
        body.expires_at = self.now;
        body.secrets.clear();
        body.required_posture = None;
        body.required_evidence = None;
        let contract = Signed::seal(&body, Signer::Plane, self.key)?;
        let mut chain = Chain::new(contract.hash());
        self.record_decision(&mut chain, case)?;
        let request_hash = body
            .execution_or_default()
            .prepare(
                &body.budget,
                &PrepareContext { environment: &BTreeMap::new(), mock_agent: None },
            )
            .map_or(case.request_hash, |prepared| prepared.hash());
        chain.append(
            self.now,
            &Event::OperationPerformed {
                operation: "sandbox.change".to_owned(),
                request_hash,
                succeeded: true,
                guards: Vec::new(),
            },
        )?;
        self.end(contract, chain, (Outcome::Performed { succeeded: true }, Event::RunCompleted {}))
    }

    /// Ends a chain and writes the receipt that no runner can sign.
    ///
    /// # Errors
    /// [`NotaryError`] when something cannot be signed.
    pub fn seal(
        &self,
        contract: Contract,
        chain: Chain,
        refusal: &Refusal,
    ) -> Result<SealedRun, NotaryError> {
        let last = match &refusal.cancelled_by {
            Some(actor) => {
                let reason = Some(refusal.message.clone());
                Event::RunCancelled { actor: actor.clone(), reason }
            }
            None => Event::RunFailed { failure: refusal.failure, message: refusal.message.clone() },
        };
        self.end(contract, chain, (refusal.outcome.clone(), last))
    }

    fn end(
        &self,
        contract: Contract,
        mut chain: Chain,
        (outcome, last): (Outcome, Event),
    ) -> Result<SealedRun, NotaryError> {
        let exit_code = match outcome {
            Outcome::Exited { code } => Some(code),
            _ => None,
        };
        let recorded = Event::OutcomeRecorded { outcome, exit_code, usage: Usage::default() };
        chain.append(self.now, &recorded)?;
        chain.append(self.now, &last)?;
        let sealer = Sealer::Plane { key_id: self.key.public().id().clone() };
        let body = fold(&contract, &chain, &sealer)?;
        // The plane stands in for the runner, and says so in `sealedBy`.
        let roles = [Signer::Runner, Signer::Plane];
        let receipt = Signed::seal_in_roles(&body, &roles, self.key)?;
        Ok(SealedRun { contract, chain, receipt })
    }

    fn contract_body(
        &self,
        &Case { run, request, request_hash, judgment }: &Case<'_>,
    ) -> ContractBody {
        let issuer = KeyRef { key_id: self.key.public().id().clone(), role: IssuerRole::Plane };
        let version = request.agent_version.clone().filter(|version| !version.is_empty());
        ContractBody {
            run_id: run.clone(),
            issued_at: self.now,
            issuer,
            requested_by: request.requested_by.clone(),
            approved_by: None,
            agent: AgentSpec { kind: request.agent_kind.clone(), version },
            task: Task { prompt: request.prompt.clone() },
            runner: RunnerChoice { pool: request.pool.clone() },
            workspace: request.workspace.clone(),
            policy_hash: judgment.policy_hash,
            secrets: judgment.secrets.clone(),
            network: request.network.clone(),
            budget: request.budget.clone(),
            disclosure: request.disclosure,
            execution: Some(request.execution_or_default()),
            isolation: request.isolation,
            continuation: request.continuation.clone(),
            expires_at: self.now.plus_ms(CONTRACT_LIFETIME_MS),
            request_hash: Some(request_hash),
            decision: Some(judgment.summary.clone()),
            limits: judgment.limits.clone().or_else(|| request.limits.clone()),
            required_posture: together(&request.required_posture, &judgment.required_posture),
            mode: request.mode,
            files: request.files.clone(),
            egress: request.egress.clone(),
            masks: together(&request.masks, &judgment.masks),
            image: request.image.clone(),
            required_evidence: (!judgment.evidence.is_empty()).then(|| judgment.evidence.clone()),
            retry_safe: None,
            critical: None,
        }
    }

    fn record_decision(
        &self,
        chain: &mut Chain,
        &Case { request, judgment, .. }: &Case<'_>,
    ) -> Result<(), NotaryError> {
        chain.append(self.now, &Event::RunCreated {})?;
        if let Some(continuation) = &request.continuation {
            let event = Event::CheckpointCreated {
                checkpoint_id: continuation.checkpoint_id.clone(),
                tier: continuation.tier,
            };
            chain.append(self.now, &event)?;
        }
        let summary = &judgment.summary;
        let made = Event::DecisionMade {
            decision: summary.decision,
            reasons: summary.reasons.clone(),
            rules: summary.rules.clone(),
            policy_hash: Some(judgment.policy_hash),
            level: summary.level,
        };
        chain.append(self.now, &made)?;
        let evaluated =
            Event::PolicyEvaluated { decision: summary.decision, reason: reason(judgment) };
        chain.append(self.now, &evaluated)?;
        for requirement in &judgment.requirements {
            let requested = Event::ConsentRequested { requirement: requirement.name.clone() };
            chain.append(self.now, &requested)?;
        }
        Ok(())
    }
}

/// Why a run ends without a runner, in the words of chain and receipt.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// What is recorded before the end.
    pub events: Vec<Event>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, in a word.
    pub failure: FailureClass,
    /// Why, for people.
    pub message: String,
    /// Who stopped it, when somebody did.
    pub cancelled_by: Option<ActorRef>,
}

/// Returns the rows of the events from place `from` on.
pub(crate) fn rows(events: &[ChainedEvent]) -> Vec<crate::store::EventRow> {
    let row = |event: &ChainedEvent| crate::store::EventRow {
        seq: event.seq(),
        ts: event.at(),
        hash: event.hash(),
        body: text(event.raw()),
    };
    events.iter().map(row).collect()
}

/// Returns JSON as text. An object has no member that could not be written.
pub(crate) fn text(object: &serde_json::Map<String, serde_json::Value>) -> String {
    let mut bytes = Vec::with_capacity(1024);
    match serde_json::to_writer(&mut bytes, object) {
        Ok(()) => String::from_utf8(bytes).unwrap_or_default(),
        Err(_) => String::new(),
    }
}

/// What the request names and what the policy adds; a request can only tighten.
fn together(asked: &Option<Vec<String>>, added: &[String]) -> Option<Vec<String>> {
    let mut all = asked.clone().unwrap_or_default();
    for name in added {
        if !all.contains(name) {
            all.push(name.clone());
        }
    }
    (!all.is_empty()).then_some(all)
}

/// The reference's sentence about a decision.
fn reason(judgment: &Judgment) -> String {
    match judgment.summary.decision {
        Decision::Allow => "policy allows this run".to_owned(),
        Decision::Ask => {
            let names: Vec<&str> =
                judgment.requirements.iter().map(|wanted| wanted.name.as_str()).collect();
            format!("consent required: {}", names.join("; "))
        }
        Decision::Deny => format!("policy denied: {}", judgment.summary.reasons.join("; ")),
    }
}
