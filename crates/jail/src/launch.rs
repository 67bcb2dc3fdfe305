//! The supervisor's half: the clone, the handshake and what the jail reports.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::c_int;

use crate::child::{self, OwnMaps, Plan};
use crate::command::Start;
use crate::init;
use crate::keeper;
use crate::message::{Message, Step, WITH_MOUNTS, WITH_TERMINAL, Word};
use crate::mounts::{ScratchOptions, Wanted};
use crate::observe::{self, Confinement};
use crate::spec::{Groups, Identity, Spec, Tether, View};
use crate::sys::{self, Errno};
use crate::view;

/// A jail could not be built; nothing of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchError {
    /// Which step failed.
    pub step: Step,
    /// What the kernel said.
    pub errno: Errno,
}

impl std::fmt::Display for LaunchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed", self.step.as_str())
    }
}

impl std::error::Error for LaunchError {}

/// A jail whose pid 1 is building it; its program does not start before [`Starting::go`]. Dropping
/// it ends it.
#[derive(Debug)]
pub struct Starting {
    jail: Jail,
}

/// A jail whose program starts as soon as it is built. Dropping it ends it.
#[derive(Debug)]
pub struct Going {
    jail: Jail,
}

/// A jail. Dropping it ends everyone in it and waits until they are gone.
#[derive(Debug)]
pub struct Jail {
    pid: c_int,
    pidfd: OwnedFd,
    control: OwnedFd,
    reaped: bool,
    root: Root,
}

/// What stands at the root of the tree, and so how the tree is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Root {
    /// Pid 1 of a namespace: whoever ends it ends everyone.
    PidOne,
    /// An ordinary process that keeps count of its descendants and ends them when told.
    Keeper,
}

/// What comes out of a built jail.
#[derive(Debug)]
pub struct Handed {
    /// The scratch filesystem's own root, if there is one. The overlay's upper directory is
    /// `upper` in it.
    pub scratch: Option<OwnedFd>,
    /// The mount namespace: while this is open, nobody who ends has to take the mounts down, which
    /// takes the kernel longer than anything else at the end of a jail.
    pub mounts: Option<OwnedFd>,
    /// The outer side of the program's terminal.
    pub terminal: Option<OwnedFd>,
    /// The listeners, in the order of the spec.
    pub listeners: Vec<OwnedFd>,
    /// What pid 1 sees of its namespaces and its root.
    pub seen: Confinement,
}

/// A directory made ready for someone who is jailed already.
#[derive(Debug)]
pub struct Shown {
    /// The directory, as a detached mount: a path only, with no way up.
    pub tree: OwnedFd,
    /// As in [`Handed`].
    pub scratch: OwnedFd,
}

/// What a jail reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The program ended with this wait status; everyone else in the jail is being ended.
    Ended(i32),
    /// The program could not be executed.
    NotExecuted(Errno),
    /// The program's process is about to execute, and sees this of itself.
    Observed(Confinement),
    /// A step failed after the jail was built.
    Failed(LaunchError),
    /// The deadline passed.
    Overdue,
    /// No further process could be made.
    Crowded,
    /// Pid 1 is gone without a word.
    Gone,
}

/// What the whole jail used, known once everyone in it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// CPU time of every process that was ever reaped, in microseconds.
    pub cpu_us: u64,
    /// The largest resident size of a single process, in bytes.
    pub largest_process_bytes: u64,
}

/// All but the network, which pid 1 leaves by itself: making one takes longer than all the others,
/// and the supervisor has something better to do meanwhile.
const NAMESPACES: c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;

#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Clones pid 1 of a new jail and lets it build, beside whatever the caller does meanwhile.
///
/// The calling thread must live as long as the jail: the kernel ends the jail with it.
///
/// # Errors
/// The step that failed; then nothing is left.
pub fn launch(spec: Spec) -> Result<Starting, LaunchError> {
    let prepare = |errno: Errno| LaunchError { step: Step::Prepare, errno };
    let (control, theirs) = socket_pair().map_err(prepare)?;
    observe::look_at_supervisor();
    let identity = spec.identity;
    let privileged = !is_own(identity);
    let own_maps = (!privileged).then(|| own_maps(identity));
    let plan = Plan {
        spec: &spec,
        control: theirs.as_raw_fd(),
        start: Start::new(&spec.program, &spec.walls),
        scratch: ScratchOptions::new(&Wanted::of_jail(&spec)),
        own_maps,
        init: init::file()
            .map_err(|error| LaunchError { step: Step::Init, errno: errno_of(&error) })?,
    };
    let (pid, pidfd) = clone(NAMESPACES, &spec.groups, control.as_raw_fd(), || child::run(&plan))?;
    drop(plan);
    // Our copies of the program's ends go away with the spec, so that pipes can end.
    drop(spec);
    drop(theirs);
    let starting =
        Starting { jail: Jail { pid, pidfd, control, reaped: false, root: Root::PidOne } };
    if privileged {
        starting.write_maps(identity)?;
    }
    Ok(starting)
}

