//! The system call filter: an allow list, assembled into a balanced tree of BPF.
//!
//! Foreign architectures (i386, x32) die. A call that is not on the list answers `ENOSYS`, as if
//! the kernel did not have it, and so does every call of a newer kernel; known and dangerous ones
//! answer `EPERM`. Of some calls the arguments decide: this file. The list is `seccomp/table.rs`.

#[cfg(test)]
mod architectures;
mod assembly;
mod table;

use std::collections::BTreeMap;

use libc::{c_long, sock_filter};

use crate::sys;

use assembly::{Check, Test, Verdict, When, assemble};
use table::{ALLOWED, ALLOWED_HERE, IOCTLS, PRCTLS, PRIVILEGED, STARTING_AND_SPEAKING};

pub(crate) use assembly::{branch, statement};

/// A filter ready to be installed.
#[derive(Debug, Clone)]
pub struct Filter {
    program: Vec<sock_filter>,
}

/// What a filter is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Around an arbitrary program that may start others.
    Program(Allowances),
    /// Around an interpreter that never starts anything and never speaks to anyone: besides all
    /// of the above no `exec`, no new process, no socket. Installed by the interpreter itself,
    /// after it has been executed.
    Worker,
}

/// What depends on what else holds a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowances {
    /// Which Unix sockets it may make.
    pub unix_sockets: UnixSockets,
    /// Which memory it may share that belongs to no process.
    pub shared_memory: SharedMemory,
}

impl Allowances {
    /// The least of everything.
    pub const LEAST: Self =
        Self { unix_sockets: UnixSockets::PairsOnly, shared_memory: SharedMemory::Small };
}

/// Which Unix sockets a program may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnixSockets {
    /// All: no socket of the host can be reached by a name inside.
    Inside,
    /// Only connected pairs, which cannot be connected elsewhere.
    PairsOnly,
}

impl UnixSockets {
    /// Returns the value as plans show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inside => "inside",
            Self::PairsOnly => "pairs-only",
        }
    }
}

/// Which memory a program may share that belongs to no process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedMemory {
    /// All: a control group counts it.
    Counted,
    /// No files in memory, no message queues, small sets of semaphores, and segments of at most
    /// [`SMALL_SEGMENT_BYTES`]: nobody counts them.
    Small,
}

/// The largest System V segment where nobody counts them. Databases mark their directory with one
/// of a few bytes; a namespace has at most 4096 of them.
pub const SMALL_SEGMENT_BYTES: u32 = 16 << 10;

/// The largest set of System V semaphores where nobody counts them; databases take 17 at a time.
const SMALL_SET: u32 = 32;

impl Filter {
    /// Returns the filter for `profile`.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        let mut table = BTreeMap::new();
        match profile {
            Profile::Program(allowances) => fill_program(&mut table, allowances),
            Profile::Worker => {
                fill_program(&mut table, Allowances::LEAST);
                refuse_worker(&mut table);
            }
        }
        Self { program: assemble(table) }
    }

    /// Returns the number of instructions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.program.len()
    }

    /// Returns whether there is no instruction, which never happens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.program.is_empty()
    }

    /// Installs the filter for the calling thread and all its children, for ever.
    ///
    /// # Errors
    /// The system's error; then nothing is filtered.
    pub fn install(&self) -> Result<(), crate::Errno> {
        let length = u16::try_from(self.program.len()).map_err(|_| crate::Errno(libc::E2BIG))?;
        let program = libc::sock_fprog { len: length, filter: self.program.as_ptr().cast_mut() };
        let args =
            [libc::SECCOMP_SET_MODE_FILTER as usize, 0, &raw const program as usize, 0, 0, 0];
        // SAFETY: pointer and length describe the live program.
        unsafe { sys::call(libc::SYS_seccomp, args) }.map(drop)
    }
}

/// Installs the [`Profile::Worker`] filter on the calling process, after forbidding new
/// privileges. Call it first thing, before any thread exists.
///
/// # Errors
/// The system's error; then the caller must not go on.
pub fn seal_worker() -> std::io::Result<()> {
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
    Ok(Filter::new(Profile::Worker).install()?)
}

