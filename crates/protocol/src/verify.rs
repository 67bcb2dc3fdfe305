//! The verifier: a bundle and the caller's keys in, a [`VerifiedBundle`] or every problem out.
//!
//! First the reference's sixteen checks in its order and words, then what it misses.
//! Keys inside the bundle only say which keys were used; whether to believe them is the
//! caller's set of trusted keys alone. Nothing here needs a clock: a contract must have been
//! live when it was claimed, not now.

mod conduct;
mod observed;
mod ours;
mod problem;

use serde_json::{Map, Value};

pub use self::problem::Problem;
use crate::bundle::{BUNDLE_VERSION, Bundle, Malformed};
use crate::chain::{BrokenChain, check_chain};
use crate::event::Event;
use crate::fold::{ended_as, is_ours};
use crate::keys::{KeyRole, TrustedKeys};
use crate::receipt::ReleasedSecret;
use crate::succession::{CheckedSuccession, MOST_SUCCESSIONS, Succession, follow};
use crate::{Chain, ChainedEvent, Contract, Digest, PublicKey, Receipt, Signer, json};

/// A bundle whose every claim was checked against keys the caller trusts. Only [`verify`] makes one.
#[derive(Debug, Clone)]
pub struct VerifiedBundle {
    contract: Contract,
    receipt: Receipt,
    chain: Chain,
    plane: PublicKey,
    runner: PublicKey,
}

impl VerifiedBundle {
    /// Returns what was permitted.
    #[must_use]
    pub const fn contract(&self) -> &Contract {
        &self.contract
    }

    /// Returns what happened.
    #[must_use]
    pub const fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// Returns how it happened.
    #[must_use]
    pub const fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Returns the plane's key, which the caller trusts.
    #[must_use]
    pub const fn plane_key(&self) -> &PublicKey {
        &self.plane
    }

    /// Returns the key that sealed the receipt, which the caller trusts.
    #[must_use]
    pub const fn runner_key(&self) -> &PublicKey {
        &self.runner
    }

    /// Returns whether the receipt carries our members (posture, outcome, preimage, …), or only
    /// what the reference's runner writes.
    #[must_use]
    pub fn is_extended(&self) -> bool {
        is_ours(&self.chain)
    }
}

/// Checks a bundle against the keys the caller trusts.
///
/// # Errors
/// Every [`Problem`] at once; a bundle that cannot be read has exactly one.
pub fn verify(bundle: Bundle, trusted: &TrustedKeys) -> Result<VerifiedBundle, Vec<Problem>> {
    let mut problems = Vec::new();
    let followed = followed(&bundle, trusted, &mut problems);
    let trusted = followed.as_ref().unwrap_or(trusted);
    let parts = Parts::read(bundle.into_raw(), trusted)
        .map_err(|Malformed(detail)| vec![Problem::Malformed { detail }])?;
    problems.extend(check(&parts, trusted));
    match (problems.is_empty(), parts.into_verified()) {
        (true, Some(verified)) => Ok(verified),
        (true, None) => Err(vec![Problem::EmptyChain]),
        (false, _) => Err(problems),
    }
}

/// What a runner sealed and no plane has countersigned, with the keys of both.
#[derive(Debug, Clone)]
pub struct SealedBundle {
    /// What was permitted; the caller signed it or checked who did.
    pub contract: Contract,
    /// What the runner says happened.
    pub receipt: Receipt,
    /// How it happened.
    pub chain: Chain,
    /// The key of the plane that would countersign.
    pub plane: PublicKey,
    /// The key of the runner that holds the lease.
    pub runner: PublicKey,
}

/// Checks what a runner sealed, with the checks of [`verify`], before a plane countersigns it.
///
/// The caller is the plane: its own signatures are left out, on the contract, on approvals that
/// it took, and on the receipt, which it has not signed yet. Trust in both keys is the caller's.
///
/// # Errors
/// Every [`Problem`] at once.
pub fn verify_sealed(bundle: SealedBundle) -> Result<SealedBundle, Vec<Problem>> {
    let SealedBundle { contract, receipt, chain, plane, runner } = bundle;
    let trusted =
        TrustedKeys::none().and(KeyRole::Plane, plane.clone()).and(KeyRole::Runner, runner.clone());
    let parts = Parts {
        stage: Stage::Sealed,
        version: Some(BUNDLE_VERSION.to_owned()),
        manifest_hash: contract.manifest_hash(),
        contract,
        receipt,
        links: Links::Whole(chain),
        plane,
        runner,
    };
    let mut problems = check(&parts, &trusted);
    // A receipt that the runner signs in the plane's name is not one of a runner.
    if parts.receipt.body().sealed_by.is_some() {
        problems.push(Problem::DoesNotFold { member: "sealedBy".to_owned() });
    }
    match parts.into_verified() {
        Some(verified) if problems.is_empty() => {
            let VerifiedBundle { contract, receipt, chain, plane, runner } = verified;
            Ok(SealedBundle { contract, receipt, chain, plane, runner })
        }
        Some(_) | None => Err(problems),
    }
}

