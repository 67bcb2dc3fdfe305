//! The root a program sees: which directories are created and what is mounted where.
//!
//! Reads are denied by default: what is not listed here, in [`SYSTEM`] or in the invocation does
//! not exist inside. Pure apart from looking at the host's own directories.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use crate::namespace::resolve::Resolved;
use crate::{EnvValue, EnvVar, WorkspaceAccess};

/// The root as a list of things to create and to mount, both in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) entries: Vec<Piece>,
    pub(crate) mounts: Vec<PlannedMount>,
    /// Directories inside below which the program may write.
    pub(crate) writable: Vec<PathBuf>,
}

/// Something created in the root; paths are absolute, as seen inside.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Directory { path: PathBuf, mode: u32 },
    Symlink { path: PathBuf, target: PathBuf },
    File { path: PathBuf, content: Vec<u8> },
}

impl fmt::Debug for Piece {
    /// What a file holds may be a secret, so only its size is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory { path, mode } => write!(f, "{}/ {mode:o}", path.display()),
            Self::Symlink { path, target } => {
                write!(f, "{} -> {}", path.display(), target.display())
            }
            Self::File { path, content } => {
                write!(f, "{} of {} bytes", path.display(), content.len())
            }
        }
    }
}

/// One mount; the target is absolute, as seen inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedMount {
    pub(crate) target: PathBuf,
    pub(crate) kind: MountKind,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MountKind {
    /// A directory or file of the system, read-only.
    System,
    /// A file of the system shown under another path, read-only.
    Library(PathBuf),
    /// A directory or file the invocation grants for reading.
    Granted(Resolved),
    /// A directory the invocation grants for writing, or the workspace used directly.
    Writable(Resolved),
    /// The workspace below an upper layer of this run.
    Overlay(Resolved),
    /// A harmless device node of the host.
    Device,
    /// A writable directory of the scratch filesystem.
    Private,
    /// The jail's own processes.
    Proc,
    /// The jail's own terminals.
    Terminals,
    /// An empty, unreadable file.
    VeiledFile,
    /// An empty, unreadable directory.
    VeiledDirectory,
}

impl MountKind {
    /// Returns the word for plans.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::System | Self::Library(_) => "system",
            Self::Granted(_) => "read-root",
            Self::Writable(_) => "write-root",
            Self::Overlay(_) => "overlay",
            Self::Device => "device",
            Self::Private => "private",
            Self::Proc => "proc",
            Self::Terminals => "devpts",
            Self::VeiledFile | Self::VeiledDirectory => "veil",
        }
    }
}

/// What the layout is made from.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) workspace: &'a Resolved,
    pub(crate) access: WorkspaceAccess,
    pub(crate) read_roots: &'a [Resolved],
    pub(crate) write_roots: &'a [Resolved],
    /// Roots that are shown under another path: without links, and where inside.
    pub(crate) places: &'a [(PathBuf, PathBuf)],
    /// Where the program's home is inside.
    pub(crate) home: &'a Path,
    /// What its account is called.
    pub(crate) account: &'a str,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Whether the whole system is visible, or only what is granted.
    pub(crate) system: System,
    /// The environment, for the files that its variables name.
    pub(crate) env: &'a [EnvVar],
}

impl Wanted<'_> {
    /// Returns where inside a root is shown.
    fn shown_at<'a>(&'a self, root: &'a Resolved) -> &'a Path {
        let place = self.places.iter().find(|(path, _)| *path == root.path);
        place.map_or(root.path.as_path(), |(_, inside)| inside.as_path())
    }
}

/// How much of the host's system is visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    /// Programs and libraries.
    Programs,
    /// Nothing but what is granted: for a worker that starts nothing.
    Nothing,
}

/// Directories of the system with programs and libraries; links among them are copied as links.
const SYSTEM: [&str; 9] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"];

/// Directories of `/etc` that hold no secret and that programs need.
const ETC_DIRECTORIES: [&str; 5] = [
    "/etc/alternatives",
    "/etc/ssl/certs",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust",
    "/etc/crypto-policies",
];

/// Small files of `/etc` that are copied.
const ETC_FILES: [&str; 4] =
    ["/etc/ld.so.cache", "/etc/ssl/openssl.cnf", "/etc/services", "/etc/protocols"];

/// Links of `/etc` that are copied as links.
const ETC_LINKS: [&str; 2] = ["/etc/localtime", "/etc/os-release"];

const DEVICES: [&str; 6] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// Files of `/proc` about the kernel rather than about processes; a second wall, since the
/// program's ids do not open most of them anyway.
const VEILED_PROC: [&str; 5] =
    ["/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/kallsyms", "/proc/sysrq-trigger"];

