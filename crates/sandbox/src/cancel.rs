//! A cancellation that a supervisor can wait for beside its other descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// Tells a running backend to stop. Clones speak of the same run.
#[derive(Debug, Clone)]
pub struct Cancel {
    /// Readable from the moment of cancellation on.
    event: Arc<OwnedFd>,
    /// Where a write makes it so.
    bell: Arc<OwnedFd>,
}

impl Cancel {
    /// Returns a cancellation nobody has asked for yet.
    ///
    /// # Errors
    /// The system's error when no descriptor can be had.
    pub fn new() -> io::Result<Self> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self { bell: Arc::clone(&event), event })
    }

    /// Returns a cancellation and the end of a socket that asks for it with a single byte, which
    /// even the handler of a signal can write.
    ///
    /// # Errors
    /// The system's error when no descriptor can be had.
    pub fn with_bell() -> io::Result<(Self, UnixStream)> {
        let (event, bell) = UnixStream::pair()?;
        event.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        let handle = bell.try_clone()?;
        Ok((Self { event: Arc::new(event.into()), bell: Arc::new(bell.into()) }, handle))
    }

    /// Asks the run to stop. Asking twice is the same as asking once.
    pub fn cancel(&self) {
        // A full counter, or a full socket, means it has been asked for already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
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
    use std::io::Write as _;

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

    #[test]
    fn a_byte_on_the_bell_cancels() {
        let (cancel, mut bell) = Cancel::with_bell().unwrap();
        assert!(!cancel.is_cancelled());
        bell.write_all(b"x").unwrap();
        assert!(cancel.is_cancelled());
        let (cancel, _bell) = Cancel::with_bell().unwrap();
        cancel.cancel();
        assert!(cancel.is_cancelled());
    }
}
