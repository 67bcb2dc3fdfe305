//! The runs that this process performs right now, so that somebody outside can have one stopped.
//!
//! A process that performs one run is told by a signal and stops it. One that performs many
//! (`warrant mcp`) looks, when it is told, which of them the store says are to be stopped.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use warrant_protocol::{RunId, RunState};
use warrant_sandbox::Cancel;

use crate::desk::Desk;

static RUNS: Mutex<BTreeMap<RunId, Cancel>> = Mutex::new(BTreeMap::new());

fn runs() -> MutexGuard<'static, BTreeMap<RunId, Cancel>> {
    RUNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run is listed for as long as this lives.
pub(crate) struct Listed(RunId);

impl Listed {
    pub(crate) fn new(run: &RunId, cancel: &Cancel) -> Self {
        runs().insert(run.clone(), cancel.clone());
        Self(run.clone())
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        runs().remove(&self.0);
    }
}

impl Desk {
    /// Stops those runs of this process that somebody wants stopped.
    pub fn heed_stops(&self) {
        let listed: Vec<(RunId, Cancel)> =
            runs().iter().map(|(run, cancel)| (run.clone(), cancel.clone())).collect();
        for (run, cancel) in listed {
            let row = self.plane().store().run(&run);
            if row.is_ok_and(|row| row.state == RunState::Stopping) {
                cancel.cancel();
            }
        }
    }
}
