//! Paths of a sandbox as its client writes them.

use std::path::{Component, Path, PathBuf};

/// The longest path there is.
const MOST_BYTES: usize = 4096;

/// Returns a path as it is inside: absolute, without `.` and `..`; relative ones start at home.
/// Nothing for what is no path.
#[must_use]
pub fn inside(home: &str, path: &str) -> Option<String> {
    if path.contains('\0') || path.len() > MOST_BYTES {
        return None;
    }
    let path = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{home}{rest}"),
        _ => path.to_owned(),
    };
    let mut folded = PathBuf::from("/");
    for component in Path::new(home).join(path).components() {
        match component {
            Component::ParentDir => {
                folded.pop();
            }
            Component::Normal(name) => folded.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    folded.to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: Option<&str>) {
        assert_eq!(inside("/home/user", path).as_deref(), expected);
    }

    #[test]
    fn every_spelling_of_a_path_is_the_same_path() {
        check("", Some("/home/user"));
        check("~", Some("/home/user"));
        check("a//./b/", Some("/home/user/a/b"));
        check("~/a/../b", Some("/home/user/b"));
        check("/../../etc", Some("/etc"));
        check("~other", Some("/home/user/~other"));
        check("a\0b", None);
        check(&"a/".repeat(4096), None);
    }
}