/// Makes a directory ready as a jail would show it, and leaves no process behind.
///
/// # Errors
/// The step that failed; then nothing is left.
pub fn show(view: View) -> Result<Shown, LaunchError> {
    let prepare = |errno: Errno| LaunchError { step: Step::Prepare, errno };
    let (control, theirs) = socket_pair().map_err(prepare)?;
    let identity = view.identity;
    let privileged = !is_own(identity);
    let plan = view::Plan {
        view: &view,
        control: theirs.as_raw_fd(),
        scratch: ScratchOptions::new(&Wanted::of_view(&view)),
        own_maps: (!privileged).then(|| own_maps(identity)),
    };
    let groups = Groups::default();
    let (pid, pidfd) = clone(view::NAMESPACES, &groups, control.as_raw_fd(), || view::run(&plan))?;
    drop(theirs);
    let starting =
        Starting { jail: Jail { pid, pidfd, control, reaped: false, root: Root::PidOne } };
    if privileged {
        starting.write_maps(identity)?;
    }
    // It starts nothing, and so waits for no word.
    let (child, handed) = Going { jail: starting.jail }.built()?;
    drop(child);
    let (Some(scratch), Some(tree)) = (handed.scratch, handed.listeners.into_iter().next()) else {
        return Err(garbled());
    };
    Ok(Shown { tree, scratch })
}

fn own_maps(identity: Identity) -> OwnMaps {
    OwnMaps {
        uid_map: format!("{} {} 1", identity.uid, identity.kernel_uid).into_bytes(),
        gid_map: format!("{} {} 1", identity.gid, identity.kernel_gid).into_bytes(),
    }
}

/// Starts a program without a jail, below a keeper that can end its whole tree.
///
/// # Errors
/// The step that failed; then nothing is left.
pub fn tether(tether: Tether) -> Result<Starting, LaunchError> {
    let prepare = |errno: Errno| LaunchError { step: Step::Prepare, errno };
    let (control, theirs) = socket_pair().map_err(prepare)?;
    let plan = keeper::Plan {
        control: theirs.as_raw_fd(),
        start: Start::new(&tether.program, &tether.walls),
        deadline_ms: tether.deadline_ms,
        groups: &tether.groups,
    };
    let (pid, pidfd) = clone(0, &tether.groups, control.as_raw_fd(), || keeper::run(&plan))?;
    Ok(Starting { jail: Jail { pid, pidfd, control, reaped: false, root: Root::Keeper } })
}

fn is_own(identity: Identity) -> bool {
    // SAFETY: these cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    identity.kernel_uid == uid && identity.kernel_gid == gid
}

