//! What a jail sees of its own confinement, asked of the kernel just before the program executes.
//!
//! Pid 1 looks at its namespaces and its root, the program's process at its privileges, limits and
//! filter. Both only look; what is missing is for the supervisor to judge.

use std::ffi::CStr;
use std::sync::OnceLock;

use crate::spec::{Resource, Rlimit, Walls};
use crate::sys;

/// One fact about a confined process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// Its user namespace is not the supervisor's.
    UserNamespace,
    /// Its mount namespace is not the supervisor's.
    MountNamespace,
    /// Its process namespace is not the supervisor's, and pid 1 of it is the jail's.
    ProcessNamespace,
    /// Its network namespace is not the supervisor's.
    NetworkNamespace,
    /// Its IPC namespace is not the supervisor's.
    IpcNamespace,
    /// Its host name is its own.
    NameNamespace,
    /// Its root directory is not the supervisor's.
    OwnRoot,
    /// The kernel says that it can gain no privileges.
    NoNewPrivileges,
    /// The kernel says that it has no capability, and none in its bounding set.
    NoCapabilities,
    /// Landlock took its rules.
    Landlock,
    /// The kernel says that its system calls are filtered.
    Seccomp,
    /// The kernel has the limit on open files that was asked for, or a lower one.
    LimitOpenFiles,
    /// As above, for the size of files.
    LimitFileSize,
    /// As above, for processes.
    LimitProcesses,
    /// As above, for the CPU time of one process.
    LimitCpu,
    /// As above, for private memory of one process.
    LimitData,
    /// As above, for the address space of one process.
    LimitAddressSpace,
    /// Every directory of the host that was to be shown through an overlay is.
    ShownThroughOverlays,
}

/// What was seen; what is not in it was looked for in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confinement {
    bits: u32,
}

impl Confinement {
    /// Returns what is seen of a process without any confinement.
    #[must_use]
    pub const fn nothing() -> Self {
        Self { bits: 0 }
    }

    /// Returns whether a fact was seen.
    #[must_use]
    pub const fn saw(self, fact: Fact) -> bool {
        self.bits & fact.bit() != 0
    }

    /// Returns this and one fact more, for tests of whoever judges.
    #[must_use]
    pub const fn with(self, fact: Fact) -> Self {
        Self { bits: self.bits | fact.bit() }
    }

    /// Returns this without one fact, for tests of whoever judges.
    #[must_use]
    pub const fn without(self, fact: Fact) -> Self {
        Self { bits: self.bits & !fact.bit() }
    }

    pub(crate) const fn of_bits(bits: i32) -> Self {
        Self { bits: bits as u32 }
    }

    pub(crate) const fn to_bits(self) -> i32 {
        self.bits as i32
    }

    /// Returns what either saw.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { bits: self.bits | other.bits }
    }

    pub(crate) const fn add_if(&mut self, fact: Fact, is_so: bool) {
        if is_so {
            self.bits |= fact.bit();
        }
    }
}

impl Fact {
    const fn bit(self) -> u32 {
        1 << self as u32
    }

    const fn of_limit(resource: Resource) -> Option<Self> {
        match resource {
            Resource::OpenFiles => Some(Self::LimitOpenFiles),
            Resource::FileSize => Some(Self::LimitFileSize),
            Resource::Processes => Some(Self::LimitProcesses),
            Resource::Cpu => Some(Self::LimitCpu),
            Resource::Data => Some(Self::LimitData),
            Resource::AddressSpace => Some(Self::LimitAddressSpace),
            Resource::Core => None,
        }
    }
}

const NAMESPACES: [(Fact, &CStr); 6] = [
    (Fact::UserNamespace, c"/proc/self/ns/user"),
    (Fact::MountNamespace, c"/proc/self/ns/mnt"),
    (Fact::ProcessNamespace, c"/proc/self/ns/pid"),
    (Fact::NetworkNamespace, c"/proc/self/ns/net"),
    (Fact::IpcNamespace, c"/proc/self/ns/ipc"),
    (Fact::NameNamespace, c"/proc/self/ns/uts"),
];
const ROOT: &CStr = c"/";

/// Which file something is: device and inode.
type FileName = (u64, u64);

/// What the supervisor itself has, looked at once, before the first clone.
static SUPERVISOR: OnceLock<Supervisor> = OnceLock::new();

