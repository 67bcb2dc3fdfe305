//! The claim loop: a runner of a fleet takes runs from its plane, many at a time, until it drains.
//!
//! Each slot is a thread that claims, runs to the receipt and claims again. Leases are renewed
//! beside it. [`Drain`] ends the work in order: no more claims, what runs may finish until the
//! deadline, then it is cancelled with receipts; receipts the plane does not take in time stay in
//! the outbox for the next life of this runner.

mod live;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use thiserror::Error;
use warrant_protocol::port::{Lease, Plane as _};
use warrant_protocol::{Timestamp, error_chain};
use warrant_sandbox::{Backend, Cancel, Stdin};

use self::live::Live;
use crate::guard::VersionPins;
use crate::remote::{BlobCache, CallError, Claimed, OutboxError, RemotePlane, Stop, StopSlot};
use crate::run::{RunError, Surroundings, visiting_run};
use crate::site::{MockProgram, Visit};
use crate::spread::spread;
use warrant_workspace::GatePolicy;

/// How long a cancelled run has to leave its receipt.
const AFTER_CANCEL: Duration = Duration::from_secs(10);
/// The longest pause between two failed claims.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The most output that is kept of a run whose contract is silent.
const MOST_OUTPUT_BYTES: u64 = 64 << 20;

/// A runner at work.
pub struct Fleet<'a> {
    /// Its plane.
    pub plane: &'a RemotePlane,
    /// The backends of this machine, at most one for each tier.
    pub backends: &'a [&'a dyn Backend],
    /// Versions of providers that are known to be good.
    pub pins: &'a [VersionPins],
    /// Where workspaces are built; what lies in `sessions` below it is removed.
    pub data: &'a Path,
    /// Blobs that were fetched before.
    pub cache: &'a BlobCache,
    /// How many runs at a time.
    pub concurrency: usize,
    /// How long to wait for a plane that does not wait itself.
    pub poll: Duration,
    /// How long runs may go on after the drain began.
    pub grace: Duration,
    /// What contracts may inherit of the environment.
    pub environment: &'a BTreeMap<String, String>,
    /// The program of the built-in agent.
    pub mock: Option<MockProgram<'a>>,
    /// The clock.
    pub clock: &'a (dyn Fn() -> Timestamp + Sync),
}