/// Clones a process that runs `child` and exits.
fn clone(
    namespaces: c_int,
    groups: &Groups,
    supervisor_end: c_int,
    child: impl FnOnce(),
) -> Result<(c_int, OwnedFd), LaunchError> {
    let mut pidfd: c_int = -1;
    let (born_into, cgroup) = match &groups.unified {
        Some(directory) => (CLONE_INTO_CGROUP, directory.as_raw_fd() as u64),
        None => (0, 0),
    };
    let args = CloneArgs {
        flags: (namespaces | libc::CLONE_PIDFD) as u32 as u64 | CLONE_CLEAR_SIGHAND | born_into,
        pidfd: &raw mut pidfd as u64,
        exit_signal: libc::SIGCHLD as u64,
        cgroup,
        ..CloneArgs::default()
    };
    let everything = SignalGuard::block_all();
    let args_pointer = &raw const args as usize;
    // SAFETY: without CLONE_VM and with no stack this is a fork; the child runs only raw calls.
    let result =
        unsafe { sys::call(libc::SYS_clone3, [args_pointer, size_of::<CloneArgs>(), 0, 0, 0, 0]) };
    if result == Ok(0) {
        // The supervisor's end must have one holder only, or its death would go unnoticed.
        sys::close(supervisor_end);
        let _leave = LeaveByExit;
        child();
        sys::exit(1);
    }
    drop(everything);
    let pid = result.map_err(|errno| LaunchError { step: Step::Clone, errno })?;
    // SAFETY: the kernel stored a fresh descriptor there.
    Ok((pid as c_int, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Ends the process when dropped: a panic between clone and execve must never unwind into the
/// supervisor's frames, whose destructors and callers belong to the other process.
struct LeaveByExit;

impl Drop for LeaveByExit {
    fn drop(&mut self) {
        sys::exit(1);
    }
}

const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
const CLONE_INTO_CGROUP: u64 = 1 << 33;

impl Starting {
    /// Returns the pid of the jail's pid 1, as the host sees it.
    #[must_use]
    pub const fn pid(&self) -> i32 {
        self.jail.pid
    }

    fn write_maps(&self, identity: Identity) -> Result<(), LaunchError> {
        let pid = self.jail.pid;
        let uid_map = format!("{} {} 1", identity.uid, identity.kernel_uid);
        let gid_map = format!("{} {} 1", identity.gid, identity.kernel_gid);
        let written = fs::write(format!("/proc/{pid}/uid_map"), uid_map)
            .and_then(|()| fs::write(format!("/proc/{pid}/gid_map"), gid_map));
        written.map_err(|error| LaunchError { step: Step::Maps, errno: errno_of(&error) })?;
        self.jail.tell(Word::Mapped)
    }

    /// Lets the program start once the jail stands.
    ///
    /// # Errors
    /// The step that failed; then nothing is left.
    pub fn go(self) -> Result<Going, LaunchError> {
        self.jail.tell(Word::Go)?;
        Ok(Going { jail: self.jail })
    }
}

impl Going {
    /// Waits until the jail stands; it starts the program by itself.
    ///
    /// # Errors
    /// The step that failed; then nothing is left.
    pub fn built(self) -> Result<(Jail, Handed), LaunchError> {
        let (message, mut fds) = self.jail.receive_with_descriptors()?;
        let (flags, seen) = match message {
            Some(Message { word: Word::Built, a, b }) => (a, Confinement::of_bits(b)),
            Some(Message { word: Word::Failed, a, b }) => {
                return Err(LaunchError { step: Step::from_index(a), errno: Errno(b) });
            }
            _ => return Err(LaunchError { step: Step::Died, errno: Errno(libc::ECHILD) }),
        };
        let mut take = || if fds.is_empty() { Err(garbled()) } else { Ok(fds.remove(0)) };
        let scratch = match self.jail.root {
            Root::PidOne => Some(take()?),
            Root::Keeper => None,
        };
        let mounts = if flags & WITH_MOUNTS != 0 { Some(take()?) } else { None };
        let terminal = if flags & WITH_TERMINAL != 0 { Some(take()?) } else { None };
        Ok((self.jail, Handed { scratch, mounts, terminal, listeners: fds, seen }))
    }
}

impl Jail {
    /// Returns the pid of the jail's pid 1, as the host sees it.
    #[must_use]
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns a descriptor that becomes readable when everyone in the jail is gone.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Returns a descriptor that becomes readable when the jail has something to report.
    #[must_use]
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Waits for the next report.
    ///
    /// # Errors
    /// A message nobody understands.
    pub fn event(&self) -> Result<Event, LaunchError> {
        let (message, _) = self.receive_with_descriptors()?;
        Ok(match message {
            None => Event::Gone,
            Some(Message { word, a, b }) => match word {
                Word::Ended => Event::Ended(a),
                Word::NotExecuted => Event::NotExecuted(Errno(a)),
                Word::Observed => Event::Observed(Confinement::of_bits(a)),
                Word::Overdue => Event::Overdue,
                Word::Crowded => Event::Crowded,
                Word::Failed => {
                    Event::Failed(LaunchError { step: Step::from_index(a), errno: Errno(b) })
                }
                Word::Built | Word::Mapped | Word::Go | Word::Stop | Word::Socket => {
                    return Err(garbled());
                }
            },
        })
    }

    /// Ends everyone in the jail at once.
    pub fn kill(&self) {
        if self.root == Root::Keeper {
            let _ = self.tell(Word::Stop);
            return;
        }
        let args = [self.pidfd.as_raw_fd() as usize, libc::SIGKILL as usize, 0, 0, 0];
        let _ = sys::number_call(libc::SYS_pidfd_send_signal, args);
    }

    /// Waits until everyone in the jail is gone and says what they used.
    pub fn wait(mut self) -> Ended {
        self.reap()
    }

    fn reap(&mut self) -> Ended {
        let mut ended = Ended { cpu_us: 0, largest_process_bytes: 0 };
        if std::mem::replace(&mut self.reaped, true) {
            return ended;
        }
        // SAFETY: an all-zero usage is a valid value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        let mut status: c_int = 0;
        loop {
            // SAFETY: both are valid for writing; the pid is our own child's, not yet reaped.
            let result =
                unsafe { libc::wait4(self.pid, &raw mut status, libc::__WALL, &raw mut usage) };
            if result != -1 || errno() != Errno(libc::EINTR) {
                break;
            }
        }
        let time = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
        ended.cpu_us = time(usage.ru_utime) + time(usage.ru_stime);
        ended.largest_process_bytes = usage.ru_maxrss as u64 * 1024;
        ended
    }

    fn tell(&self, word: Word) -> Result<(), LaunchError> {
        let sent = Message::new(word, 0, 0).send(self.control.as_raw_fd(), &[]);
        match sent {
            // The jail may have failed already; its own message says more than our error.
            Ok(()) | Err(Errno(libc::EPIPE | libc::ECONNRESET)) => Ok(()),
            Err(errno) => Err(LaunchError { step: Step::Handshake, errno }),
        }
    }

    fn receive_with_descriptors(&self) -> Result<(Option<Message>, Vec<OwnedFd>), LaunchError> {
        let failed = |errno| LaunchError { step: Step::Handshake, errno };
        let mut bytes = [0_u8; 64];
        let (length, fds) = receive(self.control.as_raw_fd(), &mut bytes).map_err(failed)?;
        if length == 0 {
            return Ok((None, fds));
        }
        let message = bytes.get(..length).and_then(Message::decode).ok_or_else(garbled)?;
        Ok((Some(message), fds))
    }
}

impl Drop for Jail {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            self.reap();
        }
    }
}

pub(crate) const fn garbled() -> LaunchError {
    LaunchError { step: Step::Handshake, errno: Errno(libc::EPROTO) }
}

fn errno() -> Errno {
    // SAFETY: errno belongs to this thread.
    Errno(unsafe { *libc::__errno_location() })
}

fn errno_of(error: &io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

pub(crate) fn socket_pair() -> sys::Result<(OwnedFd, OwnedFd)> {
    let mut fds: [c_int; 2] = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the array is valid for writing.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } == -1 {
        return Err(errno());
    }
    let [mine, theirs] = fds;
    // SAFETY: the kernel just returned both and nobody else has them.
    Ok(unsafe { (OwnedFd::from_raw_fd(mine), OwnedFd::from_raw_fd(theirs)) })
}

pub(crate) fn receive(socket: c_int, bytes: &mut [u8]) -> sys::Result<(usize, Vec<OwnedFd>)> {
    let mut fds = Vec::new();
    let mut take = |level, kind, content: &[u8]| {
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            let (numbers, _) = content.as_chunks();
            // SAFETY: the kernel just made these descriptors and nobody else has them.
            let owned =
                |number: &[u8; 4]| unsafe { OwnedFd::from_raw_fd(c_int::from_ne_bytes(*number)) };
            fds.extend(numbers.iter().map(owned));
        }
    };
    let length = loop {
        match sys::receive(socket, bytes, libc::MSG_CMSG_CLOEXEC, &mut take) {
            Err(Errno(libc::EINTR)) => {}
            Err(Errno(libc::ECONNRESET)) => break 0,
            received => break received?,
        }
    };
    Ok((length, fds))
}

