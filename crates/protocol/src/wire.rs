//! The bodies of the HTTP API, which are also the values of the in-process port.
//!
//! Bodies that arrive are read by `from_value`, which tells every issue at once; unknown members
//! are left out. Members marked "ours" are optional, and the reference ignores them.
//!
//! A runner of ours speaks: claim (no secrets yet), start (secrets), append, renew, complete.
//! A runner of the reference never starts or renews: it gets its secrets with the claim.

mod fleet;
mod people;
mod views;

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::fleet::{
    DisconnectRule, EnrollResult, HandBack, LEASE_MS, ProcessIdentity, RunnerAbilities, StoredBlob,
    TOKEN_BEYOND_LEASE_MS,
};
pub use self::people::{
    EnrollTokenResult, IssueEnrollToken, IssuePrincipal, PolicyUpload, PrincipalRole,
    PrincipalSummary, PrincipalToken, RefuseRun, SetSecret,
};
pub use self::views::{
    DisclosedWorkspace, DisclosureReport, ErrorBody, PolicyDecisionView, RunSummary, RunView,
    RunnerSummary, SubmitResult,
};
use crate::json as strict;
use crate::request::{check_actor, check_request};
use crate::validate::{At, Checker, Invalid};
use crate::{ActorRef, ChainedEvent, Contract, PoolName, Receipt, RunId, RunRequest, SecretName};

/// `POST /v1/runs`: a wish, or only the question what would become of it.
#[derive(Debug, Clone, PartialEq)]
pub struct SubmitRun {
    /// The wish.
    pub request: RunRequest,
    /// Whether nothing is to be stored.
    pub dry_run: bool,
}

impl SubmitRun {
    /// Reads the body.
    ///
    /// # Errors
    /// [`Invalid`] with every issue.
    pub fn from_value(value: &Value) -> Result<Self, Invalid> {
        let mut checker = Checker::new();
        let Some(body) = checker.object(&At::ROOT, Some(value)) else {
            return Err(checker.into_invalid());
        };
        let request_at = At::ROOT.name("request");
        check_request(&mut checker, &request_at, body.get("request"));
        if let Some(dry_run) = body.get("dryRun") {
            checker.boolean(&At::ROOT.name("dryRun"), Some(dry_run));
        }
        checker.finish()?;
        let dry_run = body.get("dryRun").and_then(Value::as_bool).unwrap_or(false);
        let request = body.get("request").unwrap_or(&Value::Null);
        Ok(Self { request: RunRequest::from_value_at(request, &request_at)?, dry_run })
    }
}

/// `POST /v1/runners/enroll`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Enroll {
    /// Lets the runner in.
    pub enroll_token: String,
    /// The runner's public key, verbatim.
    pub public_key_pem: String,
    /// Where it will work.
    pub pool: PoolName,
    /// A signature by the runner's key over [`Enroll::proof_text`], which makes the same
    /// enrollment again the same runner. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
}

/// `POST /v1/claims`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRun {
    /// Says which runner it is.
    pub runner_token: String,
    /// From which pool it wants work.
    pub pool: PoolName,
    /// Says that this runner starts and renews, so secrets wait for the start. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leases: Option<bool>,
    /// What this runner can do, so that it is given nothing else. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abilities: Option<RunnerAbilities>,
    /// How long to wait for work, in milliseconds; the plane waits 15 s at most. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Which process of the runner this is; a later one has a higher number, and what an earlier
    /// one held is given up. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Which process of its machine this is, so that a plane of the same machine knows when it is
    /// dead. It concerns what this runner takes and nothing else. Ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessIdentity>,
}

/// The value of a released secret. It does not show in debug output.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretValue {
    /// Its name.
    pub name: SecretName,
    /// Its value.
    pub value: String,
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq)]
pub enum ClaimResult {
    /// Nothing to do.
    Empty,
    /// A run.
    Leased(Box<LeasedRun>),
}

