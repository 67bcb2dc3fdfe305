//! Pid 1 of the jail until it executes the init program: builds the jail from inside and starts
//! the program's process, which waits until init stands.
//!
//! Runs in a forked copy of a possibly threaded supervisor, so nothing here allocates or locks.

use std::os::fd::AsRawFd;

use libc::c_int;

use crate::command::{self, Beginning, SpawnContext, Start};
use crate::init::{self, Descriptors, Orders};
use crate::message::{At, Failure, Message, Step, WITH_MOUNTS, WITH_TERMINAL, Word};
use crate::mounts::{self, Root, Wanted};
use crate::network;
use crate::observe::{self, Fact};
use crate::seccomp::Filter;
use crate::spec::{Groups, Identity, Spec, Stdio};
use crate::sys::{self, Errno, Fd};

/// What pid 1 needs; made before the clone.
pub(crate) struct Plan<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) control: Fd,
    pub(crate) start: Start<'a>,
    pub(crate) scratch: mounts::ScratchOptions,
    /// The identity maps, when pid 1 writes them itself.
    pub(crate) own_maps: Option<OwnMaps>,
    /// The init program.
    pub(crate) init: Fd,
}

/// The identity maps of an ordinary user.
pub(crate) struct OwnMaps {
    pub(crate) uid_map: Vec<u8>,
    pub(crate) gid_map: Vec<u8>,
}

const MOST_LISTENERS: usize = 96;

/// Runs pid 1 until it is the init program, or to its end if it cannot become that.
pub(crate) fn run(plan: &Plan<'_>) {
    let failure = match build(plan) {
        Ok(built) => start_and_become_init(plan, &built),
        Err(failure) => failure,
    };
    let (step, errno) = (failure.step as i32, failure.errno.0);
    let _ = Message::new(Word::Failed, step, errno).send(plan.control, &[]);
}

/// What building leaves for the program's process.
struct Built<'a> {
    /// The inner side of its terminal.
    terminal: Option<Fd>,
    /// Its system call filter.
    filter: Option<&'a Filter>,
}

/// Builds the jail, hands it out and waits for the word to start.
fn build<'a>(plan: &Plan<'a>) -> Result<Built<'a>, Failure> {
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
    let namespaces = observe::look_at_namespaces();
    let flags = libc::O_RDONLY;
    let mounts = sys::openat(libc::AT_FDCWD, c"/proc/self/ns/mnt", flags, 0).at(Step::Handshake)?;
    let wanted = Wanted::of_jail(spec);
    let Root { root, scratch, all_shown } = mounts::build(&wanted, &plan.scratch)?;
    mounts::enter(root)?;
    let terminal = match spec.program.stdio {
        Stdio::Pipes { .. } => None,
        Stdio::Terminal { columns, rows } => Some(open_terminal(columns, rows).at(Step::Terminal)?),
    };
    let mut flags = WITH_MOUNTS;
    if let Some(terminal) = &terminal {
        fds.push_front(terminal.outer).at(Step::Handshake)?;
        flags |= WITH_TERMINAL;
    }
    fds.push_front(mounts).at(Step::Handshake)?;
    fds.push_front(scratch).at(Step::Handshake)?;
    let mut seen = namespaces.and(observe::look_at_root());
    seen.add_if(Fact::ShownThroughOverlays, all_shown);
    Message::new(Word::Built, flags, seen.to_bits())
        .send(plan.control, fds.as_slice())
        .at(Step::Handshake)?;
    await_word(plan.control, Word::Go)?;
    let walls = &spec.walls;
    let stricter = walls.seccomp_without_overlays.as_ref().filter(|_| !all_shown);
    let filter = stricter.or(walls.seccomp.as_ref());
    Ok(Built { terminal: terminal.map(|terminal| terminal.inner), filter })
}

/// Starts the program's process and executes the init program; returns only if that fails.
fn start_and_become_init(plan: &Plan<'_>, built: &Built<'_>) -> Failure {
    let spec = plan.spec;
    let gate = match sys::number_call(libc::SYS_eventfd2, [0, libc::O_CLOEXEC as usize, 0, 0, 0]) {
        Ok(gate) => gate as Fd,
        Err(errno) => return Failure { step: Step::Init, errno },
    };
    let context =
        SpawnContext { control: plan.control, gate: Some(gate), terminal: built.terminal };
    // SECURITY: the program is not executed before init stands, so nobody inside ever runs beside
    // what this process still has of the supervisor.
    let beginning = Beginning { start: &plan.start, context, filter: built.filter };
    let program = match command::spawn(&beginning) {
        Ok(program) => program,
        Err(failure) => return failure,
    };
    let deadline = spec.deadline_ms.map_or(u64::MAX, |ms| now_ms().saturating_add(ms));
    let orders = Orders {
        program: program as u64,
        deadline_ms: deadline,
        processes: if spec.watch_processes { command::process_limit(&plan.start) } else { 0 },
        broker: u64::from(spec.usher.is_some()),
    };
    let broker = spec.usher.as_ref().map_or(NOBODY, AsRawFd::as_raw_fd);
    let descriptors = Descriptors { control: plan.control, gate, broker, program: plan.init };
    let failure = init::execute(orders, &descriptors);
    // The program's process reads it until this process executes or ends.
    std::hint::black_box(&beginning);
    failure
}

/// No descriptor: waiting for it waits for nothing.
pub(crate) const NOBODY: Fd = -1;

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

pub(crate) fn now_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let (seconds, nanoseconds) = (now.tv_sec as u64, now.tv_nsec as u64);
    seconds.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000)
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
