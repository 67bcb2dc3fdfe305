//! Which Unix sockets a program may make, by what of the host it sees.
//!
//! A socket file of the host is reached through any mount of its own filesystem, also through one
//! that cannot be written; through an overlay it is not. So programs inside may use all Unix sockets
//! among themselves where every directory of the host is shown through an overlay or belongs to this
//! sandbox alone, and else only connected pairs.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use warrant_jail::seccomp::UnixSockets;

use crate::namespace::layout::{Layout, MountKind};

/// Returns what a layout leaves room for; `own` are roots that belong to this sandbox alone.
pub(crate) fn unix_sockets(layout: &Layout, own: &[(PathBuf, PathBuf)]) -> UnixSockets {
    // SECURITY: where nobody can tell what is mounted, anything may be.
    let Some(others) = mount_points() else { return UnixSockets::PairsOnly };
    let leads_out = layout.mounts.iter().any(|mount| match &mount.kind {
        MountKind::Writable(root) => !own.iter().any(|(path, _)| *path == root.path),
        MountKind::Granted(root) => root.is_directory && has_mounts_below(&root.path, &others),
        MountKind::System => has_mounts_below(&mount.target, &others),
        _ => false,
    });
    if leads_out { UnixSockets::PairsOnly } else { UnixSockets::Inside }
}

/// Returns whether a mount is shown through an overlay where Unix sockets are allowed.
pub(crate) fn is_shown_through_overlay(target: &Path, kind: &MountKind) -> bool {
    match kind {
        MountKind::Granted(root) => root.is_directory,
        // Certificates and links to programs: small directories of the machine's owner, in which
        // nothing listens.
        MountKind::System => !target.starts_with("/etc"),
        _ => false,
    }
}

/// An overlay shows one filesystem only, and not what is mounted below.
fn has_mounts_below(directory: &Path, mounts: &[PathBuf]) -> bool {
    mounts.iter().any(|mount| mount != directory && mount.starts_with(directory))
}

/// Returns where something is mounted on this machine, if that can be said.
fn mount_points() -> Option<Vec<PathBuf>> {
    let text = fs::read("/proc/self/mountinfo").ok()?;
    Some(text.split(|byte| *byte == b'\n').filter_map(mount_point).collect())
}

fn mount_point(line: &[u8]) -> Option<PathBuf> {
    let name = line.split(|byte| *byte == b' ').nth(4)?;
    Some(PathBuf::from(std::ffi::OsString::from_vec(unescaped(name))))
}

/// The kernel writes blanks, line ends and backslashes as a backslash and three octal digits.
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let number = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match number.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_blanks_in_their_names() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402\134x rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(mount_point(line), Some(PathBuf::from("/mnt 2\\x")));
        assert_eq!(mount_point(b""), None);
        let mounts = [PathBuf::from("/usr"), PathBuf::from("/usr/lib/x"), PathBuf::from("/usrx")];
        assert!(has_mounts_below(Path::new("/usr"), &mounts));
        assert!(!has_mounts_below(Path::new("/usr/lib/x"), &mounts));
        assert!(!has_mounts_below(Path::new("/us"), &mounts));
    }
}
