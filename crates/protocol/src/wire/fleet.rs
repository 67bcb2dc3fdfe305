//! What a runner of ours says beyond the reference's wire.
//!
//! | call | body | answer |
//! |---|---|---|
//! | `POST /v1/runners/enroll` | [`Enroll`](super::Enroll) | [`EnrollResult`] |
//! | `POST /v1/claims` | [`ClaimRun`](super::ClaimRun) with `leases: true` | [`ClaimResult`](super::ClaimResult) |
//! | `POST /v1/runs/:id/start` | [`StartRun`](super::StartRun) | [`StartResult`](super::StartResult) |
//! | `POST /v1/runs/:id/events` | [`AppendEvents`](super::AppendEvents) | `{"ok": true}` |
//! | `POST /v1/runs/:id/renew` | [`RenewLease`](super::RenewLease) | [`RenewResult`](super::RenewResult) |
//! | `POST /v1/runs/:id/logs` | raw bytes, the claim token as bearer | `{"ok": true}` |
//! | `POST /v1/blobs` | raw bytes, the claim token as bearer | [`StoredBlob`] |
//! | `POST /v1/runs/:id/complete` | [`CompleteRun`](super::CompleteRun) | [`CompleteResult`](super::CompleteResult) |
//! | `POST /v1/runs/:id/hand-back` | [`HandBack`] | `{"ok": true}` |
//!
//! Refusals are an [`ErrorBody`](super::ErrorBody): 409 with code `fenced` means that the lease
//! is over (write nothing more); any status with the member `failure` is a lasting no, told for
//! the receipt; 401 means that the token is not accepted; 429, 500 and 503 may be tried again.
//! A runner of ours sends its claim token as bearer too, so that large bodies are let in.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Enroll;
use crate::validate::{At, Checker};
use crate::{Digest, Isolation, PoolName, PublicKey, RunnerId};

/// How long a lease lasts unless it is renewed. The runner counts it from when the answer to its
/// claim arrived, and from when it sent a renewal.
pub const LEASE_MS: u64 = 15_000;

/// What a runner does with a started run while its plane does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisconnectRule {
    /// It stops the run when the lease is over.
    Stop,
    /// It goes on and keeps its evidence on disk, for this long at the most.
    ContinueFor(Duration),
}

impl DisconnectRule {
    /// What holds where policy is silent: ten minutes.
    pub const DEFAULT: Self = Self::ContinueFor(Duration::from_secs(600));

    /// Returns the member of the answer to a claim; absent means to stop.
    #[must_use]
    pub fn to_wire_ms(self) -> Option<u64> {
        match self {
            Self::Stop => None,
            Self::ContinueFor(most) => Some(u64::try_from(most.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    /// Reads the member of the answer to a claim.
    #[must_use]
    pub const fn from_wire_ms(disconnect_ms: Option<u64>) -> Self {
        match disconnect_ms {
            None => Self::Stop,
            Some(ms) => Self::ContinueFor(Duration::from_millis(ms)),
        }
    }
}

/// How much longer a claim token is accepted than its lease: a week, so that neither a machine that
/// slept nor a clock that was set makes it worthless. The number of the lease decides, not the date.
pub const TOKEN_BEYOND_LEASE_MS: u64 = 7 * 24 * 3_600_000;

impl Enroll {
    /// Returns what the runner's key signs to show that the enrollment is its own.
    #[must_use]
    pub fn proof_text(enroll_token: &str, public_key_pem: &str, pool: &PoolName) -> String {
        let token = Digest::of(enroll_token.as_bytes());
        format!("warrant.enroll.v1\n{token}\n{pool}\n{public_key_pem}")
    }

    /// Returns whether the proof shows that the sender has the private key.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        let proof = self.proof.as_deref().and_then(|proof| STANDARD.decode(proof).ok());
        let Some(proof) = proof else { return false };
        let Ok(signature) = proof.as_slice().try_into() else { return false };
        let Ok(key) = PublicKey::from_pem(&self.public_key_pem) else { return false };
        let text = Self::proof_text(&self.enroll_token, &self.public_key_pem, &self.pool);
        key.verify(text.as_bytes(), signature).is_ok()
    }
}

/// The answer to an enrollment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnrollResult {
    /// Who the runner is from now on.
    pub runner_id: RunnerId,
    /// Says so at every claim.
    pub runner_token: String,
    /// The plane's public key, verbatim; a runner pins it. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plane_public_key_pem: Option<String>,
}

/// What a runner can do. What is absent is not limited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunnerAbilities {
    /// The tiers it makes, remote providers among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolations: Option<Vec<Isolation>>,
    /// The agents it can start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_kinds: Option<Vec<String>>,
    /// The components of the posture that hold there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub posture: Option<Vec<String>>,
}

impl RunnerAbilities {
    /// Returns whether a run fits: its tier, its agent and the posture it demands.
    #[must_use]
    pub fn fit(&self, isolation: &str, agent_kind: &str, demanded: &[String]) -> bool {
        let makes = self.isolations.as_ref();
        let starts = self.agent_kinds.as_ref();
        let holds = self.posture.as_ref();
        makes.is_none_or(|all| all.iter().any(|tier| tier.as_str() == isolation))
            && starts.is_none_or(|all| all.iter().any(|kind| kind == agent_kind))
            && holds.is_none_or(|all| demanded.iter().all(|wanted| all.contains(wanted)))
    }
}

/// A process of a machine, named so that nobody else on that machine can be taken for it.
///
/// It means something only to a process with the same boot id and the same process namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessIdentity {
    /// Which start of which machine.
    pub boot_id: String,
    /// In which namespace its number counts.
    pub pid_namespace: String,
    /// Its number.
    pub pid: u64,
    /// When it began, in clock ticks since the machine did: numbers are used again.
    pub start_ticks: u64,
}

/// `POST /v1/runs/:id/hand-back` (ours): nothing was started, somebody else may have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandBack {
    /// Opens the run.
    pub claim_token: String,
}

/// The answer to a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredBlob {
    /// Its address.
    pub hash: Digest,
}

pub(super) fn check_process(checker: &mut Checker, process: &Value) {
    let at = At::ROOT.name("process");
    let Some(body) = checker.object(&at, Some(process)) else { return };
    for name in ["bootId", "pidNamespace"] {
        checker.text(&at.name(name), body.get(name), 1..=64);
    }
    checker.integer(&at.name("pid"), body.get("pid"), 1);
    checker.integer(&at.name("startTicks"), body.get("startTicks"), 0);
}

pub(super) fn check_abilities(checker: &mut Checker, abilities: &Value) {
    let at = At::ROOT.name("abilities");
    let Some(body) = checker.object(&at, Some(abilities)) else { return };
    let known = Isolation::ALL.map(Isolation::as_str);
    if let Some(tiers) = body.get("isolations") {
        let list_at = at.name("isolations");
        for (index, tier) in checker.list(&list_at, Some(tiers), 64).iter().enumerate() {
            checker.one_of(&list_at.index(index), Some(tier), &known);
        }
    }
    for name in ["agentKinds", "posture"] {
        let Some(names) = body.get(name) else { continue };
        let list_at = at.name(name);
        for (index, text) in checker.list(&list_at, Some(names), 256).iter().enumerate() {
            checker.text(&list_at.index(index), Some(text), 1..=128);
        }
    }
}
