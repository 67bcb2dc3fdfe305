//! The init program as the supervisor holds it: an open file that pid 1 of a jail executes.
//!
//! The program itself is `init/main.rs`, compiled by `build.rs` into a few kilobytes.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::sync::OnceLock;

use crate::message::{At, Failure, Step};
use crate::sys::{self, EMPTY, Errno, Fd};

#[allow(dead_code, reason = "most of it runs in the init program alone")]
mod watch;

pub(crate) use watch::Orders;

/// The program.
static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init"));

/// The descriptors of init, in the order of their numbers.
pub(crate) struct Descriptors {
    /// The control socket.
    pub(crate) control: Fd,
    /// Where the program's process waits until init stands.
    pub(crate) gate: Fd,
    /// The socket of the socket broker, or [`crate::child::NOBODY`].
    pub(crate) broker: Fd,
    /// The init program.
    pub(crate) program: Fd,
}

/// Returns the program as an open file; it is made once.
///
/// # Errors
/// The system's error.
pub(crate) fn file() -> io::Result<Fd> {
    static FILE: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(file) = FILE.get() {
        return Ok(file.as_raw_fd());
    }
    let made = make()?;
    Ok(FILE.get_or_init(|| made).as_raw_fd())
}

fn make() -> io::Result<OwnedFd> {
    let mut writer = in_memory().or_else(|_| on_disk())?;
    writer.write_all(PROGRAM)?;
    // A file that somebody has open for writing cannot be executed.
    let reader = File::open(format!("/proc/self/fd/{}", writer.as_raw_fd()))?;
    // SECURITY: where nobody inside may read the file, the kernel lets nobody look into the
    // process either, from its first moment on.
    reader.set_permissions(Permissions::from_mode(0o111))?;
    Ok(reader.into())
}

fn in_memory() -> io::Result<File> {
    const EXECUTABLE: usize = 0x10;
    let make = |flags: usize| {
        let args = [c"init".as_ptr() as usize, flags, 0, 0, 0, 0];
        // SAFETY: the name is a static C string.
        unsafe { sys::call(libc::SYS_memfd_create, args) }
    };
    let close_on_exec = libc::MFD_CLOEXEC as usize;
    // Kernels before 6.3 do not know the flag and need none.
    let fd = make(close_on_exec | EXECUTABLE).or_else(|_| make(close_on_exec))?;
    // SAFETY: the kernel just returned it and nobody else has it.
    Ok(unsafe { File::from_raw_fd(fd as Fd) })
}

/// For machines whose settings forbid to execute memory.
fn on_disk() -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o700).custom_flags(libc::O_TMPFILE);
    options.open(std::env::temp_dir())
}

/// Executes the init program in place of the calling process; returns only if it cannot.
pub(crate) fn execute(orders: Orders, descriptors: &Descriptors) -> Failure {
    match prepare_and_execute(orders, descriptors).at(Step::Init) {
        Ok(()) => Failure { step: Step::Init, errno: Errno(libc::ENOEXEC) },
        Err(failure) => failure,
    }
}

fn prepare_and_execute(orders: Orders, descriptors: &Descriptors) -> sys::Result<()> {
    const NUMBERS: Fd = 4;
    let Descriptors { control, gate, broker, program } = *descriptors;
    let has_broker = orders.broker != 0;
    // Out of the way first: a source may sit on the number another one goes to.
    let above = |fd| sys::duplicate_above(fd, 2 * NUMBERS);
    let (control, gate, program) = (above(control)?, above(gate)?, above(program)?);
    if has_broker {
        sys::place(above(broker)?, 2)?;
    } else {
        sys::close(2);
    }
    sys::place(control, 0)?;
    sys::place(gate, 1)?;
    sys::place_until_exec(program, 3)?;
    sys::close_range(NUMBERS as u32, u32::MAX)?;
    keep_one_capability(has_broker.then_some(LOW_PORTS))?;
    let argument = orders.encode();
    let argv = [argument.as_ptr() as usize, 0];
    let env = [0_usize];
    let args = [
        3,
        EMPTY.as_ptr() as usize,
        argv.as_ptr() as usize,
        env.as_ptr() as usize,
        sys::AT_EMPTY_PATH,
        0,
    ];
    // SAFETY: both arrays end with a null pointer, and the argument with a zero byte.
    unsafe { sys::call(libc::SYS_execveat, args) }.map(drop)
}

/// `CAP_NET_BIND_SERVICE`.
const LOW_PORTS: usize = 10;

/// Gives up every capability but one, which survives the execution of a program.
fn keep_one_capability(kept: Option<usize>) -> sys::Result<()> {
    const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
    let header: [u32; 2] = [CAPABILITY_VERSION_3, 0];
    let bit = kept.map_or(0, |number| 1_u32 << number);
    let sets: [u32; 6] = [bit, bit, bit, 0, 0, 0];
    let args = [header.as_ptr() as usize, sets.as_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: header and sets have the layout of version 3.
    unsafe { sys::call(libc::SYS_capset, args) }?;
    match kept {
        Some(number) => {
            sys::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as usize, number)
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Word;

    #[test]
    fn orders_survive_as_text_without_a_zero() {
        let orders = Orders { program: 2, deadline_ms: u64::MAX, processes: 66, broker: 1 };
        let text = orders.encode();
        let (last, letters) = text.split_last().unwrap();
        assert!(*last == 0 && letters.iter().all(u8::is_ascii_lowercase));
        assert_eq!(Orders::decode(letters), orders);
    }

    #[test]
    fn the_program_is_small_and_says_the_same_words_as_the_crate() {
        assert!(PROGRAM.starts_with(b"\x7fELF") && PROGRAM.len() < 16 << 10);
        use watch::{nr, word};
        let words = [
            (word::FAILED, Word::Failed),
            (word::ENDED, Word::Ended),
            (word::OVERDUE, Word::Overdue),
            (word::CROWDED, Word::Crowded),
            (word::SOCKET, Word::Socket),
        ];
        for (number, word) in words {
            assert_eq!(number, word as u32);
        }
        assert_eq!(watch::LISTEN_STEP, Step::Listen as i32);
        let calls = [
            (nr::READ, libc::SYS_read),
            (nr::WRITE, libc::SYS_write),
            (nr::CLOSE, libc::SYS_close),
            (nr::SOCKET, libc::SYS_socket),
            (nr::SENDMSG, libc::SYS_sendmsg),
            (nr::BIND, libc::SYS_bind),
            (nr::LISTEN, libc::SYS_listen),
            (nr::SETSOCKOPT, libc::SYS_setsockopt),
            (nr::CLONE, libc::SYS_clone),
            (nr::WAIT4, libc::SYS_wait4),
            (nr::KILL, libc::SYS_kill),
            (nr::PRCTL, libc::SYS_prctl),
            (nr::CLOCK_GETTIME, libc::SYS_clock_gettime),
            (nr::EXIT_GROUP, libc::SYS_exit_group),
            (nr::PPOLL, libc::SYS_ppoll),
            (nr::SIGNALFD4, libc::SYS_signalfd4),
            (nr::PRLIMIT64, libc::SYS_prlimit64),
        ];
        for (number, expected) in calls {
            assert_eq!(number as i64, expected);
        }
    }
}
