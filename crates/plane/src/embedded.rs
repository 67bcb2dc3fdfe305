//! The plane inside one process: reception, lease, start, archive, over the store of one home.
//!
//! It implements the port of [`warrant_protocol::port`]; a runner in the same process sees the
//! same plane that a runner behind HTTP sees.
//!
//! At every opening it seals what a killed process left behind ([`EmbeddedPlane::seal_lost`]).

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;
use warrant_protocol::event::FailureClass;
use warrant_protocol::port::{
    BlobRef, BlobWrite, Lease, LeaseKey, Plane, PlaneError, Renewal, SecretValue, Started,
};
use warrant_protocol::receipt::ReceiptStatus;
use warrant_protocol::{
    Chain, ChainedEvent, Contract, Digest, Event, Receipt, RunId, RunState, Sealer, Signer,
    Timestamp, fold,
};

use crate::home::Home;
use crate::liveness::SignOfLife;
use crate::notary::{Notary, rows};
use crate::secrets::{Secrets, SecretsError};
use crate::store::{BlobWriter, Completion, Durability, NewBlob, Owner, RunRow, Store, StoreError};
use crate::{authorship, random};

/// How long a lease lasts; in one process it is the sign of life that counts.
const LEASE_MS: u64 = 15_000;

/// The plane of one home, in this process.
#[derive(Debug)]
pub struct EmbeddedPlane {
    home: Home,
    store: Store,
    secrets: Secrets,
    policy_hash: Digest,
    alive: SignOfLife,
    /// Blobs that are complete and wait for their run to complete.
    finished: Finished,
}

type Finished = Arc<Mutex<HashMap<LeaseKey, Vec<NewBlob>>>>;