/// Takes descriptor 3, which a worker is started with, or `None` if that is not a socket.
///
/// Call it once, in a process that was started as a worker and has opened nothing yet.
#[must_use]
pub fn worker_control() -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    const CONTROL: libc::c_int = 3;
    let mut kind: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value and its length are valid for writing; a bad descriptor is an error.
    let result = unsafe {
        let value = (&raw mut kind).cast();
        libc::getsockopt(CONTROL, libc::SOL_SOCKET, libc::SO_TYPE, value, &raw mut length)
    };
    // SAFETY: it is open, and by the contract above nobody else owns it.
    (result == 0).then(|| unsafe { std::os::fd::OwnedFd::from_raw_fd(CONTROL) })
}

const NAMESPACES: u32 = 0x7e02_0080;
const SET_ID_BITS: u32 = 0o6000;
const NETLINK_ROUTE: u32 = 0;

fn any_bit(argument: u32, mask: u32) -> Verdict {
    Verdict::Check(vec![Check {
        when: When::Always,
        argument,
        mask,
        test: Test::AnyBit,
        errno: libc::EPERM,
    }])
}

fn fill_program(table: &mut BTreeMap<c_long, Verdict>, allowances: Allowances) {
    for number in ALLOWED.iter().chain(ALLOWED_HERE) {
        table.insert(*number, Verdict::Allow);
    }
    for number in PRIVILEGED {
        table.insert(*number, Verdict::Refuse(libc::EPERM));
    }
    table.insert(libc::SYS_unshare, any_bit(0, NAMESPACES));
    table.insert(libc::SYS_clone, any_bit(0, NAMESPACES));
    table.insert(libc::SYS_socket, Verdict::Check(socket_checks(allowances.unix_sockets)));
    table.insert(libc::SYS_socketpair, Verdict::Check(pair_checks(allowances.unix_sockets)));
    table.insert(libc::SYS_ioctl, none_of(1, IOCTLS, libc::ENOTTY));
    table.insert(libc::SYS_prctl, none_of(0, PRCTLS, libc::EINVAL));
    let personalities = &[0, 8, 0x20000, 0x20008, u32::MAX];
    table.insert(libc::SYS_personality, none_of(0, personalities, libc::EPERM));
    // SECURITY: limits of others, pid 1 among them, whose limit says whether the jail is full.
    table.insert(libc::SYS_prlimit64, none_of(0, &[0], libc::EPERM));
    match allowances.shared_memory {
        SharedMemory::Counted => {
            table.insert(libc::SYS_memfd_create, Verdict::Allow);
            table.insert(libc::SYS_shmget, Verdict::Allow);
        }
        SharedMemory::Small => {
            let at_most = |most, errno| {
                let test = Test::Above(most);
                let check = Check { when: When::Always, argument: 1, mask: u32::MAX, test, errno };
                Verdict::Check(vec![check])
            };
            table.insert(libc::SYS_shmget, at_most(SMALL_SEGMENT_BYTES, libc::ENOMEM));
            // SECURITY: sets of 32 000 and full queues are gigabytes of the kernel's own memory.
            table.insert(libc::SYS_semget, at_most(SMALL_SET, libc::ENOSPC));
            table.insert(libc::SYS_msgget, Verdict::Refuse(libc::ENOSYS));
        }
    }
    fill_modes(table);
}

/// What makes files, by the permissions they get.
fn fill_modes(table: &mut BTreeMap<c_long, Verdict>) {
    // SECURITY: a set-user-id file left behind in the workspace.
    table.insert(libc::SYS_fchmod, any_bit(1, SET_ID_BITS));
    table.insert(libc::SYS_fchmodat, any_bit(2, SET_ID_BITS));
    table.insert(SYS_FCHMODAT2, any_bit(2, SET_ID_BITS));
    table.insert(libc::SYS_openat, creating_checks(2, 3));
    table.insert(libc::SYS_mkdirat, any_bit(2, SET_ID_BITS));
    table.insert(libc::SYS_mknodat, node_checks(2));
    #[cfg(target_arch = "x86_64")]
    {
        table.insert(libc::SYS_chmod, any_bit(1, SET_ID_BITS));
        table.insert(libc::SYS_creat, any_bit(1, SET_ID_BITS));
        table.insert(libc::SYS_open, creating_checks(1, 2));
        table.insert(libc::SYS_mkdir, any_bit(1, SET_ID_BITS));
        table.insert(libc::SYS_mknod, node_checks(1));
    }
}

fn none_of(argument: u32, values: &'static [u32], errno: i32) -> Verdict {
    let test = Test::NoneOf(values);
    Verdict::Check(vec![Check { when: When::Always, argument, mask: u32::MAX, test, errno }])
}

