//! The local backends, by name and by strength.

use std::path::Path;
use std::sync::Arc;

use thiserror::Error;
use warrant_plane::Home;
use warrant_protocol::Isolation;
use warrant_sandbox::hermetic::{Hermetic, Pool, WorkerProgram};
use warrant_sandbox::mock::Mock;
use warrant_sandbox::{Backend, Namespace, Process};

/// Why no backend was chosen.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NoBackend {
    /// Nothing has that name.
    #[error("{0}")]
    Unknown(String),
    /// This machine does not have it.
    #[error(
        "SANDBOX_PROVIDER_UNAVAILABLE: {0} is not available here; see warrant sandbox providers"
    )]
    Unavailable(Isolation),
    /// There is none at all.
    #[error("this machine has no local tier")]
    Nothing,
}

/// Returns the local backends, strongest first, as they are found by trying.
///
/// For a process that lives: after its first hermetic run one worker waits for the next.
#[must_use]
pub fn local() -> Vec<Arc<dyn Backend>> {
    all(Namespace::new(), Hermetic::warm(worker(1)))
}

/// Returns the local backends, strongest first; that the first one holds is remembered in this
/// home for a short while, so that not every process has to build a boundary before its own.
#[must_use]
pub fn local_of(home: &Home) -> Vec<Arc<dyn Backend>> {
    local_at(&home.data())
}

/// Returns the local backends of the home with this directory of data, as [`local_of`] does.
#[must_use]
pub fn local_at(data: &Path) -> Vec<Arc<dyn Backend>> {
    let hermetic = Hermetic::new(worker(0)).remembering(data.join("trial-hermetic"));
    all(Namespace::new().remembering(data.join("trial")), hermetic)
}

fn all(namespace: Namespace, hermetic: Hermetic) -> Vec<Arc<dyn Backend>> {
    vec![
        Arc::new(namespace),
        Arc::new(hermetic),
        Arc::new(Process::new()),
        Arc::new(Mock::new(worker(0))),
    ]
}

fn worker(waiting: usize) -> Pool {
    Pool::new(WorkerProgram::this(), waiting)
}

/// Returns the backend a person named, or the strongest that a probe confirms.
///
/// # Errors
/// [`NoBackend`] when there is none.
pub fn choose<'a>(
    backends: &'a [Arc<dyn Backend>],
    name: Option<&str>,
) -> Result<&'a Arc<dyn Backend>, NoBackend> {
    let Some(name) = name else { return strongest(backends) };
    let isolation: Isolation =
        name.parse().map_err(|unknown| NoBackend::Unknown(format!("{unknown}")))?;
    let mut all = backends.iter();
    all.find(|backend| backend.isolation() == isolation).ok_or(NoBackend::Unavailable(isolation))
}

/// A tier counts when its probe confirms that files and network are held. Where none does it is
/// the first one, whose runs are refused for that, with a receipt; never a weaker one.
fn strongest(backends: &[Arc<dyn Backend>]) -> Result<&Arc<dyn Backend>, NoBackend> {
    let holds = |backend: &&Arc<dyn Backend>| {
        backend.isolation() == Isolation::Namespace
            && backend.probe().lacking(["files.read", "files.write", "network"]).is_empty()
    };
    backends.iter().find(holds).or(backends.first()).ok_or(NoBackend::Nothing)
}
