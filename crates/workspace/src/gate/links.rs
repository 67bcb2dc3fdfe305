//! Links that lead out of the workspace, judged where they land.
//!
//! SECURITY: inside the sandbox a link to `~/.ssh` leads nowhere. On the host, whoever writes or
//! copies through it reaches the real directory. Only the text of the target counts; nothing is
//! followed.

use super::GateClass;
use crate::TreePath;

/// Directories of the system that hold programs and libraries, never anybody's files.
const SYSTEM: &[&[u8]] = &[b"usr", b"bin", b"sbin", b"lib", b"lib32", b"lib64", b"opt", b"nix"];

/// Returns why a link at `path` with this target is named, if it leads out of the workspace.
pub(crate) fn link_class(path: &TreePath, target: &[u8]) -> Option<GateClass> {
    let mut segments = target.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    if target.starts_with(b"/") {
        let is_plain = !target.split(|byte| *byte == b'/').any(|part| part == b"..");
        let is_system = is_plain && segments.next().is_some_and(|top| SYSTEM.contains(&top));
        return Some(if is_system { GateClass::SystemLink } else { GateClass::OutwardLink });
    }
    // How many directories of the workspace are above what the target names so far.
    let mut depth = path.depth().saturating_sub(1);
    for part in segments {
        match part {
            b"." => {}
            b".." => match depth.checked_sub(1) {
                Some(above) => depth = above,
                None => return Some(GateClass::OutwardLink),
            },
            _ => depth += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, target: &str, expected: Option<GateClass>) {
        let class = link_class(&TreePath::new(path).unwrap(), target.as_bytes());
        assert_eq!(class, expected, "{path} -> {target}");
    }

    #[test]
    fn links_that_leave_the_workspace_are_seen() {
        for target in ["b", "./b", "../b", "../../b", "x/../../b", "../../a/b/c"] {
            check("x/y/link", target, None);
        }
        for target in ["../../../b", "../../../../.ssh/config", "/etc/passwd", "/home/me", "/"] {
            check("x/y/link", target, Some(GateClass::OutwardLink));
        }
        check("link", "../b", Some(GateClass::OutwardLink));
        check("link", "a/../../b", Some(GateClass::OutwardLink));
        check("venv/bin/python", "/usr/bin/python3", Some(GateClass::SystemLink));
        check("link", "/usr/../home/me/.ssh", Some(GateClass::OutwardLink));
    }
}