/// The mode of an `open` means nothing unless it creates, and then is often left to chance.
fn creating_checks(flags: u32, mode: u32) -> Verdict {
    const CREATING: u32 = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;
    Verdict::Check(vec![Check {
        when: When::AnyBit(flags, CREATING),
        argument: mode,
        mask: SET_ID_BITS,
        test: Test::AnyBit,
        errno: libc::EPERM,
    }])
}

fn node_checks(argument: u32) -> Verdict {
    let check = |mask, test| Check { when: When::Always, argument, mask, test, errno: libc::EPERM };
    Verdict::Check(vec![
        check(SET_ID_BITS, Test::AnyBit),
        check(0o170_000, Test::OneOf(&[0o020_000, 0o060_000])),
    ])
}

const UNIX: u32 = libc::AF_UNIX as u32;
const INET: u32 = libc::AF_INET as u32;
const INET6: u32 = libc::AF_INET6 as u32;
const NETLINK: u32 = libc::AF_NETLINK as u32;
const STREAM: u32 = libc::SOCK_STREAM as u32;
const DATAGRAM: u32 = libc::SOCK_DGRAM as u32;
const RAW: u32 = libc::SOCK_RAW as u32;
const PACKETS: u32 = libc::SOCK_SEQPACKET as u32;
const TCP: u32 = libc::IPPROTO_TCP as u32;
const UDP: u32 = libc::IPPROTO_UDP as u32;
/// The bits of a socket's type; above them are flags.
const KIND: u32 = 0xf;

/// TCP and UDP over IPv4 and IPv6, the one netlink protocol libraries list addresses with, and Unix
/// sockets where they lead nowhere else. SCTP, MPTCP, UDP-Lite, ping and what else there is are
/// refused.
fn socket_checks(unix_sockets: UnixSockets) -> Vec<Check> {
    let families: &'static [u32] = match unix_sockets {
        UnixSockets::Inside => &[UNIX, INET, INET6, NETLINK],
        UnixSockets::PairsOnly => &[INET, INET6, NETLINK],
    };
    let of = |family, argument, mask, values| Check {
        when: When::Equal(0, family),
        argument,
        mask,
        test: Test::NoneOf(values),
        errno: if argument == 1 { libc::EPERM } else { libc::EPROTONOSUPPORT },
    };
    let mut checks = vec![Check {
        when: When::Always,
        argument: 0,
        mask: u32::MAX,
        test: Test::NoneOf(families),
        errno: libc::EAFNOSUPPORT,
    }];
    for family in [INET, INET6] {
        checks.push(of(family, 1, KIND, &[STREAM, DATAGRAM]));
        checks.push(of(family, 2, u32::MAX, &[0, TCP, UDP]));
    }
    checks.push(of(NETLINK, 1, KIND, &[RAW, DATAGRAM]));
    checks.push(of(NETLINK, 2, u32::MAX, &[NETLINK_ROUTE]));
    checks.push(of(UNIX, 1, KIND, &[STREAM, DATAGRAM, PACKETS]));
    checks.push(of(UNIX, 2, u32::MAX, &[0, UNIX]));
    checks
}

/// Pairs of Unix sockets.
///
/// SECURITY: a pair of datagram sockets can still be connected elsewhere by name, and sends to
/// names; streams and packets cannot.
fn pair_checks(unix_sockets: UnixSockets) -> Vec<Check> {
    let kinds: &'static [u32] = match unix_sockets {
        UnixSockets::Inside => &[STREAM, DATAGRAM, PACKETS],
        UnixSockets::PairsOnly => &[STREAM, PACKETS],
    };
    let check = |argument, mask, values, errno| Check {
        when: When::Always,
        argument,
        mask,
        test: Test::NoneOf(values),
        errno,
    };
    vec![
        check(0, u32::MAX, &[UNIX], libc::EAFNOSUPPORT),
        check(1, KIND, kinds, libc::EPERM),
        check(2, u32::MAX, &[0, UNIX], libc::EPROTONOSUPPORT),
    ]
}

fn refuse_worker(table: &mut BTreeMap<c_long, Verdict>) {
    const THREAD: u32 = libc::CLONE_THREAD as u32;
    for number in STARTING_AND_SPEAKING {
        table.insert(*number, Verdict::Refuse(libc::EPERM));
    }
    let checks = [(NAMESPACES, Test::AnyBit), (THREAD, Test::NoneOf(&[THREAD]))];
    let checks = checks.map(|(mask, test)| Check {
        when: When::Always,
        argument: 0,
        mask,
        test,
        errno: libc::EPERM,
    });
    table.insert(libc::SYS_clone, Verdict::Check(checks.into_iter().collect()));
}

