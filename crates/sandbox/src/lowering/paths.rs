//! Whether a path lies within what was given, by its spelling and by its real place.

use std::path::{Component, Path, PathBuf};

use warrant_script::Access;

use super::{Lowering, Root};

/// Everything that was given.
pub(super) struct Reach<'a> {
    roots: Vec<Root>,
    real_path: &'a dyn Fn(&Path) -> Option<PathBuf>,
}

impl<'a> Reach<'a> {
    pub(super) fn new(
        lowering: &Lowering,
        real_path: &'a dyn Fn(&Path) -> Option<PathBuf>,
    ) -> Self {
        let all = lowering.declared.iter().chain(&lowering.granted).chain(&lowering.runtime);
        Self { roots: all.cloned().collect(), real_path }
    }

    /// Returns whether `path` may be used for `access`.
    pub(super) fn allows(&self, path: &Path, access: Access) -> bool {
        let within = |root: &&Root| self.is_within(path, &root.path);
        self.roots.iter().filter(within).any(|root| covers(root.access, access))
    }

    /// Returns whether `path` is `root` or below it, also once links are followed.
    ///
    /// SECURITY: a link inside the workspace that points outside is outside.
    pub(super) fn is_within(&self, path: &Path, root: &Path) -> bool {
        // A path whose place cannot be told is nowhere.
        let (Some(real), Some(real_root)) =
            ((self.real_path)(&fold(path)), (self.real_path)(&fold(root)))
        else {
            return false;
        };
        fold(&real).starts_with(fold(&real_root))
    }
}

/// Returns whether a root's access is enough.
fn covers(given: Access, wanted: Access) -> bool {
    match given {
        Access::ReadWrite => true,
        Access::Read | Access::Write => given == wanted,
    }
}

/// Returns a path without `.` and `..`, by its spelling alone.
pub(super) fn fold(path: &Path) -> PathBuf {
    let mut folded = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                folded.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => {
                folded.push(component);
            }
        }
    }
    folded
}

/// Returns the part of a pattern before its first glob, up to the last slash.
pub(super) fn fixed_part(pattern: &str) -> &str {
    let glob = pattern.find(['*', '?', '[', '{']).unwrap_or(pattern.len());
    let fixed = pattern.get(..glob).unwrap_or(pattern);
    match fixed.rfind('/') {
        Some(0) => "/",
        Some(slash) => fixed.get(..slash).unwrap_or(fixed),
        None => ".",
    }
}
