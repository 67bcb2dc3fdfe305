//! The program's own process, from its clone to `execve`: descriptors, session, keyring, limits,
//! capabilities, Landlock, and the system call filter last.
//!
//! It shares memory with its parent until one of them executes (`CLONE_VM`), which spares a copy
//! of the page tables. In a jail both are confined and executed at the same time; the program goes
//! last, when the init program has opened the gate.

use std::ffi::CString;
use std::os::fd::AsRawFd;

use libc::{c_char, c_int, c_void};

use crate::child::ioctl;
use crate::landlock;
use crate::message::{At, Failure, Message, Step, Word};
use crate::observe;
use crate::seccomp::Filter;
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

    /// Returns the filter that holds unless something else takes its place.
    pub(crate) fn filter(&self) -> Option<&Filter> {
        self.walls.seccomp.as_ref()
    }

    fn stack_top(&self) -> *mut c_void {
        self.stack.as_ptr_range().end.cast_mut().cast()
    }
}

/// What the program's process has besides what it starts with.
#[derive(Clone, Copy)]
pub(crate) struct SpawnContext {
    /// Where it says that it could not be confined or executed.
    pub(crate) control: Fd,
    /// Where it waits, confined, before it executes: an event counter. Without one its parent
    /// waits for it instead.
    pub(crate) gate: Option<Fd>,
    /// The inner side of its terminal.
    pub(crate) terminal: Option<Fd>,
}

/// What the program's process reads in memory it shares with its parent.
pub(crate) struct Beginning<'a> {
    pub(crate) start: &'a Start<'a>,
    pub(crate) context: SpawnContext,
    /// The system call filter.
    pub(crate) filter: Option<&'a Filter>,
}

/// Starts the program's process and returns its pid.
///
/// Without a gate it has been executed, or has ended, when this returns. With one the caller must
/// keep `beginning` until it executes or exits itself. A process that cannot be confined or
/// executed tells the supervisor so and ends.
pub(crate) fn spawn(beginning: &Beginning<'_>) -> Result<c_int, Failure> {
    let wait = if beginning.context.gate.is_none() { libc::CLONE_VFORK } else { 0 };
    let flags = libc::CLONE_VM | libc::SIGCHLD | wait;
    let argument = std::ptr::from_ref(beginning).cast_mut().cast();
    // SAFETY: the stack is large, unused and aligned. It and `beginning` outlive the child's use of
    // them: with CLONE_VFORK this process sleeps until the child executes or exits, without it the
    // caller keeps them until it leaves this memory to the child.
    let pid = unsafe { libc::clone(enter, beginning.start.stack_top(), flags, argument) };
    if pid == -1 {
        // SAFETY: errno belongs to this thread, and no other process uses it: see `sys::call`.
        return Err(Errno(unsafe { *libc::__errno_location() })).at(Step::Spawn);
    }
    Ok(pid)
}

/// Returns the program's own limit on processes, or zero.
pub(crate) fn process_limit(start: &Start<'_>) -> u64 {
    let mut limits = start.walls.rlimits.iter();
    let limit = limits.find(|limit| limit.resource == Resource::Processes);
    limit.map_or(0, |limit| limit.value)
}

extern "C" fn enter(argument: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes this, and it outlives its use here.
    let beginning = unsafe { &*argument.cast::<Beginning<'_>>() };
    let Beginning { start, context, .. } = beginning;
    let (control, ended) = match place_descriptors(start.program, context).at(Step::Stdio) {
        Ok(placed) => (placed.control, confine(beginning, &placed)),
        Err(failure) => (context.control, Err(failure)),
    };
    let message = match ended {
        Ok(errno) => Message::new(Word::NotExecuted, errno.0, 0),
        Err(failure) => Message::new(Word::Failed, failure.step as i32, failure.errno.0),
    };
    let _ = message.send(control, &[]);
    sys::exit(127)
}

/// Confines the calling process and executes; returns only if nothing could be executed.
fn confine(beginning: &Beginning<'_>, placed: &Placed) -> Result<Errno, Failure> {
    let Beginning { start, context, filter } = beginning;
    let walls = start.walls;
    sys::number_call(libc::SYS_setsid, [0; 5]).at(Step::Session)?;
    if context.terminal.is_some() {
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
    let mut seen = observe::look_at_process(walls);
    if let Some(filter) = filter {
        filter.install().at(Step::Seccomp)?;
        seen = seen.and(observe::look_at_filter());
    }
    if let Some(gate) = placed.gate {
        // Whoever should open it ends everyone when it ends. Meanwhile init executes beside this.
        sys::read(gate, &mut [0; 8]).at(Step::Init)?;
    }
    Message::new(Word::Observed, seen.to_bits(), 0)
        .send(placed.control, &[])
        .at(Step::Handshake)?;
    Ok(execute(start, placed.executable))
}

/// Where descriptors are that last until the program is executed.
struct Placed {
    executable: Option<Fd>,
    gate: Option<Fd>,
    control: Fd,
}

/// Above every number that a program's descriptors are put at.
const OUT_OF_THE_WAY: Fd = 2 * (3 + MOST_DESCRIPTORS) as Fd;

/// Puts everything the program keeps at its number, what lasts until it is executed right above,
/// and closes all else.
fn place_descriptors(program: &Program, context: &SpawnContext) -> sys::Result<Placed> {
    let mut kept = [-1; 3 + MOST_DESCRIPTORS];
    let standard = match (&program.stdio, context.terminal) {
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
    for (slot, source) in kept.iter_mut().zip(sources) {
        *slot = sys::duplicate_above(source, OUT_OF_THE_WAY)?;
    }
    let above = |fd| sys::duplicate_above(fd, OUT_OF_THE_WAY);
    let executable = match &program.exec {
        Exec::Paths(_) => None,
        Exec::Descriptor(fd) => Some(above(fd.as_raw_fd())?),
    };
    let gate = context.gate.map(above).transpose()?;
    let control = above(context.control)?;
    for (number, source) in (0..).zip(kept.iter()) {
        sys::place(*source, number)?;
    }
    let mut next = count as Fd;
    let mut lasting = |fd: Fd| {
        let number = next;
        next += 1;
        sys::place_until_exec(fd, number).map(|()| number)
    };
    let placed = Placed {
        executable: executable.map(&mut lasting).transpose()?,
        gate: gate.map(&mut lasting).transpose()?,
        control: lasting(control)?,
    };
    sys::close_range(next as u32, u32::MAX)?;
    Ok(placed)
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
