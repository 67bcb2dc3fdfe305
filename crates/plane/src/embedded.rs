//! The plane inside one process: reception, lease, start, archive, over the store of one home.
//!
//! It implements the port of [`warrant_protocol::port`]; a runner in the same process sees the
//! same plane that a runner behind HTTP sees.
//!
//! At every opening it seals what a killed process left behind ([`EmbeddedPlane::seal_lost`]) and
//! issues what was approved and still waits ([`EmbeddedPlane::issue_approved`]).

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};
use thiserror::Error;
use warrant_protocol::event::FailureClass;
use warrant_protocol::policy::DEFAULT_MAX_FALSE_CLAIMS;
use warrant_protocol::port::{
    BlobRef, BlobWrite, Lease, LeaseKey, Plane, PlaneError, Renewal, Started,
};
use warrant_protocol::wire::{DisconnectRule, LEASE_MS};
use warrant_protocol::{
    Chain, ChainedEvent, Contract, Digest, Receipt, RunId, RunState, TimeSource, Timestamp,
};

use crate::clock::SystemTimeSource;
use crate::files;
use crate::home::Home;
use crate::lease_table::{LeaseTable, LeaseTerms};
use crate::leases::{Holder, StartCall, Underway, store_error};
use crate::liveness::SignOfLife;
use crate::notary::Notary;
use crate::request_context::keep_cause;
use crate::secrets::Secrets;
use crate::serving::{ServingError, ServingLock};
use crate::store::{BlobWriter, NewBlob, RunRow, Store, StoreError};

