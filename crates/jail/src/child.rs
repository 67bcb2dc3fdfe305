//! Pid 1 of the jail: builds it from inside, starts the program, then reaps and watches.
//!
//! Runs in a forked copy of a possibly threaded supervisor, so nothing here allocates or locks.

use std::os::fd::AsRawFd;

use libc::c_int;

use crate::command::{self, Start};
use crate::message::{At, Failure, Message, Step, WITH_TERMINAL, Word};
use crate::mounts::{self, Root, Wanted};
use crate::network;
use crate::spec::{Groups, Identity, Spec, Stdio};
use crate::sys::{self, Errno, Fd};
use crate::usher;

/// What pid 1 needs; made before the clone.
pub(crate) struct Plan<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) control: Fd,
    pub(crate) start: Start<'a>,
    pub(crate) scratch: mounts::ScratchOptions,
    /// The identity maps, when pid 1 writes them itself.
    pub(crate) own_maps: Option<OwnMaps>,
}

/// The identity maps of an ordinary user.
pub(crate) struct OwnMaps {
    pub(crate) uid_map: Vec<u8>,
    pub(crate) gid_map: Vec<u8>,
}

const MOST_LISTENERS: usize = 96;
/// How often pid 1 tries whether another process could still be made.
const CROWD_INTERVAL_MS: i64 = 10;

/// Runs pid 1 to its end.
pub(crate) fn run(plan: &Plan<'_>) {
    if let Err(failure) = build_and_watch(plan) {
        let (step, errno) = (failure.step as i32, failure.errno.0);
        let _ = Message::new(Word::Failed, step, errno).send(plan.control, &[]);
    }
}

fn build_and_watch(plan: &Plan<'_>) -> Result<(), Failure> {
    let spec = plan.spec;
    // SAFETY: the mask is this process's own.
    unsafe { libc::umask(0) };
    join(&spec.groups)?;
    network::leave_the_hosts().at(Step::Network)?;
    network::bring_up().at(Step::Loopback)?;
    let mut fds = Handout::new();
    for listener in &spec.listeners {
        fds.push(network::listen(listener).at(Step::Listen)?).at(Step::Listen)?;
    }
    take_identity(spec.identity, plan.own_maps.as_ref(), plan.control)?;
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize, 0).at(Step::Lifeline)?;
    sys::prctl(libc::PR_SET_DUMPABLE, 0, 0).at(Step::Lifeline)?;
    let name = spec.hostname.as_bytes();
    // SAFETY: pointer and length come from one slice.
    unsafe { sys::call(libc::SYS_sethostname, [name.as_ptr() as usize, name.len(), 0, 0, 0, 0]) }
        .at(Step::Hostname)?;
    let Root { root, scratch } = mounts::build(&Wanted::of_jail(spec), &plan.scratch)?;
    mounts::enter(root)?;
    let terminal = match spec.program.stdio {
        Stdio::Pipes { .. } => None,
        Stdio::Terminal { columns, rows } => Some(open_terminal(columns, rows).at(Step::Terminal)?),
    };
    let mut flags = 0;
    if let Some(terminal) = &terminal {
        fds.push_front(terminal.outer).at(Step::Handshake)?;
        flags |= WITH_TERMINAL;
    }
    fds.push_front(scratch).at(Step::Handshake)?;
    Message::new(Word::Built, flags, 0).send(plan.control, fds.as_slice()).at(Step::Handshake)?;
    await_word(plan.control, Word::Go)?;
    let inner = terminal.map(|terminal| terminal.inner);
    let program = command::spawn(&plan.start, plan.control, inner)?;
    if spec.watch_processes {
        command::share_process_limit(&plan.start).at(Step::Rlimits)?;
    }
    // From here on pid 1 holds nothing but the control socket and the one of its usher.
    let usher = spec.usher.as_ref().map_or(NOBODY, AsRawFd::as_raw_fd);
    close_all_but(plan.control, usher);
    watch(plan, program, usher)
}

/// No descriptor: waiting for it waits for nothing.
pub(crate) const NOBODY: Fd = -1;

