//! The system call filter: a table of refusals, assembled into a balanced tree of BPF.
//!
//! Foreign architectures (i386, x32) die. What is refused answers with an error that libraries
//! understand; calls this table has never heard of answer `ENOSYS`.

mod assembly;

use std::collections::BTreeMap;

use libc::{c_long, sock_filter};

use crate::sys;

use assembly::{Check, Test, Verdict, When, assemble};

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
    Program,
    /// Around an interpreter that never starts anything and never speaks to anyone: besides all
    /// of the above no `exec`, no new process, no socket. Installed by the interpreter itself,
    /// after it has been executed.
    Worker,
}

impl Filter {
    /// Returns the filter for `profile`.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        let mut table = BTreeMap::new();
        refuse_program(&mut table);
        match profile {
            Profile::Program => {}
            Profile::Worker => refuse_worker(&mut table),
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

fn refuse_program(table: &mut BTreeMap<c_long, Verdict>) {
    for number in PRIVILEGED {
        table.insert(*number, Verdict::Refuse(libc::EPERM));
    }
    for number in UNIMPLEMENTED {
        table.insert(*number, Verdict::Refuse(libc::ENOSYS));
    }
    table.insert(libc::SYS_unshare, any_bit(0, NAMESPACES));
    table.insert(libc::SYS_clone, any_bit(0, NAMESPACES));
    table.insert(libc::SYS_socket, Verdict::Check(socket_checks()));
    // SECURITY: input pushed into a terminal someone else reads.
    table.insert(libc::SYS_ioctl, one_of(1, u32::MAX, &[0x5412, 0x541c, 0x541d]));
    table.insert(libc::SYS_personality, none_of(0, &[0, 8, 0x20000, 0x20008, u32::MAX]));
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

fn one_of(argument: u32, mask: u32, values: &'static [u32]) -> Verdict {
    let test = Test::OneOf(values);
    Verdict::Check(vec![Check { when: When::Always, argument, mask, test, errno: libc::EPERM }])
}

fn none_of(argument: u32, values: &'static [u32]) -> Verdict {
    let test = Test::NoneOf(values);
    Verdict::Check(vec![Check {
        when: When::Always,
        argument,
        mask: u32::MAX,
        test,
        errno: libc::EPERM,
    }])
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

/// Stream and datagram sockets of IPv4 and IPv6, and the one netlink family libraries list
/// addresses with. `socketpair` is not touched.
fn socket_checks() -> Vec<Check> {
    const INET: u32 = libc::AF_INET as u32;
    const INET6: u32 = libc::AF_INET6 as u32;
    const NETLINK: u32 = libc::AF_NETLINK as u32;
    const STREAM_OR_DATAGRAM: &[u32] = &[libc::SOCK_STREAM as u32, libc::SOCK_DGRAM as u32];
    let kinds = |family| Check {
        when: When::Equal(0, family),
        argument: 1,
        mask: 0xf,
        test: Test::NoneOf(STREAM_OR_DATAGRAM),
        errno: libc::EPERM,
    };
    vec![
        Check {
            when: When::Always,
            argument: 0,
            mask: u32::MAX,
            test: Test::NoneOf(&[INET, INET6, NETLINK]),
            errno: libc::EAFNOSUPPORT,
        },
        kinds(INET),
        kinds(INET6),
        Check {
            when: When::Equal(0, NETLINK),
            argument: 2,
            mask: u32::MAX,
            test: Test::NoneOf(&[NETLINK_ROUTE]),
            errno: libc::EPROTONOSUPPORT,
        },
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
const SYS_OPEN_TREE_ATTR: c_long = 467;

/// Answers `ENOSYS`, so that libraries fall back to what the filter can look into: the arguments
/// of these calls are behind pointers.
const UNIMPLEMENTED: &[c_long] = &[
    libc::SYS_clone3,
    libc::SYS_openat2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

const PRIVILEGED: &[c_long] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    SYS_OPEN_TREE_ATTR,
    libc::SYS_setns,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_open_by_handle_at,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    libc::SYS_fanotify_init,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_sysfs,
];

const STARTING_AND_SPEAKING: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_shmget,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_mq_open,
    libc::SYS_memfd_create,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

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

    #[test]
    fn foreign_architectures_and_x32_die() {
        let filter = Filter::new(Profile::Program);
        assert_eq!(judge(&filter.program, 0x4000_0003, 1, NO_ARGS), KILL_PROCESS);
        #[cfg(target_arch = "x86_64")]
        check(Profile::Program, 0x4000_0001, NO_ARGS, KILL_PROCESS);
    }

    #[test]
    fn every_listed_call_is_refused_and_others_pass() {
        for number in PRIVILEGED {
            check(Profile::Program, *number, NO_ARGS, refusal(libc::EPERM));
        }
        for number in UNIMPLEMENTED {
            check(Profile::Program, *number, NO_ARGS, refusal(libc::ENOSYS));
        }
        check(Profile::Program, 470, NO_ARGS, refusal(libc::ENOSYS));
        for number in
            [libc::SYS_read, libc::SYS_execve, libc::SYS_futex, libc::SYS_landlock_add_rule]
        {
            check(Profile::Program, number, NO_ARGS, ALLOW);
        }
        for number in STARTING_AND_SPEAKING {
            check(Profile::Worker, *number, NO_ARGS, refusal(libc::EPERM));
        }
    }

    #[test]
    fn arguments_decide_where_they_should() {
        let program = |number, args, expected| check(Profile::Program, number, args, expected);
        let [eperm, eafnosupport] = [libc::EPERM, libc::EAFNOSUPPORT].map(refusal);
        program(libc::SYS_clone, [0x11, 0, 0, 0, 0, 0], ALLOW);
        program(libc::SYS_clone, [0x1000_0011, 0, 0, 0, 0, 0], eperm);
        program(libc::SYS_unshare, [libc::CLONE_FS as u32, 0, 0, 0, 0, 0], ALLOW);
        program(libc::SYS_socket, [2, 1, 0, 0, 0, 0], ALLOW);
        program(libc::SYS_socket, [10, 0x8_0002, 17, 0, 0, 0], ALLOW);
        program(libc::SYS_socket, [2, 3, 1, 0, 0, 0], eperm);
        program(libc::SYS_socket, [1, 1, 0, 0, 0, 0], eafnosupport);
        program(libc::SYS_socket, [17, 3, 0, 0, 0, 0], eafnosupport);
        program(libc::SYS_socket, [40, 1, 0, 0, 0, 0], eafnosupport);
        program(libc::SYS_socket, [16, 3, 0, 0, 0, 0], ALLOW);
        program(libc::SYS_socket, [16, 3, 12, 0, 0, 0], refusal(libc::EPROTONOSUPPORT));
        program(libc::SYS_ioctl, [0, 0x5412, 0, 0, 0, 0], eperm);
        program(libc::SYS_ioctl, [0, 0x5413, 0, 0, 0, 0], ALLOW);
        program(libc::SYS_fchmodat, [0, 0, 0o4755, 0, 0, 0], eperm);
        program(libc::SYS_fchmodat, [0, 0, 0o755, 0, 0, 0], ALLOW);
        program(libc::SYS_openat, [0, 0, 0, 0o4755, 0, 0], ALLOW);
        program(libc::SYS_openat, [0, 0, libc::O_CREAT as u32, 0o4755, 0, 0], eperm);
        program(libc::SYS_openat, [0, 0, libc::O_DIRECTORY as u32, 0o4755, 0, 0], ALLOW);
        program(libc::SYS_mknodat, [0, 0, 0o020_644, 0, 0, 0], eperm);
        program(libc::SYS_mknodat, [0, 0, 0o010_644, 0, 0, 0], ALLOW);
        check(Profile::Worker, libc::SYS_clone, [0x11, 0, 0, 0, 0, 0], eperm);
        check(Profile::Worker, libc::SYS_clone, [0x3d_0f00, 0, 0, 0, 0, 0], ALLOW);
    }
}
