//! What was lowered for a plan, kept for the run that most likely follows at once.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::namespace::lower::Lowered;
use crate::{Invocation, Stdin};

/// How long it counts.
const LIFE: Duration = Duration::from_millis(20);

/// The last plan that was made, until it runs.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    last: Mutex<Option<(Invocation, Lowered, Instant)>>,
}

impl Prepared {
    /// Keeps what was lowered just now.
    pub(crate) fn keep(&self, invocation: &Invocation, lowered: Lowered) {
        // What a program reads does not change where it runs, and is not to be held open.
        let invocation = Invocation { stdin: Stdin::Empty, ..invocation.clone() };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((invocation, lowered, Instant::now()));
    }

    /// Takes what was lowered for the very same invocation a moment ago.
    pub(crate) fn take(&self, wanted: &Invocation) -> Option<Lowered> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (invocation, lowered, at) = last?;
        // SECURITY: secrets in the workspace are searched for while lowering.
        let is_fresh = at.elapsed() < LIFE;
        let is_same = invocation.command == wanted.command
            && invocation.cwd == wanted.cwd
            && invocation.env == wanted.env
            && invocation.tty == wanted.tty
            && invocation.files == wanted.files
            && invocation.network == wanted.network;
        (is_fresh && is_same).then_some(lowered)
    }
}
