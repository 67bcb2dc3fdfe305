//! The words pid 1 and its supervisor exchange over the control socket.
//!
//! Each message is four 32-bit numbers; descriptors travel beside [`Word::Built`].
//! The socket is also the lifeline: when the supervisor's end closes, pid 1 ends everything.

use crate::sys::{self, Errno, Fd};

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// Supervisor: the identity maps are written.
    Mapped,
    /// Supervisor: the program may start.
    Go,
    /// Pid 1: the jail stands; `a` says which descriptors come along, `b` what it sees of itself.
    Built,
    /// Pid 1: the step `a` failed with error `b`.
    Failed,
    /// Pid 1: no candidate could be executed; the last error is `a`.
    NotExecuted,
    /// Pid 1: the program ended with wait status `a`.
    Ended,
    /// Pid 1: the deadline passed.
    Overdue,
    /// Pid 1: no further process can be made.
    Crowded,
    /// Supervisor: end everyone. Only a keeper is told; pid 1 of a jail is killed.
    Stop,
    /// Usher: a socket of family `a` is wanted, listening on port `b` if that is not zero; and
    /// the answer that brings it.
    Socket,
    /// The program's process, just before it executes: `a` is what it sees of itself.
    Observed,
}

impl Word {
    const ALL: [Self; 11] = [
        Self::Mapped,
        Self::Go,
        Self::Built,
        Self::Failed,
        Self::NotExecuted,
        Self::Ended,
        Self::Overdue,
        Self::Crowded,
        Self::Stop,
        Self::Socket,
        Self::Observed,
    ];
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) word: Word,
    pub(crate) a: i32,
    pub(crate) b: i32,
}

impl Message {
    pub(crate) const LENGTH: usize = 12;

    pub(crate) const fn new(word: Word, a: i32, b: i32) -> Self {
        Self { word, a, b }
    }

    pub(crate) fn encode(self) -> [u8; Self::LENGTH] {
        let [w0, w1, w2, w3] = (self.word as u32).to_ne_bytes();
        let [a0, a1, a2, a3] = self.a.to_ne_bytes();
        let [b0, b1, b2, b3] = self.b.to_ne_bytes();
        [w0, w1, w2, w3, a0, a1, a2, a3, b0, b1, b2, b3]
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<4>();
        let [word, a, b] = numbers else { return None };
        if !rest.is_empty() {
            return None;
        }
        let index = u32::from_ne_bytes(*word);
        let word = Word::ALL.into_iter().find(|word| *word as u32 == index)?;
        Some(Self { word, a: i32::from_ne_bytes(*a), b: i32::from_ne_bytes(*b) })
    }

    pub(crate) fn send(self, socket: Fd, fds: &[Fd]) -> sys::Result<()> {
        sys::send(socket, &self.encode(), fds)
    }
}

/// Flag in [`Word::Built`]: the mount namespace comes after the scratch directory.
pub(crate) const WITH_MOUNTS: i32 = 2;
/// Flag in [`Word::Built`]: a terminal comes between the scratch directory and the listeners.
pub(crate) const WITH_TERMINAL: i32 = 1;

macro_rules! steps {
    ($($name:ident = $text:literal,)*) => {
        /// A step of building a jail, named in errors.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Step {
            $(#[doc = $text] $name,)*
        }

        impl Step {
            const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the step in words.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

steps! {
    Prepare = "preparing the launch",
    Clone = "clone3 into new namespaces",
    Groups = "joining control groups",
    Maps = "mapping user and group ids",
    Credentials = "taking on the mapped ids",
    Lifeline = "tying the jail to its supervisor",
    Network = "leaving the host's network",
    Loopback = "bringing up the loopback network",
    Listen = "opening listeners inside the jail",
    Hostname = "naming the machine",
    PrivateMounts = "making mounts private",
    Scratch = "making the scratch filesystem",
    Skeleton = "creating the root's skeleton",
    CloneMount = "cloning a host directory",
    ChangedPath = "checking that a host path is still the same file",
    Restrict = "restricting a mount",
    OverlayMount = "mounting the overlay",
    ProcMount = "mounting the process filesystem",
    TerminalMount = "mounting the terminals",
    Attach = "attaching a mount",
    Pivot = "pivoting to the new root",
    Terminal = "opening the terminal",
    Handshake = "talking to the jail",
    Init = "executing the init program",
    Spawn = "cloning the program's process",
    Stdio = "placing the standard descriptors",
    Session = "starting a session",
    Keyring = "joining a new session keyring",
    Rlimits = "setting limits",
    Capabilities = "dropping capabilities",
    NoNewPrivileges = "forbidding new privileges",
    Landlock = "applying Landlock",
    Seccomp = "installing the system call filter",
    Directory = "entering the working directory",
    Died = "the jail ended unexpectedly",
}

impl Step {
    pub(crate) fn from_index(index: i32) -> Self {
        let found = Self::ALL.iter().copied().find(|step| *step as i32 == index);
        found.unwrap_or(Self::Died)
    }
}

/// A step that failed, inside the jail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) errno: Errno,
}

/// Names the step an error belongs to.
pub(crate) trait At<T> {
    fn at(self, step: Step) -> Result<T, Failure>;
}

impl<T> At<T> for sys::Result<T> {
    fn at(self, step: Step) -> Result<T, Failure> {
        self.map_err(|errno| Failure { step, errno })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire_and_garbage_does_not() {
        for word in Word::ALL {
            let message = Message::new(word, -3, 70_000);
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        assert_eq!(Message::decode(&[0; 11]), None);
        assert_eq!(Message::decode(&[255; 12]), None);
        assert_eq!(Step::from_index(Step::Seccomp as i32), Step::Seccomp);
        assert_eq!(Step::from_index(-1), Step::Died);
    }
}
