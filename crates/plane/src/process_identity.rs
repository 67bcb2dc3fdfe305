//! Whether a runner's process on this machine is still there.
//!
//! A runner names its process when it asks for work. Numbers of processes are used again, so the
//! name has the boot id of the machine, the process namespace, the number and when it began. A
//! plane that shares boot id and namespace with it can ask the kernel; for every other plane the
//! name says nothing, and the runner's silence decides.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use warrant_protocol::wire::ProcessIdentity;

/// What the kernel says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessLife {
    /// It is there, or it cannot be known from here.
    Possible,
    /// It has ended.
    Ended,
}

/// Returns the name of this process.
///
/// # Errors
/// The system's error when `/proc` does not say it; then nobody can look for this process.
pub fn this_process() -> io::Result<ProcessIdentity> {
    let pid = u64::from(std::process::id());
    let (boot_id, pid_namespace) = surroundings()?;
    let Some(ProcessState { start_ticks, .. }) = state_of(pid)? else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "/proc/self/stat is not readable"));
    };
    Ok(ProcessIdentity { boot_id, pid_namespace, pid, start_ticks })
}

/// Returns whether a process is known to have ended. When in doubt it is there.
// SECURITY: the name comes from a runner. It leads to nothing but a look at the process table, and
// decides only about what that same runner holds.
#[must_use]
pub fn life_of(process: &ProcessIdentity) -> ProcessLife {
    let is_same_machine = surroundings().is_ok_and(|(boot_id, pid_namespace)| {
        boot_id == process.boot_id && pid_namespace == process.pid_namespace
    });
    let number = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    let (true, Some(number)) = (is_same_machine, number) else { return ProcessLife::Possible };
    match pidfd_open(number, PidfdFlags::empty()) {
        // The kernel's own answer; a `/proc` that hides the processes of others has none.
        Err(Errno::SRCH) => ProcessLife::Ended,
        Err(_) => ProcessLife::Possible,
        Ok(_) => match state_of(process.pid) {
            Ok(Some(state)) if state.start_ticks != process.start_ticks || state.has_ended => {
                ProcessLife::Ended
            }
            Ok(_) | Err(_) => ProcessLife::Possible,
        },
    }
}

/// Returns the boot id of the machine and the process namespace of this process.
fn surroundings() -> io::Result<(String, String)> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/self/ns/pid")?;
    Ok((boot_id.trim().to_owned(), namespace.to_string_lossy().into_owned()))
}

/// What `/proc/PID/stat` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessState {
    start_ticks: u64,
    /// It is kept for its parent alone.
    has_ended: bool,
}

fn state_of(pid: u64) -> io::Result<Option<ProcessState>> {
    Ok(parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat"))?))
}

/// Reads the fields after the name, which may hold anything.
fn parse_stat(stat: &str) -> Option<ProcessState> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    let start_ticks = fields.nth(18)?.parse().ok()?;
    Some(ProcessState { start_ticks, has_ended })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_of_this_machine_is_there_until_it_ends() {
        let own = this_process().unwrap();
        assert_eq!(life_of(&own), ProcessLife::Possible);
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = u64::from(child.id());
        let start_ticks = state_of(pid).unwrap().unwrap().start_ticks;
        let other = ProcessIdentity { pid, start_ticks, ..own.clone() };
        assert_eq!(life_of(&other), ProcessLife::Possible);
        child.kill().unwrap();
        // Not waited for: it is kept for this process alone, and does nothing any more.
        while !state_of(pid).unwrap().unwrap().has_ended {
            std::thread::yield_now();
        }
        assert_eq!(life_of(&other), ProcessLife::Ended);
        child.wait().unwrap();
        assert_eq!(life_of(&other), ProcessLife::Ended);
    }

    #[test]
    fn a_number_that_was_used_again_is_another_process() {
        let own = this_process().unwrap();
        let earlier = ProcessIdentity { start_ticks: own.start_ticks - 1, ..own };
        assert_eq!(life_of(&earlier), ProcessLife::Ended);
    }

    #[test]
    fn of_another_machine_or_namespace_nothing_is_known() {
        let own = this_process().unwrap();
        let unused = ProcessIdentity { pid: 4_194_304, ..own };
        assert_eq!(life_of(&unused), ProcessLife::Ended);
        let machine = ProcessIdentity { boot_id: "another".to_owned(), ..unused.clone() };
        assert_eq!(life_of(&machine), ProcessLife::Possible);
        let namespace = ProcessIdentity { pid_namespace: "pid:[1]".to_owned(), ..unused.clone() };
        assert_eq!(life_of(&namespace), ProcessLife::Possible);
        let no_number = ProcessIdentity { pid: u64::MAX, ..unused };
        assert_eq!(life_of(&no_number), ProcessLife::Possible);
    }

    #[test]
    fn names_of_programs_may_hold_anything() {
        let rest = "1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 1 1";
        let state = parse_stat(&format!("5 (a) Z (b)) S {rest}"));
        assert_eq!(state, Some(ProcessState { start_ticks: 777, has_ended: false }));
        assert_eq!(parse_stat("5 (a"), None);
    }
}