const SYS_FCHMODAT2: c_long = 452;

#[cfg(test)]
mod tests {
    use super::assembly::*;
    use super::*;

    /// Runs the program as the kernel would.
    fn judge(program: &[sock_filter], architecture: u32, number: c_long, args: [u32; 6]) -> u32 {
        let (mut at, mut word) = (0_usize, 0_u32);
        loop {
            let step = &program[at];
            at += 1;
            let jump = |yes: bool| usize::from(if yes { step.jt } else { step.jf });
            match step.code {
                LOAD_WORD => {
                    word = match step.k {
                        OFFSET_NUMBER => number as u32,
                        OFFSET_ARCHITECTURE => architecture,
                        // Upper halves are zero in these tests.
                        offset if offset % 8 != 0 => 0,
                        offset => args[(offset as usize - 16) / 8],
                    }
                }
                AND => word &= step.k,
                JUMP => at += step.k as usize,
                JUMP_EQUAL => at += jump(word == step.k),
                JUMP_GREATER => at += jump(word > step.k),
                JUMP_GREATER_EQUAL => at += jump(word >= step.k),
                JUMP_ANY_BIT => at += jump(word & step.k != 0),
                RETURN => return step.k,
                code => panic!("unknown instruction {code:#x}"),
            }
        }
    }

    #[track_caller]
    fn check(profile: Profile, number: c_long, args: [u32; 6], expected: u32) {
        let filter = Filter::new(profile);
        assert_eq!(judge(&filter.program, ARCHITECTURE, number, args), expected);
    }

    const NO_ARGS: [u32; 6] = [0; 6];
    const LEAST: Profile = Profile::Program(Allowances::LEAST);
    const MOST: Profile = Profile::Program(Allowances {
        unix_sockets: UnixSockets::Inside,
        shared_memory: SharedMemory::Counted,
    });

    #[test]
    fn foreign_architectures_and_x32_die() {
        let filter = Filter::new(MOST);
        assert_eq!(judge(&filter.program, 0x4000_0003, 1, NO_ARGS), KILL_PROCESS);
        #[cfg(target_arch = "x86_64")]
        check(MOST, 0x4000_0001, NO_ARGS, KILL_PROCESS);
    }

    /// Every number the kernel could know: what is listed passes or is refused as listed, and what
    /// is not does not exist.
    #[test]
    fn a_call_that_is_not_listed_does_not_exist() {
        let filter = Filter::new(MOST);
        let checked = [
            libc::SYS_unshare,
            libc::SYS_clone,
            libc::SYS_socket,
            libc::SYS_socketpair,
            libc::SYS_ioctl,
            libc::SYS_prctl,
            libc::SYS_personality,
            libc::SYS_prlimit64,
            libc::SYS_fchmod,
            libc::SYS_fchmodat,
            SYS_FCHMODAT2,
            libc::SYS_openat,
            libc::SYS_mkdirat,
            libc::SYS_mknodat,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_chmod,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_creat,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mkdir,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mknod,
        ];
        let counted = [libc::SYS_memfd_create, libc::SYS_shmget];
        let allowed = [ALLOWED, ALLOWED_HERE, &counted].concat();
        for number in 0..2000 {
            let verdict = judge(&filter.program, ARCHITECTURE, number, NO_ARGS);
            if allowed.contains(&number) {
                assert_eq!(verdict, ALLOW, "{number}");
            } else if PRIVILEGED.contains(&number) {
                assert_eq!(verdict, refusal(libc::EPERM), "{number}");
            } else if !checked.contains(&number) {
                assert_eq!(verdict, refusal(libc::ENOSYS), "{number}");
            }
        }
        for number in [libc::SYS_clone3, libc::SYS_openat2, libc::SYS_io_uring_setup, 447, 457] {
            check(MOST, number, NO_ARGS, refusal(libc::ENOSYS));
        }
        for number in STARTING_AND_SPEAKING {
            check(Profile::Worker, *number, NO_ARGS, refusal(libc::EPERM));
        }
    }

