//! Whether the store can be written now. A plane whose store cannot be written goes on answering
//! reads, is not ready, and notices by itself when writing works again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use warrant_protocol::Moment;

use super::service::PlaneService;
use crate::embedded::EmbeddedError;
use crate::store::StoreError;

/// How old the last look may be when somebody asks whether the plane is ready.
pub(crate) const READY_AGE: Duration = Duration::from_secs(1);

/// How old the last look may be when nobody asks.
const QUIET_AGE: Duration = Duration::from_secs(15);

/// What was last seen of the store.
#[derive(Debug, Default)]
pub(crate) struct StoreWatch {
    seen: Mutex<StoreSighting>,
}

#[derive(Debug, Default)]
struct StoreSighting {
    at: Option<Moment>,
    problem: Option<StoreProblem>,
}

/// Why the store cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreProblem {
    /// There is no room left.
    Full,
    /// Its file system is read-only.
    ReadOnly,
    /// Something else failed; the log says what.
    Failed,
}

impl StoreProblem {
    fn of(error: &EmbeddedError) -> Self {
        match error {
            EmbeddedError::NoRoom { .. } | EmbeddedError::Store(StoreError::Full(_)) => Self::Full,
            EmbeddedError::Store(StoreError::Sql(error))
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ReadOnly) =>
            {
                Self::ReadOnly
            }
            _ => Self::Failed,
        }
    }

    /// Returns the word for programs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "store_full",
            Self::ReadOnly => "store_read_only",
            Self::Failed => "store_failed",
        }
    }

    /// Returns the sentence for people; it names nothing of the machine.
    pub(crate) const fn sentence(self) -> &'static str {
        match self {
            Self::Full => "the disk that holds the store is full; nothing can be recorded",
            Self::ReadOnly => "the store's file system is read-only; nothing can be recorded",
            Self::Failed => "the store cannot be written; the plane's log says why",
        }
    }

    /// Returns what `/v1/ready` answers about it.
    pub(crate) fn to_json(self) -> Value {
        json!({"writable": false, "reason": self.as_str(), "message": self.sentence()})
    }
}

impl PlaneService {
    /// Returns what was last seen, without looking.
    pub(crate) fn store_problem(&self) -> Option<StoreProblem> {
        self.store_watch.seen.lock().unwrap_or_else(PoisonError::into_inner).problem
    }

    /// Looks whether the store can be written, unless the last look is younger than `age`. While
    /// there is a problem every look counts for a second only, so that its end is noticed.
    pub(crate) fn check_store(&self, age: Duration) -> Option<StoreProblem> {
        let now = self.moment();
        let mut seen = self.store_watch.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let age = if seen.problem.is_some() { age.min(READY_AGE) } else { age };
        let is_fresh = |at: Moment| now.since(at) < age;
        if seen.at.is_some_and(is_fresh) {
            return seen.problem;
        }
        let checked = self.plane.check_writable();
        seen.at = Some(now);
        let before = seen.problem;
        seen.problem = checked.as_ref().err().map(StoreProblem::of);
        match (&checked, before, seen.problem) {
            (Err(error), None, Some(problem)) => {
                self.metrics.count("store.became_unwritable");
                tracing::error!(
                    reason = problem.as_str(),
                    error = %with_causes(error),
                    "the store cannot be written; reading goes on, nothing new is accepted"
                );
            }
            (Ok(()), Some(problem), None) => {
                tracing::info!(reason = problem.as_str(), "the store can be written again");
            }
            _ => {}
        }
        seen.problem
    }

    /// As [`PlaneService::check_store`], for the plane's own regular look.
    pub(crate) fn check_store_quietly(&self) -> Option<StoreProblem> {
        self.check_store(QUIET_AGE)
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
