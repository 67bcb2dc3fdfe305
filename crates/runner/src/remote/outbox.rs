//! The outbox: what a run leaves is written here before anybody is told.
//!
//! ```text
//! outbox/<run>.<epoch>/
//!   lease.json    what the claim brought, without any secret
//!   started.json  the same, once the plane was asked to start it
//!   chain.json    what the plane was asked to start it with; once it answered, the chain up to
//!                 the start
//!   end.json      the last events and the receipt
//!   blobs/        the diff and the log, named by digest, if there are any
//! ```
//!
//! Few files, because a busy file system looks long for a free inode: a note is a new name, and an
//! empty log is no file.
//!
//! An entry is removed when the plane has everything. One that is found at the next start of the
//! runner is delivered; a run that had begun and has no end is ended as unobserved. Whether a run
//! had begun whose start was asked for and not answered, the plane says ([`Entry::start_known`]).
//!
//! A killed process loses nothing of this. A power cut may, unless the plane was away at the end
//! of the run, when the entry is made durable; the plane then seals the run itself.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use warrant_protocol::chain::InvalidEvent;
use warrant_protocol::event::FailureClass;
use warrant_protocol::fold::FoldError;
use warrant_protocol::port::{BlobRef, BlobWrite, LeaseKey};
use warrant_protocol::wire::LeasedRun;
use warrant_protocol::{
    Chain, ChainedEvent, Contract, Digest, Event, Outcome, Receipt, RunId, Sealer, Signed, Signer,
    Timestamp, Usage, fold, json as strict,
};

use super::Dialect;
use crate::run::RunnerIdentity;
use crate::spread::spread;

/// What a claim brought.
const LEASE: &str = "lease.json";
/// The same, once the plane was asked to start the run.
const STARTED: &str = "started.json";
/// The events that follow those of the lease, up to the start.
const CHAIN: &str = "chain.json";
/// How older runners noted that, beside the lease.
const STARTED_BEFORE: &str = "starting";

/// Where a runner keeps what it has not told yet.
#[derive(Debug)]
pub struct Outbox {
    path: PathBuf,
    is_giving_up: AtomicBool,
}