    #[test]
    fn arguments_decide_where_they_should() {
        let program = |number, args, expected| check(LEAST, number, args, expected);
        let eperm = refusal(libc::EPERM);
        program(libc::SYS_clone, [0x11, 0, 0, 0, 0, 0], ALLOW);
        program(libc::SYS_clone, [0x1000_0011, 0, 0, 0, 0, 0], eperm);
        program(libc::SYS_unshare, [libc::CLONE_FS as u32, 0, 0, 0, 0, 0], ALLOW);
        program(libc::SYS_ioctl, [0, 0x5412, 0, 0, 0, 0], refusal(libc::ENOTTY));
        program(libc::SYS_ioctl, [0, 0x5413, 0, 0, 0, 0], ALLOW);
        program(libc::SYS_prctl, [35, 0, 0, 0, 0, 0], refusal(libc::EINVAL));
        program(libc::SYS_prctl, [15, 0, 0, 0, 0, 0], ALLOW);
        program(libc::SYS_prlimit64, [0, 7, 0, 0, 0, 0], ALLOW);
        program(libc::SYS_prlimit64, [1, 6, 0, 0, 0, 0], eperm);
        program(libc::SYS_fchmodat, [0, 0, 0o4755, 0, 0, 0], eperm);
        program(libc::SYS_fchmodat, [0, 0, 0o755, 0, 0, 0], ALLOW);
        program(libc::SYS_openat, [0, 0, 0, 0o4755, 0, 0], ALLOW);
        program(libc::SYS_openat, [0, 0, libc::O_CREAT as u32, 0o4755, 0, 0], eperm);
        program(libc::SYS_openat, [0, 0, libc::O_DIRECTORY as u32, 0o4755, 0, 0], ALLOW);
        program(libc::SYS_mknodat, [0, 0, 0o020_644, 0, 0, 0], eperm);
        program(libc::SYS_mknodat, [0, 0, 0o010_644, 0, 0, 0], ALLOW);
        program(libc::SYS_shmget, [0, SMALL_SEGMENT_BYTES, 0, 0, 0, 0], ALLOW);
        let too_large = [0, SMALL_SEGMENT_BYTES + 1, 0, 0, 0, 0];
        program(libc::SYS_shmget, too_large, refusal(libc::ENOMEM));
        program(libc::SYS_memfd_create, NO_ARGS, refusal(libc::ENOSYS));
        program(libc::SYS_semget, [0, 17, 0, 0, 0, 0], ALLOW);
        program(libc::SYS_semget, [0, 32_000, 0, 0, 0, 0], refusal(libc::ENOSPC));
        program(libc::SYS_msgget, NO_ARGS, refusal(libc::ENOSYS));
        check(MOST, libc::SYS_shmget, too_large, ALLOW);
        check(MOST, libc::SYS_memfd_create, NO_ARGS, ALLOW);
        check(Profile::Worker, libc::SYS_clone, [0x11, 0, 0, 0, 0, 0], eperm);
        check(Profile::Worker, libc::SYS_clone, [0x3d_0f00, 0, 0, 0, 0, 0], ALLOW);
    }

    #[test]
    fn families_types_and_protocols_of_sockets_are_pinned() {
        let [eperm, eafnosupport] = [libc::EPERM, libc::EAFNOSUPPORT].map(refusal);
        let unknown = refusal(libc::EPROTONOSUPPORT);
        let socket = |family, kind, protocol| [family, kind, protocol, 0, 0, 0];
        for (args, expected) in [
            (socket(2, 1, 0), ALLOW),
            (socket(2, 1, 6), ALLOW),
            (socket(10, 0x8_0002, 17), ALLOW),
            (socket(2, 3, 1), eperm),
            (socket(2, 2, 1), unknown),
            (socket(2, 1, 262), unknown),
            (socket(2, 2, 136), unknown),
            (socket(10, 1, 132), unknown),
            (socket(17, 3, 0), eafnosupport),
            (socket(40, 1, 0), eafnosupport),
            (socket(16, 3, 0), ALLOW),
            (socket(16, 3, 12), unknown),
        ] {
            check(LEAST, libc::SYS_socket, args, expected);
            check(MOST, libc::SYS_socket, args, expected);
        }
        check(LEAST, libc::SYS_socket, socket(1, 1, 0), eafnosupport);
        check(MOST, libc::SYS_socket, socket(1, 1, 0), ALLOW);
        check(MOST, libc::SYS_socket, socket(1, 3, 0), eperm);
        check(LEAST, libc::SYS_socketpair, socket(1, 2, 0), eperm);
        check(LEAST, libc::SYS_socketpair, socket(1, 0x8_0001, 0), ALLOW);
        check(MOST, libc::SYS_socketpair, socket(1, 2, 0), ALLOW);
        check(MOST, libc::SYS_socketpair, socket(30, 1, 0), eafnosupport);
    }
}