/// Blocks every signal of this thread until dropped, so that no handler runs in the child.
pub(crate) struct SignalGuard {
    before: libc::sigset_t,
}

impl SignalGuard {
    pub(crate) fn block_all() -> Self {
        // SAFETY: both sets are valid for writing.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self { before }
        }
    }
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the kernel.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}

/// Clones into the same namespaces as a jail, executes `true` with nothing in between, and waits:
/// the floor that benchmarks measure against.
///
/// # Errors
/// The system's error.
#[doc(hidden)]
pub fn bare_clone() -> io::Result<()> {
    let argv = [c"/usr/bin/true".as_ptr(), std::ptr::null()];
    let env = [std::ptr::null::<libc::c_char>()];
    let namespaces = NAMESPACES | libc::CLONE_NEWNET;
    let (pid, pidfd) = clone(namespaces, &Groups::default(), -1, || {
        let args = [
            c"/usr/bin/true".as_ptr() as usize,
            argv.as_ptr() as usize,
            env.as_ptr() as usize,
            0,
            0,
            0,
        ];
        // SAFETY: path, argv and env are static or outlive the call.
        let _ = unsafe { sys::call(libc::SYS_execve, args) };
    })
    .map_err(|error| io::Error::from(error.errno))?;
    drop(pidfd);
    let mut status = 0;
    // SAFETY: the status is valid for writing; the pid is our own child's.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    Ok(())
}
