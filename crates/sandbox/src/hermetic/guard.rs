//! Which paths of the workspace a script may not read or not change, decided by name.
//!
//! Paths here are relative, without links or `..`: the filesystem opens nothing else.

use warrant_protocol::glob::Masks;

/// What the guard lets a script do with one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Read and, if the workspace is writable, change.
    Open,
    /// Read only: it belongs to a repository's own files.
    Repository,
    /// Neither: it is a masked secret, or lies inside one.
    Masked,
}

/// The rules of one run.
#[derive(Debug)]
pub(super) struct Guard {
    masks: Masks,
    repository_granted: bool,
}

/// The three entries that together make a directory a bare repository.
const BARE_REPOSITORY: [&str; 3] = ["head", "objects", "refs"];

impl Guard {
    /// Returns the guard for these masks.
    pub(super) fn new(masks: &[String], repository_granted: bool) -> Self {
        Self { masks: Masks::new(masks), repository_granted }
    }

    /// Returns whether there is anything to mask.
    pub(super) fn has_masks(&self) -> bool {
        !self.masks.is_empty()
    }

    /// Returns whether a mask speaks of whole paths, so that moving a directory could dodge it.
    pub(super) fn masks_paths(&self) -> bool {
        self.masks.speak_of_paths()
    }

    /// Returns what may be done with `path`. An ancestor's rule holds for all below it.
    pub(super) fn access(&self, path: &str) -> Access {
        if self.has_masks() && self.masks.veil(path) {
            return Access::Masked;
        }
        let is_repository = |name: &str| name.eq_ignore_ascii_case(".git");
        if !self.repository_granted && path.split('/').any(is_repository) {
            return Access::Repository;
        }
        Access::Open
    }

    /// Returns the two names that would make the directory a bare repository if `name` were
    /// added to them, or `None` when adding it cannot.
    pub(super) fn bare_repository_partners(&self, name: &str) -> Option<[&'static str; 2]> {
        if self.repository_granted {
            return None;
        }
        let [head, objects, refs] = BARE_REPOSITORY;
        match name.to_lowercase().as_str() {
            "head" => Some([objects, refs]),
            "objects" => Some([head, refs]),
            "refs" => Some([head, objects]),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(masks: &[&str], path: &str, expected: Access) {
        let masks: Vec<String> = masks.iter().map(ToString::to_string).collect();
        assert_eq!(Guard::new(&masks, false).access(path), expected, "{masks:?} on {path}");
    }

    #[test]
    fn masks_hold_at_any_depth_and_in_any_case() {
        check(&[".env"], ".env", Access::Masked);
        check(&[".env"], "a/b/.ENV", Access::Masked);
        check(&[".env*"], "a/.env.local", Access::Masked);
        check(&[".env"], "a/.environment", Access::Open);
        check(&["*.pem"], "deep/er/Key.PEM", Access::Masked);
        check(&["id_[rd]sa"], "x/id_rsa", Access::Masked);
        check(&["id_[!rd]sa"], "x/id_rsa", Access::Open);
        check(&["?ey"], "key", Access::Masked);
        check(&["?ey"], "/ey", Access::Open);
    }

    #[test]
    fn a_mask_with_a_slash_speaks_of_the_path() {
        check(&["config/secret.yml"], "config/secret.yml", Access::Masked);
        check(&["config/secret.yml"], "a/config/secret.yml", Access::Open);
        check(&["/config/*.yml"], "config/a.yml", Access::Masked);
        check(&["config/*.yml"], "config/a/b.yml", Access::Open);
        check(&["config/**"], "config/a/b.yml", Access::Masked);
        check(&["**/secret"], "secret", Access::Masked);
        check(&["**/secret"], "a/b/secret", Access::Masked);
        check(&["a/**/z"], "a/z", Access::Masked);
        check(&["a/**/z"], "a/b/c/z", Access::Masked);
        check(&["a/**/z"], "a/b/cz", Access::Open);
    }

    #[test]
    fn what_lies_inside_a_masked_directory_is_masked() {
        check(&[".ssh"], ".ssh/id", Access::Masked);
        check(&["private/*"], "private/a/b", Access::Masked);
    }

    #[test]
    fn a_repository_is_read_only_in_every_spelling_and_depth() {
        check(&[], ".git/config", Access::Repository);
        check(&[], "a/b/.GIT/hooks/pre-commit", Access::Repository);
        check(&[], ".git", Access::Repository);
        check(&[], ".gitignore", Access::Open);
        assert_eq!(Guard::new(&[], true).access(".git/config"), Access::Open);
    }
}
