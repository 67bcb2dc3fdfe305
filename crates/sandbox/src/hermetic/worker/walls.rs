//! Tries from inside what a script could do only through a hole in the interpreter.

use std::os::fd::BorrowedFd;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::net::{AddressFamily, SocketType, socket};

/// Files every Linux host has and no jailed worker.
const HOST_FILES: [&str; 4] = ["/etc/passwd", "/proc/self/status", "/bin/sh", "/dev/null"];

/// Returns the names of the components that did not hold, one per line.
pub(super) fn holes(root: Option<BorrowedFd<'_>>) -> String {
    let mut holes = String::new();
    let mut note = |name: &str, is_open: bool| {
        if is_open {
            holes.push_str(name);
            holes.push('\n');
        }
    };
    // A program of this name would have to be started to find out that it does not exist.
    let started = std::process::Command::new("/nonexistent").spawn();
    let is_forbidden = |error: std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    note("syscalls", !started.err().is_some_and(is_forbidden));
    note("network", socket(AddressFamily::INET, SocketType::STREAM, None).is_ok());
    note("ipc", socket(AddressFamily::UNIX, SocketType::STREAM, None).is_ok());
    let opens = |path| openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).is_ok();
    note("files.read", HOST_FILES.into_iter().any(opens));
    // A workspace that was handed over could have a way up to where it came from.
    let climbs = |path: &str| {
        let path = format!("{}{path}", "/..".repeat(32).trim_start_matches('/'));
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        root.is_some_and(|root| openat(root, path, flags, Mode::empty()).is_ok())
    };
    note("files.read", HOST_FILES.into_iter().any(climbs));
    holes
}
