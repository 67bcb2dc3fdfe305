//! Paths as text: only plain absolute spellings are compared, by whole segments.

/// Returns whether `path` is absolute and spelled plainly: no `.`, `..`, `//`, control
/// characters or slash at the end.
#[must_use]
pub(crate) fn is_plain(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    let segments_fine = || rest.split('/').all(|segment| !matches!(segment, "" | "." | ".."));
    !path.chars().any(char::is_control) && (rest.is_empty() || segments_fine())
}

/// Returns whether `path` is `root` or below it; both spelled plainly.
#[must_use]
pub(crate) fn is_within(path: &str, root: &str) -> bool {
    if !is_plain(path) || !is_plain(root) {
        return false;
    }
    let root = root.trim_end_matches('/');
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_leave_its_root_by_spelling() {
        for (path, root, expected) in [
            ("/a", "/a", true),
            ("/a/b", "/a", true),
            ("/a", "/", true),
            ("/", "/", true),
            ("/ab", "/a", false),
            ("/a/../etc", "/a", false),
            ("/a//b", "/a", false),
            ("/a/./b", "/a", false),
            ("a/b", "a", false),
            ("/a/b/", "/a", false),
            ("/a/b\n", "/a", false),
            ("", "/", false),
        ] {
            assert_eq!(is_within(path, root), expected, "{path} in {root}");
        }
    }
}
