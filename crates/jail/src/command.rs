//! The program's own process, from its clone to `execve`: descriptors, session, keyring, limits,
//! capabilities, Landlock, and the system call filter last.
//!
//! It shares memory with pid 1 until it executes (`CLONE_VM | CLONE_VFORK`), which spares a copy
//! of the page tables and lets it leave an error behind without a pipe.

use std::ffi::CString;
use std::os::fd::AsRawFd;

use libc::{c_char, c_int, c_void};

use crate::child::ioctl;
use crate::landlock;
use crate::message::{At, Failure, Message, Step, Word};
use crate::spec::{Capabilities, Exec, Program, Resource, Rlimit, Stdio, Walls};
use crate::sys::{self, Errno, Fd};

/// Pointers and memory that `clone` and `execve` need, made before the first clone.
pub(crate) struct Start<'a> {
    program: &'a Program,
    walls: &'a Walls,
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    stack: Vec<u128>,
}

const STACK_BYTES: usize = 128 * 1024;
const MOST_DESCRIPTORS: usize = 8;

impl<'a> Start<'a> {
    pub(crate) fn new(program: &'a Program, walls: &'a Walls) -> Self {
        let pointers = |texts: &[CString]| {
            let end = std::iter::once(std::ptr::null());
            texts.iter().map(|text| text.as_ptr()).chain(end).collect()
        };
        Self {
            program,
            walls,
            argv: pointers(&program.argv),
            env: pointers(&program.env),
            stack: vec![0; STACK_BYTES / size_of::<u128>()],
        }
    }

    fn stack_top(&self) -> *mut c_void {
        self.stack.as_ptr_range().end.cast_mut().cast()
    }
}

/// What the program's process and pid 1 share until the former executes.
struct Shared<'a> {
    start: &'a Start<'a>,
    terminal: Option<Fd>,
    failure: Option<Failure>,
    not_executed: Option<Errno>,
}

/// Starts the program and returns its pid; it has been executed when this returns.
///
/// If nothing could be executed the supervisor is told and the jail ends.
pub(crate) fn spawn(
    start: &Start<'_>,
    control: Fd,
    terminal: Option<Fd>,
) -> Result<c_int, Failure> {
    let mut shared = Shared { start, terminal, failure: None, not_executed: None };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is large, unused, aligned and outlives the child's use of it, because
    // with CLONE_VFORK this process sleeps until the child executes or exits. `shared` likewise.
    let pid = unsafe { libc::clone(enter, start.stack_top(), flags, (&raw mut shared).cast()) };
    if pid == -1 {
        // SAFETY: errno belongs to this thread.
        return Err(Errno(unsafe { *libc::__errno_location() })).at(Step::Spawn);
    }
    // SAFETY: the child is done with it; read afresh because another process wrote it.
    let shared = unsafe { std::ptr::read_volatile(&raw const shared) };
    if let Some(failure) = shared.failure {
        return Err(failure);
    }
    if let Some(errno) = shared.not_executed {
        let _ = Message::new(Word::NotExecuted, errno.0, 0).send(control, &[]);
        sys::exit(0);
    }
    Ok(pid)
}

/// Gives pid 1 the program's own limit on processes, so that its tries say whether the jail is
/// full.
pub(crate) fn share_process_limit(start: &Start<'_>) -> sys::Result<()> {
    let limits = start.walls.rlimits.iter();
    limits.filter(|limit| limit.resource == Resource::Processes).try_for_each(set_limit)
}

/// Returns whether not one more process can be made in the jail.
pub(crate) fn is_crowded(start: &Start<'_>) -> bool {
    extern "C" fn leave(_: *mut c_void) -> c_int {
        sys::exit(0)
    }
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: as in `spawn`; the program left this stack when it executed.
    let pid = unsafe { libc::clone(leave, start.stack_top(), flags, std::ptr::null_mut()) };
    // SAFETY: errno belongs to this thread.
    pid == -1 && unsafe { *libc::__errno_location() } == libc::EAGAIN
}