/// A run that a runner now holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeasedRun {
    /// Which run.
    pub run_id: RunId,
    /// What is permitted.
    pub contract: Contract,
    /// Opens the run for writing.
    pub claim_token: String,
    /// The chain so far.
    pub events: Vec<ChainedEvent>,
    /// The secrets, for runners that do not start; otherwise empty.
    pub secrets: Vec<SecretValue>,
    /// The number of this lease. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// How much of the lease is left when this answer is written, in milliseconds; the runner
    /// counts from its arrival. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// For how long a started run may go on while the plane does not answer, in milliseconds;
    /// absent means that it stops when its lease is over. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disconnect_ms: Option<u64>,
    /// The digest of the policy that is in force now. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_hash: Option<crate::Digest>,
}

/// `POST /v1/runs/:id/start` (ours): may the first program start?
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartRun {
    /// Opens the run.
    pub claim_token: String,
    /// What the runner recorded so far and has not told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<ChainedEvent>,
    /// Names this start, so that the same question again gets the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_id: Option<String>,
}

/// The answer to a start: it is recorded, and here are the secrets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartResult {
    /// What the plane added to the chain: `run.started` and the releases.
    pub events: Vec<ChainedEvent>,
    /// The secrets.
    pub secrets: Vec<SecretValue>,
}

/// `POST /v1/runs/:id/renew` (ours): the runner is still there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RenewLease {
    /// Opens the run.
    pub claim_token: String,
    /// How long the answer may wait for a stop, in milliseconds; at most 5 s. The lease is
    /// renewed when the question arrives and again when it is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// What a runner is to do with the run it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Directive {
    /// Go on.
    Continue,
    /// Someone cancelled it: kill, collect, seal.
    Stop,
    /// The lease is gone: kill, write nothing more.
    Fenced,
}

/// The answer to a renewal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RenewResult {
    /// What to do.
    pub directive: Directive,
    /// Who asked for the stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<ActorRef>,
    /// How much of the lease is left when this answer is written; the runner counts from when it
    /// sent the renewal.
    pub lease_ms: u64,
    /// A fresh claim token, since tokens end before long runs do.
    pub claim_token: String,
}

/// `POST /v1/runs/:id/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppendEvents {
    /// Opens the run.
    pub claim_token: String,
    /// What happened, in order.
    pub events: Vec<ChainedEvent>,
}

/// `POST /v1/runs/:id/complete`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompleteRun {
    /// Opens the run.
    pub claim_token: String,
    /// The runner's receipt.
    pub receipt: Receipt,
    /// The last events, when they were not told before. Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<ChainedEvent>,
}

/// The answer to a completion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompleteResult {
    /// The receipt with the plane's signature.
    pub receipt: Receipt,
}

/// `POST /v1/runs/:id/approve`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApproveRun {
    /// Who the caller says approves; identity comes from authentication, so this only labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<ActorRef>,
    /// A token of an identity provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idp_token: Option<String>,
    /// A statement the approver signed. Ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statement: Option<crate::approval::Approval>,
}

/// `POST /v1/runs/:id/cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRun {
    /// Who the caller says cancels; see [`ApproveRun::actor`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<ActorRef>,
}

impl ClaimResult {
    /// Returns the body.
    ///
    /// # Errors
    /// [`strict::InvalidJson`] when it has no JSON form.
    pub fn to_value(&self) -> Result<Value, strict::InvalidJson> {
        match self {
            Self::Empty => Ok(json!({"empty": true})),
            Self::Leased(run) => strict::to_value(run),
        }
    }

    /// Reads the body.
    ///
    /// # Errors
    /// [`strict::InvalidJson`] naming what is wrong.
    pub fn from_value(value: &Value) -> Result<Self, strict::InvalidJson> {
        if value.get("empty").is_some() {
            return Ok(Self::Empty);
        }
        strict::view(value).map(|run| Self::Leased(Box::new(run)))
    }
}

macro_rules! body {
    ($name:ident, $checker:ident, $body:ident => $check:block) => {
        impl $name {
            /// Reads the body.
            ///
            /// # Errors
            /// [`Invalid`] with every issue.
            pub fn from_value(value: &Value) -> Result<Self, Invalid> {
                let mut checker = Checker::new();
                if let Some($body) = checker.object(&At::ROOT, Some(value)) {
                    let $checker = &mut checker;
                    $check
                }
                checker.finish()?;
                read(value)
            }
        }
    };
}