/// The plane of one home, in this process.
#[derive(Debug)]
pub struct EmbeddedPlane {
    home: Home,
    store: Store,
    secrets: Secrets,
    policy_hash: Mutex<Digest>,
    alive: SignOfLife,
    /// Held by the one process that serves the home to others.
    serving: Option<ServingLock>,
    /// Whether strangers are told of what was kept, so that it must survive a power cut first.
    is_service: bool,
    /// Blobs that are complete and wait for their run to complete.
    pub(crate) finished: Finished,
    /// Contracts and chains of runs that are on their way; the store is the truth.
    pub(crate) underway: Underway,
    /// The clocks.
    time: Arc<dyn TimeSource>,
    /// When the runners of leases were last heard.
    leases: Mutex<LeaseTable>,
    /// The groups of everyone who may approve, by `human:name`.
    groups: Mutex<HashMap<String, Vec<String>>>,
    /// How many false claims end a runner's enrollment.
    most_false_claims: AtomicU64,
    /// How many false claims were refused since somebody asked.
    pub(crate) false_claims: AtomicU64,
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
    /// The disk of the home has no room for the record of a run.
    #[error("the disk is full where {path} lies, so no run could be recorded and nothing runs")]
    NoRoom {
        /// The directory of the store.
        path: PathBuf,
    },
    /// This process may not write files as large as those of the store.
    #[error("files may have no more than {limit} bytes here (ulimit -f), which the store needs")]
    FileLimit {
        /// The limit.
        limit: u64,
    },
    /// The home's keys cannot be read.
    #[error(transparent)]
    Home(#[from] crate::home::HomeError),
    /// Another process serves the home.
    #[error(transparent)]
    Serving(#[from] ServingError),
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

impl EmbeddedError {
    /// Returns whether it failed because nothing can be written where the home lies.
    #[must_use]
    pub fn is_of_writing(&self) -> bool {
        match self {
            Self::Store(error) => error.is_of_writing(),
            Self::File(error) => files::is_of_writing(error),
            Self::NoRoom { .. } | Self::FileLimit { .. } => true,
            Self::Home(error) => error.is_of_writing(),
            Self::Serving(_) | Self::Notary(_) | Self::Damaged { .. } => false,
        }
    }
}

/// What must be free on the disk of a home before anything starts: the papers of a run, twice.
const ROOM_BYTES: u64 = 1 << 20;

/// How many files it must have room for.
const ROOM_FILES: u64 = 8;

impl EmbeddedPlane {
    /// Makes sure, before anything is begun, that there is room to record how it ends.
    ///
    /// # Errors
    /// [`EmbeddedError::NoRoom`] when there is none. What the program says and changes may need
    /// more than is looked for here.
    pub fn check_room(&self) -> Result<(), EmbeddedError> {
        let path = self.home.data();
        let disk = statvfs(&path).map_err(io::Error::from)?;
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        // Some file systems count no files, and some, as `ramfs`, count nothing.
        let has_bytes = disk.f_blocks == 0 || free_bytes >= ROOM_BYTES;
        let has_files = disk.f_files == 0 || disk.f_favail >= ROOM_FILES;
        match has_bytes && has_files {
            true => Ok(()),
            false => Err(EmbeddedError::NoRoom { path }),
        }
    }

    /// Makes sure that something can be recorded now: there is room, and a small row can be written.
    ///
    /// # Errors
    /// [`EmbeddedError`] saying what is in the way.
    pub fn check_writable(&self) -> Result<(), EmbeddedError> {
        self.check_room()?;
        Ok(self.store.check_writable()?)
    }

    /// Opens the plane of a home; `policy_hash` names the policy in force, or a digest that no
    /// policy has when there is none.
    ///
    /// # Errors
    /// [`EmbeddedError`] when the store cannot be used.
    pub fn open(home: Home, policy_hash: Digest) -> Result<Self, EmbeddedError> {
        let plane = Self::make(home, policy_hash, Arc::new(SystemTimeSource))?;
        plane.seal_lost()?;
        plane.issue_approved()?;
        Ok(plane)
    }

    /// Opens the plane of a home to serve others: whatever they are told is durable first. Leases that nobody could renew while it was down have their full time from
    /// now on.
    ///
    /// # Errors
    /// [`EmbeddedError`] when the store cannot be used.
    pub fn open_service(home: Home, policy_hash: Digest) -> Result<Self, EmbeddedError> {
        Self::open_service_on(home, policy_hash, Arc::new(SystemTimeSource))
    }

    /// As [`EmbeddedPlane::open_service`], on these clocks.
    ///
    /// # Errors
    /// Those of [`EmbeddedPlane::open_service`].
    pub fn open_service_on(
        home: Home,
        policy_hash: Digest,
        time: Arc<dyn TimeSource>,
    ) -> Result<Self, EmbeddedError> {
        let serving = Some(ServingLock::take(home.root())?);
        let plane = Self { is_service: true, serving, ..Self::make(home, policy_hash, time)? };
        plane.store.check_at_opening()?;
        plane.store.expect_many_writes()?;
        plane.seal_lost()?;
        plane.issue_approved()?;
        Ok(plane)
    }

    fn make(
        home: Home,
        policy_hash: Digest,
        time: Arc<dyn TimeSource>,
    ) -> Result<Self, EmbeddedError> {
        check_file_limit(&home.data())?;
        let store = Store::open(&home.data())?;
        let alive = SignOfLife::give(&home.data().join("alive"))?;
        let secrets = Secrets::of(home.root(), home.master_key().cloned());
        Ok(Self {
            home,
            store,
            secrets,
            policy_hash: Mutex::new(policy_hash),
            alive,
            serving: None,
            is_service: false,
            finished: Finished::default(),
            underway: Underway::default(),
            leases: Mutex::new(LeaseTable::begin(time.moment())),
            time,
            groups: Mutex::default(),
            most_false_claims: AtomicU64::new(DEFAULT_MAX_FALSE_CLAIMS),
            false_claims: AtomicU64::new(0),
        })
    }

    /// Lets go of it at the end of a process: the sign of life is taken back, and the memory is
    /// left to the kernel, which takes it apart faster.
    pub fn leave(self) {
        let Self { store, alive, serving, .. } = self;
        store.leave();
        drop(alive);
        drop(serving);
    }

    /// Returns the clocks.
    #[must_use]
    pub fn time(&self) -> &dyn TimeSource {
        &*self.time
    }

    /// Returns the clocks, to be kept.
    #[must_use]
    pub fn time_source(&self) -> Arc<dyn TimeSource> {
        Arc::clone(&self.time)
    }

    /// Returns the date, for evidence, people and expiry dates.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.time.date()
    }

    pub(crate) fn lease_table(&self) -> MutexGuard<'_, LeaseTable> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub fn policy_hash(&self) -> Digest {
        *self.policy_hash.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says which policy is in force from now on. What was decided under another one and has
    /// not started will be refused.
    pub fn set_policy_hash(&self, hash: Digest) {
        *self.policy_hash.lock().unwrap_or_else(PoisonError::into_inner) = hash;
    }

    /// Says how many false claims end a runner's enrollment.
    pub fn set_most_false_claims(&self, most: u64) {
        self.most_false_claims.store(most, Ordering::Relaxed);
    }

    pub(crate) fn most_false_claims(&self) -> u64 {
        self.most_false_claims.load(Ordering::Relaxed)
    }

    /// Says in which groups people are, by `human:name`.
    pub fn set_groups(&self, groups: HashMap<String, Vec<String>>) {
        *self.groups.lock().unwrap_or_else(PoisonError::into_inner) = groups;
    }

    pub(crate) fn groups_of(&self, label: &str) -> Vec<String> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.get(label).cloned().unwrap_or_default()
    }

    pub(crate) const fn is_service(&self) -> bool {
        self.is_service
    }

    /// Leases one queued run to the runner of this process. One that may not be leased any more
    /// is sealed.
    ///
    /// # Errors
    /// [`PlaneError::Fenced`] when it is not queued any more, [`PlaneError::Refused`] when its
    /// contract has expired.
    pub fn lease(&self, run: &RunId) -> Result<Lease, PlaneError> {
        if !self.is_service && self.is_held(run, 0) {
            return self.lease_own(&self.own_runner(), run);
        }
        let row = self.store.run(run).map_err(store_error(run))?;
        if row.state != RunState::Queued {
            return Err(PlaneError::Fenced(run.clone()));
        }
        self.lease_to(&self.own_runner(), run, row.epoch)
            .or_else(|error| Err(self.seal_if_refused(run, error)?))
    }

    /// Seals a queued run that was refused a lease, and returns why it was.
    fn seal_if_refused(&self, run: &RunId, error: PlaneError) -> Result<PlaneError, PlaneError> {
        if let PlaneError::Refused { failure, message } = &error {
            self.refuse_queued(run, *failure, message).map_err(PlaneError::failed)?;
        }
        Ok(error)
    }

    pub(crate) fn notary(&self, now: Timestamp) -> Notary<'_> {
        Notary { key: self.home.plane_key(), now }
    }