extern "C" fn enter(argument: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes its own `Shared` and sleeps meanwhile.
    let shared = unsafe { &mut *argument.cast::<Shared<'_>>() };
    match confine(shared) {
        Ok(errno) => shared.not_executed = Some(errno),
        Err(failure) => shared.failure = Some(failure),
    }
    sys::exit(127)
}

/// Confines the calling process and executes; returns only if nothing could be executed.
fn confine(shared: &Shared<'_>) -> Result<Errno, Failure> {
    let start = shared.start;
    let walls = start.walls;
    sys::number_call(libc::SYS_setsid, [0; 5]).at(Step::Session)?;
    let executable = place_descriptors(start.program, shared.terminal).at(Step::Stdio)?;
    if shared.terminal.is_some() {
        ioctl(0, libc::TIOCSCTTY, 0).at(Step::Terminal)?;
    }
    // SECURITY: keys of the person's own session.
    let join = libc::KEYCTL_JOIN_SESSION_KEYRING as usize;
    match sys::number_call(libc::SYS_keyctl, [join, 0, 0, 0, 0]) {
        Ok(_) | Err(Errno(libc::ENOSYS)) => {}
        Err(errno) => return Err(Failure { step: Step::Keyring, errno }),
    }
    for limit in &walls.rlimits {
        set_limit(limit).at(Step::Rlimits)?;
    }
    // SAFETY: the path is a valid C string.
    unsafe { sys::call(libc::SYS_chdir, [start.program.cwd.as_ptr() as usize, 0, 0, 0, 0, 0]) }
        .at(Step::Directory)?;
    // SAFETY: the mask is this process's own.
    unsafe { libc::umask(0o022) };
    match walls.capabilities {
        Capabilities::Dropped => drop_capabilities().at(Step::Capabilities)?,
        Capabilities::Kept => {}
    }
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).at(Step::NoNewPrivileges)?;
    if let Some(rules) = &walls.landlock {
        landlock::restrict(rules).at(Step::Landlock)?;
    }
    reset_signals();
    if let Some(filter) = &walls.seccomp {
        filter.install().at(Step::Seccomp)?;
    }
    Ok(execute(start, executable))
}

/// Puts everything the program keeps at its number and closes all else. Returns where the
/// executable is, if it is a descriptor.
fn place_descriptors(program: &Program, terminal: Option<Fd>) -> sys::Result<Option<Fd>> {
    let mut kept = [-1; 3 + MOST_DESCRIPTORS];
    let standard = match (&program.stdio, terminal) {
        (Stdio::Pipes { stdin, stdout, stderr }, _) => {
            [stdin.as_raw_fd(), stdout.as_raw_fd(), stderr.as_raw_fd()]
        }
        (Stdio::Terminal { .. }, Some(inner)) => [inner; 3],
        (Stdio::Terminal { .. }, None) => return Err(Errno(libc::ENOTTY)),
    };
    let count = 3 + program.descriptors.len();
    let Some(kept) = kept.get_mut(..count) else { return Err(Errno(libc::EMFILE)) };
    let sources = standard.into_iter().chain(program.descriptors.iter().map(AsRawFd::as_raw_fd));
    // Out of the way first: a source may sit on the number another one goes to.
    let above = 2 * (3 + MOST_DESCRIPTORS) as Fd;
    for (slot, source) in kept.iter_mut().zip(sources) {
        *slot = sys::duplicate_above(source, above)?;
    }
    let executable = match &program.exec {
        Exec::Paths(_) => None,
        Exec::Descriptor(fd) => Some(sys::duplicate_above(fd.as_raw_fd(), above)?),
    };
    for (number, source) in (0..).zip(kept.iter()) {
        sys::place(*source, number)?;
    }
    let first_free = count as Fd;
    let Some(executable) = executable else {
        sys::close_range(first_free as u32, u32::MAX)?;
        return Ok(None);
    };
    let args = [executable as usize, first_free as usize, libc::O_CLOEXEC as usize, 0, 0];
    sys::number_call(libc::SYS_dup3, args)?;
    sys::close_range(first_free as u32 + 1, u32::MAX)?;
    Ok(Some(first_free))
}

