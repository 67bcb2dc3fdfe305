//! The keeper of a program without a jail: an ordinary process to which the program's orphans
//! return, so that the whole tree can be found and ended.
//!
//! It holds nothing back. A program that kills its keeper (it has the same user) gets away unless
//! a cgroup holds the tree too.

use libc::c_int;

use crate::child::{await_word, join, now_ms};
use crate::command::{self, Beginning, SpawnContext, Start};
use crate::message::{At, Failure, Message, Step, Word};
use crate::spec::Groups;
use crate::sys::{self, Errno, Fd};

/// What the keeper needs; made before the clone.
pub(crate) struct Plan<'a> {
    pub(crate) control: Fd,
    pub(crate) start: Start<'a>,
    pub(crate) deadline_ms: Option<u64>,
    pub(crate) groups: &'a Groups,
}

/// Runs the keeper to its end.
pub(crate) fn run(plan: &Plan<'_>) {
    if let Err(failure) = keep(plan) {
        let (step, errno) = (failure.step as i32, failure.errno.0);
        let _ = Message::new(Word::Failed, step, errno).send(plan.control, &[]);
        end_everyone();
    }
}

fn keep(plan: &Plan<'_>) -> Result<(), Failure> {
    join(plan.groups)?;
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0).at(Step::Lifeline)?;
    sys::prctl(libc::PR_SET_DUMPABLE, 0, 0).at(Step::Lifeline)?;
    Message::new(Word::Built, 0, 0).send(plan.control, &[]).at(Step::Handshake)?;
    await_word(plan.control, Word::Go)?;
    let context = SpawnContext { control: plan.control, gate: None, terminal: None };
    let program =
        command::spawn(&Beginning { start: &plan.start, context, filter: plan.start.filter() })?;
    close_all_but(plan.control);
    let message = watch(plan, program)?;
    end_everyone();
    if let Some(message) = message {
        let _ = message.send(plan.control, &[]);
    }
    Ok(())
}

/// Waits for the program's end, the deadline or the supervisor; returns what to tell.
fn watch(plan: &Plan<'_>, program: c_int) -> Result<Option<Message>, Failure> {
    let children = signal_descriptor().at(Step::Lifeline)?;
    let deadline = plan.deadline_ms.map(|ms| now_ms().saturating_add(ms));
    loop {
        if let Some(status) = reap(program) {
            return Ok(Some(Message::new(Word::Ended, status, 0)));
        }
        let timeout = deadline.map(|deadline| deadline.saturating_sub(now_ms()));
        if timeout == Some(0) {
            return Ok(Some(Message::new(Word::Overdue, 0, 0)));
        }
        if supervisor_gone(plan.control, children, timeout) {
            return Ok(None);
        }
    }
}

/// Waits for a child's end, the timeout or the supervisor; returns whether the supervisor is gone
/// or wants an end.
fn supervisor_gone(control: Fd, children: Fd, timeout_ms: Option<u64>) -> bool {
    let waiting = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polled = [waiting(control), waiting(children)];
    let timespec = timeout_ms.map(|ms| libc::timespec {
        tv_sec: (ms / 1000) as i64,
        tv_nsec: (ms % 1000 * 1_000_000) as i64,
    });
    let timeout = timespec.as_ref().map_or(0, |timespec| std::ptr::from_ref(timespec) as usize);
    let args = [polled.as_mut_ptr() as usize, polled.len(), timeout, 0, 0, 0];
    // SAFETY: the array and the timeout outlive the call.
    let _ = unsafe { sys::call(libc::SYS_ppoll, args) };
    let [supervisor, signals] = polled;
    if signals.revents != 0 {
        let mut buffer = [0; size_of::<libc::signalfd_siginfo>()];
        let _ = sys::read(children, &mut buffer);
    }
    supervisor.revents != 0
}

/// Closes every descriptor but one.
fn close_all_but(kept: Fd) {
    if let Ok(kept) = u32::try_from(kept) {
        if let Some(below) = kept.checked_sub(1) {
            let _ = sys::close_range(0, below);
        }
        let _ = sys::close_range(kept + 1, u32::MAX);
    }
}

/// Reaps every child that has ended; returns the program's status once it is among them.
fn reap(program: c_int) -> Option<c_int> {
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

fn signal_descriptor() -> sys::Result<Fd> {
    let mask: u64 = 1 << (libc::SIGCHLD - 1);
    let flags = (libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as usize;
    let args = [usize::MAX, &raw const mask as usize, size_of::<u64>(), flags, 0, 0];
    // SAFETY: the mask has the kernel's size and outlives the call.
    Ok(unsafe { sys::call(libc::SYS_signalfd4, args) }? as Fd)
}

/// Kills children until there are none; those of the killed become ours and are next.
fn end_everyone() {
    loop {
        kill_children();
        let mut status: c_int = 0;
        let args = [usize::MAX, &raw mut status as usize, libc::__WALL as usize, 0, 0, 0];
        // SAFETY: the status is valid for writing; no usage is asked for.
        if let Err(Errno(libc::ECHILD)) = unsafe { sys::call(libc::SYS_wait4, args) } {
            return;
        }
    }
}

fn kill_children() {
    let mut list = [0_u8; 4096];
    let path = c"/proc/thread-self/children";
    let Ok(file) = sys::openat(libc::AT_FDCWD, path, libc::O_RDONLY, 0) else { return };
    let length = sys::read(file, &mut list).unwrap_or(0);
    sys::close(file);
    let mut pid = 0_usize;
    for byte in list.get(..length).unwrap_or_default() {
        match byte {
            b'0'..=b'9' => pid = pid.saturating_mul(10).saturating_add(usize::from(byte - b'0')),
            // A number cut off at the end of the buffer is never followed by a space.
            _ if pid > 1 => {
                let _ = sys::number_call(libc::SYS_kill, [pid, libc::SIGKILL as usize, 0, 0, 0]);
                pid = 0;
            }
            _ => pid = 0,
        }
    }
}
