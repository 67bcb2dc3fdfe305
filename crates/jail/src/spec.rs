//! What a jail is made of, as plain data. Nothing here does anything.

use std::ffi::CString;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use crate::seccomp::Filter;

/// Everything about one jail.
#[derive(Debug)]
pub struct Spec {
    /// Who the program is, inside and for the kernel.
    pub identity: Identity,
    /// The name of the machine inside.
    pub hostname: CString,
    /// The filesystem that holds the root's skeleton, `/tmp`, `/dev/shm` and the
    /// overlay's upper layer.
    pub scratch: Scratch,
    /// What is created in the empty root, in this order.
    pub entries: Vec<Entry>,
    /// What is mounted on it, in this order.
    pub mounts: Vec<Mount>,
    /// Sockets opened inside the jail's network and handed out, in this order.
    pub listeners: Vec<Listener>,
    /// What is executed.
    pub program: Program,
    /// What holds the program besides the namespaces.
    pub walls: Walls,
    /// When pid 1 ends everything by itself, in milliseconds from the program's start. This is
    /// the second line: the supervisor has its own clock.
    pub deadline_ms: Option<u64>,
    /// Control groups the jail is in from its first moment on.
    pub groups: Groups,
    /// Ends the run when so many processes are alive that not one more can be made. For hosts
    /// where no cgroup counts them.
    pub watch_processes: bool,
    /// Where pid 1 is asked for further sockets of the jail's network; the other end is an
    /// [`crate::Usher`].
    pub usher: Option<OwnedFd>,
}

/// Control groups that the first process of a tree joins before anything else, and with it everyone
/// it starts.
///
/// Neither way waits for the other processors of the machine. Moving a process from outside does,
/// for milliseconds, because the kernel must first make sure that it does not fork meanwhile.
#[derive(Debug, Default)]
pub struct Groups {
    /// A directory of the unified hierarchy; the process is born in it.
    pub unified: Option<OwnedFd>,
    /// The `tasks` files of groups of old hierarchies, open for writing; the process moves itself.
    pub legacy: Vec<OwnedFd>,
}

/// A directory as a jail would show it, for someone who is jailed already.
#[derive(Debug)]
pub struct View {
    /// Who uses it.
    pub identity: Identity,
    /// As in [`Spec`].
    pub scratch: Scratch,
    /// As in [`Spec`].
    pub entries: Vec<Entry>,
    /// As in [`Spec`].
    pub mounts: Vec<Mount>,
    /// The directory that is shown, relative to the root.
    pub shown: CString,
}

/// Who the program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// User id the kernel knows. Anything but the caller's own needs a privileged caller.
    pub kernel_uid: u32,
    /// Group id the kernel knows.
    pub kernel_gid: u32,
}

/// The scratch filesystem and its bounds.
#[derive(Debug)]
pub struct Scratch {
    /// A filesystem with bounds of its own, empty but for `lost+found`, mounted nowhere and owned
    /// by the program; absent means memory, with the bounds below.
    pub image: Option<OwnedFd>,
    /// Bytes of all files together; absent means half of the machine's memory.
    pub bytes: Option<u64>,
    /// Files and directories together; absent means as many as the kernel gives.
    pub inodes: Option<u64>,
    /// The permissions of an overlay's upper directory, if an overlay is mounted. They are what
    /// the overlay's own root shows.
    pub overlay_mode: Option<u32>,
}

/// Something created in the empty root. Paths are relative to the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A directory; one that is there already is left as it is.
    Directory {
        /// Where the directory is.
        path: CString,
        /// Its permissions.
        mode: u32,
    },
    /// A symbolic link.
    Symlink {
        /// Where the link is.
        path: CString,
        /// What it says.
        target: CString,
    },
    /// A file with mode 0644.
    File {
        /// Where the file is.
        path: CString,
        /// What is in it.
        content: Vec<u8>,
    },
}

/// One mount.
#[derive(Debug)]
pub struct Mount {
    /// Where, relative to the new root; it must exist and is reached through no link.
    pub target: CString,
    /// What.
    pub source: Source,
    /// How it may be used.
    pub attributes: Attributes,
}

/// What is mounted.
#[derive(Debug)]
pub enum Source {
    /// A directory or file of the host, with all that is mounted below it.
    Host(HostPath),
    /// A detached mount the (privileged) supervisor made.
    Detached(OwnedFd),
    /// A directory of the skeleton itself, by its path from the root: the way to make one
    /// writable while the root as a whole is not.
    Skeleton(CString),
    /// An overlay of the scratch filesystem's upper layer over a directory.
    Overlay {
        /// The directory below: [`Source::Host`] or [`Source::Detached`].
        lower: Box<Source>,
        /// Paths below the overlay that stay invisible if they appear in the lower directory
        /// after the start. Parents come as directories of the same list, before.
        hidden: Vec<Hidden>,
    },
    /// A directory of the host through an overlay that nobody can write: files are read as they
    /// are, but a socket or a named pipe of the host seen through it leads nowhere. Where an
    /// overlay cannot be had it is mounted as it is, and [`Walls::seccomp_without_overlays`] holds.
    Shown(Box<Source>),
    /// The jail's own process filesystem.
    Proc,
    /// The jail's own terminals.
    Terminals,
    /// An empty, unreadable file over a file.
    VeiledFile,
    /// An empty, unreadable directory over a directory.
    VeiledDirectory,
}