    pub(crate) fn contract_of(&self, row: &RunRow) -> Result<Contract, EmbeddedError> {
        let damaged = || EmbeddedError::Damaged { what: "contract", run: row.id.clone() };
        let text = row.contract.as_deref().ok_or_else(damaged)?;
        Contract::from_slice(text.as_bytes()).map_err(|error| keep_cause(&error, damaged()))
    }

    pub(crate) fn chain_of(
        &self,
        run: &RunId,
        contract: &Contract,
    ) -> Result<Chain, EmbeddedError> {
        let damaged = || EmbeddedError::Damaged { what: "chain", run: run.clone() };
        let mut chain = Chain::new(contract.hash());
        for row in self.store.events(run)? {
            let event =
                serde_json::from_str(&row.body).map_err(|error| keep_cause(&error, damaged()))?;
            chain.push(event).map_err(|error| keep_cause(&error, damaged()))?;
        }
        Ok(chain)
    }

    pub(crate) fn sign_of_life(&self) -> &str {
        self.alive.name()
    }

    /// The runner in this process, which gives a sign of life instead of renewing.
    fn own_runner(&self) -> Holder<'_> {
        Holder {
            id: self.home.runner_id(),
            key: self.home.runner_key().public(),
            liveness: Some(self.sign_of_life()),
            terms: LeaseTerms {
                lease: Duration::from_millis(LEASE_MS),
                disconnect: DisconnectRule::Stop,
            },
            generation: None,
            process: None,
        }
    }
}

/// Makes sure that the files of the store may grow as far as a run may have them grow.
fn check_file_limit(data: &Path) -> Result<(), EmbeddedError> {
    let Some(limit) = getrlimit(Resource::Fsize).current else { return Ok(()) };
    let size = |name: &str| std::fs::metadata(data.join(name)).map_or(0, |file| file.len());
    let largest = size("plane.db").max(size("plane.db-wal"));
    match largest.saturating_add(ROOM_BYTES) <= limit {
        true => Ok(()),
        false => Err(EmbeddedError::FileLimit { limit }),
    }
}

impl Plane for EmbeddedPlane {
    fn claim(&self) -> Result<Option<Lease>, PlaneError> {
        loop {
            let pool = self.home.pool().as_str();
            let next = self.store.next_queued(pool).map_err(PlaneError::failed)?;
            let Some(row) = next else { return Ok(None) };
            let leased = self.lease_to(&self.own_runner(), &row.id, row.epoch);
            match leased.or_else(|error| Err(self.seal_if_refused(&row.id, error)?)) {
                Err(PlaneError::Fenced(_) | PlaneError::Refused { .. }) => continue,
                other => return other.map(Some),
            }
        }
    }

    fn start(&self, lease: &LeaseKey, events: &[ChainedEvent]) -> Result<Started, PlaneError> {
        let holder = self.home.runner_id();
        self.start_lease(&StartCall { holder, lease, events, start_id: None })
    }

    fn append(&self, lease: &LeaseKey, events: &[ChainedEvent]) -> Result<(), PlaneError> {
        self.append_events(self.home.runner_id(), lease, events)
    }

    fn renew(&self, lease: &LeaseKey) -> Result<Renewal, PlaneError> {
        let wanted_by = self.renew_lease(lease)?;
        Ok(wanted_by.map_or(Renewal::Continue, |actor| Renewal::Stop(Some(actor))))
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
        receipt: Receipt,
    ) -> Result<Receipt, PlaneError> {
        self.complete_run(&self.own_runner(), lease, (events, receipt))
    }

    fn hand_back(&self, lease: &LeaseKey) -> Result<(), PlaneError> {
        let now = self.now();
        self.store.hand_back(&lease.run, lease.epoch, now).map_err(store_error(&lease.run))
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
