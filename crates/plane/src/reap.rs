//! Seals what a killed process left behind: every run that was started has exactly one receipt.

use std::fs;

use warrant_protocol::event::FailureClass;
use warrant_protocol::{Event, Outcome, RunId, RunState, Timestamp};

use crate::embedded::{EmbeddedError, EmbeddedPlane};
use crate::liveness;
use crate::notary::Refusal;
use crate::random;
use crate::reception::sealing;
use crate::store::{LiveRun, RunRow, StoreError};

impl EmbeddedPlane {
    /// Seals every run whose process is gone, and what waited for approval too long.
    /// Returns which ones.
    ///
    /// # Errors
    /// [`EmbeddedError`] when the store failed; what was sealed until then stays sealed.
    pub fn seal_lost(&self) -> Result<Vec<RunId>, EmbeddedError> {
        let live = self.store().live()?;
        let mut sealed = Vec::new();
        if live.is_empty() {
            return Ok(sealed);
        }
        let now = random::now()?;
        for run in live {
            let is_over = match run.state {
                RunState::AwaitingApproval => run.deadline.is_some_and(|until| until <= now),
                _ => self.is_abandoned(&run, now)?,
            };
            if is_over && self.seal_one(&run, now)? {
                self.remove_session(&run.id);
                sealed.push(run.id);
            }
        }
        liveness::sweep(&self.home().data().join("alive"))?;
        Ok(sealed)
    }

    /// Whether nobody works on a run any more. A queued run of this machine belongs to the
    /// process that submitted it; the contract's end is its last deadline.
    fn is_abandoned(&self, run: &LiveRun, now: Timestamp) -> Result<bool, EmbeddedError> {
        match &run.owner {
            Some(owner) if owner == self.sign_of_life() => Ok(false),
            Some(owner) => Ok(liveness::is_gone(&self.home().data().join("alive"), owner)),
            None => {
                let row = self.store().run(&run.id)?;
                Ok(!self.contract_of(&row)?.is_live(now))
            }
        }
    }

    /// Seals one run; false when somebody else was faster.
    fn seal_one(&self, run: &LiveRun, now: Timestamp) -> Result<bool, EmbeddedError> {
        let row = self.store().run(&run.id)?;
        let sealed = match run.state {
            RunState::AwaitingApproval => return self.expire(&row),
            RunState::Queued => {
                let contract = self.contract_of(&row)?;
                let expires_at = contract.body().expires_at;
                let events = vec![Event::ContractExpired { expires_at }];
                let message = "the contract expired before anything started";
                (RunState::Expired, contract, events, (Outcome::Failed, message))
            }
            RunState::Leased => {
                let contract = self.contract_of(&row)?;
                let message = "the process that held this run ended before it started";
                (RunState::Failed, contract, Vec::new(), (Outcome::Failed, message))
            }
            _ => {
                let contract = self.contract_of(&row)?;
                let lost = Event::RunLost { epoch: row.epoch, last_heard_at: row.updated_at };
                let message = "the process that ran this is gone";
                (RunState::Lost, contract, vec![lost], (Outcome::Lost, message))
            }
        };
        let (state, contract, events, (outcome, message)) = sealed;
        let mut chain = self.chain_of(&run.id, &contract)?;
        let from = chain.events().len();
        for event in &events {
            chain.append(now, event).map_err(crate::notary::NotaryError::from)?;
        }
        let refusal = Refusal {
            events: Vec::new(),
            outcome,
            failure: FailureClass::SessionFailed,
            message: message.to_owned(),
            cancelled_by: None,
        };
        let sealed = self.notary(now).seal(contract, chain, &refusal)?;
        let sealing = sealing(&sealed, state, from.max(1), now);
        self.keep_seal(&row, sealing)
    }

    pub(crate) fn keep_seal(
        &self,
        row: &RunRow,
        sealing: crate::store::Sealing,
    ) -> Result<bool, EmbeddedError> {
        match self.store().seal(&row.id, row.epoch, sealing) {
            Ok(()) => Ok(true),
            Err(StoreError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes what a run kept on disk while it was running.
    fn remove_session(&self, run: &RunId) {
        let dir = self.home().sessions().join(run.as_str());
        // Leftovers cost space, not truth; the next start tries again.
        let _ = fs::remove_dir_all(dir);
    }
}