/// Why the plane cannot be used.
#[derive(Debug, Error)]
pub enum EmbeddedError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file system refused.
    #[error("the home directory cannot be used")]
    File(#[from] io::Error),
    /// Nothing could be signed.
    #[error(transparent)]
    Notary(#[from] crate::notary::NotaryError),
    /// A stored object does not read back.
    #[error("the stored {what} of {run} does not read back")]
    Damaged {
        /// Which object.
        what: &'static str,
        /// Whose.
        run: RunId,
    },
}

impl EmbeddedPlane {
    /// Opens the plane of a home; `policy_hash` names the policy in force, or a digest that no
    /// policy has when there is none.
    ///
    /// # Errors
    /// [`EmbeddedError`] when the store cannot be used.
    pub fn open(home: Home, policy_hash: Digest) -> Result<Self, EmbeddedError> {
        let store = Store::open(&home.data())?;
        let alive = SignOfLife::give(&home.data().join("alive"))?;
        let secrets = Secrets::of(home.root(), home.master_key().cloned());
        let finished = Finished::default();
        let plane = Self { home, store, secrets, policy_hash, alive, finished };
        plane.seal_lost()?;
        Ok(plane)
    }

    /// Returns the home.
    #[must_use]
    pub const fn home(&self) -> &Home {
        &self.home
    }

    /// Returns the store.
    #[must_use]
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the secrets.
    #[must_use]
    pub const fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Returns the digest of the policy in force.
    #[must_use]
    pub const fn policy_hash(&self) -> Digest {
        self.policy_hash
    }

    /// Leases one queued run to the runner of this process.
    ///
    /// # Errors
    /// [`PlaneError::Fenced`] when it is not queued any more.
    pub fn lease(&self, run: &RunId) -> Result<Lease, PlaneError> {
        let row = self.store.run(run).map_err(store_error(run))?;
        self.lease_row(&row)
    }

    pub(crate) fn notary(&self, now: Timestamp) -> Notary<'_> {
        Notary { key: self.home.plane_key(), now }
    }

    pub(crate) fn contract_of(&self, row: &RunRow) -> Result<Contract, EmbeddedError> {
        let damaged = || EmbeddedError::Damaged { what: "contract", run: row.id.clone() };
        let text = row.contract.as_deref().ok_or_else(damaged)?;
        Contract::from_slice(text.as_bytes()).map_err(|_| damaged())
    }

    pub(crate) fn chain_of(
        &self,
        run: &RunId,
        contract: &Contract,
    ) -> Result<Chain, EmbeddedError> {
        let damaged = || EmbeddedError::Damaged { what: "chain", run: run.clone() };
        let mut chain = Chain::new(contract.hash());
        for row in self.store.events(run)? {
            let event = serde_json::from_str(&row.body).map_err(|_| damaged())?;
            chain.push(event).map_err(|_| damaged())?;
        }
        Ok(chain)
    }

    pub(crate) fn sign_of_life(&self) -> &str {
        self.alive.name()
    }

    fn lease_row(&self, row: &RunRow) -> Result<Lease, PlaneError> {
        let now = random::now().map_err(PlaneError::failed)?;
        let contract = self.contract_of(row).map_err(PlaneError::failed)?;
        let mut chain = self.chain_of(&row.id, &contract).map_err(PlaneError::failed)?;
        let epoch = row.epoch + 1;
        let claimed = Event::RunClaimed {
            runner_id: self.home.runner_id().clone(),
            runner_key_id: self.home.runner_key().public().id().clone(),
            epoch: Some(epoch),
            attestation_tier: None,
        };
        let event = chain.append(now, &claimed).map_err(PlaneError::failed)?.clone();
        let owner = Owner {
            liveness: Some(self.sign_of_life().to_owned()),
            runner: self.home.runner_id().to_string(),
            at: now,
            lease_until: now.plus_ms(LEASE_MS),
            // Nothing has happened yet: if power is cut now, nothing is missed.
            durability: Durability::WithNext,
        };
        self.store
            .claim(&row.id, row.epoch, (owner, rows(&[event])))
            .map_err(store_error(&row.id))?;
        let key = LeaseKey { run: row.id.clone(), epoch };
        Ok(Lease { key, contract, chain, policy_hash: self.policy_hash })
    }

    /// Returns contract and chain with the runner's events after checking that they follow and
    /// that a runner may say them.
    fn extended(
        &self,
        lease: &LeaseKey,
        events: &[ChainedEvent],
    ) -> Result<(Contract, Chain), PlaneError> {
        let row = self.store.run(&lease.run).map_err(store_error(&lease.run))?;
        if row.epoch != lease.epoch {
            return Err(PlaneError::Fenced(lease.run.clone()));
        }
        let contract = self.contract_of(&row).map_err(PlaneError::failed)?;
        let mut chain = self.chain_of(&lease.run, &contract).map_err(PlaneError::failed)?;
        for event in events {
            let known = usize::try_from(event.seq()).ok().and_then(|seq| chain.events().get(seq));
            match known {
                Some(known) if known.hash() == event.hash() => continue,
                Some(_) => return Err(refused("another event stands at that place")),
                None => {}
            }
            // SECURITY: a runner must not write consents or releases into its own chain.
            if !authorship::may_runner_say(event.event()) {
                return Err(refused("a runner may not say this event"));
            }
            chain.push(event.clone()).map_err(|broken| refused(&broken.to_string()))?;
        }
        Ok((contract, chain))
    }

    fn check_receipt(
        &self,
        contract: &Contract,
        chain: &Chain,
        receipt: &Receipt,
    ) -> Result<(), PlaneError> {
        let key = self.home.runner_key().public();
        if receipt.check_signature(Signer::Runner, key).is_err() {
            return Err(refused("receipt runner signature invalid"));
        }
        let sealer =
            Sealer::Runner { runner_id: self.home.runner_id().clone(), key_id: key.id().clone() };
        let folded = fold(contract, chain, &sealer).map_err(|why| refused(&why.to_string()))?;
        if folded != *receipt.body() {
            return Err(refused("the receipt does not follow from the chain"));
        }
        Ok(())
    }

    fn check_artifacts(&self, lease: &LeaseKey, receipt: &Receipt) -> Result<(), PlaneError> {
        let finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = finished.get(lease).map(Vec::as_slice).unwrap_or_default();
        for digest in &receipt.body().workspace_out.artifact_hashes {
            let is_waiting = waiting.iter().any(|blob| blob.digest == *digest);
            if !is_waiting && !self.store.has_blob(digest).map_err(PlaneError::failed)? {
                return Err(refused("an artifact was never stored"));
            }
        }
        Ok(())
    }
}

impl Plane for EmbeddedPlane {
    fn claim(&self) -> Result<Option<Lease>, PlaneError> {
        loop {
            let pool = self.home.pool().as_str();
            let next = self.store.next_queued(pool).map_err(PlaneError::failed)?;
            let Some(row) = next else { return Ok(None) };
            match self.lease_row(&row) {
                Err(PlaneError::Fenced(_)) => continue,
                other => return other.map(Some),
            }
        }
    }

    fn start(&self, lease: &LeaseKey, events: &[ChainedEvent]) -> Result<Started, PlaneError> {
        let now = random::now().map_err(PlaneError::failed)?;
        let (contract, chain) = self.extended(lease, events)?;
        let body = contract.body();
        if !contract.is_live(now) {
            return Err(refused("the contract has expired"));
        }
        if body.policy_hash != self.policy_hash {
            return Err(PlaneError::Refused {
                failure: FailureClass::PolicyDenied,
                message: "the policy changed since this was decided".to_owned(),
            });
        }
        let names: Vec<_> = body.secrets.iter().map(|claim| claim.name.clone()).collect();
        let values = self.secrets.release(&names).map_err(secrets_error)?;
        let added = Arc::new(Mutex::new(Vec::new()));
        let (build_added, claims, epoch) = (Arc::clone(&added), body.secrets.clone(), lease.epoch);
        let runner_rows = rows(events);
        let build = move |lamport| {
            let mut chain = chain;
            let from = chain.events().len();
            let append = |chain: &mut Chain, event: &Event| {
                chain.append(now, event).map(|_| ()).map_err(|_| StoreError::Malformed("event"))
            };
            append(&mut chain, &Event::RunStarted { epoch, lamport: Some(lamport) })?;
            for claim in claims {
                let released = Event::SecretReleased { name: claim.name, scope: claim.scope };
                append(&mut chain, &released)?;
            }
            let new = chain.events().get(from..).unwrap_or_default().to_vec();
            let all = runner_rows.into_iter().chain(rows(&new)).collect();
            *build_added.lock().unwrap_or_else(PoisonError::into_inner) = new;
            Ok(all)
        };
        self.store.start(lease, now, build).map_err(store_error(&lease.run))?;
        // SECURITY: only now, after the start is durable, do the values leave.
        let secrets = values
            .into_iter()
            .map(|secret| SecretValue { name: secret.name, value: secret.value.to_string() })
            .collect();
        let events = std::mem::take(&mut *added.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Started { events, secrets })
    }

