//! A cancellation that a supervisor can wait for beside its other descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// Tells a running backend to stop. Clones speak of the same run.
#[derive(Debug, Clone)]
pub struct Cancel {
    event: Arc<OwnedFd>,
}

impl Cancel {
    /// Returns a cancellation nobody has asked for yet.
    ///
    /// # Errors
    /// The system's error when no descriptor can be had.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event: Arc::new(event) })
    }

    /// Asks the run to stop. Asking twice is the same as asking once.
    pub fn cancel(&self) {
        // A full counter means it has been asked for already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Takes the cancellation back, for descriptors that ring more than once.
    pub(crate) fn reset(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    /// Returns whether the run was asked to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(ready) if ready > 0)
    }
}

impl AsFd for Cancel {
    /// Returns a descriptor that is readable from the moment of cancellation on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_sees_the_cancellation() {
        let cancel = Cancel::new().unwrap();
        let clone = cancel.clone();
        assert!(!clone.is_cancelled());
        cancel.cancel();
        cancel.cancel();
        assert!(clone.is_cancelled());
    }
}
