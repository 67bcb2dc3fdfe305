//! Sockets of a running jail's network, asked for from outside.
//!
//! Pid 1 is in that network and stays there, so the supervisor needs no way in: it says over a
//! socket of their own what it wants and gets a descriptor back (`init/watch.rs` answers). Nobody
//! inside holds that socket.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::launch::{LaunchError, garbled, receive, socket_pair};
use crate::message::{Message, Step, Word};
use crate::sys::Errno;

/// A kind of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// 127.0.0.1 and the like.
    V4,
    /// ::1 and the like.
    V6,
}

/// What is wanted of a jail's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// A stream socket that is not connected yet.
    Stream(Family),
    /// A socket that listens on a port of loopback.
    Listener(Family, u16),
}

/// The supervisor's end.
#[derive(Debug)]
pub struct Usher {
    socket: OwnedFd,
}

impl Usher {
    /// Returns both ends; the second is for [`crate::Spec::usher`].
    ///
    /// # Errors
    /// The system's error.
    pub fn pair() -> Result<(Self, OwnedFd), Errno> {
        let (socket, theirs) = socket_pair()?;
        Ok((Self { socket }, theirs))
    }

    /// Returns a socket of the jail's network, as long as its program runs. Waits for its start.
    ///
    /// # Errors
    /// What the kernel said, or that the jail is gone.
    pub fn ask(&mut self, wish: Wish) -> Result<OwnedFd, LaunchError> {
        let (family, port) = match wish {
            Wish::Stream(family) => (family, 0),
            Wish::Listener(family, port) => (family, port),
        };
        let failed = |errno| LaunchError { step: Step::Handshake, errno };
        let message = Message::new(Word::Socket, family.number(), i32::from(port));
        message.send(self.socket.as_raw_fd(), &[]).map_err(failed)?;
        let mut bytes = [0; Message::LENGTH];
        let (length, mut fds) = receive(self.socket.as_raw_fd(), &mut bytes).map_err(failed)?;
        match (bytes.get(..length).and_then(Message::decode), fds.pop()) {
            (Some(Message { word: Word::Socket, .. }), Some(socket)) => Ok(socket),
            (Some(Message { word: Word::Failed, a, b }), _) => {
                Err(LaunchError { step: Step::from_index(a), errno: Errno(b) })
            }
            (None, _) if length == 0 => {
                Err(LaunchError { step: Step::Died, errno: Errno(libc::ECHILD) })
            }
            _ => Err(garbled()),
        }
    }
}

impl Family {
    const fn number(self) -> i32 {
        match self {
            Self::V4 => libc::AF_INET,
            Self::V6 => libc::AF_INET6,
        }
    }
}