/// Why a runner stopped that nobody told to.
#[derive(Debug, Error)]
pub enum FleetError {
    /// The plane does not want this runner.
    #[error("the plane sent this runner away")]
    SentAway(#[source] CallError),
    /// What an earlier life left cannot be read.
    #[error(transparent)]
    Outbox(#[from] OutboxError),
}

/// What a runner did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Runs that left a receipt.
    pub ended: u64,
    /// Runs whose lease was over before they did.
    pub fenced: u64,
    /// Runs whose receipt waits for the plane.
    pub waiting: u64,
}

/// Tells a runner to end. Clones speak of the same runner.
#[derive(Debug, Clone, Default)]
pub struct Drain(Arc<(Mutex<bool>, Condvar)>);

impl Drain {
    /// Begins the drain.
    pub fn begin(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Returns whether it has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for it, but not longer than `most`; returns whether it has begun.
    pub fn wait(&self, most: Duration) -> bool {
        let lock = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.1.wait_timeout_while(lock, most, |has_begun| !*has_begun);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// What the slots share.
struct Shared<'a> {
    fleet: &'a Fleet<'a>,
    drain: &'a Drain,
    running: Mutex<Vec<Running>>,
    working: AtomicUsize,
    sent_away: Mutex<Option<CallError>>,
    ended: AtomicU64,
    fenced: AtomicU64,
    waiting: AtomicU64,
}

/// What is needed to stop a run.
struct Running {
    lease: warrant_protocol::port::LeaseKey,
    cancel: Cancel,
    stop: Arc<StopSlot>,
}

impl Fleet<'_> {
    /// Works until the drain is over.
    ///
    /// # Errors
    /// [`FleetError`] when the plane sent this runner away or the outbox cannot be read.
    pub fn work(&self, drain: &Drain) -> Result<Tally, FleetError> {
        let sessions = self.data.join("sessions");
        // What stays costs space, not truth.
        let _ = fs::remove_dir_all(&sessions);
        // Whoever needs it makes it if it is not there.
        let _ = fs::DirBuilder::new().recursive(true).mode(0o700).create(&sessions);
        spread(&sessions);
        let left = self.plane.recover(self.clock, &|| drain.has_begun())?;
        if left > 0 {
            tracing::info!(runs = left, "told the plane of runs from before");
        }
        let shared = Shared {
            fleet: self,
            drain,
            running: Mutex::default(),
            working: AtomicUsize::new(self.concurrency),
            sent_away: Mutex::default(),
            ended: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        };
        thread::scope(|scope| {
            for number in 0..self.concurrency {
                let shared = &shared;
                let name = format!("slot-{number}");
                let slot = move || {
                    shared.slot();
                    shared.working.fetch_sub(1, Ordering::AcqRel);
                };
                if thread::Builder::new().name(name).spawn_scoped(scope, slot).is_err() {
                    shared.working.fetch_sub(1, Ordering::AcqRel);
                }
            }
            shared.oversee();
        });
        let sent_away = shared.sent_away.lock().unwrap_or_else(PoisonError::into_inner).take();
        match sent_away {
            Some(error) => Err(FleetError::SentAway(error)),
            None => Ok(Tally {
                ended: shared.ended.load(Ordering::Acquire),
                fenced: shared.fenced.load(Ordering::Acquire),
                waiting: shared.waiting.load(Ordering::Acquire),
            }),
        }
    }
}

impl Shared<'_> {
    /// Waits for the drain and sees it through.
    fn oversee(&self) {
        while !self.drain.wait(Duration::from_secs(3600)) {}
        tracing::info!("draining: no more claims");
        self.fleet.plane.stop_claiming();
        if self.wait_for_slots(self.fleet.grace) {
            return;
        }
        for running in self.running.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            tracing::warn!(run.id = %running.lease.run, "cancelled: the runner ends");
            running.stop.set(Stop::Draining);
            running.cancel.cancel();
        }
        if !self.wait_for_slots(AFTER_CANCEL) {
            self.fleet.plane.leave_the_rest();
        }
    }

