//! Runners that wait for work, and everyone who waits for a run to change.
//!
//! A run that becomes queued wakes exactly one runner that fits. Notifications inside the process
//! get lost only when nobody waited; a sweep once a second catches what other processes queued.

use std::sync::{Mutex, PoisonError};

use tokio::sync::{broadcast, oneshot, watch};
use warrant_protocol::RunId;
use warrant_protocol::wire::RunnerAbilities;

/// How many changes a slow listener may lag behind before it has to look for itself.
const BACKLOG: usize = 1024;

/// The runners that wait.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: Mutex<Vec<Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    pool: String,
    abilities: RunnerAbilities,
    wake: oneshot::Sender<()>,
}

/// What of a queued run decides who can take it.
#[derive(Debug, Clone)]
pub(crate) struct Wanted<'a> {
    pub(crate) pool: &'a str,
    pub(crate) isolation: &'a str,
    pub(crate) agent_kind: &'a str,
    pub(crate) posture: &'a [String],
}

impl Waiters {
    /// Waits in line; the answer comes when there may be work.
    pub(crate) fn line_up(&self, pool: &str, abilities: &RunnerAbilities) -> oneshot::Receiver<()> {
        let (wake, woken) = oneshot::channel();
        let waiter = Waiter { pool: pool.to_owned(), abilities: abilities.clone(), wake };
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|waiter| !waiter.wake.is_closed());
        waiting.push(waiter);
        woken
    }

    /// Wakes the first in line that can take a run.
    pub(crate) fn wake_one(&self, wanted: &Wanted<'_>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |waiter: &Waiter| {
            waiter.pool == wanted.pool
                && !waiter.wake.is_closed()
                && waiter.abilities.fit(wanted.isolation, wanted.agent_kind, wanted.posture)
        };
        while let Some(place) = waiting.iter().position(fits) {
            // One that left in this moment is no answer; the next in line is.
            if waiting.remove(place).wake.send(()).is_ok() {
                return;
            }
        }
    }

    /// Wakes everyone who waits for a pool.
    pub(crate) fn wake_pool(&self, pool: &str) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for waiter in waiting.extract_if(.., |waiter| waiter.pool == pool) {
            let _ = waiter.wake.send(());
        }
    }

    /// Returns how many wait.
    pub(crate) fn count(&self) -> usize {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.iter().filter(|waiter| !waiter.wake.is_closed()).count()
    }
}

/// Tells that a run changed.
#[derive(Debug)]
pub(crate) struct Changes {
    sender: broadcast::Sender<RunId>,
}

impl Changes {
    pub(crate) fn new() -> Self {
        Self { sender: broadcast::Sender::new(BACKLOG) }
    }

    /// Tells everyone who listens; nobody listening is no error.
    pub(crate) fn tell(&self, run: &RunId) {
        let _ = self.sender.send(run.clone());
    }

    pub(crate) fn listen(&self) -> broadcast::Receiver<RunId> {
        self.sender.subscribe()
    }
}

/// Waits until `run` may have changed.
pub(crate) async fn changed(listener: &mut broadcast::Receiver<RunId>, run: &RunId) {
    loop {
        match listener.recv().await {
            Ok(changed) if changed == *run => return,
            Ok(_) => {}
            Err(broadcast::error::RecvError::Lagged(_)) => return,
            // The plane is going down; whoever waits has a deadline of its own.
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Waits until the plane goes down.
pub(crate) async fn going_down(draining: &mut watch::Receiver<bool>) {
    // A sender that is gone went down without saying so.
    let _ = draining.wait_for(|is_draining| *is_draining).await;
}
