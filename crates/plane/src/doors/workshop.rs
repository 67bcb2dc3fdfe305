//! The port between the doors and whoever keeps living sandboxes.
//!
//! ```text
//! create ─► running ─► paused ─► running … ─► destroyed | expired
//! ```
//!
//! Every call is judged by policy and leaves a receipt; its run is named in the answer and in the
//! refusal. All calls may wait and must not be made on a thread of the event loop.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use warrant_protocol::request::ActorRef;
use warrant_protocol::{RunId, Timestamp, error_chain};

use crate::EmbeddedPlane;
use crate::doors::lookout::Lookout;
use crate::doors::process::Process;
use crate::reception::Note;

/// Through which door a call came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DoorName {
    /// The E2B door.
    E2b,
    /// The Daytona door.
    Daytona,
    /// The OpenSandbox door.
    Opensandbox,
    /// The HELM adapter's door.
    Helm,
}

impl DoorName {
    /// Returns the name used in contracts.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::E2b => "e2b",
            Self::Daytona => "daytona",
            Self::Opensandbox => "opensandbox",
            Self::Helm => "helm",
        }
    }
}

impl fmt::Display for DoorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A sandbox that is wished for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Through which door.
    pub door: DoorName,
    /// What the client calls the image; recorded, there is only one here.
    pub template: String,
    /// A name the client gave.
    pub name: Option<String>,
    /// How long it lives, in milliseconds; absent means as long as policy lets it.
    pub timeout_ms: Option<u64>,
    /// What becomes of it then.
    pub at_end: AtEnd,
    /// After how long without a call it is paused, in milliseconds.
    pub idle_ms: Option<u64>,
    /// Variables of every command.
    pub env: BTreeMap<String, String>,
    /// The client's own labels.
    pub labels: BTreeMap<String, String>,
    /// What it may reach.
    pub reach: Reach,
    /// Memory of one command, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processors of one command, in thousandths: its CPU time is at most that share of its time.
    pub cpu_milli: Option<u64>,
    /// Bytes of all its files.
    pub disk_bytes: Option<u64>,
    /// The home directory inside.
    pub home: String,
    /// The user's name inside.
    pub user: String,
}

/// What becomes of a sandbox whose time is over. Whatever it is, it ends when policy says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtEnd {
    /// It ends.
    Ends,
    /// It is paused: at once, or when its commands are over.
    Pauses(EndsCommands, Wakes),
}

/// Whether a call wakes a sandbox that was paused because its time was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakes {
    /// It does.
    ByCalls,
    /// Only who resumes it does.
    WhenResumed,
}

/// What a sandbox may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// Whatever policy lists.
    AsPolicy,
    /// Nothing.
    Nothing,
    /// These hosts, which policy must allow.
    Hosts(Vec<String>),
}

/// A sandbox that lives.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// Its own secret, for protocols that name a sandbox without the door's token.
    pub access_token: String,
    /// The run of its life; the receipt is written when it ends.
    pub run: RunId,
    /// As it was asked for.
    pub wanted: Wanted,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it ends unless it is extended.
    pub ends_at: Timestamp,
    /// The last moment it can be extended to.
    pub ends_at_most: Timestamp,
    /// After how long without a resume it ends when it is paused, in milliseconds.
    pub paused_end_ms: Option<u64>,
    /// When somebody last used it.
    pub used_at: Timestamp,
    /// Whether it takes commands.
    pub life: Life,
    /// The hosts it may reach.
    pub hosts: Vec<String>,
    /// Memory of one command, in bytes, as policy granted it.
    pub memory_bytes: Option<u64>,
    /// Bytes of all its files, as policy granted it.
    pub disk_bytes: Option<u64>,
}