body!(Enroll, checker, body => {
    text(checker, body, ("enrollToken", 4096));
    text(checker, body, ("publicKeyPem", 8192));
    checker.name::<PoolName>(&At::ROOT.name("pool"), body.get("pool"), 1..=128);
    if let Some(proof) = body.get("proof") {
        checker.text(&At::ROOT.name("proof"), Some(proof), 1..=128);
    }
});
body!(ClaimRun, checker, body => {
    text(checker, body, ("runnerToken", 4096));
    checker.name::<PoolName>(&At::ROOT.name("pool"), body.get("pool"), 1..=128);
    if let Some(leases) = body.get("leases") {
        checker.boolean(&At::ROOT.name("leases"), Some(leases));
    }
    if let Some(abilities) = body.get("abilities") {
        fleet::check_abilities(checker, abilities);
    }
    optional_wait(checker, body);
    if let Some(generation) = body.get("generation") {
        checker.integer(&At::ROOT.name("generation"), Some(generation), 0);
    }
    if let Some(process) = body.get("process") {
        fleet::check_process(checker, process);
    }
});
body!(StartRun, checker, body => {
    text(checker, body, ("claimToken", 8192));
    optional_events(checker, body);
    if let Some(start_id) = body.get("startId") {
        checker.text(&At::ROOT.name("startId"), Some(start_id), 1..=128);
    }
});
body!(RenewLease, checker, body => {
    text(checker, body, ("claimToken", 8192));
    optional_wait(checker, body);
});
body!(HandBack, checker, body => { text(checker, body, ("claimToken", 8192)); });
body!(AppendEvents, checker, body => {
    text(checker, body, ("claimToken", 8192));
    checker.list(&At::ROOT.name("events"), body.get("events"), 100_000);
});
body!(CompleteRun, checker, body => {
    text(checker, body, ("claimToken", 8192));
    checker.object(&At::ROOT.name("receipt"), body.get("receipt"));
    optional_events(checker, body);
});
body!(ApproveRun, checker, body => {
    optional_actor(checker, body);
    if let Some(token) = body.get("idpToken") {
        checker.text(&At::ROOT.name("idpToken"), Some(token), 1..=16_384);
    }
});
body!(CancelRun, checker, body => { optional_actor(checker, body); });
body!(IssuePrincipal, checker, body => { people::check_principal(checker, body); });
body!(IssueEnrollToken, checker, body => { people::check_enroll_token(checker, body); });
body!(RefuseRun, checker, body => {
    if let Some(reason) = body.get("reason") {
        checker.text(&At::ROOT.name("reason"), Some(reason), 1..=1000);
    }
});
body!(SetSecret, checker, body => { text(checker, body, ("value", 16_384)); });
body!(PolicyUpload, checker, body => {
    checker.object(&At::ROOT.name("document"), body.get("document"));
    for name in ["rules", "examples"] {
        if let Some(part) = body.get(name) {
            checker.text(&At::ROOT.name(name), Some(part), 0..=1_000_000);
        }
    }
});

fn text(checker: &mut Checker, body: &serde_json::Map<String, Value>, (name, max): (&str, usize)) {
    checker.text(&At::ROOT.name(name), body.get(name), 1..=max);
}

fn optional_wait(checker: &mut Checker, body: &serde_json::Map<String, Value>) {
    if let Some(wait) = body.get("waitMs") {
        checker.integer(&At::ROOT.name("waitMs"), Some(wait), 0);
    }
}

fn optional_events(checker: &mut Checker, body: &serde_json::Map<String, Value>) {
    if let Some(events) = body.get("events") {
        checker.list(&At::ROOT.name("events"), Some(events), 100_000);
    }
}

fn optional_actor(checker: &mut Checker, body: &serde_json::Map<String, Value>) {
    if let Some(actor) = body.get("actor") {
        check_actor(checker, &At::ROOT.name("actor"), Some(actor));
    }
}

fn read<T: DeserializeOwned>(value: &Value) -> Result<T, Invalid> {
    strict::view(value)
        .map_err(|error| Invalid { issues: vec![format!("{}: {}", At::ROOT, error.detail())] })
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<secret {}>", self.name)
    }
}
