//! Which local tiers there are on this machine.

use std::sync::Arc;

use crate::{Backend, Namespace, Process};

/// Returns the local tiers that start real programs, the strongest first. Nothing is tried; what
/// each holds here is its posture.
#[must_use]
pub fn detect() -> Vec<Arc<dyn Backend>> {
    vec![Arc::new(Namespace::new()), Arc::new(Process::new())]
}

/// Returns the strongest local tier whose boundary can be built here.
///
/// Building it is tried once. The process tier always can be, and says in its posture how little
/// it holds: whoever demands more must compare.
#[must_use]
pub fn strongest() -> Arc<dyn Backend> {
    let namespace = Namespace::new();
    if namespace.probe().enforces("files.write") {
        Arc::new(namespace)
    } else {
        Arc::new(Process::new())
    }
}