/// What a sandbox used at one moment, as the kernel told of its processes and files.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measure {
    /// When.
    pub at: Timestamp,
    /// How many processors its commands may use together.
    pub cpus: f64,
    /// How much of them they used since the measure before, or since the sandbox began, in
    /// hundredths.
    pub cpu_used_pct: f64,
    /// Memory that belongs to its processes, in bytes.
    pub memory_used: u64,
    /// Memory one command may have, in bytes: as policy granted it, or all of the machine's.
    pub memory_total: u64,
    /// Pages of files that its processes map, in bytes, counted for each.
    pub memory_mapped: u64,
    /// What its files take, in bytes.
    pub disk_used: u64,
    /// What they may take, in bytes: as policy granted it, or all of the file system.
    pub disk_total: u64,
}

/// A sandbox that was changed.
#[derive(Debug, Clone)]
pub struct Changed {
    /// As it is now.
    pub sandbox: Sandbox,
    /// The run with the receipt of the change.
    pub run: RunId,
}

/// Whether a sandbox takes commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It does.
    Running,
    /// Not until it is resumed; its files are kept.
    Paused,
}

/// A command that is wished for.
#[derive(Debug, Clone)]
pub struct Start {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Further variables.
    pub env: BTreeMap<String, String>,
    /// Where it starts; absent means the home directory.
    pub cwd: Option<String>,
    /// When its whole tree is ended, in milliseconds; absent means with the sandbox.
    pub timeout_ms: Option<u64>,
    /// Whether it can be written to.
    pub stdin: bool,
    /// A terminal instead of pipes.
    pub terminal: Option<Terminal>,
    /// The client's own name for it.
    pub tag: Option<String>,
    /// The session whose shell it goes on with.
    pub session: Option<ShellSession>,
    /// The run in which people approved this very command, for this one start.
    pub approved: Option<RunId>,
}

/// A session of commands that go on where the one before them ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellSession {
    /// What tells it from the others of its sandbox.
    pub name: String,
    /// Where its first command starts; absent means the home directory.
    pub cwd: Option<String>,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminal {
    /// Columns.
    pub columns: u16,
    /// Rows.
    pub rows: u16,
}

/// A call on the files of a sandbox. Paths are those inside; relative ones start at home.
#[derive(Debug, Clone)]
pub enum FileCall {
    /// Reads a file.
    Read {
        /// Which one.
        path: String,
    },
    /// Writes a file whole, with its parents.
    Write {
        /// Which one.
        path: String,
        /// What it holds from now on.
        content: bytes::Bytes,
        /// Its permissions.
        mode: Option<u32>,
    },
    /// Lists a directory.
    List {
        /// Which one.
        path: String,
        /// How many levels.
        depth: u32,
    },
    /// Looks at one name.
    Stat {
        /// Which one.
        path: String,
    },
    /// Makes a directory with its parents.
    MakeDirectory {
        /// Which one.
        path: String,
        /// Its permissions.
        mode: Option<u32>,
    },
    /// Renames.
    Move {
        /// What.
        from: String,
        /// To where.
        to: String,
    },
    /// Removes a file, or a directory with everything in it.
    Remove {
        /// Which one.
        path: String,
        /// Whether a directory that is not empty may go.
        recursive: bool,
    },
    /// Changes permissions.
    SetMode {
        /// Of which one.
        path: String,
        /// To what.
        mode: u32,
    },
    /// Watches a directory: what happens in it from now on.
    Watch {
        /// Which one.
        path: String,
        /// Whether the directories below it are watched too.
        recursive: bool,
        /// Whether it is told what a name is after something happened to it.
        entries: bool,
    },
}

/// What a call on files found.
#[derive(Debug, Clone)]
pub enum FileAnswer {
    /// The content of a file.
    Content(bytes::Bytes),
    /// One name.
    Entry(Entry),
    /// The names of a directory.
    Entries(Vec<Entry>),
    /// A directory that is watched now.
    Lookout(Arc<Lookout>),
}

/// One name of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its last segment.
    pub name: String,
    /// Its absolute path inside.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// Its permissions.
    pub mode: u32,
    /// When it was last changed, in nanoseconds since 1970.
    pub modified_ns: i128,
    /// What a link says.
    pub target: Option<String>,
}