/// Why the outbox cannot be used.
#[derive(Debug, Error)]
pub enum OutboxError {
    /// The file system refused.
    #[error("cannot use {path}")]
    File {
        /// Which file or directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// An entry makes no sense.
    #[error("the entry {path} does not read back")]
    Damaged {
        /// Which entry.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The end of a run could not be recorded.
    #[error("the end cannot be recorded")]
    Event(#[from] InvalidEvent),
    /// The chain folds to no receipt.
    #[error("the receipt cannot be folded")]
    Fold(#[from] FoldError),
    /// The receipt could not be signed.
    #[error("the receipt cannot be signed")]
    Sign(#[from] warrant_protocol::signed::InvalidSigned),
}

/// What ends a run: the events the plane has not got, and the receipt.
#[derive(Debug, Clone)]
pub struct End {
    /// The events the plane has not got.
    pub events: Vec<ChainedEvent>,
    /// The receipt.
    pub receipt: Receipt,
}

/// What is known of the start of a run that an earlier life of the runner held.
#[derive(Debug, Clone)]
pub enum StartKnown {
    /// It was never asked for, or the answer is here.
    Settled,
    /// It was asked for with these events, and no answer is here: nothing was executed, and the
    /// plane knows whether it counts as started.
    Unanswered {
        /// What the plane was told.
        told: Vec<ChainedEvent>,
    },
}

/// One run in the outbox. Clones speak of the same one.
#[derive(Debug, Clone)]
pub struct Entry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    key: LeaseKey,
    dialect: Dialect,
    token: String,
    names: AtomicU64,
}

impl Outbox {
    /// Opens the outbox in a directory that only we may enter.
    ///
    /// # Errors
    /// [`OutboxError::File`].
    pub fn open_at(path: PathBuf) -> Result<Self, OutboxError> {
        private_dir(&path).map_err(at(&path))?;
        spread(&path);
        Ok(Self { path, is_giving_up: AtomicBool::new(false) })
    }

    /// Returns where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn give_up(&self) {
        self.is_giving_up.store(true, Ordering::Release);
    }

    pub(crate) fn is_giving_up(&self) -> bool {
        self.is_giving_up.load(Ordering::Acquire)
    }

    /// Opens the entry of a run that was just claimed.
    ///
    /// # Errors
    /// [`OutboxError::File`]; then nothing of the run may be begun.
    pub fn open(
        &self,
        key: &LeaseKey,
        dialect: Dialect,
        run: &LeasedRun,
    ) -> Result<Entry, OutboxError> {
        let path = self.path.join(format!("{}.{}", key.run, key.epoch));
        private_dir(&path).map_err(at(&path))?;
        // SECURITY: secrets never touch the disk.
        let lease = json!({
            "runId": run.run_id,
            "epoch": key.epoch,
            "isPlain": dialect == Dialect::Plain,
            "claimToken": run.claim_token,
            "contract": run.contract.to_value(),
            "events": run.events,
        });
        let entry = Entry(Arc::new(Inner {
            path,
            key: key.clone(),
            dialect,
            token: run.claim_token.clone(),
            names: AtomicU64::new(0),
        }));
        entry.write(LEASE, &lease)?;
        Ok(entry)
    }

    /// Returns what an earlier life of this runner left.
    ///
    /// # Errors
    /// [`OutboxError::File`] when it cannot be read.
    pub fn left_behind(&self) -> Result<Vec<Entry>, OutboxError> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(at(&self.path))? {
            let path = entry.map_err(at(&self.path))?.path();
            match Entry::read(&path) {
                Some(entry) => entries.push(entry),
                None => {
                    tracing::warn!(path = %path.display(), "an outbox entry without a lease is dropped");
                    let _ = fs::remove_dir_all(&path);
                }
            }
        }
        Ok(entries)
    }
}

impl Entry {
    /// Returns which lease it is of.
    #[must_use]
    pub fn key(&self) -> &LeaseKey {
        &self.0.key
    }

    pub(crate) fn run(&self) -> &RunId {
        &self.0.key.run
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.0.dialect
    }

    pub(crate) fn token(&self) -> String {
        self.0.token.clone()
    }

    /// Returns the name of this run's start under this lease: the same for every attempt.
    #[must_use]
    pub fn start_id(&self) -> String {
        let text = format!("warrant.start.v1\n{}", self.0.token);
        Digest::of(text.as_bytes()).to_hex()
    }

    /// Notes that the plane is asked to start the run, and what it is told with that.
    ///
    /// # Errors
    /// [`OutboxError::File`]; then the run must not start, because the next life of this runner
    /// would take it for one that never did.
    pub fn starting(&self, told: &[ChainedEvent]) -> Result<(), OutboxError> {
        // The reference's wire has no start that could be asked for again.
        if self.0.dialect == Dialect::Leases {
            self.write(CHAIN, &json!({ "events": told }))?;
        }
        let started = self.0.path.join(STARTED);
        fs::rename(self.0.path.join(LEASE), &started).map_err(at(&started))
    }

    /// Notes the chain up to the start.
    pub fn started(&self, told: &[ChainedEvent], added: &[ChainedEvent]) {
        // Without it a killed run is sealed by the plane instead of by this runner.
        let events = [told, added].concat();
        let _ = self.write(CHAIN, &json!({"events": events}));
    }

    /// Returns what is known of the start of a run of an earlier life that has no end yet.
    ///
    /// # Errors
    /// [`OutboxError::Damaged`] when the entry does not read back.
    pub fn start_known(&self) -> Result<StartKnown, OutboxError> {
        if !self.0.path.join(STARTED).exists() || self.0.dialect == Dialect::Plain {
            return Ok(StartKnown::Settled);
        }
        let Some(chain) = self.load(CHAIN) else { return Ok(StartKnown::Settled) };
        let told = self.events_of(&chain)?;
        let is_start = |event: &ChainedEvent| matches!(event.event(), Event::RunStarted { .. });
        let has_end = self.0.path.join("end.json").exists();
        match has_end || told.iter().any(is_start) {
            true => Ok(StartKnown::Settled),
            false => Ok(StartKnown::Unanswered { told }),
        }
    }

    /// Notes the end, before anybody is told.
    ///
    /// # Errors
    /// [`OutboxError::File`].
    pub fn ended(&self, end: &End) -> Result<(), OutboxError> {
        let end = json!({"events": end.events, "receipt": end.receipt.to_value()});
        self.write("end.json", &end)
    }

    /// Makes the entry survive a power cut.
    pub(crate) fn make_durable(&self) {
        let sync = |path: &Path| File::open(path).and_then(|file| file.sync_all());
        let files = self.blobs().into_iter().chain([
            self.0.path.join("end.json"),
            self.0.path.join(LEASE),
            self.0.path.join(STARTED),
            self.0.path.join("blobs"),
            self.0.path.clone(),
        ]);
        for path in files {
            // What cannot be synced is as durable as it was before.
            let _ = sync(&path);
        }
    }

    /// Removes the entry.
    pub fn forget(&self) {
        // What stays is delivered again, which changes nothing.
        let _ = fs::remove_dir_all(&self.0.path);
    }

    /// Returns the files of the finished blobs.
    pub(crate) fn blobs(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.0.path.join("blobs")) else { return Vec::new() };
        let names = entries.flatten().map(|entry| entry.path());
        let is_blob = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.parse::<Digest>().is_ok()
        };
        let mut files: Vec<PathBuf> = names.filter(is_blob).collect();
        files.sort();
        files
    }

    /// Returns a writer for a blob of this run.
    pub(crate) fn new_blob(&self) -> EntryBlob {
        let number = self.0.names.fetch_add(1, Ordering::Relaxed);
        let path = self.0.path.join("blobs").join(format!("writing-{number}"));
        EntryBlob { file: None, path, hash: Sha256::new(), size: 0 }
    }