/// Closes every descriptor but two, of which one may be [`NOBODY`].
pub(crate) fn close_all_but(one: Fd, other: Fd) {
    let (low, high) = (one.min(other), one.max(other));
    let close = |from: Fd, to: Fd| {
        if let (Ok(from), Ok(to)) = (u32::try_from(from), u32::try_from(to)) {
            let _ = sys::close_range(from, to);
        }
    };
    close(0, low - 1);
    close(low + 1, high - 1);
    close(high + 1, Fd::MAX);
}

/// Moves this process into groups of old hierarchies; into one of the unified it was born.
pub(crate) fn join(groups: &Groups) -> Result<(), Failure> {
    // Zero means whoever writes it. Only for a thread that moves itself the kernel takes no lock
    // that every fork on the machine would have to let go of first.
    groups
        .legacy
        .iter()
        .try_for_each(|tasks| sys::write_all(tasks.as_raw_fd(), b"0"))
        .at(Step::Groups)
}

/// Becomes who the spec says; the maps are written here, or by the supervisor, who then says so.
pub(crate) fn take_identity(
    identity: Identity,
    own_maps: Option<&OwnMaps>,
    control: Fd,
) -> Result<(), Failure> {
    match own_maps {
        Some(maps) => {
            for (path, content) in [
                (c"/proc/self/setgroups", b"deny".as_slice()),
                (c"/proc/self/uid_map", maps.uid_map.as_slice()),
                (c"/proc/self/gid_map", maps.gid_map.as_slice()),
            ] {
                let file = sys::openat(libc::AT_FDCWD, path, libc::O_WRONLY, 0).at(Step::Maps)?;
                sys::write_all(file, content).at(Step::Maps)?;
                sys::close(file);
            }
        }
        None => {
            await_word(control, Word::Mapped)?;
            sys::number_call(libc::SYS_setgroups, [0; 5]).at(Step::Credentials)?;
        }
    }
    let gid = identity.gid as usize;
    let uid = identity.uid as usize;
    sys::number_call(libc::SYS_setresgid, [gid, gid, gid, 0, 0]).at(Step::Credentials)?;
    sys::number_call(libc::SYS_setresuid, [uid, uid, uid, 0, 0]).at(Step::Credentials).map(drop)
}

/// Waits for a word of the supervisor; anything else, its death included, ends the jail.
pub(crate) fn await_word(control: Fd, expected: Word) -> Result<(), Failure> {
    let mut bytes = [0; Message::LENGTH];
    let length = sys::read(control, &mut bytes).at(Step::Handshake)?;
    match bytes.get(..length).and_then(Message::decode) {
        Some(message) if message.word == expected => Ok(()),
        _ => Err(Failure { step: Step::Handshake, errno: Errno(libc::EPROTO) }),
    }
}

struct Terminal {
    outer: Fd,
    inner: Fd,
}

fn open_terminal(columns: u16, rows: u16) -> sys::Result<Terminal> {
    let flags = libc::O_RDWR | libc::O_NOCTTY;
    let outer = sys::openat(libc::AT_FDCWD, c"/dev/pts/ptmx", flags, 0)?;
    let unlock: c_int = 0;
    ioctl(outer, libc::TIOCSPTLCK, &raw const unlock as usize)?;
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    ioctl(outer, libc::TIOCSWINSZ, &raw const size as usize)?;
    let peer_flags = (flags | libc::O_CLOEXEC) as usize;
    let inner = ioctl(outer, libc::TIOCGPTPEER as _, peer_flags)? as Fd;
    Ok(Terminal { outer, inner })
}

/// Drives a device; `argument` is a number or points to a value that outlives the call.
pub(crate) fn ioctl(fd: Fd, request: libc::Ioctl, argument: usize) -> sys::Result<usize> {
    // SAFETY: see above; every caller in this crate passes what the request asks for.
    unsafe { sys::call(libc::SYS_ioctl, [fd as usize, request as usize, argument, 0, 0, 0]) }
}