/// What a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// Anything else.
    Other,
}

/// Why a call on files found nothing or changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFault {
    /// There is no such name.
    Missing,
    /// The name is taken.
    Exists,
    /// It is a directory.
    IsDirectory,
    /// It is no directory.
    NotDirectory,
    /// The directory is not empty.
    NotEmpty,
    /// It is outside, a link, a device, or masked by policy.
    Forbidden,
    /// It is larger than the door carries or the sandbox holds.
    TooLarge,
}

/// Why a call was not done. Every text is safe to show to the client.
#[derive(Debug, Clone, Error)]
pub enum WorkshopError {
    /// There is no such sandbox for this caller.
    #[error("there is no such sandbox")]
    NoSandbox,
    /// The sandbox is paused.
    #[error("the sandbox is paused")]
    Paused,
    /// A command is running, so that cannot be done now.
    #[error("{0}")]
    Busy(String),
    /// Policy said no; the receipt says why.
    #[error("{}", .reasons.join("; "))]
    Denied {
        /// The run with the receipt.
        run: RunId,
        /// Every reason.
        reasons: Vec<String>,
    },
    /// People are asked first; the same call again after their consent is done, once.
    #[error("waits for approval, then call again: warrant approve {run}; {}", .reasons.join("; "))]
    Waiting {
        /// The run that waits.
        run: RunId,
        /// Every reason.
        reasons: Vec<String>,
    },
    /// It was permitted and refused at a later step.
    #[error("{message}")]
    Refused {
        /// The run with the receipt.
        run: RunId,
        /// Why.
        message: String,
    },
    /// A value that cannot be, or a setting that cannot be enforced here.
    #[error("{0}")]
    Invalid(String),
    /// A call on files found nothing or changed nothing.
    #[error("{message}")]
    File {
        /// What was wrong.
        fault: FileFault,
        /// For people.
        message: String,
        /// The run with the receipt.
        run: RunId,
    },
    /// Something of ours broke; nothing was done that has no record.
    #[error("the call could not be done")]
    Failed(FailureCause),
}

/// Why something of ours broke: for the log, never for a client.
#[derive(Debug, Clone)]
pub struct FailureCause(Arc<str>);

impl FailureCause {
    /// Takes an error with its causes.
    #[must_use]
    pub fn of_error(error: &dyn std::error::Error) -> Self {
        Self(error_chain(error).into())
    }

