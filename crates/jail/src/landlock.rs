//! Landlock, the second wall around files, applied by the program's own process.
//!
//! The rules name inodes of the jail's mounts, so they can only be made inside; the three system
//! calls are used directly because nothing may allocate there.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::spec::LandlockRules;
use crate::sys::{self, Errno, Fd};

const CREATE_RULESET_VERSION: usize = 1;
const RULE_PATH_BENEATH: usize = 1;

const WRITE_FILE: u64 = 1 << 1;
const MAKE_AND_REMOVE: u64 = 0b1_1111_1111 << 4;
const MAKE_DEVICE: u64 = 1 << 6 | 1 << 11;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1;
const SCOPE_SIGNAL: u64 = 2;

#[repr(C)]
struct RulesetAttr {
    handled_fs: u64,
    handled_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneathAttr {
    allowed: u64,
    parent: i32,
}

/// Returns the version of Landlock this kernel has, or nothing if it has none.
#[must_use]
pub fn abi() -> Option<u32> {
    let args = [0, 0, CREATE_RULESET_VERSION, 0, 0];
    let version = sys::number_call(libc::SYS_landlock_create_ruleset, args).ok()?;
    u32::try_from(version).ok().filter(|version| *version > 0)
}

fn handled(abi: u32) -> u64 {
    let mut rights = WRITE_FILE | MAKE_AND_REMOVE;
    if abi >= 2 {
        rights |= REFER;
    }
    if abi >= 3 {
        rights |= TRUNCATE;
    }
    if abi >= 5 {
        rights |= IOCTL_DEV;
    }
    rights
}

/// Lets the calling thread, and those it starts, write only below these directories, for ever.
///
/// For a worker that is handed its directory after its start. `abi` is the version of Landlock to
/// ask for. Call it after new privileges were forbidden and before any other thread exists.
///
/// # Errors
/// The system's error; then the caller must not go on.
pub fn restrict_writes(abi: u32, below: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let rights = handled(abi);
    let ruleset = create(abi)?;
    for directory in below {
        allow_below(ruleset, directory.as_raw_fd(), rights & !(IOCTL_DEV | MAKE_DEVICE))?;
    }
    Ok(enforce(ruleset)?)
}

/// Restricts the calling process to the rules, for ever.
pub(crate) fn restrict(rules: &LandlockRules) -> sys::Result<()> {
    let rights = handled(rules.abi);
    let ruleset = create(rules.abi)?;
    for path in &rules.writable {
        match allow(ruleset, path, rights & !(IOCTL_DEV | MAKE_DEVICE)) {
            // In a file nothing can be made, and the kernel takes no rights about that then.
            Err(Errno(libc::EINVAL)) => allow(ruleset, path, rights & (WRITE_FILE | TRUNCATE))?,
            other => other?,
        }
    }
    for path in &rules.devices {
        allow(ruleset, path, rights & (WRITE_FILE | TRUNCATE | IOCTL_DEV))?;
    }
    enforce(ruleset)
}

fn create(abi: u32) -> sys::Result<Fd> {
    let scoped = if abi >= 6 { SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL } else { 0 };
    let attr = RulesetAttr { handled_fs: handled(abi), handled_net: 0, scoped };
    let size = match abi {
        0..=3 => 8,
        4..=5 => 16,
        _ => size_of::<RulesetAttr>(),
    };
    // SAFETY: the structure has the kernel's layout, of which `size` bytes exist in this version.
    let ruleset = unsafe {
        sys::call(libc::SYS_landlock_create_ruleset, [&raw const attr as usize, size, 0, 0, 0, 0])
    }?;
    Ok(ruleset as Fd)
}

fn enforce(ruleset: Fd) -> sys::Result<()> {
    sys::number_call(libc::SYS_landlock_restrict_self, [ruleset as usize, 0, 0, 0, 0])?;
    sys::close(ruleset);
    Ok(())
}

fn allow(ruleset: Fd, path: &CStr, allowed: u64) -> sys::Result<()> {
    let parent = sys::openat(libc::AT_FDCWD, path, libc::O_PATH, 0)?;
    let allowed = allow_below(ruleset, parent, allowed);
    sys::close(parent);
    allowed
}

fn allow_below(ruleset: Fd, parent: Fd, allowed: u64) -> sys::Result<()> {
    let attr = PathBeneathAttr { allowed, parent };
    let args = [ruleset as usize, RULE_PATH_BENEATH, &raw const attr as usize, 0, 0, 0];
    // SAFETY: the structure has the kernel's packed layout and outlives the call.
    unsafe { sys::call(libc::SYS_landlock_add_rule, args) }.map(drop)
}
