//! The port between a runner and its plane: claim, start, append, blobs, complete.
//!
//! It stands here because neither room may use the other. The plane's in-process maker and the
//! runner's HTTP client both implement it, and a run cannot tell them apart.
//!
//! Order of a run: [`Plane::claim`], then [`Plane::start`] at most once, then any number of
//! [`Plane::append`] and blobs, then [`Plane::complete`] exactly once. A run that is refused
//! before it starts goes from claim to complete.

use std::error::Error;
use std::fmt;
use std::io::{self, Read, Write};

use thiserror::Error;

use crate::chain::{Chain, ChainedEvent};
use crate::contract::Contract;
use crate::event::FailureClass;
use crate::receipt::Receipt;
use crate::request::ActorRef;
use crate::{Digest, RunId, SecretName};

/// Names one lease of one run; it rides in every write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseKey {
    /// The run.
    pub run: RunId,
    /// The number of the lease; a write with an older number is refused.
    pub epoch: u64,
}

/// A run that this runner may work on.
#[derive(Debug, Clone)]
pub struct Lease {
    /// Its name.
    pub key: LeaseKey,
    /// The permission.
    pub contract: Contract,
    /// What happened so far, `run.claimed` included.
    pub chain: Chain,
    /// The digest of the policy that is in force now.
    pub policy_hash: Digest,
}

/// The value of a released secret. It never shows in debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue {
    /// The secret's name.
    pub name: SecretName,
    /// Its value.
    pub value: String,
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<secret {}>", self.name)
    }
}

/// What the plane gives at the start of a run.
#[derive(Debug)]
pub struct Started {
    /// What the plane wrote after the runner's events: `run.started`, `secret.released`.
    pub events: Vec<ChainedEvent>,
    /// The secrets of the contract, in its order.
    pub secrets: Vec<SecretValue>,
}

/// What the plane says to a sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// Go on.
    Continue,
    /// Somebody wants the run stopped, if the plane says who.
    Stop(Option<ActorRef>),
}

/// A blob that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobRef {
    /// Its address.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
}

/// Takes the bytes of one blob.
pub trait BlobWrite: Write + Send {
    /// Ends the blob. It becomes part of the record when its run completes.
    ///
    /// # Errors
    /// What went wrong while keeping it.
    fn finish(self: Box<Self>) -> io::Result<BlobRef>;
}

/// Why the plane did not do what a runner asked for.
#[derive(Debug, Error)]
pub enum PlaneError {
    /// It said no, and will say no again.
    #[error("the plane refused: {message}")]
    Refused {
        /// In one word, for the receipt.
        failure: FailureClass,
        /// For people; safe to show.
        message: String,
    },
    /// Another lease holds the run, or it ended: stop at once, write nothing more.
    #[error("the lease of {0} is over")]
    Fenced(RunId),
    /// It could not be reached or something of it broke.
    #[error("the plane failed")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
}

impl PlaneError {
    /// Wraps what broke.
    pub fn failed(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(cause.into())
    }
}

/// The plane as a runner sees it.
pub trait Plane: Send + Sync {
    /// Leases the next run this runner may work on, if there is one.
    ///
    /// # Errors
    /// [`PlaneError`] when the plane refused or failed.
    fn claim(&self) -> Result<Option<Lease>, PlaneError>;

    /// Records the runner's events so far and that the run starts now, durably, and only then
    /// hands the secrets over.
    ///
    /// # Errors
    /// [`PlaneError::Refused`] when the run may not start any more.
    fn start(&self, lease: &LeaseKey, events: &[ChainedEvent]) -> Result<Started, PlaneError>;

    /// Records further events of the runner. The same events again are no change.
    ///
    /// # Errors
    /// [`PlaneError`] when the events do not follow or the lease is over.
    fn append(&self, lease: &LeaseKey, events: &[ChainedEvent]) -> Result<(), PlaneError>;

    /// Gives a sign of life.
    ///
    /// # Errors
    /// [`PlaneError::Fenced`] when the lease is over.
    fn renew(&self, lease: &LeaseKey) -> Result<Renewal, PlaneError>;

    /// Returns a writer for a blob of this run.
    ///
    /// # Errors
    /// [`PlaneError`] when no blob can be taken.
    fn new_blob(&self, lease: &LeaseKey) -> Result<Box<dyn BlobWrite>, PlaneError>;

    /// Returns the bytes of a blob; whoever reads them checks the digest.
    ///
    /// # Errors
    /// [`PlaneError`] when there is none.
    fn blob(&self, digest: &Digest) -> Result<Box<dyn Read + Send>, PlaneError>;

    /// Ends the run: records the last events and the receipt, and returns it countersigned.
    /// The same receipt again is no change.
    ///
    /// # Errors
    /// [`PlaneError::Refused`] when the receipt does not follow from contract and chain.
    fn complete(
        &self,
        lease: &LeaseKey,
        events: &[ChainedEvent],
        receipt: Receipt,
    ) -> Result<Receipt, PlaneError>;

    /// Gives back a run that was not started.
    ///
    /// # Errors
    /// [`PlaneError::Fenced`] when the lease is over.
    fn hand_back(&self, lease: &LeaseKey) -> Result<(), PlaneError>;
}