    /// Waits until every slot has ended; returns whether they have.
    fn wait_for_slots(&self, most: Duration) -> bool {
        let time = self.fleet.plane.time();
        let until = time.moment().plus(most);
        while self.working.load(Ordering::Acquire) > 0 {
            if time.moment() >= until {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Claims and runs until the drain.
    fn slot(&self) {
        let mut failures = 0_u32;
        while !self.drain.has_begun() {
            let pause = match self.fleet.plane.claim_waiting() {
                Ok(Claimed::Run(lease)) => {
                    failures = 0;
                    self.take(*lease);
                    continue;
                }
                Ok(Claimed::Nothing) => {
                    failures = 0;
                    continue;
                }
                Ok(Claimed::NothingYet) => {
                    failures = 0;
                    self.fleet.poll
                }
                Err(CallError::GivenUp) => continue,
                Err(error @ CallError::Refused { status: 401 | 403, .. }) => {
                    *self.sent_away.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    self.drain.begin();
                    return;
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let pause = self.fleet.poll * failures.min(64) / 8;
                    tracing::warn!(%error, "a claim failed");
                    pause.clamp(Duration::from_millis(50), LONGEST_PAUSE)
                }
            };
            self.drain.wait(pause);
        }
    }

    fn take(&self, lease: Lease) {
        let key = lease.key.clone();
        if self.drain.has_begun() && self.fleet.plane.hand_back(&key).is_ok() {
            return;
        }
        let time = self.fleet.plane.time();
        let began = time.moment();
        let outcome = self.run(lease);
        let took = time.moment().since(began);
        let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let count = match outcome {
            Ok(word) => {
                tracing::info!(run.id = %key.run, status = word, duration_ms, "run ended");
                &self.ended
            }
            Err(RunError::Fenced(_)) => {
                tracing::warn!(run.id = %key.run, duration_ms, "run given up: its lease is over");
                self.fleet.plane.forget(&key);
                &self.fenced
            }
            Err(RunError::GivenBack { reason, .. }) => {
                tracing::warn!(run.id = %key.run, reason, "run given back before it started");
                self.fleet.plane.let_go(&key);
                &self.fenced
            }
            Err(error) => {
                let error = error_chain(&error);
                tracing::error!(run.id = %key.run, %error, duration_ms, "run has no receipt yet");
                &self.waiting
            }
        };
        count.fetch_add(1, Ordering::AcqRel);
    }

    /// Runs one lease to its receipt.
    fn run(&self, lease: Lease) -> Result<&'static str, RunError> {
        let fleet = self.fleet;
        let key = lease.key.clone();
        let session = fleet.data.join("sessions").join(format!("{}.{}", key.run, key.epoch));
        let _gone = RemoveLater(&session);
        let Ok(cancel) = Cancel::new() else { return Err(RunError::Fenced(key.run)) };
        let stop = Arc::new(StopSlot::default());
        let _listed = self.list(&key, &cancel, &stop);
        let _watched = fleet.plane.watch(&key, &cancel, &stop);
        let blobs = fleet.plane.blobs_of(&key, fleet.cache);
        let (checkout, scratch) = (session.join("repo"), session.join("scratch"));
        let visit = Visit {
            checkout: &checkout,
            blobs: &blobs,
            stop: &stop,
            mock: fleet.mock,
            most_output_bytes: MOST_OUTPUT_BYTES,
        };
        let plane_key = fleet.plane.enrolled().plane_key();
        let surroundings = Surroundings {
            plane: fleet.plane,
            plane_key: &plane_key,
            identity: fleet.plane.enrolled().identity(),
            backends: fleet.backends,
            pins: fleet.pins,
            workspace: &checkout,
            scratch: &scratch,
            own: fleet.data,
            environment: fleet.environment,
            stdin: &Stdin::Empty,
            tty: None,
            cancel: &cancel,
            observer: &Live::of(fleet.plane, &key),
            gate: &GatePolicy::advised(),
            clock: fleet.clock,
        };
        let ended = visiting_run(&surroundings, &visit, lease)?;
        Ok(ended.receipt.body().status.as_str())
    }

    fn list<'s>(
        &'s self,
        lease: &warrant_protocol::port::LeaseKey,
        cancel: &Cancel,
        stop: &Arc<StopSlot>,
    ) -> Listed<'s> {
        let running =
            Running { lease: lease.clone(), cancel: cancel.clone(), stop: Arc::clone(stop) };
        self.running.lock().unwrap_or_else(PoisonError::into_inner).push(running);
        Listed { running: &self.running, lease: lease.clone() }
    }
}

/// A run that can be stopped, until this is dropped.
struct Listed<'a> {
    running: &'a Mutex<Vec<Running>>,
    lease: warrant_protocol::port::LeaseKey,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|running| running.lease != self.lease);
    }
}

/// A directory that is removed when this is dropped.
struct RemoveLater<'a>(&'a Path);

impl Drop for RemoveLater<'_> {
    fn drop(&mut self) {
        // What stays is removed at the next start.
        let _ = fs::remove_dir_all(self.0);
    }
}

/// A data directory that no other runner uses at the same time.
#[derive(Debug)]
pub struct DataLock {
    _file: fs::File,
}

/// Why a data directory cannot be used.
#[derive(Debug, Error)]
pub enum DataError {
    /// The file system refused.
    #[error("cannot use {path}")]
    File {
        /// Which directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// Another runner works there.
    #[error("another runner uses {0}; give this one its own --data-dir")]
    Taken(PathBuf),
}

impl DataLock {
    /// Makes the directory if it is not there and takes it until dropped.
    ///
    /// # Errors
    /// [`DataError`].
    pub fn take(path: &Path) -> Result<Self, DataError> {
        let failed = |cause| DataError::File { path: path.to_owned(), cause };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join("lock"))
            .map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(DataError::Taken(path.to_owned())),
            Err(errno) => Err(failed(errno.into())),
        }
    }
}