/// Returns whether a path can be a root of the invocation: nothing that would replace a part of
/// the boundary itself.
pub(crate) fn is_grantable(path: &Path) -> bool {
    let reserved = ["/proc", "/dev", "/sys"];
    let covers_boundary = ["/", "/tmp", "/etc", "/usr", "/bin", "/lib", "/lib64", "/sbin"];
    !covers_boundary.iter().any(|fixed| path == Path::new(fixed))
        && !reserved.iter().any(|fixed| path.starts_with(fixed))
        || path.starts_with("/dev/shm") && path != Path::new("/dev/shm")
}

/// Returns whether a root can be shown at a path inside that is not its own.
pub(crate) fn is_place(path: &Path) -> bool {
    let is_plain = path.components().all(|part| !matches!(part, Component::ParentDir));
    let is_system = SYSTEM.iter().chain(&["/etc"]).any(|fixed| path.starts_with(fixed));
    let is_free = is_grantable(path) && !is_system && !path.starts_with("/dev");
    path.is_absolute() && is_plain && (is_free || path == Path::new("/tmp"))
}

/// Returns the layout, without masks.
pub(crate) fn plan(wanted: &Wanted<'_>) -> Layout {
    let mut builder = Builder::default();
    for path in ["/tmp", "/dev/shm"].map(Path::new) {
        if !wanted.places.iter().any(|(_, inside)| inside == path) {
            builder.private(path, 0o1777);
        }
    }
    match wanted.system {
        System::Programs => {
            builder.base(wanted);
            builder.system();
        }
        System::Nothing => {}
    }
    builder.roots(wanted);
    // In the memory of the root: they end with it, and nothing of them is ever on a disk.
    let mut files = BTreeSet::new();
    for variable in wanted.env {
        if let EnvValue::SecretFile { path, value, .. } = &variable.value
            && files.insert(path)
        {
            builder.file(path, value.as_bytes());
        }
    }
    builder.finish()
}

#[derive(Default)]
struct Builder {
    directories: BTreeSet<PathBuf>,
    pieces: Vec<Piece>,
    mounts: Vec<PlannedMount>,
    writable: Vec<PathBuf>,
}

impl Builder {
    fn base(&mut self, wanted: &Wanted<'_>) {
        for device in DEVICES {
            self.file(device, b"");
            self.mount(Path::new(device), MountKind::Device);
        }
        for (path, target) in [
            ("/dev/fd", "/proc/self/fd"),
            ("/dev/stdin", "/proc/self/fd/0"),
            ("/dev/stdout", "/proc/self/fd/1"),
            ("/dev/stderr", "/proc/self/fd/2"),
            ("/dev/ptmx", "pts/ptmx"),
        ] {
            self.symlink(Path::new(path), Path::new(target));
        }
        self.directory(Path::new("/dev/pts"));
        self.mount(Path::new("/dev/pts"), MountKind::Terminals);
        self.directory(Path::new("/proc"));
        self.mount(Path::new("/proc"), MountKind::Proc);
        for path in VEILED_PROC {
            if Path::new(path).exists() {
                self.mount(Path::new(path), MountKind::VeiledFile);
            }
        }
        let home = wanted.home.display();
        let (uid, gid, name) = (wanted.uid, wanted.gid, wanted.account);
        let passwd = format!(
            "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
             {name}:x:{uid}:{gid}:{name}:{home}:/bin/sh\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        );
        let group = format!("root:x:0:\n{name}:x:{gid}:\nnogroup:x:65534:\n");
        self.file("/etc/passwd", passwd.as_bytes());
        self.file("/etc/group", group.as_bytes());
        self.file("/etc/hosts", b"127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n");
        self.file("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n");
        self.file("/etc/resolv.conf", b"nameserver 127.0.0.1\noptions timeout:5 attempts:1\n");
    }

    fn system(&mut self) {
        for path in SYSTEM.map(Path::new) {
            let Ok(metadata) = path.symlink_metadata() else { continue };
            if metadata.is_symlink() {
                if let Ok(target) = path.read_link() {
                    self.symlink(path, &target);
                }
            } else if metadata.is_dir() {
                self.directory(path);
                self.mount(path, MountKind::System);
            }
        }
        for path in ETC_DIRECTORIES.map(Path::new) {
            if path.is_dir() {
                self.directory(path);
                self.mount(path, MountKind::System);
            }
        }
        for path in ETC_FILES {
            if let Ok(content) = std::fs::read(path) {
                self.file(path, &content);
            }
        }
        for path in ETC_LINKS.map(Path::new) {
            if let Ok(target) = path.read_link() {
                self.symlink(path, &target);
            }
        }
    }

