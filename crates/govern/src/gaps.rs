//! Paths that a command names and was not given: found before anybody judges, so that people can be
//! asked about them as part of the request.

use warrant_protocol::request::FileGrants;
use warrant_protocol::{Decision, Isolation};
use warrant_runner::preview::needed_paths;

use crate::ask::Ask;
use crate::desk::{Desk, DeskError};

impl Desk {
    /// Returns an ask for a program that sees this machine's paths, with the paths it names and
    /// was not given: when policy lets people be asked about them, they are part of the request,
    /// and so of what is approved. Otherwise it is the same ask, and the command will be denied
    /// where it is fitted.
    ///
    /// # Errors
    /// [`DeskError::System`] without a clock.
    pub fn with_gaps(&self, ask: Ask) -> Result<Ask, DeskError> {
        let files = self.policy().and_then(|policy| policy.controls().files.as_ref());
        if files.is_none_or(|files| files.gaps.is_none()) {
            return Ok(ask);
        }
        let isolation = ask.request.isolation.unwrap_or(Isolation::Namespace);
        let Some(gaps) = needed_paths(&ask.request, &ask.workspace, isolation) else {
            return Ok(ask);
        };
        let mut asking = ask.clone();
        let none = FileGrants { read: Vec::new(), write: Vec::new(), gaps: None };
        asking.request.files.get_or_insert(none).gaps = Some(gaps);
        match self.judge(&asking)?.summary.decision {
            Decision::Ask => Ok(asking),
            Decision::Allow | Decision::Deny => Ok(ask),
        }
    }
}
