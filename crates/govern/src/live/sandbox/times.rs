//! When a sandbox ends, pauses and goes on.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use warrant_plane::doors::{AtEnd, DoorName, EndsCommands, Life, Process, Wakes, WorkshopError};

use super::{CLEAR_WAIT, Living, State, check_end};
use crate::live::dated::DatedMoment;
use crate::live::life::Reason;

impl Living {
    /// Returns the present moment on the clocks of its plane.
    pub(in crate::live) fn now(&self) -> DatedMoment {
        DatedMoment::now(&*self.time)
    }

    /// Whether its end has come: that of its time, unless it is to be paused then; that of policy
    /// in any case.
    pub(in crate::live) fn is_due(&self, now: DatedMoment) -> bool {
        let state = self.state();
        let waits = self.wanted.at_end != AtEnd::Ends || state.life == Life::Paused;
        let due = if waits && self.is_kept_paused() { self.ends_at_most } else { state.ends_at };
        due.is_reached(now)
    }

    /// Whether it is kept beyond its time while it is paused, as the protocol has it.
    fn is_kept_paused(&self) -> bool {
        self.wanted.at_end != AtEnd::Ends || self.wanted.door == DoorName::E2b
    }

    /// Whether its time is over and it is to be paused.
    pub(in crate::live) fn is_to_pause(&self, now: DatedMoment) -> bool {
        let state = self.state();
        let is_over = state.life == Life::Running && state.ends_at.is_reached(now);
        match self.wanted.at_end {
            AtEnd::Ends => false,
            AtEnd::Pauses(EndsCommands::No, _) => is_over && state.running == 0,
            AtEnd::Pauses(EndsCommands::Yes, _) => is_over,
        }
    }

    /// Pauses it because its time is over.
    pub(in crate::live) fn pause_due(&self) {
        let mut state = self.state();
        // A command that came meanwhile keeps what it has in memory.
        let AtEnd::Pauses(ends, _) = self.wanted.at_end else { return };
        if ends == EndsCommands::No && state.running > 0 {
            return;
        }
        state.enter(Life::Paused, self.now());
        drop(state);
        self.end_commands();
    }

    /// Lets it take calls again; when its time is over, for as long as it was wished for.
    pub(in crate::live) fn wake(&self) {
        self.wake_up(&mut self.state());
    }

    fn wake_up(&self, state: &mut State) {
        let now = self.now();
        state.enter(Life::Running, now);
        if self.is_kept_paused() && state.ends_at.is_reached(now) {
            let ms = self.wanted.timeout_ms.unwrap_or(self.longest_ms);
            state.ends_at = now.plus_ms(ms).earlier(self.ends_at_most);
        }
    }

    /// Wakes it for a call, if it wakes by itself.
    pub(super) fn wake_for_call(&self, state: &mut State) {
        let wakes = matches!(self.wanted.at_end, AtEnd::Pauses(_, Wakes::ByCalls));
        if wakes && state.life == Life::Paused && !self.bell.is_rung() {
            self.wake_up(state);
        }
    }

    pub(in crate::live) fn is_idle(&self, now: DatedMoment) -> bool {
        let state = self.state();
        let Some(idle_ms) = state.idle_ms.filter(|ms| *ms > 0) else { return false };
        state.life == Life::Running
            && state.running == 0
            && state.touched.plus_ms(idle_ms).is_reached(now)
    }

    /// Whether it is paused and nobody resumed it in the time that was set for that.
    pub(in crate::live) fn is_left(&self, now: DatedMoment) -> bool {
        let state = self.state();
        let ends_at = state.paused_at.zip(state.paused_end_ms);
        ends_at.is_some_and(|(paused_at, ms)| paused_at.plus_ms(ms).is_reached(now))
    }

    pub(in crate::live) fn pause_idle(&self) {
        let now = self.now();
        self.state().enter(Life::Paused, now);
    }

    pub(in crate::live) fn set_idle(&self, ms: Option<u64>) {
        let mut state = self.state();
        state.idle_ms = ms;
        state.touched = self.now();
    }

    pub(in crate::live) fn set_paused_end(&self, ms: Option<u64>) {
        self.state().paused_end_ms = ms;
    }

    pub(in crate::live) fn set_labels(&self, labels: BTreeMap<String, String>) {
        self.state().labels = labels;
    }

    pub(in crate::live) fn touch(&self) {
        let now = self.now();
        self.state().touched = now;
    }

    /// Ends it and waits until its life is sealed.
    pub(in crate::live) fn finish(&self, reason: Reason) {
        self.bell.ring(reason);
        let mut state = self.state();
        while !state.is_sealed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Fails when its end cannot be so many milliseconds from now.
    pub(in crate::live) fn check_extension(&self, ms: u64) -> Result<(), WorkshopError> {
        check_end(ms, self.longest_ms)?;
        let wanted = self.now().plus_ms(ms);
        if wanted.earlier(self.ends_at_most) != wanted {
            let until = self.ends_at_most.date();
            let message = format!("policy lets this sandbox live until {until}");
            return Err(WorkshopError::Invalid(message));
        }
        Ok(())
    }

    pub(in crate::live) fn extend(&self, ms: u64) -> Result<(), WorkshopError> {
        self.check_extension(ms)?;
        let mut state = self.state();
        state.ends_at = self.now().plus_ms(ms).earlier(self.ends_at_most);
        state.touched = self.now();
        Ok(())
    }

    pub(in crate::live) fn pause(&self, ends: EndsCommands) -> Result<(), WorkshopError> {
        let mut state = self.state();
        if ends == EndsCommands::No {
            state = self.when_nothing_runs(state)?;
        }
        state.enter(Life::Paused, self.now());
        drop(state);
        self.end_commands();
        Ok(())
    }

    /// Waits for commands that are over or were told to end: whoever killed one, or has just heard
    /// of its end, finds it gone. Fails when another goes on.
    fn when_nothing_runs<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>, WorkshopError> {
        let began = std::time::Instant::now();
        while state.running > 0 {
            let goes_on =
                |process: &Arc<Process>| process.end().is_none() && !process.grip().is_ending();
            if state.processes.iter().any(goes_on) || began.elapsed() >= CLEAR_WAIT {
                let message = "a command is running and its memory cannot be kept: end it first";
                return Err(WorkshopError::Busy(message.to_owned()));
            }
            let waited = self.changed.wait_timeout(state, Duration::from_millis(100));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state)
    }
}