/// Reaps until the program has ended, then returns; the kernel ends everyone else.
fn watch(plan: &Plan<'_>, program: c_int, usher: Fd) -> Result<(), Failure> {
    let children = signal_descriptor().at(Step::Lifeline)?;
    let mut watched = Watched { control: plan.control, children, usher };
    let deadline = plan.spec.deadline_ms.map(|ms| now_ms().saturating_add_unsigned(ms));
    let mut next_try = now_ms() + CROWD_INTERVAL_MS;
    loop {
        if let Some(status) = reap(program) {
            let _ = Message::new(Word::Ended, status, 0).send(plan.control, &[]);
            return Ok(());
        }
        let mut timeout = deadline.map(|deadline| (deadline - now_ms()).max(0));
        if timeout == Some(0) {
            let _ = Message::new(Word::Overdue, 0, 0).send(plan.control, &[]);
            return Ok(());
        }
        if plan.spec.watch_processes {
            if now_ms() >= next_try {
                if command::is_crowded(&plan.start) {
                    let _ = Message::new(Word::Crowded, 0, 0).send(plan.control, &[]);
                    return Ok(());
                }
                next_try = now_ms() + CROWD_INTERVAL_MS;
            }
            timeout = Some(timeout.unwrap_or(i64::MAX).min(CROWD_INTERVAL_MS));
        }
        if watched.supervisor_gone(timeout) {
            return Ok(());
        }
    }
}

/// Reaps every child that has ended; returns the program's status once it is among them.
pub(crate) fn reap(program: c_int) -> Option<c_int> {
    loop {
        let mut status: c_int = 0;
        let flags = (libc::WNOHANG | libc::__WALL) as usize;
        let args = [usize::MAX, &raw mut status as usize, flags, 0, 0, 0];
        // SAFETY: the status is valid for writing; no usage is asked for.
        match unsafe { sys::call(libc::SYS_wait4, args) } {
            Ok(pid) if pid == program as usize => return Some(status),
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

/// What the root of a tree waits for.
pub(crate) struct Watched {
    pub(crate) control: Fd,
    pub(crate) children: Fd,
    pub(crate) usher: Fd,
}

impl Watched {
    /// Waits for a child's end, the timeout or the supervisor, and serves who asks for sockets;
    /// returns whether the supervisor is gone or wants an end.
    pub(crate) fn supervisor_gone(&mut self, timeout_ms: Option<i64>) -> bool {
        let waiting = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polled = [waiting(self.control), waiting(self.children), waiting(self.usher)];
        let timespec = timeout_ms
            .map(|ms| libc::timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000) * 1_000_000 });
        let timeout = timespec.as_ref().map_or(0, |timespec| std::ptr::from_ref(timespec) as usize);
        let args = [polled.as_mut_ptr() as usize, polled.len(), timeout, 0, 0, 0];
        // SAFETY: the array and the timeout outlive the call.
        let _ = unsafe { sys::call(libc::SYS_ppoll, args) };
        let [supervisor, signals, wishes] = polled;
        if signals.revents != 0 {
            let mut buffer = [0; size_of::<libc::signalfd_siginfo>()];
            let _ = sys::read(self.children, &mut buffer);
        }
        if wishes.revents != 0 && !usher::serve(self.usher) {
            sys::close(self.usher);
            self.usher = NOBODY;
        }
        supervisor.revents != 0
    }
}

pub(crate) fn signal_descriptor() -> sys::Result<Fd> {
    let mask: u64 = 1 << (libc::SIGCHLD - 1);
    let flags = (libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as usize;
    let args = [usize::MAX, &raw const mask as usize, size_of::<u64>(), flags, 0, 0];
    // SAFETY: the mask has the kernel's size and outlives the call.
    Ok(unsafe { sys::call(libc::SYS_signalfd4, args) }? as Fd)
}

pub(crate) fn now_ms() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

/// The descriptors handed out, in a fixed place.
struct Handout {
    fds: [Fd; MOST_LISTENERS],
    count: usize,
}

impl Handout {
    const fn new() -> Self {
        Self { fds: [-1; MOST_LISTENERS], count: 0 }
    }

    fn push(&mut self, fd: Fd) -> sys::Result<()> {
        let slot = self.fds.get_mut(self.count).ok_or(Errno(libc::EMFILE))?;
        *slot = fd;
        self.count += 1;
        Ok(())
    }

    fn push_front(&mut self, fd: Fd) -> sys::Result<()> {
        self.push(fd)?;
        if let Some(used) = self.fds.get_mut(..self.count) {
            used.rotate_right(1);
        }
        Ok(())
    }

    fn as_slice(&self) -> &[Fd] {
        self.fds.get(..self.count).unwrap_or_default()
    }
}
