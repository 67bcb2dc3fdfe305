//! What is checked: a way to open fresh handles to one backend, and what it says it can do.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use warrant_protocol::Timestamp;
use warrant_sandbox::Backend;

use crate::EvidenceKeys;

/// Opens a fresh handle to a backend.
pub type Open = Box<dyn Fn() -> io::Result<Arc<dyn Backend>> + Send + Sync>;

/// Opens a handle in which one thing goes wrong, if the subject can make it go wrong.
pub type Inject = Box<dyn Fn(Fault) -> Option<Arc<dyn Backend>> + Send + Sync>;

/// One backend under examination.
pub struct Subject {
    /// The provider's name, as the report tells it.
    pub provider: String,
    /// Opens a fresh handle.
    pub open: Open,
    /// Opens a handle with a fault; absent where nothing can be made to go wrong.
    pub inject: Option<Inject>,
    /// What it says it can do. A check holds it to that.
    pub capabilities: Capabilities,
    /// A directory for the checks; every user of the machine should be able to enter it, so that
    /// a file the program cannot read is one the boundary hides.
    pub scratch: PathBuf,
    /// Tells the time that goes into the evidence.
    pub clock: fn() -> Timestamp,
    /// Signs the evidence the checks make of the runs.
    pub keys: EvidenceKeys,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("provider", &self.provider)
            .field("capabilities", &self.capabilities)
            .field("scratch", &self.scratch)
            .finish_non_exhaustive()
    }
}

/// What a subject can do at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether it starts programs, or only interprets scripts.
    pub starts_programs: bool,
    /// Where the workspace is.
    pub workspace: WorkspaceKind,
    /// Whether somebody else's machine answers: then faults of the wire must be injected.
    pub is_remote: bool,
    /// What of a program's output arrives.
    pub output: OutputFidelity,
}

/// What of a program's output arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFidelity {
    /// Every byte.
    Bytes,
    /// Lines of text, by the provider's protocol: each arrives with an end, also a last one that
    /// had none, and bytes that are no text are replaced.
    Lines,
}

impl OutputFidelity {
    /// Returns what arrives of text that a program printed.
    #[must_use]
    pub fn of_text(self, printed: &[u8]) -> Vec<u8> {
        let mut arriving = printed.to_vec();
        if self == Self::Lines && !printed.is_empty() && !printed.ends_with(b"\n") {
            arriving.push(b'\n');
        }
        arriving
    }
}

/// Where the workspace of a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspaceKind {
    /// The directory of the host that the invocation names.
    Host,
    /// In memory: nothing of the host is seen, and everything is gone at the end.
    Memory,
}

impl Capabilities {
    /// A local backend that starts programs in the host's directory.
    pub const PROGRAMS: Self = Self {
        starts_programs: true,
        workspace: WorkspaceKind::Host,
        is_remote: false,
        output: OutputFidelity::Bytes,
    };

    /// A local backend that interprets scripts over the host's directory.
    pub const INTERPRETER: Self = Self { starts_programs: false, ..Self::PROGRAMS };

    /// A local backend that interprets scripts over files in memory.
    pub const MEMORY: Self = Self { workspace: WorkspaceKind::Memory, ..Self::INTERPRETER };

    /// Somebody else's machine, to which the workspace is copied and back.
    pub const REMOTE: Self = Self { is_remote: true, ..Self::PROGRAMS };
}

/// What can be made to go wrong. The first four are of any backend, the others of a wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// What runs the program dies of a signal.
    Crash,
    /// What runs the program never answers.
    Hang,
    /// The boundary cannot be built.
    BrokenBoundary,
    /// The boundary holds less when the program runs than when it was prepared.
    PostureDegraded,
    /// The provider answers with a server error.
    ServerError,
    /// The provider accepts and never answers.
    ServerHang,
    /// The provider's answer stops in the middle.
    TruncatedAnswer,
    /// The provider's answer is not what it should be.
    MalformedAnswer,
    /// The provider answers for another sandbox.
    WrongSandbox,
    /// The sandbox comes back with another specification.
    OtherSpecOnResume,
    /// The key is no longer good.
    KeyRevoked,
    /// The egress rules are opened after they were looked at.
    EgressOpened,
    /// The image is another one after it was looked at.
    ImageSwapped,
    /// The program was accepted and the connection cut: nobody saw its end.
    ConnectionCut,
}