    fn append(&self, lease: &LeaseKey, events: &[ChainedEvent]) -> Result<(), PlaneError> {
        self.extended(lease, events)?;
        self.store
            .append(&lease.run, lease.epoch, rows(events))
            .map(|_| ())
            .map_err(store_error(&lease.run))
    }

    fn renew(&self, lease: &LeaseKey) -> Result<Renewal, PlaneError> {
        let until = random::now().map_err(PlaneError::failed)?.plus_ms(LEASE_MS);
        self.store
            .renew(&lease.run, lease.epoch, until)
            .map(|()| Renewal::Continue)
            .map_err(store_error(&lease.run))
    }

    fn new_blob(&self, lease: &LeaseKey) -> Result<Box<dyn BlobWrite>, PlaneError> {
        Ok(Box::new(PendingBlob {
            writer: self.store.blob_writer(),
            lease: lease.clone(),
            finished: Arc::clone(&self.finished),
        }))
    }

    fn blob(&self, digest: &Digest) -> Result<Box<dyn Read + Send>, PlaneError> {
        match self.store.blob(digest).map_err(PlaneError::failed)? {
            Some(reader) => Ok(Box::new(reader)),
            None => Err(PlaneError::Refused {
                failure: FailureClass::TransferFailed,
                message: format!("there is no blob {digest}"),
            }),
        }
    }

    fn complete(
        &self,
        lease: &LeaseKey,
        events: &[ChainedEvent],
        receipt: &Receipt,
    ) -> Result<Receipt, PlaneError> {
        let (contract, chain) = self.extended(lease, events)?;
        self.check_receipt(&contract, &chain, receipt)?;
        self.check_artifacts(lease, receipt)?;
        let signed = receipt
            .clone()
            .countersign(Signer::Plane, self.home.plane_key())
            .map_err(PlaneError::failed)?;
        let blobs = self
            .finished
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(lease)
            .unwrap_or_default();
        let completion = Completion {
            state: state_of(receipt.body().status),
            events: rows(events),
            receipt_hash: signed.hash(),
            receipt: signed.to_value().to_string(),
            blobs,
            at: random::now().map_err(PlaneError::failed)?,
        };
        self.store
            .complete(&lease.run, lease.epoch, completion)
            .map_err(store_error(&lease.run))?;
        Ok(signed)
    }

    fn hand_back(&self, lease: &LeaseKey) -> Result<(), PlaneError> {
        let now = random::now().map_err(PlaneError::failed)?;
        self.store.hand_back(&lease.run, lease.epoch, now).map_err(store_error(&lease.run))
    }
}

const fn state_of(status: ReceiptStatus) -> RunState {
    match status {
        ReceiptStatus::Completed => RunState::Completed,
        ReceiptStatus::Failed => RunState::Failed,
        ReceiptStatus::Cancelled => RunState::Cancelled,
    }
}

struct PendingBlob {
    writer: BlobWriter,
    lease: LeaseKey,
    finished: Finished,
}

impl Write for PendingBlob {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl BlobWrite for PendingBlob {
    fn finish(self: Box<Self>) -> io::Result<BlobRef> {
        let Self { writer, lease, finished } = *self;
        let blob = writer.finish()?;
        let reference = BlobRef { digest: blob.digest, size: blob.size };
        let mut finished = finished.lock().unwrap_or_else(PoisonError::into_inner);
        finished.entry(lease).or_default().push(blob);
        Ok(reference)
    }
}

fn refused(message: &str) -> PlaneError {
    PlaneError::Refused { failure: FailureClass::SessionFailed, message: message.to_owned() }
}

fn secrets_error(error: SecretsError) -> PlaneError {
    PlaneError::Refused { failure: FailureClass::SecretReleaseDenied, message: error.to_string() }
}

fn store_error(run: &RunId) -> impl Fn(StoreError) -> PlaneError + '_ {
    move |error| match error {
        StoreError::Conflict { .. } => PlaneError::Fenced(run.clone()),
        StoreError::Fork { .. } | StoreError::UnknownRun(_) => refused(&error.to_string()),
        other => PlaneError::failed(other),
    }
}
