//! What runs in a sandbox: its commands, their sessions, and the directories that are watched.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use warrant_plane::doors::{Life, Lookout, Process, ShellSession, WorkshopError};

use super::{CLEAR_WAIT, Living, State};
use crate::live::files::Ground;
use crate::live::lookout::MOST_OF_A_SANDBOX;
use crate::live::shell::{Left, Shell};

/// So many commands that ended are remembered, with their output.
const REMEMBERED: usize = 64;
/// Bytes of output that are kept of the commands of one sandbox that ended.
const MOST_KEPT_BYTES: usize = 32 * 1024 * 1024;
/// Bytes that are kept of them while somebody reads, who may never do.
const MOST_ATTENDED_BYTES: usize = 128 * 1024 * 1024;

/// The place of one command; given back when it is over.
pub(in crate::live) struct Seat {
    living: Arc<Living>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.living.leave();
    }
}

impl State {
    /// Forgets the output of commands that ended, the oldest first, as far as it is too much; where
    /// somebody attends to it, only when it is far too much.
    ///
    /// SECURITY: whoever attends and never reads could have everything kept.
    fn forget_outputs(&self) {
        let mut kept = 0;
        for process in self.processes.iter().rev().filter(|process| process.end().is_some()) {
            kept += process.kept_bytes();
            if kept > MOST_ATTENDED_BYTES {
                process.abandon_output();
            } else if kept > MOST_KEPT_BYTES {
                process.forget_output();
            }
        }
    }
}

impl Living {
    pub(in crate::live) fn processes(&self) -> Vec<Arc<Process>> {
        self.state().processes.clone()
    }

    /// Returns the directories that are watched.
    pub(in crate::live) fn lookouts(&self) -> Vec<Arc<Lookout>> {
        let mut state = self.state();
        state.lookouts.retain(|lookout| !lookout.is_ended());
        state.lookouts.clone()
    }

    /// Fails when no more directories are watched here.
    pub(in crate::live) fn check_lookouts(&self) -> Result<(), WorkshopError> {
        match self.lookouts().len() < MOST_OF_A_SANDBOX {
            true => Ok(()),
            false => Err(WorkshopError::Busy(format!(
                "{MOST_OF_A_SANDBOX} directories are watched already; end one first"
            ))),
        }
    }

    /// Returns a name that no other watch of this sandbox has.
    pub(in crate::live) fn next_lookout(&self) -> String {
        let mut state = self.state();
        let number = state.next_lookout;
        state.next_lookout += 1;
        format!("watch-{number}")
    }

    /// Keeps a watch, which ends with the sandbox at the latest.
    pub(in crate::live) fn keep_lookout(
        &self,
        lookout: &Arc<Lookout>,
    ) -> Result<(), WorkshopError> {
        let mut state = self.state();
        // The bell is rung before what is kept here is ended.
        if self.bell.is_rung() {
            lookout.end();
            return Err(WorkshopError::NoSandbox);
        }
        state.lookouts.push(Arc::clone(lookout));
        Ok(())
    }

    /// Returns where the shell of a session stands now.
    pub(in crate::live) fn shell(&self, session: &ShellSession) -> Shell {
        let mut shell = self.state().shells.enter(session);
        let ground = Ground { directory: &self.directory, home: &self.wanted.home };
        // A directory that is gone is none to start in.
        let is_gone = |cwd: &String| ground.has_directory(cwd) == Some(false);
        if shell.cwd.as_ref().is_some_and(is_gone) {
            shell.cwd = None;
        }
        shell
    }

    /// Takes up what a command of a session left.
    pub(in crate::live) fn follow_shell(&self, session: &str, left: &Left) {
        self.state().shells.follow(session, left);
    }

    pub(in crate::live) fn forget_shell(&self, session: &str) {
        self.state().shells.forget(session);
    }

    /// Fails unless it takes calls.
    pub(in crate::live) fn check_open(&self) -> Result<(), WorkshopError> {
        let mut state = self.state();
        self.wake_for_call(&mut state);
        match state.life {
            Life::Paused => Err(WorkshopError::Paused),
            Life::Running => Ok(()),
        }
    }

    /// Takes a seat for a command before it is judged; none when `most` are taken, or when the
    /// sandbox is paused or ending.
    ///
    /// INVARIANT: whatever is permitted has a seat, so that it starts and has its receipt, and the
    /// end of the sandbox waits for it.
    pub(in crate::live) fn reserve(self: &Arc<Self>, most: usize) -> Result<Seat, WorkshopError> {
        let mut state = self.state();
        self.wake_for_call(&mut state);
        match state.life {
            _ if self.bell.is_rung() => Err(WorkshopError::NoSandbox),
            Life::Paused => Err(WorkshopError::Paused),
            Life::Running if state.running >= most => {
                Err(WorkshopError::Busy(format!("{most} commands run already; end one first")))
            }
            Life::Running => {
                state.running += 1;
                Ok(Seat { living: Arc::clone(self) })
            }
        }
    }

    /// Returns the number of the next command.
    pub(in crate::live) fn next_pid(&self) -> u32 {
        let mut state = self.state();
        let pid = state.next_pid;
        state.next_pid = state.next_pid.wrapping_add(1).max(1);
        pid
    }

    /// Takes a command that starts now and has a seat.
    pub(in crate::live) fn enter(&self, process: &Arc<Process>) {
        let mut state = self.state();
        let ended = state.processes.iter().filter(|process| process.end().is_some()).count();
        if ended >= REMEMBERED
            && let Some(oldest) = state.processes.iter().position(|process| process.end().is_some())
        {
            state.processes.remove(oldest).abandon_output();
        }
        state.processes.push(Arc::clone(process));
        state.commands += 1;
    }

    fn leave(&self) {
        let mut state = self.state();
        state.running = state.running.saturating_sub(1);
        state.touched = self.now();
        state.forget_outputs();
        drop(state);
        self.changed.notify_all();
    }

    /// Ends every command and waits for it, as long as the sandbox is paused or ending: what comes
    /// once it was woken is not meant.
    pub(super) fn end_commands(&self) {
        let mut state = self.state();
        let began = std::time::Instant::now();
        let is_meant = |state: &State| state.life == Life::Paused || self.bell.is_rung();
        while state.running > 0 && is_meant(&state) && began.elapsed() < CLEAR_WAIT {
            for process in state.processes.iter().filter(|process| process.end().is_none()) {
                process.grip().kill();
            }
            let waited = self.changed.wait_timeout(state, Duration::from_millis(100));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn clear(&self) -> (u64, u64) {
        self.end_commands();
        let mut state = self.state();
        for lookout in state.lookouts.drain(..) {
            lookout.end();
        }
        (state.commands, state.file_calls)
    }
}