    /// Returns how a run of an earlier life ends: as it did, as unobserved if it had begun, or not
    /// at all if it had not.
    ///
    /// # Errors
    /// [`OutboxError`] when the entry does not read back or the end cannot be kept.
    pub fn ending(
        &self,
        identity: &RunnerIdentity,
        clock: &(dyn Fn() -> Timestamp + Sync),
    ) -> Result<Option<End>, OutboxError> {
        if let Some(end) = self.load("end.json") {
            let receipt = end.get("receipt").cloned().unwrap_or_default();
            let receipt = Receipt::from_value(receipt).map_err(|error| self.damaged(error))?;
            return Ok(Some(End { events: self.events_of(&end)?, receipt }));
        }
        let has_begun =
            [STARTED, STARTED_BEFORE].iter().any(|name| self.0.path.join(name).exists());
        if !has_begun && self.0.dialect == Dialect::Leases {
            return Ok(None);
        }
        let lease = self.load(STARTED).or_else(|| self.load(LEASE));
        let lease = lease.ok_or_else(|| self.damaged("its lease is missing"))?;
        let contract = lease.get("contract").cloned().unwrap_or_default();
        let contract = Contract::from_value(contract).map_err(|error| self.damaged(error))?;
        let mut events = self.events_of(&lease)?;
        if let Some(chain) = self.load(CHAIN) {
            events.extend(self.events_of(&chain)?);
        }
        let told = events.len();
        let mut chain = Chain::from_events(contract.hash(), events)
            .map_err(|broken| self.damaged(broken.to_string()))?;
        let now = chain.events().last().map_or_else(clock, |last| last.at().max(clock()));
        let outcome = if has_begun { Outcome::Unobserved } else { Outcome::Failed };
        let recorded = Event::OutcomeRecorded { outcome, exit_code: None, usage: Usage::default() };
        chain.append(now, &recorded)?;
        let message = "the runner was ended while it held this run".to_owned();
        chain.append(now, &Event::RunFailed { failure: FailureClass::SessionFailed, message })?;
        let sealer = Sealer::Runner {
            runner_id: identity.id.clone(),
            key_id: identity.key.public().id().clone(),
        };
        let body = fold(&contract, &chain, &sealer)?;
        let receipt = Signed::seal(&body, Signer::Runner, &identity.key)?;
        let events = chain.events().get(told..).unwrap_or_default().to_vec();
        let end = End { events, receipt };
        self.ended(&end)?;
        Ok(Some(end))
    }

    fn read(path: &Path) -> Option<Self> {
        let text = fs::read(path.join(LEASE)).or_else(|_| fs::read(path.join(STARTED))).ok()?;
        let lease = strict::parse(&text).ok()?;
        let run = lease.get("runId")?.as_str()?.parse().ok()?;
        let epoch = lease.get("epoch")?.as_u64()?;
        let is_plain = lease.get("isPlain")?.as_bool()?;
        Some(Self(Arc::new(Inner {
            path: path.to_owned(),
            key: LeaseKey { run, epoch },
            dialect: if is_plain { Dialect::Plain } else { Dialect::Leases },
            token: lease.get("claimToken")?.as_str()?.to_owned(),
            names: AtomicU64::new(0),
        })))
    }

    fn load(&self, name: &str) -> Option<Value> {
        strict::parse(&fs::read(self.0.path.join(name)).ok()?).ok()
    }

    fn events_of(&self, value: &Value) -> Result<Vec<ChainedEvent>, OutboxError> {
        let events = value.get("events").cloned().unwrap_or_default();
        strict::view(&events).map_err(|error| self.damaged(error))
    }

    fn damaged(&self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> OutboxError {
        OutboxError::Damaged { path: self.0.path.clone(), cause: cause.into() }
    }

    /// Writes a file whole or not at all.
    fn write(&self, name: &str, value: &Value) -> Result<(), OutboxError> {
        let path = self.0.path.join(name);
        let fresh = self.0.path.join(format!("{name}.new"));
        let written = private_file(&fresh)
            .and_then(|mut file| file.write_all(value.to_string().as_bytes()))
            .and_then(|()| fs::rename(&fresh, &path));
        written.map_err(at(&path))
    }
}

/// A blob on its way into the outbox; it becomes a file with its first byte.
pub(crate) struct EntryBlob {
    file: Option<File>,
    path: PathBuf,
    hash: Sha256,
    size: u64,
}

impl EntryBlob {
    fn file(&mut self) -> io::Result<&mut File> {
        if self.file.is_none() {
            if let Some(folder) = self.path.parent() {
                private_dir(folder)?;
            }
            self.file = Some(private_file(&self.path)?);
        }
        self.file.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Write for EntryBlob {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let count = self.file()?.write(bytes)?;
        self.hash.update(bytes.get(..count).unwrap_or_default());
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), File::flush)
    }
}

impl BlobWrite for EntryBlob {
    fn finish(mut self: Box<Self>) -> io::Result<BlobRef> {
        self.file()?;
        let digest = Digest::from_bytes(self.hash.finalize().into());
        fs::rename(&self.path, self.path.with_file_name(digest.to_hex()))?;
        Ok(BlobRef { digest, size: self.size })
    }
}

fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

fn at(path: &Path) -> impl Fn(io::Error) -> OutboxError + '_ {
    move |cause| OutboxError::File { path: path.to_owned(), cause }
}