/// A name that must not appear through an overlay's lower layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hidden {
    /// A directory that exists below.
    Directory {
        /// Its path from the overlay's root.
        path: CString,
        /// Its permissions, which show through.
        mode: u32,
    },
    /// A name in it that does not exist yet and never shall.
    Name(CString),
}

/// A path of the host, checked to still be the same file when it is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPath {
    /// The path.
    pub path: CString,
    /// Device and inode it had when it was resolved; absent for the system's own directories.
    pub identity: Option<(u64, u64)>,
}

/// How a mount may be used. Set-user-id bits never work on any mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Whether it can be written.
    pub writable: bool,
    /// Whether programs on it can be executed.
    pub executable: bool,
    /// Whether device nodes on it work.
    pub devices: bool,
}

/// One socket opened inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// Which protocol.
    pub kind: ListenerKind,
    /// Where it listens.
    pub address: SocketAddr,
}

/// Protocols of listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerKind {
    /// A listening stream socket.
    Tcp,
    /// A bound datagram socket.
    Udp,
    /// A socket that sees beginnings of connections to other machines, on whatever port. Of its
    /// address only the family counts.
    TcpWitness,
    /// The same for datagrams, except questions for names.
    UdpWitness,
}

/// What is executed.
#[derive(Debug)]
pub struct Program {
    /// Where the program is.
    pub exec: Exec,
    /// All arguments, the program's own name first.
    pub argv: Vec<CString>,
    /// The whole environment, each `NAME=value`.
    pub env: Vec<CString>,
    /// The directory it starts in.
    pub cwd: CString,
    /// Its standard descriptors.
    pub stdio: Stdio,
    /// Further descriptors it keeps, numbered from 3 in this order. None else survives.
    pub descriptors: Vec<OwnedFd>,
}

/// Where a program is.
#[derive(Debug)]
pub enum Exec {
    /// The first of these paths that can be executed.
    Paths(Vec<CString>),
    /// This open file.
    Descriptor(OwnedFd),
}

/// Standard descriptors of the program.
#[derive(Debug)]
pub enum Stdio {
    /// Three separate descriptors.
    Pipes {
        /// Standard input.
        stdin: OwnedFd,
        /// Standard output.
        stdout: OwnedFd,
        /// Standard error.
        stderr: OwnedFd,
    },
    /// A terminal of the jail's own; needs a mount of [`Source::Terminals`] at `dev/pts`.
    Terminal {
        /// Columns.
        columns: u16,
        /// Rows.
        rows: u16,
    },
}

/// What holds the program besides the namespaces.
#[derive(Debug)]
pub struct Walls {
    /// Limits of the kernel, per process (processes: per jail).
    pub rlimits: Vec<Rlimit>,
    /// Rules of the second wall around files; absent where the kernel has no Landlock.
    pub landlock: Option<LandlockRules>,
    /// The system call filter; absent only where nothing but a process is asked for.
    pub seccomp: Option<Filter>,
    /// The filter that takes its place when a [`Source::Shown`] could not be shown through an
    /// overlay; absent means the same.
    pub seccomp_without_overlays: Option<Filter>,
    /// What becomes of capabilities.
    pub capabilities: Capabilities,
}

/// What becomes of capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capabilities {
    /// All sets are emptied, the bounding set included.
    Dropped,
    /// The program has what the supervisor has, save that it can never gain more.
    Kept,
}

/// A program without a jail: a process of its own session whose whole tree can be ended.
#[derive(Debug)]
pub struct Tether {
    /// What is executed. A terminal cannot be asked for.
    pub program: Program,
    /// What holds it.
    pub walls: Walls,
    /// As in [`Spec`].
    pub deadline_ms: Option<u64>,
    /// As in [`Spec`].
    pub groups: Groups,
}

/// One limit of the kernel; soft and hard are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rlimit {
    /// What is limited.
    pub resource: Resource,
    /// The limit.
    pub value: u64,
}

/// What the kernel can limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Bytes of address space.
    AddressSpace,
    /// Bytes of a core file.
    Core,
    /// Seconds of CPU time of one process.
    Cpu,
    /// Bytes of private writable memory of one process.
    Data,
    /// Bytes of one file.
    FileSize,
    /// Open descriptors of one process.
    OpenFiles,
    /// Processes and threads of this user in this jail.
    Processes,
}

impl Resource {
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::AddressSpace => libc::RLIMIT_AS,
            Self::Core => libc::RLIMIT_CORE,
            Self::Cpu => libc::RLIMIT_CPU,
            Self::Data => libc::RLIMIT_DATA,
            Self::FileSize => libc::RLIMIT_FSIZE,
            Self::OpenFiles => libc::RLIMIT_NOFILE,
            Self::Processes => libc::RLIMIT_NPROC,
        }
    }
}

/// Where the program may write, as the second wall sees it. Reading is bounded by the mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LandlockRules {
    /// The version of Landlock to ask for; the kernel must have it.
    pub abi: u32,
    /// Directories inside below which everything may be written.
    pub writable: Vec<CString>,
    /// Directories inside below which existing files may be written and driven (`/dev`).
    pub devices: Vec<CString>,
}