struct Supervisor {
    namespaces: [Option<FileName>; 6],
    root: Option<FileName>,
}

/// Looks at what the supervisor has, so that a jail can tell its own from it.
pub(crate) fn look_at_supervisor() {
    SUPERVISOR.get_or_init(|| Supervisor {
        namespaces: NAMESPACES.map(|(_, path)| name_of(path)),
        root: name_of(ROOT),
    });
}

/// Looks at the namespaces of pid 1; the supervisor's `/proc` must still be visible.
pub(crate) fn look_at_namespaces() -> Confinement {
    let mut seen = Confinement::nothing();
    let Some(supervisor) = SUPERVISOR.get() else { return seen };
    for ((fact, path), theirs) in NAMESPACES.iter().zip(&supervisor.namespaces) {
        seen.add_if(*fact, differs(name_of(path), *theirs));
    }
    let is_first = sys::number_call(libc::SYS_getpid, [0; 5]) == Ok(1);
    if is_first { seen } else { seen.without(Fact::ProcessNamespace) }
}

/// Looks whether the root directory is another one than the supervisor's.
pub(crate) fn look_at_root() -> Confinement {
    let mut seen = Confinement::nothing();
    if let Some(supervisor) = SUPERVISOR.get() {
        seen.add_if(Fact::OwnRoot, differs(name_of(ROOT), supervisor.root));
    }
    seen
}

/// Looks at what the calling process may do; its filter is not installed yet.
pub(crate) fn look_at_process(walls: &Walls) -> Confinement {
    let mut seen = Confinement::nothing();
    let no_new =
        sys::number_call(libc::SYS_prctl, [libc::PR_GET_NO_NEW_PRIVS as usize, 0, 0, 0, 0]);
    seen.add_if(Fact::NoNewPrivileges, no_new == Ok(1));
    seen.add_if(Fact::NoCapabilities, has_no_capability());
    // The rules were taken without an error, or this process would not be here.
    seen.add_if(Fact::Landlock, walls.landlock.is_some());
    for limit in &walls.rlimits {
        if let Some(fact) = Fact::of_limit(limit.resource) {
            seen.add_if(fact, is_in_force(limit));
        }
    }
    seen
}

/// Looks whether a filter is in force; one that refuses the question is.
pub(crate) fn look_at_filter() -> Confinement {
    let mut seen = Confinement::nothing();
    let mode = sys::number_call(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0]);
    seen.add_if(Fact::Seccomp, mode != Ok(0));
    seen
}

fn differs(one: Option<FileName>, other: Option<FileName>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one != other)
}

fn name_of(path: &CStr) -> Option<FileName> {
    // SAFETY: an all-zero structure is a valid value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, &raw mut stat as usize, 0, 0, 0];
    // SAFETY: the path is a C string, and the structure is valid for writing.
    unsafe { sys::call(libc::SYS_newfstatat, args) }.ok()?;
    Some((stat.st_dev, stat.st_ino))
}

fn has_no_capability() -> bool {
    const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
    let header: [u32; 2] = [CAPABILITY_VERSION_3, 0];
    let mut sets = [u32::MAX; 6];
    let args = [header.as_ptr() as usize, sets.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: header and sets have the layout of version 3 and outlive the call.
    let read = unsafe { sys::call(libc::SYS_capget, args) };
    if read.is_err() || sets != [0; 6] {
        return false;
    }
    for capability in 0..64 {
        let args = [libc::PR_CAPBSET_READ as usize, capability, 0, 0, 0];
        match sys::number_call(libc::SYS_prctl, args) {
            Ok(0) => {}
            Ok(_) => return false,
            // The kernel knows no more.
            Err(_) => return capability > 0,
        }
    }
    true
}

/// Whether the kernel has a limit, or a lower one.
fn is_in_force(limit: &Rlimit) -> bool {
    let mut value = libc::rlimit64 { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    let resource = limit.resource.number() as usize;
    let args = [0, resource, 0, &raw mut value as usize, 0, 0];
    // SAFETY: the structure outlives the call; no new value is given.
    let read = unsafe { sys::call(libc::SYS_prlimit64, args) };
    read.is_ok() && value.rlim_cur <= limit.value && value.rlim_max <= limit.value
}