/// Runs every check that the stage of a bundle allows, in the reference's order first.
fn check(parts: &Parts, trusted: &TrustedKeys) -> Vec<Problem> {
    let mut problems = Vec::new();
    if parts.stage == Stage::Countersigned {
        check_contract(parts, &mut problems);
    }
    check_sealed(parts, &mut problems);
    if parts.stage == Stage::Countersigned
        && parts.receipt.check_signature(Signer::Plane, &parts.plane).is_err()
    {
        problems.push(Problem::PlaneCountersignature);
    }
    ours::check(parts, trusted, &mut problems);
    problems
}

/// Returns the trusted keys with what follows from them by the successions that the bundle carries,
/// if it carries any.
fn followed(
    bundle: &Bundle,
    trusted: &TrustedKeys,
    problems: &mut Vec<Problem>,
) -> Option<TrustedKeys> {
    let carried = bundle.raw().get("successions")?;
    let read = json::view::<Vec<Succession>>(carried).map_err(|error| error.detail());
    let checked = read.and_then(|carried| {
        if carried.len() > MOST_SUCCESSIONS {
            return Err(format!("more than {MOST_SUCCESSIONS} key successions"));
        }
        let checked: Result<Vec<_>, _> = carried.iter().map(CheckedSuccession::of).collect();
        checked.map_err(|error| error.to_string())
    });
    match checked {
        Ok(checked) => Some(follow(trusted, &checked)),
        Err(detail) => {
            problems.push(Problem::Succession { detail });
            None
        }
    }
}

/// Checks a runner's receipt the way the reference's plane does before it countersigns:
/// problems 2 to 15. Folding and trust are checked besides, by [`verify`] on the whole bundle.
///
/// # Errors
/// Every [`Problem`] at once.
pub fn verify_runner_receipt(
    contract: &Contract,
    receipt: &Receipt,
    chain: &Chain,
    runner: &PublicKey,
) -> Result<(), Vec<Problem>> {
    let parts = Parts {
        stage: Stage::Sealed,
        version: None,
        contract: contract.clone(),
        manifest_hash: contract.manifest_hash(),
        receipt: receipt.clone(),
        links: Links::Whole(chain.clone()),
        plane: runner.clone(),
        runner: runner.clone(),
    };
    let mut problems = Vec::new();
    check_sealed(&parts, &mut problems);
    ours::check_fold(&parts, &mut problems);
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// What a bundle holds, read but not believed.
pub(crate) struct Parts {
    stage: Stage,
    version: Option<String>,
    contract: Contract,
    manifest_hash: Digest,
    receipt: Receipt,
    links: Links,
    plane: PublicKey,
    runner: PublicKey,
}

/// How far a bundle has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its plane signed everything it signs.
    Countersigned,
    /// Its plane is about to.
    Sealed,
}

/// The events of a bundle, with or without every link holding.
enum Links {
    Whole(Chain),
    Broken { events: Vec<Option<ChainedEvent>>, broken: BrokenChain },
}

impl Links {
    fn of(contract_hash: Digest, events: Vec<Option<ChainedEvent>>) -> Self {
        match check_chain(contract_hash, events.iter().map(Option::as_ref)) {
            Ok(()) => {
                Self::Whole(Chain::checked(contract_hash, events.into_iter().flatten().collect()))
            }
            Err(broken) => Self::Broken { events, broken },
        }
    }
}

impl Parts {
    fn chain(&self) -> Option<&Chain> {
        match &self.links {
            Links::Whole(chain) => Some(chain),
            Links::Broken { .. } => None,
        }
    }

    fn events(&self) -> Vec<Option<&ChainedEvent>> {
        match &self.links {
            Links::Whole(chain) => chain.events().iter().map(Some).collect(),
            Links::Broken { events, .. } => events.iter().map(Option::as_ref).collect(),
        }
    }