    /// Takes what happened where no error says it.
    #[must_use]
    pub fn because(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl WorkshopError {
    /// Something of ours broke with this error; the log keeps it, the client is not told.
    #[must_use]
    pub fn of_error<E: std::error::Error>(error: E) -> Self {
        Self::Failed(FailureCause::of_error(&error))
    }

    /// Something of ours broke in a way that no error says.
    #[must_use]
    pub fn because(text: &str) -> Self {
        Self::Failed(FailureCause::because(text))
    }

    /// Returns the run whose receipt speaks of this, if there is one.
    #[must_use]
    pub const fn run(&self) -> Option<&RunId> {
        match self {
            Self::Denied { run, .. }
            | Self::Waiting { run, .. }
            | Self::Refused { run, .. }
            | Self::File { run, .. } => Some(run),
            Self::NoSandbox | Self::Paused | Self::Busy(_) | Self::Invalid(_) | Self::Failed(_) => {
                None
            }
        }
    }
}

/// Keeps living sandboxes. Callers see only their own.
pub trait Workshop: Send + Sync {
    /// Returns the plane that keeps the evidence of everything done here.
    fn plane(&self) -> &EmbeddedPlane;

    /// Makes a sandbox. Of one caller and door there are never two of one name.
    ///
    /// # Errors
    /// [`WorkshopError`] when it may not or cannot be.
    fn create(&self, guest: &ActorRef, wanted: Wanted) -> Result<Sandbox, WorkshopError>;

    /// Returns the sandboxes of one caller that came through one door, oldest first.
    fn list(&self, guest: &ActorRef, door: DoorName) -> Vec<Sandbox>;

    /// Returns one sandbox.
    ///
    /// # Errors
    /// [`WorkshopError::NoSandbox`] when this caller has none of that id.
    fn find(&self, guest: &ActorRef, id: &str) -> Result<Sandbox, WorkshopError>;

    /// Returns whether a sandbox of that id lives, whoever owns it; for tidying up, never for an
    /// answer.
    fn is_alive(&self, id: &str) -> bool;

    /// Returns whose sandbox it is, if that is its access token.
    fn owner(&self, id: &str, access_token: &str) -> Option<ActorRef>;

    /// Returns whose sandbox it is, if it lives: for callers who know its id, which nobody can
    /// guess, and bring nothing else.
    fn owner_of(&self, id: &str) -> Option<ActorRef>;

    /// Returns which sandbox has that access token.
    fn named_by(&self, access_token: &str) -> Option<String>;

    /// Moves its end to so many milliseconds from now.
    ///
    /// # Errors
    /// [`WorkshopError`] beyond what policy lets it live, or when policy does not let it.
    fn extend(&self, guest: &ActorRef, id: &str, ms: u64) -> Result<Changed, WorkshopError>;

    /// Changes what later commands may reach.
    ///
    /// # Errors
    /// [`WorkshopError`] when policy does not let it.
    fn set_reach(&self, guest: &ActorRef, id: &str, reach: Reach)
    -> Result<Changed, WorkshopError>;

    /// Changes after how long without a call it is paused; nothing means never.
    ///
    /// # Errors
    /// [`WorkshopError`] when policy does not let it, or this caller has none of that id.
    fn set_idle(
        &self,
        guest: &ActorRef,
        id: &str,
        ms: Option<u64>,
    ) -> Result<Changed, WorkshopError>;

    /// Changes after how long without a resume a paused one ends; nothing means with its time.
    ///
    /// # Errors
    /// [`WorkshopError`] when policy does not let it, or this caller has none of that id.
    fn set_paused_end(
        &self,
        guest: &ActorRef,
        id: &str,
        ms: Option<u64>,
    ) -> Result<Changed, WorkshopError>;

    /// Replaces the client's own labels.
    ///
    /// # Errors
    /// [`WorkshopError`] when policy does not let it, or this caller has none of that id.
    fn set_labels(
        &self,
        guest: &ActorRef,
        id: &str,
        labels: BTreeMap<String, String>,
    ) -> Result<Changed, WorkshopError>;

    /// Stops taking commands and keeps the files. Running commands are ended if `ends_commands`.
    ///
    /// # Errors
    /// [`WorkshopError::Busy`] while a command runs that must not be ended.
    fn pause(
        &self,
        guest: &ActorRef,
        id: &str,
        ends: EndsCommands,
    ) -> Result<Changed, WorkshopError>;

    /// Takes commands again.
    ///
    /// # Errors
    /// [`WorkshopError`] when policy does not let it, or this caller has none of that id.
    fn resume(&self, guest: &ActorRef, id: &str) -> Result<Changed, WorkshopError>;

    /// Ends it: every process, every file, and seals its life.
    ///
    /// # Errors
    /// [`WorkshopError::NoSandbox`] when this caller has none of that id.
    fn destroy(&self, guest: &ActorRef, id: &str) -> Result<RunId, WorkshopError>;

    /// Forgets what a session of commands has come to. What runs in it goes on.
    fn end_session(&self, guest: &ActorRef, id: &str, session: &str);

    /// Starts a command.
    ///
    /// # Errors
    /// [`WorkshopError`] when it may not or cannot start.
    fn start(
        &self,
        guest: &ActorRef,
        id: &str,
        start: Start,
    ) -> Result<Arc<Process>, WorkshopError>;

    /// Decides about a command that a later call executes: as its words, and as what they are
    /// meant to run. Whoever asks keeps the [`Decided::note`].
    ///
    /// # Errors
    /// [`WorkshopError`] when nothing could be decided or kept; that is no allow.
    fn decide(
        &self,
        guest: &ActorRef,
        id: &str,
        question: &Question<'_>,
    ) -> Result<Decided, WorkshopError>;

    /// Denies a tool that runs at the client's, where nothing can be enforced. Whoever asks keeps
    /// the [`Decided::note`].
    ///
    /// # Errors
    /// [`WorkshopError`] when nothing could be written down; that is no allow.
    fn deny_tool(&self, guest: &ActorRef, tool: &str) -> Result<Decided, WorkshopError>;

    /// Records that an execution was refused, and why.
    ///
    /// # Errors
    /// [`WorkshopError`] when nothing could be kept.
    fn refuse(
        &self,
        guest: &ActorRef,
        id: &str,
        refusal: &RefusedExecution<'_>,
    ) -> Result<RunId, WorkshopError>;

    /// Returns its commands: those that run, and the last that ended.
    ///
    /// # Errors
    /// [`WorkshopError::NoSandbox`] when this caller has none of that id.
    fn processes(&self, guest: &ActorRef, id: &str) -> Result<Vec<Arc<Process>>, WorkshopError>;

    /// Measures what it uses, unless that was done a moment ago, and returns what was measured so
    /// far, the newest last; only calls of this measure.
    ///
    /// # Errors
    /// [`WorkshopError::NoSandbox`] when this caller has none of that id.
    fn measures(&self, guest: &ActorRef, id: &str) -> Result<Vec<Measure>, WorkshopError>;

    /// Returns its directories that are watched.
    ///
    /// # Errors
    /// [`WorkshopError::NoSandbox`] when this caller has none of that id.
    fn lookouts(&self, guest: &ActorRef, id: &str) -> Result<Vec<Arc<Lookout>>, WorkshopError>;

    /// Does a call on its files.
    ///
    /// # Errors
    /// [`WorkshopError`] when it may not or cannot be done.
    fn file(
        &self,
        guest: &ActorRef,
        id: &str,
        call: FileCall,
    ) -> Result<(FileAnswer, RunId), WorkshopError>;
}

/// Whether a pause ends the commands that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndsCommands {
    /// They are ended.
    Yes,
    /// The pause is refused while one runs.
    No,
}

/// An execution that was refused.
#[derive(Debug, Clone, Copy)]
pub struct RefusedExecution<'a> {
    /// What would have run.
    pub argv: &'a [String],
    /// Why not.
    pub reason: &'a str,
}

/// What is to be decided: a command that a later call executes.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Its words.
    pub argv: &'a [String],
    /// The names of the variables that it is to have.
    pub variables: &'a BTreeSet<String>,
    /// Where it is to run, when that is said already.
    pub cwd: Option<&'a str>,
    /// Where else people may have approved it, for who does not say where it is to run.
    pub elsewhere: &'a [String],
}

/// A decision about a command. It counts once its run is kept.
#[derive(Debug, Clone)]
pub struct Decided {
    /// The run with the record.
    pub run: RunId,
    /// What was decided.
    pub verdict: Verdict,
    /// Every reason against it.
    pub reasons: Vec<String>,
    /// Whether policy asked and people said yes: the execution may then rely on that.
    pub is_approved: bool,
    /// The one directory that an allow counts in: the one that was named, or that people were
    /// asked about. Nothing where policy judges the directory when it is executed.
    pub cwd: Option<String>,
    /// When.
    pub at: Timestamp,
    /// The run as it is to be kept together with the record of its session; absent when it is
    /// kept already.
    pub note: Option<Box<Note>>,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may run, once.
    Allowed,
    /// It may not.
    Denied,
    /// People are asked first.
    Waiting,
}
