//! The keeper of a program without a jail: an ordinary process to which the program's orphans
//! return, so that the whole tree can be found and ended.
//!
//! It holds nothing back. A program that kills its keeper (it has the same user) gets away unless
//! a cgroup holds the tree too.

use libc::c_int;

use crate::child::{
    NOBODY, Watched, await_word, close_all_but, join, now_ms, reap, signal_descriptor,
};
use crate::command::{self, Start};
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
    let program = command::spawn(&plan.start, plan.control, None)?;
    close_all_but(plan.control, NOBODY);
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
    let mut watched = Watched { control: plan.control, children, usher: NOBODY };
    let deadline = plan.deadline_ms.map(|ms| now_ms().saturating_add_unsigned(ms));
    loop {
        if let Some(status) = reap(program) {
            return Ok(Some(Message::new(Word::Ended, status, 0)));
        }
        let timeout = deadline.map(|deadline| (deadline - now_ms()).max(0));
        if timeout == Some(0) {
            return Ok(Some(Message::new(Word::Overdue, 0, 0)));
        }
        if watched.supervisor_gone(timeout) {
            return Ok(None);
        }
    }
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