    fn roots(&mut self, wanted: &Wanted<'_>) {
        let workspace = wanted.workspace;
        let kind = match wanted.access {
            WorkspaceAccess::ReadOnly => MountKind::Granted(workspace.clone()),
            WorkspaceAccess::Overlay => MountKind::Overlay(workspace.clone()),
            WorkspaceAccess::Direct => MountKind::Writable(workspace.clone()),
        };
        let mut roots = vec![(workspace, kind)];
        let granted = wanted.read_roots.iter().map(|root| (root, MountKind::Granted(root.clone())));
        let written =
            wanted.write_roots.iter().map(|root| (root, MountKind::Writable(root.clone())));
        roots.extend(written.chain(granted));
        let shown = |(root, kind)| (wanted.shown_at(root), root, kind);
        let mut roots: Vec<(&Path, &Resolved, MountKind)> = roots.into_iter().map(shown).collect();
        roots.sort_by_key(|(a, ..)| *a);
        // The workspace and write roots win over a read root of the same path.
        roots.dedup_by(|(later, _, later_kind), (earlier, _, earlier_kind)| {
            let same = later == earlier;
            if same && matches!(earlier_kind, MountKind::Granted(_)) {
                *earlier_kind = later_kind.clone();
            }
            same
        });
        // Before the roots: one of them may be below it.
        self.home(wanted.home, &roots);
        for (target, root, kind) in roots {
            if self.covering(target).is_some_and(|cover| makes_redundant(cover, &kind)) {
                continue;
            }
            if matches!(kind, MountKind::Overlay(_) | MountKind::Writable(_)) {
                self.writable.push(target.to_owned());
            }
            if root.is_directory {
                self.directory(target);
            } else if let (Some(path), None) = (target.to_str(), self.covering(target)) {
                self.file(path, b"");
            }
            self.mount(target, kind);
        }
    }

    /// Gives the program a home of its own, unless it has one already.
    fn home(&mut self, home: &Path, roots: &[(&Path, &Resolved, MountKind)]) {
        let is_granted = roots.iter().any(|(target, ..)| home.starts_with(target));
        let is_private = self.writable.iter().any(|path| home.starts_with(path));
        if is_private {
            self.directory(home);
        } else if !is_granted && self.covering(home).is_none() && is_grantable(home) {
            self.private(home, 0o700);
        }
    }

    /// Returns the innermost mount that already shows the host's tree at `path`.
    fn covering(&self, path: &Path) -> Option<&MountKind> {
        let shows_host = |mount: &&PlannedMount| {
            path.starts_with(&mount.target)
                && matches!(
                    mount.kind,
                    MountKind::System
                        | MountKind::Granted(_)
                        | MountKind::Writable(_)
                        | MountKind::Overlay(_)
                )
        };
        let found = self.mounts.iter().filter(shows_host);
        found.max_by_key(|mount| mount.target.as_os_str().len()).map(|mount| &mount.kind)
    }

    fn private(&mut self, path: &Path, mode: u32) {
        if let Some(parent) = path.parent() {
            self.directory(parent);
        }
        if self.directories.insert(path.to_owned()) {
            self.pieces.push(Piece::Directory { path: path.to_owned(), mode });
        }
        self.mount(path, MountKind::Private);
        self.writable.push(path.to_owned());
    }

    /// Creates a directory and its parents, unless a mount already shows it.
    fn directory(&mut self, path: &Path) {
        if path == Path::new("/") || self.covering(path).is_some() {
            return;
        }
        if let Some(parent) = path.parent() {
            self.directory(parent);
        }
        if self.directories.insert(path.to_owned()) {
            self.pieces.push(Piece::Directory { path: path.to_owned(), mode: 0o755 });
        }
    }

    fn file(&mut self, path: &str, content: &[u8]) {
        let path = PathBuf::from(path);
        if let Some(parent) = path.parent() {
            self.directory(parent);
        }
        self.pieces.push(Piece::File { path, content: content.to_vec() });
    }

    fn symlink(&mut self, path: &Path, target: &Path) {
        if let Some(parent) = path.parent() {
            self.directory(parent);
        }
        let (path, target) = (path.to_owned(), target.to_owned());
        self.pieces.push(Piece::Symlink { path, target });
    }

    fn mount(&mut self, target: &Path, kind: MountKind) {
        self.mounts.push(PlannedMount { target: target.to_owned(), kind });
    }

    fn finish(self) -> Layout {
        Layout { entries: self.pieces, mounts: self.mounts, writable: self.writable }
    }
}

/// Returns whether a root adds nothing where the host's tree is shown already.
const fn makes_redundant(cover: &MountKind, kind: &MountKind) -> bool {
    match kind {
        MountKind::Granted(_) => true,
        MountKind::Writable(_) => matches!(cover, MountKind::Writable(_)),
        _ => false,
    }
}
