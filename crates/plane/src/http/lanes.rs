//! Lanes: work that waits for the disk, by what it is for, so that no kind can keep another from
//! its threads.
//!
//! | lane | what | at once |
//! |---|---|---|
//! | leases | enroll, claim, start, renew, events, complete, hand back, readiness, sweeps | 16 |
//! | requests | submissions, approvals, policy, principals, secrets | 12 |
//! | reads | lists, views, bundles, streams, exports, piece by piece | 6 |
//! | transfers | blobs in and out, piece by piece | 6 |
//!
//! Compat APIs have [`COMPAT_THREADS`] of their own. Whoever makes the runtime gives it
//! [`BLOCKING_THREADS`], which is enough for all lanes at once.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::HttpError;
use super::service::{PlaneService, Shared};
use crate::request_context::carried;

const LEASES: usize = 16;
const REQUESTS: usize = 12;
const READS: usize = 6;
const TRANSFERS: usize = 6;

/// How many calls of the compat APIs wait for their sandboxes at once.
pub(crate) const COMPAT_THREADS: usize = 128;

/// How many threads a runtime that serves a plane needs for work that blocks.
pub const BLOCKING_THREADS: usize = LEASES + REQUESTS + READS + TRANSFERS + COMPAT_THREADS + 8;

/// Which lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// What keeps runs alive.
    Leases,
    /// What people and their programs ask for.
    Requests,
    /// What is read back.
    Reads,
    /// Blobs.
    Transfers,
}

/// The lanes.
#[derive(Debug)]
pub(crate) struct Lanes {
    leases: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    transfers: Arc<Semaphore>,
}

impl Default for Lanes {
    fn default() -> Self {
        Self {
            leases: Arc::new(Semaphore::new(LEASES)),
            requests: Arc::new(Semaphore::new(REQUESTS)),
            reads: Arc::new(Semaphore::new(READS)),
            transfers: Arc::new(Semaphore::new(TRANSFERS)),
        }
    }
}

impl Lanes {
    /// Waits for a thread; it is free again when the permit is dropped.
    pub(crate) async fn enter(&self, lane: Lane) -> Option<OwnedSemaphorePermit> {
        // The lanes are never closed, so this only waits.
        Arc::clone(self.of(lane)).acquire_owned().await.ok()
    }

    const fn of(&self, lane: Lane) -> &Arc<Semaphore> {
        match lane {
            Lane::Leases => &self.leases,
            Lane::Requests => &self.requests,
            Lane::Reads => &self.reads,
            Lane::Transfers => &self.transfers,
        }
    }
}

/// Does work that waits for the disk, on a thread of its lane. The work is finished even when its
/// caller went away.
pub(crate) async fn in_lane<T: Send + 'static>(
    lane: Lane,
    service: &Shared,
    work: impl FnOnce(&PlaneService) -> Result<T, HttpError> + Send + 'static,
) -> Result<T, HttpError> {
    let permit = service.lanes.enter(lane).await;
    let service = Arc::clone(service);
    let done = tokio::task::spawn_blocking(carried(move || {
        let _permit = permit;
        work(&service)
    }));
    let done = done.await;
    done.unwrap_or_else(|error| Err(HttpError::interrupted(&error)))
}