fn set_limit(limit: &Rlimit) -> sys::Result<()> {
    let value = libc::rlimit64 { rlim_cur: limit.value, rlim_max: limit.value };
    let args = [0, limit.resource.number() as usize, &raw const value as usize, 0, 0, 0];
    // SAFETY: the structure outlives the call; no old value is asked for.
    match unsafe { sys::call(libc::SYS_prlimit64, args) } {
        // More than the supervisor itself may have: then its own hard limit stays in force.
        Err(Errno(libc::EPERM)) => Ok(()),
        result => result.map(drop),
    }
}

fn drop_capabilities() -> sys::Result<()> {
    // No-root, no-fixup and no-ambient, each locked; keep-caps locked off.
    const SECUREBITS: usize = 0xef;
    const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
    sys::prctl(libc::PR_SET_SECUREBITS, SECUREBITS, 0)?;
    for capability in 0..64 {
        match sys::prctl(libc::PR_CAPBSET_DROP, capability, 0) {
            Ok(()) => {}
            Err(Errno(libc::EINVAL)) => break,
            Err(errno) => return Err(errno),
        }
    }
    sys::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as usize, 0)?;
    let header: [u32; 2] = [CAPABILITY_VERSION_3, 0];
    let none = [0_u32; 6];
    let args = [header.as_ptr() as usize, none.as_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: header and sets have the layout of version 3.
    unsafe { sys::call(libc::SYS_capset, args) }.map(drop)
}

/// Gives every signal its default meaning and unblocks all.
fn reset_signals() {
    const MASK_BYTES: usize = 8;
    let default = [0_u64; 4];
    for signal in 1..=64 {
        let args = [signal, default.as_ptr() as usize, 0, MASK_BYTES, 0, 0];
        // SAFETY: an all-zero action of the kernel's size means the default. KILL and STOP refuse.
        let _ = unsafe { sys::call(libc::SYS_rt_sigaction, args) };
    }
    let none: u64 = 0;
    let args = [libc::SIG_SETMASK as usize, &raw const none as usize, 0, MASK_BYTES, 0, 0];
    // SAFETY: the mask has the kernel's size.
    let _ = unsafe { sys::call(libc::SYS_rt_sigprocmask, args) };
}

/// Executes the first candidate that can be; returns the most telling error of all of them.
fn execute(start: &Start<'_>, executable: Option<Fd>) -> Errno {
    let (argv, env) = (start.argv.as_ptr() as usize, start.env.as_ptr() as usize);
    let paths = match (&start.program.exec, executable) {
        (Exec::Descriptor(_), Some(fd)) => {
            let empty = sys::EMPTY.as_ptr() as usize;
            let args = [fd as usize, empty, argv, env, sys::AT_EMPTY_PATH, 0];
            // SAFETY: argv and env are null-terminated arrays of C strings made in `Start::new`.
            let result = unsafe { sys::call(libc::SYS_execveat, args) };
            return result.err().unwrap_or(Errno(libc::ENOEXEC));
        }
        (Exec::Descriptor(_), None) => return Errno(libc::EBADF),
        (Exec::Paths(paths), _) => paths,
    };
    let mut told = Errno(libc::ENOENT);
    for path in paths {
        let args = [path.as_ptr() as usize, argv, env, 0, 0, 0];
        // SAFETY: as above, and the path is a C string.
        match unsafe { sys::call(libc::SYS_execve, args) } {
            Err(Errno(libc::ENOENT | libc::ENOTDIR)) | Ok(_) => {}
            Err(errno @ Errno(libc::EACCES)) => told = errno,
            Err(errno) => return errno,
        }
    }
    told
}