    fn read(mut raw: Map<String, Value>, trusted: &TrustedKeys) -> Result<Self, Malformed> {
        let mut take = |name: &str| {
            raw.remove(name).ok_or_else(|| Malformed(format!("missing field `{name}`")))
        };
        let (contract, receipt, events, keys) =
            (take("contract")?, take("receipt")?, take("events")?, take("keys")?);
        let contract =
            Contract::from_value(contract).map_err(|error| Malformed(error.to_string()))?;
        let receipt = Receipt::from_value(receipt).map_err(|error| Malformed(error.to_string()))?;
        let events = match events {
            Value::Array(events) => events.into_iter().map(read_event).collect::<Result<_, _>>()?,
            _ => return Err(Malformed("events is not a list".to_owned())),
        };
        let key = |name: &str| {
            let pem = keys.get(name).and_then(Value::as_str);
            let pem = pem.ok_or_else(|| Malformed(format!("keys: missing field `{name}`")))?;
            trusted.parse_pem(pem).map_err(|error| Malformed(format!("keys.{name}: {error}")))
        };
        let version = raw.get("version").and_then(Value::as_str).map(str::to_owned);
        let (plane, runner) = (key("planePublicKeyPem")?, key("runnerPublicKeyPem")?);
        let links = Links::of(contract.hash(), events);
        let manifest_hash = contract.manifest_hash();
        let stage = Stage::Countersigned;
        Ok(Self { stage, version, contract, manifest_hash, receipt, links, plane, runner })
    }

    fn into_verified(self) -> Option<VerifiedBundle> {
        let Self { contract, receipt, links, plane, runner, .. } = self;
        match links {
            Links::Whole(chain) => Some(VerifiedBundle { contract, receipt, chain, plane, runner }),
            Links::Broken { .. } => None,
        }
    }
}

fn read_event(value: Value) -> Result<Option<ChainedEvent>, Malformed> {
    match value {
        Value::Null => Ok(None),
        value => {
            ChainedEvent::from_value(value).map(Some).map_err(|error| Malformed(error.to_string()))
        }
    }
}

fn check_contract(parts: &Parts, problems: &mut Vec<Problem>) {
    if parts.contract.check_signature(Signer::Plane, &parts.plane).is_err() {
        problems.push(Problem::ContractSignature);
    }
}

/// The reference's problems 2 to 15.
fn check_sealed(parts: &Parts, problems: &mut Vec<Problem>) {
    let (contract, receipt) = (parts.contract.body(), parts.receipt.body());
    let mut check = |holds: bool, problem: Problem| {
        if !holds {
            problems.push(problem);
        }
    };
    check(receipt.run_id == contract.run_id, Problem::RunId);
    check(receipt.contract_hash == parts.contract.hash(), Problem::ContractHash);
    check(receipt.runner.key_id == *parts.runner.id(), Problem::RunnerKeyId);
    check(receipt.runner.pool == contract.runner.pool, Problem::RunnerPool);
    let runner_signature = parts.receipt.check_signature(Signer::Runner, &parts.runner);
    check(runner_signature.is_ok(), Problem::RunnerSignature);
    if let Links::Broken { broken, .. } = &parts.links {
        check(false, Problem::BrokenChain(*broken));
    }
    let events = parts.events();
    match events.last() {
        None => check(false, Problem::EmptyChain),
        Some(last) => {
            let head = last.map(ChainedEvent::hash);
            check(head == Some(receipt.events_head), Problem::EventsHead);
            let is_counted = receipt.event_count == events.len() as u64;
            check(is_counted, Problem::EventCount);
            let ended = last.and_then(|last| ended_as(last.event()));
            check(ended == Some(receipt.status), Problem::TerminalEvent);
        }
    }
    let base_ref = &contract.workspace.base_ref;
    check(receipt.workspace_in.base_ref == *base_ref, Problem::BaseRef);
    check(receipt.workspace_in.manifest_hash == parts.manifest_hash, Problem::ManifestHash);
    let is_released = sorted(receipt.secrets_released.clone()) == sorted(released(&events));
    check(is_released, Problem::SecretsReleased);
    if let Some(diff) = receipt.workspace_out.diff_hash {
        let is_diff = |event: &ChainedEvent| matches!(event.event(), Event::ArtifactCreated { hash, .. } if *hash == diff);
        check(events.iter().flatten().any(|event| is_diff(event)), Problem::DiffHash);
    }
}

fn released(events: &[Option<&ChainedEvent>]) -> Vec<ReleasedSecret> {
    let release = |event: &ChainedEvent| match event.event() {
        Event::SecretReleased { name, scope } => {
            Some(ReleasedSecret { name: name.clone(), scope: scope.clone(), ts: event.at() })
        }
        _ => None,
    };
    events.iter().flatten().copied().filter_map(release).collect()
}

fn sorted<T: Ord>(mut list: Vec<T>) -> Vec<T> {
    list.sort_unstable();
    list
}

/// Checks a bundle given as JSON text.
///
/// # Errors
/// Every [`Problem`] at once.
pub fn verify_slice(bytes: &[u8], trusted: &TrustedKeys) -> Result<VerifiedBundle, Vec<Problem>> {
    let bundle = Bundle::from_slice(bytes)
        .map_err(|Malformed(detail)| vec![Problem::Malformed { detail }])?;
    verify(bundle, trusted)
}

pub(crate) fn member_texts(raw: &Map<String, Value>, name: &str) -> Vec<String> {
    raw.get(name).and_then(|list| json::view(list).ok()).unwrap_or_default()
}
