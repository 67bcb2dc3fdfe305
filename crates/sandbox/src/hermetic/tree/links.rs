//! Targets of links: how they are stored on the host and how they are shown inside.
//!
//! Stored targets never lead out of the workspace, also for host programs that follow them.
//! Shown targets never tell a path of the host.

use std::path::{Component, Path, PathBuf};

/// What is shown in place of a target outside the workspace.
pub(super) const OUTSIDE: &str = "/outside-the-workspace";

/// Returns how a target as the script spells it is stored in a link `depth` directories down.
pub(super) fn stored(target: &Path, parent: &Path, depth: usize) -> PathBuf {
    if target.is_relative() && climbs_at_most(target, depth) {
        return target.to_owned();
    }
    // Absolute means from the workspace's root; climbing past that root stops there.
    let mut segments = Vec::new();
    for component in Path::new("/").join(parent).join(target).components() {
        match component {
            Component::Normal(name) => segments.push(name.to_owned()),
            Component::ParentDir => {
                segments.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    let mut stored: PathBuf = std::iter::repeat_n("..", depth).collect();
    stored.extend(segments);
    if stored.as_os_str().is_empty() { PathBuf::from(".") } else { stored }
}

/// Returns how a target found on the host is shown inside.
pub(super) fn shown(target: &Path, host_root: &Path, depth: usize) -> PathBuf {
    if let Ok(below) = target.strip_prefix(host_root) {
        let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        return if is_plain { Path::new("/").join(below) } else { OUTSIDE.into() };
    }
    if target.is_relative() && climbs_at_most(target, depth) {
        return target.to_owned();
    }
    OUTSIDE.into()
}

/// Returns whether a relative target climbs only at its start, and at most `depth` times.
///
/// `..` behind a name is not judged by its text, because that name may be a link itself.
fn climbs_at_most(target: &Path, depth: usize) -> bool {
    let mut climbed = 0;
    let mut descended = false;
    for component in target.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if descended => return false,
            Component::ParentDir => climbed += 1,
            Component::Normal(_) => descended = true,
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    climbed <= depth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_targets_stay_inside() {
        let check = |target: &str, parent: &str, expected: &str| {
            let depth = Path::new(parent).components().count();
            assert_eq!(stored(target.as_ref(), parent.as_ref(), depth), Path::new(expected));
        };
        check("b", "", "b");
        check("../b", "a", "../b");
        check("../../b", "a", "../b");
        check("/etc/passwd", "", "etc/passwd");
        check("/etc/passwd", "a/b", "../../etc/passwd");
        check("/", "", ".");
        check("s/../../..", "p/q", "../..");
    }

    #[test]
    fn shown_targets_tell_no_host_path() {
        let check = |target: &str, depth: usize, expected: &str| {
            let root = Path::new("/home/someone/project");
            assert_eq!(shown(target.as_ref(), root, depth), Path::new(expected));
        };
        check("b/c", 0, "b/c");
        check("../b", 1, "../b");
        check("../b", 0, OUTSIDE);
        check("/home/someone/project/src/x", 3, "/src/x");
        check("/home/someone/project", 3, "/");
        check("/home/someone/project/../other", 0, OUTSIDE);
        check("/home/someone/.ssh/id", 0, OUTSIDE);
        check("/home/someone/project2", 0, OUTSIDE);
        check("a/../../x", 1, OUTSIDE);
    }
}
